"""The records of a batch coordinator's log, and why it stops at one it does not know.

A state machine must not guess. A record of a type or version that this code does not know was
written by newer code, and means something: to skip it is to have another state than the replicas
that read it. So reading ends with an error that says where and what.

Source: docs/design/batch-coordinator.md#one-record-per-object; KIP-631, Record Format.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from coordinator.batch.applying import RECORD_TYPES
from raft.interfaces import Draft, draft_values
from records.batch import Batch, iter_records
from records.compression import Compression
from records.diskless import RunsReplacedRecord
from records.errors import RecordError
from records.frame import decode_record, read_frame
from records.schema import MetadataRecord
from records.types import Offset

_RUNS_REPLACED: Final = RunsReplacedRecord.schema().key

COMPRESSED_FROM_BYTES: Final = 4096
"""Size of a record of replaced runs from which its batch is compressed: some 40 ranges."""


def draft_batch(decisions: Sequence[Sequence[bytes]], now_ms: int) -> Draft:
    """Encode the record values of one turn's decisions as one batch, compressed if that pays.

    The columns of a thousand replaced ranges compress to a third in half a millisecond. Why only
    those: they appear from `esker.version` 3 on, so a log that an older release reads has no
    compressed batch.

    Raises:  BatchTooLargeError.
    """
    values = [value for decision in decisions for value in decision]
    replaces = any(
        len(value) >= COMPRESSED_FROM_BYTES and read_frame(value)[0] == _RUNS_REPLACED
        for value in values
    )
    codec = Compression.ZSTD if replaces else Compression.NONE
    return draft_values(values, timestamp_ms=now_ms, compression=codec)


class UnreadableRecordError(Exception):
    """The log holds a record that is not a batch coordinator's, or a newer version's."""

    def __init__(self, offset: int, reason: str) -> None:
        super().__init__(f"record at offset {offset}: {reason}")
        self.offset = offset
        self.reason = reason


def records_of(batch: Batch) -> Iterator[tuple[Offset, MetadataRecord]]:
    """Yield the records of a data batch with their offsets.

    Raises:  UnreadableRecordError.
    """
    offset = batch.header.base_offset
    try:
        for record in iter_records(batch):
            offset = Offset(record.offset)
            decoded = decode_record(record.value)
            if type(decoded) not in RECORD_TYPES:
                raise UnreadableRecordError(
                    offset, f"type {decoded.schema().key} has no place here"
                )
            yield offset, decoded
    except RecordError as error:
        raise UnreadableRecordError(offset, str(error)) from error
