"""Tests the history of brokers, leaders and chunks that is read from the cluster's log."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from uuid import UUID

from records.chunks import ChunkChangeRecord, ChunkRecord
from records.metadata import (
    AbortTransactionRecord,
    BeginTransactionRecord,
    BrokerRegistrationChangeRecord,
    EndTransactionRecord,
    FenceBrokerRecord,
    PartitionChangeRecord,
    PartitionRecord,
    RegisterBrokerRecord,
    RemoveTopicRecord,
    TopicRecord,
    UnfenceBrokerRecord,
    UnregisterBrokerRecord,
)
from records.schema import MetadataRecord
from spark_jobs.readers.log_files import LogFiles
from spark_jobs.report.cluster import (
    FENCED,
    LEAVING,
    MAX_EPISODES,
    SERVING,
    Chunk,
    ClusterHistory,
    Episode,
    history_of,
)
from spark_jobs.report.window import Window
from tests.spark_jobs.logs import write_log

OVER = Window(0, 1_000_000, 1_000)
TOPIC = UUID(int=77)


def history(path: Path, *batches: Sequence[MetadataRecord]) -> ClusterHistory:
    """Return the history in a log of these batches; batch n has the time 1000 + n."""
    end = write_log(path / "log", batches)
    return history_of(LogFiles(path / "log").spans(end), OVER)


def broker(number: int, *, fenced: bool = True, rack: str | None = None) -> RegisterBrokerRecord:
    return RegisterBrokerRecord(
        broker_id=number, is_migrating_zk_broker=False, incarnation_id=UUID(int=1), broker_epoch=1,
        end_points=(), features=(), rack=rack, fenced=fenced, in_controlled_shutdown=False,
        log_dirs=(),
    )  # fmt: skip


def change(number: int, *, fenced: int = 0, leaving: int = 0) -> BrokerRegistrationChangeRecord:
    return BrokerRegistrationChangeRecord(
        broker_id=number, broker_epoch=1, fenced=fenced, in_controlled_shutdown=leaving
    )


def partition(
    index: int = 0, replicas: tuple[int, ...] = (1,), start_offset: int = -1
) -> PartitionRecord:
    return PartitionRecord(
        partition_id=index, topic_id=TOPIC, replicas=replicas, isr=replicas, removing_replicas=(),
        adding_replicas=(), leader=replicas[0], leader_epoch=0, partition_epoch=0,
        start_offset=start_offset,
    )  # fmt: skip


def chunk(start: int, end: int, replicas: tuple[int, ...] = (1,)) -> ChunkRecord:
    return ChunkRecord(
        partition_id=0, topic_id=TOPIC, start_offset=start, stop_offset=end, end_offset=end,
        chunk_epoch=0, replicas=replicas, directories=(), isr=replicas, removing_replicas=(),
        adding_replicas=(), epoch=0,
    )  # fmt: skip


def active(start: int, replicas: tuple[int, ...] | None = None) -> PartitionChangeRecord:
    return PartitionChangeRecord(
        partition_id=0, topic_id=TOPIC, replicas=replicas, start_offset=start
    )


def moved(start: int, replicas: tuple[int, ...]) -> ChunkChangeRecord:
    return ChunkChangeRecord(
        partition_id=0, topic_id=TOPIC, start_offset=start, replicas=replicas, epoch=1
    )


def test_broker_records_change_the_reported_state_of_a_broker(tmp_path: Path) -> None:
    found = history(
        tmp_path, [broker(1)], [change(1, fenced=-1)], [change(1, leaving=1)],
        [change(1, fenced=1)], [change(1, fenced=1)], 
        [UnregisterBrokerRecord(broker_id=1, broker_epoch=1)],
    )  # fmt: skip
    assert found.all_episodes() == [
        Episode(1, FENCED, 1_000, 1_001),
        Episode(1, SERVING, 1_001, 1_002),
        Episode(1, LEAVING, 1_002, 1_003),
        Episode(1, FENCED, 1_003, 1_005),  # being fenced again changes nothing
    ]


def test_the_report_applies_the_fence_and_unfence_records_of_older_releases(tmp_path: Path) -> None:
    found = history(
        tmp_path, [broker(1, fenced=False)], [FenceBrokerRecord(id=1, epoch=1)],
        [UnfenceBrokerRecord(id=1, epoch=1)],
    )  # fmt: skip
    assert [one.state for one in found.all_episodes()] == [SERVING, FENCED, SERVING]
    assert found.all_episodes()[-1].to_ms is None
    assert found.changes[1_000, "fencings"] == 1


def test_the_report_limits_the_number_of_episodes_of_a_broker_that_is_often_fenced() -> None:
    found = ClusterHistory(OVER)
    for at in range(MAX_EPISODES + 50):
        found.change(at, change(1, fenced=1 if at % 2 else -1))
    assert len(found.episodes) == MAX_EPISODES
    assert found.forgotten > 0


def test_the_cluster_report_counts_leader_changes_and_in_sync_replica_changes(
    tmp_path: Path,
) -> None:
    found = history(
        tmp_path,
        [TopicRecord(name="t", topic_id=TOPIC), partition(0, (1, 2)), partition(1, (2, 1))],
        [PartitionChangeRecord(partition_id=0, topic_id=TOPIC, leader=2, isr=(2,))],
        [PartitionChangeRecord(partition_id=0, topic_id=TOPIC, isr=(2, 1))],
        [PartitionChangeRecord(partition_id=0, topic_id=TOPIC, leader=2)],  # it is already
        [PartitionChangeRecord(partition_id=9, topic_id=TOPIC, leader=2)],  # of no partition
    )
    told = {what: count for (_, what), count in found.changes.items()}
    assert told == {"leader changes": 1, "ISR lost a replica": 1, "ISR grew": 1}
    assert found.leaders() == {2: 2}


def test_the_report_follows_the_creation_move_and_removal_of_chunks(tmp_path: Path) -> None:
    found = history(
        tmp_path,
        [TopicRecord(name="t", topic_id=TOPIC), partition()],
        [chunk(0, 9), active(10, replicas=(2,))],
        [chunk(10, 19, (2,)), active(20)],
        [moved(10, (3,))],
        [moved(0, ())],
    )  # fmt: skip
    assert found.chunks() == [Chunk("t", 0, 10, 19, (3,)), Chunk("t", 0, 20, None, (2,))]


def test_the_report_drops_the_partitions_of_a_removed_topic(tmp_path: Path) -> None:
    found = history(
        tmp_path, [TopicRecord(name="t", topic_id=TOPIC), partition(start_offset=5)],
        [RemoveTopicRecord(topic_id=TOPIC)],
    )  # fmt: skip
    assert (found.chunks(), found.leaders(), found.names) == ([], {}, {})


def test_the_report_ignores_records_of_an_unfinished_transaction(tmp_path: Path) -> None:
    found = history(
        tmp_path,
        [BeginTransactionRecord(name="a"), broker(1)], [EndTransactionRecord()],
        [BeginTransactionRecord(name="b"), broker(2)], [AbortTransactionRecord(reason="")],
        [BeginTransactionRecord(name="c"), broker(3)],
    )  # fmt: skip
    assert sorted(found.racks) == [1]
