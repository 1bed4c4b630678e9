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

from typing import Final, NamedTuple, TypeAlias

from coordinator.controller.config_defs import COMPACT
from coordinator.controller.decide.configs import cleanup_policies, topic_value
from coordinator.controller.image import MetadataImage
from diskless.loop_turns import INLINE_BYTES
from records.batch import (
    COMPRESSION_MASK,
    HEADER,
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
from records.record_checks import check_records, iter_timestamps

FIRST_WITH_ZSTD: Final = 7  # Produce versions below know no zstd
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
        earliest, latest = check_records(batch, body)
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
    if not header.attributes & COMPRESSION_MASK:
        return None
    try:
        codec = header.compression
    except UnknownCodecError as error:
        return Refusal(ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, str(error))
    if codec is Compression.ZSTD and version < FIRST_WITH_ZSTD:
        message = f"zstd needs Produce version {FIRST_WITH_ZSTD}, this is {version}"
        return Refusal(ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, message)
    return None


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
    for index, timestamp in enumerate(iter_timestamps(batch, bytes(body))):
        if timestamp != NO_TIMESTAMP and not oldest <= timestamp <= newest:
            count += 1
            if count <= MAX_RECORD_ERRORS:
                errors.append(RecordError(index, _describe_misfit(timestamp, rules, now_ms)))
    if not count:
        return None
    message = f"{count} records with invalid timestamps, the first: {errors[0].message}"
    return Refusal(ErrorCode.INVALID_TIMESTAMP, message, tuple(errors))


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
