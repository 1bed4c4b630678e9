"""Reading objects with few GETs, verified bytes, right offsets. docs/design/broker.md#fetch."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from random import Random
from typing import Any

import pytest

from diskless.apis.records import _held_bytes
from diskless.fetch.object_cache import MERGE_GAP_BYTES, READ_S, CacheSettings, ObjectCache
from diskless.fetch.runs_reader import (
    IN_PLACE_BYTES,
    KEPT_RATIO,
    DamagedRunError,
    Run,
    read_run,
    read_runs,
    read_runs_in_place,
)
from diskless.fetch.timestamps import first_since, latest
from diskless.stores import ByteRange, ObjectNotFoundError, StorageError
from diskless.stores.faults import Fault, FaultRule, FaultyStore
from diskless.stores.memory import MemoryStore
from records.batch import HEADER_SIZE_BYTES, iter_batches, iter_records
from records.batch_writer import build_value_batch, stamp
from records.leader_epochs import LeaderEpochs
from records.wal import APPENDED, FINAL
from tests.diskless.virtual_time import run

SIZE = 1_000_000
BYTES = Random(1).randbytes(SIZE)


def store_with(*objects: tuple[str, bytes]) -> FaultyStore:
    store = MemoryStore(lambda: 0)
    for key, data in objects:
        store.objects[key] = (data, 0)
    return FaultyStore(store, Random(1), asyncio.sleep)


def claim(work: Callable[[ObjectCache, FaultyStore], Awaitable[None]], **bounds: int) -> None:
    """Run `work` with a cache over a store that holds `a` and `b`."""

    async def on_loop() -> None:
        store = store_with(("a", BYTES), ("b", BYTES[::-1]))
        store.rules = (FaultRule(fault=Fault.SLOW, delay_s=0.1),)
        cache = ObjectCache(store, CacheSettings(**bounds))
        await work(cache, store)
        await cache.close()

    run(on_loop)


def test_concurrent_equal_reads_of_an_object_share_one_get_and_later_reads_hit_the_cache() -> None:
    async def work(cache: ObjectCache, _: FaultyStore) -> None:
        where = ByteRange(100, 50)
        found = await asyncio.gather(*(cache.read("a", where) for _ in range(10)))
        late = await cache.read("a", ByteRange(110, 5))
        assert {bytes(data) for data in found} == {BYTES[100:150]}
        assert bytes(late) == BYTES[110:115]
        assert (cache.counters.gets, cache.counters.hits, cache.counters.reads) == (1, 10, 11)

    claim(work)


def test_a_read_of_a_hanging_store_times_out_without_a_second_get() -> None:
    """Clients wait for half a minute; bytes that arrive later serve the retry."""

    async def work(cache: ObjectCache, store: FaultyStore) -> None:
        store.rules = (FaultRule(fault=Fault.SLOW, delay_s=READ_S + 5),)
        loop, where = asyncio.get_running_loop(), ByteRange(0, 10)
        began = loop.time()
        with pytest.raises(StorageError, match="has not answered within 20 s"):
            await cache.read("a", where)
        assert loop.time() - began == pytest.approx(READ_S)
        assert bytes(await cache.read("a", where)) == BYTES[:10]
        assert loop.time() - began == pytest.approx(READ_S + 5)
        assert cache.counters.gets == 1

    claim(work)


def test_the_object_cache_merges_neighbouring_reads_but_not_distant_reads() -> None:
    async def work(cache: ObjectCache, _: FaultyStore) -> None:
        far = 200 + MERGE_GAP_BYTES + 10_000
        ranges = [ByteRange(150, 50), ByteRange(0, 100), ByteRange(far, 10), ByteRange(90, 20)]
        found = await asyncio.gather(*(cache.read("a", where) for where in ranges))
        for where, data in zip(ranges, found, strict=True):
            assert bytes(data) == BYTES[where.offset : where.offset + where.size]
        assert (cache.counters.gets, cache.counters.get_bytes) == (2, 210)
        assert cache.kept_bytes == 210

    claim(work)


def test_the_object_cache_bounds_the_size_of_a_get_that_serves_several_reads() -> None:
    async def work(cache: ObjectCache, _: FaultyStore) -> None:
        await asyncio.gather(*(cache.read("a", ByteRange(at, 100)) for at in range(0, 1_000, 100)))
        assert cache.counters.gets == 4
        await cache.read("b", ByteRange(0, 5_000))  # a single read may be larger

    claim(work, max_get_bytes=300)


def test_the_object_cache_is_bounded_and_drops_the_least_recently_used_range_first() -> None:
    async def work(cache: ObjectCache, _: FaultyStore) -> None:
        far = 200_000
        for number in range(4):
            await cache.read("a", ByteRange(number * far, 100))
            await cache.read("a", ByteRange(0, 100))
        assert cache.kept_bytes == 300
        gets = cache.counters.gets
        await cache.read("a", ByteRange(0, 100))
        assert cache.counters.gets == gets
        await cache.read("a", ByteRange(far, 100))
        assert cache.counters.gets == gets + 1

    claim(work, max_bytes=300)


def test_the_object_cache_serves_a_just_written_object_without_a_get() -> None:
    async def work(cache: ObjectCache, _: FaultyStore) -> None:
        cache.add("c", b"0123456789")
        assert bytes(await cache.read("c", ByteRange(2, 3))) == b"234"
        cache.add("c", b"0123456789")  # again: nothing changes
        cache.add("d", bytes(101))  # larger than all that is kept
        assert (cache.counters.gets, cache.kept_bytes) == (0, 10)
        for number in range(20):
            cache.add(f"e{number}", bytes(10))
        assert cache.kept_bytes == 50
        cache.forget("e19")
        assert cache.kept_bytes == 40

    claim(work, max_bytes=100, max_ranges=5)


def test_the_object_cache_verifies_the_batches_in_its_bytes_only_once() -> None:
    data, runs = two_runs()

    async def on_loop() -> None:
        cache = ObjectCache(store_with(("o", data)))
        _, notes = await cache.read_noted("o", ByteRange(runs[0].byte_offset, runs[0].size_bytes))
        assert not notes
        for _ in range(3):
            await read_runs(cache, runs[:1], from_offset=100, max_bytes=1)
            _, notes = await cache.read_noted(
                "o", ByteRange(runs[0].byte_offset, runs[0].size_bytes)
            )
            assert len(notes) == 1
        cache.forget("o")
        _, notes = await cache.read_noted("o", ByteRange(runs[0].byte_offset, 61))
        assert not notes

    run(on_loop)


def test_a_broker_verifies_checksums_of_stored_bytes_but_not_of_bytes_it_wrote_itself() -> None:
    """The broker verified the batches that it wrote, and their bytes never left its memory."""
    data, runs = two_runs()
    wrong = data[:HEADER_SIZE_BYTES] + bytes((data[HEADER_SIZE_BYTES] ^ 1,))
    wrong += data[HEADER_SIZE_BYTES + 1 :]

    async def on_loop() -> None:
        cache = ObjectCache(store_with(("o", wrong)))
        with pytest.raises(DamagedRunError, match="crc"):
            await read_run(cache, runs[0])
        cache = ObjectCache(store_with())
        cache.add("o", wrong)
        assert await read_run(cache, runs[0]) == wrong[runs[0].byte_offset :][: runs[0].size_bytes]
        cache = ObjectCache(store_with(("o", wrong)))
        cache.add("o", wrong)
        with pytest.raises(DamagedRunError, match="crc"):  # its batches would get new checksums
            await read_run(cache, runs[0]._replace(timestamp_type=1))

    run(on_loop)


def test_a_read_from_memory_makes_no_task_and_reads_from_the_store_begin_together() -> None:
    data, runs = two_runs()

    async def on_loop() -> None:
        cache, tasks = ObjectCache(store_with(("o", data))), []

        def note(loop: asyncio.AbstractEventLoop, work: Any, **more: Any) -> asyncio.Task[Any]:
            tasks.append(work)
            return asyncio.Task(work, loop=loop, **more)

        asyncio.get_running_loop().set_task_factory(note)
        how = {"from_offset": runs[0].base_offset, "max_bytes": 1 << 20}
        first = await read_runs(cache, runs, **how)
        assert (cache.counters.gets, len(tasks)) == (1, 3)  # one GET, and one task for each run
        tasks.clear()
        assert await read_runs(cache, runs, **how) == first
        assert tasks == []

    run(on_loop)


def test_a_failed_object_read_fails_all_readers_that_share_it_and_is_not_cached() -> None:
    async def work(cache: ObjectCache, store: FaultyStore) -> None:
        store.rules = (FaultRule(fault=Fault.ERROR, delay_s=0.1),)
        reads = [cache.read("a", ByteRange(at, 10)) for at in (0, 5, 100)]
        found = await asyncio.gather(*reads, return_exceptions=True)
        assert [type(error) for error in found] == [StorageError] * 3
        store.rules = ()
        assert bytes(await cache.read("a", ByteRange(0, 10))) == BYTES[:10]
        with pytest.raises(ObjectNotFoundError):
            await cache.read("never", ByteRange(0, 10))

    claim(work)


def test_cancelling_one_reader_of_a_shared_object_read_does_not_cancel_the_other_readers() -> None:
    async def work(cache: ObjectCache, _: FaultyStore) -> None:
        leaving = asyncio.ensure_future(cache.read("a", ByteRange(0, 10)))
        staying = asyncio.ensure_future(cache.read("a", ByteRange(0, 10)))
        await asyncio.sleep(0)
        leaving.cancel()
        assert bytes(await staying) == BYTES[:10]

    claim(work)


# --- runs ---------------------------------------------------------------------------------------


def batch(first: int, count: int) -> bytes:
    values = [b"%06d" % number for number in range(first, first + count)]
    return bytes(build_value_batch(values, base_offset=0, leader_epoch=-1, timestamp=77))


def two_runs() -> tuple[bytes, list[Run]]:
    """Offsets 100 to 105 in batches of 2, 3 and 1; then 106 to 109 in one of 4, elsewhere."""
    one = batch(100, 2) + batch(102, 3) + batch(105, 1)
    two = batch(106, 4)
    data = b"x" * 10 + one + b"y" * 20 + two
    return data, [
        Run("o", 10, len(one), 100, 105, 0, -1),
        Run("o", 30 + len(one), len(two), 106, 109, 1, 555),
    ]


def fetch(data: bytes, runs: list[Run], from_offset: int, max_bytes: int = 1 << 20) -> bytes:
    async def on_loop() -> bytes:
        cache = ObjectCache(store_with(("o", data)))
        return await read_runs(cache, runs, from_offset=from_offset, max_bytes=max_bytes)

    return run(on_loop)


def offsets(answer: bytes) -> list[int]:
    found = []
    for each in iter_batches(answer):
        assert each.header.leader_epoch == 0
        for record in iter_records(each):
            assert bytes(record.value or b"") == b"%06d" % record.offset
            found.append(int(record.offset))
    return found


def test_a_fetch_returns_batches_stamped_with_their_offsets() -> None:
    data, runs = two_runs()
    assert offsets(fetch(data, runs, 100)) == list(range(100, 110))


def test_a_fetch_begins_with_the_batch_that_holds_its_offset() -> None:
    data, runs = two_runs()
    assert offsets(fetch(data, runs, 103)) == list(range(102, 110))
    assert offsets(fetch(data, runs[1:], 109)) == [106, 107, 108, 109]


def test_a_fetch_response_is_bounded_except_for_its_first_batch() -> None:
    data, runs = two_runs()
    assert offsets(fetch(data, runs, 100, max_bytes=1)) == [100, 101]
    assert offsets(fetch(data, runs, 100, max_bytes=len(batch(0, 2)) * 2 + 30)) == [
        *range(100, 105)
    ]


def test_fetched_batches_with_log_append_time_have_the_commit_time() -> None:
    data, runs = two_runs()
    batches = list(iter_batches(fetch(data, runs, 100)))
    times = [record.timestamp for each in batches for record in iter_records(each)]
    assert times == [77] * 6 + [555] * 4
    assert [each.header.is_log_append_time for each in batches] == [False] * 3 + [True]


def final_run() -> tuple[bytes, list[Run]]:
    """A rewritten run of offsets 100 to 120 that begins and continues with gaps."""
    parts = []
    for first, count in ((103, 2), (110, 1), (117, 4)):
        values = [b"%06d" % number for number in range(first, first + count)]
        parts.append(build_value_batch(values, base_offset=first, leader_epoch=0, timestamp=first))
    data = b"".join(parts)
    return data, [Run("o", 0, len(data), 100, 120, 1, 555, FINAL)]


def test_a_fetch_returns_batches_of_a_rewritten_object_unchanged_with_their_gaps() -> None:
    data, runs = final_run()
    assert fetch(data, runs, 100) == data
    assert offsets(fetch(data, runs, 105)) == [110, 117, 118, 119, 120]
    assert offsets(fetch(data, runs, 112, max_bytes=1)) == [117, 118, 119, 120]


def test_a_fetch_refuses_a_rewritten_run_whose_batches_have_offsets_outside_of_the_run() -> None:
    data, runs = final_run()
    for wrong in (runs[0]._replace(base_offset=104), runs[0]._replace(last_offset=121)):
        with pytest.raises(DamagedRunError):
            fetch(data, [wrong], 118)
    swapped = bytearray(data)
    stamp(swapped, base_offset=111, leader_epoch=0)  # the first batch, behind the second
    with pytest.raises(DamagedRunError):
        fetch(bytes(swapped), runs, 119)


def test_a_fetch_of_a_run_in_a_rewritten_object_ends_before_a_damaged_batch() -> None:
    data, runs = final_run()
    spoiled = bytearray(data)
    spoiled[-1] ^= 1
    assert offsets(fetch(bytes(spoiled), runs, 100)) == [103, 104, 110]


def test_a_timestamp_lookup_in_a_rewritten_run_uses_the_timestamps_of_its_batches() -> None:
    data, runs = final_run()

    async def on_loop() -> None:
        cache = ObjectCache(store_with(("o", data)))
        for asked, found in ((103, (103, 103)), (104, (110, 110)), (118, None)):
            since = await first_since(cache, runs[0], from_offset=100, timestamp=asked)
            assert since == found
        assert await latest(cache, runs[0], from_offset=118) == (118, 117)

    run(on_loop)


def test_a_fetch_response_ends_before_a_damaged_batch() -> None:
    data, runs = two_runs()
    spoiled = bytearray(data)
    spoiled[-1] ^= 1
    assert offsets(fetch(bytes(spoiled), runs, 100)) == list(range(100, 106))
    with pytest.raises(DamagedRunError, match="offsets 106 to 109"):
        fetch(bytes(spoiled), runs[1:], 106)


def test_a_fetch_returns_only_the_undamaged_batches_of_a_damaged_object_range() -> None:
    """Each byte of its middle batch, one after the other: what lies before is served, then there is
    an error, and who seeks past it is served, if it is known where the next batch begins."""
    data, runs = two_runs()
    begin, size = runs[0].byte_offset + len(batch(0, 2)), len(batch(0, 3))
    served = 0
    for at in range(begin, begin + size):
        spoiled = bytearray(data)
        spoiled[at] ^= 1
        if at < begin + 8 or begin + 12 <= at < begin + 16:  # the offset and the leader's epoch,
            assert offsets(fetch(bytes(spoiled), runs, 100)) == list(range(100, 110))  # are stamped
            continue
        assert offsets(fetch(bytes(spoiled), runs, 100)) == [100, 101]
        for offset in (102, 104):
            with pytest.raises(DamagedRunError, match="offsets 100 to 105"):
                fetch(bytes(spoiled), runs, offset)
        try:
            assert offsets(fetch(bytes(spoiled), runs, 105)) == list(range(105, 110))
            served += 1
        except DamagedRunError:
            assert at < begin + HEADER_SIZE_BYTES, "its header was sound"
    assert served >= size - HEADER_SIZE_BYTES


def test_a_broker_reads_an_object_range_again_if_its_bytes_were_damaged_in_transit() -> None:
    data, runs = two_runs()

    async def on_loop() -> None:
        store = store_with(("o", data))
        store.rules = (FaultRule(fault=Fault.DAMAGED),)
        original = store.fetch

        async def once(key: str, where: ByteRange) -> object:
            answer = await original(key, where)
            store.rules = ()
            return answer

        store.fetch = once  # type: ignore[assignment,method-assign]
        answer = await read_runs(ObjectCache(store), runs, from_offset=100, max_bytes=1 << 20)
        assert offsets(answer) == list(range(100, 110))

    run(on_loop)


@pytest.mark.parametrize("wrong", [(99, 105), (100, 104), (100, 106)])
def test_a_broker_reports_stored_batches_that_differ_from_their_commit_as_damage(
    wrong: tuple[int, int],
) -> None:
    data, runs = two_runs()
    lying = runs[0]._replace(base_offset=wrong[0], last_offset=wrong[1])
    with pytest.raises(DamagedRunError, match="were committed"):
        fetch(data, [lying], 100)


def test_reading_a_byte_range_of_a_deleted_object_raises_object_not_found() -> None:
    _, runs = two_runs()

    async def on_loop() -> None:
        with pytest.raises(ObjectNotFoundError):
            await read_runs(ObjectCache(store_with()), runs, from_offset=100, max_bytes=100)

    run(on_loop)


def a_run(random: Random, base_offset: int) -> tuple[Run, bytes]:
    """A run of batches of one of four sizes, appended or in final form, with either time."""
    large = random.choice((False, True))
    is_final = random.choice((False, True))
    parts, offset = [], base_offset
    for _ in range(random.randint(1, 4)):
        size = random.randint(IN_PLACE_BYTES, IN_PLACE_BYTES + 99) if large else 10
        values = [random.randbytes(size)] * random.randint(1, 3)
        batch = build_value_batch(values, base_offset=0, leader_epoch=-1, timestamp=7)
        if is_final:
            stamp(batch, base_offset=offset, leader_epoch=0)
        parts.append(bytes(batch))
        offset += len(values)
    data = b"".join(parts)
    run = Run(
        "o", 0, len(data), base_offset, offset - 1, random.choice((0, 1)), 99,
        FINAL if is_final else APPENDED,
    )  # fmt: skip
    return run, data


@pytest.mark.parametrize("seed", range(40))
def test_batches_read_in_place_are_those_that_are_copied(seed: int) -> None:
    """Mutants: the offset, the epoch or the length is that of another batch."""
    random = Random(seed)
    runs, data, offset = [], b"", 0
    for _ in range(random.randint(1, 4)):
        found, its = a_run(random, offset)
        runs.append(found._replace(byte_offset=len(data)))
        data, offset = data + its, found.last_offset + 1
    epochs = random.choice((None, LeaderEpochs(((0, 0), (3, offset // 2)))))
    how = {
        "from_offset": random.randrange(runs[0].last_offset + 1),
        "max_bytes": random.choice((1, 100_000, 1 << 30)),
        "epochs": epochs,
    }

    async def on_loop() -> None:
        cache = ObjectCache(store_with(("o", data)))
        copied = await read_runs(cache, runs, **how)
        in_place = await read_runs_in_place(cache, runs, **how)
        assert bytes(in_place) == bytes(copied)
        assert len(in_place) == len(copied)
        stored = await cache.read("o", ByteRange(0, len(data)))
        assert bytes(stored) == data, "a reader changed the cached bytes"

    run(on_loop)


def test_large_batches_leave_the_cache_without_a_copy_and_small_ones_do_not() -> None:
    """A small part of a large object is copied, so that it does not keep all of it in memory."""
    large = bytes(
        build_value_batch([BYTES[:IN_PLACE_BYTES]], base_offset=0, leader_epoch=-1, timestamp=7)
    )
    small = bytes(build_value_batch([b"x"], base_offset=0, leader_epoch=-1, timestamp=7))

    async def shared_bytes(batch: bytes, object_bytes: int) -> int:
        cache = ObjectCache(store_with())
        cache.add("o", batch + bytes(object_bytes - len(batch)))
        found = await read_runs_in_place(
            cache, [Run("o", 0, len(batch), 5, 5, 0, -1)], from_offset=5, max_bytes=1 << 20
        )
        if isinstance(found, memoryview):
            return 0
        assert _held_bytes(found.parts) == object_bytes + 16
        return sum(len(part) for part in found.parts if isinstance(part, memoryview))

    async def on_loop() -> None:
        assert await shared_bytes(large, len(large)) == len(large) - 16
        assert await shared_bytes(large, KEPT_RATIO * len(large)) == len(large) - 16
        assert await shared_bytes(large, KEPT_RATIO * len(large) + 1) == 0
        assert await shared_bytes(small, len(small)) == 0

    run(on_loop)


def test_an_answer_counts_a_buffer_once_that_several_of_its_parts_share() -> None:
    view = memoryview(BYTES)
    assert _held_bytes([b"head", view[:10], view[10:20], bytearray(7)]) == SIZE + 4 + 7
