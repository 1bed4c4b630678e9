"""Topics as a stream: offsets are those of Spark's Kafka source, so a checkpoint fits both.

    frame = (
        spark.readStream.format("esker_records")
        .option("kafka.bootstrap.servers", "127.0.0.1:9092").option("subscribe", "orders")
        .option("store", "s3://records").option("maxOffsetsPerTrigger", "1000000").load()
    )

An offset is `{"orders": {"0": 700, "1": 650}}`: of each partition, the first offset that was not
read. Records below a partition's end never change, so a batch that is read again after a crash has
the same rows, unless compaction or DeleteRecords removed some.

A partition that was added later is read from offset 0, as by Spark's source.

Source: PySpark's DataSourceStreamReader; Spark's KafkaMicroBatchStream; docs/tables.md#streams.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from spark_jobs.source.option_error import OptionError
from spark_jobs.topics.coordinates import (
    Coordinates,
    CoordinatesError,
    TopicPartition,
    Wanted,
)
from spark_jobs.topics.options import Edge, Options
from spark_jobs.topics.planning import (
    check_ranges,
    find_partitions,
    lose,
    open_coordinates,
    plan,
    resolve_offsets,
    warn_of_ignored,
)
from spark_jobs.topics.reading import read_partition

StreamOffset = dict[str, dict[str, int]]
"""An offset as Spark's Kafka source journals it: by topic and partition."""

Ends = dict[TopicPartition, int]


class RecordsStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads topics as a stream: plans in a driver process, reads in tasks."""

    def __init__(self, options: Options) -> None:
        """Make a stream reader, and refuse options that only a batch can have.

        Raises:  OptionError.
        """
        if options.ending is not None:
            raise OptionError("endingOffsets: a stream has no end")
        self._options = options
        self._until: Ends | None = None  # of a run that ends: what was there when it began

    def initialOffset(self) -> StreamOffset:  # noqa: N802 (Spark's names)
        """Return the offsets where a new stream begins.

        Raises:  OptionError; CoordinatesError; LogsError.
        """
        options = self._options
        warn_of_ignored(options)
        starting = Edge.LATEST if options.starting is None else options.starting
        with open_coordinates(options) as coordinates:
            bounds = coordinates.bounds(
                find_partitions(coordinates, options), committed=options.committed
            )
            found = resolve_offsets(coordinates, options, starting, bounds, name="startingOffsets")
        return stream_offset(found)

    def latestOffset(self, start: StreamOffset, limit: ReadLimit) -> StreamOffset:  # noqa: N802
        """Return the offsets where the stream's next micro-batch ends.

        Raises:  CoordinatesError; LogsError.
        """
        begins = offsets_in(start)
        ends = self._ends()
        if self._until is not None:
            ends = {
                place: min(end, self._until[place])
                for place, end in ends.items()
                if place in self._until
            }
        if isinstance(limit, ReadMaxRows):
            ends = limit_ends(begins, ends, limit.max_rows)
        return stream_offset(ends)

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """Return the greatest number of offsets that one micro-batch reads."""
        most = self._options.max_offsets
        return ReadAllAvailable() if most is None else ReadMaxRows(most)

    def reportLatestOffset(self) -> StreamOffset | None:  # noqa: N802
        """Return the partitions' ends, for the status of the streaming query."""
        return stream_offset(self._ends())

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Limit this run of the streaming query to the records that are there at its start."""
        self._until = self._ends()

    def partitions(self, start: StreamOffset, end: StreamOffset) -> Sequence[InputPartition]:
        """Return the tasks that read the records between two offsets.

        Raises:  LostOffsetsError, CoordinatesError, unless data loss is allowed; LogsError.
        """
        options = self._options
        begins, ends = offsets_in(start), offsets_in(end)
        loses = options.fail_on_data_loss
        for place in sorted(begins.keys() - ends.keys()):
            lose(CoordinatesError(f"{place} is gone: was its topic deleted?"), loses)
        wanted = []
        for place, stop in sorted(ends.items()):
            first = begins.get(place, 0)
            if stop < first:
                text = (
                    f"{place}: the stream is at offset {first}, and the partition ends at {stop}: "
                    "was the topic deleted and created again?"
                )
                lose(CoordinatesError(text), loses)
            elif stop > first:
                wanted.append(Wanted(place, first, stop))
        if not wanted:
            return []
        with open_coordinates(options) as coordinates:
            there = self._there(coordinates, wanted)
            return plan(coordinates, options, there) if there else []

    def _there(self, coordinates: Coordinates, wanted: Sequence[Wanted]) -> list[Wanted]:
        """Return the parts of ranges that are there still."""
        options = self._options
        topics = coordinates.topics(sorted({one.partition.topic for one in wanted}))
        here = []
        for one in wanted:
            if one.partition.partition < topics.get(one.partition.topic, 0):
                here.append(one)
            else:
                gone = CoordinatesError(f"{one.partition} is gone: was its topic deleted?")
                lose(gone, options.fail_on_data_loss)
        bounds = coordinates.bounds([one.partition for one in here], committed=options.committed)
        return check_ranges(here, bounds, fail_on_data_loss=options.fail_on_data_loss)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a task as Arrow batches. Raises as `read_pieces`."""
        return read_partition(self._options, partition)

    def _ends(self) -> Ends:
        options = self._options
        with open_coordinates(options) as coordinates:
            partitions = find_partitions(coordinates, options)
            bounds = coordinates.bounds(partitions, committed=options.committed)
        return {place: one.end for place, one in bounds.items()}


def limit_ends(begins: Mapping[TopicPartition, int], ends: Ends, most: int) -> Ends:
    """Return ends that are at most so many offsets away, shared by how much each partition has.

    Each partition with records gets one at least, as in Spark's source.

    >>> a, b = TopicPartition("t", 0), TopicPartition("t", 1)
    >>> list(limit_ends({a: 100, b: 0}, {a: 400, b: 100}, 40).values())
    [130, 10]
    """
    sizes = {place: max(0, end - begins.get(place, 0)) for place, end in ends.items()}
    total = sum(sizes.values())
    if total <= most:
        return ends
    limited = {}
    for place, end in ends.items():
        share = most * sizes[place] / total
        count = math.ceil(share) if share < 1 else math.floor(share)
        limited[place] = min(end, begins.get(place, 0) + count)
    return limited


def stream_offset(ends: Mapping[TopicPartition, int]) -> StreamOffset:
    """Return offsets as Spark journals them, always in the same order.

    >>> stream_offset({TopicPartition("b", 1): 5, TopicPartition("a", 0): 7})
    {'a': {'0': 7}, 'b': {'1': 5}}
    """
    found: StreamOffset = {}
    for (topic, index), end in sorted(ends.items()):
        found.setdefault(topic, {})[str(index)] = end
    return found


def offsets_in(offset: StreamOffset) -> Ends:
    """Return the offset of each partition."""
    return {
        TopicPartition(topic, int(index)): value
        for topic, partitions in offset.items()
        for index, value in partitions.items()
    }
