"""Hugging Face data sets in local folders; the hub itself is never asked."""

from __future__ import annotations

import csv
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import datasets
import pytest

from easysteer_data.corpus import CorpusSettings, read_corpus
from easysteer_data.errors import CorpusError, SettingsError
from easysteer_data.types import Prompt

ROWS = [{"text": f" text {i} 🙂", "label": i % 2, "city": f"c{i // 2}"} for i in range(25)]


@pytest.fixture(scope="module", autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """No test reads or fills the user's own cache."""
    patch = pytest.MonkeyPatch()
    patch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path_factory.mktemp("cache"))
    yield
    patch.undo()


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("sets")
    made = datasets.Dataset.from_list(ROWS)
    made.save_to_disk(root / "saved")
    datasets.DatasetDict({"train": made, "test": made.select(range(3))}).save_to_disk(root / "splits")
    (root / "parquet").mkdir()
    made.to_parquet(root / "parquet" / "train.parquet")
    made.select(range(3)).to_parquet(root / "parquet" / "test.parquet")
    (root / "jsonl").mkdir()
    (root / "jsonl" / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    (root / "csv").mkdir()
    with (root / "csv" / "train.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, ["text", "label", "city"])
        writer.writeheader()
        writer.writerows(ROWS)
    return {folder.name: folder for folder in root.iterdir()}


def read(path: str, **settings: Any) -> list[Prompt]:
    return read_corpus(CorpusSettings(path=path, **settings))


@pytest.mark.parametrize("kind", ["saved", "splits", "parquet", "jsonl", "csv"])
def test_a_folder_is_read_in_order_with_its_texts_labels_and_rows(
    folders: dict[str, Path], kind: str
) -> None:
    path = f"hf:{folders[kind]}"
    prompts = read(path, label_column="label", group_column="city")
    assert [(p.text, p.label, p.group) for p in prompts] == [
        (row["text"], row["label"], row["city"]) for row in ROWS
    ]
    assert [p.source for p in prompts] == [f"{path}[train]:{i + 1}" for i in range(len(ROWS))]


@pytest.mark.parametrize("kind", ["splits", "parquet"])
def test_another_split_is_read_on_request_and_a_missing_one_is_refused(
    folders: dict[str, Path], kind: str
) -> None:
    path = f"hf:{folders[kind]}"
    assert [p.text for p in read(path, hf_split="test")] == [row["text"] for row in ROWS[:3]]
    with pytest.raises(CorpusError, match=r"hf:.*valid"):
        read(path, hf_split="valid")


def test_a_saved_part_of_a_split_is_of_that_split_alone(folders: dict[str, Path], tmp_path: Path) -> None:
    part = datasets.load_dataset("parquet", data_dir=str(folders["parquet"]), split="test[:2]")
    part.save_to_disk(tmp_path / "part")
    assert len(read(f"hf:{tmp_path}/part", hf_split="test")) == 2
    with pytest.raises(CorpusError, match="there is no split 'train'; the splits are test"):
        read(f"hf:{tmp_path}/part")


def test_the_limit_stops_the_stream(folders: dict[str, Path]) -> None:
    assert len(read(f"hf:{folders['jsonl']}", limit=4)) == 4


def test_chats_of_a_data_set_are_lists(tmp_path: Path) -> None:
    chats = [[{"role": "user", "content": "Why?"}], [{"role": "user", "content": "So?", "name": "x"}]]
    datasets.Dataset.from_list([{"messages": chat} for chat in chats]).save_to_disk(tmp_path)
    prompts = read(f"hf:{tmp_path}", messages_column="messages")
    assert [prompt.messages for prompt in prompts] == [tuple(chat) for chat in chats]


def test_a_missing_column_and_a_missing_folder_are_named(folders: dict[str, Path], tmp_path: Path) -> None:
    with pytest.raises(CorpusError, match=r"\[train\]:1: there is no column 'statement'; the columns are 't"):
        read(f"hf:{folders['saved']}", text_column="statement")
    with pytest.raises(CorpusError, match=f"there is no such folder \\(looked for {tmp_path}/none\\)"):
        read(f"hf:{tmp_path}/none")
    with pytest.raises(SettingsError, match="give a data set's name or folder"):
        read("hf:")


def test_a_data_set_that_is_not_there_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    with pytest.raises(CorpusError, match=r"hf:nobody/nothing\[train\]: can't be read after row 0"):
        read("hf:nobody/nothing")


def test_code_that_a_folder_holds_is_never_run(folders: dict[str, Path], tmp_path: Path) -> None:
    folder = tmp_path / "set"
    folder.mkdir()
    marker = tmp_path / "ran"
    (folder / "set.py").write_text(f"open({str(marker)!r}, 'w')\n")
    (folder / "train.jsonl").write_bytes((folders["jsonl"] / "train.jsonl").read_bytes())
    with pytest.raises(CorpusError, match=r"set\[train\]: can't be read after row 0: Dataset scripts are no"):
        read(f"hf:{folder}")
    assert not marker.exists()


def test_without_the_package_the_extra_to_install_is_named() -> None:
    code = (
        "import sys; sys.modules['datasets'] = None\n"
        "from easysteer_data.corpus import CorpusSettings, read_corpus\n"
        "read_corpus(CorpusSettings(path='hf:name'))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].endswith(
        "corpus.path begins with hf: but the package datasets is not installed; "
        "pip install 'easysteer-data[hf]'"
    )


def test_the_package_is_imported_only_when_it_is_used(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("one\n")
    code = (
        "import sys\nfrom easysteer_data.corpus import CorpusSettings, read_corpus\n"
        f"read_corpus(CorpusSettings(path={str(tmp_path / 'a.txt')!r}))\n"
        "sys.exit('datasets' in sys.modules)\n"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
