"""Object commits as rows of batches: the hot table, decoded without looking at single numbers.

An `ObjectCommitRecord` keeps its batches as columns of big-endian numbers, and so does Arrow, the
other way round. So nothing is decoded: the bytes of each column are cut out of the record, those of
many records are put end to end, and NumPy turns a whole column at once.

The surprise is what a record may leave out. No error codes means that no batch was refused, and no
duplicates that none was one; both columns are then made up, of zeros.

Source: KIP-1164, CommitBatches; `records.diskless.ObjectCommitRecord`, whose declaration is walked
here, so that the two cannot differ.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple
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
from spark_jobs.place import Place

Numbers = npt.NDArray[np.int64]

_ARROW: Final = {1: pa.int8(), 2: pa.int16(), 4: pa.int32(), 8: pa.int64()}
_UUID_BYTES: Final = 16


def _width(field: Field) -> int:
    kind = field.type.element if isinstance(field.type, ArrayOf) else field.type
    assert isinstance(kind, Fixed), f"{field.name} is neither a number nor a column of numbers"
    return kind.size


_FIELDS: Final = ObjectCommitRecord.schema().fields
_HEAD: Final = tuple(field for field in _FIELDS if isinstance(field.type, Fixed))
_COLUMNS: Final = tuple(field.name for field in _FIELDS[len(_HEAD) :])
_WIDTHS: Final = tuple(_width(field) for field in _FIELDS[len(_HEAD) :])
_HEAD_STRUCT: Final = struct.Struct(
    ">" + "".join({1: "b", 2: "h", 4: "i", 8: "q"}[_width(field)] for field in _HEAD)
)

_TOPIC_IDS: Final = _COLUMNS.index("topic_ids")
_TOPIC_INDEXES: Final = _COLUMNS.index("topic_indexes")
_PARTITIONS: Final = _COLUMNS.index("partitions")
_BATCH_COUNTS: Final = _COLUMNS.index("batch_counts")
_OF_BATCHES: Final = tuple(range(_BATCH_COUNTS + 1, len(_COLUMNS)))
_BYTE_SIZES: Final = _COLUMNS.index("byte_sizes")
_OPTIONAL: Final = (_COLUMNS.index("error_codes"), _COLUMNS.index("duplicates"))
_SHAPES: Final = tuple(
    (i, width if i in _OF_BATCHES else 0, 0 if i in _OF_BATCHES else width)
    for i, width in enumerate(_WIDTHS)
    if i not in (_TOPIC_IDS, *_OPTIONAL)
)
"""Of each column that is always there: the bytes it has for each batch, and for each group."""

PLACE_FIELDS: Final = (
    pa.field("from_checkpoint", pa.bool_(), nullable=False),
    pa.field("log_offset", pa.int64(), nullable=False),
    pa.field("log_epoch", pa.int32(), nullable=False),
    pa.field("log_timestamp_ms", pa.int64(), nullable=False),
)
"""Where a row comes from; every table begins with them."""

SCHEMA: Final = pa.schema(
    [
        *PLACE_FIELDS,
        *(pa.field(field.name, _ARROW[_width(field)], nullable=False) for field in _HEAD),
        pa.field("topic_id", pa.string(), nullable=False),
        pa.field("partition", pa.int32(), nullable=False),
        *(
            pa.field(_COLUMNS[i].removesuffix("s"), _ARROW[_WIDTHS[i]], nullable=False)
            for i in _OF_BATCHES
        ),
    ]
)
"""One row a batch; what is of the whole object stands in each of its rows."""

OBJECT_SCHEMA: Final = pa.schema(
    [
        *PLACE_FIELDS,
        *(pa.field(field.name, _ARROW[_width(field)], nullable=False) for field in _HEAD),
        pa.field("topics", pa.int32(), nullable=False),
        pa.field("partitions", pa.int32(), nullable=False),
        pa.field("batches", pa.int32(), nullable=False),
        pa.field("batch_bytes", pa.int64(), nullable=False),
        pa.field("refused_batches", pa.int32(), nullable=False),
        pa.field("duplicate_batches", pa.int32(), nullable=False),
    ]
)
"""One row an object, as it was committed."""


class Columns(NamedTuple):
    """Commits as NumPy columns, in order: what is of records, of groups and of batches apart."""

    heads: Mapping[str, Numbers]  # of each record, by the names of its fields
    rows_of: Numbers  # how many batches each record has
    groups_of: Numbers  # how many groups
    topic_ids: Sequence[str]  # each once
    topics: Numbers  # of each group: which of them
    partitions: Numbers  # of each group
    batch_counts: Numbers  # of each group
    batches: Mapping[str, Numbers]  # of each batch; those asked for


class CommitColumns:
    """Collects commits, and gives their batches out as one Arrow batch, or as NumPy columns."""

    def __init__(self) -> None:
        self._clear()

    def _clear(self) -> None:
        self.rows = 0
        self._parts: list[list[Buffer]] = [[] for _ in _COLUMNS]
        self._places: list[Place] = []
        self._heads: list[tuple[int, ...]] = []
        self._rows_of: list[int] = []  # of each record
        self._groups_of: list[int] = []
        self._topics_of: list[int] = []

    def add(self, place: Place, value: Buffer) -> None:
        """One record's value, with its frame.

        Raises:  MalformedMessageError if it is no ObjectCommitRecord of a version known here.
        """
        head, columns = parse_commit(value)
        rows = len(columns[_OF_BATCHES[0]]) // _WIDTHS[_OF_BATCHES[0]]
        groups = len(columns[_BATCH_COUNTS]) // _WIDTHS[_BATCH_COUNTS]
        for i in _OPTIONAL:
            if not columns[i]:
                columns[i] = bytes(rows * _WIDTHS[i])
        for part, column in zip(self._parts, columns, strict=True):
            part.append(column)
        self._places.append(place)
        self._heads.append(head)
        self._rows_of.append(rows)
        self._groups_of.append(groups)
        self._topics_of.append(len(columns[_TOPIC_IDS]) // _UUID_BYTES)
        self.rows += rows

    def take(self) -> pa.RecordBatch:
        """What was collected since the last time, in order.

        Raises:  MalformedMessageError if a group names a topic that its record does not have, or
                 the groups of a record are not all its batches.
        """
        rows_of = np.array(self._rows_of, np.int64)
        counts = self._column(_BATCH_COUNTS).astype(np.int64)
        self._check_groups(rows_of, counts)
        place = (np.array(column) for column in _transposed(self._places, len(Place._fields)))
        head = (np.array(column) for column in _transposed(self._heads, len(_HEAD)))
        arrays = [
            pa.array(np.repeat(column, rows_of), field.type)
            for column, field in zip((*place, *head), SCHEMA, strict=False)
        ]
        arrays += [
            self._topic_ids(counts),
            pa.array(np.repeat(self._column(_PARTITIONS), counts)),
            *(pa.array(self._column(i)) for i in _OF_BATCHES),
        ]
        self._clear()
        return pa.RecordBatch.from_arrays(arrays, schema=SCHEMA)

    def take_columns(self, names: Sequence[str]) -> Columns:
        """The same with fewer columns and no row repeated: a third of the work.

        Args:    names: fields of the record, of those with one value a batch.
        Raises:  MalformedMessageError as `take`.
        """
        rows_of = np.array(self._rows_of, np.int64)
        counts = self._column(_BATCH_COUNTS).astype(np.int64)
        self._check_groups(rows_of, counts)
        heads = np.array(self._heads, np.int64).reshape(-1, len(_HEAD)).T
        data = pa.py_buffer(b"".join(self._parts[_TOPIC_IDS]))
        raw = pa.Array.from_buffers(
            pa.binary(_UUID_BYTES), len(data) // _UUID_BYTES, [None, data]
        ).dictionary_encode()
        taken = Columns(
            dict(zip((field.name for field in _HEAD), heads, strict=True)),
            rows_of,
            np.array(self._groups_of, np.int64),
            [encode_uuid(UUID(bytes=one)) for one in raw.dictionary.to_pylist()],
            raw.indices.to_numpy()[self._topic_rows()],
            self._column(_PARTITIONS),
            counts,
            {name: self._column(_COLUMNS.index(name)) for name in names},
        )
        self._clear()
        return taken

    def _column(self, index: int) -> Numbers:
        width = _WIDTHS[index]
        return np.frombuffer(b"".join(self._parts[index]), f">i{width}").astype(f"=i{width}")

    def _topic_ids(self, counts: Numbers) -> pa.Array:
        """Of each batch, as text; each topic is spelt once, however many commits name it."""
        ids = b"".join(self._parts[_TOPIC_IDS])
        raw = pa.FixedSizeBinaryArray.from_buffers(
            pa.binary(_UUID_BYTES), len(ids) // _UUID_BYTES, [None, pa.py_buffer(ids)]
        ).dictionary_encode()
        names = pa.array(encode_uuid(UUID(bytes=one)) for one in raw.dictionary.to_pylist())
        indexes = raw.indices.to_numpy(zero_copy_only=False)[self._topic_rows()]
        return names.cast(pa.string()).take(pa.array(np.repeat(indexes, counts)))

    def _topic_rows(self) -> Numbers:
        """For each group, which of all topic ids is its own."""
        topics_of = np.array(self._topics_of, np.int64)
        before = np.repeat(np.cumsum(topics_of) - topics_of, self._groups_of)
        return self._column(_TOPIC_INDEXES) + before

    def _check_groups(self, rows_of: Numbers, counts: Numbers) -> None:
        """That the groups of every record are its batches, of topics that it names."""
        records = np.arange(len(rows_of))
        record = np.repeat(records, self._groups_of)  # of each group
        indexes = self._column(_TOPIC_INDEXES)
        topics = np.array(self._topics_of, np.int64)[record]
        wrong = record[(counts < 1) | (indexes < 0) | (indexes >= topics)]
        sums = np.bincount(record, weights=counts, minlength=len(rows_of))
        wrong = np.concatenate((wrong, records[sums != rows_of]))
        if len(wrong):
            offset = self._places[int(wrong.min())].offset
            raise _malformed(
                0, "batch_counts", 0, f"groups that do not fit, at log offset {offset}"
            )


class ObjectColumns:
    """Collects commits, and gives them out with a row for each object."""

    def __init__(self) -> None:
        self._rows: list[tuple[Any, ...]] = []

    @property
    def rows(self) -> int:
        """Collected and not taken."""
        return len(self._rows)

    def add(self, place: Place, value: Buffer) -> None:
        """As `CommitColumns.add`."""
        head, columns = parse_commit(value)
        sizes, codes, duplicates = (_numbers(columns[i], i) for i in (_BYTE_SIZES, *_OPTIONAL))
        self._rows.append(
            (
                *place,
                *head,
                len(columns[_TOPIC_IDS]) // _UUID_BYTES,
                len(columns[_BATCH_COUNTS]) // _WIDTHS[_BATCH_COUNTS],
                len(sizes),
                int(sizes.sum()),
                int(np.count_nonzero(codes)),
                int(np.count_nonzero(duplicates)),
            )
        )

    def take(self) -> pa.RecordBatch:
        """What was collected since the last time, in order."""
        rows, self._rows = self._rows, []
        columns = _transposed(rows, len(OBJECT_SCHEMA))
        arrays = [
            pa.array(column, field.type)
            for column, field in zip(columns, OBJECT_SCHEMA, strict=True)
        ]
        return pa.RecordBatch.from_arrays(arrays, schema=OBJECT_SCHEMA)


def parse_commit(value: Buffer) -> tuple[tuple[int, ...], list[Buffer]]:
    """What is of the whole object, and the bytes of each column.

    Raises:  MalformedMessageError if it is no ObjectCommitRecord of a version known here.
    """
    value = memoryview(value)
    _, version, position = read_frame(value)
    if version not in ObjectCommitRecord.schema().versions:
        raise _malformed(version, "", position, "no such version is known")
    try:
        head = _HEAD_STRUCT.unpack_from(value, position)
        columns = _cut(value, position + _HEAD_STRUCT.size)
    except (struct.error, IndexError, ValueError) as error:
        raise _malformed(version, "", position, str(error)) from None
    rows = len(columns[_OF_BATCHES[0]]) // _WIDTHS[_OF_BATCHES[0]]
    groups = len(columns[_BATCH_COUNTS]) // _WIDTHS[_BATCH_COUNTS]
    _check(version, columns, rows, groups)
    return head, columns


def _numbers(column: Buffer, index: int) -> Numbers:
    return np.frombuffer(column, f">i{_WIDTHS[index]}")


def _cut(value: memoryview, position: int) -> list[Buffer]:
    """The bytes of each column, and nothing after them but tagged fields, which are skipped."""
    columns: list[Buffer] = []
    size = len(value)
    for width in _WIDTHS:
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
    """That columns of the same things are equally long."""
    there = all(not columns[i] or len(columns[i]) == rows * _WIDTHS[i] for i in _OPTIONAL)
    found = [len(columns[i]) for i, _, _ in _SHAPES]
    if there and found == [rows * row + groups * group for _, row, group in _SHAPES]:
        return  # nearly always; else it is said what is wrong
    for i, (column, width) in enumerate(zip(columns, _WIDTHS, strict=True)):
        expected = rows if i in _OF_BATCHES else groups
        if i == _TOPIC_IDS or (i in _OPTIONAL and not column):
            continue
        if len(column) != expected * width:
            reason = f"{len(column) // width} entries, expected {expected}"
            raise _malformed(version, _COLUMNS[i], 0, reason)


def _transposed(rows: Sequence[tuple[int, ...]], width: int) -> Sequence[Sequence[int]]:
    return list(zip(*rows, strict=True)) or [()] * width


def _malformed(version: int, path: str, position: int, reason: str) -> MalformedMessageError:
    return MalformedMessageError(
        message="ObjectCommitRecord", version=version, path=path, position=position, reason=reason
    )
