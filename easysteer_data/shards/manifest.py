"""The record of a finished run, written last: its presence says that every shard is there.

Knows the files by name, size and hash, not what they hold.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from easysteer_data.errors import RunError
from easysteer_data.shards import layout
from easysteer_data.shards.checked_json import JsonRecord, read_json, readable_json
from easysteer_data.shards.header import Json, RunHeader
from easysteer_data.shards.journal import FileEntry, ShardEntry


@dataclass(frozen=True, slots=True)
class Manifest:
    """A finished run.

    Attributes:
        header: what was known before the run started.
        shards: every shard of the plan, by number.
        statistics: the file of merged statistics.
        measured: what was counted and timed while the run was captured; free.
    """

    header: RunHeader
    shards: tuple[ShardEntry, ...]
    statistics: FileEntry
    measured: Json = field(default_factory=dict)

    def __post_init__(self) -> None:
        plan = self.header.plan
        if len(self.shards) != len(plan):
            raise RunError(f"the plan has {len(plan)} shards, the manifest {len(self.shards)}")
        for number, entry in enumerate(self.shards):
            check_entry(entry, self.header)
            if entry.number != number:
                raise RunError(f"shard {entry.number} stands in place {number}")
        if self.statistics.name != layout.STATISTICS:
            raise RunError(f"the statistics must be in {layout.STATISTICS}, found {self.statistics.name!r}")

    @property
    def n_rows(self) -> int:
        """Rows of every layer."""
        return sum(entry.n_rows for entry in self.shards)

    @property
    def n_bytes(self) -> int:
        """Bytes of all shards' files."""
        return sum(entry.n_bytes for entry in self.shards)

    def to_json(self) -> dict[str, object]:
        """The contents of manifest.json."""
        return {
            **self.header.to_json(),
            "shards": [entry.to_json() for entry in self.shards],
            "statistics": self.statistics.to_json(),
            "measured": dict(self.measured),
            "totals": {"rows": self.n_rows, "prompts": self.header.n_prompts, "bytes": self.n_bytes},
        }

    @classmethod
    def from_json(cls, record: JsonRecord) -> Manifest:
        """Read it back; raises RunError on anything that `to_json` would not write."""
        header = RunHeader.from_json(record)
        shards = tuple(ShardEntry.from_json(item) for item in record.records("shards"))
        statistics = FileEntry.from_json(record.record("statistics"))
        manifest = cls(header, shards, statistics, record.record("measured").values)
        if record.record("totals").values != manifest.to_json()["totals"]:
            raise RunError(f"{record.where}: the totals are not the sums of the shards")
        return manifest

    def to_bytes(self) -> bytes:
        """The bytes of manifest.json."""
        return readable_json(self.to_json())

    def faults(self, run: Path) -> list[str]:
        """What is wrong with the presence and size of the run's files, one line a file."""
        faults = [fault for entry in self.shards for fault in entry.faults(run)]
        statistics = self.statistics.fault(run)
        return faults if statistics is None else [*faults, statistics]


def read_manifest(run: Path) -> Manifest:
    """Read a run folder's manifest.

    Raises:
        RunError: it is missing, of another schema version, or not consistent with itself.
    """
    try:
        return Manifest.from_json(read_json(run / layout.MANIFEST))
    except RunError as error:
        raise RunError(f"the manifest of {run} can't be used: {error}") from error


def finished_run(out: Path, fingerprint: str) -> Manifest | None:
    """The manifest of a complete run of this fingerprint in a folder, or None.

    A damaged manifest, or one whose files are gone, is no complete run: capturing again mends it.
    """
    try:
        manifest = read_manifest(out)
    except RunError:
        return None
    if manifest.header.fingerprint != fingerprint or manifest.faults(out):
        return None
    return manifest


def refuse_gaps(out: object, n_shards: int, committed: Collection[int]) -> None:
    """Raise RunError that names the shards of `out` which are not committed, if there are any."""
    missing = [number for number in range(n_shards) if number not in committed]
    if missing:
        shown = ", ".join(map(str, missing[:20])) + (", ..." if len(missing) > 20 else "")
        raise RunError(f"{out}: {len(missing)} of {n_shards} shards are not written: {shown}")


def check_entry(entry: ShardEntry, header: RunHeader) -> None:
    """Check that a shard is a planned one, and its files its own, so that no name leads elsewhere.

    Raises:
        RunError: it is not.
    """
    if entry.number >= len(header.plan) or entry.prompts != header.plan[entry.number]:
        raise RunError(f"there is no shard {entry.number} of prompts {entry.prompts} in the plan")
    expected = layout.shard_names(header.tar_layers, entry.number)
    found: Sequence[str] = [file.name for file in entry.files]
    if list(expected) != found:
        strange = sorted(set(found) ^ set(expected))
        raise RunError(f"shard {entry.number} must consist of its own files only; odd: {', '.join(strange)}")
