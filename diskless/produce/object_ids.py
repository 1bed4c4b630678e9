"""Leases object ids in blocks and hands them out one by one in rising order.

The next block is requested before the current one is used up or too old: an id must still be leased
when its object's upload, with all its retries, is over. The rest of an old block is not used; the
coordinator lets the lease expire and knows that those ids are dead.

Source: docs/design/batch-coordinator.md#object-leases, docs/design/broker.md#produce.
"""

from __future__ import annotations

import asyncio
from typing import Final, NamedTuple

from coordinator.batch.interface import CallTarget
from coordinator.errors import CoordinatorError
from records.kafka_errors import ErrorCode
from records.rpc import objects as rpc

RENEW_LEFT: Final = 4  # a new block is requested when a quarter of the old one is left


class LeaseRefusedError(Exception):
    """The coordinator grants no ids; `fenced`: a newer epoch of this broker holds a lease."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(f"no lease of object ids (error {code}): {message}")
        self.fenced = code == ErrorCode.STALE_BROKER_EPOCH


class LeasedId(NamedTuple):
    """An object id, and the lease that it is from."""

    lease_id: int
    object_id: int


class _Block(NamedTuple):
    lease_id: int
    first: int
    end: int  # exclusive
    expires: float  # loop time from which its ids are no longer handed out


class ObjectIds:
    """Hands out the object ids of one broker at one coordinator partition."""

    def __init__(
        self,
        coordinator: CallTarget,
        *,
        coordinator_partition: int,
        broker_id: int,
        broker_epoch: int,
        block_size: int,
        usable_s: float,
    ) -> None:
        """Prepare to lease object ids from a batch coordinator on the first call of `next`.

        Args:    usable_s: how long after the request for a block its ids are handed out: the
                     lease's timeout less the longest upload.
        """
        assert usable_s > 0, f"ids that are usable for {usable_s} s"
        self._coordinator = coordinator
        self._coordinator_partition = coordinator_partition
        self._broker_id = broker_id
        self._broker_epoch = broker_epoch
        self._block_size = block_size
        self._usable_s = usable_s
        self._loop = asyncio.get_running_loop()
        self._block: _Block | None = None
        self._next = 0
        self._pending: asyncio.Task[_Block] | None = None

    async def next(self) -> LeasedId:
        """Return the next leased object id, which is higher than all earlier ids.

        Raises:  LeaseRefusedError, CoordinatorError: no id was used.
        """
        block = self._block
        if block is None or self._next >= block.end or self._loop.time() >= block.expires:
            block = await self._renew()
        object_id = self._next
        self._next += 1
        if (block.end - self._next) * RENEW_LEFT <= self._block_size:
            self._request_block()
        return LeasedId(block.lease_id, object_id)

    async def release(self) -> None:
        """Release the lease, so that the coordinator closes the unused object ids at once."""
        if self._pending is not None:
            self._pending.cancel()
        block, self._block = self._block, None
        if block is not None:
            request = rpc.ReleaseObjectLeaseRequest(
                coordinator_partition=self._coordinator_partition,
                broker_id=self._broker_id,
                broker_epoch=self._broker_epoch,
                lease_id=block.lease_id,
                end_object_id=self._next,
            )
            try:
                await self._coordinator.call(request)
            except CoordinatorError:
                return  # it expires

    def _request_block(self) -> asyncio.Task[_Block]:
        if self._pending is None:
            self._pending = self._loop.create_task(self._acquire())
            self._pending.add_done_callback(_retrieve_error)
        return self._pending

    async def _renew(self) -> _Block:
        """Return a usable block of object ids: the block requested ahead, or else a new block."""
        ahead = self._pending
        if ahead is not None and ahead.done() and not self._is_good(ahead):
            self._pending = None
        pending = self._request_block()
        try:
            block = await asyncio.shield(pending)
        finally:
            if pending.done() and self._pending is pending:
                self._pending = None
        self._block, self._next = block, block.first
        return block

    def _is_good(self, task: asyncio.Task[_Block]) -> bool:
        if task.cancelled() or task.exception() is not None:
            return False
        return self._loop.time() < task.result().expires

    async def _acquire(self) -> _Block:
        expires = self._loop.time() + self._usable_s
        answer = await self._coordinator.call(
            rpc.AcquireObjectLeaseRequest(
                coordinator_partition=self._coordinator_partition,
                broker_id=self._broker_id,
                broker_epoch=self._broker_epoch,
                object_count=self._block_size,
            )
        )
        if answer.error_code:
            raise LeaseRefusedError(answer.error_code, answer.error_message or "")
        end = answer.first_object_id + answer.object_count
        assert answer.first_object_id >= self._next, f"ids went backwards: {answer}"
        return _Block(answer.lease_id, answer.first_object_id, end, expires)


def _retrieve_error(task: asyncio.Task[_Block]) -> None:
    """Retrieve the error of an unused block of ids, so that asyncio does not log the error."""
    if not task.cancelled():
        task.exception()
