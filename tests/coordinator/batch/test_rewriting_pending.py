"""Replaced runs of batches, decided against records that are proposed and not yet committed.

Nothing here commits by itself: a test says when a majority holds the log.

Source: docs/design/compaction.md#rules.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

from tests.coordinator.batch.actors import Broker, batch, create, delete_records
from tests.coordinator.batch.quorum_world import QuorumWorld
from tests.coordinator.batch.rewriter_actor import Range, Rewriter, codes
from tests.coordinator.leadership import agreed, decided

NOT_AVAILABLE, OUT_OF_RANGE, FENCED = 15, 1, 124


async def begin(path: Path) -> tuple[QuorumWorld, Broker, Rewriter]:
    """One partition with four runs of ten offsets, and a rewriter with a lease."""
    world = QuorumWorld(path, auto_commit=False)
    world.view.raise_level(3)
    await agreed(world, create(world))
    broker, rewriter = Broker(world), Rewriter(world)
    await agreed(world, broker.acquire())
    for _ in range(4):
        await agreed(world, broker.commit(batch(0, 10)))
    await agreed(world, rewriter.acquire())
    return world, broker, rewriter


async def a_range_that_is_being_replaced_is_not_replaced_again(path: Path) -> None:
    """An overlap is answered retriably; what touches the range is replaced at once."""
    world, _, rewriter = await begin(path)
    first = await rewriter.plan(Range(0, 20))
    (overlap,) = await rewriter.plan(Range(10, 30))
    beside = await rewriter.plan(Range(20, 40))
    pending = await decided(rewriter.send(first))
    refused = await decided(rewriter.send((overlap,)))
    accepted = await decided(rewriter.send(beside))
    assert not pending.done()
    world.log.commit()
    assert codes(await pending) == codes(await accepted) == [0]
    assert codes(await refused) == [NOT_AVAILABLE]
    assert codes(await agreed(world, rewriter.send((overlap,)))) == [FENCED]
    assert codes(await agreed(world, rewriter.send(await rewriter.plan(Range(0, 40))))) == [0]
    await world.close()


async def a_lost_replacement_leaves_its_range_free(path: Path) -> None:
    """A replacement that no majority holds is forgotten with its leader."""
    world, _, rewriter = await begin(path)
    rows = await rewriter.plan(Range(0, 20))
    lost = await decided(rewriter.send(rows))
    world.log.depose(lose_uncommitted=True)
    await asyncio.wait([lost])
    assert lost.exception() is not None
    world.elect()
    assert codes(await agreed(world, rewriter.send(rows))) == [0]
    await world.close()


async def runs_below_a_pending_log_start_are_not_replaced(path: Path) -> None:
    """The new log start is proposed, and not applied where the runs are read."""
    world, _, rewriter = await begin(path)
    (row,) = await rewriter.plan(Range(0, 20))
    moved = await decided(delete_records(world, 10))
    replaced = await decided(rewriter.send((row,)))
    world.log.commit()
    assert await moved == (0, 10)
    assert codes(await replaced) == [OUT_OF_RANGE]
    await world.close()


async def cleaned_until_counts_proposed_ranges(path: Path) -> None:
    """Two ranges of one round follow each other without waiting."""
    world, _, rewriter = await begin(path)
    first = await rewriter.plan(Range(0, 20, 40, 1, removed=1))
    second = await rewriter.plan(Range(20, 40, 40, 1, removed=1))
    one, two = await decided(rewriter.send(first)), await decided(rewriter.send(second))
    world.log.commit()
    assert codes(await one) == codes(await two) == [0]
    await world.close()


async def an_object_that_is_being_closed_takes_no_runs(path: Path) -> None:
    """The end of a lease is proposed, and closes its objects for what is decided after it."""
    world, _, rewriter = await begin(path)
    assert codes(await agreed(world, rewriter.send(await rewriter.plan(Range(0, 20))))) == [0]
    rows = await rewriter.plan(Range(20, 40))
    released, late = await decided(rewriter.release()), await decided(rewriter.send(rows))
    world.log.commit()
    assert await released == 0
    assert (await late).error_code == 55
    await world.close()


async def an_object_is_marked_only_once_its_close_is_applied(path: Path) -> None:
    """The last runs of an object and its close are proposed while nothing of it is used yet."""
    world, broker, rewriter = await begin(path)
    await agreed(world, rewriter.send(await rewriter.plan(Range(0, 10))))
    await agreed(world, delete_records(world, 10))
    rows = await rewriter.plan(Range(10, 40))
    last = await decided(rewriter.send(rows, closes=True))
    swept = await decided(world.coordinator.run_maintenance())
    world.log.commit()
    assert codes(await last) == [0]
    while not swept.done():
        world.log.commit()
        await asyncio.sleep(0)
    marked = world.machine.store.marked_objects(0, 2**62, 10)
    assert rewriter.object_id not in [object_id for _, object_id in marked]
    assert await agreed(world, broker.files()) == []
    await world.close()


def test_the_coordinator_refuses_a_second_replacement_of_runs_whose_replacement_is_proposed(
    tmp_path: Path,
) -> None:
    asyncio.run(a_range_that_is_being_replaced_is_not_replaced_again(tmp_path))


def test_a_proposed_replacement_of_runs_that_was_lost_with_its_leader_can_be_repeated(
    tmp_path: Path,
) -> None:
    asyncio.run(a_lost_replacement_leaves_its_range_free(tmp_path))


def test_the_coordinator_refuses_a_replacement_of_runs_below_a_proposed_log_start(
    tmp_path: Path,
) -> None:
    asyncio.run(runs_below_a_pending_log_start_are_not_replaced(tmp_path))


def test_compaction_progress_advances_by_compacted_ranges_that_are_proposed_but_not_applied(
    tmp_path: Path,
) -> None:
    asyncio.run(cleaned_until_counts_proposed_ranges(tmp_path))


def test_the_coordinator_refuses_further_runs_in_an_object_whose_close_is_proposed(
    tmp_path: Path,
) -> None:
    asyncio.run(an_object_that_is_being_closed_takes_no_runs(tmp_path))


def test_the_coordinator_marks_a_rewritten_object_for_deletion_only_after_it_applied_the_close(
    tmp_path: Path,
) -> None:
    asyncio.run(an_object_is_marked_only_once_its_close_is_applied(tmp_path))
