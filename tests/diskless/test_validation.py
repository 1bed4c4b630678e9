"""Validation of producers' batches by Kafka's rules.

Source: upstream's LogValidator; docs/design/broker.md#validation.
"""

from __future__ import annotations

import struct
import tracemalloc

import pytest
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st

from diskless.loop_turns import INLINE_BYTES
from diskless.produce.validation import (
    Accepted,
    Decompression,
    Refusal,
    TakesLongError,
    TopicRules,
    validate,
)
from records.batch import (
    CONTROL,
    CRC_START,
    DELETE_HORIZON,
    HEADER_SIZE_BYTES,
    LOG_APPEND_TIME,
    Record,
    RecordHeader,
    iter_records,
    read_batch,
    records_of,
)
from records.batch_writer import build_batch
from records.compression import Compression, compress
from records.errors import RecordError
from records.kafka_errors import ErrorCode
from records.record_checks import SLICE_RECORDS, _check_one, check_records, iter_timestamps
from records.varint import encode_varint

NOW = 1_700_000_000_000
RULES = TopicRules()
CODECS = list(Compression)


def batch(
    *timestamps: int,
    codec: Compression = Compression.NONE,
    attributes: int = 0,
    producer: tuple[int, int, int] = (-1, -1, -1),
) -> bytearray:
    records = [
        (b"key", b"value", timestamp, [("header", b"x"), ("none", None)] if index % 2 else [])
        for index, timestamp in enumerate(timestamps or (NOW, NOW + 5, NOW - 5))
    ]
    return build_batch(
        records,
        base_offset=0,
        leader_epoch=-1,
        compression=codec,
        attributes=attributes,
        producer_id=producer[0],
        producer_epoch=producer[1],
        base_sequence=producer[2],
    )


def sealed(data: bytearray) -> bytearray:
    struct.pack_into(">I", data, CRC_START - 4, crc32c(memoryview(data)[CRC_START:]))
    return data


def changed(data: bytearray, position: int, value: bytes) -> bytearray:
    """Replace bytes of a batch and correct its checksum."""
    data[position : position + len(value)] = value
    return sealed(data)


def refused(records: bytes | bytearray | None, version: int = 9) -> ErrorCode:
    outcome = validate(records, version, RULES, NOW)
    assert isinstance(outcome, Refusal), outcome
    assert outcome.message
    return outcome.error


@pytest.mark.parametrize("codec", CODECS)
def test_produce_validation_accepts_a_valid_batch_unchanged(codec: Compression) -> None:
    data = batch(codec=codec)
    outcome = validate(data, 9, RULES, NOW)
    assert isinstance(outcome, Accepted)
    assert outcome.batch.view == data
    assert outcome.max_timestamp == NOW + 5


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("header", [0, -1, -(2**63), 2**63 - 1, NOW + 8])
def test_produce_validation_sets_a_batchs_max_timestamp_to_the_greatest_of_its_records(
    codec: Compression, header: int
) -> None:
    honest = batch(NOW, NOW + 7, NOW + 2, codec=codec)
    lying = changed(bytearray(honest), 35, struct.pack(">q", header))
    outcome = validate(lying, 9, RULES, NOW)
    assert isinstance(outcome, Accepted)
    assert outcome.max_timestamp == outcome.batch.header.max_timestamp == NOW + 7
    assert outcome.batch.view == honest
    assert outcome.batch == read_batch(honest), "the checksum is right"
    assert lying != honest, "the request's own bytes are left alone"


def test_produce_validation_sets_the_max_timestamp_of_records_without_timestamps_to_minus_1() -> (
    None
):
    lying = changed(batch(-1, -1), 35, struct.pack(">q", NOW))
    outcome = validate(lying, 9, RULES, NOW)
    assert isinstance(outcome, Accepted)
    assert outcome.batch == read_batch(batch(-1, -1))


def test_produce_validation_refuses_no_batch_or_several_batches_for_a_partition() -> None:
    assert refused(None) == refused(b"") == ErrorCode.INVALID_RECORD
    assert refused(batch() + batch()) == ErrorCode.INVALID_RECORD
    assert refused(batch() + b"\0") == ErrorCode.INVALID_RECORD


def test_produce_validation_refuses_bytes_that_are_no_record_batch_as_corrupt() -> None:
    spoiled = batch()
    spoiled[-1] ^= 1
    assert refused(spoiled) == ErrorCode.CORRUPT_MESSAGE
    assert refused(batch()[:-1]) == ErrorCode.CORRUPT_MESSAGE
    assert refused(b"\0" * 100) == ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT
    assert refused(b"short") == ErrorCode.CORRUPT_MESSAGE


@pytest.mark.parametrize(
    ("position", "value"),
    [
        (0, struct.pack(">q", 5)),  # a base offset of its own
        (23, struct.pack(">i", 5)),  # more offsets than records
        (57, struct.pack(">i", 2)),  # fewer records than there are
        (57, struct.pack(">i", 0)),
    ],
)
def test_produce_validation_refuses_batches_with_inconsistent_offsets_and_counts(
    position: int, value: bytes
) -> None:
    assert refused(changed(batch(), position, value)) == ErrorCode.INVALID_RECORD


def test_produce_validation_refuses_a_batch_with_a_negative_record_count() -> None:
    negative = changed(batch(), 57, struct.pack(">i", -1))
    assert refused(negative) == ErrorCode.CORRUPT_MESSAGE


def test_produce_validation_detects_a_wrong_record_count_in_compressed_batches() -> None:
    body = bytes(batch()[HEADER_SIZE_BYTES:])
    for cut in (body[:-1], body + b"\0", body[:-1] + b"\1"):
        data = batch()[:HEADER_SIZE_BYTES] + compress(Compression.LZ4, cut)
        struct.pack_into(">i", data, 8, len(data) - 12)
        assert refused(changed(data, 21, struct.pack(">h", 3))) == ErrorCode.INVALID_RECORD


def test_produce_validation_refuses_control_records_of_a_producer() -> None:
    assert refused(batch(attributes=CONTROL)) == ErrorCode.INVALID_RECORD


@pytest.mark.parametrize("log_append_time", [False, True])
def test_produce_validation_refuses_a_batch_with_log_append_time_from_a_producer(
    log_append_time: bool,
) -> None:
    """Consumers would take the header's greatest time for that of every record, and look-ups by
    time would not. Source: upstream's LogValidator, validateTimestamp."""
    rules = RULES._replace(log_append_time=log_append_time)
    outcome = validate(batch(attributes=LOG_APPEND_TIME), 9, rules, NOW)
    assert isinstance(outcome, Refusal)
    assert outcome.error == ErrorCode.INVALID_TIMESTAMP


def test_produce_validation_accepts_a_batch_with_a_delete_horizon_unchanged_as_kafka_does() -> None:
    """Kafka's answer: tests/interop/test_kafka_cleaner.py, whose producer sends such batches."""
    data = batch(attributes=DELETE_HORIZON)
    outcome = validate(data, 9, RULES, NOW)
    assert isinstance(outcome, Accepted)
    assert outcome.batch.view == data


def test_produce_validation_refuses_a_producer_id_without_an_epoch_or_a_sequence() -> None:
    assert isinstance(validate(batch(producer=(7, 0, 0)), 9, RULES, NOW), Accepted)
    for producer in ((7, -1, 0), (7, 0, -1)):
        assert refused(batch(producer=producer)) == ErrorCode.INVALID_RECORD


def test_produce_validation_refuses_a_batch_with_a_codec_that_its_produce_version_lacks() -> None:
    assert refused(batch(codec=Compression.ZSTD), 6) == ErrorCode.UNSUPPORTED_COMPRESSION_TYPE
    assert isinstance(validate(batch(codec=Compression.ZSTD), 7, RULES, NOW), Accepted)
    unknown = changed(batch(), 21, struct.pack(">h", 6))
    assert refused(unknown) == ErrorCode.UNSUPPORTED_COMPRESSION_TYPE
    not_gzip = changed(batch(), 21, struct.pack(">h", 1))
    assert refused(not_gzip) == ErrorCode.CORRUPT_MESSAGE


def test_max_message_bytes_limits_the_size_of_a_produced_batch_as_received() -> None:
    data = batch()
    exactly = RULES._replace(max_message_bytes=len(data))
    assert isinstance(validate(data, 9, exactly, NOW), Accepted)
    outcome = validate(data, 9, exactly._replace(max_message_bytes=len(data) - 1), NOW)
    assert isinstance(outcome, Refusal)
    assert outcome.error == ErrorCode.MESSAGE_TOO_LARGE


def test_produce_validation_reports_each_record_with_an_invalid_timestamp() -> None:
    rules = RULES._replace(timestamp_before_max_ms=1_000, timestamp_after_max_ms=10)
    data = batch(NOW, NOW - 1_001, NOW + 10, NOW + 11, -1)
    outcome = validate(data, 9, rules, NOW)
    assert isinstance(outcome, Refusal)
    assert outcome.error == ErrorCode.INVALID_TIMESTAMP
    assert [error.batch_index for error in outcome.record_errors] == [1, 3]
    told = " ".join(error.message for error in outcome.record_errors)
    assert "ms behind this broker's clock, message.timestamp.before.max.ms is 1000" in told
    assert "ms ahead of this broker's clock, message.timestamp.after.max.ms is 10" in told
    assert isinstance(validate(data, 9, rules._replace(log_append_time=True), NOW), Accepted)


def test_produce_validation_accepts_records_without_a_timestamp() -> None:
    outcome = validate(batch(-1, -1), 9, RULES, NOW)
    assert isinstance(outcome, Accepted)
    assert outcome.max_timestamp == -1
    assert refused(batch(-2)) == ErrorCode.INVALID_TIMESTAMP


def read(data: bytearray) -> tuple[list[Record], str | None]:
    """Read all records of a batch, or the error."""
    try:
        return list(iter_records(read_batch(data))), None
    except RecordError as error:
        return [], str(error)


@given(st.lists(st.tuples(st.integers(0), st.integers(0, 255)), min_size=1, max_size=4))
def test_a_batch_that_produce_validation_accepts_can_be_read_record_by_record(
    spoil: list[tuple[int, int]],
) -> None:
    """Random bytes under a correct checksum: this is the only check before storage."""
    data = batch()
    for position, value in spoil:
        data[HEADER_SIZE_BYTES + position % (len(data) - HEADER_SIZE_BYTES)] = value
    outcome = validate(sealed(data), 9, RULES._replace(log_append_time=True), NOW)
    records, fault = read(data)
    if fault is not None:
        # A header's name that is no UTF-8 moves no offset; Kafka's brokers take it, too.
        assert isinstance(outcome, Refusal) or "utf-8" in fault
    elif isinstance(outcome, Accepted):
        assert [record.offset for record in records] == list(range(3))
        assert outcome.max_timestamp == max(record.timestamp for record in records)
    elif outcome.error is ErrorCode.INVALID_RECORD:
        assert [record.offset for record in records] != [0, 1, 2]


def by_the_rule(data: bytearray) -> list[int]:
    """Return the timestamps as the slow path reads them."""
    taken = read_batch(data)
    body = bytes(records_of(taken))
    timestamps, position = [], 0
    for expected_delta in range(taken.header.record_count):
        delta, position = _check_one(body, position, expected_delta)
        timestamps.append(taken.header.base_timestamp + delta)
    if position != len(body):
        raise ValueError("bytes after the last record")
    return timestamps


NULLABLE = st.none() | st.binary(max_size=70) | st.sampled_from([bytes(200), bytes(9_000)])


@given(
    some=st.lists(
        st.tuples(
            NULLABLE,
            NULLABLE,
            st.integers(0, 100_000),
            st.lists(st.tuples(st.text(max_size=3), NULLABLE), max_size=2),
        ),
        min_size=1,
        max_size=80,
    ),
    spoil=st.lists(st.tuples(st.integers(0), st.integers(0, 255)), max_size=3),
)
def test_the_fast_path_for_common_records_accepts_the_same_records_as_the_slow_path(
    some: list[tuple[bytes | None, bytes | None, int, list[tuple[str, bytes | None]]]],
    spoil: list[tuple[int, int]],
) -> None:
    records = [
        (key, value, NOW + at, tuple(RecordHeader(*one) for one in headers))
        for key, value, at, headers in some
    ]
    data = bytearray(build_batch(records, base_offset=0, leader_epoch=-1))
    for position, value in spoil:
        data[HEADER_SIZE_BYTES + position % (len(data) - HEADER_SIZE_BYTES)] = value
    taken = read_batch(sealed(data))
    try:
        expected = by_the_rule(data)
    except (ValueError, IndexError):
        with pytest.raises((ValueError, IndexError)):
            check_records(taken, records_of(taken))
        return
    assert check_records(taken, records_of(taken)) == (min(expected), max(expected))
    assert list(iter_timestamps(taken, bytes(records_of(taken)))) == expected


@pytest.mark.parametrize("codec", CODECS)
def test_produce_validation_refuses_records_without_a_key_for_a_compacted_topic(
    codec: Compression,
) -> None:
    """An empty key is a key. Source: upstream's LogValidator.validateKey."""
    keys = (b"key", None, b"", None)
    records = [(key, b"value", NOW, []) for key in keys]
    data = build_batch(records, base_offset=0, leader_epoch=-1, compression=codec)
    refused = validate(data, 9, RULES._replace(keys_required=True), NOW)
    assert isinstance(refused, Refusal)
    assert refused.error == ErrorCode.INVALID_RECORD
    assert [error.batch_index for error in refused.record_errors] == [1, 3]
    assert isinstance(validate(data, 9, RULES, NOW), Accepted)
    keyed = batch(NOW, codec=codec)
    assert isinstance(validate(keyed, 9, RULES._replace(keys_required=True), NOW), Accepted)


# --- bombs --------------------------------------------------------------------------------------

MIB = 1024 * 1024
PACKED = [codec for codec in CODECS if codec is not Compression.NONE]


def bomb(codec: Compression, size_bytes: int) -> bytearray:
    """A batch of one record of zeros."""
    records = [(None, bytes(size_bytes), NOW, ())]
    return build_batch(records, base_offset=0, leader_epoch=-1, compression=codec)


@pytest.mark.parametrize("codec", PACKED)
def test_produce_validation_refuses_a_batch_that_decompresses_beyond_the_limit_as_too_large(
    codec: Compression,
) -> None:
    exactly = len(records_of(read_batch(bomb(codec, MIB))))
    found = validate(bomb(codec, MIB), 9, RULES, NOW, Decompression(exactly))
    assert isinstance(found, Accepted)
    found = validate(bomb(codec, MIB), 9, RULES, NOW, Decompression(exactly - 1))
    assert isinstance(found, Refusal)
    assert found.error == ErrorCode.MESSAGE_TOO_LARGE
    assert "esker.produce.max.decompressed.bytes" in found.message


def test_the_batches_of_a_produce_request_share_one_decompression_limit() -> None:
    shared = Decompression(3 * MIB)
    found = [validate(bomb(Compression.ZSTD, MIB), 9, RULES, NOW, shared) for _ in range(4)]
    assert [type(outcome) for outcome in found] == [Accepted, Accepted, Refusal, Refusal]


def test_validation_on_the_event_loop_leaves_a_decompression_bomb_to_a_thread() -> None:
    packed, shared = bomb(Compression.ZSTD, INLINE_BYTES), Decompression()
    with pytest.raises(TakesLongError):
        validate(packed, 9, RULES, NOW, shared, inline=True)
    assert isinstance(validate(packed, 9, RULES, NOW, shared), Accepted)


@pytest.mark.parametrize("misfit", [0, SLICE_RECORDS - 1, SLICE_RECORDS, 2 * SLICE_RECORDS])
def test_produce_validation_checks_timestamps_of_records_in_every_validation_slice(
    misfit: int,
) -> None:
    timestamps = [NOW] * (2 * SLICE_RECORDS + 1)
    timestamps[misfit] = NOW + 86_400_000
    data = build_batch(
        [(None, None, timestamp, ()) for timestamp in timestamps], base_offset=0, leader_epoch=-1
    )
    outcome = validate(data, 9, RULES, NOW)
    assert isinstance(outcome, Refusal)
    assert [error.batch_index for error in outcome.record_errors] == [misfit]
    rules = RULES._replace(log_append_time=True)
    assert validate(data, 9, rules, NOW) == Accepted(read_batch(data), NOW + 86_400_000)


def test_validating_a_batch_of_many_tiny_records_takes_little_memory() -> None:
    record = bytes([12, 0, 0]), bytes([1, 1, 0])  # around the offset delta, which grows
    deltas = (encode_varint(delta) for delta in range(60_000))
    body = b"".join(
        bytes([2 * (len(delta) + 5)]) + record[0][1:] + delta + record[1] for delta in deltas
    )
    data = bytearray(batch(NOW)[:HEADER_SIZE_BYTES]) + compress(Compression.ZSTD, body)
    struct.pack_into(">i", data, 8, len(data) - 12)
    struct.pack_into(">h", data, 21, Compression.ZSTD)
    struct.pack_into(">i", data, 23, 59_999)
    struct.pack_into(">i", data, 57, 60_000)
    tracemalloc.start()
    try:
        outcome = validate(sealed(data), 9, RULES, NOW)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert isinstance(outcome, Accepted), outcome
    assert peak < 3 * len(body) + 25 * 60_000, "the fields of all records were held at once"


def test_produce_validation_refuses_non_utf8_header_keys_for_a_compacted_topic() -> None:
    data = build_batch([(b"key", b"value", NOW, [("h", b"x")])], base_offset=0, leader_epoch=-1)
    data[bytes(data).index(b"h\x02x")] = 0xFF
    outcome = validate(sealed(data), 9, RULES._replace(keys_required=True), NOW)
    assert isinstance(outcome, Refusal)
    assert outcome.error == ErrorCode.INVALID_RECORD
