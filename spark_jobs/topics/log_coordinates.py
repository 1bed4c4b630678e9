"""Coordinates from the logs of a cluster: a log directory, a quorum or an archive.

    LogCoordinates(open_logs(inputs), prefix="")

The state of each batch coordinator is computed once, at the end of its log as it is now: runs,
log starts, high watermarks, open and aborted transactions.

Source: docs/log-source.md; `spark_jobs.tables.log_state`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final, NamedTuple, Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from records.internal_topics import INTERNAL_TOPICS
from records.marker_batches import marker_batch
from records.object_keys import Ancestors, ObjectKeys
from spark_jobs.readers.logs import DISKLESS_METADATA, Logs, coordinators_of
from spark_jobs.tables.ancestors import ancestors_of
from spark_jobs.tables.log_state import LogState, state_at
from spark_jobs.topics.coordinates import (
    FINAL,
    MARKER,
    NO_TIME,
    Bounds,
    CoordinatesError,
    Found,
    LostOffsetsError,
    Marker,
    Runs,
    TopicPartition,
    Wanted,
)

_LOG_APPEND_TIME: Final = 1


class _Coordinator:
    """A coordinator's state, with the columns of all its runs as arrays."""

    def __init__(self, state: LogState, keys: ObjectKeys) -> None:
        self.state = state
        self.keys = keys
        self.columns = {
            name: state.runs.column(name).to_numpy()
            for name in (
                "object_id", "byte_offset", "byte_size", "base_offset", "last_offset",
                "object_format", "timestamp_type", "appended_at_ms",
            )
        }  # fmt: skip
        self.total_sizes = self.columns["byte_size"].cumsum()

    def find(self, row: int, first_offset: int, end_offset: int, max_bytes: int) -> slice:
        """Return the rows of a partition's runs between two offsets, about `max_bytes` of them.

        Args:    row: the partition's, in the table of the state's partitions.
        """
        begin, stop = self.state.run_bounds[row : row + 2].tolist()
        last_offsets = self.columns["last_offset"][begin:stop]
        first = begin + int(last_offsets.searchsorted(first_offset))
        stop = begin + int(self.columns["base_offset"][begin:stop].searchsorted(end_offset))
        most = max_bytes + (self.total_sizes[first - 1] if first else 0)
        fits = int(self.total_sizes[first:stop].searchsorted(most, side="right"))
        return slice(first, min(stop, first + max(1, fits)))

    def runs(self, rows: slice) -> Runs:
        """Return the runs of some rows, without markers."""
        columns = {name: column[rows] for name, column in self.columns.items()}
        formats = columns["object_format"]
        ids, of_run = np.unique(columns["object_id"], return_inverse=True)
        keys = np.array([b"" if one < 0 else self.keys.key(one).encode() for one in ids.tolist()])
        is_final = formats == FINAL
        stamped = ~is_final & (columns["timestamp_type"] == _LOG_APPEND_TIME)
        runs = Runs.of_columns(
            keys[of_run] if len(keys) else np.empty(0, "S1"),
            columns["byte_offset"],
            columns["byte_size"],
            columns["base_offset"],
            columns["last_offset"] + 1,
            is_final,
            np.where(stamped, columns["appended_at_ms"], NO_TIME),
        )
        is_stored: npt.NDArray[np.bool_] = formats != MARKER
        return runs[is_stored]

    def markers(self, rows: slice) -> Iterator[Marker]:
        """Yield the transactions' markers among some rows."""
        is_marker = pa.array(self.columns["object_format"][rows] == MARKER)
        for row in self.state.runs.slice(rows.start, len(is_marker)).filter(is_marker).to_pylist():
            batch = marker_batch(
                base_offset=row["base_offset"],
                timestamp=row["max_timestamp"],
                producer_id=row["marker_producer_id"],
                producer_epoch=row["marker_epoch"],
                outcome=row["marker_outcome"],
                coordinator_epoch=row["marker_coordinator_epoch"],
            )
            yield Marker(row["base_offset"], batch)

    def aborted(self, row: int, first_offset: int, end_offset: int) -> tuple[tuple[int, int], ...]:
        """Return a partition's aborted transactions that overlap a range of offsets."""
        if not self.state.aborted.num_rows:
            return ()
        (place,) = self.state.partitions.slice(row, 1).select(["topic_id", "partition"]).to_pylist()
        overlap = (
            (pc.field("topic_id") == place["topic_id"])
            & (pc.field("partition") == place["partition"])
            & (pc.field("first_offset") < end_offset)
            & (pc.field("last_offset") >= first_offset)
        )
        found = self.state.aborted.filter(overlap).select(["producer_id", "first_offset"])
        return tuple((one["producer_id"], one["first_offset"]) for one in found.to_pylist())


class _Partition(NamedTuple):
    """A partition's place in the state of its coordinator."""

    coordinator: _Coordinator
    row: int  # in the table of the state's partitions
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
        coordinator = one.coordinator
        rows = coordinator.find(one.row, first, end, max_bytes)
        if rows.start >= rows.stop:
            raise CoordinatesError(f"{place}: the logs have no run at offset {first}")
        at = min(int(coordinator.columns["last_offset"][rows.stop - 1]) + 1, end)
        aborted = coordinator.aborted(one.row, first, end) if committed else ()
        markers = tuple(coordinator.markers(rows)) if aborted else ()
        return Found(place, first, at, coordinator.runs(rows), aborted, markers)

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
                keys = ObjectKeys(
                    prefix=self._prefix,
                    cluster_id=self._logs.cluster_id,
                    coordinator_partition=coordinator,
                    ancestors=self._ancestors_now(),
                )
                columns = _Coordinator(state, keys)
                stable = state.last_stable_offsets()
                for index, row in enumerate(state.partitions.to_pylist()):
                    if row["deleted_at_ms"] is None and row["topic"] not in INTERNAL_TOPICS:
                        self._partitions[TopicPartition(row["topic"], row["partition"])] = (
                            _Partition(
                                columns,
                                index,
                                row["log_start_offset"],
                                row["high_watermark"],
                                int(stable[index]),
                            )
                        )
        return self._partitions
