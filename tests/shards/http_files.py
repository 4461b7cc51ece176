"""A plain HTTP server of a folder's files, with ranges and mishaps; the Hub as far as reading needs it.

It stands in for Google's store as well, which is read by the same requests.
"""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit


@dataclass
class Served:
    """What is served and what was asked for.

    Attributes:
        folder: the files.
        url: address of the server.
        prefix: what stands before a file's name in its address.
        drop_every: every so many answers are broken off in their middle, 0 = none.
        ranges: whether stretches of files are given; without, every answer is a whole file.
        asked: name and range (first byte, byte after the last; None = whole) of each file that was given.
        n_dropped: answers that were broken off.
    """

    folder: Path
    url: str = ""
    prefix: str = ""
    drop_every: int = 0
    ranges: bool = True
    asked: list[tuple[str, tuple[int, int] | None]] = field(default_factory=list)
    n_dropped: int = 0


class _Handler(BaseHTTPRequestHandler):
    def __init__(self, served: Served, *arguments: Any) -> None:
        self.served = served
        super().__init__(*arguments)

    def do_HEAD(self) -> None:
        self.do_GET(body=False)

    def do_GET(self, body: bool = True) -> None:
        address = unquote(urlsplit(self.path).path).lstrip("/")
        if address.startswith("api/datasets/"):
            self.answer_hub(address)
            return
        name = address.removeprefix(self.served.prefix).lstrip("/")
        path = self.served.folder / name
        if not address.startswith(self.served.prefix) or not path.is_file():
            self.send_error(404)
            return
        self.answer_file(name, path.read_bytes(), body)

    def answer_hub(self, address: str) -> None:
        """What a data set is, or the files in one of its folders: `run` holds ours."""
        _, is_tree, place = address.partition("/tree/main/run")
        if not is_tree:
            self.answer_json({"_id": "0", "id": "me/data", "sha": "0" * 40, "siblings": []})
            return
        paths = (self.served.folder / place.strip("/")).glob("*")
        self.answer_json(
            [
                {
                    "type": "file" if path.is_file() else "directory",
                    "path": f"run/{path.relative_to(self.served.folder).as_posix()}",
                    "size": path.stat().st_size,
                    "oid": "0" * 40,
                }
                for path in sorted(paths)
            ]
        )

    def answer_json(self, value: object) -> None:
        data = json.dumps(value).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def answer_file(self, name: str, data: bytes, body: bool) -> None:
        served, n_bytes = self.served, len(data)
        wanted = re.match(r"bytes=(\d+)-(\d*)", self.headers.get("Range", "")) if served.ranges else None
        if wanted:
            start, stop = int(wanted[1]), min(int(wanted[2] or n_bytes - 1) + 1, n_bytes)
            data = data[start:stop]
            self.send_response(206)
            self.send_header("Content-Range", f"bytes {start}-{stop - 1}/{n_bytes}")
        else:
            self.send_response(200)
        self.send_header("Content-Length", str(len(data)))
        self.send_header("ETag", '"0"')
        self.send_header("Last-Modified", "Mon, 30 Nov 2026 00:00:00 GMT")
        if served.ranges:
            self.send_header("Accept-Ranges", "bytes")
        self.end_headers()
        if body:
            served.asked.append((name, (start, stop) if wanted else None))
            drops = bool(served.drop_every) and len(served.asked) % served.drop_every == 0
            self.wfile.write(data[: len(data) // 2] if drops else data)
            served.n_dropped += drops
        self.close_connection = True

    def log_message(self, *_: Any) -> None: ...


@contextmanager
def served_folder(folder: Path, prefix: str = "") -> Iterator[Served]:
    """Serve the files of a folder under `url` and a prefix."""
    served = Served(folder, prefix=prefix)
    http = ThreadingHTTPServer(("127.0.0.1", 0), partial(_Handler, served))
    served.url = f"http://127.0.0.1:{http.server_address[1]}"
    thread = threading.Thread(target=http.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield served
    finally:
        http.shutdown()
        thread.join()
        http.server_close()
