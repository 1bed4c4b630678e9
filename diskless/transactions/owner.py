"""Owns transactional ids for a broker, and forwards the calls of their producers.

    owner = TransactionOwner(cluster)
    answer = await owner.call("id", make_request, response, create=False, is_connected=...)

Calls of one id go one at a time, in the order of arrival. Each is sent once, and dropped if its
client's connection has closed before it was sent. After a call in doubt the ownership is acquired
anew, under a risen epoch, before anything else is forwarded for that id.

Why: an EndTxn of TV1 says only id, producer id and epoch, which the next transaction has, too. A
copy that a slow leader reads late would end the next transaction; under a dead ownership epoch it
ends nothing.

Source: docs/design/transactions.md#ownership.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

from coordinator.controller.placement import unfenced_brokers
from coordinator.features import has_transactions
from coordinator.leader_client import Failure
from coordinator.rendezvous import transaction_broker
from diskless.cluster import Cluster
from diskless.transactions.ending import ask_until_ended, is_ending
from records.kafka_errors import ErrorCode
from records.rpc import transaction_log as rpc
from records.rpc.base import Request

MAX_OWNED: Final = 20_000
"""Ownership epochs that are remembered; a forgotten id is acquired anew at its next call."""

MAX_WAITING: Final = 100
"""Calls that wait for one id; a producer has one, so more come from producers that fence others."""


@dataclass(slots=True)
class _Id:
    """A transactional id that this broker owns, or is about to acquire."""

    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    ownership_epoch: int | None = None  # None: to be acquired before the next call
    waiting: int = 0


class TransactionOwner:
    """Forwards calls of producers under ownership epochs. Belongs to the event loop."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._ids: dict[str, _Id] = {}  # the least recently used first
        self.acquired = 0
        self.in_doubt = 0

    def chosen_broker(self, transactional_id: str) -> int | None:
        """Return the broker that should own a transactional id; None if all are fenced."""
        members = [broker.broker_id for broker in unfenced_brokers(self._cluster.image)]
        return transaction_broker(transactional_id, members)

    async def call(
        self,
        transactional_id: str,
        make_request: Callable[[int], Request],
        *,
        create: bool,
        is_connected: Callable[[], bool],
        begins: bool = False,
    ) -> Any:
        """Forward one call to the transaction log; return its response, or an ErrorCode.

        Args:  make_request: builds the request for an ownership epoch.
               create: also acquire an id that does not exist.
               is_connected: whether the client's connection is still open.
               begins: the call may begin a transaction, and waits while the former one is ending.
        """
        if not has_transactions(self._cluster.image.features):
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        owned = self._find(transactional_id)
        if owned.waiting >= MAX_WAITING:
            return ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        owned.waiting += 1
        try:
            async with owned.lock:

                async def forward() -> Any:
                    return await self._forward(
                        transactional_id,
                        owned,
                        make_request,
                        create=create,
                        is_connected=is_connected,
                    )

                if begins:
                    return await ask_until_ended(
                        forward,
                        lambda: is_ending(self._cluster.transactions()[0], transactional_id),
                    )
                return await forward()
        finally:
            owned.waiting -= 1

    def _find(self, transactional_id: str) -> _Id:
        found = self._ids.pop(transactional_id, None) or _Id()
        self._ids[transactional_id] = found
        while len(self._ids) > MAX_OWNED:
            oldest = next(iter(self._ids))
            if self._ids[oldest].waiting:
                break  # a busy one is never forgotten: two calls would go at a time
            del self._ids[oldest]
        return found

    async def _forward(
        self,
        transactional_id: str,
        owned: _Id,
        make_request: Callable[[int], Request],
        *,
        create: bool,
        is_connected: Callable[[], bool],
    ) -> Any:
        """Send one call under the ownership epoch, which is acquired first if necessary."""
        if self.chosen_broker(transactional_id) != self._cluster.broker_id:
            owned.ownership_epoch = None
            return ErrorCode.NOT_COORDINATOR
        for _ in range(2):  # again if another broker has owned the id meanwhile
            if owned.ownership_epoch is None:
                code = await self._acquire(transactional_id, owned, create=create)
                if code is not ErrorCode.NONE:
                    return code
            if not is_connected():  # the client asks again elsewhere
                return ErrorCode.NOT_COORDINATOR
            epoch, owned.ownership_epoch = owned.ownership_epoch, None  # if this call is cancelled
            assert epoch is not None, "acquired without an epoch"
            answer = await self._cluster.ask_transactions(make_request(epoch))
            if isinstance(answer, Failure):
                if answer.in_doubt:
                    self.in_doubt += 1
                else:
                    owned.ownership_epoch = epoch
                return ErrorCode.COORDINATOR_NOT_AVAILABLE
            if getattr(answer, "error_code", 0) != ErrorCode.NOT_COORDINATOR:
                owned.ownership_epoch = epoch
                return answer
        return ErrorCode.NOT_COORDINATOR

    async def _acquire(self, transactional_id: str, owned: _Id, *, create: bool) -> ErrorCode:
        """Acquire a transactional id's ownership for this broker; return NONE or an error."""
        broker = self._cluster.image.brokers.get(self._cluster.broker_id)
        if broker is None:
            return ErrorCode.NOT_COORDINATOR
        answer = await self._cluster.ask_transactions(
            rpc.AcquireTransactionalIdRequest(
                transactional_id=transactional_id,
                broker_id=self._cluster.broker_id,
                broker_epoch=broker.broker_epoch,
                create=create,
            )
        )
        if not isinstance(answer, rpc.AcquireTransactionalIdResponse):
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        code = ErrorCode(answer.error_code)
        if code is ErrorCode.NONE:
            self.acquired += 1
            owned.ownership_epoch = answer.ownership_epoch
        elif code is ErrorCode.TRANSACTIONAL_ID_NOT_FOUND:
            return ErrorCode.INVALID_PRODUCER_ID_MAPPING
        elif code is ErrorCode.STALE_BROKER_EPOCH:
            return ErrorCode.NOT_COORDINATOR
        return code
