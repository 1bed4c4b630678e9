"""Coordinates: which partitions there are, their offsets, and where their records lie.

    with open_coordinates(source) as coordinates:
        coordinates.topics()
        coordinates.offsets([TopicPartition("orders", 0)], committed=False)

They come from a running cluster, through its brokers, or from its logs where no cluster runs: a
log directory, a quorum or an archive. What follows is the same for both.

Source: docs/tables.md; KIP-1164, findBatches.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple, Protocol, Self, overload

import numpy as np
import numpy.typing as npt

MARKER: Final = 0
"""Format of a transaction marker, which lies in no object and has no rows."""

FINAL: Final = 2
"""Format of a run whose bytes are final."""

READ_COMMITTED: Final = "read_committed"
READ_UNCOMMITTED: Final = "read_uncommitted"


class TopicPartition(NamedTuple):
    """A partition of a topic, by the topic's name."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


class Bounds(NamedTuple):
    """The offsets that can be read of a partition."""

    log_start: int  # inclusive
    end: int  # exclusive: the high watermark, or the last stable offset


class Wanted(NamedTuple):
    """A range of a partition's offsets, of which runs are looked up."""

    partition: TopicPartition
    first_offset: int
    end_offset: int  # exclusive


class FoundRun(NamedTuple):
    """The location of a run of batches in an object."""

    object_key: str
    byte_offset: int
    size_bytes: int
    base_offset: int
    end_offset: int  # exclusive
    is_final: bool
    append_time: int | None  # ms; None: the batches have create time, or say it themselves


NO_TIME: Final = -(1 << 63)
"""Stands for no append time in a column."""

Column = npt.NDArray[Any]


class Runs(Sequence[FoundRun]):
    """Runs of a partition by rising offset, as columns: a plan may have millions of them."""

    __slots__ = ("columns",)

    def __init__(self, columns: Column) -> None:
        """Create runs of a structured array with a field for each field of `FoundRun`."""
        self.columns = columns

    @classmethod
    def of_columns(
        cls,
        object_keys: Column,  # UTF-8
        byte_offsets: Column,
        sizes: Column,
        base_offsets: Column,
        end_offsets: Column,
        is_final: Column,
        append_times: Column,  # NO_TIME: None
    ) -> Self:
        """Create runs of one array for each field."""
        numbers = (byte_offsets, sizes, base_offsets, end_offsets)
        kinds = (object_keys.dtype, "i8", "i8", "i8", "i8", "?", "i8")
        fields = list(zip(FoundRun._fields, kinds, strict=True))
        columns = np.empty(len(object_keys), fields)
        values = (object_keys, *numbers, is_final, append_times)
        for name, column in zip(FoundRun._fields, values, strict=True):
            columns[name] = column
        return cls(columns)

    @classmethod
    def of(cls, rows: Iterable[FoundRun]) -> Self:
        """Create runs of rows."""
        some = [
            (one[0].encode(), *one[1:6], NO_TIME if one.append_time is None else one.append_time)
            for one in rows
        ]
        if not some:
            return cls.of_columns(np.empty(0, "S1"), *[np.empty(0, np.int64)] * 6)
        keys, *others = (np.array(column) for column in zip(*some, strict=True))
        return cls.of_columns(keys, *others)

    @property
    def sizes(self) -> npt.NDArray[np.int64]:
        """Return the stored bytes of each run."""
        sizes: npt.NDArray[np.int64] = self.columns["size_bytes"]
        return sizes

    @property
    def base_offsets(self) -> npt.NDArray[np.int64]:
        """Return the first offset of each run."""
        offsets: npt.NDArray[np.int64] = self.columns["base_offset"]
        return offsets

    def __len__(self) -> int:
        return len(self.columns)

    def __iter__(self) -> Iterator[FoundRun]:
        for row in self.columns.tolist():
            run = FoundRun._make(row)
            append_time = None if run.append_time == NO_TIME else run.append_time
            yield run._replace(object_key=row[0].decode(), append_time=append_time)

    @overload
    def __getitem__(self, index: int) -> FoundRun: ...

    @overload
    def __getitem__(self, index: slice | Column) -> Runs: ...

    def __getitem__(self, index: int | slice | Column) -> FoundRun | Runs:
        if isinstance(index, int):
            (row,) = Runs(self.columns[[index]])
            return row
        return Runs(self.columns[index])

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Runs) and list(self) == list(other)

    def __hash__(self) -> int:
        return hash(tuple(self))

    def __reduce__(self) -> tuple[Any, ...]:
        return Runs, (self.columns,)


class Marker(NamedTuple):
    """A transaction's marker: it takes an offset, and lies in no object."""

    offset: int
    batch: bytes  # the control batch that a consumer would see


class Found(NamedTuple):
    """Runs of a partition, from an offset on.

    Markers of transactions are there where aborted ones are: a marker ends its producer's.
    """

    partition: TopicPartition
    first_offset: int
    end_offset: int  # exclusive; where the next look-up begins
    runs: Runs
    aborted: tuple[tuple[int, int], ...]  # for read_committed: producer id, first offset
    markers: tuple[Marker, ...] = ()


class CoordinatesError(Exception):
    """Coordinates cannot be had: the message says of what, and why."""


class LostOffsetsError(CoordinatesError):
    """Offsets that were asked for are below the log start: retention or DeleteRecords took them."""

    def __init__(self, partition: TopicPartition, first_offset: int, log_start: int) -> None:
        super().__init__(
            f"{partition}: offsets {first_offset} to {log_start - 1} were deleted, the log starts "
            f"at {log_start}; failOnDataLoss=false reads on from there"
        )
        self.partition = partition
        self.first_offset = first_offset
        self.log_start = log_start


class Coordinates(Protocol):
    """The coordinates of one cluster. Used by one thread, and closed after use."""

    def __enter__(self) -> Self: ...

    def __exit__(self, *_: object) -> None: ...

    def topics(self, names: Sequence[str] | None = None) -> Mapping[str, int]:
        """Return the number of partitions of each topic that is there and not internal.

        Args:    names: of the topics to look for; None: all.

        Raises:  CoordinatesError.
        """
        ...

    def bounds(
        self, partitions: Sequence[TopicPartition], *, committed: bool
    ) -> dict[TopicPartition, Bounds]:
        """Return the offsets that can be read now.

        Args:    committed: whether the end is the last stable offset, not the high watermark.
        Raises:  CoordinatesError, also for an unknown partition.
        """
        ...

    def offsets_of_times(
        self, times: Mapping[TopicPartition, int], *, committed: bool
    ) -> dict[TopicPartition, int | None]:
        """Return the first offset at or after each time (ms since 1970), or None without one.

        Raises:  CoordinatesError.
        """
        ...

    def find(self, wanted: Sequence[Wanted], *, committed: bool, max_bytes: int) -> list[Found]:
        """Return runs from the first wanted offset of each range on, about `max_bytes` of each.

        A range may be missing in the answer: the caller asks again. A range is found whole once
        an answer ends at its end.

        Raises:  LostOffsetsError; CoordinatesError.
        """
        ...
