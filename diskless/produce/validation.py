"""What a producer may send: the checks before a batch is buffered, by Kafka's rules.

Nothing is rewritten. Kafka's brokers assign offsets inside the batch, and so may repair what they
find; here a batch is stored as it came, so it is right or it is refused. The one thing taken from
the records and not from the header is the greatest timestamp: a producer may write another into
the header, and timestamps are looked up by what the records say.

The surprise: every record is looked at, also in compressed batches. A count or an offset delta that
lies would shift the offsets of all who follow, for ever, and a consumer finds it out where nobody
can mend it. Only lengths and deltas are read; keys and values are stepped over.

Source: upstream's ProduceRequest.validateRecords, LogValidator and UnifiedLog (message size);
docs/design/broker.md#validation.
"""

from __future__ import annotations

from typing import Final, NamedTuple, TypeAlias

from coordinator.controller.decide.configs import topic_value
from coordinator.controller.image import MetadataImage
from records.batch import (
    COMPRESSION_MASK,
    MIN_RECORD_BYTES,
    NO_TIMESTAMP,
    Batch,
    read_batch,
    records_of,
)
from records.compression import MAX_DECOMPRESSED_BYTES, Buffer, Compression
from records.errors import (
    CompressionError,
    CorruptBatchError,
    DecompressedTooLargeError,
    IncompleteBatchError,
    UnknownCodecError,
)
from records.kafka_errors import ErrorCode
from records.varint import SMALL_VARINTS, decode_varint, decode_varlong

FIRST_WITH_ZSTD: Final = 7  # Produce versions below know no zstd
SMALL: Final = len(SMALL_VARINTS)
USUAL_RATIO: Final = 64  # of decompressed bytes to compressed ones; a bomb's is 30,000
MAX_RECORD_ERRORS: Final = 100  # named one by one in an answer


class TopicRules(NamedTuple):
    """A topic's configuration, as far as its batches are concerned."""

    max_message_bytes: int = 1_048_588  # of a batch, as stored: compressed
    log_append_time: bool = False  # message.timestamp.type; timestamps then are not looked at
    timestamp_before_max_ms: int = 2**63 - 1  # message.timestamp.before.max.ms
    timestamp_after_max_ms: int = 3_600_000  # message.timestamp.after.max.ms

    @classmethod
    def of(cls, image: MetadataImage, topic: str) -> TopicRules:
        """As the image has them."""
        return cls(
            max_message_bytes=int(topic_value(image, topic, "max.message.bytes")),
            log_append_time=topic_value(image, topic, "message.timestamp.type") == "LogAppendTime",
            timestamp_before_max_ms=int(
                topic_value(image, topic, "message.timestamp.before.max.ms")
            ),
            timestamp_after_max_ms=int(topic_value(image, topic, "message.timestamp.after.max.ms")),
        )


class RecordError(NamedTuple):
    """One record that is to blame. Source: KIP-467."""

    batch_index: int  # of the record in its batch
    message: str


class Refusal(NamedTuple):
    """The records are not taken; nothing of them is."""

    error: ErrorCode
    message: str
    record_errors: tuple[RecordError, ...] = ()


class Accepted(NamedTuple):
    """The one batch of a partition, sound."""

    batch: Batch
    max_timestamp: int  # the records' greatest, ms since 1970; -1 if none has any


Outcome: TypeAlias = Accepted | Refusal


class TakesLongError(Exception):
    """Decompressed, a batch is larger than what may be looked at now."""


def is_compressed(batch: Buffer) -> bool:
    """By what its header says."""
    return len(batch) > 22 and bool(batch[22] & COMPRESSION_MASK)


def validate(
    records: Buffer | None,
    version: int,
    rules: TopicRules,
    now_ms: int,
    limit_bytes: int = MAX_DECOMPRESSED_BYTES,
) -> Outcome:
    """Check what a Produce request brings for one partition.

    Args:    version: of the request; what it may hold grew over time.
             now_ms: the broker's clock, ms since 1970.
             limit_bytes: of decompressed records.
    Raises:  TakesLongError for more, if fewer than the usual limit were allowed.
    """
    if not records:
        return _invalid("a partition without a record batch")
    try:
        batch = read_batch(records)
    except (CorruptBatchError, IncompleteBatchError) as error:
        magic = records[16] if len(records) > 16 else 2
        if magic < 2:
            message = f"message format {magic} is no longer taken, only 2"
            return Refusal(ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT, message)
        return Refusal(ErrorCode.CORRUPT_MESSAGE, str(error))
    if len(records) != batch.header.size_bytes:
        return _invalid("more than one record batch for a partition")
    refusal = _header_refusal(batch, version, rules)
    if refusal is not None:
        return refusal
    try:
        body = records_of(batch, limit_bytes=limit_bytes)
        timestamps = _timestamps(batch, body)
    except DecompressedTooLargeError as error:
        if limit_bytes < MAX_DECOMPRESSED_BYTES:
            raise TakesLongError from None
        return Refusal(ErrorCode.MESSAGE_TOO_LARGE, str(error))
    except CompressionError as error:
        return Refusal(ErrorCode.CORRUPT_MESSAGE, str(error))
    except IndexError:
        return _invalid("the batch ends inside a record")
    except ValueError as error:
        return _invalid(str(error))
    return _judge_times(batch, timestamps, rules, now_ms)


def _invalid(message: str) -> Refusal:
    return Refusal(ErrorCode.INVALID_RECORD, message)


def _header_refusal(batch: Batch, version: int, rules: TopicRules) -> Refusal | None:
    """What the header alone tells."""
    header = batch.header
    if header.size_bytes > rules.max_message_bytes:
        message = f"{header.size_bytes} bytes, max.message.bytes is {rules.max_message_bytes}"
        return Refusal(ErrorCode.MESSAGE_TOO_LARGE, message)
    if header.base_offset != 0:
        return _invalid(f"base offset {header.base_offset}, a producer's is 0")
    if header.is_control:
        return _invalid("a client may not write control records")
    if header.record_count < 1 or not header.is_dense:
        return _invalid(f"{header.record_count} records in {header.last_offset_delta + 1} offsets")
    if header.producer_id >= 0 and (header.producer_epoch < 0 or header.base_sequence < 0):
        return _invalid("a producer id without epoch or sequence")
    if header.is_log_append_time:  # readers would take the header's time for every record's
        message = "a producer may not set the timestamp type to LogAppendTime"
        return Refusal(ErrorCode.INVALID_TIMESTAMP, message)
    try:
        codec = header.compression
    except UnknownCodecError as error:
        return Refusal(ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, str(error))
    if codec is Compression.ZSTD and version < FIRST_WITH_ZSTD:
        message = f"zstd needs Produce version {FIRST_WITH_ZSTD}, this is {version}"
        return Refusal(ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, message)
    return None


def _timestamps(batch: Batch, body: memoryview) -> list[int]:
    """Each record's timestamp; its length and offset delta are what they must be.

    Most of a broker's time on small records is spent in this loop. So the usual record (no headers,
    a short key or none) is stepped over here, in less than half the time; `_unusual` is the rule,
    and takes every other.

    Raises:  ValueError; IndexError where the bytes end too early.
    """
    header = batch.header
    if header.record_count * MIN_RECORD_BYTES > len(body):
        raise ValueError(f"{header.record_count} records in {len(body)} bytes")
    data = bytes(body)  # indexed twice as fast as a view
    base_timestamp, size = header.base_timestamp, len(data)
    timestamps: list[int] = []
    append, position = timestamps.append, 0
    for expected_delta in range(header.record_count):
        low = data[position]
        at = position + 1
        if low >= 0x80:
            high = data[at]
            low = low & 0x7F | high << 7 if high < 0x80 else 1
            at += 1
        end = at + (low >> 1)  # of the record, if its length has one or two bytes
        if not low & 1 and end <= size and expected_delta < SMALL:
            delta = data[at + 1]  # after the attributes, unused
            if delta < 0x80:
                delta, at = (delta >> 1) ^ -(delta & 1), at + 2
            else:
                delta, at = decode_varlong(data, at + 1)
            expected = SMALL_VARINTS[expected_delta]
            if data.startswith(expected, at):
                at += len(expected)
                low = data[at]  # the key's length
                at += 1 if low & 1 else 1 + (low >> 1)
                if (low == 1 or (low < 0x80 and not low & 1)) and at < end:
                    low = data[at]  # the value's
                    at += 1
                    if low >= 0x80:
                        high = data[at]
                        low = low & 0x7F | high << 7 if high < 0x80 else 3
                        at += 1
                    if low != 1:
                        at += low >> 1
                    if (low == 1 or not low & 1) and at == end - 1 and not data[at]:
                        append(base_timestamp + delta)
                        position = end
                        continue
        delta, position = _unusual(data, position, expected_delta)
        append(base_timestamp + delta)
    if position != size:
        raise ValueError(f"{size - position} bytes after the last record")
    return timestamps


def _unusual(data: bytes, position: int, expected_delta: int) -> tuple[int, int]:
    """Any record's timestamp delta, and where it ends. Raises as `_timestamps`."""
    size = len(data)
    length, position = decode_varint(data, position)
    end = position + length
    if length < MIN_RECORD_BYTES - 1 or end > size:
        raise ValueError(f"record {expected_delta}: {length} bytes, {size - position} are left")
    delta, position = decode_varlong(data, position + 1)  # after the attributes, unused
    offset_delta, position = decode_varint(data, position)
    if offset_delta != expected_delta:
        raise ValueError(f"record {expected_delta}: its offset delta is {offset_delta}")
    _check_inside(data, position, end, expected_delta)
    return delta, end


def _check_inside(body: bytes, position: int, end: int, index: int) -> None:
    """Key, value and headers fill the record exactly."""
    length, position = decode_varint(body, position)
    position += max(length, 0)
    shortest = length
    if position < end:
        length, position = decode_varint(body, position)
        position += max(length, 0)
        shortest = min(shortest, length)
        if position == end - 1 and body[position] == 0 and shortest >= -1:
            return  # no headers, as nearly always
    if shortest < -1 or position >= end:
        raise ValueError(f"record {index}: key and value do not fit")
    count, position = decode_varint(body, position)
    if not 0 <= count <= (end - position) // 2:
        raise ValueError(f"record {index}: {count} headers")
    for _ in range(count):
        length, position = decode_varint(body, position)
        position += length
        if length < 0 or position >= end:
            raise ValueError(f"record {index}: a header's key does not fit")
        length, position = decode_varint(body, position)
        position += max(length, 0)
        if length < -1 or position > end:
            raise ValueError(f"record {index}: a header's value does not fit")
    if position != end:
        raise ValueError(f"record {index}: {end - position} bytes after its headers")


def _judge_times(batch: Batch, timestamps: list[int], rules: TopicRules, now_ms: int) -> Outcome:
    """Too old or too new, by the topic's rules; a record may also have no time at all."""
    latest, earliest = max(timestamps), min(timestamps)
    if earliest < NO_TIMESTAMP or latest >= 1 << 63:
        message = f"timestamps from {earliest} to {latest}"
        return Refusal(ErrorCode.INVALID_TIMESTAMP, message)
    if rules.log_append_time:
        return Accepted(batch, latest)
    oldest = now_ms - rules.timestamp_before_max_ms
    newest = now_ms + rules.timestamp_after_max_ms
    if earliest >= oldest and latest <= newest:
        return Accepted(batch, latest)
    guilty = [
        (index, timestamp)
        for index, timestamp in enumerate(timestamps)
        if timestamp != NO_TIMESTAMP and not oldest <= timestamp <= newest
    ]
    if not guilty:
        return Accepted(batch, latest)
    errors = tuple(
        RecordError(index, _misfit(timestamp, rules, now_ms))
        for index, timestamp in guilty[:MAX_RECORD_ERRORS]
    )
    message = f"{len(guilty)} records of wrong times, the first: {errors[0].message}"
    return Refusal(ErrorCode.INVALID_TIMESTAMP, message, errors)


def _misfit(timestamp: int, rules: TopicRules, now_ms: int) -> str:
    """By how much: a clock that goes wrong is recognised by that, here or at the producer."""
    ahead_ms = timestamp - now_ms
    if ahead_ms > 0:
        key, most, side = "after", rules.timestamp_after_max_ms, "ahead of"
    else:
        key, most, side = "before", rules.timestamp_before_max_ms, "behind"
    return (
        f"timestamp {timestamp} is {abs(ahead_ms)} ms {side} this broker's clock, "
        f"message.timestamp.{key}.max.ms is {most}"
    )
