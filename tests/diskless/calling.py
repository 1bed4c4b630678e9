"""Call a handler with a request's bytes, as a client would, without a socket.

answer = await call(handlers, MetadataRequest(topics=None), MetadataResponse, version=12)
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Mapping
from typing import Any, Final, TypeVar

from raft.net.connection import Reply
from raft.net.handlers import Served
from raft.net.header import RequestKind, parse_request_header, request_header
from raft.net.principal import ANONYMOUS, Principal
from records.codec import decode_message, encode_message
from records.rpc.base import Request, Response

R = TypeVar("R", bound=Response)

CORRELATION: Final = 77


class Caller:
    """A fake connection with the methods that handlers use; one object is one connection."""

    def __init__(self, peer: str = "10.0.0.7:4711", principal: Principal = ANONYMOUS) -> None:
        self.id = 1
        self.peer = peer
        self.principal = principal
        self.certificate_names: frozenset[str] = frozenset()
        self.context: object = None
        self.closed = False
        self.close_reason: object = None
        self.writable = True
        self.held = False
        self._out: list[bytes] = []
        self._write_paused = False
        self._drained: list[asyncio.Future[None]] = []
        self._ready: dict[int, asyncio.Future[None]] = {}

    def close(self, reason: object = None, detail: str = "") -> None:
        """Record that a handler closed the connection."""
        self.closed, self.close_reason = True, (reason, detail)

    def pause_reading(self) -> None:
        """Record that a handler paused reading."""
        self.held = True

    def resume_reading(self) -> None:
        """Record that a handler resumed reading."""
        self.held = False

    def _on_ready(self, reply: Reply) -> None:
        reply._sent = True
        if id(reply) in self._ready:
            self._ready.pop(id(reply)).set_result(None)

    def _on_handler_error(self, error: BaseException) -> None:
        raise error

    async def answer(self, promised: Any) -> bytes | None:
        """Await a handler's answer and return its bytes; None if there is none."""
        if isinstance(promised, Reply):
            if not promised._ready:
                future = self._ready[id(promised)] = asyncio.get_running_loop().create_future()
                await future
            promised = promised._payload
        elif isinstance(promised, Awaitable):
            promised = await promised
        if promised is None:
            return None
        parts = promised if isinstance(promised, tuple | list) else (promised,)
        return b"".join(bytes(part) for part in parts)


async def call(
    handlers: Mapping[int, Served],
    request: Request,
    response: type[R],
    version: int,
    *,
    client_id: str | None = "test",
    caller: Caller | None = None,
) -> R:
    """Send a request to its handler and decode the response. The version must be served."""
    key = request.schema().key
    assert key is not None
    served = handlers[key]
    assert served.lowest <= version <= served.highest, f"{key} v{version} is not served: {served}"
    flexible = request.schema().flexible
    first_flexible = flexible.first if flexible.first <= flexible.last else None
    kind = RequestKind.of(key, version, first_flexible)
    frame = request_header(kind, CORRELATION, client_id) + encode_message(request, version)
    header = parse_request_header(frame, {key: first_flexible})
    caller = caller or Caller()
    data = await caller.answer(served.serve(caller, header, frame[header.body_at :]))  # type: ignore[arg-type]
    assert data is not None, f"no answer to {request}"
    assert int.from_bytes(data[:4], "big") == CORRELATION
    return decode_message(response, data[5 if kind.answer_flexible else 4 :], version)
