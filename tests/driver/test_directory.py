"""The cluster log's groups: whole transactions only, long logs in slices. KIP-868, DESIGN §5."""

from __future__ import annotations

import asyncio
from uuid import UUID

import pytest

from raft.driver import directory
from raft.driver.directory import Directory
from raft.memory import MemoryLog, SilentTicket
from raft.segments.segment import Records
from raft.wire import Group
from records.batch import iter_batches
from records.frame import encode_record
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
from records.types import Offset


@pytest.fixture(autouse=True)
def one_slice_is_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a loop there is no later: also a busy machine applies all in one slice."""
    monkeypatch.setattr(directory, "SLICE_S", 60)


TOPIC_ID = UUID(int=9)
GROUP = Group("__diskless-metadata", 0, TOPIC_ID)
TOPIC = TopicRecord(name="__diskless-metadata", topic_id=TOPIC_ID)
PARTITION = PartitionRecord(
    partition_id=0, topic_id=TOPIC_ID, replicas=(1,), isr=(1,), removing_replicas=(),
    adding_replicas=(), leader=1, leader_epoch=0, partition_epoch=0,
)  # fmt: skip


class _Log:
    """A group driver, as far as the directory asks: one node's log in memory."""

    name = "__cluster_metadata-0"
    stopped = False

    def __init__(self) -> None:
        self.memory = MemoryLog()
        self.storage = self.quorum = self.log = self
        self.reads = 0

    log_start_offset = Offset(0)

    @property
    def end_offset(self) -> Offset:
        return self.memory.end_offset

    def read(self, offset: Offset, end_offset: Offset, max_bytes: int) -> Records | None:
        self.reads += 1
        data = self.memory.read(offset, max_bytes)
        batches = tuple(b for b in iter_batches(data) if b.header.end_offset <= end_offset)
        return Records(memoryview(data), batches) if batches else None

    def propose(self, ticket, epoch, draft, *, expected_end_offset=None) -> None:
        self.memory.propose(ticket, epoch, draft, expected_end_offset=expected_end_offset)

    def append(self, *records: MetadataRecord) -> None:
        epoch = self.memory.leading_epoch
        draft = directory.draft_values([encode_record(r) for r in records], timestamp_ms=0)
        self.memory.propose(SilentTicket(), epoch, draft)


class Watched:
    """A directory and what it has started and stopped."""

    def __init__(self, *, bootstrap: tuple[MetadataRecord, ...] = ()) -> None:
        self.log = _Log()
        self.started: list[Group] = []
        self.stopped: list[Group] = []
        self.directory = Directory(
            self.log,  # type: ignore[arg-type]
            bootstrap=bootstrap,
            bench_topic=None,
            max_idle_interval_ms=0,
            on_start=self.started.append,
            on_stop=self.stopped.append,
            on_applied=lambda _: None,
        )

    def lead(self) -> None:
        self.log.memory.elect()
        self.log.memory.watch(self.directory)


def test_nothing_inside_an_open_transaction_is_published() -> None:
    watched = Watched()
    watched.lead()
    watched.log.append(BeginTransactionRecord(name="t"), TOPIC, PARTITION)
    assert watched.started == []
    watched.log.append(EndTransactionRecord())
    assert watched.started == [GROUP]


def test_an_aborted_transaction_never_was() -> None:
    watched = Watched()
    watched.lead()
    watched.log.append(BeginTransactionRecord(name="t"), TOPIC, PARTITION)
    watched.log.append(AbortTransactionRecord(reason="no"))
    watched.log.append(PARTITION)  # of a topic that does not exist
    assert watched.started == []


def test_a_removed_topic_ends_its_groups() -> None:
    watched = Watched()
    watched.lead()
    watched.log.append(TOPIC, PARTITION, PARTITION)
    watched.log.append(RemoveTopicRecord(topic_id=TOPIC_ID))
    assert (watched.started, watched.stopped) == ([GROUP], [GROUP])


def test_topics_of_users_are_no_groups_of_the_quorum() -> None:
    watched = Watched()
    watched.lead()
    watched.log.append(TopicRecord(name="orders", topic_id=TOPIC_ID), PARTITION)
    assert watched.started == []


def test_the_first_leader_writes_the_bootstrap_records_once() -> None:
    level = FeatureLevelRecord(name="metadata.version", feature_level=27)
    watched = Watched(bootstrap=(level, TOPIC, PARTITION))
    watched.lead()
    assert watched.started == [GROUP]
    assert watched.directory.features == {"metadata.version": 27}
    end_offset = watched.log.end_offset
    assert end_offset == 1 + 5  # LeaderChange; Begin, three records, End
    watched.log.memory.depose()
    watched.log.memory.elect()
    assert watched.log.end_offset == end_offset + 1


def test_a_long_log_is_applied_in_slices(monkeypatch) -> None:
    monkeypatch.setattr(directory, "READ_BYTES", 200)
    monkeypatch.setattr(directory, "SLICE_S", 0)
    level = FeatureLevelRecord(name="metadata.version", feature_level=27)

    async def story() -> None:
        watched = Watched(bootstrap=(level,))
        watched.log.memory.elect()
        for _ in range(50):
            watched.log.append(NoOpRecord())
        watched.log.append(TOPIC, PARTITION)
        watched.log.memory.watch(watched.directory)
        assert watched.directory.applied_offset < watched.log.end_offset
        assert watched.started == []
        while watched.directory.applied_offset < watched.log.end_offset:
            await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert watched.started == [GROUP]
        assert watched.directory.features == {}  # the log was not empty: no bootstrap

    asyncio.run(story())
