"""Whatever is wrong with a checkpoint is found, with file, position and reason.

Source: docs/design/snapshots.md#publishing-and-installing.
"""

from __future__ import annotations

import pytest

from records.batch import HEADER_SIZE_BYTES, TRANSACTIONAL, iter_batches
from records.batch_writer import build_batch, build_value_batch
from records.control import LeaderChangeMessage, SnapshotFooterRecord, SnapshotHeaderRecord
from records.errors import RecordError, UnknownRecordError
from records.types import OffsetAndEpoch
from snapshot import DamagedFileError, Origin, TruncatedFileError, checkpoint_name
from tests.snapshot.checkpoints import (
    DIRECTORY,
    HEADER,
    KRAFT_VERSION,
    PATH,
    TIME,
    VOTERS,
    as_kafka_closes,
    closed,
    control_batch,
    data_batch,
    header_batch,
    verified,
)

GOOD = header_batch(KRAFT_VERSION, VOTERS) + data_batch(3, base_offset=3)
LEADER = LeaderChangeMessage(leader_id=1, voters=(), granting_voters=())
HEADER_BYTES = len(header_batch())
NO_OP = b"\x01\x14\x00\x00"


def refused(data: bytes, path=PATH) -> DamagedFileError:
    with pytest.raises(DamagedFileError) as caught:
        verified(data, path)
    error = caught.value
    assert error.path == path
    assert str(path) in str(error)
    assert str(error.position) in str(error)
    assert error.reason in str(error)
    return error


def test_an_undamaged_checkpoint_file_passes_verification():
    assert verified(closed(GOOD)).origin is Origin.ESKER


@pytest.mark.parametrize(
    ("content", "position", "reason"),
    [
        (data_batch(3, base_offset=0), 0, "begins with data"),
        (control_batch(KRAFT_VERSION, base_offset=0), 0, "does not begin with a snapshot header"),
        (control_batch(LEADER, base_offset=0), 0, "does not begin with a snapshot header"),
        (header_batch(HEADER), 0, "unexpected SnapshotHeaderRecord"),
        (header_batch(LEADER), 0, "unexpected LeaderChangeMessage"),
        (header_batch(KRAFT_VERSION, KRAFT_VERSION), 0, "unexpected KRaftVersionRecord"),
        (header_batch() + control_batch(LEADER, base_offset=1), HEADER_BYTES, "in the middle"),
        (header_batch() + control_batch(VOTERS, base_offset=1), HEADER_BYTES, "in the middle"),
        (header_batch() + data_batch(1, base_offset=2), HEADER_BYTES, "base offset 2, expected 1"),
        (header_batch() + data_batch(1, base_offset=0), HEADER_BYTES, "base offset 0, expected 1"),
        (header_batch() + data_batch(1, base_offset=1, epoch=2), HEADER_BYTES, "epoch 2"),
        (header_batch(epoch=4), 0, "epoch 4, expected 3"),
    ],
)
def test_verification_refuses_a_misplaced_batch_and_names_its_position(content, position, reason):
    error = refused(closed(content))
    assert error.position == position
    assert reason in error.reason


@pytest.mark.parametrize(
    ("lie", "reason"),
    [
        ({"record_count": 5}, "6 records, the footer says 5"),
        ({"record_count": -1}, "6 records, the footer says -1"),
        ({"content_crc": 1}, "the footer says 0x00000001"),
        ({"content_crc": -1}, "crc of all before the footer"),
    ],
)
def test_verification_refuses_a_checkpoint_footer_with_a_wrong_count_or_checksum(lie, reason):
    error = refused(closed(GOOD, **lie))
    assert error.position == len(GOOD)
    assert reason in error.reason


def test_verification_reports_a_checkpoint_without_a_footer_as_truncated():
    error = refused(GOOD)
    assert isinstance(error, TruncatedFileError)
    assert (error.position, error.reason) == (len(GOOD), "ends without a snapshot footer")


def test_verification_reports_an_empty_checkpoint_file_as_truncated():
    error = refused(b"")
    assert isinstance(error, TruncatedFileError)
    assert "header" in error.reason


@pytest.mark.parametrize("tail", [b"\0", b"\xff" * 100, header_batch(), closed(GOOD)])
def test_verification_refuses_a_checkpoint_with_bytes_after_its_footer(tail):
    for whole in (closed(GOOD), as_kafka_closes(GOOD)):
        assert refused(whole + tail).reason == f"{len(tail)} bytes after the footer"


def test_verification_refuses_a_checkpoint_footer_batch_with_a_second_record():
    both = control_batch(SnapshotFooterRecord(), SnapshotFooterRecord(), base_offset=6)
    assert "in the middle" in refused(GOOD + both).reason


def test_verification_refuses_a_checkpoint_joined_from_two_downloads():
    """Every batch is sound and in place: only the footer's checksum can tell."""
    later = SnapshotHeaderRecord(last_contained_log_timestamp=TIME + 1)
    mine = closed(GOOD)
    other = closed(
        control_batch(later, KRAFT_VERSION, VOTERS, base_offset=0) + data_batch(9, base_offset=3)
    )
    first, *_ = iter_batches(other)
    joined = bytes(first.view) + mine[len(first.view) :]
    assert len(joined) == len(mine)
    assert verified(mine).origin is verified(other).origin is Origin.ESKER
    assert "crc of all before the footer" in refused(joined).reason


def test_verification_refuses_a_checkpoint_whose_file_name_has_another_epoch():
    other = DIRECTORY / checkpoint_name(OffsetAndEpoch(57, 4))
    assert "epoch 3, expected 4" in refused(closed(GOOD), other).reason
    unnamed = DIRECTORY / "copy.checkpoint"
    assert verified(closed(GOOD), unnamed).epoch == 3


def test_verification_refuses_a_checkpoint_with_a_transactional_batch():
    values = [(None, NO_OP, TIME, ())]
    marked = bytes(build_batch(values, base_offset=1, leader_epoch=3, attributes=TRANSACTIONAL))
    assert "no meaning" in refused(closed(header_batch() + marked)).reason


def test_verification_refuses_a_checkpoint_with_a_malformed_record_and_names_its_offset():
    for value, cause in ((b"\x01\x02\x00", RecordError), (b"\x01\x8f\x4e\x00", UnknownRecordError)):
        batch = build_value_batch([NO_OP, value], base_offset=1, leader_epoch=3, timestamp=TIME)
        error = refused(closed(header_batch() + bytes(batch)))
        assert (error.position, error.offset) == (HEADER_BYTES, 2)
        assert isinstance(error.__cause__, cause)


@pytest.mark.parametrize(
    ("record", "reason"),
    [
        ((b"", NO_OP, TIME, ()), "with a key"),
        ((None, b"", TIME, ()), "without a value"),
        ((None, None, TIME, ()), "without a value"),
        ((None, NO_OP, TIME, (("h", b""),)), "with headers"),
        ((None, NO_OP, TIME + 1, ()), "a time of its own"),
    ],
)
def test_verification_refuses_a_checkpoint_with_a_record_that_kafka_cannot_read(record, reason):
    batch = build_batch([(None, NO_OP, TIME, ()), record], base_offset=1, leader_epoch=3)
    error = refused(closed(header_batch() + bytes(batch)))
    assert (error.position, error.offset) == (HEADER_BYTES, 2)
    assert reason in error.reason


@pytest.mark.parametrize("close", [closed, as_kafka_closes])
def test_verification_refuses_a_checkpoint_cut_at_any_byte(close):
    whole = close(GOOD)
    for size in range(len(whole)):
        assert isinstance(refused(whole[:size]), TruncatedFileError), f"cut at {size}"


@pytest.mark.parametrize("close", [closed, as_kafka_closes])
def test_verification_detects_a_flipped_bit_anywhere_in_a_checkpoint(close):
    whole = close(GOOD)
    starts = [batch.position for batch in iter_batches(whole)]
    for i in range(len(whole)):
        for bit in (0, 3, 7):
            data = bytearray(whole)
            data[i] ^= 1 << bit
            error = refused(bytes(data))
            assert error.position == max(start for start in starts if start <= i), f"byte {i}"


def test_a_checkpoint_of_only_a_header_and_a_footer_passes_verification():
    found = verified(closed(header_batch()))
    assert (found.record_count, found.batch_count) == (0, 2)
    assert found.size_bytes > 2 * HEADER_SIZE_BYTES
