"""Plans a read: which offsets of which partitions, and which runs each task reads.

    with open_coordinates(options) as coordinates:
        tasks = plan(coordinates, options, resolve_ranges(coordinates, options))

Offsets are resolved as by Spark's Kafka source. Then runs are found, some megabytes of a partition
at a time: such a piece has the aborted transactions that concern it, so it is read whole, by one
task.

Source: docs/tables.md; Spark's KafkaOffsetReader and KafkaOffsetRangeCalculator.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from pyspark.sql.datasource import InputPartition

from spark_jobs.source.option_error import OptionError
from spark_jobs.topics.coordinates import (
    Bounds,
    Coordinates,
    CoordinatesError,
    Found,
    LostOffsetsError,
    TopicPartition,
    Wanted,
)
from spark_jobs.topics.options import Edge, Offsets, Options, Times

log = logging.getLogger("spark_jobs")

PIECE_BYTES: Final = 8 * 1024 * 1024
"""Stored bytes of a partition that are read and decoded together, about."""

FIND_BYTES: Final = 64 * 1024 * 1024
"""Stored bytes of a partition that are found by one request, about."""

TASK_BYTES: Final = 32 * 1024 * 1024
"""Stored bytes that one task reads, about."""


@dataclass
class RecordsPartition(InputPartition):
    """One task: runs of one or more partitions."""

    pieces: tuple[Found, ...]


def open_coordinates(options: Options) -> Coordinates:
    """Open the source of coordinates that the options name.

    Raises:  LogsError; OSError.
    """
    # Imported here, because tasks need neither: it is half of the time that they take to start.
    if options.brokers:
        from raft.net.client_properties import security_of
        from spark_jobs.topics.broker_coordinates import BrokerCoordinates

        return BrokerCoordinates(
            options.brokers,
            timeout_ms=options.timeout_ms,
            security=security_of(options.security),
        )
    from spark_jobs.readers.inputs import Inputs, open_logs
    from spark_jobs.topics.log_coordinates import LogCoordinates

    assert options.logs is not None, "neither brokers nor logs"
    inputs = Inputs(
        options.logs.log_dir,
        options.logs.controllers,
        options.logs.archive,
        options.timeout_ms,
        options.store_options,
        options.security or None,
    )
    return LogCoordinates(open_logs(inputs), prefix=options.prefix)


def warn_of_ignored(options: Options) -> None:
    """Log the options about consumers, which have nothing to act on."""
    if options.ignored:
        names = ", ".join(options.ignored)
        log.warning("options without effect, because no consumer reads: %s", names)


def find_partitions(coordinates: Coordinates, options: Options) -> list[TopicPartition]:
    """Return the partitions that are subscribed to or assigned.

    Raises:  CoordinatesError, also for a topic or partition that is not there.
    """
    if options.pattern is not None:
        pattern = re.compile(options.pattern)
        topics = {
            name: count
            for name, count in coordinates.topics().items()
            if pattern.fullmatch(name)
        }  # fmt: skip
        names = sorted(topics)
    else:
        names = sorted(set(options.topics) or {one.topic for one in options.assigned})
        topics = dict(coordinates.topics(names))
    for name in names:
        if name not in topics:
            raise CoordinatesError(f"there is no topic {name}")
    for one in options.assigned:
        if one.partition >= topics[one.topic]:
            raise CoordinatesError(f"{one}: there is no such partition")
    if options.assigned:
        return sorted(set(options.assigned))
    return [TopicPartition(name, index) for name in names for index in range(topics[name])]


def resolve_ranges(coordinates: Coordinates, options: Options) -> list[Wanted]:
    """Return the ranges of offsets that a batch reads, of partitions that have any.

    Raises:  OptionError; LostOffsetsError; CoordinatesError.
    """
    starting = Edge.EARLIEST if options.starting is None else options.starting
    ending = Edge.LATEST if options.ending is None else options.ending
    if starting is Edge.LATEST:
        raise OptionError("startingOffsets: a batch cannot begin at latest")
    if ending is Edge.EARLIEST:
        raise OptionError("endingOffsets: a batch cannot end at earliest")
    for name, offsets, forbidden in (
        ("startingOffsets", starting, Edge.LATEST),
        ("endingOffsets", ending, Edge.EARLIEST),
    ):
        if isinstance(offsets, Mapping) and forbidden in offsets.values():
            raise OptionError(
                f"{name}: {forbidden.value} ({forbidden.name.lower()}) is no offset here"
            )
    partitions = find_partitions(coordinates, options)
    bounds = coordinates.bounds(partitions, committed=options.committed)
    firsts = resolve_offsets(coordinates, options, starting, bounds, name="startingOffsets")
    ends = resolve_offsets(coordinates, options, ending, bounds, name="endingOffsets")
    wanted = (Wanted(one, firsts[one], ends[one]) for one in partitions)
    return check_ranges(wanted, bounds, fail_on_data_loss=options.fail_on_data_loss)


def resolve_offsets(
    coordinates: Coordinates,
    options: Options,
    offsets: Offsets,
    bounds: Mapping[TopicPartition, Bounds],
    *,
    name: str,
) -> dict[TopicPartition, int]:
    """Return the offset of each partition that an option stands for.

    Raises:  OptionError; CoordinatesError.
    """
    if isinstance(offsets, Edge):
        return {place: _at(offsets, one) for place, one in bounds.items()}
    if isinstance(offsets, Times):
        times = offsets.times if offsets.default is None else dict.fromkeys(bounds, offsets.default)
        _check_same_partitions(times, bounds, name)
        found = coordinates.offsets_of_times(times, committed=options.committed)
        resolved = {}
        for place, offset in found.items():
            if offset is None and not offsets.or_latest:
                raise OptionError(
                    f"{name}: {place} has no record at or after {times[place]} ms; "
                    "startingOffsetsByTimestampStrategy=latest begins at its end then"
                )
            resolved[place] = bounds[place].end if offset is None else offset
        return resolved
    _check_same_partitions(offsets, bounds, name)
    return {
        place: _at(one, bounds[place]) if isinstance(one, Edge) else one
        for place, one in offsets.items()
    }


def _at(edge: Edge, bounds: Bounds) -> int:
    return bounds.log_start if edge is Edge.EARLIEST else bounds.end


def _check_same_partitions(
    given: Mapping[TopicPartition, object], there: Mapping[TopicPartition, object], name: str
) -> None:
    """Raise OptionError unless an option names exactly the partitions that are read."""
    missing, unknown = sorted(there.keys() - given.keys()), sorted(given.keys() - there.keys())
    if missing:
        raise OptionError(f"{name}: name all partitions; {missing[0]} is missing")
    if unknown:
        raise OptionError(f"{name}: {unknown[0]} is not read, or not there")


def check_ranges(
    wanted: Iterable[Wanted],
    bounds: Mapping[TopicPartition, Bounds],
    *,
    fail_on_data_loss: bool,
) -> list[Wanted]:
    """Return the parts of ranges that are there; leave out empty ones.

    Raises:  LostOffsetsError, CoordinatesError for a range that is not whole, unless data loss is
             allowed.
    """
    found = []
    for place, first, end in wanted:
        log_start, last = bounds[place]
        if first < min(log_start, end):
            lose(LostOffsetsError(place, first, log_start), fail_on_data_loss)
            first = log_start
        if first < end and end > last:
            text = (
                f"{place}: offsets {max(first, last)} to {end - 1} are not there, the partition "
                f"ends at {last}; was the topic deleted and created again?"
            )
            lose(CoordinatesError(text), fail_on_data_loss)
            end = last
        if first < end:
            found.append(Wanted(place, first, end))
    return found


def lose(error: CoordinatesError, fail_on_data_loss: bool) -> None:
    """Raise an error about lost offsets, or log it as a warning where data loss is allowed."""
    if fail_on_data_loss:
        raise error
    log.warning("%s", error)


def plan(
    coordinates: Coordinates, options: Options, wanted: Sequence[Wanted]
) -> list[RecordsPartition]:
    """Return the tasks that read ranges of offsets.

    Raises:  LostOffsetsError; CoordinatesError.
    """
    ranges = split_ranges(wanted, options.max_records, options.min_partitions)
    by_range: list[list[Found]] = [[] for _ in ranges]
    for number, piece in find_pieces(coordinates, options, ranges):
        by_range[number].append(piece)
    if options.max_records is None and options.min_partitions is None:
        by_range = [[piece for pieces in by_range for piece in pieces]]
    return [task for pieces in by_range for task in _share_out(pieces)]


def split_ranges(
    wanted: Sequence[Wanted], max_records: int | None, min_partitions: int | None
) -> list[Wanted]:
    """Cut ranges into parts of at most `max_records`, and at least `min_partitions` where it can.

    >>> split_ranges([Wanted(TopicPartition("t", 0), 0, 10)], 4, None)
    [Wanted(partition=TopicPartition(topic='t', partition=0), first_offset=0, end_offset=3), \
Wanted(partition=TopicPartition(topic='t', partition=0), first_offset=3, end_offset=6), \
Wanted(partition=TopicPartition(topic='t', partition=0), first_offset=6, end_offset=10)]
    """
    sizes = [one.end_offset - one.first_offset for one in wanted]
    counts = [1 if max_records is None else -(-size // max_records) for size in sizes]
    missing = 0 if min_partitions is None else min_partitions - sum(counts)
    total = sum(sizes)
    if missing > 0:
        counts = [
            min(size, count + -(-missing * size // total))
            for size, count in zip(sizes, counts, strict=True)
        ]
    return [
        Wanted(
            one.partition,
            one.first_offset + size * number // count,
            one.first_offset + size * (number + 1) // count,
        )
        for one, size, count in zip(wanted, sizes, counts, strict=True)
        for number in range(count)
    ]


def find_pieces(
    coordinates: Coordinates, options: Options, wanted: Sequence[Wanted]
) -> list[tuple[int, Found]]:
    """Return the runs of ranges in pieces, each with the number of its range, by rising offset.

    Raises:  LostOffsetsError, unless data loss is allowed; CoordinatesError.
    """
    pieces: list[tuple[int, Found]] = []
    left = dict(enumerate(wanted))
    while left:
        try:
            found = coordinates.find(
                list(left.values()), committed=options.committed, max_bytes=FIND_BYTES
            )
        except LostOffsetsError as error:
            lose(error, options.fail_on_data_loss)
            left = {
                number: one._replace(first_offset=max(one.first_offset, error.log_start))
                if one.partition == error.partition
                else one
                for number, one in left.items()
            }
            left = {
                number: one for number, one in left.items() if one.first_offset < one.end_offset
            }
            continue
        numbers = {(one.partition, one.first_offset): number for number, one in left.items()}
        for piece in found:
            number = numbers[piece.partition, piece.first_offset]
            pieces += ((number, part) for part in cut(piece))
            rest = left.pop(number)._replace(first_offset=piece.end_offset)
            if rest.first_offset < rest.end_offset:
                left[number] = rest
    return sorted(pieces, key=lambda one: (one[0], one[1].first_offset))


def cut(found: Found, piece_bytes: int = PIECE_BYTES) -> Iterator[Found]:
    """Yield what was found in pieces of about `piece_bytes`.

    Where there are aborted transactions, it stays whole: they are those of all its runs.
    """
    if found.aborted:
        yield found
        return
    totals = np.cumsum(found.runs.sizes)
    offsets = found.runs.base_offsets
    first, begin = 0, found.first_offset
    while first < len(totals):
        before = totals[first - 1] if first else 0
        fits = int(np.searchsorted(totals, before + piece_bytes, side="right"))
        stop = max(first + 1, fits)
        if stop == len(totals):
            break
        end = int(offsets[stop])
        yield found._replace(first_offset=begin, end_offset=end, runs=found.runs[first:stop])
        first, begin = stop, end
    yield found._replace(first_offset=begin, runs=found.runs[first:])


def _share_out(pieces: Sequence[Found]) -> list[RecordsPartition]:
    """Group pieces into tasks of about `TASK_BYTES`."""
    tasks: list[list[Found]] = []
    held = TASK_BYTES
    for piece in pieces:
        size = int(piece.runs.sizes.sum())
        if held + size > TASK_BYTES:
            tasks.append([])
            held = 0
        tasks[-1].append(piece)
        held += size
    return [RecordsPartition(tuple(task)) for task in tasks if any(len(one.runs) for one in task)]
