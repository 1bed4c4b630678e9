"""The object writer under faults: every batch gets one outcome, in order.

Every story is one seed; an error names it. In each, about forty batches meet uploads that fail,
answers that are lost and leaders that are away, in virtual time.

Source: docs/design/broker.md#produce.
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from diskless.produce.buffer import AppendResult
from diskless.produce.object_writer import (
    CLOSING,
    NOT_WRITTEN,
    UNKNOWN,
    ObjectWriter,
    WriterSettings,
)
from diskless.stores import StorageError
from diskless.stores.faults import Fault, FaultRule
from records.kafka_errors import ErrorCode
from records.rpc.batch_coordinator import CommitBatchesResponse
from tests.diskless.produce_world import TOPICS, Sent, World, a_batch
from tests.diskless.virtual_time import run
from tests.examples import seeds

SEEDS = seeds(150)


def lives(world: World) -> World:
    try:
        run(world.live)
        world.check()
    except AssertionError as error:
        error.add_note(world.note)
        raise
    return world


def test_an_object_writer_never_loses_duplicates_or_reorders_acknowledged_batches() -> None:
    acknowledged = repeated = lost = failed = 0
    for seed in SEEDS:
        world = lives(World(seed))
        outcomes = [sent.results[0].error for sent in world.sent]
        acknowledged += outcomes.count(0)
        failed += outcomes.count(ErrorCode.KAFKA_STORAGE_ERROR)
        repeated += world.coordinator.repeated
        lost += world.store.struck.get(("upload", Fault.LOST_ANSWER), 0)
    assert acknowledged > len(SEEDS) * 20
    assert min(failed, repeated, lost) > 50, (failed, repeated, lost)


# --- mutants: each is caught by a story ---------------------------------------------------------


class CommitsAsUploadsEnd(ObjectWriter):
    """Commits in the order in which uploads end."""

    async def _next_uploaded(self) -> Any:
        uploads = [written.upload for written in self._uploading]
        await asyncio.wait(uploads, return_when=asyncio.FIRST_COMPLETED)
        return next(written for written in self._uploading if written.upload.done())


class AcknowledgesUploads(ObjectWriter):
    """Acknowledges a batch as soon as its object is uploaded."""

    async def _outcome(self, written: Any, answer: Any) -> None:
        self._commits.release()
        self._settle_all(written.closed, AppendResult(0, None, 0))
        await asyncio.wait([answer])


class CountsLostAnswersAsFailures(ObjectWriter):
    """Treats a commit with a lost answer as failed."""

    async def _outcome(self, written: Any, answer: Any) -> None:
        try:
            self._settle(written, await answer)
        except Exception:
            self._settle_all(written.closed, NOT_WRITTEN)
        finally:
            self._commits.release()


class CommitsWhatFailed(ObjectWriter):
    """Commits an object whose upload failed."""

    async def _upload(self, key: str, parts: Any, size_bytes: int) -> None:
        try:
            await super()._upload(key, parts, size_bytes)
        except StorageError:
            return


class NewIdForAnotherTry(ObjectWriter):
    """Writes the batches again as another object after a lost answer."""

    async def _outcome(self, written: Any, answer: Any) -> None:
        try:
            self._settle(written, await answer)
        except Exception:
            self._closed.append(written.closed)
            if self._naming is None:
                self._naming = self._loop.create_task(self._name_all())
        finally:
            self._commits.release()


@pytest.mark.parametrize(
    ("mutant", "seed"),
    [
        (AcknowledgesUploads, 0),
        (CountsLostAnswersAsFailures, 1),
        (CommitsWhatFailed, 0),
        (NewIdForAnotherTry, 2),
    ],
)
def test_the_object_writer_simulation_catches_each_mutant(
    mutant: type[ObjectWriter], seed: int
) -> None:
    world = World(seed, writer=mutant)
    with pytest.raises(AssertionError):
        lives(world)


# --- single claims ------------------------------------------------------------------------------

SETTINGS = WriterSettings(commit_interval_ms=50, upload_timeout_ms=1_000)


def quiet(seed: int = 1, settings: WriterSettings = SETTINGS) -> World:
    """A world in which nothing fails until a test says so."""
    world = World(seed, settings=settings)
    world.store.rules = ()
    world.coordinator.lost = world.coordinator.away = 0.0
    return world


def outcomes(world: World) -> set[int]:
    return {sent.results[0].error for sent in world.sent}


def test_an_object_writer_without_leased_object_ids_uploads_no_object() -> None:
    world = quiet()
    world.coordinator.away = 1.0
    lives(world)
    assert {sent.results[0] for sent in world.sent} == {NOT_WRITTEN}
    assert not world.memory.objects


def test_a_store_outage_fails_only_the_batches_written_during_the_outage() -> None:
    world = quiet()
    world.store.rules = (FaultRule(fault=Fault.REFUSED, operations=frozenset({"upload"})),)

    def during() -> None:
        if len(world.sent) == 20:
            world.store.rules = ()

    run(lambda: world.live(during=during))
    world.check()
    assert outcomes(world) == {0, ErrorCode.KAFKA_STORAGE_ERROR}
    assert world.sent[-1].results[0].error == 0


def overtaking(writer: type[ObjectWriter]) -> World:
    """Run with overlapping uploads of up to half a second, without failures."""
    world = quiet()
    world.writer_type = writer
    world.store.rules = (
        FaultRule(fault=Fault.SLOW, operations=frozenset({"upload"}), probability=0.5, delay_s=0.5),
    )
    return lives(world)


def test_objects_whose_uploads_finish_out_of_order_are_committed_in_order() -> None:
    assert outcomes(overtaking(ObjectWriter)) == {0}


def test_a_mutant_that_commits_in_the_order_of_finished_uploads_loses_batches() -> None:
    assert NOT_WRITTEN.error in outcomes(overtaking(CommitsAsUploadsEnd))


def test_an_object_writer_retries_a_failed_upload_under_the_same_object_key() -> None:
    world = quiet()
    world.store.rules = (
        FaultRule(fault=Fault.LOST_ANSWER, operations=frozenset({"upload"}), probability=0.5),
    )
    lives(world)
    assert outcomes(world) == {0}
    assert world.store.struck[("upload", Fault.LOST_ANSWER)] > 5
    assert len(world.memory.objects) == len(world.coordinator.answers)


def test_closing_an_object_writer_ends_although_the_outcomes_of_some_batches_stay_unknown() -> None:
    world = quiet()
    world.coordinator.lost = 1.0
    run(world.live)
    assert {sent.results[0] for sent in world.sent} == {UNKNOWN}


@pytest.mark.parametrize("interval_ms", [50, 250, 1_000])
def test_batches_are_uploaded_at_the_commit_interval_after_the_buffers_first(
    interval_ms: int,
) -> None:
    """Source: KIP-1163, Test Plan: commit intervals, within a threshold."""
    world = quiet(settings=WriterSettings(commit_interval_ms=interval_ms))
    waits_ms: list[float] = []

    async def story() -> None:
        loop, writer = asyncio.get_running_loop(), world.a_writer()
        for number in range(20):
            begun, before = loop.time(), len(world.memory.objects)
            sent = Sent(number, (TOPICS[0], 0), a_batch(number, 1, 10))
            world.sent.append(sent)
            writer.append(*sent.where, sent.accepted, append_time=False, waiter=sent)
            while len(world.memory.objects) == before:
                await asyncio.sleep(0.001)
            waits_ms.append((loop.time() - begun) * 1_000)
        await writer.close(60)

    run(story)
    assert outcomes(world) == {0}
    # The first upload also waits for a lease of object ids.
    assert all(interval_ms <= wait_ms <= interval_ms + 25 for wait_ms in waits_ms), waits_ms


@pytest.mark.parametrize("max_bytes", [2_000, 10_000, 100_000])
def test_objects_are_as_large_as_the_buffer_may_be_and_never_a_batch_larger(
    max_bytes: int,
) -> None:
    """Source: KIP-1163, Test Plan: buffer max bytes, within a threshold, which is one batch."""
    settings = WriterSettings(commit_interval_ms=60_000, buffer_max_bytes=max_bytes)
    world = quiet(settings=settings)

    async def story() -> None:
        writer = world.a_writer()
        for number in range(400):
            sent = Sent(number, (TOPICS[0], 0), a_batch(number, 1, 500))
            world.sent.append(sent)
            writer.append(*sent.where, sent.accepted, append_time=False, waiter=sent)
            await asyncio.sleep(0.001)
        await writer.close(60)

    run(story)
    assert outcomes(world) == {0}
    batch_bytes = max(place[5] for place in world.coordinator.placed)
    sizes = [sum(p[5] for p in world.coordinator.placed if p[3] == object_id)
             for object_id in sorted({place[3] for place in world.coordinator.placed})]  # fmt: skip
    assert len(sizes) > 2
    assert all(max_bytes - batch_bytes < size <= max_bytes for size in sizes[:-1]), sizes
    assert sizes[-1] <= max_bytes


def test_an_object_writer_uploads_a_batch_larger_than_the_buffer_as_a_separate_object() -> None:
    world = quiet(settings=WriterSettings(commit_interval_ms=10_000, buffer_max_bytes=1_000))
    lives(world)
    assert outcomes(world) == {0}
    large = [place for place in world.coordinator.placed if place[5] > 1_000]
    assert large
    for place in large:
        assert [p for p in world.coordinator.placed if p[3] == place[3]] == [place]


def test_a_broker_refuses_a_lease_timeout_too_short_for_the_upload_timeout() -> None:
    with pytest.raises(ValueError, match="does not outlive"):
        WriterSettings(upload_timeout_ms=60_000, lease_timeout_ms=100_000)


def test_a_closed_object_writer_refuses_further_batches() -> None:
    world = quiet()

    async def story() -> None:
        writer = world.a_writer()
        await writer.close(1)
        late = Sent(0, (TOPICS[0], 0), a_batch(0, 1, 1))
        writer.append(*late.where, late.accepted, append_time=False, waiter=late)
        assert late.results == [CLOSING]

    run(story)


def test_a_commit_answered_with_duplicate_sequence_number_has_an_unknown_outcome() -> None:
    """Any batch may have been refused, and clients take DUPLICATE_SEQUENCE_NUMBER for success."""
    world = quiet()

    async def story() -> None:
        writer = world.a_writer()
        forgotten = CommitBatchesResponse(error_code=ErrorCode.DUPLICATE_SEQUENCE_NUMBER)
        world.coordinator.answers[0] = forgotten
        sent = Sent(0, (TOPICS[0], 0), a_batch(0, 1, 1))
        writer.append(*sent.where, sent.accepted, append_time=False, waiter=sent)
        await writer.close(10)
        assert sent.results == [UNKNOWN]

    run(story)
