"""The active controller at the other end of a socket.

    client = ControllerClient([("127.0.0.1", 9093)])
    answer = await client.call(request, CreateTopicsResponse)

It finds who leads `__cluster_metadata-0`, keeps a connection to it, and asks again, elsewhere, when
that node says it is not the controller: then nothing was decided. A connection that breaks before
the answer comes leaves in doubt whether the request was carried out. Most of the controller's
requests may simply be repeated: what is there already is said to be there (a topic that exists, a
broker that is registered under the same incarnation), and a caller that cares reads that error.

Source: KIP-919 (clients of controllers); KIP-631.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator
from typing import Any, Final, TypeVar

from coordinator.controller.image import CLUSTER_METADATA
from coordinator.errors import CoordinatorError
from coordinator.leader_client import Address, LeaderFinder, NobodyListensError
from raft.net.errors import NetError, Reason
from records.kafka_errors import ErrorCode
from records.rpc.base import Request, Response

R = TypeVar("R", bound=Response)

RETRY_S: Final = 0.02  # the first pause; each next one twice as long
RETRY_MAX_S: Final = 0.5


class ControllerClient:
    """Belongs to the event loop it is used on."""

    def __init__(
        self,
        bootstrap: Iterable[Address],
        *,
        timeout_ms: int = 30_000,
        attempt_timeout_ms: int = 5_000,
        alone_ms: int | None = None,
        client_id: str = "esker",
    ) -> None:
        """No connection yet.

        Args:    timeout_ms: of one call, with all its attempts.
                 alone_ms: after which a call ends if no controller runs; None: as any other.
        """
        self._timeout_ms = timeout_ms
        self._alone_ms = timeout_ms if alone_ms is None else min(alone_ms, timeout_ms)
        self._finder = LeaderFinder(
            bootstrap,
            0,
            client_id=client_id,
            timeout_ms=min(attempt_timeout_ms, timeout_ms),
            topic=CLUSTER_METADATA,
        )

    async def call(self, request: Request, response: type[R]) -> R:
        """The active controller's answer; errors inside are the caller's to read.

        Raises:  CoordinatorError, COORDINATOR_NOT_AVAILABLE if no controller answered in time;
                 NobodyListensError if at last none of them ran.
        """
        loop = asyncio.get_running_loop()
        began = heard_at = loop.time()
        pause_s = RETRY_S
        while True:
            try:
                return await self._attempt(request, response)
            except (CoordinatorError, NetError) as error:
                now = loop.time()
                kind: type[CoordinatorError] = NobodyListensError
                if not isinstance(error, NobodyListensError):
                    kind, heard_at = CoordinatorError, now
                until = min(began + self._timeout_ms / 1_000, heard_at + self._alone_ms / 1_000)
                if self._finder.closed or now + pause_s >= until:
                    why = error.message if isinstance(error, CoordinatorError) else str(error)
                    code = ErrorCode.COORDINATOR_NOT_AVAILABLE
                    raise kind(code, f"no controller answers: {why}") from error
            await asyncio.sleep(pause_s)
            pause_s = min(RETRY_MAX_S, 2 * pause_s)

    def leads(self, node_id: int) -> None:
        """Somebody has learned which node is the controller: what another was asked, ask there."""
        self._finder.leads(node_id)

    async def close(self) -> None:
        """Close the connection; a call under way ends."""
        self._finder.close()

    async def _attempt(self, request: Request, response: type[R]) -> R:
        rpc = await self._finder.leader()
        try:
            answer = await rpc.call(request, response)
        except NetError as error:
            if error.reason is Reason.BAD_ANSWER:  # what else may be wrong there
                rpc.connection.close()
            self._finder.lost(rpc)
            raise
        if ErrorCode.NOT_CONTROLLER in error_codes(answer):
            self._finder.lost(rpc)
            code = ErrorCode.COORDINATOR_NOT_AVAILABLE
            raise CoordinatorError(code, "the node that led is not the controller any more")
        return answer


def error_codes(answer: Response) -> set[int]:
    """The error codes of an answer: its own, and those of the items it lists."""
    return set(_codes(answer))


def _codes(value: Any) -> Iterator[int]:
    if hasattr(value, "error_code"):
        yield value.error_code
    for field in value.schema().fields:
        items = getattr(value, field.name)
        if isinstance(items, tuple) and items and hasattr(items[0], "schema"):
            for item in items:
                yield from _codes(item)
