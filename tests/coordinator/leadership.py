"""Stories of leaders that lose what they decided, on the quorum's coordinator.

Nothing here commits by itself: a test says when a majority holds the log.

Source: docs/design/state-machines.md#every-answer-waits,
docs/design/state-machines.md#a-new-leader-decides-nothing,
docs/design/batch-coordinator.md#object-leases.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import astuple, replace
from pathlib import Path
from typing import Any, TypeVar
from unittest.mock import patch

import pytest

from coordinator.errors import CoordinatorError
from raft.interfaces import NotLeaderError
from records.kafka_errors import ErrorCode
from records.types import Offset
from tests.coordinator.batch.actors import (
    OTHER_TOPIC,
    Broker,
    batch,
    create,
    delete_records,
    results,
)
from tests.coordinator.batch.quorum_world import QuorumWorld
from tests.coordinator.batch.subjects import KEYS, SETTINGS
from tests.waiting import DEADLINE_S

T = TypeVar("T")

TURNS = 10  # of the loop: more than a decision and its proposal take


async def decided(call: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
    """Start a call and let it be decided and proposed; its answer may have to wait."""
    task = asyncio.ensure_future(call)
    for _ in range(TURNS):
        await asyncio.sleep(0)
    return task


async def agreed(world: QuorumWorld, call: Coroutine[Any, Any, T]) -> T:
    """The answer to a call, after everything in the log is committed."""
    task = await decided(call)
    world.log.commit()
    return await asyncio.wait_for(task, timeout=DEADLINE_S)


async def begin(world: QuorumWorld, lease_ids: int = 100) -> Broker:
    """Create a topic, and a broker with a lease."""
    await agreed(world, create(world))
    broker = Broker(world)
    await agreed(world, broker.acquire(lease_ids))
    return broker


async def a_duplicate_is_not_answered_before_its_original_is_committed(path: Path) -> None:
    """The retry of an object finds it in pending state, and waits for it all the same."""
    world = QuorumWorld(path, auto_commit=False)
    broker = await begin(world)
    original = await decided(broker.commit(batch(0, 5)))
    again = await decided(broker.again())
    assert not original.done()
    assert not again.done(), f"answered from what can be lost: {again}"
    world.log.depose(lose_uncommitted=True)
    for task in (original, again):
        with pytest.raises(CoordinatorError) as caught:
            await asyncio.wait_for(task, timeout=DEADLINE_S)
        assert caught.value.code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    world.elect()
    assert results(await agreed(world, broker.again()))[0][:2] == (0, 0)
    await world.close()


async def an_answered_duplicate_survives_its_leader(path: Path) -> None:
    """The log's end is committed instead: both commits get the first answer."""
    world = QuorumWorld(path, auto_commit=False)
    broker = await begin(world)
    original = await decided(broker.commit(batch(0, 5)))
    again = await decided(broker.again())
    world.log.commit()
    answers = await asyncio.wait_for(asyncio.gather(original, again), timeout=DEADLINE_S)
    assert answers[0] == answers[1]
    world.log.depose()
    world.elect()
    assert await agreed(world, broker.again()) == answers[0]
    await world.close()


async def a_refusal_waits_for_the_high_watermark(path: Path) -> None:
    """An error can rest on a lost record: here on the close of a lease."""
    world = QuorumWorld(path, auto_commit=False)
    broker = await begin(world)
    released = await decided(broker.release())
    refused = await decided(broker.commit())
    assert not refused.done(), f"answered from what can be lost: {refused}"
    world.log.depose(lose_uncommitted=True)
    for task in (released, refused):
        with pytest.raises(CoordinatorError):
            await asyncio.wait_for(task, timeout=DEADLINE_S)
    world.elect()
    assert results(await agreed(world, broker.again()))[0][:2] == (0, 0)
    await world.close()


async def an_answer_without_a_record_needs_a_confirmed_leader(path: Path) -> None:
    """A node that has applied its own log may lag behind another leader's.

    A lease that the next leader granted, records that it took, a topic that it made: an answer
    that writes no record has nobody's agreement to wait for, and asks at the read barrier instead.
    """
    world = QuorumWorld(path)
    broker = await begin(world)
    barriers: list[asyncio.Future[Offset]] = []

    def barrier() -> asyncio.Future[Offset]:
        barriers.append(asyncio.get_running_loop().create_future())
        return barriers[-1]

    with patch.object(world.log, "barrier", barrier):
        calls: tuple[Callable[[], Coroutine[Any, Any, object]], ...] = (
            lambda: delete_records(world, 10),
            lambda: delete_records(world, -1),
            lambda: delete_records(world, 0, topic=OTHER_TOPIC),
            lambda: broker.commit(lease_id=99),
            lambda: broker.release(lease_id=99),
            lambda: broker.ask_safe(KEYS.key(10_000)),
        )
        for call in calls:
            for certain in (False, True):
                answer = await decided(call())
                assert not answer.done(), f"said by one who may lead no more: {answer}"
                if certain:
                    barriers.pop().set_result(world.log.end_offset)
                    await asyncio.wait_for(answer, timeout=DEADLINE_S)
                else:
                    barriers.pop().set_exception(NotLeaderError(ErrorCode.NOT_LEADER_OR_FOLLOWER))
                    with pytest.raises(CoordinatorError) as caught:
                        await asyncio.wait_for(answer, timeout=DEADLINE_S)
                    assert caught.value.code == ErrorCode.COORDINATOR_NOT_AVAILABLE
        assert results(await broker.commit(batch(0, 5)))[0][:2] == (0, 0)
        await broker.acquire()
        assert not barriers, "a record that is committed is proof enough"
    await world.close()


async def a_close_ends_calls_that_wait_for_their_commit(path: Path) -> None:
    """The waiting call ends with an unknown outcome: its record may be committed all the same."""
    world = QuorumWorld(path, auto_commit=False)
    broker = await begin(world)
    asked = await decided(broker.commit(batch(0, 5)))
    await world.coordinator.close()
    with pytest.raises(CoordinatorError) as caught:
        await asyncio.wait_for(asked, timeout=DEADLINE_S)
    assert caught.value.code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    with pytest.raises(CoordinatorError, match="closed"):
        await broker.commit(batch(0, 5))
    world.log.commit()
    world.log.depose()
    world.elect()
    assert world.coordinator.leader.proposer.epoch is None, "decides, and is closed"
    world.machine.close()


async def proposed_records_count_until_they_are_applied(path: Path) -> None:
    """Of six proposals, committed ones are applied one by one, and the last one not yet."""
    world = QuorumWorld(path, auto_commit=False)
    broker = await begin(world)
    ends, waiting = [], []
    for _ in range(6):
        waiting.append(await decided(broker.commit(batch(0, 2))))
        ends.append(world.log.end_offset)
    for end_offset in ends[:-1]:
        world.log.commit(end_offset)
    waiting.append(await decided(broker.commit(batch(0, 3, producer=7))))
    world.log.commit(world.log.end_offset)
    waiting.append(await decided(broker.commit(batch(0, 1, producer=7, first=3))))
    world.log.commit()
    answers = await asyncio.wait_for(asyncio.gather(*waiting), timeout=DEADLINE_S)
    assert [results(answer)[0][:2] for answer in answers] == [
        (0, offset) for offset in (0, 2, 4, 6, 8, 10, 12, 15)
    ]
    await world.close()


async def a_new_leader_decides_only_on_all_that_it_inherited(path: Path) -> None:
    """Five records are committed and not yet applied when the next leader gets a request."""
    world = QuorumWorld(path, auto_commit=False)
    broker = await begin(world)
    world.hosting.holds_back = True
    assert results(await agreed(world, broker.commit(batch(0, 5))))[0][:2] == (0, 0)
    world.log.depose()
    world.elect()
    early = await decided(broker.commit(batch(0, 2)))
    assert not early.done()
    world.hosting.holds_back = False
    world.hosting.apply()
    for _ in range(TURNS):
        await asyncio.sleep(0)
    world.log.commit()
    assert results(await asyncio.wait_for(early, timeout=DEADLINE_S))[0][:2] == (0, 5)
    await world.close()


async def orphans_are_listed_from_applied_state(path: Path) -> None:
    """A lost close of a lease must have deleted nothing: its broker commits after all."""
    settings = replace(SETTINGS, file_delete_delay_ms=0)
    world = QuorumWorld(path, settings, auto_commit=False)
    broker = await begin(world, lease_ids=3)
    released = await decided(broker.release())
    assert await broker.files() == []
    world.log.depose(lose_uncommitted=True)
    with pytest.raises(CoordinatorError):
        await asyncio.wait_for(released, timeout=DEADLINE_S)
    world.elect()
    assert results(await agreed(world, broker.commit()))[0][:2] == (0, 0)
    await agreed(world, broker.release())
    assert await broker.files() == [broker.first + 1, broker.first + 2]
    await world.close()


async def lost_records_leave_the_counters(path: Path) -> None:
    """Proposed records raise the counters of ids, log ids and leases; lost ones do not count.

    The next ids are those that the log would give: a replica that never led counts no other way.
    """
    world = QuorumWorld(path, auto_commit=False)
    broker = await begin(world)
    counters = astuple(world.machine.store.counters)
    lost = [
        await decided(broker.acquire(50)),
        await decided(create(world, topic=OTHER_TOPIC)),
    ]
    assert astuple(world.coordinator.leader.pending.counters) != counters
    world.log.depose(lose_uncommitted=True)
    for task in lost:
        with pytest.raises(CoordinatorError):
            await asyncio.wait_for(task, timeout=DEADLINE_S)
    world.elect()
    assert astuple(world.coordinator.leader.pending.counters) == counters
    await agreed(world, create(world, topic=OTHER_TOPIC))
    await agreed(world, broker.acquire(50))
    assert astuple(world.coordinator.leader.pending.counters) == astuple(
        world.machine.store.counters
    )
    await world.close()


STORIES = (
    a_duplicate_is_not_answered_before_its_original_is_committed,
    an_answered_duplicate_survives_its_leader,
    a_refusal_waits_for_the_high_watermark,
    an_answer_without_a_record_needs_a_confirmed_leader,
    a_close_ends_calls_that_wait_for_their_commit,
    proposed_records_count_until_they_are_applied,
    a_new_leader_decides_only_on_all_that_it_inherited,
    orphans_are_listed_from_applied_state,
    lost_records_leave_the_counters,
)
