"""InitProducerId: gives an idempotent producer its id and epoch.

    apis = ProducerApis(ProducerIds(cluster), transaction_calls.init)
    handlers |= apis.handlers

The controller allocates ids in blocks, and a broker hands them out one by one without a call. When
a tenth of a block is left it fetches the next one, so that a producer waits for the controller only
when a broker has just started, or when blocks are used up faster than they arrive.

A producer whose sequence was refused asks again with its id and epoch, and gets the same id with
the next epoch: batch coordinators begin a new epoch at sequence 0 (KIP-360). After the last epoch
it gets another id. The id it states cannot be checked, because no broker stores producers; as ids
are never given twice, a wrong one harms only that producer.

A transactional producer is answered by `diskless.apis.transaction_calls`.

Source: KIP-98, KIP-360, KIP-730 (blocks); docs/design/batch-coordinator.md#idempotence.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Final

from coordinator.errors import CoordinatorError
from diskless.apis.handler import RequestContext, make_handler
from diskless.cluster import Cluster
from raft.net.handlers import Served
from records.kafka_errors import ErrorCode
from records.rpc.brokers import AllocateProducerIdsRequest, AllocateProducerIdsResponse
from records.rpc.partitions import InitProducerIdRequest, InitProducerIdResponse

log = logging.getLogger("diskless.producers")

INIT_PRODUCER_ID: Final = 22
LAST_VERSION: Final = 5  # 6 is of two-phase commit (KIP-939), which needs transactions


NOBODY: Final = -1
LAST_EPOCH: Final = 2**15 - 2
"""Largest epoch that a producer gets: Kafka marks a fenced producer with the next one, the largest
int16."""

WAIT_S: Final = 5.0  # for a block; then the client is told to retry
FETCH_AHEAD: Final = 0.1  # of a block: when so much is left, the next one is fetched


class ProducerIds:
    """Hands out producer ids from blocks. Belongs to the event loop."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._current = range(0)
        self._next = range(0)
        self._size = 0  # of the block that `_current` is the rest of
        self._fetching: asyncio.Task[bool] | None = None

    async def take(self) -> int | None:
        """Return an unused producer id, or None if no block of ids arrives in time."""
        deadline = asyncio.get_running_loop().time() + WAIT_S
        while True:
            taken = self._take()
            fetching = self._fetching
            left_s = deadline - asyncio.get_running_loop().time()
            if taken is not None or left_s <= 0 or fetching is None:
                return taken
            await asyncio.wait((fetching,), timeout=left_s)
            if fetching.done() and not (fetching.cancelled() or fetching.result()):
                return None  # refused: an immediate retry would be refused again

    def _take(self) -> int | None:
        """Return the next producer id of the current block, or None if the block is used up.

        Requests another block when few ids are left.
        """
        if not self._current:
            self._current, self._next = self._next, range(0)
            self._size = len(self._current)
        taken = None
        if self._current:
            taken, self._current = self._current[0], self._current[1:]
        if len(self._current) <= self._size * FETCH_AHEAD and not self._next:
            self._fetch()
        return taken

    def _fetch(self) -> None:
        if self._fetching is None:
            self._fetching = asyncio.get_running_loop().create_task(self._ask())

    async def _ask(self) -> bool:
        """Fetch the next block of producer ids; return whether the controller granted a block."""
        try:
            self._next = await self._block()
        finally:
            self._fetching = None
        return bool(self._next)

    async def _block(self) -> range:
        """Request a block of producer ids; log a failure and return an empty block."""
        broker = self._cluster.image.brokers.get(self._cluster.broker_id)
        request = AllocateProducerIdsRequest(
            broker_id=self._cluster.broker_id,
            broker_epoch=NOBODY if broker is None else broker.broker_epoch,
        )
        try:
            answer = await self._cluster.ask_controller(request, AllocateProducerIdsResponse)
        except CoordinatorError as error:
            log.warning("action=fetch_producer_ids error=%s", error)
            return range(0)
        if answer.error_code:
            log.warning("action=fetch_producer_ids error=%d", answer.error_code)
            return range(0)
        start, count = answer.producer_id_start, answer.producer_id_len
        return range(start, start + count)

    async def close(self) -> None:
        """Cancel a pending request for a block of producer ids.

        Ids not handed out are never used.
        """
        if self._fetching is not None:
            self._fetching.cancel()
            await asyncio.wait((self._fetching,))


class ProducerApis:
    """Answers InitProducerId for all listeners of one broker."""

    def __init__(
        self,
        ids: ProducerIds,
        init_transactional: Callable[
            [InitProducerIdRequest, RequestContext], Awaitable[InitProducerIdResponse]
        ],
    ) -> None:
        """Create the handler of InitProducerId.

        Args:  init_transactional: answers the producers that name a transactional id.
        """
        self.ids = ids
        self._init_transactional = init_transactional
        self.handlers: dict[int, Served] = {
            INIT_PRODUCER_ID: make_handler(
                InitProducerIdRequest, self.init_producer_id, highest=LAST_VERSION
            )
        }

    async def init_producer_id(
        self,
        request: InitProducerIdRequest,
        context: RequestContext,
    ) -> InitProducerIdResponse:
        """Answer InitProducerId with a new id, or with the next epoch of the producer's id."""
        if request.transactional_id is not None:
            return await self._init_transactional(request, context)
        known = request.producer_id != NOBODY
        if (
            known != (request.producer_epoch != NOBODY)
            or min(request.producer_id, request.producer_epoch) < NOBODY
        ):
            return _refusal(ErrorCode.INVALID_REQUEST)
        if known and request.producer_epoch < LAST_EPOCH:
            return InitProducerIdResponse(
                error_code=ErrorCode.NONE,
                producer_id=request.producer_id,
                producer_epoch=request.producer_epoch + 1,
            )
        producer_id = await self.ids.take()
        if producer_id is None:
            return _refusal(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
        return InitProducerIdResponse(
            error_code=ErrorCode.NONE, producer_id=producer_id, producer_epoch=0
        )

    async def close(self) -> None:
        """Cancel a pending request for a block of producer ids."""
        await self.ids.close()


def _refusal(code: int) -> InitProducerIdResponse:
    return InitProducerIdResponse(error_code=code, producer_epoch=NOBODY)
