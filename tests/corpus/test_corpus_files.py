from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from easysteer_data.corpus import CorpusSettings, read_corpus
from easysteer_data.corpus.files import find_files, format_of, read_lines
from easysteer_data.errors import CorpusError


@pytest.mark.parametrize(
    ("name", "format_name"),
    [
        ("a.txt", "txt"),
        ("a.jsonl", "jsonl"),
        ("a.json", "json"),
        ("a.b.CSV", "csv"),
        ("a.csv.gz", "csv"),
        ("a.JSONL.GZ", "jsonl"),
    ],
)
def test_the_format_goes_by_the_suffix_with_or_without_gz(name: str, format_name: str) -> None:
    assert format_of(Path(name)) == format_name


@pytest.mark.parametrize("name", ["a", "a.gz", "a.tsv", "a.txt.zip", ".csv"])
def test_a_suffix_that_tells_no_format_asks_for_one(name: str) -> None:
    with pytest.raises(CorpusError, match=r"set corpus\.format to one of txt, jsonl, json, csv"):
        format_of(Path(name))


def test_a_format_that_is_given_reads_a_file_of_any_name(tmp_path: Path) -> None:
    (tmp_path / "prompts.list").write_text("one\ntwo\n")
    prompts = read_corpus(CorpusSettings(path=str(tmp_path / "prompts.list"), format="txt"))
    assert [prompt.text for prompt in prompts] == ["one", "two"]


def test_a_glob_names_its_files_in_order_and_no_folders(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("b.txt", "a.txt", "c.csv", "deep/d.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    (tmp_path / "folder.txt").mkdir()
    assert find_files(f"{tmp_path}/*.txt") == [tmp_path / "a.txt", tmp_path / "b.txt"]
    assert find_files(f"{tmp_path}/**/*.txt") == [tmp_path / f for f in ("a.txt", "b.txt", "deep/d.txt")]
    monkeypatch.chdir(tmp_path / "deep")
    assert find_files("../[ab].txt") == [Path("../a.txt"), Path("../b.txt")]


def test_a_file_whose_name_looks_like_a_glob_is_read_as_named(tmp_path: Path) -> None:
    (tmp_path / "run[1].txt").touch()
    (tmp_path / "run1.txt").touch()
    assert find_files(f"{tmp_path}/run[1].txt") == [tmp_path / "run[1].txt"]


def test_a_tilde_is_the_home_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "a.txt").touch()
    assert find_files("~/a.txt") == find_files("~/*.txt") == [tmp_path / "a.txt"]


def test_a_missing_file_is_named_with_the_place_that_was_searched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(CorpusError) as raised:
        find_files("data/facts.csv")
    assert str(raised.value) == (
        f"corpus.path 'data/facts.csv': there is no such file (looked for {tmp_path}/data/facts.csv)"
    )


def test_a_glob_that_matches_nothing_and_a_folder_are_refused(tmp_path: Path) -> None:
    with pytest.raises(CorpusError, match="no file matches"):
        find_files(f"{tmp_path}/*.txt")
    with pytest.raises(CorpusError, match=r"is a folder; give a file or a glob such as .*/\*\.jsonl"):
        find_files(str(tmp_path))


def test_only_a_line_feed_ends_a_line(tmp_path: Path) -> None:
    odd = "a\x0bb\x0cc\x1cd\x85e\u2028f\u2029g\rh"
    (tmp_path / "a.txt").write_bytes(f"{odd}\n\nlast".encode())
    assert list(read_lines(tmp_path / "a.txt")) == [(1, f"{odd}\n"), (2, "\n"), (3, "last")]


@pytest.mark.parametrize("name", ["a.txt", "a.txt.gz"])
def test_a_byte_order_mark_is_set_aside_at_the_start_alone(tmp_path: Path, name: str) -> None:
    content = "\ufeffone\n\ufefftwo\n".encode()
    (tmp_path / name).write_bytes(gzip.compress(content) if name.endswith(".gz") else content)
    assert [line for _, line in read_lines(tmp_path / name)] == ["one\n", "\ufefftwo\n"]


@pytest.mark.parametrize(
    ("content", "line"),
    [(b"fine\ncaf\xe9\n", 2), ("text".encode("utf-16"), 1), (b"a\nb\n\xed\xa0\x80", 3)],
)
def test_bytes_that_are_not_utf_8_are_refused_by_line(tmp_path: Path, content: bytes, line: int) -> None:
    file = tmp_path / "a.txt"
    file.write_bytes(content)
    with pytest.raises(CorpusError) as raised:
        list(read_lines(file))
    assert str(raised.value).startswith(f"{file}:{line}: not UTF-8")
    assert "save the file as UTF-8" in str(raised.value)


def test_a_damaged_gzip_file_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "a.txt.gz"
    whole = gzip.compress(b"a line of text\n" * 1000)
    altered = bytes(255 - byte if i == len(whole) // 2 else byte for i, byte in enumerate(whole))
    for content in (b"not gzip", whole[:-20], altered):
        file.write_bytes(content)
        with pytest.raises(CorpusError, match=f"{file}: can't be read after line"):
            list(read_lines(file))
