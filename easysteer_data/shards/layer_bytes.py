"""A layer's file as it lies in memory, rows where they were captured: written and hashed by two threads."""

from __future__ import annotations

import hashlib
from threading import Lock

from easysteer_data.shards.durable import DurableFile
from easysteer_data.shards.index import LayerKey
from easysteer_data.shards.layer_tar import LayerTarWriter
from easysteer_data.shards.pack import Span


class LayerBytes:
    """Framed by the first thread that needs it; what is small is copied.

    Args:
        writer: of the shard, whose rows of this layer are there.
        key: the layer.
    """

    def __init__(self, writer: LayerTarWriter, key: LayerKey) -> None:
        self._writer, self._key = writer, key
        self._parts: list[bytes | memoryview] = []
        self._spans: list[dict[str, Span]] | None = None
        self._lock = Lock()

    @property
    def spans(self) -> list[dict[str, Span]]:
        """For each pack, tensor name -> where it lies."""
        with self._lock:
            if self._spans is None:
                self._spans = self._writer.put(self, self._key)
            return self._spans

    def write(self, data: bytes | memoryview) -> None:
        """Append bytes, which must stay as they are."""
        self._parts.append(data)

    def write_to(self, file: DurableFile) -> None:
        """Write all of it."""
        for part in self._framed():
            file.write(part)

    def sha256(self) -> str:
        """The file's hash in hex."""
        digest = hashlib.sha256()
        for part in self._framed():
            digest.update(part)
        return digest.hexdigest()

    def _framed(self) -> list[bytes | memoryview]:
        _ = self.spans
        return self._parts
