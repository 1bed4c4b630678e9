"""The records of a batch coordinator's log, and why it stops at one it does not know.

A state machine must not guess. A record of a type or version that this code does not know was
written by newer code, and means something: to skip it is to have another state than the replicas
that read it. So reading ends with an error that says where and what.

Source: docs/design/batch-coordinator.md#one-record-per-object; KIP-631, Record Format.
"""

from __future__ import annotations

from collections.abc import Iterator

from coordinator.batch.applying import RECORD_TYPES
from records.batch import Batch, iter_records
from records.errors import RecordError
from records.frame import decode_record
from records.schema import MetadataRecord
from records.types import Offset


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
