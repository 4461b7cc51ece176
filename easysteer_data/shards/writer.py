"""Writes a run shard by shard so that a crash at any moment loses at most the shards in flight.

Order: a shard's files, each whole or absent; its line in the journal; after the last shard, the manifest.
Knows no engine and no corpus.
"""

from __future__ import annotations

from pathlib import Path
from typing import Self

import torch

from easysteer_data.errors import RunError
from easysteer_data.shards import layout
from easysteer_data.shards.check import check_finite, check_shard
from easysteer_data.shards.durable import DurableFile, append_durably, write_durably
from easysteer_data.shards.header import RunHeader
from easysteer_data.shards.index import LayerKey, index_bytes
from easysteer_data.shards.journal import FileEntry, ShardEntry, journal_bytes
from easysteer_data.shards.labels import row_labels
from easysteer_data.shards.manifest import Manifest
from easysteer_data.shards.pack import Pack, Span, pack_tensors, packs_of, write_pack
from easysteer_data.shards.prompt_table import prompt_table_bytes
from easysteer_data.shards.resume import claim_folder
from easysteer_data.shards.statistics import measure, merge_files, statistics_bytes
from easysteer_data.shards.tar import TarWriter
from easysteer_data.types import CapturedShard


class RunWriter:
    """A run folder being written; `open` makes one."""

    def __init__(self, out: Path, header: RunHeader, committed: dict[int, ShardEntry]) -> None:
        self._out = out
        self._committed = committed
        self.header = header

    @classmethod
    def open(cls, out: Path, header: RunHeader) -> Self:
        """Create a run folder, or continue the run that is in it.

        Shards whose files were removed or resized since they were committed count as not done. The header
        in the folder stands: a continued run keeps the provenance of its start.

        Raises:
            SettingsMismatchError: the folder holds a run of other settings; the message shows the difference.
            RunError: the folder holds something else, or a damaged run.
        """
        header, committed = claim_folder(out, header)
        return cls(out, header, committed)

    @property
    def done(self) -> frozenset[int]:
        """Numbers of the committed shards."""
        return frozenset(self._committed)

    def write(self, shard: CapturedShard) -> ShardEntry:
        """Write and commit one shard; in any order, each once.

        Raises:
            RunError: the shard is not as planned, or is committed already.
            ProofError: a row is not finite.
            OSError: the disk is full or fails; the shard is not committed, the folder can be continued.
        """
        if shard.number in self._committed:
            raise RunError(f"{self._out}: shard {shard.number} is committed already")
        check_shard(shard, self.header)
        statistics = {}
        for stream, layer_ids in self.header.layers.items():
            for layer_id in layer_ids:
                measured = measure(shard.values[stream][layer_id])
                check_finite(shard, stream, layer_id, measured)
                statistics[stream, layer_id] = measured
        packs = packs_of(shard, self.header)
        labels = row_labels(shard.prompts, self.header.label)
        prompts = prompt_table_bytes(shard.prompts, self.header.label)
        files, spans = [], {}
        for key in statistics:
            entry, spans[key] = self._write_tar(shard, key, packs, labels)
            files.append(entry)
        files.append(self._write(layout.prompts_name(shard.number), prompts))
        files.append(self._write(layout.statistics_name(shard.number), statistics_bytes(statistics)))
        files.append(self._write(layout.index_name(shard.number), index_bytes(shard.number, packs, spans)))
        return self._commit(shard, tuple(files))

    def close(self) -> Manifest:
        """Merge the statistics and write the manifest: the run is finished.

        Raises:
            RunError: shards are missing; the message names them.
        """
        n_shards = len(self.header.plan)
        missing = [number for number in range(n_shards) if number not in self._committed]
        if missing:
            shown = ", ".join(map(str, missing[:20])) + (", ..." if len(missing) > 20 else "")
            raise RunError(f"{self._out}: {len(missing)} of {n_shards} shards are not written: {shown}")
        paths = [self._out / layout.statistics_name(number) for number in range(n_shards)]
        keys = [(stream, layer_id) for stream, ids in self.header.layers.items() for layer_id in ids]
        statistics = self._write(layout.STATISTICS, merge_files(paths, keys))
        shards = tuple(self._committed[number] for number in range(n_shards))
        manifest = Manifest(self.header, shards, statistics)
        self._write(layout.MANIFEST, manifest.to_bytes())
        return manifest

    def _write_tar(
        self, shard: CapturedShard, key: LayerKey, packs: tuple[Pack, ...], labels: torch.Tensor | None
    ) -> tuple[FileEntry, list[dict[str, Span]]]:
        stream, layer_id = key
        shape = self.header.streams[stream]
        name = layout.tar_name(stream, layer_id, shard.number)
        spans = []
        with DurableFile(self._out / name) as file:
            tar = TarWriter(file)
            for pack in packs:
                tensors = pack_tensors(pack, shard.values[stream][layer_id], shard.index, labels)
                about = {
                    "stream": stream,
                    "layer_id": layer_id,
                    "width": shape.width,
                    "dtype": shape.dtype,
                    "layout": shape.to_json()["layout"],
                    "label_names": list(self.header.label.names),
                    "first_prompt": pack.prompts[0],
                    "last_prompt": pack.prompts[1] - 1,
                    "n_rows": pack.n_rows,
                }
                spans.append(write_pack(tar, pack.key, tensors, about))
            tar.finish()
        return FileEntry(name, file.n_bytes, file.sha256), spans

    def _write(self, name: str, data: bytes) -> FileEntry:
        file = write_durably(self._out / name, data)
        return FileEntry(name, file.n_bytes, file.sha256)

    def _commit(self, shard: CapturedShard, files: tuple[FileEntry, ...]) -> ShardEntry:
        entry = ShardEntry(shard.number, self.header.plan[shard.number], len(shard.index), files)
        append_durably(self._out / layout.JOURNAL, journal_bytes([entry]))
        self._committed[shard.number] = entry
        return entry
