"""The items that a reader of files passes to a printer, in the order of the file.

A file is a `FileStart`, then batches each followed by its records, or entries, then a `FileEnd`. A
file that turns out damaged ends with an exception instead.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from esker.dump.kinds import Kind
from records.batch import BatchHeader, Record
from records.schema import Message


class FileStart(NamedTuple):
    """The start of a file or an object; later items belong to it."""

    path: Path | str  # a text for what is no file: `s3://BUCKET/KEY`
    kind: Kind
    size_bytes: int


class BatchItem(NamedTuple):
    """A batch; its records follow if they are requested."""

    position: int  # in the file
    header: BatchHeader


class RecordItem(NamedTuple):
    """A record of the last `BatchItem`. `message` is None where only bytes are shown."""

    record: Record
    message: Message | None
    version: int
    note: str | None  # why there is no message


class Entry(NamedTuple):
    """A line of an index or of a small file: `type` names it in JSON."""

    type: str
    fields: dict[str, Any]


@dataclass(slots=True)
class Tally:
    """The counts of a file so far. `counted` is false if only the offsets are known."""

    counted: bool = True
    batches: int = 0
    records: int = 0
    entries: int = 0
    first_offset: int | None = None
    end_offset: int | None = None  # exclusive
    opaque: dict[str, int] = field(default_factory=dict)  # why records are shown as bytes: how many
    remarks: list[str] = field(default_factory=list)

    def saw_batch(self, header: BatchHeader) -> None:
        self.batches += 1
        self.records += header.record_count
        if self.first_offset is None:
            self.first_offset = header.base_offset
        self.end_offset = header.end_offset

    def saw_opaque(self, reason: str) -> None:
        """Count a record shown as bytes, by reason; reasons beyond the first 100 are "other"."""
        if reason not in self.opaque and len(self.opaque) >= 100:
            reason = "other"
        self.opaque[reason] = self.opaque.get(reason, 0) + 1


class FileEnd(NamedTuple):
    """The end of a file, or of its readable part."""

    start: FileStart
    tally: Tally


Item = FileStart | BatchItem | RecordItem | Entry | FileEnd
