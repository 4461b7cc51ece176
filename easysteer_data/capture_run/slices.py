"""Slices of a run: equal shares of its shards, each captured by a process of its own that knows no other.

A slice is an unfinished run folder beside the run's own; merging takes their shards together. Knows no
engine.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from easysteer_data.capture_run.measurements import ShardMeasurements
from easysteer_data.errors import RunError, SettingsError, SettingsMismatchError
from easysteer_data.shards import Manifest, RunHeader, RunWriter, layout
from easysteer_data.shards.journal import ShardEntry, read_journal
from easysteer_data.shards.manifest import read_manifest
from easysteer_data.shards.overwrite import remove_run_folder
from easysteer_data.shards.resume import read_header, same_run

_NAME = re.compile(r"(\d+)-of-(\d+)")


@dataclass(frozen=True, slots=True, order=True)
class ShardSlice:
    """One of several equal shares of a run's shards.

    Attributes:
        n_slices: how many there are.
        number: which one, 1 to `n_slices`.
    """

    n_slices: int
    number: int

    def __post_init__(self) -> None:
        if not 1 <= self.number <= self.n_slices:
            raise SettingsError(
                f"shard_slice={self}: must be 1/{self.n_slices} to {self.n_slices}/{self.n_slices}"
            )

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read "3/16", the third of sixteen; SettingsError if it is none."""
        number, _, n_slices = text.partition("/")
        if not (number.isascii() and number.isdigit() and n_slices.isascii() and n_slices.isdigit()):
            raise SettingsError(
                f"shard_slice={text!r}: must be two numbers, as 3/16 for the third of sixteen"
            )
        return cls(int(n_slices), int(number))

    def shards(self, n_shards: int) -> range:
        """Its share of the shards' numbers; empty for some where there are more slices than shards."""
        return range((self.number - 1) * n_shards // self.n_slices, self.number * n_shards // self.n_slices)

    def folder(self, run: Path) -> Path:
        """The folder that it is captured into; `run` is the whole run's."""
        return parts_folder(run) / f"{self.number:03d}-of-{self.n_slices:03d}"

    def __str__(self) -> str:
        return f"{self.number}/{self.n_slices}"


def parts_folder(run: Path) -> Path:
    """The folder of a run's slices: beside the run's own, on the same file system."""
    return run.with_name(f"{run.name}.parts")


def merge_slices(run: Path) -> Manifest:
    """Take the shards of all slices together into the run's own folder, finish it, remove the slices.

    Until the run is finished every slice stays as it was: files are linked, or copied where the file system
    can't link. A merge that was stopped is continued by the next one.

    Raises:
        RunError: shards are missing, the message names them by slice; or there is no slice, or a slice can't
            be read, or another process writes the run.
        SettingsMismatchError: slices are of different runs.
    """
    parts = _find_parts(run)
    if not parts:
        if (run / layout.MANIFEST).is_file():
            return read_manifest(run)
        raise RunError(
            f"{parts_folder(run)}: holds no part of a run; capture some with shard_slice=1/2 and so on"
        )
    header = read_header(next(iter(parts.values())))
    entries = {part: _entries(folder, header) for part, folder in parts.items()}
    _refuse_gaps(run, header, entries)
    with RunWriter.open(run, header) as writer:
        for part, folder in parts.items():
            for entry in entries[part]:
                if entry.number not in writer.done:
                    writer.adopt(entry, folder, keep=True)
        measurements = ShardMeasurements(run)
        measurements.take(ShardMeasurements(folder) for folder in parts.values())
        manifest = writer.close(measurements.totals())
    for folder in parts.values():
        remove_run_folder(folder)
    with suppress(OSError):  # it holds what is not ours
        parts_folder(run).rmdir()
    return manifest


def _find_parts(run: Path) -> dict[ShardSlice, Path]:
    folders = sorted(parts_folder(run).glob("*-of-*"))
    names = ((folder, _NAME.fullmatch(folder.name)) for folder in folders)
    return {
        ShardSlice(int(name[2]), int(name[1])): folder
        for folder, name in names
        if name is not None and (folder / layout.RUN).is_file()
    }


def _entries(part: Path, header: RunHeader) -> list[ShardEntry]:
    """The shards that are done in a part, which must be one of the same run."""
    try:
        same_run(part, header)
    except SettingsMismatchError as error:
        difference = str(error).partition("\n")[2]
        raise SettingsMismatchError(
            f"{part}: is a part of another run than those before it; capture it again with their settings or "
            f"remove it. The difference (there -> in the others):\n{difference}"
        ) from error
    return [entry for entry in read_journal(part / layout.JOURNAL) if not entry.faults(part)]


def _refuse_gaps(run: Path, header: RunHeader, entries: dict[ShardSlice, list[ShardEntry]]) -> None:
    """Refuse to merge while shards are missing; those that a stopped merge took already count as there."""
    n_shards = len(header.plan)
    there = {entry.number for part in entries.values() for entry in part}
    if (run / layout.RUN).is_file():
        there |= {entry.number for entry in read_journal(run / layout.JOURNAL)}
    missing = sorted(set(range(n_shards)) - there)
    if not missing:
        return
    n_slices = max(part.n_slices for part in entries)
    lines = []
    for number in range(1, n_slices + 1):
        part = ShardSlice(n_slices, number)
        of_part = [shard for shard in missing if shard in part.shards(n_shards)]
        if of_part:
            state = "unfinished" if part in entries else "not there"
            lines.append(f"shard_slice={part} ({state}): {_shown(of_part)}")
    raise RunError(
        f"{run}: {len(missing)} of {n_shards} shards are missing; capture these slices, then merge again\n  "
        + "\n  ".join(lines)
    )


def _shown(numbers: Sequence[int]) -> str:
    """Numbers in words, ranges as "shards 3-7"."""
    ranges: list[list[int]] = []
    for number in numbers:
        if ranges and number == ranges[-1][1] + 1:
            ranges[-1][1] = number
        else:
            ranges.append([number, number])
    return "shards " + ", ".join(f"{a}" if a == b else f"{a}-{b}" for a, b in ranges)
