"""Which shards are committed: one line a shard, appended when all its files are on disk.

Knows names, sizes and hashes of files, not what they hold.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from easysteer_data.errors import RunError
from easysteer_data.shards.checked_json import JsonRecord, canonical_json, parse_json


@dataclass(frozen=True, slots=True)
class FileEntry:
    """A file of a run: its name relative to the run folder, its size and its sha256 in hex."""

    name: str
    n_bytes: int
    sha256: str

    def to_json(self) -> dict[str, object]:
        """Its part of a journal line."""
        return {"name": self.name, "bytes": self.n_bytes, "sha256": self.sha256}

    @classmethod
    def from_json(cls, record: JsonRecord) -> FileEntry:
        """Read it back; raises RunError on anything that `to_json` would not write."""
        return cls(record.text("name"), record.count("bytes"), record.text("sha256"))

    def fault(self, run: Path) -> str | None:
        """What is wrong with the file's presence and size, None if nothing is."""
        path = run / self.name
        if not path.is_file():
            return f"{self.name}: missing"
        n_found = path.stat().st_size
        return None if n_found == self.n_bytes else f"{self.name}: {n_found} bytes, should be {self.n_bytes}"


@dataclass(frozen=True, slots=True)
class ShardEntry:
    """A committed shard.

    Attributes:
        number: 0-based.
        prompts: half-open range of prompt indices.
        n_rows: rows of every layer.
        files: its files: layers, prompt table, statistics, index.
    """

    number: int
    prompts: tuple[int, int]
    n_rows: int
    files: tuple[FileEntry, ...]

    @property
    def n_bytes(self) -> int:
        """Bytes of all its files."""
        return sum(file.n_bytes for file in self.files)

    def to_json(self) -> dict[str, object]:
        """A line of the journal, an item of the manifest."""
        return {
            "shard": self.number,
            "prompts": list(self.prompts),
            "n_rows": self.n_rows,
            "files": [file.to_json() for file in self.files],
        }

    @classmethod
    def from_json(cls, record: JsonRecord) -> ShardEntry:
        """Read it back; raises RunError on anything that `to_json` would not write."""
        files = tuple(FileEntry.from_json(item) for item in record.records("files"))
        return cls(record.count("shard"), record.span("prompts"), record.count("n_rows"), files)

    def faults(self, run: Path) -> list[str]:
        """What is wrong with the presence and size of its files."""
        return [fault for file in self.files if (fault := file.fault(run)) is not None]


def journal_bytes(entries: Iterable[ShardEntry]) -> bytes:
    """The journal's lines for these shards."""
    return b"".join(canonical_json(entry.to_json()) + b"\n" for entry in entries)


def read_journal(path: Path) -> list[ShardEntry]:
    """Read the committed shards, in the order they were committed; none if there is no journal.

    The last line may be torn by a crash while it was written: then its shard was not committed.

    Raises:
        RunError: another line is damaged.
    """
    if not path.is_file():
        return []
    *lines, torn = path.read_bytes().split(b"\n")
    entries = []
    for number, line in enumerate(lines, start=1):
        try:
            entries.append(ShardEntry.from_json(parse_json(line, f"{path}, line {number}")))
        except RunError as error:
            if number == len(lines) and not torn:
                break
            raise RunError(f"{error}; delete this line to have its shard captured again") from error
    return entries
