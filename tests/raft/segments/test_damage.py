"""Every kind of damage, and which side of the recovery point it lies on.

Source: docs/design/quorum.md#recovery-point.
"""

from __future__ import annotations

import logging
import random
import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from raft.segments import (
    CorruptFileError,
    CorruptLogError,
    EpochStart,
    Log,
    LogConfig,
    LogFailedError,
    StorageError,
)
from raft.segments.index import OffsetIndex, TimeIndex
from raft.segments.recovery_point import RECOVERY_POINT_FILE, LogState, RecoveryPointFile
from raft.segments.segment import segment_name
from records.batch_writer import build_batch
from records.errors import RecordError
from tests.fuzz.mutation import with_batch_checksums
from tests.raft.segments.conftest import batch, fill, values_of
from tests.raft.segments.model import DIRECTORY
from tests.simulation.disk import SimulatedDisk

SIZE = len(batch(0))
FIELDS = {
    "base offset": 0,
    "length": 8,
    "magic": 16,
    "crc": 17,
    "attributes": 21,
    "last offset delta": 23,
    "base timestamp": 27,
    "max timestamp": 35,
    "producer id": 43,
    "producer epoch": 51,
    "base sequence": 53,
    "record count": 57,
    "records": 61,
}


def path(base: int, suffix: str = ".log"):
    return DIRECTORY / segment_name(base, suffix)


def written(log: Log, *, recovery_point: int) -> None:
    """Twenty batches in segments of five, flushed; but known to be only up to a point."""
    fill(log, 12, epoch=3)
    fill(log, 8, epoch=6)
    log.close()
    file = RecoveryPointFile.open(log._files, DIRECTORY)
    file.write(LogState(0, recovery_point))


# --- in the log -----------------------------------------------------------------------------------


@pytest.mark.parametrize("field", FIELDS)
def test_log_recovery_cuts_an_invalid_batch_above_the_recovery_point_with_one_log_line(
    log, disk, config, caplog, field
):
    written(log, recovery_point=10)
    disk.flip_bit(path(10), 2 * SIZE + FIELDS[field], bit=1)
    opened = Log.open(disk, DIRECTORY, config)
    assert opened.log_end_offset == 12
    assert values_of(opened, 10) == [10, 11]
    (line,) = caplog.records
    assert line.levelno == logging.WARNING
    assert f"position={2 * SIZE} end_offset=12" in line.getMessage()
    assert "segments=1" in line.getMessage(), "what followed it was deleted"
    fill(opened, 1, epoch=7)


@pytest.mark.parametrize("field", FIELDS)
def test_an_invalid_batch_below_the_recovery_point_stops_the_node(log, disk, config, field):
    written(log, recovery_point=20)
    before = {name: disk.content(DIRECTORY / name) for name in disk.listdir(DIRECTORY)}
    disk.flip_bit(path(15), 2 * SIZE + FIELDS[field], bit=1)
    with pytest.raises(CorruptLogError) as caught:
        Log.open(disk, DIRECTORY, config)
    error = caught.value
    assert (error.path, error.position, error.offset) == (path(15), 2 * SIZE, 17)
    assert str(path(15)) in str(error)
    disk.flip_bit(path(15), 2 * SIZE + FIELDS[field], bit=1)
    after = {name: disk.content(DIRECTORY / name) for name in disk.listdir(DIRECTORY)}
    assert {n: c for n, c in after.items() if n.endswith(".log")} == {
        n: c for n, c in before.items() if n.endswith(".log")
    }, "a log that is refused is left as it was"


@pytest.mark.parametrize(("bit", "found_at"), [(2, 12), (3, 13)])
def test_log_recovery_detects_a_damaged_leader_epoch_by_the_epochs_of_adjacent_batches(
    log, disk, config, bit, found_at
):
    """It lies outside the checksum: 6 became 2, older than what precedes, or 14, newer than what
    follows. (In the very last batch of a log nothing can tell. So it is in Kafka's format.)"""
    written(log, recovery_point=20)
    disk.unlink(path(10, ".index"))  # so that the segment is read
    disk.flip_bit(path(10), 2 * SIZE + 15, bit=bit)
    with pytest.raises(CorruptLogError) as caught:
        Log.open(disk, DIRECTORY, config)
    assert caught.value.offset == found_at


@pytest.mark.parametrize("size", range(0, 5 * SIZE, 37))
def test_log_recovery_cuts_an_incomplete_batch_after_the_last_valid_batch(log, disk, config, size):
    written(log, recovery_point=15)
    disk.replace(path(15), disk.content(path(15))[:size])
    opened = Log.open(disk, DIRECTORY, config)
    assert opened.log_end_offset == 15 + size // SIZE
    assert len(disk.content(path(15))) == size // SIZE * SIZE


@pytest.mark.parametrize("tail", [bytes(1), bytes(5000), b"\xff" * 500, batch(7), batch(20)[:-1]])
def test_log_recovery_cuts_arbitrary_bytes_after_the_last_valid_batch(log, disk, config, tail):
    written(log, recovery_point=20)
    disk.replace(path(15), disk.content(path(15)) + tail)
    assert Log.open(disk, DIRECTORY, config).log_end_offset == 20
    assert len(disk.content(path(15))) == 5 * SIZE


def test_a_log_that_ends_below_its_recovery_point_stops_the_node(log, disk, config):
    written(log, recovery_point=20)
    disk.replace(path(15), disk.content(path(15))[: 3 * SIZE])
    with pytest.raises(CorruptLogError, match="was flushed up to 20") as caught:
        Log.open(disk, DIRECTORY, config)
    assert (caught.value.position, caught.value.offset) == (3 * SIZE, 18)


@pytest.mark.parametrize(("missing", "expected"), [(0, 0), (5, 5), (10, 10), (15, 15)])
def test_a_missing_segment_below_the_recovery_point_stops_the_node(
    log, disk, config, missing, expected
):
    written(log, recovery_point=20)
    disk.unlink(path(missing))
    with pytest.raises(CorruptLogError) as caught:
        Log.open(disk, DIRECTORY, config)
    assert caught.value.offset == expected


def test_log_recovery_cuts_the_log_at_a_missing_segment_above_the_recovery_point(
    log, disk, config, caplog
):
    written(log, recovery_point=5)
    disk.unlink(path(10))
    assert Log.open(disk, DIRECTORY, config).log_end_offset == 10
    assert [n for n in disk.listdir(DIRECTORY) if n.endswith(".log")] == [
        segment_name(0),
        segment_name(5),
    ]
    assert "the next segment starts at 15" in caplog.text


def test_a_log_read_detects_damage_in_a_segment_that_recovery_did_not_scan(log, disk, config):
    written(log, recovery_point=20)
    disk.flip_bit(path(5), SIZE + 70)
    opened = Log.open(disk, DIRECTORY, config)
    assert values_of(opened, 5, max_bytes=SIZE) == [5]
    with pytest.raises(CorruptLogError) as caught:
        opened.read(6, max_bytes=1000)
    assert (caught.value.path, caught.value.position, caught.value.offset) == (path(5), SIZE, 6)


def test_the_log_refuses_a_batch_length_beyond_the_end_of_the_file_without_allocating_memory(
    log, disk, config
):
    written(log, recovery_point=20)
    content = bytearray(disk.content(path(15)))
    content[SIZE + 8 : SIZE + 12] = bytes.fromhex("063ffff4")  # 100 MiB, as large as may be
    disk.replace(path(15), bytes(content))
    with pytest.raises(CorruptLogError, match="needs 104857600 bytes") as caught:
        Log.open(disk, DIRECTORY, config)
    assert caught.value.position == SIZE


@pytest.mark.parametrize("read", [Log.read, Log.read_data])
@pytest.mark.parametrize("asked", [1, 3])
def test_a_log_read_detects_a_batch_length_that_was_damaged_while_the_log_was_open(
    disk, read, asked
):
    log = Log.create(disk, DIRECTORY)  # too short for an index entry behind the damage
    fill(log, 5)
    log.flush()
    content = bytearray(disk.content(path(0)))
    content[SIZE + 8 : SIZE + 12] = (SIZE * 1000).to_bytes(4, "big")
    disk.replace(path(0), bytes(content))
    with pytest.raises(CorruptLogError) as caught:
        read(log, asked, max_bytes=1000, end_offset=5)
    assert (caught.value.path, caught.value.position, caught.value.offset) == (path(0), SIZE, 1)


def test_a_log_refuses_writes_after_a_truncation_that_found_damage(disk):
    log = Log.create(disk, DIRECTORY)
    fill(log, 5)
    log.flush()
    content = bytearray(disk.content(path(0)))
    content[SIZE : SIZE + 8] = bytes(8)  # the second batch's offset; the search passes over it
    disk.replace(path(0), bytes(content))
    with pytest.raises(LogFailedError, match=r"truncation: .* expected offset 1"):
        log.truncate_to(3)
    with pytest.raises(LogFailedError):
        log.append(batch(3))


# --- in the files beside it -----------------------------------------------------------------------


INDEX_DAMAGE = {
    "missing": None,
    "empty": lambda _: b"",
    "cut inside an entry": lambda content: content[:-1],
    "an entry short": lambda content: content[:-12],
    "zeros, as upstream preallocates": lambda content: content + bytes(48),
    "garbage": lambda content: random.Random(1).randbytes(max(24, len(content))),
    "of another segment": lambda _: bytes.fromhex("00000001 00000020"),
    "pointing past the log": lambda _: bytes.fromhex("00000001 7fffffff"),
    "all bits flipped": lambda content: bytes(255 - byte for byte in content),
}


@pytest.mark.parametrize("suffix", [".index", ".timeindex"])
@pytest.mark.parametrize("damage", INDEX_DAMAGE)
def test_log_recovery_rebuilds_an_index_that_is_missing_or_stale(log, disk, config, suffix, damage):
    written(log, recovery_point=20)
    whole = {name: disk.content(DIRECTORY / name) for name in disk.listdir(DIRECTORY)}
    for base in (5, 15):  # one that is trusted, one that is scanned
        if damage == "missing":
            disk.unlink(path(base, suffix))
        else:
            disk.replace(path(base, suffix), INDEX_DAMAGE[damage](disk.content(path(base, suffix))))
    opened = Log.open(disk, DIRECTORY, config)
    assert [values_of(opened, offset, max_bytes=1) for offset in range(20)] == [
        [offset] for offset in range(20)
    ]
    opened.close()
    if damage in ("missing", "cut inside an entry", "garbage", "all bits flipped"):
        for base in (5, 15):
            name = segment_name(base, suffix)
            assert disk.content(DIRECTORY / name) == whole[name]


def test_a_log_lookup_rebuilds_an_index_with_wrong_entries_in_its_middle(disk):
    """Its last entry fits, so opening believes it; a lookup does not, and makes it anew."""
    config = LogConfig(segment_bytes=2000, index_interval_bytes=100)
    log = Log.create(disk, DIRECTORY, config)
    fill(log, 30)
    log.close()
    content = bytearray(disk.content(path(0, ".index")))
    content[7] += 1  # position of the first entry
    disk.replace(path(0, ".index"), bytes(content))
    opened = Log.open(disk, DIRECTORY, config)
    assert values_of(opened, 2, max_bytes=1) == [2]
    assert values_of(opened, 1, max_bytes=1) == [1]


def test_log_recovery_removes_index_files_without_a_segment_file(log, disk, config):
    written(log, recovery_point=20)
    disk.replace(path(77, ".index"), bytes(8))
    disk.replace(path(77, ".timeindex"), bytes(12))
    disk.replace(path(15, ".index.tmp"), bytes(12))
    Log.open(disk, DIRECTORY, config)
    assert not disk.exists(path(77, ".index"))
    assert not disk.exists(path(77, ".timeindex"))
    assert not disk.exists(path(15, ".index.tmp")), "left by a crash"


@pytest.mark.parametrize(
    "text",
    [
        None,
        "",
        "garbage",
        "0\n0\n",
        "0\n1\n3 0\n",
        "0\n1\n6 0\n",
        "0\n2\n3 0\n6 11\n",
        "0\n2\n3 0\n6 13\n",
        "0\n2\n3 1\n6 12\n",
        "0\n3\n3 0\n4 7\n6 12\n",
        "0\n3\n3 0\n6 12\n9 99\n",
    ],
)
def test_log_recovery_rebuilds_a_leader_epoch_checkpoint_that_contradicts_the_log(
    log, disk, config, text
):
    written(log, recovery_point=20)
    checkpoint = DIRECTORY / "leader-epoch-checkpoint"
    assert disk.content(checkpoint) == b"0\n2\n3 0\n6 12\n"
    if text is None:
        disk.unlink(checkpoint)
    else:
        disk.replace(checkpoint, text.encode())
    opened = Log.open(disk, DIRECTORY, config)
    assert opened.epochs == (EpochStart(3, 0), EpochStart(6, 12))
    opened.close()
    assert disk.content(checkpoint) == b"0\n2\n3 0\n6 12\n"


def test_log_recovery_scans_a_log_without_a_recovery_point_completely(log, disk, config, caplog):
    """Another's log, or one restored from a copy: nothing is known to have been flushed."""
    written(log, recovery_point=20)
    disk.unlink(DIRECTORY / RECOVERY_POINT_FILE)
    disk.flip_bit(path(5), 70)
    assert Log.open(disk, DIRECTORY, config).log_end_offset == 5
    assert "recovery_point=missing" in caplog.text


def test_a_log_with_an_unreadable_recovery_point_does_not_open(log, disk, config):
    written(log, recovery_point=20)
    disk.replace(DIRECTORY / RECOVERY_POINT_FILE, b"?" * 8192)
    with pytest.raises(CorruptFileError):
        Log.open(disk, DIRECTORY, config)


@settings(max_examples=300, deadline=None)
@given(seed=st.integers(0, 2**32), recovery_point=st.integers(0, 20), count=st.integers(1, 4))
def test_log_recovery_repairs_any_damage_or_reports_it_with_an_error(seed, recovery_point, count):
    """Any file, any bytes: a typed error, or a log whose every offset reads as it was written."""
    rng = random.Random(seed)
    disk = SimulatedDisk()
    config = LogConfig(segment_bytes=1000, index_interval_bytes=300)
    log = Log.create(disk, DIRECTORY, config)
    written(log, recovery_point=recovery_point)
    for _ in range(count):
        name = rng.choice(disk.listdir(DIRECTORY))
        content = bytearray(disk.content(DIRECTORY / name))
        at = rng.randrange(len(content) + 1)
        match rng.randrange(4):
            case 0:
                del content[at:]
            case 1:
                content[at : at + 4] = rng.randbytes(4)
            case 2:
                content[at:at] = rng.randbytes(rng.randrange(1, 200))
            case _:
                del content[at : at + rng.randrange(1, 50)]
        disk.replace(DIRECTORY / name, bytes(content))
    try:
        opened = Log.open(disk, DIRECTORY, config)
        offset = opened.log_start_offset
        while records := opened.read(offset, max_bytes=500):
            for found in records.batches:
                expected = batch(found.header.base_offset, epoch=found.header.leader_epoch)
                assert bytes(found.view) == expected
            offset = records.end_offset
        assert offset == opened.log_end_offset
    except (RecordError, StorageError):
        pass


# --- golden bytes of the indexes ------------------------------------------------------------------


def test_offset_and_time_index_entries_have_their_golden_bytes(disk):
    disk.make_directory(DIRECTORY)
    offsets, times = OffsetIndex(path(100, ".index"), 100), TimeIndex(path(100, ".timeindex"), 100)
    offsets.append(105, 4200)
    offsets.append(110, 9000)
    times.maybe_append(1_700_000_000_000, 104)
    times.maybe_append(1_700_000_000_000, 109)  # not newer: says nothing
    for index in (offsets, times):
        index.write_out(disk, durably=True)
    assert disk.content(path(100, ".index")) == bytes.fromhex(
        "00000005 00001068"  # last offset of the batch, relative to 100; its first byte
        "0000000a 00002328"
    )
    assert disk.content(path(100, ".timeindex")) == bytes.fromhex(
        "0000018bcfe56800 00000004"  # time in ms; offset of the batch that has it, relative
    )
    assert [offsets.lookup(offset) for offset in (100, 104, 105, 109, 110, 999)] == [
        0,
        0,
        4200,
        4200,
        9000,
        9000,
    ]


def test_a_log_opens_whose_batches_name_more_records_than_an_index_entry_can() -> None:
    """A batch with a right checksum may claim 2 ** 31 offsets. Found by tests/fuzz."""
    config, span = LogConfig(index_interval_bytes=100), 2**31 - 1
    disk, data = SimulatedDisk(), bytearray()
    for number in range(4):
        rows = [(None, b"value" * 40, 0, [])]
        far = bytearray(build_batch(rows, base_offset=number * span, leader_epoch=1))
        struct.pack_into(">i", far, FIELDS["last offset delta"], span - 1)
        data += with_batch_checksums(bytes(far))
    log = Log.create(disk, DIRECTORY, config)
    log.append(bytes(data))
    log.flush()
    log.close()
    disk.replace(path(0, ".index"), b"")
    opened = Log.open(disk, DIRECTORY, config)
    assert opened.log_end_offset == 4 * span
    found = opened.read(span, max_bytes=1)
    assert found is not None
    assert found.end_offset == 2 * span
    opened.close()
