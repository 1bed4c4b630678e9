"""Generates logs of a batch coordinator with transactions: one with every case, and random ones."""

from __future__ import annotations

import asyncio
from functools import cache
from pathlib import Path
from random import Random

from msgspec.structs import replace

from records.rpc.rewriting import AbortedEntry
from records.schema import MetadataRecord
from tests.coordinator.batch.actors import batch, delete_records
from tests.coordinator.batch.contract_transactions import ABORT, COMMIT, begin, mark, marker, send
from tests.coordinator.batch.rewriter_actor import Range, Rewriter, answers
from tests.coordinator.batch.subjects import SETTINGS, MemoryWorld
from tests.coordinator.batch.test_transactions_random import Life
from tests.spark_jobs.audit_world import Entry


@cache
def the_transactional_history() -> tuple[Entry, ...]:
    """Return a coordinator's log with every fate of a transaction, two of them open at the end."""
    return Entry(1), *(Entry(record) for record in asyncio.run(_live()))


async def _live() -> list[MetadataRecord]:
    world = MemoryWorld(SETTINGS)
    broker = await begin(world)
    await send(broker, batch(0, 3), batch(100, 2, producer=7), numbers=(-1, 1))
    await send(broker, batch(0, 2, producer=8), batch(100, 1), numbers=(1, -1))
    await mark(world, marker(1), marker(1, ABORT, producer=8))
    # two transactions side by side in one object
    await send(broker, batch(0, 1, producer=7, first=2), batch(100, 1, producer=8, first=2),
               numbers=(2, 2))  # fmt: skip
    await mark(world, marker(2, ABORT), marker(1, ABORT, producer=8))  # a repetition
    # its producer is fenced: the marker has a higher epoch, and the next batch begins at 0
    await mark(world, marker(2, ABORT, producer=8, epoch=1))
    await send(broker, batch(0, 2, producer=8, epoch=1), numbers=(3,))
    # without a batch here, and once below another one's open transaction
    await mark(world, marker(4, COMMIT, producer=9), marker(5, COMMIT, producer=8, epoch=1))
    await mark(world, marker(3, COMMIT, producer=8, epoch=1, coordinator_epoch=4))
    assert await delete_records(world, 4) == (0, 4)
    await _rewrite(world)
    await send(broker, batch(0, 2, producer=7, first=3), numbers=(3,), partition=0)
    await send(broker, batch(0, 1), numbers=(-1,))
    await send(broker, batch(0, 2, producer=9), numbers=(5,))
    return [record for _, record in world.coordinator.log]


async def _rewrite(world: MemoryWorld) -> None:
    """Merge runs and markers, and compact them: two aborted entries end, the third stays."""
    rewriter = Rewriter(world)
    await rewriter.acquire()
    assert [row.error_code for row in await rewriter.replace(Range(3, 10), closes=True)] == [0]
    rewriter.next_object()
    (row,) = await rewriter.plan(Range(3, 14, bound=14, flags=2, removed=5))
    ended = AbortedEntry(8, 5), AbortedEntry(7, 10)
    response = await rewriter.send([replace(row, ended_aborted=ended)], closes=True)
    assert [each.error_code for each in answers(response)] == [0]


def a_random_transactional_history(directory: Path, seed: int) -> list[Entry]:
    """Return the log of a random life of one partition and three transactional producers."""

    async def live() -> Life:
        life = Life(directory / f"{seed}.db", seed)
        await life.begin()
        for _ in range(40):
            await _step(life, life.rng)
        life.store.close()
        return life

    life = asyncio.run(live())
    return [Entry(1), *(Entry(record) for _, record in life.coordinator.log)]


async def _step(life: Life, random: Random) -> None:
    match random.randrange(10):
        case 0:
            await life.trim()
        case 1 | 2 | 3:
            life.mark()
        case _:
            await life.commit()
