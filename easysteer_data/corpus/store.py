"""A corpus at rest: its prompts in a file without a name, 8 bytes of each in memory. Knows no rows, no model.

Between planning and the last shard a capture reads each prompt a few times, in order; as objects in memory,
prompts would be what grows with the corpus.
"""

from __future__ import annotations

import json
import os
import struct
import tempfile
import weakref
from array import array
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from itertools import accumulate
from typing import BinaryIO, overload

from easysteer_data.errors import RunError
from easysteer_data.types import Prompt

_COUNT = struct.Struct("q")  # tokens of a prompt
# A value that JSON does not know, such as a date, is kept as its text, as in the corpus hash.
_as_json = json.JSONEncoder(ensure_ascii=False, check_circular=False, default=str).encode


class PromptStore(Sequence[Prompt]):
    """Prompts that are written once and made anew each time they are asked for.

    A prompt's place is its index. Several threads may read at once. The file lies in the folder for temporary
    files (TMPDIR) and goes with the store, also when the process is killed.

    Args:
        prompts: tokenised or not, in the order of their indices.

    Raises:
        RunError: the folder for temporary files is full or can't be written.
    """

    def __init__(self, prompts: Iterable[Prompt]) -> None:
        self._stops = array("q")
        try:
            file = tempfile.TemporaryFile()  # noqa: SIM115  closed when the store goes
            weakref.finalize(self, _close, file)
            self._stops.extend(accumulate(file.write(_packed(prompt)) for prompt in prompts))
            file.flush()
        except OSError as error:
            raise RunError(
                f"the corpus can't be kept in the folder for temporary files, {tempfile.tempdir}: {error}; "
                "set TMPDIR to a folder with more room"
            ) from error
        self._fd = file.fileno()

    def __len__(self) -> int:
        return len(self._stops)

    @overload
    def __getitem__(self, place: int) -> Prompt: ...
    @overload
    def __getitem__(self, place: slice) -> list[Prompt]: ...
    def __getitem__(self, place: int | slice) -> Prompt | list[Prompt]:
        places = range(len(self))[place]
        if isinstance(places, range):
            return [self._read(index) for index in places]
        return self._read(places)

    def __iter__(self) -> Iterator[Prompt]:
        return map(self._read, range(len(self)))

    def _read(self, index: int) -> Prompt:
        start = self._stops[index - 1] if index else 0
        # Unlike seek and read, pread has no place in the file that two threads would share.
        return _unpacked(index, os.pread(self._fd, self._stops[index] - start, start))


def _close(file: BinaryIO) -> None:
    with suppress(OSError):  # what a full disk did not take is still to be written
        file.close()


def _packed(prompt: Prompt) -> bytes:
    content = (
        prompt.id,
        prompt.text,
        prompt.source,
        prompt.label,
        prompt.group,
        prompt.split,
        dict(prompt.fields),
        None if prompt.messages is None else [dict(message) for message in prompt.messages],
    )
    # Not in the JSON, whose numbers take ten times as long to read.
    tokens = array("q", prompt.token_ids)
    # A lone surrogate, which no file of a corpus can hold but a caller's prompt may, stays what it is.
    text = _as_json(content).encode("utf-8", "surrogatepass")
    return _COUNT.pack(len(tokens)) + tokens.tobytes() + text


def _unpacked(index: int, data: bytes) -> Prompt:
    (n_tokens,) = _COUNT.unpack_from(data)
    tokens = array("q")
    end = _COUNT.size + n_tokens * tokens.itemsize
    tokens.frombytes(memoryview(data)[_COUNT.size : end])
    content = json.loads(str(memoryview(data)[end:], "utf-8", "surrogatepass"))
    name, text, source, label, group, split, fields, messages = content
    chat = None if messages is None else tuple(messages)
    return Prompt(index, name, text, source, label, group, split, fields, tuple(tokens), chat)
