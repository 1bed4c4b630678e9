"""InitProducerId: who an idempotent producer is.

    apis = ProducerApis(cluster)
    handlers |= apis.handlers

The controller hands out ids by the block, and a broker hands them on, one by one, without asking
anybody. When a tenth of a block is left the next one is fetched, so that a producer waits for the
controller only when a broker has just begun, or when blocks go faster than they come.

A producer that lost its place (a sequence was refused) asks again with its id and epoch, and gets
the same id in the next epoch: batch coordinators begin a new epoch at sequence 0 (KIP-360). After
the last epoch it gets another id. What it says it is cannot be checked, for no broker remembers
producers; as its id was given to it, and ids are never given twice, it can only harm itself.

Transactions are not there, so a transactional id is refused, with a code that is not retried.

Source: KIP-98, KIP-360, KIP-730 (blocks); docs/design/batch-coordinator.md#idempotence.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Final

from coordinator.errors import CoordinatorError
from diskless.apis.handler import Asker, served
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
"""One below the largest: that one is how upstream says that a producer is fenced."""

WAIT_S: Final = 5.0  # for a block; then a client is told to ask again
FETCH_AHEAD: Final = 0.1  # of a block: when so much is left, the next is asked for


class ProducerIds:
    """Blocks of ids, and who waits for one. Belongs to the event loop."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._current = range(0)
        self._next = range(0)
        self._size = 0  # of the block that `_current` is the rest of
        self._fetching: asyncio.Task[bool] | None = None

    async def take(self) -> int | None:
        """A producer id that nobody else is given; None if there is none in time."""
        deadline = asyncio.get_running_loop().time() + WAIT_S
        while True:
            taken = self._take()
            fetching = self._fetching
            left_s = deadline - asyncio.get_running_loop().time()
            if taken is not None or left_s <= 0 or fetching is None:
                return taken
            await asyncio.wait((fetching,), timeout=left_s)
            if fetching.done() and not (fetching.cancelled() or fetching.result()):
                return None  # refused: asking at once would be refused again

    def _take(self) -> int | None:
        """An id that is at hand; sees to it that there will be more."""
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
        """Fetch the next block; False if there was none to be had."""
        try:
            self._next = await self._block()
        finally:
            self._fetching = None
        return bool(self._next)

    async def _block(self) -> range:
        """The next block; an empty one, with a line that says why, if there is none to be had."""
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
        """End a call under way; ids that were not handed on are nobody's."""
        if self._fetching is not None:
            self._fetching.cancel()
            await asyncio.wait((self._fetching,))


class ProducerApis:
    """See the module. One for a broker, however many listeners it has."""

    def __init__(self, cluster: Cluster) -> None:
        self.ids = ProducerIds(cluster)
        self.handlers: dict[int, Served] = {
            INIT_PRODUCER_ID: served(
                InitProducerIdRequest, self.init_producer_id, highest=LAST_VERSION
            )
        }

    async def init_producer_id(
        self,
        request: InitProducerIdRequest,
        asker: Asker,  # noqa: ARG002 (a handler's)
    ) -> InitProducerIdResponse:
        """An id and an epoch to begin at sequence 0 with."""
        if request.transactional_id is not None:
            code = ErrorCode.INVALID_REQUEST  # an empty one, as upstream
            if request.transactional_id:
                code = ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
            return _refused(code)
        known = request.producer_id != NOBODY
        if (
            known != (request.producer_epoch != NOBODY)
            or min(request.producer_id, request.producer_epoch) < NOBODY
        ):
            return _refused(ErrorCode.INVALID_REQUEST)
        if known and request.producer_epoch < LAST_EPOCH:
            return InitProducerIdResponse(
                error_code=ErrorCode.NONE,
                producer_id=request.producer_id,
                producer_epoch=request.producer_epoch + 1,
            )
        producer_id = await self.ids.take()
        if producer_id is None:
            return _refused(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
        return InitProducerIdResponse(
            error_code=ErrorCode.NONE, producer_id=producer_id, producer_epoch=0
        )

    async def close(self) -> None:
        """End what is under way."""
        await self.ids.close()


def _refused(code: int) -> InitProducerIdResponse:
    return InitProducerIdResponse(error_code=code, producer_epoch=NOBODY)
