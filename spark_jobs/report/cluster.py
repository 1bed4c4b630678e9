"""Reads the history of brokers, leaders and chunks from the cluster's own log.

One reader applies all of it in order: neither of two neighbouring records says that a broker was
fenced between them. A cluster's log grows with its changes, not with its data; and what is kept of
it here is bounded.

The trap: fencing changes no partition. Brokers compute where to send clients, so a leader or an ISR
changes only where chunks are made or partitions are created
(docs/design/broker.md#any-broker-leads, docs/design/chunks.md#a-replica-is-a-cache).

Source: KIP-631 (brokers, partitions), KIP-868 (transactions), KIP-1114 (chunks).
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final

from records.chunks import ChunkChangeRecord, ChunkRecord
from records.frame import METADATA_RECORDS, decode_record, read_frame
from records.metadata import (
    BrokerRegistrationChangeRecord,
    FenceBrokerRecord,
    PartitionChangeRecord,
    PartitionRecord,
    RegisterBrokerRecord,
    RemoveTopicRecord,
    TopicRecord,
    UnfenceBrokerRecord,
    UnregisterBrokerRecord,
)
from records.uuids import encode_uuid
from spark_jobs.readers.log_position import LogPosition
from spark_jobs.readers.logs import Span
from spark_jobs.report.window import Window
from spark_jobs.tables.transactions import MARKS, effective_records

SERVING, FENCED, LEAVING, GONE = "serving", "fenced", "leaving", "gone"
"""States of a broker. A leaving one still serves until all others know."""

MAX_EPISODES: Final = 10_000
"""Only the newest episodes are kept, so that a broker that flaps for a year fills no memory."""

UNCHANGED: Final = -2  # PartitionChangeRecord's leader
_FENCE: Final = 1
_UNFENCE: Final = -1
_LEAVE: Final = 1


@dataclass(frozen=True, slots=True)
class Episode:
    """A time for which a broker was in one state."""

    broker_id: int
    state: str
    from_ms: int  # ms since 1970
    to_ms: int | None  # None: it still is


@dataclass(frozen=True, slots=True)
class Chunk:
    """Offsets of a partition that have replicas of their own. Source: KIP-1114."""

    topic: str
    partition: int
    start_offset: int  # inclusive
    end_offset: int | None  # inclusive; None: it grows
    replicas: tuple[int, ...]


@dataclass(slots=True)
class _Partition:
    leader: int
    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    start_offset: int  # of the active chunk; -1: there are no chunks
    chunks: dict[int, Chunk] = field(default_factory=dict)


@dataclass(slots=True)
class ClusterHistory:
    """The history of a cluster's brokers, partitions and chunks; `history_of` fills it."""

    window: Window
    episodes: deque[Episode] = field(default_factory=lambda: deque(maxlen=MAX_EPISODES))
    forgotten: int = 0  # episodes that were dropped
    changes: Counter[tuple[int, str]] = field(default_factory=Counter)  # bucket, what: partitions
    racks: dict[int, str] = field(default_factory=dict)  # of registered brokers
    names: dict[str, str] = field(default_factory=dict)  # topics by id
    partitions: dict[tuple[str, int], _Partition] = field(default_factory=dict)
    _now: dict[int, tuple[str, int]] = field(default_factory=dict)  # broker: state, since

    def all_episodes(self) -> list[Episode]:
        """Return the periods that brokers spent in one state, by broker and start time."""
        now = [
            Episode(broker, state, since, None)
            for broker, (state, since) in self._now.items()
            if state != GONE
        ]
        return sorted(
            [*self.episodes, *now], key=lambda episode: (episode.broker_id, episode.from_ms)
        )

    def leaders(self) -> dict[int, int]:
        """Count the partitions that name each broker as leader."""
        return dict(Counter(partition.leader for partition in self.partitions.values()))

    def chunks(self) -> list[Chunk]:
        """Return chunks of partitions with closed chunks, by topic, partition and start offset."""
        found: list[Chunk] = []
        for (topic_id, index), partition in self.partitions.items():
            if partition.start_offset < 0:
                continue
            found += partition.chunks.values()
            topic = self.names.get(topic_id, topic_id)
            found.append(Chunk(topic, index, partition.start_offset, None, partition.replicas))
        return sorted(
            found,
            key=lambda partition: (partition.topic, partition.partition, partition.start_offset),
        )

    # --- applying records ---

    def apply(self, position: LogPosition, record: Any) -> None:
        """Apply one record of the cluster's log to the history of the cluster."""
        _APPLY[type(record)](self, position.timestamp_ms, record)

    def register(self, at_ms: int, record: RegisterBrokerRecord) -> None:
        self.racks[record.broker_id] = record.rack or ""
        self._set_state(record.broker_id, FENCED if record.fenced else SERVING, at_ms)

    def fence(self, at_ms: int, record: FenceBrokerRecord) -> None:
        self._set_state(record.id, FENCED, at_ms)

    def unfence(self, at_ms: int, record: UnfenceBrokerRecord) -> None:
        self._set_state(record.id, SERVING, at_ms)

    def change(self, at_ms: int, record: BrokerRegistrationChangeRecord) -> None:
        state = self._now.get(record.broker_id, (FENCED, at_ms))[0]
        if record.in_controlled_shutdown == _LEAVE and state == SERVING:
            state = LEAVING
        if record.fenced == _FENCE:
            state = FENCED
        elif record.fenced == _UNFENCE:
            state = SERVING
        self._set_state(record.broker_id, state, at_ms)

    def unregister(self, at_ms: int, record: UnregisterBrokerRecord) -> None:
        self.racks.pop(record.broker_id, None)
        self._set_state(record.broker_id, GONE, at_ms)

    def _set_state(self, broker_id: int, state: str, at_ms: int) -> None:
        before = self._now.get(broker_id)
        if before is not None and before[0] == state:
            return
        if before is not None and before[0] != GONE:
            self.forgotten += len(self.episodes) == MAX_EPISODES
            self.episodes.append(Episode(broker_id, before[0], before[1], at_ms))
        self._now[broker_id] = state, at_ms
        if state == FENCED and before is not None:
            self._count(at_ms, "fencings")

    def topic(self, _: int, record: TopicRecord) -> None:
        self.names[encode_uuid(record.topic_id)] = record.name

    def remove_topic(self, _: int, record: RemoveTopicRecord) -> None:
        gone = encode_uuid(record.topic_id)
        self.names.pop(gone, None)
        for place in [place for place in self.partitions if place[0] == gone]:
            del self.partitions[place]

    def partition(self, _: int, record: PartitionRecord) -> None:
        place = encode_uuid(record.topic_id), record.partition_id
        self.partitions[place] = _Partition(
            record.leader, tuple(record.replicas), tuple(record.isr), record.start_offset
        )

    def change_partition(self, at_ms: int, record: PartitionChangeRecord) -> None:
        partition = self.partitions.get((encode_uuid(record.topic_id), record.partition_id))
        if partition is None:
            return
        if record.leader not in (UNCHANGED, partition.leader):
            self._count(at_ms, "leader changes")
            partition.leader = record.leader
        if record.isr is not None and set(record.isr) != set(partition.isr):
            shrunk = not set(partition.isr) <= set(record.isr)
            self._count(at_ms, "ISR lost a replica" if shrunk else "ISR grew")
            partition.isr = tuple(record.isr)
        if record.replicas is not None:
            partition.replicas = tuple(record.replicas)
        if record.start_offset >= 0:
            partition.start_offset = record.start_offset

    def chunk(self, at_ms: int, record: ChunkRecord) -> None:
        topic_id = encode_uuid(record.topic_id)
        partition = self.partitions.get((topic_id, record.partition_id))
        if partition is not None:
            self._count(at_ms, "chunks made")
            partition.chunks[record.start_offset] = Chunk(
                self.names.get(topic_id, topic_id), record.partition_id, record.start_offset,
                record.end_offset, tuple(record.replicas),
            )  # fmt: skip

    def change_chunk(self, at_ms: int, record: ChunkChangeRecord) -> None:
        partition = self.partitions.get((encode_uuid(record.topic_id), record.partition_id))
        chunk = None if partition is None else partition.chunks.pop(record.start_offset, None)
        if partition is None or chunk is None:
            return
        if not record.replicas:
            self._count(at_ms, "chunks removed")
            return
        self._count(at_ms, "chunks moved")
        partition.chunks[chunk.start_offset] = Chunk(
            chunk.topic, chunk.partition, chunk.start_offset, chunk.end_offset,
            tuple(record.replicas),
        )  # fmt: skip

    def _count(self, at_ms: int, what: str) -> None:
        self.changes[self.window.bucket(at_ms), what] += 1


def history_of(spans: Iterable[Span], window: Window) -> ClusterHistory:
    """Compute the cluster's history from consecutive spans of its log.

    Raises:  as `Span.values`.
    """
    history = ClusterHistory(window)
    for position, record in effective_records(_records(spans)):
        if type(record) in _APPLY:
            history.apply(position, record)
    return history


def _records(spans: Iterable[Span]) -> Iterator[tuple[LogPosition, Any]]:
    for span in spans:
        for position, value in span.values():
            if read_frame(value)[0] in _KEYS:
                yield position, decode_record(value)


_APPLY: Final[dict[type, Any]] = {
    RegisterBrokerRecord: ClusterHistory.register,
    FenceBrokerRecord: ClusterHistory.fence,
    UnfenceBrokerRecord: ClusterHistory.unfence,
    BrokerRegistrationChangeRecord: ClusterHistory.change,
    UnregisterBrokerRecord: ClusterHistory.unregister,
    TopicRecord: ClusterHistory.topic,
    RemoveTopicRecord: ClusterHistory.remove_topic,
    PartitionRecord: ClusterHistory.partition,
    PartitionChangeRecord: ClusterHistory.change_partition,
    ChunkRecord: ClusterHistory.chunk,
    ChunkChangeRecord: ClusterHistory.change_chunk,
}
_KEYS: Final = {key for key, record in METADATA_RECORDS.items() if record in {*_APPLY, *MARKS}}
