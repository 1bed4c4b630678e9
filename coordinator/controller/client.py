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

from collections.abc import Iterable, Iterator
from typing import Any, TypeVar

from coordinator.controller.image import CLUSTER_METADATA
from coordinator.errors import CoordinatorError
from coordinator.leader_client import Address, LeaderClient, Patience
from records.kafka_errors import ErrorCode
from records.rpc.base import Request, Response

R = TypeVar("R", bound=Response)


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
        timeout_s = timeout_ms / 1_000
        alone_s = timeout_s if alone_ms is None else min(alone_ms / 1_000, timeout_s)
        self._patience = Patience(timeout_s=timeout_s, alone_s=alone_s)
        self._leader = LeaderClient(
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
        label = "no controller answers"
        return await self._leader.call(request, response, _refusal, self._patience, label=label)

    def note_leader(self, node_id: int) -> None:
        """The caller has learned which node is the active controller: wait at no other."""
        self._leader.note_leader(node_id)

    async def close(self) -> None:
        """Close the connection; a call under way ends."""
        self._leader.close()


def _refusal(answer: Response) -> CoordinatorError | None:
    """The error of a node that is not the controller any more; nothing was decided there."""
    if ErrorCode.NOT_CONTROLLER not in error_codes(answer):
        return None
    code = ErrorCode.COORDINATOR_NOT_AVAILABLE
    return CoordinatorError(code, "the node that led is not the controller any more")


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
