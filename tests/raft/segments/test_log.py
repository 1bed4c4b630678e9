"""What a log promises while the disk works, and what it says when the disk does not."""

from __future__ import annotations

import errno
import random
import shutil
import struct
import threading

import pytest
from crc32c import crc32c

from raft.segments import (
    DiskFullError,
    EpochStart,
    FlushFailedError,
    Log,
    LogConfig,
    LogFailedError,
    MissingLogError,
    OffsetOutOfRangeError,
    RealFileSystem,
    UnexpectedBatchError,
    WriteFailedError,
)
from records.batch_writer import build_value_batch
from records.compression import Compression
from records.errors import BatchChecksumError, CorruptBatchError, IncompleteBatchError
from tests.raft.segments.conftest import batch, fill, values_of
from tests.raft.segments.model import DIRECTORY
from tests.simulation.disk import SimulatedDisk


def names(disk: SimulatedDisk, suffix: str = ".log") -> list[int]:
    return [int(name[:20]) for name in disk.listdir(DIRECTORY) if name.endswith(suffix)]


# --- appending and reading ------------------------------------------------------------------------


def test_an_append_to_the_log_returns_the_offsets_of_its_batches(log):
    assert log.append(batch(0, records=3)) == (0, 3, 1)
    assert log.append(batch(3, epoch=2) + batch(4, epoch=4)) == (3, 5, 4)
    assert log.epochs == (EpochStart(1, 0), EpochStart(2, 3), EpochStart(4, 4))
    assert (log.log_start_offset, log.log_end_offset, log.last_epoch) == (0, 5, 4)


def test_a_log_read_returns_whole_batches_and_the_first_batch_even_above_the_size_limit(log):
    fill(log, 4, size=200)
    one = len(batch(0, size=200))
    assert values_of(log, 0, max_bytes=1) == [0]
    assert values_of(log, 0, max_bytes=2 * one) == [0, 1]
    assert values_of(log, 0, max_bytes=3 * one - 1) == [0, 1]
    assert values_of(log, 3) == [3]
    assert values_of(log, 4) == [], "the end"


def test_a_log_read_at_an_offset_inside_a_batch_starts_with_that_batch(log):
    fill(log, 3, records=4, size=20)
    assert values_of(log, 6) == [4, 8]


def test_a_log_read_returns_no_batch_at_or_above_the_given_end_offset(log):
    """A follower's Fetch may go to the log end, a consumer's only to the high watermark."""
    fill(log, 3, records=2, size=20)
    assert values_of(log, 0, end_offset=4) == [0, 2]
    assert values_of(log, 0, end_offset=3) == [0]
    assert values_of(log, 2, end_offset=3) == [], "the batch reaches past it"
    assert values_of(log, 4, end_offset=4) == []


def test_a_log_read_at_an_offset_outside_the_log_raises_offset_out_of_range(log):
    fill(log, 3)
    for offset in (-1, 4):
        with pytest.raises(OffsetOutOfRangeError):
            log.read(offset, max_bytes=1)


def test_a_log_read_of_any_offset_finds_the_batch_through_the_offset_index(log):
    for i in range(60):
        log.append(batch(log.log_end_offset, records=1 + i % 3, size=10 + i * 7 % 90))
    for offset in range(log.log_end_offset):
        header = log.read(offset, max_bytes=1).batches[0].header
        assert header.base_offset <= offset < header.end_offset


@pytest.mark.parametrize("damage", [17, 61, 80])
def test_the_log_refuses_to_append_a_batch_with_a_wrong_checksum(log, damage):
    data = bytearray(batch(0))
    data[damage] ^= 1
    with pytest.raises(BatchChecksumError):
        log.append(data)
    with pytest.raises(IncompleteBatchError):
        log.append(batch(0)[:-1])
    with pytest.raises(CorruptBatchError):
        log.append(bytes(100))
    assert log.log_end_offset == 0


def test_the_log_refuses_to_append_a_batch_that_its_own_reader_would_refuse(log):
    """A peer may send nonsense with a good checksum: more records than its bytes can hold."""
    data = bytearray(batch(0))
    data[23:27] = (999).to_bytes(4, "big")  # last offset delta
    data[57:61] = (1000).to_bytes(4, "big")  # record count
    data[17:21] = crc32c(memoryview(data)[21:]).to_bytes(4, "big")
    with pytest.raises(CorruptBatchError, match="1000 records cannot fit"):
        log.append(data)
    assert log.log_end_offset == 0


def test_the_log_appends_a_compressed_batch_with_more_records_than_bytes(log):
    values = [b""] * 1000
    data = build_value_batch(
        values, base_offset=0, leader_epoch=1, timestamp=0, compression=Compression.ZSTD
    )
    assert len(data) < 7 * len(values)  # a record takes seven bytes at least
    log.append(data)
    assert log.log_end_offset == 1000


def test_the_log_refuses_to_append_a_batch_whose_offset_or_epoch_does_not_follow_the_log_end(log):
    fill(log, 2, epoch=5)
    for offset, epoch in ((1, 5), (3, 5), (2, 4), (2, -1)):
        with pytest.raises(UnexpectedBatchError) as caught:
            log.append(batch(offset, epoch=epoch))
        assert (caught.value.log_end_offset, caught.value.last_epoch) == (2, 5)
    with pytest.raises(UnexpectedBatchError):
        log.append(batch(2, epoch=5) + batch(2, epoch=5))
    assert log.log_end_offset == 2, "nothing of a group is appended if one of it is refused"


def test_the_log_rolls_segments_by_size_and_names_each_segment_for_its_first_offset(log, disk):
    fill(log, 12, records=2, size=100)  # three fit
    assert names(disk) == [0, 6, 12, 18]


def test_the_log_spreads_an_append_larger_than_a_segment_over_several_segments(log, disk):
    log.append(b"".join(batch(i, size=300) for i in range(8)))
    assert log.log_end_offset == 8
    assert names(disk) == [0, 2, 4, 6]


def test_a_batch_larger_than_the_segment_size_gets_a_segment_of_its_own(log, disk):
    fill(log, 1)
    fill(log, 1, size=5000)
    fill(log, 1)
    assert names(disk) == [0, 1, 2]
    assert values_of(log, 1, max_bytes=10) == [1]


def test_the_log_rolls_a_segment_by_the_timestamps_of_its_batches(disk):
    log = Log.create(disk, DIRECTORY, LogConfig(segment_ms=1000))
    for offset, time in enumerate((5000, 5999, 6000, 6001, 7001, 7002)):
        log.append(batch(offset, time=time))
    assert names(disk) == [0, 3, 5]


def test_the_log_returns_the_end_offset_for_the_epoch_of_a_diverging_follower(log):
    """KIP-595, Fetch: also across a restart, and from the middle of a log cut at both ends."""
    fill(log, 4, epoch=2)
    fill(log, 4, epoch=5)
    assert log.end_offset_for_epoch(1) is None
    assert log.end_offset_for_epoch(2) == (4, 2)
    assert log.end_offset_for_epoch(4) == (4, 2)
    assert log.end_offset_for_epoch(5) == log.end_offset_for_epoch(9) == (8, 5)
    log.flush()
    log.drop_prefix(2)
    log.truncate_to(6)
    assert log.end_offset_for_epoch(3) == (4, 2)
    assert log.end_offset_for_epoch(5) == (6, 5)
    assert [log.epoch_at(offset) for offset in (1, 2, 3, 4, 5)] == [None, 2, 2, 5, 5]


def test_the_log_adds_an_index_entry_after_more_than_the_interval_of_bytes(disk):
    """As upstream: exactly the interval is not enough, and the first batch needs none."""
    size = len(batch(0))
    log = Log.create(disk, DIRECTORY, LogConfig(index_interval_bytes=2 * size))
    fill(log, 9)
    log.close()
    entries = [struct.pack(">ii", offset, offset * size) for offset in (3, 6)]
    assert disk.content(DIRECTORY / "00000000000000000000.index") == b"".join(entries)


# --- opening --------------------------------------------------------------------------------------


def test_opening_a_log_in_a_missing_or_empty_directory_raises_an_error(disk):
    """A directory that is gone is a lost disk, never a fresh log.

    Source: docs/design/quorum.md#lost-disks.
    """
    with pytest.raises(MissingLogError):
        Log.open(disk, DIRECTORY)
    disk.make_directory(DIRECTORY)
    with pytest.raises(MissingLogError):
        Log.open(disk, DIRECTORY)


def test_creating_a_log_in_a_directory_with_a_log_raises_an_error(log, disk):
    fill(log, 1)
    log.close()
    with pytest.raises(WriteFailedError, match="already there"):
        Log.create(disk, DIRECTORY)


def test_a_new_log_can_be_created_with_any_start_offset(disk):
    log = Log.create(disk, DIRECTORY, start_offset=50)
    assert (log.log_start_offset, log.log_end_offset, log.last_epoch) == (50, 50, None)
    assert names(disk) == [50]


def test_opening_a_log_that_was_closed_cleanly_rebuilds_no_index(log, disk, config, caplog):
    fill(log, 20, epoch=1)
    fill(log, 20, epoch=2)
    log.close()
    again = Log.open(disk, DIRECTORY, config)
    assert not caplog.records, [record.getMessage() for record in caplog.records]
    assert again.epochs == log.epochs
    assert again.log_end_offset == again.recovery_point == 40


def test_appends_to_a_closed_log_raise_an_error(log):
    log.close()
    with pytest.raises(LogFailedError, match="closed"):
        log.append(batch(0))


# --- flushing -------------------------------------------------------------------------------------


def test_the_recovery_point_advances_once_a_second_and_after_a_segment_roll(disk):
    now = [0.0]
    log = Log.create(disk, DIRECTORY, LogConfig(segment_bytes=1000), clock=lambda: now[0])
    fill(log, 1)
    assert (log.flush(), log.recovery_point) == (1, 0)
    now[0] += 1.0
    fill(log, 1)
    assert (log.flush(), log.recovery_point) == (2, 2)
    fill(log, 3)
    assert (log.flush(), log.recovery_point) == (5, 2)
    log.record_recovery_point()
    assert log.recovery_point == 5
    fill(log, 3)
    assert (log.flush(), log.recovery_point) == (8, 8), "it rolled"


@pytest.mark.parametrize("operation", ["fdatasync", "fsync_directory"])
def test_a_log_accepts_no_write_after_a_failed_flush(log, disk, operation):
    fill(log, 2)
    log.flush()
    fill(log, 10)
    disk.fail_next(operation)
    with pytest.raises(FlushFailedError):
        log.flush()
    assert log.flushed_end_offset == 2
    for refused in (
        log.flush,
        log.record_recovery_point,
        lambda: log.append(batch(12)),
        lambda: log.truncate_to(1),
        lambda: log.drop_prefix(1),
        lambda: log.reset_to(1),
    ):
        with pytest.raises(LogFailedError):
            refused()
    assert values_of(log, 0)[:2] == [0, 1], "reading goes on"
    log.close()


def test_log_appends_continue_while_another_thread_flushes(tmp_path):
    """On the real file system: every flush covers what was appended before it began."""
    log = Log.create(RealFileSystem(), tmp_path / "log", LogConfig(segment_bytes=20_000))
    done = threading.Event()
    trouble: list[str] = []

    def flush() -> None:
        while not done.is_set():
            before = log.log_end_offset
            if log.flush() < before:
                trouble.append(f"flushed less than {before}")

    flusher = threading.Thread(target=flush)
    flusher.start()
    try:
        for i in range(3000):
            log.append(batch(i, size=50, epoch=1 + i // 500))
            if i % 100 == 99:
                assert values_of(log, i - 20, max_bytes=1 << 16)[0] == i - 20
            if i % 1000 == 700:
                assert log.truncate_to(i + 1) == i + 1
            if i % 1000 == 900:
                log.flush()
                log.drop_prefix(i - 400)
    finally:
        done.set()
        flusher.join()
    assert not trouble
    log.close()
    again = Log.open(RealFileSystem(), tmp_path / "log")
    assert (again.log_start_offset, again.log_end_offset) == (2500, 3000)
    again.close()


# --- a disk that is full, or fails ----------------------------------------------------------------


@pytest.mark.parametrize("room", [0, 1, 60, 100])
def test_an_append_to_a_full_disk_fails_and_the_log_accepts_later_appends(log, disk, config, room):
    fill(log, 3)
    log.flush()
    disk.capacity_bytes = 0
    disk.capacity_bytes = (
        sum(len(disk.content(DIRECTORY / name)) for name in disk.listdir(DIRECTORY)) + room
    )
    with pytest.raises(DiskFullError) as caught:
        log.append(batch(3))
    assert caught.value.path.name == "00000000000000000000.log"
    assert len(disk.content(caught.value.path)) == 3 * len(batch(0)), "the part is cut off again"
    assert values_of(log, 0) == [0, 1, 2]
    log.record_recovery_point()
    disk.capacity_bytes = None
    fill(log, 1)
    log.close()
    assert Log.open(disk, DIRECTORY, config).log_end_offset == 4


def test_bytes_of_an_append_that_a_full_disk_cut_short_do_not_return_after_a_restart(
    log, disk, config
):
    """Its first batches were written whole; others of the same epoch take their offsets."""
    fill(log, 1, size=10)
    log.flush()
    used = sum(len(disk.content(DIRECTORY / name)) for name in disk.listdir(DIRECTORY))
    disk.capacity_bytes = used + 250
    with pytest.raises(DiskFullError):
        log.append(batch(1) + batch(2) + batch(3))
    for seed in range(20):
        rng = random.Random(seed)
        disk.crash(rng)
        assert Log.open(disk, DIRECTORY, config).log_end_offset == 1


def test_a_log_on_a_full_disk_opens_and_truncates(log, disk, config):
    fill(log, 20, epoch=1)
    fill(log, 1, epoch=2)
    log.flush()
    disk.crash(random.Random(1))
    disk.capacity_bytes = 0
    log = Log.open(disk, DIRECTORY, config)
    assert log.log_end_offset == 21
    assert log.truncate_to(15) == 15
    assert log.flush() == 15
    log.close()
    disk.capacity_bytes = None
    again = Log.open(disk, DIRECTORY, config)
    assert (again.log_end_offset, again.epochs) == (15, (EpochStart(1, 0),))


def test_an_append_fails_if_the_disk_has_no_space_for_a_new_segment(log, disk):
    fill(log, 5)
    disk.fail_next("create", error=errno.ENOSPC)
    with pytest.raises(DiskFullError):
        fill(log, 1)
    fill(log, 1)
    assert names(disk) == [0, 5]


def test_a_log_append_with_a_write_error_other_than_a_full_disk_raises_write_failed_error(
    log, disk
):
    disk.fail_next("write", error=errno.EIO)
    with pytest.raises(WriteFailedError):
        log.append(batch(0))
    assert log.append(batch(0)).end_offset == 1


def test_a_log_accepts_no_write_after_an_append_that_cannot_be_undone(log, disk):
    disk.fail_next("write")
    disk.fail_next("truncate")
    with pytest.raises(LogFailedError):
        log.append(batch(0))
    with pytest.raises(LogFailedError):
        log.append(batch(0))


@pytest.mark.parametrize("operation", ["unlink", "truncate", "fdatasync", "fsync_directory"])
def test_a_log_whose_truncation_failed_refuses_writes_and_recovers_when_reopened(
    log, disk, config, operation
):
    fill(log, 20)
    log.flush()
    disk.fail_next(operation)
    with pytest.raises(LogFailedError):
        log.truncate_to(8)
    with pytest.raises(LogFailedError):
        log.append(batch(8))
    disk.crash(random.Random(3))
    assert 8 <= Log.open(disk, DIRECTORY, config).log_end_offset <= 20


# --- deleting -------------------------------------------------------------------------------------


@pytest.mark.parametrize("offset", range(0, 21, 3))
def test_a_truncated_log_lacks_the_batches_above_the_offset_and_accepts_appends(
    log, disk, config, offset
):
    fill(log, 20, epoch=1)
    assert log.truncate_to(offset) == offset
    fill(log, 5, epoch=2)
    for opened in (log, None):
        if opened is None:
            log.close()
            opened = Log.open(disk, DIRECTORY, config)
        assert opened.log_end_offset == offset + 5
        assert opened.end_offset_for_epoch(1) == ((offset, 1) if offset else None)
        found, at = [], 0
        while records := opened.read(at, max_bytes=500):
            found += [b.header.leader_epoch for b in records.batches]
            at = records.end_offset
        assert found == [1] * offset + [2] * 5


def test_truncating_the_log_inside_a_batch_drops_the_whole_batch(log):
    fill(log, 3, records=4, size=20)
    assert log.truncate_to(6) == log.log_end_offset == 4


def test_truncating_the_log_past_its_end_has_no_effect_and_below_its_start_raises_an_error(log):
    fill(log, 20)
    log.flush()
    assert log.truncate_to(99) == 20
    log.drop_prefix(10)
    with pytest.raises(OffsetOutOfRangeError):
        log.truncate_to(9)


def test_dropping_a_log_prefix_deletes_whole_segments_but_never_the_active_segment(log, disk):
    fill(log, 20)
    log.flush()
    assert names(disk) == [0, 5, 10, 15]
    assert log.drop_prefix(9) == 1
    assert (names(disk), log.log_start_offset) == ([5, 10, 15], 9)
    with pytest.raises(OffsetOutOfRangeError):
        log.read(8, max_bytes=1)
    assert log.drop_prefix(7) == 0, "never backwards"
    assert log.drop_prefix(20) == 2
    assert (names(disk), log.log_start_offset) == ([15], 20)
    fill(log, 1)
    assert values_of(log, 20) == [20]
    with pytest.raises(OffsetOutOfRangeError):
        log.drop_prefix(21)


def test_opening_a_log_finishes_a_deletion_of_segments_that_was_interrupted(log, disk, config):
    fill(log, 20)
    log.flush()
    disk.fail_next("unlink")
    with pytest.raises(WriteFailedError):
        log.drop_prefix(12)
    assert names(disk) == [0, 5, 10, 15]
    again = Log.open(disk, DIRECTORY, config)
    assert names(disk) == [10, 15]
    assert again.log_start_offset == 12


def test_a_log_reset_to_a_snapshot_starts_at_the_snapshots_end(log, disk, config):
    fill(log, 20)
    log.flush()
    log.reset_to(100)
    assert (log.log_start_offset, log.log_end_offset, log.last_epoch) == (100, 100, None)
    assert (names(disk), names(disk, ".index"), names(disk, ".timeindex")) == ([100], [], [])
    fill(log, 2, epoch=9)
    log.close()
    again = Log.open(disk, DIRECTORY, config)
    assert (again.log_start_offset, again.log_end_offset, again.last_epoch) == (100, 102, 9)


def test_opening_a_log_finishes_an_interrupted_reset_of_the_log_to_a_snapshot(log, disk, config):
    fill(log, 20)
    log.flush()
    disk.fail_next("unlink")
    with pytest.raises(LogFailedError):
        log.reset_to(5)
    again = Log.open(disk, DIRECTORY, config)
    assert (again.log_start_offset, again.log_end_offset) == (5, 5)
    assert names(disk) == [5]


# --- the real thing -------------------------------------------------------------------------------


def test_a_log_on_the_real_file_system_keeps_its_offsets_when_it_is_reopened(tmp_path):
    files, directory = RealFileSystem(), tmp_path / "a" / "b" / "log"
    config = LogConfig(segment_bytes=1000, index_interval_bytes=300)
    log = Log.create(files, directory, config)
    fill(log, 50)
    log.flush()
    log.truncate_to(33)
    log.drop_prefix(12)
    fill(log, 10, epoch=4)
    log.close()

    torn = sorted(directory.glob("*.log"))[-1]
    with torn.open("ab") as file:
        file.write(batch(43, epoch=4)[:80])
    log = Log.open(files, directory, config)
    assert (log.log_start_offset, log.log_end_offset, log.last_epoch) == (12, 43, 4)
    assert files.free_bytes(directory) > 0
    log.reset_to(70)
    log.close()
    log = Log.open(files, directory, config)
    assert (log.log_start_offset, log.log_end_offset) == (70, 70)
    log.close()
    shutil.rmtree(directory)
    with pytest.raises(MissingLogError):
        Log.open(files, directory, config)


# --- the floor ------------------------------------------------------------------------------------


def test_the_committed_offset_recorded_by_the_log_never_exceeds_its_flushed_end(disk):
    """A power failure takes what was only known: a floor above it would be a false alarm."""
    log = Log.create(disk, DIRECTORY)
    fill(log, 3)
    log.flush()
    fill(log, 2)
    log.note_committed(5)
    log.record_recovery_point()
    assert log.floor == 3
    disk.crash(random.Random(2))
    log = Log.open(disk, DIRECTORY)
    assert log.floor == 3 <= log.log_end_offset


def test_the_log_records_a_higher_committed_offset_although_no_flush_has_happened_since(disk):
    log = Log.create(disk, DIRECTORY)
    fill(log, 3)
    log.flush()
    log.record_recovery_point()
    for committed in (1, 3):
        log.note_committed(committed)
        log.record_recovery_point()
        disk.crash(random.Random(committed))
        log = Log.open(disk, DIRECTORY)
        assert log.floor == committed
    before = disk.steps
    log.note_committed(2)  # nothing is known before the node hears of a commit again
    log.record_recovery_point()
    assert (log.floor, disk.steps) == (3, before), "and nothing is written"


def test_log_truncations_and_resets_do_not_lower_the_recorded_committed_offset(
    disk,
):
    log = Log.create(disk, DIRECTORY)
    fill(log, 9)
    log.flush()
    log.note_committed(6)
    log.record_recovery_point()
    log.truncate_to(7)
    log.drop_prefix(4)
    log.reset_to(5)
    assert log.floor == 6
    log.close()
    log = Log.open(disk, DIRECTORY)
    assert (log.floor, log.log_start_offset, log.log_end_offset) == (6, 5, 5)
    log.forget_floor()
    log.close()
    assert Log.open(disk, DIRECTORY).floor == 0
