"""Finds the files of a corpus and reads their lines: UTF-8, gzip, line numbers. Knows no columns."""

from __future__ import annotations

import codecs
import glob
import gzip
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, cast

from easysteer_data.corpus.settings import FORMATS, Format
from easysteer_data.errors import CorpusError


def find_files(path: str) -> list[Path]:
    """Return the files that a path or a glob names, sorted by name.

    Raises:
        CorpusError: nothing is there, or the path is a folder.
    """
    file = Path(path).expanduser()
    if file.is_file():
        return [file]
    if file.is_dir():
        raise CorpusError(f"corpus.path {path!r} is a folder; give a file or a glob such as {path}/*.jsonl")
    if not glob.has_magic(path):
        raise CorpusError(f"corpus.path {path!r}: there is no such file (looked for {file.absolute()})")
    root = Path(file.anchor)
    files = sorted(match for match in root.glob(str(file.relative_to(root))) if match.is_file())
    if not files:
        raise CorpusError(f"corpus.path {path!r}: no file matches (looked from {root.absolute()})")
    return files


def format_of(file: Path) -> Format:
    """Return the format that a file's suffix tells, .gz set aside.

    Raises:
        CorpusError: the suffix tells nothing.
    """
    suffixes = [suffix.lower() for suffix in file.suffixes]
    if suffixes[-1:] == [".gz"]:
        suffixes.pop()
    suffix = suffixes[-1].removeprefix(".") if suffixes else ""
    if suffix not in FORMATS:
        raise CorpusError(f"{file}: can't tell the format; set corpus.format to one of {', '.join(FORMATS)}")
    return suffix


def read_lines(file: Path) -> Iterator[tuple[int, str]]:
    r"""Yield (1-based number, line with its own end) of a UTF-8 file, a byte order mark set aside.

    Only \n ends a line here: str.splitlines would also cut at U+2028, form feeds and others that
    may stand inside a prompt.

    Raises:
        CorpusError: the file can't be read, is not UTF-8, or is a damaged gzip file.
    """
    number = 0
    try:
        with _open(file) as handle:
            for number, line in enumerate(handle, start=1):
                text = line.removeprefix(codecs.BOM_UTF8) if number == 1 else line
                yield number, text.decode("utf-8")
    except UnicodeDecodeError as error:
        raise CorpusError(f"{file}:{number}: not UTF-8 ({error.reason}); save the file as UTF-8") from error
    except (OSError, EOFError, zlib.error) as error:
        raise CorpusError(f"{file}: can't be read after line {number}: {error}") from error


def _open(file: Path) -> BinaryIO:
    if file.suffix.lower() == ".gz":
        return cast("BinaryIO", gzip.open(file, "rb"))
    return file.open("rb")
