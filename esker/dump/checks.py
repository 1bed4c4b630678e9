"""`--verify`: checks every byte of a file and reports the first damage.

Checksums vouch for the records of a batch, so checking a file costs little more than reading it.
`deep` also takes the records apart: bytes that were written wrong have a right checksum, too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from esker.dump.batches import (
    MALFORMED,
    NOT_METADATA,
    check_segment_order,
    decode_records,
    origin_remark,
)
from esker.dump.items import RecordItem, Tally
from esker.dump.kinds import Kind, base_offset_of
from esker.dump.small import ReadOnly, count_entries
from raft.segments.files import File, Mode
from raft.segments.scan import NO_EPOCH, Advance, Tail, advance
from records.batch import Batch
from records.types import Offset
from snapshot.errors import DamagedFileError
from snapshot.reader import CheckpointReader, strangeness
from snapshot.stream import WINDOW_BYTES, iter_file_batches

NO_INDEX: Final = 1 << 62
"""Interval between index entries for which no entries are made."""

Progress = Callable[[int], None]
"""Told the position in the file, now and then."""


def verify(
    files: ReadOnly,
    path: Path,
    kind: Kind,
    *,
    deep: bool = False,
    allow_gaps: bool = False,
    progress: Progress | None = None,
) -> Tally:
    """Check a whole file and return the counts of its batches and records.

    Args:    deep: also decode every record of a segment or checkpoint.
             allow_gaps: a segment's offsets may skip some, as a compacted topic's do.
    Raises:  DamagedFileError or CorruptFileError for the first thing that is wrong; OSError.
    """
    tally = Tally()
    match kind:
        case Kind.SEGMENT:
            file = files.open(path, Mode.READ)
            try:
                expected = base_offset_of(path)
                tail = None
                if not (deep or allow_gaps) and expected is not None:
                    tail = _skim(file, expected, tally, progress)
                batches = iter_file_batches(file, path, position=tail.position if tail else 0)
                in_order = check_segment_order(
                    path,
                    batches,
                    expected_offset=tail.end_offset if tail else expected,
                    epoch=tail.epoch if tail else NO_EPOCH,
                    allow_gaps=allow_gaps,
                )
                _count(path, in_order, tally, progress, deep=deep, strict=False)
            finally:
                file.close()
        case Kind.CHECKPOINT:
            with CheckpointReader(files, path) as reader:
                _count(path, reader.batches(), tally, progress, deep=deep, strict=True)
                assert reader.checkpoint is not None, f"{path} was not read to its end"
                tally.remarks.append(origin_remark(reader.checkpoint))
        case _:
            count_entries(files, path, kind, tally)
    return tally


def _skim(file: File, base_offset: Offset, tally: Tally, progress: Progress | None) -> Tail:
    """Check a segment's batches as log recovery does; return the end of the last sound batch.

    Where that stops, at a batch larger than a window or at one that is not sound, the careful
    reader goes on and says what is wrong. Batches are not counted on the way.
    """
    found = Advance(Tail(0, base_offset))
    buffer = memoryview(bytearray(WINDOW_BYTES))
    while True:
        position = found.tail.position
        filled = file.read_into(position, buffer)
        advance(found, buffer[:filled], index_interval_bytes=NO_INDEX)
        if found.tail.position == position:
            break
        if progress is not None:
            progress(found.tail.position)
    if found.tail.position > 0:
        tally.counted = False
        tally.first_offset, tally.end_offset = base_offset, found.tail.end_offset
    return found.tail


def _count(
    path: Path,
    batches: Iterator[Batch],
    tally: Tally,
    progress: Progress | None,
    *,
    deep: bool,
    strict: bool,
) -> None:
    """Read all batches and count their contents; with `deep`, decode every record.

    Args:    strict: a record that does not fit its type is damage; otherwise it may be the value of
             another topic that only resembles a metadata record.
    """
    for batch in batches:
        tally.saw_batch(batch.header)
        if deep:
            for item in decode_records(path, batch, tally):
                reason = _fault(batch, item) if strict else None
                if reason is not None:
                    offset = item.record.offset
                    raise DamagedFileError(
                        path=path, position=batch.position, offset=offset, reason=reason
                    )
        if progress is not None:
            progress(batch.position)


def _fault(batch: Batch, item: RecordItem) -> str | None:
    """Return the reason why a checkpoint cannot have this record; None for a valid record.

    An unknown type may be a newer writer's.
    """
    if item.note is not None and item.note.startswith(MALFORMED):
        return item.note
    if not batch.header.is_control:
        return strangeness(batch, item.record) or (
            NOT_METADATA if item.note == NOT_METADATA else None
        )
    return None
