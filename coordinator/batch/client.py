"""A batch coordinator at the other end of a socket.

    client = CoordinatorClient([("127.0.0.1", 9093)], partition=0)
    answer = await client.call(request)

It finds the leader, keeps one connection to it, pipelines concurrent requests, and repeats every
request that is repeatable: all but one. `deleteRecords` up to "the high watermark" (-1) is not
repeated once its outcome is in doubt, because a first attempt that arrives late would then delete
what was written after the second had been answered.

Exceptions tell what is known. OutcomeUnknownError: the request may have been carried out, or may
yet be. CoordinatorError COORDINATOR_NOT_AVAILABLE: it was not. Errors inside an answer are the
coordinator's; the caller reads them.

Commits leave in the order of the calls and stay in it, whatever happens between (see
`coordinator.batch.commit_queue`). A lease requested twice costs ids and nothing else: the lost one
expires.

Source: KIP-1164, Public Interfaces;
docs/design/batch-coordinator.md#one-interface-three-implementations.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, TypeVar, cast

from coordinator.batch.calls import Write, call_of, read_refusal
from coordinator.batch.commit_queue import OrderedCommits
from coordinator.batch.settings import KEPT_ANSWERS
from coordinator.leader_client import Address, LeaderClient, Patience
from records.rpc.base import CoordinatorRequest, Response
from records.rpc.batch_coordinator import CommitBatchesRequest, CommitBatchesResponse

R = TypeVar("R", bound=Response)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientSettings:
    """A client's timeouts, pauses and limits. Times in ms."""

    timeout_ms: int = 30_000  # of one call, with all its attempts
    attempt_timeout_ms: int = 5_000
    retry_ms: int = 20  # the first pause; each next one twice as long
    retry_max_ms: int = 500
    max_in_flight: int = KEPT_ANSWERS // 2  # commits sent and not answered
    client_id: str = "esker"

    def __post_init__(self) -> None:
        if not 0 < self.max_in_flight <= KEPT_ANSWERS:
            raise ValueError(
                f"max_in_flight={self.max_in_flight}: a coordinator keeps {KEPT_ANSWERS} answers"
            )


class CoordinatorClient:
    """Calls the BatchCoordinator of one partition of `__diskless-metadata` on the node that leads
    it.

    Belongs to the event loop it is used on. Requests name the same partition.
    """

    def __init__(
        self,
        bootstrap: Iterable[Address],
        *,
        partition: int = 0,
        settings: ClientSettings | None = None,
    ) -> None:
        self._settings = settings = settings or ClientSettings()
        self._partition = partition
        self._patience = Patience(
            timeout_s=settings.timeout_ms / 1000,
            retry_s=settings.retry_ms / 1000,
            retry_max_s=settings.retry_max_ms / 1000,
        )
        self._leader = LeaderClient(
            bootstrap,
            partition,
            client_id=settings.client_id,
            timeout_ms=settings.attempt_timeout_ms,
        )
        self._commits = OrderedCommits(
            self._leader,
            self._patience,
            attempt_timeout_ms=settings.attempt_timeout_ms,
            max_in_flight=settings.max_in_flight,
        )

    def submit(self, request: CommitBatchesRequest) -> asyncio.Future[CommitBatchesResponse]:
        """Submit an object's commit; the coordinator decides commits in the order of submission."""
        self._check(request)
        return self._commits.submit(request)

    async def call(self, request: CoordinatorRequest[R]) -> R:
        """Send a request and return its response; repeat it after failures if it is repeatable."""
        if isinstance(request, CommitBatchesRequest):
            return cast(R, await self.submit(request))
        self._check(request)
        call = call_of(request)
        return await self._leader.call(
            request,
            call.response,
            read_refusal,
            self._patience,
            label=request.schema().name,
            tracks_doubt=isinstance(call.kind, Write),
            is_repeatable=call.is_repeatable(request),
        )

    def note_leader(self, node_id: int) -> None:
        """Close the current connection unless its node is the new leader, `node_id`."""
        self._leader.note_leader(node_id)

    async def close(self) -> None:
        """Close the connections; calls in flight end with an error."""
        self._commits.close()
        self._leader.close()

    def _check(self, request: CoordinatorRequest[Any]) -> None:
        partition = request.coordinator_partition
        if partition != self._partition:
            raise ValueError(f"for coordinator {partition}, this client's is {self._partition}")
