"""Record batch v2: golden bytes, round trips, and kafka-python as an independent judge. KIP-98."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kafka.record.default_records import DefaultRecordBatch, DefaultRecordBatchBuilder

from records.batch import (
    CONTROL,
    ControlType,
    Record,
    iter_batches,
    iter_records,
    parse_header,
    read_batch,
)
from records.batch_writer import (
    build_batch,
    build_control_batch,
    build_value_batch,
    stamp,
    stamp_log_append_time,
)
from records.compression import Compression
from records.errors import (
    BatchChecksumError,
    BatchTooLargeError,
    CorruptBatchError,
    IncompleteBatchError,
    MalformedMessageError,
)
from records.frame import control_record_type

INT64 = st.integers(-(1 << 62), (1 << 62) - 1)
MAYBE_BYTES = st.none() | st.binary(max_size=200)
RECORDS = st.lists(
    st.tuples(
        MAYBE_BYTES,
        MAYBE_BYTES,
        st.integers(0, 1 << 45),
        st.lists(st.tuples(st.text(max_size=20), MAYBE_BYTES), max_size=3),
    ),
    min_size=1,
    max_size=20,
)


def plain(batch) -> list[tuple]:
    """The records of a batch with bytes in the place of views."""

    def data(value):
        return None if value is None else bytes(value)

    return [
        (
            record.offset,
            record.timestamp,
            data(record.key),
            data(record.value),
            [(key, data(value)) for key, value in record.headers],
        )
        for record in iter_records(read_batch(batch))
    ]


def test_a_metadata_batch_has_its_golden_bytes():
    batch = build_value_batch([b"ab", b""], base_offset=258, leader_epoch=7, timestamp=1000)
    assert batch == bytes.fromhex(
        "0000000000000102"  # base offset
        "00000041"  # length of what follows: 65 = 49 of header + 16 of records
        "00000007"  # leader epoch
        "02"  # magic
        "f8566758"  # CRC-32C of all that follows
        "0000"  # attributes: no compression, CreateTime, not transactional, not control
        "00000001"  # last offset delta
        "00000000000003e8"  # base timestamp
        "00000000000003e8"  # max timestamp
        "ffffffffffffffff ffff ffffffff"  # no producer id, epoch, base sequence
        "00000002"  # record count
        "10"  # first record: 8 bytes (zigzag)
        "00 00 00"  # attributes, timestamp delta 0, offset delta 0
        "01"  # key length -1: null
        "04 6162"  # value length 2
        "00"  # no headers
        "0c 00 00 02 01 00 00"  # second record: 6 bytes, offset delta 1, empty value
    )


def test_a_control_batch_has_its_golden_bytes():
    batch = build_control_batch(
        [(ControlType.SNAPSHOT_FOOTER, bytes(3))], base_offset=0, leader_epoch=1, timestamp=5
    )
    assert batch[21:23] == bytes.fromhex("0020"), "attributes: bit 5 says control"
    assert batch[61:] == bytes.fromhex(
        "1a"  # 13 bytes
        "00 00 00"  # attributes, timestamp delta, offset delta
        "08"  # key of 4 bytes
        "0000 0004"  # version 0, type 4: SnapshotFooter
        "06 000000"  # value of 3 bytes
        "00"  # no headers
    )
    (record,) = iter_records(read_batch(batch))
    assert control_record_type(record.key) == ControlType.SNAPSHOT_FOOTER


def test_a_record_with_every_field_has_its_golden_bytes():
    batch = build_batch(
        [(b"k", None, 100, ()), (None, b"v", 97, [("h", b"1"), ("n", None)])],
        base_offset=0,
        leader_epoch=0,
        producer_id=9,
        producer_epoch=1,
        base_sequence=5,
    )
    assert batch[27:61] == bytes.fromhex(
        "0000000000000064"  # base timestamp: of the first record
        "0000000000000064"  # max timestamp: of either
        "0000000000000009 0001 00000005"  # producer
        "00000002"
    )
    assert batch[61:] == bytes.fromhex(
        "0e 00 00 00 02 6b 01 00"  # key "k", null value
        "1c 00 05 02 01 02 76"  # timestamp delta -3, offset delta 1, null key, value "v"
        "04 02 68 02 31 02 6e 01"  # two headers: h = "1", n = null
    )


@given(records=RECORDS, offset=st.integers(0, 1 << 62), codec=st.sampled_from(list(Compression)))
def test_a_record_batch_that_is_built_and_read_again_has_equal_records(records, offset, codec):
    batch = build_batch(records, base_offset=offset, leader_epoch=3, compression=codec)
    assert plain(batch) == [
        (offset + i, timestamp, key, value, headers)
        for i, (key, value, timestamp, headers) in enumerate(records)
    ]
    header = parse_header(batch)
    assert header.is_dense
    assert (header.end_offset, header.leader_epoch) == (offset + len(records), 3)
    assert header.compression is codec


@given(values=st.lists(st.binary(max_size=5000), min_size=1, max_size=30), base=st.integers(0, 99))
def test_build_value_batch_and_build_batch_write_the_same_bytes(values, base):
    fast = build_value_batch(values, base_offset=base, leader_epoch=2, timestamp=77)
    general = build_batch(
        [(None, value, 77, ()) for value in values], base_offset=base, leader_epoch=2
    )
    assert fast == general


@given(records=RECORDS)
def test_kafka_python_decodes_the_batches_that_esker_builds(records):
    batch = DefaultRecordBatch(bytes(build_batch(records, base_offset=40, leader_epoch=3)))
    assert batch.validate_crc()
    assert [(r.offset, r.timestamp, r.key, r.value, r.headers) for r in batch] == [
        (40 + i, timestamp, key, value, headers)
        for i, (key, value, timestamp, headers) in enumerate(records)
    ]


@given(records=RECORDS, codec=st.sampled_from([0, 1]))
def test_esker_decodes_the_batches_that_kafka_python_builds(records, codec):
    builder = DefaultRecordBatchBuilder(
        magic=2,
        compression_type=codec,
        is_transactional=True,
        producer_id=123,
        producer_epoch=4,
        base_sequence=6,
        batch_size=1 << 20,
    )
    for i, (key, value, timestamp, headers) in enumerate(records):
        builder.append(i, timestamp, key, value, headers)
    batch = builder.build()
    assert plain(batch) == [
        (i, timestamp, key, value, headers)
        for i, (key, value, timestamp, headers) in enumerate(records)
    ]
    header = parse_header(batch)
    assert header.is_transactional
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (123, 4, 6)


def test_stamping_a_batch_with_its_offset_does_not_change_its_checksum():
    batch = build_value_batch([b"a"], base_offset=0, leader_epoch=0, timestamp=1)
    crc = parse_header(batch).crc
    stamp(batch, base_offset=1 << 40, leader_epoch=12)
    header = read_batch(batch).header
    assert (header.base_offset, header.leader_epoch, header.crc) == (1 << 40, 12, crc)


def test_the_log_append_time_replaces_the_timestamp_of_every_record_in_a_batch():
    """KIP-32. The deltas stay in the records and are ignored; kafka-python agrees."""
    batch = build_batch([(None, b"a", 10, ()), (None, b"b", 99, ())], base_offset=0, leader_epoch=0)
    stamp_log_append_time(batch, timestamp=5000)
    assert [record.timestamp for record in iter_records(read_batch(batch))] == [5000, 5000]
    judge = DefaultRecordBatch(bytes(batch))
    assert judge.validate_crc()
    assert [record.timestamp for record in judge] == [5000, 5000]


def test_iterating_over_batches_and_their_records_copies_no_bytes_of_the_batches():
    first = build_value_batch([b"a", b"b"], base_offset=0, leader_epoch=1, timestamp=1)
    second = build_value_batch([b"c"], base_offset=2, leader_epoch=1, timestamp=1)
    buffer = first + second
    batches = list(iter_batches(buffer))
    assert [batch.position for batch in batches] == [0, len(first)]
    assert [batch.header.base_offset for batch in batches] == [0, 2]
    assert all(batch.view.obj is buffer for batch in batches)
    values = [record.value for batch in batches for record in iter_records(batch)]
    assert all(value.obj is buffer for value in values)


def test_reading_a_truncated_batch_reports_the_batch_as_incomplete_and_not_as_corrupt():
    first = build_value_batch([b"a"], base_offset=0, leader_epoch=1, timestamp=1)
    buffer = bytes(first + build_value_batch([b"b"], base_offset=1, leader_epoch=1, timestamp=1))
    for size in range(len(first) + 1, len(buffer)):
        assert len(list(iter_batches(buffer[:size], allow_partial_tail=True))) == 1
        with pytest.raises(IncompleteBatchError) as caught:
            list(iter_batches(buffer[:size]))
        assert caught.value.position == len(first)


def test_the_batch_reader_detects_a_flipped_bit_under_the_checksum_of_a_batch():
    """Only base offset (0-7), length (8-11) and leader epoch (12-15) are not covered by the CRC."""
    batch = bytes(build_value_batch([b"abc"], base_offset=4, leader_epoch=1, timestamp=1))
    for position in range(len(batch)):
        for bit in range(8):
            damaged = bytearray(batch)
            damaged[position] ^= 1 << bit
            if position < 8 or 12 <= position < 16:
                if damaged[0] < 128:  # a negative base offset is refused as such
                    read_batch(damaged)
                continue
            with pytest.raises((CorruptBatchError, IncompleteBatchError)):
                read_batch(damaged)


@pytest.mark.parametrize(
    ("position", "field", "reason"),
    [
        (0, "ffffffffffffffff", "offsets -1"),
        (0, "7fffffffffffffff", "offsets 9223372036854775807"),
        (8, "00000030", "length 48"),
        (8, "ffffffff", "length -1"),
        (8, "7fffffff", "length 2147483647"),
        (16, "01", "magic 1"),
        (23, "ffffffff", "offsets 4 . -1"),
        (57, "ffffffff", "-1 records"),
        (57, "7fffffff", "2147483647 records"),
    ],
)
def test_the_batch_reader_refuses_a_contradictory_header_before_it_verifies_the_checksum(
    position, field, reason
):
    batch = build_value_batch([b"abc"], base_offset=4, leader_epoch=1, timestamp=1)
    value = bytes.fromhex(field)
    batch[position : position + len(value)] = value
    with pytest.raises(CorruptBatchError, match=reason) as caught:
        read_batch(batch)
    assert not isinstance(caught.value, BatchChecksumError)
    assert caught.value.position == 0


def test_the_batch_reader_refuses_a_header_with_a_count_of_more_records_than_bytes():
    batch = build_value_batch([b""] * 3, base_offset=0, leader_epoch=1, timestamp=1)
    batch[23:27] = batch[57:61] = bytes.fromhex("00ffffff")
    batch[26] = 0xFE
    with pytest.raises(CorruptBatchError, match="cannot fit"):
        parse_header(batch)


def reseal(batch: bytearray) -> bytearray:
    """Give a batch whose records were tampered with a checksum that matches."""
    stamp_log_append_time(batch, timestamp=1)
    return batch


@pytest.mark.parametrize(
    ("records", "reason"),
    [
        ("0c 00 00 00 01 00 80", "ends inside a record"),
        ("0e 00 00 00 01 00 00", "record of 7 bytes, 6 are left"),
        ("0a 00 00 00 01 00 00", "record of 5 bytes"),
        ("0c 00 00 02 01 00 00", "offset delta 1"),
        ("0c 00 00 01 01 00 00", "offset delta -1"),
        ("0c 00 00 00 03 00 00", "length -2"),
        ("0c 00 00 00 01 02 00 00", "record ends at 8"),
        ("0c 00 00 00 01 20 00", "16 bytes, 1 are left"),
        ("0c 00 00 00 01 00 02", "1 headers in 0 bytes"),
        ("10 00 00 00 01 00 02 01 01", "header without a key"),
        ("12 00 00 00 01 00 02 02 ff 01", "can't decode"),
        ("0c 00 00 00 01 00 00 00", "1 bytes after the last record"),
        ("ff ff ff ff ff ff 00 00", "longer than 5 bytes"),
        ("ff ff ff ff 7f 00 00 00", "exceeds 32 bits"),
        ("1e 00 ff ff ff ff ff ff ff ff ff 02 00 01 00 00", "exceeds 64 bits"),
    ],
)
def test_the_batch_reader_refuses_a_batch_whose_records_do_not_fill_its_body_exactly(
    records, reason
):
    """Under a checksum that is right: a peer may send nonsense and seal it."""
    batch = build_value_batch([b""], base_offset=4, leader_epoch=1, timestamp=1)
    del batch[61:]
    batch += bytes.fromhex(records)
    batch[8:12] = (len(batch) - 12).to_bytes(4, "big")
    with pytest.raises(CorruptBatchError, match=reason) as caught:
        list(iter_records(read_batch(reseal(batch))))
    assert caught.value.offset == 4


def test_a_batch_emptied_by_compaction_has_no_records():
    batch = build_value_batch([b""], base_offset=4, leader_epoch=1, timestamp=1)
    del batch[61:]
    batch[8:12] = (49).to_bytes(4, "big")
    batch[57:61] = bytes(4)
    assert list(iter_records(read_batch(reseal(batch)))) == []


def test_a_batch_above_the_size_limit_can_be_neither_built_nor_read():
    batch = build_value_batch([bytes(1000)], base_offset=0, leader_epoch=0, timestamp=0)
    with pytest.raises(BatchTooLargeError):
        build_value_batch(
            [bytes(1000)], base_offset=0, leader_epoch=0, timestamp=0, max_size_bytes=1000
        )
    with pytest.raises(CorruptBatchError, match="exceeds the limit of 1000 bytes"):
        read_batch(batch, max_size_bytes=1000)


def test_the_decoder_refuses_a_control_record_key_below_four_bytes_and_accepts_a_longer_key():
    assert control_record_type(bytes.fromhex("0001 0063 ffff")) == 99
    for key in (None, b"", b"\0\0\0"):
        with pytest.raises(MalformedMessageError, match="expected 4 bytes"):
            control_record_type(key)


def test_a_control_batch_holds_several_control_records():
    """A new leader writes LeaderChange, KRaftVersion and Voters together. KIP-853."""
    kinds = [ControlType.LEADER_CHANGE, ControlType.KRAFT_VERSION, ControlType.VOTERS]
    batch = read_batch(
        build_control_batch([(k, b"x") for k in kinds], base_offset=9, leader_epoch=2, timestamp=0)
    )
    assert batch.header.attributes == CONTROL
    assert [control_record_type(record.key) for record in iter_records(batch)] == kinds
    assert [record.offset for record in iter_records(batch)] == [9, 10, 11]


def test_a_decoded_record_is_a_tuple_without_an_instance_dictionary():
    (record,) = iter_records(
        read_batch(build_value_batch([b"v"], base_offset=1, leader_epoch=1, timestamp=2))
    )
    assert record == Record(offset=1, timestamp=2, key=None, value=b"v", headers=())
