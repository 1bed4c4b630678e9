"""Validates a producer's batch by Kafka's rules before it is buffered.

A batch is stored as it arrived, with one exception: the header's greatest timestamp is set to that
of the records, with a new checksum, if a producer wrote another one. Consumers and retention tools
believe the header.

The trap: every record is checked, also in compressed batches. A wrong count or offset delta would
shift the offsets of all following records permanently, and only a consumer would notice, when it
cannot be repaired. Only lengths and deltas are read; keys and values are skipped.

Source: upstream's ProduceRequest.validateRecords, LogValidator and UnifiedLog (message size);
docs/design/broker.md#validation.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple, TypeAlias

from coordinator.controller.config_defs import COMPACT
from coordinator.controller.decide.configs import cleanup_policies, topic_value
from coordinator.controller.image import MetadataImage
from diskless.loop_turns import INLINE_BYTES
from records.batch import (
    COMPRESSION_MASK,
    HEADER,
    MIN_RECORD_BYTES,
    NO_TIMESTAMP,
    TRANSACTIONAL,
    Batch,
    iter_body,
    parse_header,
    read_batch,
    records_of,
)
from records.batch_writer import stamp_max_timestamp
from records.compression import MAX_DECOMPRESSED_BYTES, Buffer, Compression
from records.errors import (
    CompressionError,
    CorruptBatchError,
    DecompressedTooLargeError,
    IncompleteBatchError,
    UnknownCodecError,
)
from records.kafka_errors import ErrorCode
from records.native_batch import read_timestamp_range
from records.varint import SMALL_VARINTS, decode_varint, decode_varlong

FIRST_WITH_ZSTD: Final = 7  # Produce versions below know no zstd
SMALL: Final = len(SMALL_VARINTS)
SLICE_RECORDS: Final = 10_000  # whose timestamps are held at once
MAX_RECORD_ERRORS: Final = 100  # listed individually in a response


class TopicRules(NamedTuple):
    """The topic settings that apply to batches."""

    max_message_bytes: int = 1_048_588  # of a batch, as stored: compressed
    log_append_time: bool = False  # message.timestamp.type; then timestamps are not checked
    timestamp_before_max_ms: int = 2**63 - 1  # message.timestamp.before.max.ms
    timestamp_after_max_ms: int = 3_600_000  # message.timestamp.after.max.ms
    keys_required: bool = False  # cleanup.policy contains compact

    @classmethod
    def of(cls, image: MetadataImage, topic: str) -> TopicRules:
        """Read a topic's validation rules for batches from the cluster image."""
        return cls(
            max_message_bytes=int(topic_value(image, topic, "max.message.bytes")),
            log_append_time=topic_value(image, topic, "message.timestamp.type") == "LogAppendTime",
            timestamp_before_max_ms=int(
                topic_value(image, topic, "message.timestamp.before.max.ms")
            ),
            timestamp_after_max_ms=int(topic_value(image, topic, "message.timestamp.after.max.ms")),
            keys_required=COMPACT in cleanup_policies(image, topic),
        )


class RecordError(NamedTuple):
    """The error of one record. Source: KIP-467."""

    batch_index: int  # of the record in its batch
    message: str


class Refusal(NamedTuple):
    """The batch is refused as a whole; the reason, and the records that caused it."""

    error: ErrorCode
    message: str
    record_errors: tuple[RecordError, ...] = ()


class Accepted(NamedTuple):
    """The valid batch of a partition."""

    batch: Batch
    max_timestamp: int  # the records' greatest, ms since 1970; -1 if none has any


Outcome: TypeAlias = Accepted | Refusal


class TakesLongError(Exception):
    """The decompressed batch exceeds the limit for validation on the loop."""


class Decompression:
    """The bytes that a request's compressed batches may still expand to, all together.

    Why together: a batch of 3 KB may take 100 MB, and a request may have thousands of them.
    """

    def __init__(self, limit_bytes: int = MAX_DECOMPRESSED_BYTES) -> None:
        self.limit_bytes = limit_bytes
        self._left = limit_bytes

    def records_of(self, batch: Batch, *, inline: bool) -> memoryview:
        """Return the bytes of a batch's records, and count decompressed bytes against the limit.

        Raises:  CompressionError; TakesLongError if a thread must try it.
        """
        limit_bytes = min(self._left, INLINE_BYTES) if inline else self._left
        try:
            body = records_of(batch, limit_bytes=limit_bytes)
        except DecompressedTooLargeError:
            if limit_bytes < self._left:
                raise TakesLongError from None
            self._left = 0
            raise
        if batch.header.attributes & COMPRESSION_MASK:
            self._left -= len(body)
        return body


def is_compressed(batch: Buffer) -> bool:
    """Return whether the batch's header names a compression codec."""
    return len(batch) > 22 and bool(batch[22] & COMPRESSION_MASK)


def transactional_producer(batch: Buffer | None) -> tuple[int, int] | None:
    """Return producer id and epoch of a transactional batch, or None for another batch."""
    if batch is None or len(batch) < HEADER.size or not batch[22] & TRANSACTIONAL:
        return None
    *_, producer_id, epoch, _, _ = HEADER.unpack_from(batch)
    return producer_id, epoch


def validate(
    records: Buffer | None,
    version: int,
    rules: TopicRules,
    now_ms: int,
    decompression: Decompression | None = None,
    *,
    inline: bool = False,
) -> Outcome:
    """Validate the records that a Produce request has for one partition.

    Args:    version: of the request; later versions allow more codecs.
             now_ms: the broker's clock, ms since 1970.
             decompression: of the request that the batch is part of.
             inline: whether the caller is the loop, which decompresses little.
    Raises:  TakesLongError if a thread must validate it.
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
    decompression = decompression or Decompression()
    try:
        body = decompression.records_of(batch, inline=inline)
        earliest, latest = _timestamp_range(batch, body)
        refusal = _check_keys(batch, body) if rules.keys_required else None
    except DecompressedTooLargeError:
        message = (
            f"the compressed batches of the request expand to more than "
            f"{decompression.limit_bytes} bytes (esker.produce.max.decompressed.bytes)"
        )
        return Refusal(ErrorCode.MESSAGE_TOO_LARGE, message)
    except CompressionError as error:
        return Refusal(ErrorCode.CORRUPT_MESSAGE, str(error))
    except IndexError:
        return _invalid("the batch ends inside a record")
    except ValueError as error:
        return _invalid(str(error))
    if refusal is not None:
        return refusal
    refusal = _check_timestamps(batch, body, earliest, latest, rules, now_ms)
    return refusal or Accepted(_with_max_timestamp(batch, latest), latest)


def _with_max_timestamp(batch: Batch, latest: int) -> Batch:
    """Return the batch with the greatest timestamp of its records written into its header.

    Source: upstream's LogValidator, which sets it in compressed and uncompressed batches alike, and
    DefaultRecordBatch.setMaxTimestamp, which renews the checksum only if it differs.
    """
    if batch.header.max_timestamp == latest:
        return batch
    data = bytearray(batch.view)
    stamp_max_timestamp(data, timestamp=latest)
    return Batch(0, parse_header(data), memoryview(data))


def _check_keys(batch: Batch, body: memoryview) -> Refusal | None:
    """Return the refusal of a compacted topic's batch if a record has no key, else None.

    Source: upstream's LogValidator.validateKey.
    """
    indices = [index for index, record in enumerate(iter_body(batch, body)) if record.key is None]
    if not indices:
        return None
    errors = tuple(
        RecordError(index, "a compacted topic takes no record without a key")
        for index in indices[:MAX_RECORD_ERRORS]
    )
    message = f"{len(indices)} records without a key, and cleanup.policy contains compact"
    return Refusal(ErrorCode.INVALID_RECORD, message, errors)


def _invalid(message: str) -> Refusal:
    return Refusal(ErrorCode.INVALID_RECORD, message)


def _header_refusal(batch: Batch, version: int, rules: TopicRules) -> Refusal | None:
    """Return the refusal of a batch with an invalid header, or None for a valid header."""
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


def _timestamp_range(batch: Batch, body: memoryview) -> tuple[int, int]:
    """Return the least and greatest timestamp of a batch's records, after checking each record.

    Checked are a record's length and its offset delta.

    Compiled code does it where it can. Without that, most of a broker's time on small records is
    spent in this loop, so the usual record (no headers, a short key or none) is parsed here, in
    less than half the time; `_parse_record` parses any record.

    Raises:  ValueError; IndexError where the bytes end too early.
    """
    header = batch.header
    if header.record_count * MIN_RECORD_BYTES > len(body):
        raise ValueError(f"{header.record_count} records in {len(body)} bytes")
    data = bytes(body)  # indexed twice as fast as a view
    compiled = read_timestamp_range(header, data)
    if compiled is not None:
        return compiled
    base_timestamp, size = header.base_timestamp, len(data)
    timestamps: list[int] = []  # of a slice, so that memory does not grow with the record count
    append, position = timestamps.append, 0
    earliest, latest = 1 << 64, -(1 << 64)
    for first_delta in range(0, header.record_count, SLICE_RECORDS):
        for expected_delta in range(
            first_delta, min(first_delta + SLICE_RECORDS, header.record_count)
        ):
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
            delta, position = _parse_record(data, position, expected_delta)
            append(base_timestamp + delta)
        earliest, latest = min(earliest, *timestamps), max(latest, *timestamps)
        timestamps.clear()
    if position != size:
        raise ValueError(f"{size - position} bytes after the last record")
    return earliest, latest


def _parse_record(data: bytes, position: int, expected_delta: int) -> tuple[int, int]:
    """Return a record's timestamp delta and the position of its end.

    Raises as `_timestamps`.
    """
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
    """Check that the key, value and headers fill the record exactly.

    Raises ValueError.
    """
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


def _check_timestamps(
    batch: Batch, body: memoryview, earliest: int, latest: int, rules: TopicRules, now_ms: int
) -> Refusal | None:
    """Return the refusal of timestamps outside the topic's limits, or None for a valid batch."""
    if earliest < NO_TIMESTAMP or latest >= 1 << 63:
        message = f"timestamps from {earliest} to {latest}"
        return Refusal(ErrorCode.INVALID_TIMESTAMP, message)
    if rules.log_append_time:
        return None
    oldest = now_ms - rules.timestamp_before_max_ms
    newest = now_ms + rules.timestamp_after_max_ms
    if earliest >= oldest and latest <= newest:
        return None
    count, errors = 0, []
    for index, timestamp in enumerate(_timestamps(batch, bytes(body))):
        if timestamp != NO_TIMESTAMP and not oldest <= timestamp <= newest:
            count += 1
            if count <= MAX_RECORD_ERRORS:
                errors.append(RecordError(index, _describe_misfit(timestamp, rules, now_ms)))
    if not count:
        return None
    message = f"{count} records with invalid timestamps, the first: {errors[0].message}"
    return Refusal(ErrorCode.INVALID_TIMESTAMP, message, tuple(errors))


def _timestamps(batch: Batch, body: bytes) -> Iterator[int]:
    """Yield the timestamp of each record of a batch whose records are known to be valid."""
    position = 0
    for expected_delta in range(batch.header.record_count):
        delta, position = _parse_record(body, position, expected_delta)
        yield batch.header.base_timestamp + delta


def _describe_misfit(timestamp: int, rules: TopicRules, now_ms: int) -> str:
    """Describe the distance between a refused timestamp and the broker's clock."""
    ahead_ms = timestamp - now_ms
    if ahead_ms > 0:
        key, most, side = "after", rules.timestamp_after_max_ms, "ahead of"
    else:
        key, most, side = "before", rules.timestamp_before_max_ms, "behind"
    return (
        f"timestamp {timestamp} is {abs(ahead_ms)} ms {side} this broker's clock, "
        f"message.timestamp.{key}.max.ms is {most}"
    )
