"""Coordinates: which partitions there are, their offsets, and where their records lie.

    with open_coordinates(source) as coordinates:
        coordinates.topics()
        coordinates.offsets([TopicPartition("orders", 0)], committed=False)

They come from a running cluster, through its brokers, or from its logs where no cluster runs: a
log directory, a quorum or an archive. What follows is the same for both.

Source: docs/tables.md; KIP-1164, findBatches.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple, Protocol, Self

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
    control: bytes = b""  # the batch of a transaction's marker, which lies in no object


class Found(NamedTuple):
    """Runs of a partition, from an offset on.

    Markers of transactions are among them where aborted ones are: a marker ends its producer's.
    """

    partition: TopicPartition
    first_offset: int
    end_offset: int  # exclusive; where the next look-up begins
    runs: tuple[FoundRun, ...]
    aborted: tuple[tuple[int, int], ...]  # for read_committed: producer id, first offset


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
