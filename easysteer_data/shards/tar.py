"""POSIX ustar archives written around memory that is not copied. Knows bytes and names, no tensor.

The standard tarfile module pads to 10 kB records and copies each member; this writes 512-byte blocks.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from easysteer_data.errors import RunError

BLOCK = 512
SMALL_BYTES = 2**16  # parts of fewer are brought together: to write each takes longer than to copy it
_MAX_MEMBER_BYTES = 8 * 2**30 - 1  # eleven octal digits
_MAX_NAME_BYTES = 100


def member_header(name: str, n_bytes: int) -> bytes:
    """The 512-byte ustar header of a regular file: mode 0644, owner 0, time 0.

    Raises:
        RunError: the name or the size does not fit ustar.
    """
    encoded = name.encode()
    if len(encoded) > _MAX_NAME_BYTES:
        raise RunError(f"tar member name {name!r} is over {_MAX_NAME_BYTES} bytes")
    if n_bytes > _MAX_MEMBER_BYTES:
        raise RunError(
            f"tar member {name} has {n_bytes} bytes, over the 8 GiB that ustar allows; "
            "a prompt is never split, so select fewer of its rows"
        )
    fields = [
        encoded.ljust(100, b"\0"),
        b"%07o\0" % 0o644,
        b"%07o\0" % 0,  # user id
        b"%07o\0" % 0,  # group id
        b"%011o\0" % n_bytes,
        b"%011o\0" % 0,  # time of change
        b" " * 8,  # the checksum is taken over blanks
        b"0",  # a regular file
        bytes(100),  # link name
        b"ustar\x0000",
        bytes(64 + 16 + 155 + 12),  # user and group name, device, prefix, padding
    ]
    header = b"".join(fields)
    return header[:148] + b"%06o\0 " % sum(header) + header[156:]


class Sink(Protocol):
    """Takes bytes one after the other."""

    def write(self, data: bytes | memoryview, /) -> object:
        """Append bytes."""


class TarWriter:
    """Appends members to an empty file, or to what takes bytes as one does."""

    def __init__(self, file: Sink) -> None:
        self._file = file
        self._n_bytes = 0
        self._small = bytearray()  # not written yet

    def add(self, name: str, parts: Sequence[bytes | memoryview]) -> int:
        """Write one member out of consecutive parts, and return the offset of its first byte in the file."""
        n_bytes = sum(len(part) for part in parts)
        self._put(member_header(name, n_bytes))
        offset = self._n_bytes
        for part in parts:
            self._put(part)
        self._put(bytes(-n_bytes % BLOCK))
        return offset

    def finish(self) -> None:
        """Write the end-of-archive mark: two empty blocks and nothing more."""
        self._put(bytes(2 * BLOCK))
        self._write_small()

    def _put(self, part: bytes | memoryview) -> None:
        self._n_bytes += len(part)
        if len(part) < SMALL_BYTES:
            self._small += part
            if len(self._small) < SMALL_BYTES:
                return
            part = b""
        self._write_small()
        if part:
            self._file.write(part)

    def _write_small(self) -> None:
        if self._small:
            self._file.write(bytes(self._small))
            self._small.clear()
