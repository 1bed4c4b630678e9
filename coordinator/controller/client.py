"""A client of the active controller.

    client = ControllerClient([("127.0.0.1", 9093)])
    answer = await client.call(request, CreateTopicsResponse)

It finds the leader of `__cluster_metadata-0`, keeps a connection to it, and tries another node when
that one answers NOT_CONTROLLER: then nothing was decided. A connection that breaks before the
answer leaves in doubt whether the request was carried out. Most of the controller's requests may
simply be repeated: what exists already is reported with an error (a topic that exists) or as
success (a broker registered under the same incarnation), and a caller that cares reads that error.

Source: KIP-919 (clients of controllers); KIP-631.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator
from typing import Any, TypeVar

from coordinator.controller.access import Client
from coordinator.controller.envelope import send as send_enveloped
from coordinator.errors import CoordinatorError
from coordinator.leader_client import Address, LeaderClient, Patience, Send
from records.internal_topics import CLUSTER_METADATA
from records.kafka_errors import ErrorCode
from records.rpc.base import Request, Response

R = TypeVar("R", bound=Response)


class ControllerClient:
    """Sends requests to the active controller. Belongs to the event loop it is used on."""

    def __init__(
        self,
        bootstrap: Iterable[Address],
        *,
        timeout_ms: int = 30_000,
        attempt_timeout_ms: int = 5_000,
        alone_ms: int | None = None,
        client_id: str = "esker",
    ) -> None:
        """Create a client of the active controller, which connects at its first call.

        Args:    timeout_ms: for one call with all its attempts.
                 alone_ms: for one call while no controller runs; None: as `timeout_ms`.
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

    async def call(self, request: Request, response: type[R], client: Client | None = None) -> R:
        """Return the active controller's response; error codes in the response are not checked.

        Args:    client: for whom it is sent, in an Envelope; None: this node.
        Raises:  CoordinatorError, COORDINATOR_NOT_AVAILABLE if no controller answered in time;
                 NobodyListensError if no controller was running at the end.
        """
        label = "no controller answers"
        send: Send[R] | None = None
        if client is not None:
            send = functools.partial(
                send_enveloped, request=request, response=response, client=client
            )
        return await self._leader.call(
            request, response, _refusal, self._patience, label=label, send=send
        )

    def note_leader(self, node_id: int) -> None:
        """Set the active controller's node id; calls in flight to other nodes are repeated."""
        self._leader.note_leader(node_id)

    async def close(self) -> None:
        """Close the connection; calls in flight end with an error."""
        self._leader.close()


def _refusal(answer: Response) -> CoordinatorError | None:
    """Return an error if the responding node is no longer the active controller, else None.

    Such a node has decided nothing.
    """
    if ErrorCode.NOT_CONTROLLER not in error_codes(answer):
        return None
    code = ErrorCode.COORDINATOR_NOT_AVAILABLE
    return CoordinatorError(code, "the node is no longer the controller")


def error_codes(answer: Response) -> set[int]:
    """Return all error codes in a response, including the codes of topics and other items."""
    return set(_codes(answer))


def _codes(value: Any) -> Iterator[int]:
    if hasattr(value, "error_code"):
        yield value.error_code
    for field in value.schema().fields:
        items = getattr(value, field.name)
        if isinstance(items, tuple) and items and hasattr(items[0], "schema"):
            for item in items:
                yield from _codes(item)
