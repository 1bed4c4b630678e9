"""Object ids are handed out only while their lease outlives an upload.

Source: docs/design/broker.md#produce.
"""

from __future__ import annotations

import asyncio
import gc
from typing import Any

import pytest

from coordinator.errors import CoordinatorError
from diskless.produce.object_ids import ObjectIds
from records.kafka_errors import ErrorCode
from records.rpc import objects as rpc
from tests.diskless.virtual_time import run

USABLE_S = 100.0
BLOCK = 8


class Leasing:
    """Grants blocks in order, unless it is away, and records the time of each request."""

    def __init__(self) -> None:
        self.is_away = False
        self.asked_at: list[float] = []

    async def call(self, request: Any) -> Any:
        if isinstance(request, rpc.ReleaseObjectLeaseRequest):
            return rpc.ReleaseObjectLeaseResponse()
        assert isinstance(request, rpc.AcquireObjectLeaseRequest), request
        await asyncio.sleep(0.01)
        if self.is_away:
            raise CoordinatorError(ErrorCode.COORDINATOR_NOT_AVAILABLE, "nobody leads")
        self.asked_at.append(asyncio.get_running_loop().time())
        lease_id = len(self.asked_at) - 1
        return rpc.AcquireObjectLeaseResponse(
            lease_id=lease_id,
            first_object_id=lease_id * BLOCK,
            object_count=request.object_count,
        )


def ids_of(leasing: Leasing) -> ObjectIds:
    return ObjectIds(
        leasing,
        coordinator_partition=0,
        broker_id=1,
        broker_epoch=5,
        block_size=BLOCK,
        usable_s=USABLE_S,
    )


async def take(ids: ObjectIds, count: int) -> list[int]:
    return [(await ids.next()).object_id for _ in range(count)]


@pytest.mark.parametrize("taken", [1, BLOCK - 1, BLOCK, BLOCK + 1])
def test_object_ids_are_not_used_after_their_lease_expires(taken: int) -> None:
    """Also an id of a block that was requested ahead, before an idle time."""

    async def story() -> None:
        leasing = Leasing()
        ids = ids_of(leasing)
        await take(ids, taken)
        for pause_s in (USABLE_S - 1, 10 * USABLE_S):
            await asyncio.sleep(pause_s)
            leased = await ids.next()
            age_s = asyncio.get_running_loop().time() - leasing.asked_at[leased.lease_id]
            assert age_s < USABLE_S, f"an id of a lease that was asked for {age_s} s ago"

    run(story)


def test_a_broker_requests_a_block_of_object_ids_again_after_a_refusal() -> None:
    """An earlier failure must not fail the next call."""

    async def story() -> None:
        leasing = Leasing()
        ids = ids_of(leasing)
        await take(ids, 1)
        leasing.is_away = True
        await take(ids, BLOCK - 1)
        await asyncio.sleep(1)
        leasing.is_away = False
        assert await take(ids, 1) == [BLOCK]

    run(story)


def test_a_broker_issues_each_leased_object_id_once_and_in_rising_order() -> None:
    async def story() -> None:
        ids = ids_of(Leasing())
        assert await take(ids, 5 * BLOCK) == list(range(5 * BLOCK))

    run(story)


@pytest.mark.parametrize("ends", ["released", "dropped", "cancelled"])
def test_a_refused_prefetch_of_object_ids_raises_no_error_while_ids_remain(ends: str) -> None:
    """Without a leader, an unused request ahead causes no logged exception."""
    complaints: list[str] = []

    async def story() -> None:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, context: complaints.append(context["message"]))
        leasing = Leasing()
        ids = ids_of(leasing)
        if ends == "cancelled":
            leasing.is_away = True
            waiting = asyncio.ensure_future(ids.next())
            await asyncio.sleep(0)
            waiting.cancel()
        else:
            await take(ids, 1)
            leasing.is_away = True
            await take(ids, BLOCK - 1)
        await asyncio.sleep(1)
        if ends == "released":
            await ids.release()
        del ids
        gc.collect()

    run(story)
    assert complaints == []
