"""Brokers that go wrong in one way each: a story finds them out.

Each mutant is one change to the real code and one pinned seed; the real code lives through the same
story. The first three are of the writer alone, in `tests.diskless.test_object_writer`'s stories
too.

Source: docs/design/broker.md, docs/design/invariants.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

import diskless.produce.writers
from diskless.fetch.service import FetchService, _PartitionResult, _RequestedPartition
from diskless.produce.buffer import AppendResult
from diskless.produce.object_writer import ObjectWriter
from diskless.stores.faults import Fault, FaultRule
from records.kafka_errors import ErrorCode
from tests.diskless.story import Story
from tests.diskless.test_object_writer import (
    AcknowledgesUploads,
    CommitsAsUploadsEnd,
    NewIdForAnotherTry,
    lives,
    outcomes,
    overtaking,
    quiet,
)
from tests.diskless.virtual_time import run


def dies(story: Story) -> None:
    """Assert that the story fails."""

    async def live() -> None:
        await story.run()
        story.check()

    with pytest.raises(AssertionError):
        run(live)


@pytest.mark.parametrize(("mutant", "seed"), [(AcknowledgesUploads, 0), (NewIdForAnotherTry, 11)])
def test_the_object_writer_tests_catch_each_writer_mutant(
    mutant: type[ObjectWriter], seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Mutants: acknowledge before the commit; retry under a new object id."""
    monkeypatch.setattr(diskless.produce.writers, "ObjectWriter", mutant)
    dies(Story(seed))


def test_a_mutant_writer_that_commits_objects_in_order_of_finished_uploads_is_caught() -> None:
    assert outcomes(overtaking(ObjectWriter)) == {0}
    assert outcomes(overtaking(CommitsAsUploadsEnd)) != {0}


class GivesUpLostPuts(ObjectWriter):
    """Treats an upload with a lost answer as failed."""

    async def _upload(self, key: str, parts: Any, size_bytes: int) -> None:
        try:
            await self._store.upload(key, parts, size_bytes)
        finally:
            self._uploads.release()


def lost_puts(writer: type[ObjectWriter]) -> set[int]:
    world = quiet()
    world.writer_type = writer
    world.store.rules = (
        FaultRule(fault=Fault.LOST_ANSWER, operations=frozenset({"upload"}), probability=0.5),
    )
    return outcomes(lives(world))


def test_a_mutant_that_treats_a_lost_put_response_as_a_failure_is_caught() -> None:
    assert lost_puts(ObjectWriter) == {0}
    assert lost_puts(GivesUpLostPuts) == {0, ErrorCode.KAFKA_STORAGE_ERROR}


class SkipsTheBarrier(FetchService):
    """Reports an offset as out of range by its own replica alone."""

    async def _behind_the_barrier(
        self, _: int, asked: Sequence[_RequestedPartition]
    ) -> list[_PartitionResult]:
        return [_PartitionResult(ErrorCode.OFFSET_OUT_OF_RANGE, one.offset, 0) for one in asked]


def test_a_broker_mutant_that_skips_the_read_barrier_is_caught() -> None:
    """One story in six has no Fetch above its replica's end, so several are told."""
    for seed in range(8):
        try:
            dies(Story(seed, fetch_type=SkipsTheBarrier))
        except pytest.fail.Exception:
            continue
        return
    raise AssertionError("no story has failed")


class TellsHalf(ObjectWriter):
    """Gives the batches of an object each other's outcomes."""

    def _settle(self, written: Any, response: Any) -> None:
        settle_each = written.closed.settle_each

        def reversed_(results: list[AppendResult]) -> None:
            settle_each(results[::-1])

        written.closed.settle_each = reversed_
        super()._settle(written, response)


def test_a_broker_mutant_that_mixes_up_responses_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(diskless.produce.writers, "ObjectWriter", TellsHalf)
    dies(Story(0))
