"""Which groups there are: what a quorum without a controller reads of the cluster log.

A group begins with the committed PartitionRecord of an internal topic and ends with the topic's
removal. Committed records are applied in order, and nothing inside an open transaction is shown to
anybody before its end. The first leader of an empty log writes the bootstrap records as one atomic
batch, in upstream's form; a leader of an idle log writes a NoOpRecord now and then, so that
whoever follows it knows that it lives.

A controller, once there is one, reads the same log and takes this place.

Source: KIP-631; KIP-835 (NoOpRecord); KIP-868 (transactions); upstream's activation records.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from typing import Final
from uuid import UUID

from raft.driver.config import INTERNAL_TOPICS
from raft.driver.group import GroupDriver
from raft.interfaces import Draft, draft_values
from raft.wire import Group
from records.batch import Batch, iter_records
from records.errors import RecordError, UnknownRecordError, UnsupportedVersionError
from records.frame import decode_record, encode_record
from records.metadata import (
    AbortTransactionRecord,
    BeginTransactionRecord,
    EndTransactionRecord,
    FeatureLevelRecord,
    NoOpRecord,
    PartitionRecord,
    RemoveTopicRecord,
    TopicRecord,
)
from records.schema import MetadataRecord
from records.types import Epoch, Offset, OffsetAndEpoch

log = logging.getLogger("raft.driver")

READ_BYTES: Final = 64 * 1024  # decoded between two looks at the clock
SLICE_S: Final = 0.005


class Directory:
    """Applies the cluster log's committed records; watches its group."""

    def __init__(
        self,
        group: GroupDriver,
        *,
        bootstrap: tuple[MetadataRecord, ...],
        bench_topic: str | None,
        max_idle_interval_ms: int,
        on_start: Callable[[Group], None],
        on_stop: Callable[[Group], None],
        on_applied: Callable[[Offset], None],
    ) -> None:
        """An empty directory, at the start of the log.

        Args:    bench_topic: the one topic that is a group only if the node was told to serve it.
        """
        self.applied_offset = Offset(group.storage.log.log_start_offset)  # exclusive
        self.features: dict[str, int] = {}
        self._group = group
        self._bootstrap = bootstrap
        self._served = INTERNAL_TOPICS if bench_topic is None else INTERNAL_TOPICS | {bench_topic}
        self._max_idle_interval_ms = max_idle_interval_ms
        self._on_start = on_start
        self._on_stop = on_stop
        self._on_applied = on_applied
        self._topics: dict[UUID, str] = {}
        self._started: dict[UUID, list[Group]] = {}
        self._transaction: list[MetadataRecord] | None = None
        self._empty = True  # no record but control records was ever committed
        self._target = self.applied_offset  # apply up to here (exclusive)
        self._applying = False  # a slice is due
        self._leading: Epoch | None = None
        self._active = False  # leading, and everything before our epoch is applied
        self._idle_timer: asyncio.TimerHandle | None = None
        self._idle_end_offset = Offset(-1)

    # --- watching -----------------------------------------------------------------------------

    def committed(self, high_watermark: Offset) -> None:
        """Apply what is committed now, in slices: a long log must not hold up other groups."""
        self._target = high_watermark
        if not self._applying:
            self._apply_slice()

    def _apply_slice(self) -> None:
        """A few milliseconds' worth; the rest in the next turn of the loop."""
        until = time.monotonic() + SLICE_S
        while self.applied_offset < self._target:
            found = self._group.storage.read(self.applied_offset, self._target, READ_BYTES)
            if found is None:
                break
            for batch in found.batches:
                self._apply_batch(batch)
                self.applied_offset = batch.header.end_offset
            if time.monotonic() >= until:
                self._applying = True
                asyncio.get_running_loop().call_soon(self._go_on)
                return
        self._applying = False
        self._on_applied(self.applied_offset)
        if self._leading is not None and not self._active:
            self._activate(self._leading)

    def _go_on(self) -> None:
        if self._group.stopped:
            return
        try:
            self._apply_slice()
        except BaseException as error:
            self._group.fail(error)

    def lead(self, epoch: Epoch) -> None:
        """Begin to write, once everything before this epoch is applied."""
        self._leading = epoch
        if not self._applying:
            self._activate(epoch)

    def _activate(self, epoch: Epoch) -> None:
        """Begin an empty log, and keep an idle one alive."""
        self._active = True
        if self._empty and self._bootstrap:
            self._write_bootstrap(epoch)
        if self._max_idle_interval_ms:
            self._arm_idle(epoch)

    def step_down(self, epoch: Epoch) -> None:  # noqa: ARG002 (a Watcher's)
        """Write nothing more."""
        self._leading, self._active = None, False
        if self._idle_timer is not None:
            self._idle_timer.cancel()
            self._idle_timer = None

    def snapshot(self, snapshot_id: OffsetAndEpoch) -> None:
        """Nothing installs snapshots yet."""
        raise AssertionError(f"{self._group.name}: snapshot {snapshot_id}")

    # --- applying -----------------------------------------------------------------------------

    def _apply_batch(self, batch: Batch) -> None:
        if batch.header.is_control:
            return
        self._empty = False
        for record in iter_records(batch):
            if record.value is None:
                continue
            try:
                self._apply(decode_record(record.value))
            except (UnknownRecordError, UnsupportedVersionError):
                continue  # a controller's, from a later version; not about groups
            except RecordError as error:
                log.error("group=%s offset=%d record=%s", self._group.name, record.offset, error)

    def _apply(self, record: MetadataRecord) -> None:
        """Hold records back while a transaction is open."""
        match record:
            case BeginTransactionRecord():
                self._transaction = []
            case EndTransactionRecord():
                held, self._transaction = self._transaction or [], None
                for one in held:
                    self._publish(one)
            case AbortTransactionRecord():
                self._transaction = None
            case _ if self._transaction is not None:
                self._transaction.append(record)
            case _:
                self._publish(record)

    def _publish(self, record: MetadataRecord) -> None:
        match record:
            case FeatureLevelRecord(name=name, feature_level=level):
                if level:
                    self.features[name] = level
                else:
                    self.features.pop(name, None)
            case TopicRecord(name=name, topic_id=topic_id) if name in self._served:
                self._topics[topic_id] = name
            case PartitionRecord(topic_id=topic_id) if topic_id in self._topics:
                group = Group(self._topics[topic_id], record.partition_id, topic_id)
                started = self._started.setdefault(topic_id, [])
                if group not in started:
                    started.append(group)
                    self._on_start(group)
            case RemoveTopicRecord(topic_id=topic_id):
                self._topics.pop(topic_id, None)
                for group in self._started.pop(topic_id, ()):
                    self._on_stop(group)

    # --- writing ------------------------------------------------------------------------------

    def _write_bootstrap(self, epoch: Epoch) -> None:
        """One batch, so that it is in the log whole or not at all; the end offset is that of now.

        A former leader's bootstrap that was not committed yet lies before our own LeaderChange: it
        is committed with it, and then the log is not empty.
        """
        records = (
            BeginTransactionRecord(name="Bootstrap records"),
            *self._bootstrap,
            EndTransactionRecord(),
        )
        draft = _draft(records)
        end_offset = self._group.quorum.log.end_offset
        self._group.propose(_Quiet("bootstrap"), epoch, draft, expected_end_offset=end_offset)
        log.info(
            "group=%s action=bootstrap epoch=%d records=%d", self._group.name, epoch, len(records)
        )

    def _arm_idle(self, epoch: Epoch) -> None:
        self._idle_end_offset = self._group.quorum.log.end_offset
        loop = asyncio.get_running_loop()
        delay_s = self._max_idle_interval_ms / 1_000
        self._idle_timer = loop.call_later(delay_s, self._on_idle_timer, epoch)

    def _on_idle_timer(self, epoch: Epoch) -> None:
        if self._group.quorum.log.end_offset == self._idle_end_offset:
            self._group.propose(_Quiet("no_op"), epoch, _draft((NoOpRecord(),)))
        self._arm_idle(epoch)


def _draft(records: tuple[MetadataRecord, ...]) -> Draft:
    values = [encode_record(record) for record in records]
    return draft_values(values, timestamp_ms=time.time_ns() // 1_000_000)


class _Quiet:
    """A proposal nobody waits for."""

    def __init__(self, what: str) -> None:
        self._what = what

    def accepted(self, epoch: Epoch, base_offset: Offset, end_offset: Offset) -> None:
        """Its effect comes with its commit."""

    def refused(self, error: int) -> None:
        """The next leader does it again if it has to be done."""
        log.info("action=%s refused=%d", self._what, error)
