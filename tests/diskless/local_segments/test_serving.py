"""Which reads local segments answer, and that they answer as the store does.

Source: docs/design/local-segments.md.
"""

from __future__ import annotations

import asyncio
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from coordinator.transactions.state import State
from diskless.fetch.local_segments import segment
from diskless.fetch.local_segments.format import CATCH_UP, TAIL
from diskless.fetch.local_segments.segment_disk import SegmentDisk
from records.batch import iter_batches
from records.kafka_errors import ErrorCode
from tests.diskless.local_segments.world import SETTLED_S, World, story
from tests.diskless.records_world import RecordsBroker, fetching
from tests.diskless.test_transactional_producers import Broker as TransactionalBroker

READ_COMMITTED = 1


def test_a_reader_of_what_its_broker_wrote_causes_no_get() -> None:
    async def work(world: World) -> None:
        for _ in range(5):
            await world.write(3, 1, 7)
        await asyncio.sleep(SETTLED_S)
        await world.check_no_get()
        assert world.gets == 0
        assert world.segments.count(TAIL) == 1
        assert world.segments.count(CATCH_UP) == 0

    story(work)


def test_a_tail_reader_fills_segments_with_what_it_reads_before_the_filler_does() -> None:
    async def work(world: World) -> None:
        await world.write(4, broker=world.plain)
        data = await world.bytes_of(world.broker, 0)
        assert world.gets == 1
        await asyncio.sleep(SETTLED_S)
        await world.check_no_get()
        assert await world.bytes_of(world.broker, 0) == data
        assert world.segments.count(TAIL) == 1

    story(work)


def test_what_a_catch_up_reader_fetched_is_read_again_without_a_get() -> None:
    async def work(world: World) -> None:
        for _ in range(12):
            await world.write(5, 2, broker=world.plain)
        offset = 0
        while offset < 84:
            for batch in iter_batches(await world.bytes_of(world.broker, offset, max_bytes=300)):
                offset = batch.header.end_offset
        await asyncio.sleep(SETTLED_S)
        assert world.segments.count(CATCH_UP) == 1
        await world.check_no_get()

    story(work)


@pytest.mark.parametrize("max_bytes", [1, 100, 250, 700, 1 << 20])
def test_answers_are_whole_batches_from_the_asked_offset_on_and_within_their_bound(
    max_bytes: int,
) -> None:
    async def work(world: World) -> None:
        for _ in range(4):
            await world.write(3, 1, 9)
        await asyncio.sleep(SETTLED_S)
        world.forget()
        for offset in range(52):
            found = await world.bytes_of(world.broker, offset, max_bytes)
            batches = list(iter_batches(found))
            assert batches[0].header.base_offset <= offset < batches[0].header.end_offset
            assert len(found) <= max_bytes or len(batches) == 1
            expected = await world.bytes_of(world.plain, offset, max_bytes)
            assert found == expected[: len(found)]
        assert world.gets == 0

    story(work)


def test_segments_of_an_earlier_process_answer_after_a_restart() -> None:
    async def work(world: World) -> None:
        for _ in range(5):
            await world.write(3, 1)
        await asyncio.sleep(SETTLED_S)
        await world.restart()
        await world.check_no_get()
        await world.write(6)
        await asyncio.sleep(SETTLED_S)
        await world.check_no_get()
        assert [path.name for path in world.files()] == [f"{0:020}.log", f"{20:020}.log"]

    story(work)


def test_log_append_times_are_in_the_segments() -> None:
    async def work(world: World) -> None:
        await world.cluster.create("a", configs={"message.timestamp.type": "LogAppendTime"})
        await world.write(3, 4, topic="a")
        await asyncio.sleep(SETTLED_S)
        await world.check_no_get("a")

    story(work)


def test_a_range_that_a_segment_lacks_is_read_from_the_store() -> None:
    async def work(world: World) -> None:
        for i in range(9):
            await world.write(2, broker=world.plain if i % 3 == 1 else world.broker)
        await asyncio.sleep(SETTLED_S)
        assert world.segments.count(TAIL) == 1
        world.forget()
        offsets = [batch.header.base_offset for batch in iter_batches(await whole(world))]
        assert offsets == list(range(0, 18, 2))
        assert world.gets == 3
        await asyncio.sleep(SETTLED_S)
        await world.check_no_get()

    story(work)


async def whole(world: World) -> bytes:
    """Read the topic as a consumer does, from its first offset to its end."""
    data, offset = b"", 0
    while offset < 18:
        found = await world.bytes_of(world.broker, offset)
        data += found
        offset = list(iter_batches(found))[-1].header.end_offset
    return data


def test_merged_and_compacted_runs_are_never_answered_with_the_bytes_before() -> None:
    async def work(world: World) -> None:
        await world.fill(40)
        await world.compare()
        before = world.segments.counters.hits
        await world.rewrite()
        await world.compare()
        assert world.segments.counters.hits > before
        await world.check_no_get()
        await world.set_policy("compact")
        await world.rewrite()
        rows = await world.read()
        assert len(rows) == 5, rows
        await world.compare()
        await world.restart()
        assert await world.read() == rows

    story(work)


def test_deleted_records_are_not_answered_from_segments_and_their_segments_go() -> None:
    async def work(world: World) -> None:
        await world.write(5)
        await asyncio.sleep(SETTLED_S)
        await world.restart()
        await world.write(5)
        await asyncio.sleep(SETTLED_S)
        await world.delete_records(7)
        answer = await world.broker.fetch("t", 0, 6)
        assert answer.error_code == ErrorCode.OFFSET_OUT_OF_RANGE
        await world.check_no_get()
        assert len(world.files()) == 2
        await world.broker.filler.discard_stale()
        assert [path.name for path in world.files()] == [f"{5:020}.log"]
        assert world.segments.counters.discarded == {"log_start": 1}
        await world.check_no_get()

    story(work)


def test_open_and_aborted_transactions_are_answered_from_segments_as_from_the_store() -> None:
    async def committed(broker: RecordsBroker, offset: int) -> Any:
        request = fetching("t", [(0, offset)], isolation_level=READ_COMMITTED)
        answer = (await broker.fetch_all(request)).responses[0].partitions[0]
        assert not answer.error_code, answer
        return answer

    async def compare_committed(world: World) -> list[Any]:
        """Return broker 1's answers at each offset. They equal those of broker 2, without a GET."""
        world.forget()
        before = world.gets
        answers = []
        for offset in range((await committed(world.plain, 0)).high_watermark):
            expected = await committed(world.plain, offset)
            found = await committed(world.broker, offset)
            assert bytes(found.records or b"") == bytes(expected.records or b"")
            assert found.last_stable_offset == expected.last_stable_offset
            assert found.aborted_transactions == expected.aborted_transactions
            answers.append(found)
        assert world.gets == before
        return answers

    async def work(world: World) -> None:
        await world.cluster.finalize(esker_version=4, transaction_version=1)
        producer = TransactionalBroker(world.cluster, records=world.broker)
        assert not await producer.init()
        await world.write(1)
        assert not any((await producer.add(("t", 0))).values())
        for sequence in range(2):
            assert not await producer.produce(sequence)
        await asyncio.sleep(SETTLED_S)
        open_ = await compare_committed(world)
        assert [bool(answer.records) for answer in open_] == [True, False, False]
        assert not await producer.end(committed=False)
        await producer.completed(State.COMPLETE_ABORT)
        await asyncio.sleep(SETTLED_S)
        aborted = await compare_committed(world)
        assert [bool(answer.records) for answer in aborted] == [True] * 4
        assert [len(answer.aborted_transactions) for answer in aborted] == [1, 1, 1, 1]
        await producer.producers.close()

    story(work)


def test_segments_of_a_deleted_topic_go_and_a_new_topic_of_its_name_has_none() -> None:
    async def work(world: World) -> None:
        await world.write(5)
        await asyncio.sleep(SETTLED_S)
        (old,) = [path.parent for path in world.files()]
        await world.delete_topic("t")
        await world.cluster.create("t")
        await world.write(3)
        await asyncio.sleep(SETTLED_S)
        await world.check_no_get()
        await world.broker.filler.discard_stale()
        assert not old.exists()
        assert world.segments.counters.discarded == {"topic": 1}
        await world.check_no_get()

    story(work)


def test_a_segment_goes_once_half_of_its_bytes_are_of_replaced_runs() -> None:
    async def work(world: World) -> None:
        await world.fill(40)
        assert len(world.files()) == 1
        await world.rewrite()
        await world.broker.filler.discard_stale()
        assert world.segments.counters.discarded == {"stale": 1}
        assert not world.files()

    story(work)


# --- damage -------------------------------------------------------------------------------------


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-30])


def swap(path: Path) -> None:
    """Exchange a file with that of another partition, as large at least."""
    (other,) = [
        found
        for found in path.parent.parent.glob(f"*/*{path.suffix}")
        if found.parent != path.parent
    ]
    mine, theirs = path.read_bytes(), other.read_bytes()
    path.write_bytes(theirs)
    other.write_bytes(mine)


def put_fifo(path: Path) -> None:
    """Put a FIFO in a file's place: to open it for reading waits for a writer."""
    path.unlink()
    os.mkfifo(path)


def put_directory(path: Path) -> None:
    """Put a directory in a file's place."""
    path.unlink()
    path.mkdir()


@pytest.mark.parametrize("damage", [flip, cut, swap, Path.unlink, put_fifo, put_directory])
@pytest.mark.parametrize("while_serving", [True, False])
@pytest.mark.parametrize("suffix", [".log", ".runs"])
def test_damaged_torn_swapped_and_deleted_files_change_no_answer(
    damage, while_serving: bool, suffix: str
) -> None:
    async def work(world: World) -> None:
        await world.cluster.create("u")
        await world.write(8, 9, 8)
        await world.write(9, 8, 9, topic="u")
        await asyncio.sleep(SETTLED_S)
        if while_serving:
            await world.check_no_get()
            damage(world.files(suffix=suffix)[0])
        else:
            await world.broker.end_segments()
            damage(world.files(suffix=suffix)[0])
            await world.begin()
        world.forget()
        await world.compare()
        await world.compare("u")
        await asyncio.sleep(SETTLED_S)
        await world.check_no_get()  # it was filled again
        if suffix == ".log" and damage in (flip, cut, swap):
            assert world.segments.counters.discarded["damaged"]

    story(work)


def test_a_directory_that_was_emptied_while_serving_fills_again() -> None:
    async def work(world: World) -> None:
        await world.write(5)
        await asyncio.sleep(SETTLED_S)
        shutil.rmtree(world.files()[0].parent)
        await world.write(5)
        await asyncio.sleep(SETTLED_S)
        assert world.segments.fault is None
        await world.compare()
        await asyncio.sleep(SETTLED_S)
        await world.check_no_get()

    story(work)


@pytest.mark.parametrize("put", [put_fifo, put_directory])
@pytest.mark.parametrize("suffix", [".log", ".runs"])
def test_a_fifo_or_directory_in_a_files_place_gives_up_that_segment_alone(put, suffix: str) -> None:
    async def work(world: World) -> None:
        await world.write(5)
        await asyncio.sleep(SETTLED_S)
        put(world.files(suffix=suffix)[0])
        await world.write(5)
        await asyncio.sleep(SETTLED_S)
        assert world.segments.fault is None
        await world.compare()
        await asyncio.sleep(SETTLED_S)
        await world.check_no_get()
        assert all(path.is_file() for path in world.files(suffix=suffix))

    story(work)


def test_a_full_directory_in_a_files_place_stops_no_other_segment() -> None:
    async def work(world: World) -> None:
        await world.cluster.create("u")
        await world.write(5)
        await asyncio.sleep(SETTLED_S)
        put_directory(world.files()[0])
        (world.files()[0] / "of-others").touch()
        await world.restart()
        await world.write(5, topic="u")
        await world.compare()
        await asyncio.sleep(SETTLED_S)
        assert world.segments.fault is None
        await world.compare()
        world.forget()
        await world.check_no_get("u")

    story(work)


def test_a_process_that_died_at_any_byte_of_an_append_leaves_ranges_that_are_whole() -> None:
    async def work(world: World) -> None:
        for size in (3, 1, 4):
            await world.write(size)
        await asyncio.sleep(SETTLED_S)
        await world.broker.end_segments()
        (log,), (runs,) = world.files(), world.files(suffix=".runs")
        written, entries = log.read_bytes(), runs.read_bytes()
        lengths = [(len(written), size) for size in range(0, len(entries), 13)]
        lengths += [(size, len(entries)) for size in range(0, len(written), 31)]
        for log_bytes, runs_bytes in lengths:
            log.parent.mkdir(exist_ok=True)
            log.write_bytes(written[:log_bytes])
            runs.write_bytes(entries[:runs_bytes])
            world.forget()
            await world.begin()
            is_damaged = bool(world.segments.counters.discarded["damaged"])
            assert is_damaged != bool(len(world.segments))
            await world.compare()
            await world.broker.end_segments()
            shutil.rmtree(log.parent)
        await world.begin()

    story(work)


def test_segments_of_another_cluster_topic_or_offset_are_deleted_at_the_start() -> None:
    async def work(world: World) -> None:
        await world.cluster.create("u")
        await world.write(8)
        await world.write(9, topic="u")
        await asyncio.sleep(SETTLED_S)
        await world.broker.end_segments()
        (mine,), (other,) = world.files(), world.files("u")
        for suffix in (".log", ".runs"):
            foreign = other.with_suffix(suffix)
            shutil.copy(foreign, mine.with_suffix(suffix))
            shutil.copy(foreign, foreign.with_name(f"{5:020}{suffix}"))
        await world.begin()
        assert world.segments.counters.discarded == {"damaged": 2}
        assert not world.files()
        assert world.files("u") == [other]
        await world.compare()

    story(work)


@pytest.mark.parametrize("while_serving", [True, False])
def test_another_clusters_segments_change_no_answer(tmp_path: Path, while_serving: bool) -> None:
    """The segments have the same topic id, offsets and size, but another cluster's records."""

    async def another(world: World) -> None:
        await asyncio.sleep(1)  # other timestamps, and so other bytes
        await world.write(10)
        await asyncio.sleep(SETTLED_S)
        await world.broker.end_segments()
        shutil.copytree(world.directory, tmp_path / "theirs")

    async def work(world: World) -> None:
        await world.write(10)
        await asyncio.sleep(SETTLED_S)
        if not while_serving:
            await world.broker.end_segments()
        (mine,) = world.files()
        theirs = tmp_path / "theirs" / mine.relative_to(world.directory)
        assert theirs.read_bytes() != mine.read_bytes()
        assert theirs.stat().st_size == mine.stat().st_size
        for suffix in (".log", ".runs"):
            path = mine.with_suffix(suffix)
            path.write_bytes(theirs.with_suffix(suffix).read_bytes())
        if not while_serving:
            await world.begin()
        world.forget()
        await world.compare()
        assert world.segments.counters.discarded == {"damaged": 1}

    story(another, cluster_id="c-2")
    story(work)


def test_links_in_the_directory_are_not_followed() -> None:
    async def work(world: World) -> None:
        await world.write(8)
        await asyncio.sleep(SETTLED_S)
        await world.broker.end_segments()
        (log,) = world.files()
        kept = world.directory.parent / "kept.log"
        log.rename(kept)
        log.symlink_to(kept)
        (world.directory / f"{'A' * 22}-0").symlink_to(world.directory.parent)
        await world.begin()
        await world.compare()
        assert kept.exists()
        assert (world.directory / f"{'A' * 22}-0").is_symlink()

    story(work)


# --- bounds -------------------------------------------------------------------------------------


def test_the_budget_bounds_the_files_and_the_longest_unused_segments_go() -> None:
    async def work(world: World) -> None:
        topics = [f"t{i}" for i in range(8)]
        for topic in topics:
            await world.cluster.create(topic)
            await world.write(200, topic=topic)
            await asyncio.sleep(SETTLED_S)
            await world.bytes_of(world.broker, 0, topic="t0")
        assert world.segments.size_bytes <= 10_000
        on_disk = sum(path.stat().st_size for path in world.directory.glob("*/*"))
        assert on_disk == world.segments.size_bytes
        assert world.segments.counters.discarded["budget"]
        assert world.files("t0")
        assert not world.files("t1")
        for topic in topics:
            await world.compare(topic, step=40)

    story(work, max_bytes=10_000)


def test_a_reader_from_the_beginning_leaves_the_tail_where_it_is() -> None:
    async def work(world: World) -> None:
        await world.cluster.create("old")
        for _ in range(40):
            await world.write(100, topic="old", broker=world.plain)
        await world.write(100)
        await asyncio.sleep(SETTLED_S)
        offset = 0
        while offset < 3_900:
            data = await world.bytes_of(world.broker, offset, max_bytes=2_000, topic="old")
            offset = list(iter_batches(data))[-1].header.end_offset
            await asyncio.sleep(1)
        assert world.segments.counters.discarded["budget"]
        assert 0 < world.segments.bytes_of_kind[CATCH_UP] <= 10_000
        await world.check_no_get()

    story(work, max_bytes=20_000)


def test_what_the_disk_is_too_slow_for_is_dropped_and_read_from_the_store(monkeypatch) -> None:
    monkeypatch.setattr("diskless.fetch.local_segments.write_behind.QUEUE_BYTES", 400)

    async def work(world: World) -> None:
        for _ in range(6):
            await world.write(9, broker=world.plain)
        await world.bytes_of(world.broker, 0)
        assert world.segments.counters.dropped_bytes
        await world.compare()

    story(work)


def test_filling_stays_below_its_bytes_a_second() -> None:
    async def work(world: World) -> None:
        counters, loop = world.segments.counters, asyncio.get_running_loop()
        await world.write(400)
        await asyncio.sleep(SETTLED_S)
        first = counters.written_bytes
        assert first > 5_000
        await world.write(5)
        began = loop.time()
        while counters.written_bytes == first:
            await asyncio.sleep(0.1)
        assert loop.time() - began >= first / 1_000 - 3

    story(work, fill_bytes_per_second=1_000)


@pytest.mark.parametrize("code", [28, 30, 5])
def test_a_disk_that_refuses_to_write_stops_filling_for_a_while_and_nothing_else(
    code: int, monkeypatch
) -> None:
    write_at = segment._write_at

    def refuse(*_, **__):
        raise OSError(code, "refused")

    async def work(world: World) -> None:
        await world.write(4)
        await asyncio.sleep(SETTLED_S)
        monkeypatch.setattr(segment, "_write_at", refuse)
        await world.write(5)
        await asyncio.sleep(SETTLED_S)
        assert str(world.directory) in world.segments.fault
        assert "are not filled" in world.segments.fault
        assert world.segments.counters.failures == 1
        await world.compare()
        assert world.segments.counters.hits
        monkeypatch.setattr(segment, "_write_at", write_at)
        await asyncio.sleep(40)
        await world.write(6)
        await asyncio.sleep(SETTLED_S)
        assert world.segments.fault is None
        await world.compare()
        await asyncio.sleep(SETTLED_S)
        await world.check_no_get()

    story(work)


def test_a_disk_that_is_nearly_full_is_not_filled_further(monkeypatch) -> None:
    async def work(world: World) -> None:
        monkeypatch.setattr("diskless.fetch.local_segments.write_behind.FREE_BYTES", 2**62)
        await world.write(5)
        await asyncio.sleep(SETTLED_S)
        assert "MiB of the disk are free (ENOSPC)" in world.segments.fault
        assert not world.files()
        await world.compare()

    story(work)


def test_a_disk_that_refuses_at_the_start_leaves_a_broker_without_local_segments(
    monkeypatch,
) -> None:
    def refuse(*_, **__):
        raise OSError(30, "Read-only file system")

    async def work(world: World) -> None:
        await world.broker.end_segments()
        monkeypatch.setattr(SegmentDisk, "_load_all", refuse)
        await world.begin()
        expected = f"local segments are off, {world.directory}: Read-only file system (EROFS)"
        assert world.segments.fault == expected
        await world.write(5)
        await asyncio.sleep(SETTLED_S)
        await world.compare()
        assert not len(world.segments)
        await world.broker.end_segments()
        monkeypatch.undo()
        await world.begin()  # the directory was released

    story(work)
