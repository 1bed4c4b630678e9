"""Checks that a sequence of sound batches is a whole checkpoint.

Stricter than upstream, which reads a checkpoint with no footer, or with bytes after it, as if it
were whole: the header comes first and the footer last, offsets count up from 0 without a gap, one
leader epoch runs through, the file ends where the footer ends; and where the footer carries a count
and a checksum of all before it, they are right. A footer that upstream wrote carries neither, and
is accepted: `Checkpoint.origin` says which kind it was.

`Framing` is fed batches in order and does no I/O.

Source: KIP-630, Snapshot Format; KIP-853; org.apache.kafka.snapshot.RecordsSnapshotReader.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from itertools import pairwise
from pathlib import Path
from typing import Final, NamedTuple, NoReturn

from crc32c import crc32c

from raft.interfaces import MAX_EPOCHS, EpochStarts
from records.batch import COMPRESSION_MASK, CONTROL, Batch, iter_records
from records.control import (
    KRaftVersionRecord,
    SnapshotFooterRecord,
    SnapshotHeaderRecord,
    VotersRecord,
)
from records.errors import RecordError, UnknownRecordError
from records.frame import control_record_type, decode_control_record
from records.schema import ControlRecord
from records.types import Epoch, Offset
from snapshot.errors import DamagedFileError, TruncatedFileError

MAX_DECOMPRESSED_BYTES: Final = 64 * 1024 * 1024
"""Limit of the decompressed records of one batch: eight times the largest batch."""

_UNKNOWN_SINCE: Final = 7
"""Control record types from here on are of a later Kafka: skipped in the header batch."""


class Origin(Enum):
    """The software that wrote the footer, which decides how much the checks have proved."""

    ESKER = "esker"  # count and checksum of the whole were there, and right
    KAFKA = "kafka"  # every batch is sound and in place; whether all belong together is not proved


class Preamble(NamedTuple):
    """The content of the header batch."""

    last_timestamp: int  # ms since 1970, of the last record that the snapshot covers
    kraft_version: int
    voters: VotersRecord | None
    epochs: EpochStarts = ()  # of the log that the snapshot covers


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """A checkpoint that was read to its end and is whole."""

    path: Path
    epoch: Epoch
    preamble: Preamble
    origin: Origin
    size_bytes: int
    batch_count: int  # header and footer included
    record_count: int  # metadata records only


class Framing:
    """Checks a checkpoint's batches as they pass. All errors are DamagedFileErrors."""

    def __init__(self, path: Path, *, size_bytes: int, epoch: Epoch | None) -> None:
        self._path = path
        self._size_bytes = size_bytes
        self._epoch = epoch
        self._preamble: Preamble | None = None
        self._origin: Origin | None = None
        self._batch_count = 0
        self._control_count = 0
        self._next_offset = 0
        self._crc = 0

    @property
    def preamble(self) -> Preamble | None:
        """Return the content of a checkpoint's header batch, or None while that batch is unread."""
        return self._preamble

    def take(self, batch: Batch) -> None:
        """Check that a batch may follow the batches of the checkpoint that were checked before it.

        Raises:  DamagedFileError.
        """
        header = batch.header
        self._check_place(batch)
        if not header.is_control:
            if self._preamble is None:
                self._fail(batch, "begins with data, not with a snapshot header")
        elif self._preamble is None:
            self._preamble = self._read_preamble(batch)
        else:
            self._origin = self._read_footer(batch)
        self._batch_count += 1
        self._next_offset += header.record_count
        self._crc = crc32c(batch.view, self._crc)

    def finish(self) -> Checkpoint:
        """Check that the batches read form a complete checkpoint, and return their summary.

        Raises:  TruncatedFileError without a footer.
        """
        if self._preamble is None or self._origin is None or self._epoch is None:
            missing = "header" if self._preamble is None else "footer"
            raise TruncatedFileError(
                path=self._path,
                position=self._size_bytes,
                offset=self._next_offset,
                reason=f"ends without a snapshot {missing}",
            )
        return Checkpoint(
            path=self._path,
            epoch=self._epoch,
            preamble=self._preamble,
            origin=self._origin,
            size_bytes=self._size_bytes,
            batch_count=self._batch_count,
            record_count=self._next_offset - self._control_count,
        )

    def _check_place(self, batch: Batch) -> None:
        header = batch.header
        if header.base_offset != self._next_offset:
            self._fail(batch, f"base offset {header.base_offset}, expected {self._next_offset}")
        if not header.is_dense:
            self._fail(
                batch, f"{header.record_count} records in {header.last_offset_delta + 1} offsets"
            )
        if self._epoch is None:
            self._epoch = header.leader_epoch
        if header.leader_epoch != self._epoch:
            self._fail(batch, f"epoch {header.leader_epoch}, expected {self._epoch}")
        if strange := header.attributes & ~(COMPRESSION_MASK | CONTROL):
            self._fail(batch, f"attributes {strange:#06x} have no meaning in a checkpoint")

    def _read_preamble(self, batch: Batch) -> Preamble:
        controls = self._controls(batch)
        if not controls or not isinstance(controls[0], SnapshotHeaderRecord):
            self._fail(batch, "does not begin with a snapshot header")
        kraft_version, voters = None, None
        for control in controls[1:]:
            match control:
                case None:
                    continue
                case KRaftVersionRecord(k_raft_version=number) if kraft_version is None:
                    kraft_version = number
                case VotersRecord() if voters is None:
                    voters = control
                case _:
                    self._fail(batch, f"unexpected {type(control).__name__} after the header")
        header = controls[0]
        timestamp = header.last_contained_log_timestamp
        return Preamble(timestamp, kraft_version or 0, voters, _epochs_of(header))

    def _read_footer(self, batch: Batch) -> Origin:
        controls = self._controls(batch)
        footer = controls[0] if len(controls) == 1 else None
        if not isinstance(footer, SnapshotFooterRecord):
            self._fail(batch, "a control batch in the middle that is not the footer")
        trailing = self._size_bytes - batch.position - batch.header.size_bytes
        if trailing > 0:
            self._fail(batch, f"{trailing} bytes after the footer")
        if footer.record_count == footer.content_crc == -1:
            return Origin.KAFKA
        if footer.record_count != self._next_offset:
            self._fail(batch, f"{self._next_offset} records, the footer says {footer.record_count}")
        if footer.content_crc != self._crc:
            self._fail(
                batch,
                f"crc of all before the footer is {self._crc:#010x}, "
                f"the footer says {footer.content_crc:#010x}",
            )
        return Origin.ESKER

    def _controls(self, batch: Batch) -> list[ControlRecord | None]:
        """Return a control batch's records, with None for each record of an unknown type."""
        controls: list[ControlRecord | None] = []
        try:
            for record in iter_records(batch, limit_bytes=MAX_DECOMPRESSED_BYTES):
                if record.key is None or record.value is None:
                    self._fail(batch, "a control record without a key or value")
                controls.append(_decode_control(record.key, record.value))
        except DamagedFileError:
            raise
        except RecordError as error:
            self._fail(batch, str(error))
        self._control_count += len(controls)
        return controls

    def _fail(self, batch: Batch, reason: str) -> NoReturn:
        raise DamagedFileError(
            path=self._path,
            position=batch.position,
            offset=batch.header.base_offset,
            reason=reason,
        )


def _epochs_of(header: SnapshotHeaderRecord) -> EpochStarts:
    """Return the epochs in a checkpoint's header, or none if the epochs are not in order."""
    epochs = [(Epoch(pair.epoch), Offset(pair.start_offset)) for pair in header.epochs]
    rising = all(
        earlier[0] < later[0] and earlier[1] < later[1] for earlier, later in pairwise(epochs)
    )
    sound = rising and all(epoch >= 0 and offset >= 0 for epoch, offset in epochs[:1])
    return tuple(epochs[-MAX_EPOCHS:]) if sound else ()


def _decode_control(key: memoryview | bytes, value: memoryview | bytes) -> ControlRecord | None:
    try:
        return decode_control_record(key, value)
    except UnknownRecordError:
        if control_record_type(key) >= _UNKNOWN_SINCE:
            return None
        raise
