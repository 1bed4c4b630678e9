"""Coordinates from the logs of a cluster: a log directory, a quorum or an archive.

    LogCoordinates(open_logs(inputs), prefix="")

The state of each batch coordinator is computed once, at the end of its log as it is now: runs,
log starts, high watermarks, open and aborted transactions.

Source: docs/log-source.md; `spark_jobs.tables.log_state`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple, Self

from records.internal_topics import INTERNAL_TOPICS
from records.marker_batches import marker_batch
from records.object_keys import Ancestors, ObjectKeys
from spark_jobs.readers.logs import DISKLESS_METADATA, Logs, coordinators_of
from spark_jobs.tables.ancestors import ancestors_of
from spark_jobs.tables.log_state import LogState, state_at
from spark_jobs.topics.coordinates import (
    FINAL,
    MARKER,
    Bounds,
    CoordinatesError,
    Found,
    FoundRun,
    LostOffsetsError,
    TopicPartition,
    Wanted,
)


class _Partition(NamedTuple):
    """A partition's place in the state of its coordinator."""

    state: LogState
    row: int  # in the table of the state's partitions
    coordinator: int
    log_start: int
    high_watermark: int
    last_stable_offset: int


class LogCoordinates:
    """Coordinates that the logs of a cluster have."""

    def __init__(self, logs: Logs, *, prefix: str = "") -> None:
        """Create it; nothing is read yet.

        Args:    prefix: of the objects' keys, the brokers' `esker.object.key.prefix`.
        """
        self._logs = logs
        self._prefix = prefix
        self._partitions: dict[TopicPartition, _Partition] | None = None
        self._ancestors: Ancestors | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._partitions = None

    def topics(self, names: Sequence[str] | None = None) -> dict[str, int]:
        """Return the number of partitions of topics that are there and not internal."""
        found: dict[str, int] = {}
        for topic, _ in self._read():
            if names is None or topic in names:
                found[topic] = found.get(topic, 0) + 1
        return found

    def bounds(
        self, partitions: Sequence[TopicPartition], *, committed: bool
    ) -> dict[TopicPartition, Bounds]:
        """Return the offsets that can be read as of the end of the logs."""
        found = {}
        for place in partitions:
            one = self._partition(place)
            end = one.last_stable_offset if committed else one.high_watermark
            found[place] = Bounds(one.log_start, end)
        return found

    def offsets_of_times(
        self,
        times: Mapping[TopicPartition, int],
        *,
        committed: bool,  # noqa: ARG002 (for brokers)
    ) -> dict[TopicPartition, int | None]:
        """Refuse offsets by time: the logs know the times of runs, not of records."""
        raise CoordinatesError(
            f"{next(iter(times))}: offsets by time need kafka.bootstrap.servers; from logs, filter "
            "by the column timestamp"
        )

    def find(self, wanted: Sequence[Wanted], *, committed: bool, max_bytes: int) -> list[Found]:
        """Return runs from the first wanted offset of each range on."""
        return [self._find(one, committed, max_bytes) for one in wanted]

    def _ancestors_now(self) -> Ancestors:
        """Return the clusters that wrote older objects; the cluster log is read once."""
        if self._ancestors is None:
            self._ancestors = ancestors_of(self._logs)
        return self._ancestors

    def _find(self, wanted: Wanted, committed: bool, max_bytes: int) -> Found:
        place, first, end = wanted
        one = self._partition(place)
        if first < one.log_start:
            raise LostOffsetsError(place, first, one.log_start)
        bounds = one.state.run_bounds
        table = one.state.runs.slice(
            int(bounds[one.row]), int(bounds[one.row + 1] - bounds[one.row])
        )
        last_offsets = table.column("last_offset").to_numpy()
        begin = int(last_offsets.searchsorted(first))
        sizes = table.column("byte_size").to_numpy()[begin:].cumsum()
        count = max(1, int(sizes.searchsorted(max_bytes, side="right")))
        keys = ObjectKeys(
            prefix=self._prefix,
            cluster_id=self._logs.cluster_id,
            coordinator_partition=one.coordinator,
            ancestors=self._ancestors_now(),
        )
        aborted = tuple(_aborted(one, first, end)) if committed else ()
        runs: list[FoundRun] = []
        at = first
        for row in table.slice(begin, count).to_pylist():
            if row["base_offset"] >= end:
                break
            at = min(row["last_offset"] + 1, end)
            if row["object_format"] == MARKER:
                if aborted:
                    runs.append(_marker(row))
            else:
                is_final = row["object_format"] == FINAL
                stamped = not is_final and row["timestamp_type"] == 1
                runs.append(
                    FoundRun(
                        keys.key(row["object_id"]),
                        row["byte_offset"],
                        row["byte_size"],
                        row["base_offset"],
                        row["last_offset"] + 1,
                        is_final,
                        row["appended_at_ms"] if stamped else None,
                    )
                )
        if at == first:
            raise CoordinatesError(f"{place}: the logs have no run at offset {first}")
        return Found(place, first, at, tuple(runs), aborted)

    def _partition(self, place: TopicPartition) -> _Partition:
        found = self._read().get(place)
        if found is None:
            raise CoordinatesError(f"{place}: there is no such partition")
        return found

    def _read(self) -> dict[TopicPartition, _Partition]:
        """Return all partitions of topics that are not deleted or internal."""
        if self._partitions is None:
            self._partitions = {}
            for coordinator in coordinators_of(self._logs):
                state = state_at(self._logs.log(f"{DISKLESS_METADATA}{coordinator}"))
                stable = state.last_stable_offsets()
                for index, row in enumerate(state.partitions.to_pylist()):
                    if row["deleted_at_ms"] is None and row["topic"] not in INTERNAL_TOPICS:
                        self._partitions[TopicPartition(row["topic"], row["partition"])] = (
                            _Partition(
                                state,
                                index,
                                coordinator,
                                row["log_start_offset"],
                                row["high_watermark"],
                                int(stable[index]),
                            )
                        )
        return self._partitions


def _marker(row: Mapping[str, int]) -> FoundRun:
    """Return a transaction's marker as a run with its control batch."""
    offset = row["base_offset"]
    control = marker_batch(
        base_offset=offset,
        timestamp=row["max_timestamp"],
        producer_id=row["marker_producer_id"],
        producer_epoch=row["marker_epoch"],
        outcome=row["marker_outcome"],
        coordinator_epoch=row["marker_coordinator_epoch"],
    )
    return FoundRun("", 0, len(control), offset, offset + 1, True, None, control)


def _aborted(one: _Partition, first_offset: int, end_offset: int) -> Iterator[tuple[int, int]]:
    """Yield the aborted transactions of a partition that overlap a range of offsets."""
    (place,) = one.state.partitions.slice(one.row, 1).select(["topic_id", "partition"]).to_pylist()
    for row in one.state.aborted.to_pylist():
        overlaps = row["first_offset"] < end_offset and row["last_offset"] >= first_offset
        if (
            overlaps
            and row["topic_id"] == place["topic_id"]
            and row["partition"] == place["partition"]
        ):
            yield row["producer_id"], row["first_offset"]
