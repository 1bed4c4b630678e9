"""An S3 server with one object that spoils its answers to GETs as configured.

It is a real socket: what a client sees of a connection that is closed, reset or silent in the
middle of a body is the operating system's doing, and so is the exception that comes of it.
"""

from __future__ import annotations

import enum
import re
import socket
import socketserver
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

BODY: Final = bytes(range(256)) * 16
STORED: Final = f"{len(BODY):d}"
CUT_ERROR: Final = (
    b"HTTP/1.1 500 Internal Server Error\r\nContent-Length: 999\r\n\r\n<Error><Code>Inter"
)
RESET_ON_CLOSE: Final = struct.pack("ii", 1, 0)  # SO_LINGER: on, for no time
_RANGE: Final = re.compile(rb"range: bytes=(\d+)-(\d+)", re.IGNORECASE)


class Spoil(enum.Enum):
    """A fault of one answer."""

    CLOSED = "closed half-way through the body"
    RESET = "reset half-way through the body"
    SILENT = "no more bytes half-way through the body"
    CHUNK_CUT = "closed within a chunk of a chunked body"
    NO_LENGTH = "a body without a length, which its connection's early end cuts short"
    ERROR_CLOSED = "a server's error, closed half-way through its description"
    ERROR_RESET = "a server's error, reset half-way through its description"
    RESET_EARLY = "reset before the first byte of the answer"


class CuttingServer(socketserver.ThreadingTCPServer):
    """Spoils one answer for each entry of `spoils`, then answers properly."""

    allow_reuse_address = True
    daemon_threads = True
    block_on_close = False

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Connection)
        self.spoils: list[Spoil] = []
        self.requests = 0
        self.over = threading.Event()

    @property
    def endpoint(self) -> str:
        host, port = self.server_address[:2]
        return f"http://{host!s}:{port}"


class _Connection(socketserver.StreamRequestHandler):
    server: CuttingServer

    def handle(self) -> None:
        while self._answer(self._request()):
            pass

    def _request(self) -> bytes:
        lines = []
        while (line := self.rfile.readline()) not in (b"", b"\r\n"):
            lines.append(line)
        return b"".join(lines)

    def _answer(self, request: bytes) -> bool:
        """Answer one request; False if the connection is to be closed."""
        if not request:
            return False
        self.server.requests += 1
        asked = _RANGE.search(request)
        assert asked is not None, f"not a GET of a range: {request!r}"
        start, last = int(asked[1]), int(asked[2])
        body = BODY[start : last + 1]
        head = (
            "HTTP/1.1 206 Partial Content\r\nETag: \"0\"\r\nAccept-Ranges: bytes\r\n"
            f"Content-Range: bytes {start}-{start + len(body) - 1}/{STORED}\r\n"
        ).encode()  # fmt: skip
        length = b"Content-Length: %d\r\n\r\n" % len(body)
        if not self.server.spoils:
            self.wfile.write(head + length + body)
            return True
        half = body[: len(body) // 2]
        match self.server.spoils.pop(0):
            case Spoil.CLOSED:
                self.wfile.write(head + length + half)
            case Spoil.RESET:
                self.wfile.write(head + length + half)
                self._reset()
            case Spoil.SILENT:
                self.wfile.write(head + length + half)
                self.server.over.wait(30)
            case Spoil.CHUNK_CUT:
                chunk = b"%x\r\n" % len(body) + half
                self.wfile.write(head + b"Transfer-Encoding: chunked\r\n\r\n" + chunk)
            case Spoil.NO_LENGTH:
                self.wfile.write(head + b"Connection: close\r\n\r\n" + half)
            case Spoil.ERROR_CLOSED:
                self.wfile.write(CUT_ERROR)
            case Spoil.ERROR_RESET:
                self.wfile.write(CUT_ERROR)
                self._reset()
            case Spoil.RESET_EARLY:
                self._reset()
        return False

    def _reset(self) -> None:
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET_ON_CLOSE)
        self.connection.close()


@contextmanager
def cutting_server() -> Iterator[CuttingServer]:
    """Run the server for the duration of the block."""
    with CuttingServer() as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
        thread.start()
        try:
            yield server
        finally:
            server.over.set()
            server.shutdown()
            thread.join()
