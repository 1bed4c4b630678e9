"""A sweep's plan is what the coordinator would do, and says truly what that frees."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from random import Random
from typing import Any

from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from coordinator.decide.log_start import NewLogStart
from coordinator.retention import retention_pass
from coordinator.view import StaticView, TopicConfig
from raft.segments.segment import segment_name
from records.diskless import DisklessPartitionsRecord, ObjectCommitRecord
from records.metadata import (
    AbortTransactionRecord,
    BeginTransactionRecord,
    ConfigRecord,
    EndTransactionRecord,
    RemoveTopicRecord,
    TopicRecord,
)
from records.schema import MetadataRecord
from records.uuids import decode_uuid, encode_uuid, random_uuid
from spark_jobs.log_files import LogFiles
from spark_jobs.plan_file import PlanRow
from spark_jobs.retention import effect_of, plan_rows
from spark_jobs.state import LogState, state_at
from spark_jobs.topics import TopicSettings, topics_at
from tests.spark.logs import write_log
from tests.spark.test_state import Lives

seen: Counter[str] = Counter()


def settings_of(state: LogState, **values: Any) -> dict[str, TopicSettings]:
    given = {"retention_ms": -1, "retention_bytes": -1, "enforcer": "external"} | values
    return {
        row["topic_id"]: TopicSettings(row["topic"], **given)
        for row in state.partitions.to_pylist()
    }


class Swept(Lives):
    """What those lives leave is swept, by each of the two."""

    def look(self, directory: Path) -> None:
        end = self.oracle.applied_offset
        (directory / segment_name(0)).write_bytes(self.world.log.read(0, 1 << 30))
        state = state_at(LogFiles(directory), end)
        random = Random(end)
        for _ in range(8):
            keep_ms, keep_bytes = random.choice([-1, 0, 300, 700]), random.choice([-1, 0, 100, 250])
            now_ms = random.choice([400, 900, self.world.now_ms()])
            self.compare(state, keep_ms, keep_bytes, now_ms)

    def compare(self, state: LogState, keep_ms: int, keep_bytes: int, now_ms: int) -> None:
        config = TopicConfig(
            retention_ms=None if keep_ms < 0 else keep_ms,
            retention_bytes=None if keep_bytes < 0 else keep_bytes,
        )
        theirs = retention_pass(
            self.oracle, StaticView(default_config=config), now_ms, max_runs=1_000_000
        )
        topics = settings_of(state, retention_ms=keep_ms, retention_bytes=keep_bytes)
        rows = plan_rows(state, topics, coordinator=0, now_ms=now_ms)
        ours = [
            NewLogStart(
                decode_uuid(row.topic_id), row.partition, row.new_log_start, row.reason, row.limit
            )
            for row in rows
        ]
        key = NewLogStart.__getitem__
        assert sorted(ours, key=lambda r: (key(r, 0), key(r, 1))) == sorted(
            theirs.rows, key=lambda r: (key(r, 0), key(r, 1))
        )
        seen[f"reason {ours[0].reason}" if ours else "nothing to do"] += 1
        assert_effect(state, rows)


def assert_effect(state: LogState, rows: list[PlanRow]) -> None:
    """The effect, counted the slow way."""
    starts = {(row.topic_id, row.partition): row.new_log_start for row in rows}
    used: Counter[int] = Counter()
    removed = 0
    for run in state.runs.to_pylist():
        stays = run["last_offset"] >= starts.get((run["topic_id"], run["partition"]), 0)
        used[run["object_id"]] += run["byte_size"] if stays else 0
        removed += 0 if stays else run["byte_size"]
    objects = state.objects.to_pylist()
    freed = [one for one in objects if one["used_bytes"] and not used[one["object_id"]]]
    pinned = [one for one in objects if used[one["object_id"]]]
    effect = effect_of(state, rows)
    assert effect.removed_bytes == removed == sum(row.bytes for row in rows)
    assert (effect.objects_freed, effect.freed_bytes) == (
        len(freed), sum(one["size_bytes"] for one in freed),
    )  # fmt: skip
    assert effect.pinned_bytes == sum(one["size_bytes"] - used[one["object_id"]] for one in pinned)


def test_a_plan_is_what_the_coordinator_would_do() -> None:
    seen.clear()
    run_state_machine_as_test(
        Swept,
        settings=settings(
            max_examples=15,
            stateful_step_count=50,
            deadline=None,
            derandomize=True,
            database=None,
            phases=[Phase.generate],
            suppress_health_check=list(HealthCheck),
        ),
    )
    print(dict(sorted(seen.items())))
    for what in ("reason 1", "reason 2", "nothing to do"):
        assert seen[what], f"{what}: {seen[what]} times in all examples"


TOPIC, OTHER = random_uuid(), random_uuid()


def partitions(topic_id: Any, name: str, first_log_id: int) -> DisklessPartitionsRecord:
    return DisklessPartitionsRecord(
        topic_id=topic_id, topic_name=name, first_partition=0, partition_count=1,
        first_log_id=first_log_id, controller_epoch=1,
    )  # fmt: skip


def commit(object_id: int, *topics: Any, offset: int) -> ObjectCommitRecord:
    """An object with one batch of ten records and a hundred bytes of each of these topics."""
    n = len(topics)
    return ObjectCommitRecord(
        object_id=object_id, object_format=1, size_bytes=100 * n + 20, broker_id=1, broker_epoch=1,
        lease_id=1, committed_at_ms=1_000 * object_id, topic_ids=topics,
        topic_indexes=tuple(range(n)), partitions=(0,) * n, batch_counts=(1,) * n,
        byte_offsets=tuple(100 * i for i in range(n)), byte_sizes=(100,) * n,
        base_offsets=(offset,) * n, record_counts=(10,) * n,
        max_timestamps=(1_000 * object_id,) * n, timestamp_types=(0,) * n, producer_ids=(-1,) * n,
        producer_epochs=(-1,) * n, base_sequences=(-1,) * n, error_codes=(), duplicates=(),
    )  # fmt: skip


def two_topics(tmp_path: Path) -> LogState:
    """Three objects: shared by both topics, of the first alone, shared again."""
    records: list[list[MetadataRecord]] = [
        [partitions(TOPIC, "short", 0), partitions(OTHER, "long", 1)],
        [commit(1, TOPIC, OTHER, offset=0)],
        [commit(2, TOPIC, offset=10)],
        [commit(3, TOPIC, OTHER, offset=20)],
    ]
    end = write_log(tmp_path / "log-0", records)
    return state_at(LogFiles(tmp_path / "log-0"), end)


def test_one_topic_that_keeps_its_data_pins_its_neighbours(tmp_path: Path) -> None:
    state = two_topics(tmp_path)
    topics = settings_of(state, retention_ms=0)
    topics[encode_uuid(OTHER)] = TopicSettings("long", -1, -1, "external")
    rows = plan_rows(state, topics, coordinator=4, now_ms=10_000)
    assert rows == [
        PlanRow(4, encode_uuid(TOPIC), "short", 0, 0, 30, reason=1, limit=0, runs=3, bytes=300)
    ]
    effect = effect_of(state, rows)
    assert (effect.objects_freed, effect.freed_bytes) == (1, 120)
    assert effect.pinned_bytes == 2 * (100 + 20)  # the dead batch, and what is of no batch
    assert effect.pinned_by == {"long": 240}
    assert effect.is_large


def test_the_coordinators_own_topics_are_left_to_it(tmp_path: Path) -> None:
    state = two_topics(tmp_path)
    assert not plan_rows(
        state,
        settings_of(state, retention_ms=0, enforcer="coordinator"),
        coordinator=0,
        now_ms=10_000,
    )
    both = settings_of(state, retention_ms=0, enforcer="both")
    assert len(plan_rows(state, both, coordinator=0, now_ms=10_000)) == 2


def test_a_topic_that_the_cluster_log_does_not_know_is_left_alone(tmp_path: Path) -> None:
    assert plan_rows(two_topics(tmp_path), {}, coordinator=0, now_ms=10_000) == []


def test_settings_are_the_topics_or_the_clusters_or_built_in(tmp_path: Path) -> None:
    def config(kind: int, resource: str, name: str, value: str | None) -> ConfigRecord:
        return ConfigRecord(resource_type=kind, resource_name=resource, name=name, value=value)

    records: list[list[MetadataRecord]] = [
        [TopicRecord(name="short", topic_id=TOPIC), TopicRecord(name="long", topic_id=OTHER)],
        [config(4, "", "log.retention.ms", "5000"), config(2, "short", "retention.ms", "7")],
        [config(2, "long", "retention.bytes", "9"), config(2, "long", "retention.bytes", None)],
        [config(2, "long", "esker.retention.enforcer", "external")],
        [
            BeginTransactionRecord(),
            config(2, "short", "retention.ms", "8"),
            AbortTransactionRecord(),
        ],
        [BeginTransactionRecord(), config(2, "short", "retention.bytes", "3")],
        [EndTransactionRecord(), BeginTransactionRecord(), RemoveTopicRecord(topic_id=OTHER)],
    ]
    end = write_log(tmp_path / "log-0", records)
    topics = topics_at(LogFiles(tmp_path / "log-0"), end)
    assert topics == {
        encode_uuid(TOPIC): TopicSettings("short", 7, 3, "coordinator"),
        encode_uuid(OTHER): TopicSettings("long", 5000, -1, "external"),
    }, "and a transaction that is not over has not happened"
