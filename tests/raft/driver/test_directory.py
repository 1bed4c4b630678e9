"""The cluster log's groups: whole transactions only, long logs in slices.

Source: KIP-868, docs/design/quorum.md#groups-come-from-the-cluster-log.
"""

from __future__ import annotations

import asyncio
from uuid import UUID

import pytest

from raft.driver import applying
from raft.driver.applying import Applier
from raft.driver.group_directory import ClusterLogLeader, Directory
from raft.driver.node_services import ClusterEvents
from raft.interfaces import draft_values
from raft.wire.responses import Group
from records.batch import Batch, iter_batches
from records.batch_writer import build_value_batch
from records.frame import encode_record
from records.metadata import (
    AbortTransactionRecord,
    BeginTransactionRecord,
    BrokerRegistrationChangeRecord,
    EndTransactionRecord,
    FeatureLevelRecord,
    NoOpRecord,
    PartitionRecord,
    RemoveTopicRecord,
    TopicRecord,
)
from records.schema import MetadataRecord
from records.types import Epoch, Offset, OffsetAndEpoch
from tests.doubles.memory_log import MemoryLog, SilentTicket


@pytest.fixture(autouse=True)
def one_slice_is_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a loop there is no later: also a busy machine applies all in one slice."""
    monkeypatch.setattr(applying, "SLICE_S", 60)


TOPIC_ID = UUID(int=9)
GROUP = Group("__diskless-metadata", 0, TOPIC_ID)
TOPIC = TopicRecord(name="__diskless-metadata", topic_id=TOPIC_ID)
PARTITION = PartitionRecord(
    partition_id=0, topic_id=TOPIC_ID, replicas=(1,), isr=(1,), removing_replicas=(),
    adding_replicas=(), leader=1, leader_epoch=0, partition_epoch=0,
)  # fmt: skip


class Watched:
    """A directory and what it has started and stopped."""

    def __init__(self, *, bootstrap: tuple[MetadataRecord, ...] = ()) -> None:
        self.log = MemoryLog("__cluster_metadata-0")
        self.started: list[Group] = []
        self.stopped: list[Group] = []
        self.directory = Directory(
            self.log,
            bench_topic=None,
            events=ClusterEvents(
                on_start=self.started.append,
                on_stop=self.stopped.append,
                on_applied=lambda _: None,
            ),
        )
        self.leader = ClusterLogLeader(
            self.log, self.directory, bootstrap=bootstrap, max_idle_interval_ms=0
        )

    def watch(self) -> None:
        Applier(self.log, self.directory, self.fail, self.leader)

    def lead(self) -> None:
        self.log.elect()
        self.watch()

    def append(self, *records: MetadataRecord) -> None:
        draft = draft_values([encode_record(r) for r in records], timestamp_ms=0)
        self.log.propose(SilentTicket(), self.log.leading_epoch, draft)

    def fail(self, error: BaseException) -> None:
        raise error


def test_the_raft_group_directory_does_not_apply_records_of_an_open_metadata_transaction() -> None:
    watched = Watched()
    watched.lead()
    watched.append(BeginTransactionRecord(name="t"), TOPIC, PARTITION)
    assert watched.started == []
    watched.append(EndTransactionRecord())
    assert watched.started == [GROUP]


def test_the_raft_group_directory_discards_the_records_of_an_aborted_metadata_transaction() -> None:
    watched = Watched()
    watched.lead()
    watched.append(BeginTransactionRecord(name="t"), TOPIC, PARTITION)
    watched.append(AbortTransactionRecord(reason="no"))
    watched.append(PARTITION)  # of a topic that does not exist
    assert watched.started == []


def test_the_raft_group_directory_ends_the_groups_of_a_removed_topic() -> None:
    watched = Watched()
    watched.lead()
    watched.append(TOPIC, PARTITION, PARTITION)
    watched.append(RemoveTopicRecord(topic_id=TOPIC_ID))
    assert (watched.started, watched.stopped) == ([GROUP], [GROUP])


def test_records_of_user_topics_in_the_cluster_log_start_no_raft_group() -> None:
    watched = Watched()
    watched.lead()
    watched.append(TopicRecord(name="orders", topic_id=TOPIC_ID), PARTITION)
    assert watched.started == []


def test_only_the_first_leader_of_a_cluster_log_writes_the_bootstrap_records() -> None:
    level = FeatureLevelRecord(name="metadata.version", feature_level=27)
    watched = Watched(bootstrap=(level, TOPIC, PARTITION))
    watched.lead()
    assert watched.started == [GROUP]
    assert watched.directory.features == {"metadata.version": 27}
    end_offset = watched.log.end_offset
    assert end_offset == 1 + 5  # LeaderChange; Begin, three records, End
    watched.log.depose()
    watched.log.elect()
    assert watched.log.end_offset == end_offset + 1


def test_the_raft_group_directory_applies_a_long_cluster_log_in_slices(monkeypatch) -> None:
    monkeypatch.setattr(applying, "READ_BYTES", 200)
    monkeypatch.setattr(applying, "SLICE_S", 0)
    level = FeatureLevelRecord(name="metadata.version", feature_level=27)

    async def story() -> None:
        watched = Watched(bootstrap=(level,))
        watched.log.elect()
        for _ in range(50):
            watched.append(NoOpRecord())
        watched.append(TOPIC, PARTITION)
        watched.watch()
        assert watched.directory.applied_offset < watched.log.end_offset
        assert watched.started == []
        while watched.directory.applied_offset < watched.log.end_offset:
            await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert watched.started == [GROUP]
        assert watched.directory.features == {}  # the log was not empty: no bootstrap

    asyncio.run(story())


def checkpoint_of(watched: Watched) -> list[Batch]:
    """The data batches of a checkpoint taken now."""
    values = list(watched.directory.freeze().values())
    data = build_value_batch(values, base_offset=0, leader_epoch=1, timestamp=0)
    return list(iter_batches(bytes(data)))


def test_loading_a_cluster_log_checkpoint_restores_the_raft_group_directory() -> None:
    """Loaded and frozen again it is the same bytes.

    Source: invariant 4 (docs/design/invariants.md).
    """
    level = FeatureLevelRecord(name="metadata.version", feature_level=27)
    other = TopicRecord(name="orders", topic_id=UUID(int=1))
    watched = Watched()
    watched.lead()
    watched.append(other, level, TOPIC, PARTITION, FeatureLevelRecord(name="a", feature_level=1))
    batches = checkpoint_of(watched)
    loaded = Watched()
    for _ in loaded.directory.load(watched.directory.applied, batches):
        pass
    assert loaded.started == [GROUP]
    assert loaded.directory.features == {"metadata.version": 27, "a": 1}
    assert loaded.directory.applied == watched.directory.applied
    assert loaded.directory.changed_records == 0
    assert loaded.directory.total_records == 5
    assert [bytes(b.view) for b in checkpoint_of(loaded)] == [bytes(b.view) for b in batches]


def test_loading_a_cluster_checkpoint_ends_the_raft_groups_that_it_does_not_name() -> None:
    watched, empty = Watched(), Watched()
    watched.lead()
    watched.append(TOPIC, PARTITION)
    empty.lead()
    empty.append(FeatureLevelRecord(name="a", feature_level=1))
    for _ in watched.directory.load(OffsetAndEpoch(Offset(9), Epoch(1)), checkpoint_of(empty)):
        pass
    assert watched.stopped == [GROUP]


def test_the_raft_group_directory_takes_no_checkpoint_inside_an_open_metadata_transaction() -> None:
    watched = Watched()
    watched.lead()
    watched.append(BeginTransactionRecord(name="t"), TOPIC)
    assert not watched.directory.checkpointable
    watched.append(EndTransactionRecord())
    assert watched.directory.checkpointable


def test_the_raft_group_directory_takes_no_checkpoint_of_a_log_with_controller_records() -> None:
    watched = Watched()
    watched.lead()
    watched.append(BrokerRegistrationChangeRecord(broker_id=1, broker_epoch=1))
    assert not watched.directory.checkpointable


def test_the_raft_group_directory_counts_records_changed_since_its_state_was_frozen() -> None:
    watched = Watched()
    watched.lead()
    watched.append(TOPIC, PARTITION)
    watched.directory.freeze()
    watched.append(RemoveTopicRecord(topic_id=TOPIC_ID))
    assert watched.directory.changed_records == 4
    watched.directory.checkpointed(watched.directory.applied, 2)
    assert watched.directory.changed_records == 2


def test_a_new_leader_writes_bootstrap_records_only_after_it_applied_all_earlier_epochs(
    monkeypatch,
) -> None:
    monkeypatch.setattr(applying, "READ_BYTES", 100)
    level = FeatureLevelRecord(name="metadata.version", feature_level=27)

    async def story() -> None:
        watched = Watched(bootstrap=(level,))
        watched.log.elect()
        watched.append(NoOpRecord())
        monkeypatch.setattr(applying, "SLICE_S", 0)
        watched.watch()
        assert watched.directory.applied_offset < watched.log.end_offset == 2
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert watched.directory.applied_offset == watched.log.end_offset == 2  # not empty

    asyncio.run(story())
