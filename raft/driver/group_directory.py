"""Starts and stops the groups that the cluster log names, for a quorum without a controller.

A group begins with the committed PartitionRecord of an internal topic and ends with the topic's
removal. Committed records are applied in order, and nothing inside an open transaction is visible
or checkpointed before its end. The first leader of an empty log writes the bootstrap
records as one atomic batch, in upstream's form; a leader of an idle log writes a NoOpRecord now and
then, so that followers know that it is alive.

With a controller, its state machine reads the same log instead of this one.

Source: KIP-631; KIP-835 (NoOpRecord); KIP-868 (transactions); upstream's activation records.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Iterable, Iterator, Sequence

from raft.core.voters import Endpoint
from raft.driver.cluster_records import ClusterRecords
from raft.driver.config import QUORUM_TOPICS
from raft.driver.node_services import ClusterEvents
from raft.interfaces import Draft, Frozen, ReplicatedLog, draft_values
from raft.wire.responses import Group
from records.batch import Batch, iter_records
from records.compression import Buffer
from records.errors import RecordError, UnknownRecordError, UnsupportedVersionError
from records.frame import decode_record, encode_record
from records.metadata import (
    AbortTransactionRecord,
    BeginTransactionRecord,
    EndTransactionRecord,
    NoOpRecord,
    PartitionRecord,
    RemoveTopicRecord,
)
from records.schema import MetadataRecord
from records.types import Epoch, NodeId, Offset, OffsetAndEpoch

log = logging.getLogger("raft.driver")


class Directory:
    """The cluster log's state machine. Implements `ClusterState`."""

    def __init__(
        self,
        log: ReplicatedLog,
        *,
        bench_topic: str | None,
        events: ClusterEvents,
    ) -> None:
        """Create an empty table of the groups that the cluster log names.

        Args:    bench_topic: a further topic whose partitions are groups; None: there is none.
        """
        self.applied = OffsetAndEpoch(Offset(0), Epoch(0))
        self.last_timestamp = 0
        self._log = log
        self._served = QUORUM_TOPICS if bench_topic is None else QUORUM_TOPICS | {bench_topic}
        self._events = events
        self._records = ClusterRecords()
        self._unchanged = 0  # `_records.changed` as of the newest checkpoint
        self._frozen_changed = 0  # `_records.changed` as of the last frozen state
        self._started: list[Group] = []
        self._transaction: list[MetadataRecord] | None = None
        self.empty = True  # only control records were ever committed

    @property
    def applied_offset(self) -> Offset:
        """Return the first offset of the cluster log that is not applied to the table yet."""
        return self.applied.offset

    @property
    def groups(self) -> Sequence[Group]:
        """Return the groups that the cluster log names, which this node should run."""
        return self._started

    @property
    def features(self) -> dict[str, int]:
        """Return the levels of the finalized features by feature name."""
        return {name: record.feature_level for name, record in self._records.features.items()}

    @property
    def controllers(self) -> dict[NodeId, Endpoint]:
        """Return no endpoints, because controllers register only with a controller quorum."""
        return {}

    # --- a StateMachine -----------------------------------------------------------------------

    @property
    def changed_records(self) -> int:
        """Return the number of records that changed since the newest checkpoint."""
        return self._records.changed - self._unchanged

    @property
    def total_records(self) -> int:
        """Return the number of records in a checkpoint taken now."""
        return self._records.count

    @property
    def checkpointable(self) -> bool:
        """Return whether the state includes all records and no metadata transaction is open."""
        return self._transaction is None and self._records.complete

    def apply(self, batches: Iterable[Batch]) -> None:
        """Apply committed batches of the cluster log to the table of groups, in order."""
        for batch in batches:
            header = batch.header
            if not header.is_control:
                self.empty = False
                for record in self._decode_records(batch):
                    self._apply(record)
            self.last_timestamp = max(self.last_timestamp, header.max_timestamp)
            self.applied = OffsetAndEpoch(header.end_offset, header.leader_epoch)
        self._events.on_applied(self.applied.offset)

    def reset(self) -> None:
        """Remove all records; running groups end unless the cluster log names them again."""
        self._records, self._unchanged, self._transaction = ClusterRecords(), 0, None
        self.applied = OffsetAndEpoch(Offset(0), Epoch(0))
        self.last_timestamp = 0

    def load(self, snapshot_id: OffsetAndEpoch, batches: Iterable[Batch]) -> Iterator[None]:
        """Replace the state by a checkpoint's records, and start and stop groups accordingly."""
        loaded = ClusterRecords()
        for batch in batches:
            for record in self._decode_records(batch):
                loaded.replay(record)
            self.last_timestamp = max(self.last_timestamp, batch.header.max_timestamp)
            yield
        if not self._records.complete:
            loaded.complete = False
        self._records, self._unchanged = loaded, loaded.changed
        self._transaction = None
        self.empty = self.empty and not loaded.count
        self.applied = snapshot_id
        self._announce()
        self._events.on_applied(self.applied.offset)

    def freeze(self) -> Frozen:
        """Return the current records in encoded form, from which a checkpoint is written."""
        self._frozen_changed = self._records.changed
        return _FrozenRecords([encode_record(record) for record in self._records.records()])

    def checkpointed(self, snapshot_id: OffsetAndEpoch, record_count: int) -> None:  # noqa: ARG002
        """Subtract the changes in a new checkpoint from the number of changed records."""
        self._unchanged = self._frozen_changed

    # --- applying -----------------------------------------------------------------------------

    def _decode_records(self, batch: Batch) -> Iterator[MetadataRecord]:
        """Yield a batch's decodable records; prevent checkpoints after an undecodable record."""
        for record in iter_records(batch):
            if record.value is None:
                continue
            try:
                yield decode_record(record.value)
            except (UnknownRecordError, UnsupportedVersionError):
                self._records.complete = False  # a controller's, from a later version
            except RecordError as error:
                self._records.complete = False
                log.error("group=%s offset=%d record=%s", self._log.name, record.offset, error)

    def _apply(self, record: MetadataRecord) -> None:
        """Apply one record, or keep the record until the open transaction ends."""
        match record:
            case BeginTransactionRecord():
                self._transaction = []
            case EndTransactionRecord():
                held, self._transaction = self._transaction or [], None
                for held_record in held:
                    self._publish(held_record)
            case AbortTransactionRecord():
                self._transaction = None
            case _ if self._transaction is not None:
                self._transaction.append(record)
            case _:
                self._publish(record)

    def _publish(self, record: MetadataRecord) -> None:
        self._records.replay(record)
        match record:
            case PartitionRecord(topic_id=topic_id):
                topic = self._records.topics.get(topic_id)
                if topic is not None and topic.name in self._served:
                    self._announce()
            case RemoveTopicRecord(topic_id=topic_id):
                if any(group.topic_id == topic_id for group in self._started):
                    self._announce()

    def _announce(self) -> None:
        """Start and stop groups until exactly the groups that the cluster log names are running."""
        records = self._records
        wanted = [
            Group(topic.name, index, topic_id)
            for topic_id, topic in records.topics.items()
            if topic.name in self._served
            for index in records.partitions[topic_id]
        ]
        before, self._started = self._started, wanted
        for group in before:
            if group not in wanted:
                self._events.on_stop(group)
        for group in wanted:
            if group not in before:
                self._events.on_start(group)


class ClusterLogLeader:
    """Writes bootstrap and no-op records to the cluster log; implements `StateListener`."""

    def __init__(
        self,
        log: ReplicatedLog,
        directory: Directory,
        *,
        bootstrap: tuple[MetadataRecord, ...],
        max_idle_interval_ms: int,
    ) -> None:
        """Create the writer of bootstrap and no-op records, idle until this node leads.

        Args:    bootstrap: the first records of an empty log.
        """
        self._log = log
        self._directory = directory
        self._bootstrap = bootstrap
        self._max_idle_interval_ms = max_idle_interval_ms
        self._idle_timer: asyncio.TimerHandle | None = None
        self._idle_end_offset = Offset(-1)

    def applied(self, offset: Offset) -> None:
        """Do nothing, because the table of groups announces applied offsets by itself."""

    def lead(self, epoch: Epoch) -> None:
        """Write the bootstrap records into an empty log, and no-op records into an idle log."""
        if self._directory.empty and self._bootstrap:
            self._write_bootstrap(epoch)
        if self._max_idle_interval_ms:
            self._arm_idle(epoch)

    def step_down(self, epoch: Epoch) -> None:  # noqa: ARG002 (a listener's)
        """Stop writing to the cluster log when this node no longer leads it."""
        if self._idle_timer is not None:
            self._idle_timer.cancel()
            self._idle_timer = None

    def _write_bootstrap(self, epoch: Epoch) -> None:
        """Propose the bootstrap records as one batch, if the log end has not moved meanwhile.

        A former leader's bootstrap that was not committed yet lies before our own LeaderChange: it
        is committed with it, and then the log is not empty.
        """
        records = (
            BeginTransactionRecord(name="Bootstrap records"),
            *self._bootstrap,
            EndTransactionRecord(),
        )
        draft = _draft(records)
        end_offset = self._log.end_offset
        self._log.propose(_FireAndForget("bootstrap"), epoch, draft, expected_end_offset=end_offset)
        log.info(
            "group=%s action=bootstrap epoch=%d records=%d", self._log.name, epoch, len(records)
        )

    def _arm_idle(self, epoch: Epoch) -> None:
        self._idle_end_offset = self._log.end_offset
        loop = asyncio.get_running_loop()
        delay_s = self._max_idle_interval_ms / 1_000
        self._idle_timer = loop.call_later(delay_s, self._on_idle_timer, epoch)

    def _on_idle_timer(self, epoch: Epoch) -> None:
        if self._log.end_offset == self._idle_end_offset:
            self._log.propose(_FireAndForget("no_op"), epoch, _draft((NoOpRecord(),)))
        self._arm_idle(epoch)


def _draft(records: tuple[MetadataRecord, ...]) -> Draft:
    values = [encode_record(record) for record in records]
    return draft_values(values, timestamp_ms=time.time_ns() // 1_000_000)


class _FrozenRecords:
    """Encoded records of a directory, frozen at one offset."""

    def __init__(self, encoded: list[bytes]) -> None:
        self._encoded = encoded

    def values(self) -> Iterator[Buffer]:
        """Yield the encoded records of the frozen state in an order that is valid for replay."""
        return iter(self._encoded)

    def close(self) -> None:
        """Release the frozen state's encoded records."""
        self._encoded = []


class _FireAndForget:
    """A ticket for a proposal whose outcome is only logged."""

    def __init__(self, what: str) -> None:
        self._what = what

    def accepted(self, epoch: Epoch, base_offset: Offset, end_offset: Offset) -> None:
        """Do nothing, because the record takes effect when it is committed."""

    def refused(self, error: int) -> None:
        """Log that a record was refused; a later leader proposes the record again."""
        log.info("action=%s refused=%d", self._what, error)
