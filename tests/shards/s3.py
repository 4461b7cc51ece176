"""A real S3 server in a process of its own, and before it a proxy with mishaps that checks as S3 does."""

from __future__ import annotations

import base64
import hashlib
import http.client
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

OPTIONS: dict[str, Any] = {
    "access_key_id": "key",
    "secret_access_key": "secret",
    "region": "us-east-1",
    "client_options": {"allow_http": True},
    "virtual_hosted_style_request": False,
}


@dataclass
class Mishaps:
    """What the proxy does wrong, and what it has done.

    Attributes:
        fail_every: every so many requests are answered with 503, 0 = none.
        drop_every: every so many are dropped after they were passed on.
        flip_every: of every so many bodies a bit is flipped on the way.
        away: drop every request before it is passed on.
        seen: requests and mishaps by kind.
        before: called before each request.
    """

    fail_every: int = 0
    drop_every: int = 0
    flip_every: int = 0
    away: bool = False
    seen: Counter[str] = field(default_factory=Counter)
    before: Callable[[], None] = lambda: None


class Proxy(BaseHTTPRequestHandler):
    """Passes requests on."""

    def __init__(self, port: int, mishaps: Mishaps, *arguments: Any) -> None:
        self.port, self.mishaps = port, mishaps
        super().__init__(*arguments)

    def handle_one(self) -> None:
        seen, wrong = self.mishaps.seen, self.mishaps
        self.close_connection = True
        wrong.before()
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        if wrong.away:
            seen["away"] += 1
            return
        seen["requests"] += 1
        seen[self.command + ("?" if "uploads" in self.path else "")] += 1
        if body and wrong.flip_every and seen["requests"] % wrong.flip_every == 0:
            seen["flipped"] += 1
            body = bytes([body[0] ^ 1]) + body[1:]
        if wrong.fail_every and seen["requests"] % wrong.fail_every == 0:
            seen["failed"] += 1
            self.answer(503, b"<Error><Code>SlowDown</Code></Error>", [])
            return
        checksum = self.headers.get("x-amz-checksum-sha256")
        if checksum and base64.b64encode(hashlib.sha256(body).digest()).decode() != checksum:
            seen["refused"] += 1
            self.answer(400, b"<Error><Code>BadDigest</Code></Error>", [])
            return
        status, data, headers = self.pass_on(body)
        if wrong.drop_every and seen["requests"] % wrong.drop_every == 0:
            seen["dropped"] += 1
            return
        self.answer(status, data, headers)

    def pass_on(self, body: bytes) -> tuple[int, bytes, list[tuple[str, str]]]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        headers = {k: v for k, v in self.headers.items() if k.lower() not in ("host", "connection")}
        connection.request(self.command, self.path, body, headers)
        with connection.getresponse() as answer:
            kept = [
                (k, v) for k, v in answer.getheaders() if k.lower() not in ("connection", "transfer-encoding")
            ]
            return answer.status, answer.read(), kept

    def answer(self, status: int, data: bytes, headers: list[tuple[str, str]]) -> None:
        self.send_response(status)
        names = [name.lower() for name, _ in headers]
        for name, value in headers:
            if name.lower() != "content-length" or self.command == "HEAD":
                self.send_header(name, value)
        if self.command != "HEAD" or "content-length" not in names:
            self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)

    def do_GET(self) -> None:
        self.handle_one()

    def do_HEAD(self) -> None:
        self.handle_one()

    def do_PUT(self) -> None:
        self.handle_one()

    def do_POST(self) -> None:
        self.handle_one()

    def do_DELETE(self) -> None:
        self.handle_one()

    def log_message(self, *_: Any) -> None: ...


@contextmanager
def s3_server() -> Iterator[int]:
    """The port of an S3 server with a bucket "bucket"; vLLM can't be loaded beside it in one process."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = int(free.getsockname()[1])
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        for _ in range(1200):
            with suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
                break
            time.sleep(0.1)
        connection = http.client.HTTPConnection("127.0.0.1", port)
        connection.request("PUT", "/bucket")
        connection.getresponse().read()
        connection.close()
        yield port
    finally:
        server.terminate()
        server.wait()


@contextmanager
def proxy_to(port: int) -> Iterator[tuple[str, Mishaps]]:
    """The address of a proxy before an S3 server, and its mishaps."""
    mishaps = Mishaps()
    proxy = ThreadingHTTPServer(("127.0.0.1", 0), partial(Proxy, port, mishaps))
    proxy.daemon_threads = True
    thread = threading.Thread(target=proxy.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{proxy.server_address[1]}", mishaps
    finally:
        proxy.shutdown()
        thread.join()
        proxy.server_close()
