"""Checks the cluster's own log: brokers and their epochs, topics, partitions, chunks.

This log is short, so one task reads it from its beginning to its end and checks each record against
the state before it. The state made from a checkpoint alone must equal the one that the log gives at
its offset.

The trap: most records carry no partition epoch. Every change of a partition raises it by one, so
only a PartitionRecord, which carries it, can contradict; in a checkpoint each does.

Source: docs/design/chunks.md; invariants 1, 4, 5 and 6 (docs/design/invariants.md); KIP-631,
KIP-1114.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from records.chunks import (
    ChunkChangeRecord,
    ChunkRecord,
    TopicPartitionToBatchCoordinatorMapping,
)
from records.frame import METADATA_RECORDS, decode_record, read_frame
from records.metadata import (
    AbortTransactionRecord,
    BeginTransactionRecord,
    BrokerRegistrationChangeRecord,
    ConfigRecord,
    EndTransactionRecord,
    FeatureLevelRecord,
    FenceBrokerRecord,
    PartitionChangeRecord,
    PartitionRecord,
    ProducerIdsRecord,
    RegisterBrokerRecord,
    RemoveTopicRecord,
    TopicRecord,
    UnfenceBrokerRecord,
    UnregisterBrokerRecord,
)
from records.schema import MetadataRecord
from records.uuids import encode_uuid
from spark_jobs.audit.rows import TopicPartition
from spark_jobs.audit.rules import Fault, Faults, Findings, RecordRules, rule
from spark_jobs.readers.logs import Span
from spark_jobs.tables.transactions import MARKS

TOPIC: Final = 2  # in ConfigRecord.resource_type
NO_CHANGE: Final = -2  # of a leader


class RegisteredBroker(NamedTuple):
    """A broker's registration."""

    epoch: int
    fenced: bool
    in_controlled_shutdown: bool


class Partition(NamedTuple):
    """A partition's state after all its changes."""

    leader_epoch: int
    partition_epoch: int
    leader: int
    isr: tuple[int, ...]
    replicas: tuple[int, ...]
    start_offset: int  # of the active chunk, inclusive


class Chunk(NamedTuple):
    """A closed chunk of a partition; offsets are inclusive."""

    stop_offset: int
    end_offset: int
    epoch: int
    replicas: tuple[int, ...]


@dataclass(slots=True)
class Cluster:
    """The cluster's state, built record by record."""

    brokers: dict[int, RegisteredBroker] = field(default_factory=dict)
    broker_epochs: dict[int, int] = field(default_factory=dict)  # the highest, also of those gone
    topics: dict[str, str] = field(default_factory=dict)  # name by id
    partitions: dict[TopicPartition, Partition] = field(default_factory=dict)
    chunks: dict[TopicPartition, dict[int, Chunk]] = field(default_factory=dict)  # by start offset
    coordinators: dict[TopicPartition, int] = field(default_factory=dict)
    configs: dict[tuple[int, str, str], str] = field(default_factory=dict)
    features: dict[str, int] = field(default_factory=dict)
    next_producer_id: int = 0
    open_transaction: list[tuple[int, MetadataRecord]] | None = None
    names: dict[str, str] = field(default_factory=dict)  # of topics by id, also of those gone

    def copy(self) -> Cluster:
        """Return a copy of the cluster's state that later records do not change."""
        chunks = {place: dict(one) for place, one in self.chunks.items()}
        return Cluster(
            dict(self.brokers), dict(self.broker_epochs), dict(self.topics),
            dict(self.partitions), chunks, dict(self.coordinators), dict(self.configs),
            dict(self.features), self.next_producer_id,
        )  # fmt: skip

    def facts(self) -> Iterator[tuple[str, Any]]:
        """Yield the name and value of each part of the state that a checkpoint stores."""
        yield "next producer id", self.next_producer_id
        for kind, named in (
            ("broker", self.brokers), ("topic", self.topics), ("setting", self.configs),
            ("feature", self.features),
        ):  # fmt: skip
            yield from ((f"{kind} {name}", value) for name, value in named.items())
        for kind, placed in (
            ("partition", self.partitions), ("chunks of", self.chunks),
            ("coordinator of", self.coordinators),
        ):  # fmt: skip
            yield from ((f"{kind} {p[0]}-{p[1]}", value) for p, value in placed.items() if value)


# --- the rules ----------------------------------------------------------------------------------

_RULES: Final[RecordRules[Cluster]] = RecordRules()
on = _RULES.on


def _chunk_before(cluster: Cluster, record: ChunkRecord | ChunkChangeRecord) -> Chunk | None:
    return cluster.chunks.get(_place(record), {}).get(record.start_offset)


def _fault(what: str) -> Fault:
    return Fault(None, what)


@on(
    "registrations-rise",
    "1",
    "Each registration of a broker raises its epoch.",
    RegisterBrokerRecord,
)
def registrations_rise(cluster: Cluster, record: RegisterBrokerRecord) -> Faults:
    known = cluster.broker_epochs.get(record.broker_id, -1)
    if record.broker_epoch <= known:
        yield _fault(f"broker {record.broker_id}: epoch {record.broker_epoch} after {known}")


@on(
    "broker-epochs-current", "1", "A change of a broker names the epoch that it registered with.",
    UnregisterBrokerRecord, BrokerRegistrationChangeRecord, FenceBrokerRecord, UnfenceBrokerRecord,
)  # fmt: skip
def broker_epochs_current(cluster: Cluster, record: Any) -> Faults:
    broker_id, epoch = _broker_of(record)
    known = cluster.brokers.get(broker_id)
    if known is None or known.epoch != epoch:
        has = "is not registered" if known is None else f"has epoch {known.epoch}"
        yield _fault(f"broker {broker_id} {has}, not {epoch}")


@on(
    "topics-named-once", "5", "Topic names and ids are unique, and a topic is removed once.",
    TopicRecord, RemoveTopicRecord,
)  # fmt: skip
def topics_named_once(cluster: Cluster, record: TopicRecord | RemoveTopicRecord) -> Faults:
    topic_id = encode_uuid(record.topic_id)
    if isinstance(record, RemoveTopicRecord):
        if topic_id not in cluster.topics:
            yield _fault(f"there is no topic {topic_id}")
    elif topic_id in cluster.topics or record.name in cluster.topics.values():
        yield _fault(f"topic {record.name} ({topic_id}) is there already")


@on(
    "cluster-partitions-known", "5", "A record of the cluster names only existing partitions.",
    PartitionRecord, PartitionChangeRecord, ChunkRecord, ChunkChangeRecord,
    TopicPartitionToBatchCoordinatorMapping,
)  # fmt: skip
def cluster_partitions_known(cluster: Cluster, record: Any) -> Faults:
    topic_id, index = place = _place(record)
    if isinstance(record, PartitionRecord):
        if topic_id not in cluster.topics:
            yield _fault(f"there is no topic {topic_id}")
    elif place not in cluster.partitions:
        yield _fault(f"there is no partition {topic_id}-{index}")
    elif isinstance(record, ChunkChangeRecord) and _chunk_before(cluster, record) is None:
        yield _fault(f"{topic_id}-{index} has no chunk at {record.start_offset}")


@on(
    "partition-epochs-rise", "1", "Leader and partition epochs of a partition never go back.",
    PartitionRecord,
)  # fmt: skip
def partition_epochs_rise(cluster: Cluster, record: PartitionRecord) -> Faults:
    before = cluster.partitions.get(_place(record))
    if before is not None:
        epochs = record.leader_epoch, record.partition_epoch
        if epochs[0] < before.leader_epoch or epochs[1] <= before.partition_epoch:
            name = f"{_place(record)[0]}-{record.partition_id}"
            yield _fault(f"{name}: epochs {epochs} after {before[:2]}")


@on("chunk-ordered", "5", "A chunk's start, stop and end are in order.", ChunkRecord)
def chunk_ordered(_cluster: Cluster, record: ChunkRecord) -> Faults:
    start, stop, end = record.start_offset, record.stop_offset, record.end_offset
    if not 0 <= start <= end or not start - 1 <= stop <= end:
        yield _fault(f"{_name_of(record)}: start {start}, stop {stop}, end {end}")


@on(
    "chunks-adjoin", "5", "A closed chunk begins where the active one did; the new one follows it.",
    ChunkRecord, PartitionChangeRecord,
)  # fmt: skip
def chunks_adjoin(cluster: Cluster, record: ChunkRecord | PartitionChangeRecord) -> Faults:
    place = _place(record)
    partition, chunks = cluster.partitions.get(place), cluster.chunks.get(place, {})
    if partition is None or record.start_offset < 0:
        return
    if isinstance(record, ChunkRecord):
        active = max(partition.start_offset, 0)
        if record.start_offset not in chunks and record.start_offset != active:
            what = f"a chunk from {record.start_offset}, the active one begins at {active}"
            yield _fault(f"{_name_of(record)}: {what}")
    elif record.start_offset != (
        behind := max((c.end_offset for c in chunks.values()), default=-1) + 1
    ):
        what = (
            f"the active chunk begins at {record.start_offset}, the last one ended at {behind - 1}"
        )
        yield _fault(f"{_name_of(record)}: {what}")


@on(
    "chunk-epochs-rise", "1", "A chunk's epoch is one higher with each change.",
    ChunkRecord, ChunkChangeRecord,
)  # fmt: skip
def chunk_epochs_rise(cluster: Cluster, record: ChunkRecord | ChunkChangeRecord) -> Faults:
    before = _chunk_before(cluster, record)
    if isinstance(record, ChunkRecord) and record.chunk_epoch != record.epoch:
        yield _fault(f"{_name_of(record)}: epochs {record.chunk_epoch} and {record.epoch}")
    elif before is not None and record.replicas and record.epoch != before.epoch + 1:
        yield _fault(f"{_name_of(record)}: epoch {record.epoch} after {before.epoch}")


@on("producer-ids-once", "6", "Producer ids are allocated once, and they rise.", ProducerIdsRecord)
def producer_ids_once(cluster: Cluster, record: ProducerIdsRecord) -> Faults:
    if record.next_producer_id < cluster.next_producer_id:
        what = f"next producer id {record.next_producer_id} after {cluster.next_producer_id}"
        yield _fault(what)


@on(
    "transactions-end", "4", "A transaction of the cluster's records begins once and ends once.",
    BeginTransactionRecord, EndTransactionRecord, AbortTransactionRecord,
)  # fmt: skip
def transactions_end(cluster: Cluster, record: MetadataRecord) -> Faults:
    begins = isinstance(record, BeginTransactionRecord)
    if begins == (cluster.open_transaction is not None):
        yield _fault("one is open already" if begins else "none is open")


@rule("cluster-checkpoint-replay", "4", "A checkpoint of the cluster is what its log says.")
def cluster_checkpoint_replay(offset: int, found: Cluster, log: Cluster) -> Faults:
    ours, theirs = dict(found.facts()), dict(log.facts())
    for name in sorted(ours.keys() | theirs.keys()):
        value, replayed = ours.get(name), theirs.get(name)
        if value != replayed:
            yield Fault(offset, f"{name}: the checkpoint says {value}, the log {replayed}")


# --- reading ------------------------------------------------------------------------------------


def check_cluster(
    log: str, spans: Sequence[Span], checkpoints: Sequence[tuple[str, Span]]
) -> Findings:
    """Check the cluster's log against its rules, and its checkpoints against the log.

    Args:    spans: in order, beginning with the checkpoint it goes on from if it has lost its head;
             one of them ends where each of the checkpoints does.
             checkpoints: those to compare, with the names they are told by.
    Raises:  LostRangeError; DamagedFileError, RecordError; OSError.
    """
    findings, cluster = Findings(), Cluster()
    for span in spans:
        _read(log, span, cluster, findings)
        for name, checkpoint in checkpoints:
            if checkpoint.end_offset == span.end_offset and checkpoint != span:
                claimed = Cluster()
                _read(name, checkpoint, claimed, Findings())
                faults = cluster_checkpoint_replay(span.end_offset, claimed, cluster)
                findings.add("cluster-checkpoint-replay", name, faults)
    findings.topic_names = cluster.names
    return findings


def _read(log: str, span: Span, cluster: Cluster, findings: Findings) -> None:
    for place, value in span.values():
        key, version, _ = read_frame(value)
        cls = METADATA_RECORDS.get(key)
        if cls is None or cls not in _APPLY or version not in cls.schema().versions:
            continue
        record = decode_record(value)
        if cls in MARKS:
            _RULES.check(log, place.offset, cluster, record, findings)
            for offset, held in _apply_mark(cluster, record):
                _RULES.check(log, offset, cluster, held, findings)
                _APPLY[type(held)](cluster, held)
        elif cluster.open_transaction is not None:
            cluster.open_transaction.append((place.offset, record))
        else:
            if not span.is_checkpoint:
                _RULES.check(log, place.offset, cluster, record, findings)
            _APPLY[cls](cluster, record)


def _apply_mark(cluster: Cluster, record: MetadataRecord) -> Iterable[tuple[int, MetadataRecord]]:
    """Begin or end a metadata transaction; return the records that its end commits."""
    held = cluster.open_transaction or []
    cluster.open_transaction = [] if isinstance(record, BeginTransactionRecord) else None
    return held if isinstance(record, EndTransactionRecord) else ()


# --- what records do ----------------------------------------------------------------------------


def _place(record: Any) -> TopicPartition:
    index = getattr(record, "partition_id", None)
    return encode_uuid(record.topic_id), record.partition_index if index is None else index


def _name_of(record: Any) -> str:
    topic_id, index = _place(record)
    return f"{topic_id}-{index}"


def _broker_of(record: Any) -> tuple[int, int]:
    if isinstance(record, FenceBrokerRecord | UnfenceBrokerRecord):
        return record.id, record.epoch
    return record.broker_id, record.broker_epoch


def _apply_registration(cluster: Cluster, record: RegisterBrokerRecord) -> None:
    known = cluster.broker_epochs.get(record.broker_id, -1)
    cluster.broker_epochs[record.broker_id] = max(known, record.broker_epoch)
    cluster.brokers[record.broker_id] = RegisteredBroker(
        record.broker_epoch, record.fenced, record.in_controlled_shutdown
    )


def _apply_unregistration(cluster: Cluster, record: UnregisterBrokerRecord) -> None:
    cluster.brokers.pop(record.broker_id, None)


def _apply_broker_change(cluster: Cluster, record: Any) -> None:
    broker_id, epoch = _broker_of(record)
    known = cluster.brokers.get(broker_id)
    if known is None or known.epoch != epoch:
        return
    if isinstance(record, BrokerRegistrationChangeRecord):
        if record.fenced:
            known = known._replace(fenced=record.fenced > 0)
        if record.in_controlled_shutdown:
            known = known._replace(in_controlled_shutdown=record.in_controlled_shutdown > 0)
    else:
        known = known._replace(fenced=isinstance(record, FenceBrokerRecord))
    cluster.brokers[broker_id] = known


def _apply_topic(cluster: Cluster, record: TopicRecord) -> None:
    topic_id = encode_uuid(record.topic_id)
    cluster.topics[topic_id] = cluster.names[topic_id] = record.name


def _apply_topic_removal(cluster: Cluster, record: RemoveTopicRecord) -> None:
    topic_id = encode_uuid(record.topic_id)
    name = cluster.topics.pop(topic_id, None)
    for placed in (cluster.partitions, cluster.chunks, cluster.coordinators):
        for place in [place for place in placed if place[0] == topic_id]:
            del placed[place]
    for key in [key for key in cluster.configs if key[:2] == (TOPIC, name)]:
        del cluster.configs[key]


def _apply_partition(cluster: Cluster, record: PartitionRecord) -> None:
    cluster.partitions[_place(record)] = Partition(
        record.leader_epoch, record.partition_epoch, record.leader, tuple(record.isr),
        tuple(record.replicas), record.start_offset,
    )  # fmt: skip


def _apply_partition_change(cluster: Cluster, record: PartitionChangeRecord) -> None:
    before = cluster.partitions.get(_place(record))
    if before is None:
        return
    led = record.leader != NO_CHANGE
    cluster.partitions[_place(record)] = Partition(
        before.leader_epoch + led,
        before.partition_epoch + 1,
        record.leader if led else before.leader,
        before.isr if record.isr is None else tuple(record.isr),
        before.replicas if record.replicas is None else tuple(record.replicas),
        record.start_offset if record.start_offset >= 0 else before.start_offset,
    )


def _apply_chunk(cluster: Cluster, record: ChunkRecord) -> None:
    cluster.chunks.setdefault(_place(record), {})[record.start_offset] = Chunk(
        record.stop_offset, record.end_offset, record.epoch, tuple(record.replicas)
    )


def _apply_chunk_change(cluster: Cluster, record: ChunkChangeRecord) -> None:
    chunks = cluster.chunks.get(_place(record), {})
    before = chunks.get(record.start_offset)
    if before is not None and record.replicas:
        replicas = tuple(record.replicas)
        chunks[record.start_offset] = before._replace(epoch=record.epoch, replicas=replicas)
    elif before is not None:
        del chunks[record.start_offset]


def _apply_mapping(cluster: Cluster, record: TopicPartitionToBatchCoordinatorMapping) -> None:
    cluster.coordinators[_place(record)] = record.batch_coordinator_partition_index


def _apply_config(cluster: Cluster, record: ConfigRecord) -> None:
    key = record.resource_type, record.resource_name, record.name
    if record.value is None:
        cluster.configs.pop(key, None)
    else:
        cluster.configs[key] = record.value


def _apply_feature(cluster: Cluster, record: FeatureLevelRecord) -> None:
    cluster.features[record.name] = record.feature_level
    if not record.feature_level:
        del cluster.features[record.name]


def _apply_producer_ids(cluster: Cluster, record: ProducerIdsRecord) -> None:
    cluster.next_producer_id = max(cluster.next_producer_id, record.next_producer_id)


def _ignore_mark(_cluster: Cluster, _record: MetadataRecord) -> None:
    """Do nothing, because `_apply_mark` handles the records that begin and end transactions."""


_APPLY: Final[dict[type[MetadataRecord], Callable[[Cluster, Any], None]]] = {
    RegisterBrokerRecord: _apply_registration,
    UnregisterBrokerRecord: _apply_unregistration,
    BrokerRegistrationChangeRecord: _apply_broker_change,
    FenceBrokerRecord: _apply_broker_change,
    UnfenceBrokerRecord: _apply_broker_change,
    TopicRecord: _apply_topic,
    RemoveTopicRecord: _apply_topic_removal,
    PartitionRecord: _apply_partition,
    PartitionChangeRecord: _apply_partition_change,
    ChunkRecord: _apply_chunk,
    ChunkChangeRecord: _apply_chunk_change,
    TopicPartitionToBatchCoordinatorMapping: _apply_mapping,
    ConfigRecord: _apply_config,
    FeatureLevelRecord: _apply_feature,
    ProducerIdsRecord: _apply_producer_ids,
    **dict.fromkeys(MARKS, _ignore_mark),
}
