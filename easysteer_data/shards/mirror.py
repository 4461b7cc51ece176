"""A local copy of some layers of a run at a URL, to be mapped and served at memory speed.

For runs that fit a local disk; larger ones are streamed, see streaming.py.
"""

from __future__ import annotations

import fcntl
import hashlib
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from easysteer_data.errors import BadShardError, RunError
from easysteer_data.shards import layout
from easysteer_data.shards.checked_json import parse_json
from easysteer_data.shards.durable import DurableFile, make_folder, remove_partial_files, write_durably
from easysteer_data.shards.journal import FileEntry
from easysteer_data.shards.manifest import Manifest
from easysteer_data.shards.remote_files import RemoteFiles
from easysteer_data.types import Stream

_N_AT_ONCE = 8
_BLOCK_BYTES = 8 * 2**20


def mirror_run(
    files: RemoteFiles, folder: Path, layers: Mapping[Stream, Sequence[int] | None] | None = None
) -> Path:
    """Copy what is wanted of a finished run, so that `open_run` finds a run of these layers.

    Files that were copied before are not fetched again; each new one is checked by its sha256 and appears
    whole or not at all. Several processes may call this at once: one copies, the others wait.

    Args:
        files: the run folder at its URL.
        folder: where the copies of runs are kept; this one gets a folder of its own in it.
        layers: stream -> its layers, None = all of them; None = all streams.

    Returns:
        The copy's folder.

    Raises:
        RunError: the run holds no such stream or layer, is not finished, or can't be read.
        BadShardError: a file is missing, or not the one that the manifest lists.
    """
    whole = Manifest.from_json(parse_json(files.read(layout.MANIFEST), layout.MANIFEST))
    wanted = _part_of(whole, layers, files.root)
    chosen = hashlib.sha256(repr(sorted(wanted.header.layers.items())).encode()).hexdigest()
    copy = folder / f"{whole.header.fingerprint[:16]}-{chosen[:8]}"
    make_folder(copy)
    with _alone(copy):
        if (copy / layout.MANIFEST).is_file() and not wanted.faults(copy):
            return copy
        remove_partial_files(copy)
        for name in layout.folders(wanted.header.tar_layers):
            make_folder(copy / name)
        entries = [*(file for shard in wanted.shards for file in shard.files), wanted.statistics]
        missing = [entry for entry in entries if entry.fault(copy) is not None]
        with ThreadPoolExecutor(_N_AT_ONCE) as pool:
            for _ in pool.map(lambda entry: _fetch(files, entry, copy), missing):
                pass
        write_durably(copy / layout.MANIFEST, wanted.to_bytes())
    return copy


def _part_of(manifest: Manifest, layers: Mapping[Stream, Sequence[int] | None] | None, root: str) -> Manifest:
    """The manifest of a run that holds these layers alone."""
    header = manifest.header
    streams = {}
    for stream, asked in (layers or dict.fromkeys(header.streams)).items():
        held = header.layers.get(stream, ())
        wrong = sorted(set(asked or ()) - set(held))
        if wrong or not held:
            raise RunError(f"{root} holds no layer {wrong or 'at all'} of {stream}: {held}")
        layer_ids = held if asked is None else tuple(sorted(set(asked)))
        streams[stream] = replace(header.streams[stream], layer_ids=layer_ids)
    part = replace(header, streams=streams)
    shards = []
    for shard in manifest.shards:
        names = set(layout.shard_names(part.tar_layers, shard.number))
        shards.append(replace(shard, files=tuple(file for file in shard.files if file.name in names)))
    return replace(manifest, header=part, shards=tuple(shards))


def _fetch(files: RemoteFiles, entry: FileEntry, copy: Path) -> None:
    with files.open(entry) as source, DurableFile(copy / entry.name) as file:
        while block := source.read(_BLOCK_BYTES):
            file.write(block)
        if file.sha256 != entry.sha256:
            raise BadShardError(f"{files.root}/{entry.name}: altered, its sha256 is not the manifest's")


@contextmanager
def _alone(copy: Path) -> Iterator[None]:
    """Wait until no other process copies into the folder."""
    with (copy / ".copying").open("wb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
