"""Object commits as rows of batches: the hot table, decoded without looking at single numbers.

An `ObjectCommitRecord` keeps its batches as columns of big-endian numbers, and so does Arrow, the
other way round. So nothing is decoded: the bytes of each column are cut out of the record, those of
many records are put end to end, and NumPy turns a whole column at once.

The trap is what a record may leave out. No error codes means that no batch was refused, and no
duplicates that none was one; both columns are then made up, of zeros. The same holds for
transaction numbers, which version 0 does not have at all: they are made up of -1.

Source: KIP-1164, CommitBatches; `records.diskless.ObjectCommitRecord`, whose declaration is walked
here, so that the two cannot differ.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any, Final
from uuid import UUID

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from records.codegen import read_uvarint
from records.compression import Buffer
from records.diskless import ObjectCommitRecord
from records.errors import MalformedMessageError
from records.frame import read_frame
from records.schema import ArrayOf, Field
from records.uuids import encode_uuid
from records.wire import Fixed
from spark_jobs.readers.log_position import LogPosition

Numbers = npt.NDArray[np.int64]

_ARROW: Final = {1: pa.int8(), 2: pa.int16(), 4: pa.int32(), 8: pa.int64()}
UUID_BYTES: Final = 16


def width_of(field: Field) -> int:
    """Return the encoded size in bytes of a number field, or of each number in a column."""
    kind = field.type.element if isinstance(field.type, ArrayOf) else field.type
    assert isinstance(kind, Fixed), f"{field.name} is neither a number nor a column of numbers"
    return kind.size


_FIELDS: Final = ObjectCommitRecord.schema().fields
HEAD: Final = tuple(field for field in _FIELDS if isinstance(field.type, Fixed))
COLUMNS: Final = tuple(field.name for field in _FIELDS[len(HEAD) :])
VERSIONS: Final = ObjectCommitRecord.schema().versions
WIDTHS: Final = tuple(width_of(field) for field in _FIELDS[len(HEAD) :])
_HEAD_STRUCT: Final = struct.Struct(
    ">" + "".join({1: "b", 2: "h", 4: "i", 8: "q"}[width_of(field)] for field in HEAD)
)

TOPIC_IDS: Final = COLUMNS.index("topic_ids")
TOPIC_INDEXES: Final = COLUMNS.index("topic_indexes")
PARTITIONS: Final = COLUMNS.index("partitions")
BATCH_COUNTS: Final = COLUMNS.index("batch_counts")
OF_BATCHES: Final = tuple(range(BATCH_COUNTS + 1, len(COLUMNS)))
_BYTE_SIZES: Final = COLUMNS.index("byte_sizes")
_CODES: Final = COLUMNS.index("error_codes")
_DUPLICATES: Final = COLUMNS.index("duplicates")
TRANSACTION_NUMBERS: Final = COLUMNS.index("transaction_numbers")
OPTIONAL: Final = (_CODES, _DUPLICATES, TRANSACTION_NUMBERS)
FIRST_VERSIONS: Final = tuple(field.versions.first for field in _FIELDS[len(HEAD) :])
"""The first record version that has each column."""
_SHAPES: Final = tuple(
    (i, width if i in OF_BATCHES else 0, 0 if i in OF_BATCHES else width)
    for i, width in enumerate(WIDTHS)
    if i not in (TOPIC_IDS, *OPTIONAL)
)
"""The required columns: their bytes for each batch, and for each group."""

POSITION_FIELDS: Final = (
    pa.field("from_checkpoint", pa.bool_(), nullable=False),
    pa.field("log_offset", pa.int64(), nullable=False),
    pa.field("log_epoch", pa.int32(), nullable=False),
    pa.field("log_timestamp_ms", pa.int64(), nullable=False),
)
"""The log position of a row; every table begins with these fields."""

SCHEMA: Final = pa.schema(
    [
        *POSITION_FIELDS,
        *(pa.field(field.name, _ARROW[width_of(field)], nullable=False) for field in HEAD),
        pa.field("topic_id", pa.string(), nullable=False),
        pa.field("partition", pa.int32(), nullable=False),
        *(
            pa.field(
                COLUMNS[i].removesuffix("s"),
                _ARROW[WIDTHS[i]],
                nullable=i == TRANSACTION_NUMBERS,
            )
            for i in OF_BATCHES
        ),
    ]
)
"""One row for each batch; each row repeats the fields of the whole object.

`transaction_number` is null for a batch that is not transactional.
"""

OBJECT_SCHEMA: Final = pa.schema(
    [
        *POSITION_FIELDS,
        *(pa.field(field.name, _ARROW[width_of(field)], nullable=False) for field in HEAD),
        pa.field("topics", pa.int32(), nullable=False),
        pa.field("partitions", pa.int32(), nullable=False),
        pa.field("batches", pa.int32(), nullable=False),
        pa.field("batch_bytes", pa.int64(), nullable=False),
        pa.field("refused_batches", pa.int32(), nullable=False),
        pa.field("duplicate_batches", pa.int32(), nullable=False),
    ]
)
"""One row for each object, as it was committed."""


def made_up(index: int, rows: int) -> bytes:
    """Return default bytes for an optional column that a record of `rows` batches omits."""
    byte = b"\xff" if index == TRANSACTION_NUMBERS else b"\0"  # -1 is all ones
    return byte * (rows * WIDTHS[index])


class CommitColumns:
    """Collects commits, and returns their batches as one Arrow batch."""

    def __init__(self) -> None:
        self._clear()

    def _clear(self) -> None:
        self.rows = 0
        self._parts: list[list[Buffer]] = [[] for _ in COLUMNS]
        self._positions: list[LogPosition] = []
        self._heads: list[tuple[int, ...]] = []
        self._rows_of: list[int] = []  # of each record
        self._groups_of: list[int] = []
        self._topics_of: list[int] = []

    def add(self, position: LogPosition, value: Buffer) -> None:
        """Append the columns of one framed ObjectCommitRecord to these commits.

        Raises:  MalformedMessageError if it is no ObjectCommitRecord of a version known here.
        """
        head, columns = parse_commit(value)
        rows = len(columns[OF_BATCHES[0]]) // WIDTHS[OF_BATCHES[0]]
        groups = len(columns[BATCH_COUNTS]) // WIDTHS[BATCH_COUNTS]
        for i in OPTIONAL:
            if not columns[i]:
                columns[i] = made_up(i, rows)
        for part, column in zip(self._parts, columns, strict=True):
            part.append(column)
        self._positions.append(position)
        self._heads.append(head)
        self._rows_of.append(rows)
        self._groups_of.append(groups)
        self._topics_of.append(len(columns[TOPIC_IDS]) // UUID_BYTES)
        self.rows += rows

    def take(self) -> pa.RecordBatch:
        """Return the rows that were added since the last call, in order.

        Raises:  MalformedMessageError if a group names a topic that its record does not have, or
                 the groups of a record are not all its batches.
        """
        rows_of = np.array(self._rows_of, np.int64)
        counts = self._column(BATCH_COUNTS).astype(np.int64)
        check_groups(
            [position.offset for position in self._positions],
            rows_of,
            np.array(self._groups_of, np.int64),
            np.array(self._topics_of, np.int64),
            counts,
            self._column(TOPIC_INDEXES),
        )
        width = len(LogPosition._fields)
        position = (np.array(column) for column in _transpose(self._positions, width))
        head = (np.array(column) for column in _transpose(self._heads, len(HEAD)))
        arrays = [
            pa.array(np.repeat(column, rows_of), field.type)
            for column, field in zip((*position, *head), SCHEMA, strict=False)
        ]
        arrays += [
            self._topic_ids(counts),
            pa.array(np.repeat(self._column(PARTITIONS), counts)),
            *(self._batch_column(i) for i in OF_BATCHES),
        ]
        self._clear()
        return pa.RecordBatch.from_arrays(arrays, schema=SCHEMA)

    def _column(self, index: int) -> Numbers:
        width = WIDTHS[index]
        return np.frombuffer(b"".join(self._parts[index]), f">i{width}").astype(f"=i{width}")

    def _batch_column(self, index: int) -> pa.Array:
        """Return one value for each batch, with null for a batch outside of any transaction."""
        values = self._column(index)
        return pa.array(values, mask=values < 0 if index == TRANSACTION_NUMBERS else None)

    def _topic_ids(self, counts: Numbers) -> pa.Array:
        """Return the topic id of each collected batch as text.

        Each distinct topic is formatted once.
        """
        ids = b"".join(self._parts[TOPIC_IDS])
        raw = pa.FixedSizeBinaryArray.from_buffers(
            pa.binary(UUID_BYTES), len(ids) // UUID_BYTES, [None, pa.py_buffer(ids)]
        ).dictionary_encode()
        names = pa.array(
            encode_uuid(UUID(bytes=topic_id)) for topic_id in raw.dictionary.to_pylist()
        )
        indexes = raw.indices.to_numpy(zero_copy_only=False)[self._topic_rows()]
        return names.cast(pa.string()).take(pa.array(np.repeat(indexes, counts)))

    def _topic_rows(self) -> Numbers:
        """Return, for each batch group, the index of its topic id among all commits' topic ids."""
        topics_of = np.array(self._topics_of, np.int64)
        before = np.repeat(np.cumsum(topics_of) - topics_of, self._groups_of)
        return self._column(TOPIC_INDEXES) + before


def check_groups(
    offsets: Sequence[int],
    rows_of: Numbers,
    groups_of: Numbers,
    topics_of: Numbers,
    counts: npt.NDArray[Any],
    indexes: npt.NDArray[Any],
) -> None:
    """Check that each record's batch groups add up to its batches and refer to its topics.

    Args:    offsets, rows_of, groups_of, topics_of: of each record: its log offset, and how many
             batches, groups and topics it has. counts, indexes: of each group.
    Raises:  MalformedMessageError.
    """
    records = np.arange(len(rows_of))
    record = np.repeat(records, groups_of)  # of each group
    wrong = record[(counts < 1) | (indexes < 0) | (indexes >= np.repeat(topics_of, groups_of))]
    sums = np.bincount(record, weights=counts, minlength=len(rows_of))
    wrong = np.concatenate((wrong, records[sums != rows_of]))
    if len(wrong):
        offset = offsets[int(wrong.min())]
        raise _malformed_error(
            0, "batch_counts", 0, f"groups do not match the batches, at log offset {offset}"
        )


class ObjectColumns:
    """Collects commits, and returns a row for each object."""

    def __init__(self) -> None:
        self._rows: list[tuple[Any, ...]] = []

    @property
    def rows(self) -> int:
        """Return the number of rows that `add` collected and `take` has not returned yet."""
        return len(self._rows)

    def add(self, position: LogPosition, value: Buffer) -> None:
        """Add the row of the object that one commit record commits.

        Raises:  as `CommitColumns.add`.
        """
        head, columns = parse_commit(value)
        counted = (_BYTE_SIZES, _CODES, _DUPLICATES)
        sizes, codes, duplicates = (_numbers(columns[i], i) for i in counted)
        self._rows.append(
            (
                *position,
                *head,
                len(columns[TOPIC_IDS]) // UUID_BYTES,
                len(columns[BATCH_COUNTS]) // WIDTHS[BATCH_COUNTS],
                len(sizes),
                int(sizes.sum()),
                int(np.count_nonzero(codes)),
                int(np.count_nonzero(duplicates)),
            )
        )

    def take(self) -> pa.RecordBatch:
        """Return the rows that were added since the last call, in order."""
        rows, self._rows = self._rows, []
        columns = _transpose(rows, len(OBJECT_SCHEMA))
        arrays = [
            pa.array(column, field.type)
            for column, field in zip(columns, OBJECT_SCHEMA, strict=True)
        ]
        return pa.RecordBatch.from_arrays(arrays, schema=OBJECT_SCHEMA)


def parse_commit(value: Buffer) -> tuple[tuple[int, ...], list[Buffer]]:
    """Split a commit into the fields of the object and the bytes of each column.

    Raises:  MalformedMessageError if it is no ObjectCommitRecord of a version known here.
    """
    value = memoryview(value)
    _, version, position = read_frame(value)
    if version not in VERSIONS:
        raise _malformed_error(version, "", position, "this version is not known")
    try:
        head = _HEAD_STRUCT.unpack_from(value, position)
        columns = _cut(value, position + _HEAD_STRUCT.size, version)
    except (struct.error, IndexError, ValueError) as error:
        raise _malformed_error(version, "", position, str(error)) from None
    rows = len(columns[OF_BATCHES[0]]) // WIDTHS[OF_BATCHES[0]]
    groups = len(columns[BATCH_COUNTS]) // WIDTHS[BATCH_COUNTS]
    _check(version, columns, rows, groups)
    return head, columns


def _numbers(column: Buffer, index: int) -> Numbers:
    return np.frombuffer(column, f">i{WIDTHS[index]}")


def _cut(value: memoryview, position: int, version: int) -> list[Buffer]:
    """Split a commit record into the bytes of its columns, without its tagged fields."""
    columns: list[Buffer] = []
    size = len(value)
    for width, first_version in zip(WIDTHS, FIRST_VERSIONS, strict=True):
        if version < first_version:
            columns.append(b"")
            continue
        length = value[position]
        if length < 0x80:
            position += 1
        else:
            length, position = read_uvarint(value, position)
        end = position + (length - 1) * width
        if not length or end > size:
            raise ValueError(f"a column of {length - 1} entries, {size - position} bytes left")
        columns.append(value[position:end])
        position = end
    if position == len(value):
        raise ValueError("ends before its tagged fields")
    return columns


def _check(version: int, columns: Sequence[Any], rows: int, groups: int) -> None:
    """Raise RecordError unless the columns of a commit record have equal lengths."""
    there = all(not columns[i] or len(columns[i]) == rows * WIDTHS[i] for i in OPTIONAL)
    found = [len(columns[i]) for i, _, _ in _SHAPES]
    if there and found == [rows * row + groups * group for _, row, group in _SHAPES]:
        return  # nearly always; else it is said what is wrong
    for i, (column, width) in enumerate(zip(columns, WIDTHS, strict=True)):
        expected = rows if i in OF_BATCHES else groups
        if i == TOPIC_IDS or (i in OPTIONAL and not column):
            continue
        if len(column) != expected * width:
            reason = f"{len(column) // width} entries, expected {expected}"
            raise _malformed_error(version, COLUMNS[i], 0, reason)


def _transpose(rows: Sequence[tuple[int, ...]], width: int) -> Sequence[Sequence[int]]:
    return list(zip(*rows, strict=True)) or [()] * width


def _malformed_error(version: int, path: str, position: int, reason: str) -> MalformedMessageError:
    return MalformedMessageError(
        message="ObjectCommitRecord", version=version, path=path, position=position, reason=reason
    )
