"""Object commits as NumPy columns, many records walked at the same time.

    pile = CommitPile(("byte_sizes", "base_offsets"))
    pile.add(position, value, version, body)  # of each record, where its body begins
    columns = pile.take()

A record is a head and some columns, each behind its length. To find them one record after the
other takes Python some 20 µs a record, as long as everything else that a digest needs. Here some
hundred records stand in one buffer, and a step is made for all of them at once: NumPy reads the
lengths of all first columns, then of all second ones. Columns that are not needed are skipped.

The trap is a malformed record: this walk finds that there is one, but not which. Then each record
is parsed by itself, for an error that names it.

Source: KIP-1164, CommitBatches; the layout is that of `spark_jobs.tables.commits`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple
from uuid import UUID

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from records.compression import Buffer
from records.uuids import encode_uuid
from records.varint import MAX_VARINT_BYTES
from records.varint_columns import Numbers, read_uvarints
from spark_jobs.readers.log_position import LogPosition
from spark_jobs.tables.commits import (
    BATCH_COUNTS,
    COLUMNS,
    FIRST_VERSIONS,
    HEAD,
    OF_BATCHES,
    OPTIONAL,
    PARTITIONS,
    TOPIC_IDS,
    TOPIC_INDEXES,
    UUID_BYTES,
    VERSIONS,
    WIDTHS,
    check_groups,
    made_up,
    parse_commit,
    width_of,
)

WALKED_BYTES: Final = 4 * 1024 * 1024
"""Bytes of records that are walked together: some hundred records, far from a whole piece."""

AnyNumbers = npt.NDArray[Any]

_HEAD: Final = np.dtype([(field.name, f">i{width_of(field)}") for field in HEAD])
_ALWAYS: Final = (TOPIC_IDS, TOPIC_INDEXES, PARTITIONS, BATCH_COUNTS)
_BEYOND: Final = bytes(_HEAD.itemsize + MAX_VARINT_BYTES)
"""Stands behind the last record, so that a step too far stays in the buffer."""


class Columns(NamedTuple):
    """Commits as NumPy columns, in order: separate ones for records, groups and batches."""

    heads: Mapping[str, Numbers]  # of each record, by the names of its fields
    rows_of: Numbers  # how many batches each record has
    groups_of: Numbers  # how many groups
    topic_ids: Sequence[str]  # each once
    topics: AnyNumbers  # of each group: which of them
    partitions: AnyNumbers  # of each group
    batch_counts: AnyNumbers  # of each group
    batches: Mapping[str, AnyNumbers]  # of each batch; the chosen fields


class CommitPile:
    """Collects commits and decodes many of them together."""

    def __init__(self, names: Sequence[str]) -> None:
        """Start without commits, and choose the columns to decode.

        Args:    names: fields of the record, of those with one value a batch.
        """
        self._names = names
        self._wanted = (*_ALWAYS, *(COLUMNS.index(name) for name in names))
        self._clear()

    def _clear(self) -> None:
        self._offsets: list[int] = []  # of all records
        self._values: list[Buffer] = []  # of those that are not walked yet
        self._bodies: list[int] = []
        self._versions: list[int] = []
        self._size = 0
        self._heads = [np.zeros(0, _HEAD)]
        self._counts = [np.zeros((len(COLUMNS), 0), np.int64)]
        self._parts: dict[int, list[bytes]] = {i: [] for i in self._wanted}

    def add(self, position: LogPosition, value: Buffer, version: int, body: int) -> None:
        """Append the value of one commit record, with its frame, to the collected records.

        Args:    version: as its frame says. body: where that ends.
        Raises:  MalformedMessageError if this, or one before it, is no ObjectCommitRecord.
        """
        if version not in VERSIONS:
            parse_commit(value)
        self._offsets.append(position.offset)
        self._values.append(value)
        self._bodies.append(body)
        self._versions.append(version)
        self._size += len(value)
        if self._size >= WALKED_BYTES:
            self._walk()

    def take(self) -> Columns:
        """Return the commits that were added since the last call, as columns.

        Raises:  MalformedMessageError as `add`; if a group names a topic that its record does not
                 have, or the groups of a record are not all its batches.
        """
        self._walk()
        counts = np.concatenate(self._counts, axis=1)
        rows_of, groups_of, topics_of = counts[[OF_BATCHES[0], BATCH_COUNTS, TOPIC_IDS]]
        batch_counts, indexes = self._column(BATCH_COUNTS), self._column(TOPIC_INDEXES)
        check_groups(self._offsets, rows_of, groups_of, topics_of, batch_counts, indexes)
        topic_ids, topics = _distinct(b"".join(self._parts[TOPIC_IDS]))
        before = np.repeat(np.cumsum(topics_of) - topics_of, groups_of)
        heads = np.concatenate(self._heads)
        taken = Columns(
            {name: heads[name].astype(np.int64) for name in _HEAD.names or ()},
            rows_of,
            groups_of,
            topic_ids,
            topics[before + indexes],
            self._column(PARTITIONS),
            batch_counts,
            {name: self._column(COLUMNS.index(name)) for name in self._names},
        )
        self._clear()
        return taken

    def _walk(self) -> None:
        """Cut the chosen columns out of the collected records, then drop the records."""
        lengths = np.fromiter(map(len, self._values), np.int64, len(self._values))
        data = b"".join([*self._values, _BEYOND])
        ends = np.cumsum(lengths)
        begins = ends - lengths + np.array(self._bodies, np.int64)
        versions = np.array(self._versions, np.int64)
        walked = _walk(np.frombuffer(data, np.uint8), begins, ends, versions)
        if walked is None:
            for value in self._values:
                parse_commit(value)  # one of them raises
            raise AssertionError("records that are sound one by one, and not together")
        self._values, self._bodies, self._versions, self._size = [], [], [], 0
        self._heads.append(walked.heads)
        self._counts.append(np.array(walked.counts))
        for i, parts in self._parts.items():
            parts.append(_cut(data, walked, i))

    def _column(self, i: int) -> AnyNumbers:
        """Return one column of the collected commits as numbers in native byte order."""
        parts = [np.frombuffer(part, f">i{WIDTHS[i]}") for part in self._parts[i]]
        return np.concatenate(parts, dtype=f"=i{WIDTHS[i]}")


class _Walked(NamedTuple):
    """The positions of all columns: a row for each column, a number for each record."""

    heads: AnyNumbers
    starts: list[Numbers]  # bytes
    counts: list[Numbers]  # entries


def _walk(
    raw: npt.NDArray[np.uint8], positions: Numbers, ends: Numbers, versions: Numbers
) -> _Walked | None:
    """Find the position of each column in all records, or return None if a record is malformed."""
    if (positions + _HEAD.itemsize >= ends).any():
        return None
    heads = raw[positions[:, None] + np.arange(_HEAD.itemsize)].view(_HEAD)[:, 0]
    positions = positions + _HEAD.itemsize
    starts, counts = [], []
    for width, first_version in zip(WIDTHS, FIRST_VERSIONS, strict=True):
        if (positions >= ends).any():
            return None
        has_column = versions >= first_version
        try:
            lengths, behind = read_uvarints(raw, positions)
        except ValueError:
            return None
        length = np.where(has_column, lengths.astype(np.int64), 1)
        positions = np.where(has_column, behind, positions)
        starts.append(positions)
        counts.append(length - 1)
        positions = positions + counts[-1] * width
        if (length < 1).any() or (positions > ends).any():
            return None
    if (positions >= ends).any():  # tagged fields would follow
        return None
    rows, groups = counts[OF_BATCHES[0]], counts[BATCH_COUNTS]
    for i, count in enumerate(counts):
        as_expected = count == (rows if i in OF_BATCHES else groups)
        if i in OPTIONAL:
            as_expected |= count == 0
        if i != TOPIC_IDS and not as_expected.all():
            return None
    return _Walked(heads, starts, counts)


def _cut(data: bytes, walked: _Walked, i: int) -> bytes:
    """Cut one column out of all records, with default values where a record omits the column."""
    starts, counts, rows = walked.starts[i], walked.counts[i], walked.counts[OF_BATCHES[0]]
    if i in OPTIONAL and not counts.any():
        return made_up(i, int(rows.sum()))
    ends = starts + counts * WIDTHS[i]
    # copies: views would cost twice as much to make and to join
    cut = [data[a:b] for a, b in zip(starts.tolist(), ends.tolist(), strict=True)]
    if i in OPTIONAL:
        for record in np.flatnonzero(counts == 0).tolist():
            cut[record] = made_up(i, int(rows[record]))
    return b"".join(cut)


def _distinct(ids: bytes) -> tuple[list[str], AnyNumbers]:
    """Return the distinct topic ids, and for each encoded id its index among the distinct ids."""
    found = pa.Array.from_buffers(
        pa.binary(UUID_BYTES), len(ids) // UUID_BYTES, [None, pa.py_buffer(ids)]
    ).dictionary_encode()
    names = [encode_uuid(UUID(bytes=topic_id)) for topic_id in found.dictionary.to_pylist()]
    return names, np.frombuffer(found.indices.buffers()[1], np.int32, len(found))
