"""A small HTTP server for scrapes and health checks: GET, one request for each connection."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Awaitable, Callable
from typing import Any, Final

MAX_REQUEST_BYTES: Final = 8_192
REQUEST_TIMEOUT_S: Final = 5


class HttpServer:
    """Serves the paths that `answer` knows."""

    def __init__(self, answer: Callable[[bytes], Awaitable[bytes]]) -> None:
        """Create a server.

        Args:  answer: gets the path of a GET, without its query, and returns a whole response;
                   the path is empty for any other method and for what is no request.
        """
        self._answer = answer
        self._server: asyncio.Server | None = None
        self.port = 0

    async def start(self, host: str, port: int) -> None:
        """Listen for requests, and set `self.port` to the port in use. Raises OSError."""
        self._server = await asyncio.start_server(self._serve, host, port, limit=MAX_REQUEST_BYTES)
        self.port = self._server.sockets[0].getsockname()[1]

    async def close(self) -> None:
        """Stop listening for requests."""
        if self._server is not None:
            self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(
            TimeoutError, OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError
        ):
            async with asyncio.timeout(REQUEST_TIMEOUT_S):
                head = await reader.readuntil(b"\r\n\r\n")
                words = head.split(b" ", 2)
                path = words[1].split(b"?")[0] if len(words) == 3 and words[0] == b"GET" else b""
                writer.write(await self._answer(path))
                await writer.drain()
        writer.close()


async def get(host: str, port: int, path: str) -> tuple[int, bytes]:
    """Return the status and the body of a GET. Raises OSError, ValueError for a bad answer."""
    reader, writer = await asyncio.open_connection(host, port)
    try:
        writer.write(f"GET {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n".encode())
        head, separator, body = (await reader.read(-1)).partition(b"\r\n\r\n")
        words = head.split(b" ", 2)
        if not separator or len(words) < 3:
            raise ValueError("the connection was closed before an answer came")
        return int(words[1]), body
    finally:
        writer.close()


def json_response(value: dict[str, Any], *, ok: bool) -> bytes:
    """Return a response with a JSON body: 200 if `ok`, else 503."""
    status = "200 OK" if ok else "503 Service Unavailable"
    return response(status, "application/json", json.dumps(value).encode() + b"\n")


def response(status: str, content_type: str, body: bytes) -> bytes:
    """Return the bytes of a whole response."""
    head = (
        f"HTTP/1.1 {status}\r\nContent-Type: {content_type}\r\n"
        f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    )
    return head.encode() + body
