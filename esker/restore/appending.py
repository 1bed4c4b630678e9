"""Appends the tail to a batch coordinator's state, by the decision and the records of a commit.

Objects go in the order of their ids, which is not the order in which the lost cluster committed
them: each broker had its own leases. So a record may get an offset before one that was older.
Nothing is guessed: what cannot be appended is listed with the reason.

- A transactional batch is left out: its transaction's outcome may be in no source.
- A batch of a compacted topic is left out. Why: an older value of a key, appended behind the
  tombstone that deleted it, would bring the key back.
- An idempotent batch is judged by its sequence like any other: a duplicate of a batch that is
  there adds nothing, and one behind a gap is refused.

The trap: an id that is passed over must not count as an orphan, or the new cluster deletes the
object and with it the batches that were listed.

Source: docs/design/restore.md#the-tail.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Final, NamedTuple
from uuid import UUID

from coordinator.batch.cluster_view import StaticView
from coordinator.batch.decide.base import Context
from coordinator.batch.decide.commit import decide_commit
from coordinator.batch.settings import CoordinatorSettings
from coordinator.batch.sqlite.store import Store
from coordinator.batch.state import LeaseFinder
from coordinator.controller.config_defs import COMPACT
from coordinator.controller.decide.configs import cleanup_policies, topic_value
from coordinator.controller.image import MetadataImage
from esker.restore.tail import TailBatch, TailObject
from records.diskless import LeaseGrantedRecord
from records.kafka_errors import ErrorCode
from records.object_keys import ObjectKeys
from records.rpc.batch_coordinator import CommitBatchesRequest, CommitBatchResult
from records.wal import APPENDED

TRANSACTIONAL: Final = "transactional"
UNKNOWN_TOPIC: Final = "unknown topic"
COMPACTED: Final = "compacted topic"


class LeftOut(NamedTuple):
    """Records of the tail that were not appended."""

    coordinator: int
    object_id: int
    topic: str  # its name, or its id if it is unknown
    partition: int
    records: int
    reason: str


@dataclass(slots=True)
class Appended:
    """Records of the tail that were appended, and those that were left out."""

    objects: int = 0
    records: int = 0
    duplicates: int = 0  # records that the chosen copies or the tail have already
    partitions: dict[tuple[str, int], tuple[int, int]] = field(default_factory=dict)
    """By topic and partition: the first offset of the tail and the one behind its last."""

    left_out: list[LeftOut] = field(default_factory=list)


def append_tail(
    store: Store,
    image: MetadataImage,
    coordinator: int,
    objects: Sequence[TailObject],
    appended: Appended,
) -> None:
    """Append the batches of the tail's objects to a batch coordinator's state.

    Args:    image: of the cluster log; it names the topics and their settings.
             objects: by rising id.
             appended: is added to.
    Raises:  sqlite3.Error.
    """
    if not objects:
        return
    store.begin()
    _Appending(store, image, coordinator, appended).run(objects)


class _Appending:
    """One batch coordinator's tail while it is appended."""

    def __init__(
        self, store: Store, image: MetadataImage, coordinator: int, appended: Appended
    ) -> None:
        self._store = store
        self._image = image
        self._coordinator = coordinator
        self._appended = appended
        keys = ObjectKeys(prefix="", cluster_id="none", coordinator_partition=coordinator)
        self._settings = CoordinatorSettings(keys=keys)
        self._names = {topic.topic_id: topic.name for topic in image.iter_topics()}

    def run(self, objects: Sequence[TailObject]) -> None:
        for owner, several in groupby(objects, key=self._owner):
            group = list(several)
            lease_id = owner[0]
            if lease_id is None:
                lease_id = self._grant(group)
            for one in group:
                self._append(one, lease_id)

    def _owner(self, one: TailObject) -> tuple[int | None, int, int]:
        """Return the lease of an object in the chosen copy, if any, and the object's broker."""
        if one.object_id >= self._store.counters.next_object_id:
            return None, one.broker_id, one.broker_epoch
        return LeaseFinder(self._store).find(one.object_id), one.broker_id, one.broker_epoch

    def _grant(self, group: Sequence[TailObject]) -> int | None:
        """Lease the ids of consecutive objects of one broker; None if it had a newer epoch."""
        first, last = group[0], group[-1]
        broker = self._store.brokers.get(first.broker_id)
        if broker is not None and broker.epoch > first.broker_epoch:
            return None
        lease_id = self._store.counters.next_lease_id
        self._store.apply(
            LeaseGrantedRecord(
                lease_id=lease_id,
                broker_id=first.broker_id,
                broker_epoch=first.broker_epoch,
                first_object_id=first.object_id,
                object_count=last.object_id + 1 - first.object_id,
                granted_at_ms=first.modified_ms,
                closed_lease_ids=(),
            )
        )
        return lease_id

    def _append(self, one: TailObject, lease_id: int | None) -> None:
        """Append the batches of one object that can be appended, and list the others."""
        taken: list[TailBatch] = []
        for batch in one.batches:
            reason = self._why_not(batch)
            if reason is None:
                taken.append(batch)
            else:
                self._leave_out(one, batch, reason)
        if not taken:
            return
        request = CommitBatchesRequest(
            broker_id=one.broker_id,
            broker_epoch=one.broker_epoch,
            lease_id=-1 if lease_id is None else lease_id,
            object_id=one.object_id,
            object_format=APPENDED,
            object_size=one.size_bytes,
            topics=tuple(self._topics(taken)),
        )
        context = Context(
            now_ms=one.modified_ms,
            steady_ms=one.modified_ms,
            leader_since_ms=one.modified_ms,
            shared_ms=None,
            view=StaticView(),
            settings=self._settings,
        )
        decision = decide_commit(request, self._store, self._store, context)
        if decision.response.error_code:
            code = ErrorCode(decision.response.error_code).name
            for batch in taken:
                self._leave_out(one, batch, f"refused: {code}")
            return
        results = [r for t in decision.response.topics for p in t.partitions for r in p.results]
        ordered = sorted(taken, key=_place)
        if any(not result.error_code and not result.is_duplicate for result in results):
            for record in decision.records:
                self._store.apply(record)
            self._appended.objects += 1
        for batch, result in zip(ordered, results, strict=True):
            self._note(one, batch, result)

    def _why_not(self, batch: TailBatch) -> str | None:
        """Return why a batch is not appended, whatever its sequence is; None if it may be."""
        if batch.is_transactional:
            return TRANSACTIONAL
        name = self._names.get(batch.topic_id)
        if name is None:
            return UNKNOWN_TOPIC
        return COMPACTED if COMPACT in cleanup_policies(self._image, name) else None

    def _topics(self, batches: Sequence[TailBatch]) -> Iterator[CommitBatchesRequest.Topic]:
        """Yield the batches as a request nests them: by topic, partition and place."""
        for topic_id, of_topic in groupby(sorted(batches, key=_place), key=lambda b: b.topic_id):
            name = self._names[topic_id]
            kind = topic_value(self._image, name, "message.timestamp.type") == "LogAppendTime"
            yield CommitBatchesRequest.Topic(
                topic_id=topic_id,
                partitions=tuple(
                    CommitBatchesRequest.Topic.Partition(
                        partition_index=partition,
                        batches=tuple(
                            batch.commit._replace(message_timestamp_type=int(kind))
                            for batch in of_partition
                        ),
                    )
                    for partition, of_partition in groupby(of_topic, key=lambda b: b.partition)
                ),
            )

    def _note(self, one: TailObject, batch: TailBatch, result: CommitBatchResult) -> None:
        """Note the outcome of one batch."""
        appended = self._appended
        if result.error_code:
            code = ErrorCode(result.error_code).name
            self._leave_out(one, batch, f"refused: {code}")
        elif result.is_duplicate:
            appended.duplicates += batch.record_count
        else:
            appended.records += batch.record_count
            place = self._names[batch.topic_id], batch.partition
            base = result.assigned_base_offset
            first, _ = appended.partitions.get(place, (base, base))
            appended.partitions[place] = first, base + batch.record_count

    def _leave_out(self, one: TailObject, batch: TailBatch, reason: str) -> None:
        topic = self._names.get(batch.topic_id, str(batch.topic_id))
        left = LeftOut(
            self._coordinator,
            one.object_id,
            topic,
            batch.partition,
            batch.record_count,
            reason,
        )
        self._appended.left_out.append(left)


def _place(batch: TailBatch) -> tuple[UUID, int, int]:
    """Order batches by topic, partition and place in the object, as a commit request does."""
    return batch.topic_id, batch.partition, batch.commit.byte_offset
