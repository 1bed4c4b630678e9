"""Tests that a sweep's plan equals the coordinator's own, and that its effect is computed
correctly.
"""

from __future__ import annotations

import shutil
import tempfile
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from random import Random
from typing import Any

import pytest

from coordinator.batch.cluster_view import StaticView, TopicConfig
from coordinator.batch.decide.log_start import NewLogStart
from coordinator.batch.memory import InMemoryState
from coordinator.batch.retention import retention_pass
from coordinator.batch.runs import REWRITTEN
from coordinator.controller.config_defs import TOPIC_CONFIGS
from raft.segments.segment import segment_name
from records.diskless import DisklessPartitionsRecord, ObjectCommitRecord, RewriteLeaseState
from records.errors import RecordError
from records.frame import decode_record, encode_record
from records.metadata import (
    AbortTransactionRecord,
    BeginTransactionRecord,
    ConfigRecord,
    EndTransactionRecord,
    NoOpRecord,
    RemoveTopicRecord,
    TopicRecord,
)
from records.schema import MetadataRecord
from records.uuids import decode_uuid, encode_uuid, random_uuid
from spark_jobs.plans.retention_plan import PlanRow
from spark_jobs.readers.log_files import FileSpan, LogFiles
from spark_jobs.readers.log_position import LogPosition
from spark_jobs.readers.logs import LogsError
from spark_jobs.retention.digest_cache import DigestCache, Work
from spark_jobs.retention.digests import digest_records
from spark_jobs.retention.sweep import make_plan
from spark_jobs.tables.log_state import LogState, state_at
from spark_jobs.tables.topics import TopicSettings, topics_at
from tests.lives import live_until_seen
from tests.spark_jobs.logs import write_log, write_values
from tests.spark_jobs.plans import Worlds, naive_effect, naive_rows
from tests.spark_jobs.test_state import Lives

seen: Counter[str] = Counter()


def settings_of(state: LogState, **values: Any) -> dict[str, TopicSettings]:
    given = {"retention_ms": -1, "retention_bytes": -1, "enforcer": "external"} | values
    return {
        row["topic_id"]: TopicSettings(row["topic"], **given)
        for row in state.topics.to_pylist()
        if row["topic"]
    }


class Swept(Lives):
    """Random histories, each followed by plans of every planner."""

    is_split = False
    """An object was filled before and after the checkpoint: its effect counts it twice."""

    def look(self, directory: Path) -> None:
        end = self.oracle.applied_offset
        whole = directory / "log-0"
        whole.mkdir()
        (whole / segment_name(0)).write_bytes(self.world.log.read(0, 1 << 30))
        state = state_at(LogFiles(whole), end)
        random = Random(end)
        if self.taken is not None and self.taken[0] < end and random.random() < 0.5:
            self.from_checkpoint(whole, *self.taken)
            seen["from a checkpoint"] += 1
            before = (decode_record(value) for value in self.taken[1])
            self.is_split = any(isinstance(one, RewriteLeaseState) and one.open_ids
                                for one in before)  # fmt: skip
        worlds = Worlds(directory, [(whole, end)], random)
        for _ in range(4):
            keep_ms, keep_bytes = random.choice([-1, 0, 300, 700]), random.choice([-1, 0, 100, 250])
            now_ms = random.choice([400, 900, self.world.now_ms()])
            topics = settings_of(state, retention_ms=keep_ms, retention_bytes=keep_bytes)
            worlds.set(topics)
            with tempfile.TemporaryDirectory() as cache:
                self.compare(worlds, state, topics, now_ms, DigestCache(Path(cache)))

    def compare(
        self,
        worlds: Worlds,
        state: LogState,
        topics: dict[str, TopicSettings],
        now_ms: int,
        digest_cache: DigestCache,
    ) -> None:
        plan = make_plan(worlds, now_ms=now_ms, digest_cache=digest_cache)
        assert make_plan(worlds, now_ms=now_ms, digest_cache=digest_cache) == plan, (
            "however it is cut"
        )
        rows = naive_rows(state, topics, coordinator=0, now_ms=now_ms)
        assert plan.rows == rows
        if not self.is_split:
            assert plan.effects[0] == naive_effect(state, rows, worlds.batch_bytes(0))
        assert rows_of_coordinator(self.oracle, topics, now_ms) == sorted(
            (decode_uuid(row.topic_id), row.partition, row.new_log_start, row.reason, row.limit)
            for row in rows
        )
        seen[f"reason {rows[0].reason}" if rows else "nothing to do"] += 1
        seen["dead before"] += any(row.old_log_start for row in rows)
        seen["freed"] += plan.effects[0].objects_freed > 0
        seen["pinned"] += bool(plan.effects[0].pinned_by)
        formats = state.runs.column("object_format").to_pylist()
        seen["replaced"] += bool(rows) and REWRITTEN in formats


def rows_of_coordinator(
    oracle: InMemoryState, topics: Mapping[str, TopicSettings], now_ms: int
) -> list[NewLogStart]:
    """Return the rows that the coordinator itself would plan; all topics have the same settings."""
    one = next(iter(topics.values()), TopicSettings("", -1, -1, "external"))
    config = TopicConfig(
        retention_ms=None if one.retention_ms < 0 else one.retention_ms,
        retention_bytes=None if one.retention_bytes < 0 else one.retention_bytes,
    )
    view = StaticView(default_config=config)
    return sorted(retention_pass(oracle, view, now_ms, max_runs=1_000_000).rows)


def test_a_retention_plan_of_the_job_equals_the_coordinators_own_plan() -> None:
    """The naive planner agrees too, for digests of any pieces, their files, and the planner's two
    steps.
    """
    wanted = (
        "reason 1", "reason 2", "nothing to do", "from a checkpoint", "dead before", "freed",
        "pinned", "replaced",
    )  # fmt: skip
    live_until_seen(Swept, seen, wanted, lives=12, steps=50)


TOPIC, OTHER = random_uuid(), random_uuid()


def partitions(topic_id: Any, name: str, first_log_id: int) -> DisklessPartitionsRecord:
    return DisklessPartitionsRecord(
        topic_id=topic_id, topic_name=name, first_partition=0, partition_count=1,
        first_log_id=first_log_id, controller_epoch=1,
    )  # fmt: skip


def commit(object_id: int, *topics: Any, offset: int) -> ObjectCommitRecord:
    """Return a commit of one object with a batch of ten records and a hundred bytes for each of
    these topics.
    """
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


def two_topics(tmp_path: Path) -> tuple[Worlds, LogState]:
    """Return three objects: shared by both topics, of the first alone, shared again."""
    records: list[list[MetadataRecord]] = [
        [partitions(TOPIC, "short", 0), partitions(OTHER, "long", 1)],
        [commit(1, TOPIC, OTHER, offset=0)],
        [commit(2, TOPIC, offset=10)],
        [commit(3, TOPIC, OTHER, offset=20)],
    ]
    end = write_log(tmp_path / "log-0", records)
    state = state_at(LogFiles(tmp_path / "log-0"), end)
    return Worlds(tmp_path, [(tmp_path / "log-0", end)]), state


def test_a_retention_plan_counts_dead_bytes_in_objects_shared_with_a_topic_of_long_retention(
    tmp_path: Path,
) -> None:
    worlds, state = two_topics(tmp_path)
    topics = settings_of(state, retention_ms=0)
    topics[encode_uuid(OTHER)] = TopicSettings("long", -1, -1, "external")
    worlds.set(topics)
    plan = make_plan(worlds, now_ms=10_000)
    assert plan.rows == [
        PlanRow(
            0, encode_uuid(TOPIC), "short", 0, 0, 30, reason=1, limit=0, runs=3, bytes=300,
            runs_before=3, bytes_before=300,
        )
    ]  # fmt: skip
    effect = plan.effects[0]
    assert (effect.objects_freed, effect.freed_bytes) == (1, 120)
    assert effect.pinned_bytes == 2 * 100, "the dead batches; not what is of no batch"
    assert effect.pinned_by == {"long": 200}
    assert plan.is_large


def test_a_retention_plan_skips_topics_that_the_coordinator_enforces(tmp_path: Path) -> None:
    worlds, state = two_topics(tmp_path)
    worlds.set(settings_of(state, retention_ms=0, enforcer="coordinator"))
    assert not make_plan(worlds, now_ms=10_000).rows
    worlds.set(settings_of(state, retention_ms=0, enforcer="both"))
    assert len(make_plan(worlds, now_ms=10_000).rows) == 2


def test_a_retention_plan_skips_topics_unknown_to_the_cluster_log(tmp_path: Path) -> None:
    worlds, _ = two_topics(tmp_path)
    worlds.set({})
    assert not make_plan(worlds, now_ms=10_000).rows


def test_a_log_with_records_of_unknown_types_prevents_a_retention_plan() -> None:
    """A record of a later version may say anything, for example that a limit was lifted."""
    position = LogPosition(False, 7, 1, 0)
    with pytest.raises(LogsError, match="record at offset 7 is of type 1199"):
        digest_records([(position, bytes.fromhex("01 af09 00"))])
    newer = bytearray(encode_record(commit(1, TOPIC, offset=0)))
    newer[3] = ObjectCommitRecord.schema().versions.last + 1
    with pytest.raises(RecordError, match="this version is not known"):
        digest_records([(position, newer)])


def test_the_retention_job_computes_a_damaged_cached_digest_again(tmp_path: Path) -> None:
    worlds, state = two_topics(tmp_path)
    worlds.set(settings_of(state, retention_ms=0))
    kept = DigestCache(tmp_path / "digests")
    plan = make_plan(worlds, now_ms=10_000, digest_cache=kept)
    (file,) = (tmp_path / "digests" / "worlds" / "__diskless-metadata-0").glob("*.runs")
    whole = file.read_bytes()
    for harm in (b"", whole[:40], whole[:-3], whole[:60] + b"x" + whole[61:], whole[:-1] + b"x"):
        file.write_bytes(harm)
        assert make_plan(worlds, now_ms=10_000, digest_cache=kept) == plan
        assert file.read_bytes() == whole
    shutil.rmtree(tmp_path / "digests")
    (tmp_path / "digests").write_text("no directory")
    assert make_plan(worlds, now_ms=10_000, digest_cache=kept) == plan, "that cannot be written"


def test_the_retention_job_deletes_all_cached_digests_of_a_growing_log_except_the_newest(
    tmp_path: Path,
) -> None:
    kept = DigestCache(tmp_path / "digests")
    log = LogFiles(tmp_path / "log-0")
    two_topics(tmp_path)
    for end in (3, 5, 4):
        for span in log.spans(end):
            kept.digest(Work("cluster", "log-0", span))
    names = sorted(path.name for path in (tmp_path / "digests" / "cluster" / "log-0").iterdir())
    assert names == [f"{0:020}-{end:020}.runs" for end in (4, 5)]


def test_the_audit_does_not_use_cached_digests_of_a_log_that_has_since_diverged(
    tmp_path: Path,
) -> None:
    """A cluster restored from a copy has the same id and other records at known offsets."""
    kept = DigestCache(tmp_path / "digests")
    directory = tmp_path / "digests" / "cluster" / "log-0"
    directory.mkdir(parents=True)

    def left(end_offset: int, epoch: int | None) -> bool:
        (directory / "a.runs").touch()
        assert kept.keep_to("cluster", "log-0", end_offset, lambda _: epoch)
        return (directory / "a.runs").exists()

    assert not left(5, 3), "its log is unknown"
    assert left(7, 3)
    assert left(9, 3)
    assert not left(9, 4), "another epoch"
    assert left(9, 4)
    assert not left(8, 4), "shorter than what was read"
    assert left(12, None), "what was read is cut off, and stood for by a checkpoint"
    (directory / "history.json").write_text("{")
    assert not left(12, 4)


def test_a_retention_plan_for_a_replaced_log_does_not_use_the_former_logs_digests(
    tmp_path: Path,
) -> None:
    worlds, state = two_topics(tmp_path)
    worlds.set(settings_of(state, retention_ms=0))
    kept = DigestCache(tmp_path / "digests")
    assert len(make_plan(worlds, now_ms=10_000, digest_cache=kept).rows) == 2
    shutil.rmtree(tmp_path / "log-0")
    made = [partitions(TOPIC, "short", 0), partitions(OTHER, "long", 1)]
    nothing: list[list[MetadataRecord]] = [[NoOpRecord()]] * 3
    assert write_log(tmp_path / "log-0", [made, *nothing], epoch=2) == state.offset
    assert not make_plan(worlds, now_ms=10_000, digest_cache=kept).rows


def test_the_retention_job_deletes_the_cached_digests_of_a_logs_deleted_first_records(
    tmp_path: Path,
) -> None:
    kept = DigestCache(tmp_path)
    directory = tmp_path / "cluster" / "log-0"
    directory.mkdir(parents=True)
    names = [f"{0:020}-{8:020}.runs", f"checkpoint-{5:020}.runs", f"checkpoint-{8:020}.runs"]
    later = f"{8:020}-{9:020}.runs"
    for name in (*names, later):
        (directory / name).touch()
    kept.drop_before(Work("cluster", "log-0", FileSpan(tmp_path, False, 8, 9)))
    assert len(list(directory.iterdir())) == 4, "it begins with no checkpoint"
    kept.drop_before(Work("cluster", "log-0", FileSpan(tmp_path, True, 0, 8)))
    assert {path.name for path in directory.iterdir()} == {names[2], later}


def test_retention_settings_come_from_the_topic_the_cluster_or_the_default(tmp_path: Path) -> None:
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


def test_retention_settings_have_the_controllers_names_and_defaults(
    tmp_path: Path,
) -> None:
    topic = TopicRecord(name="t", topic_id=TOPIC)
    end = write_log(tmp_path / "built-in", [[topic]])
    (built_in,) = topics_at(LogFiles(tmp_path / "built-in"), end).values()
    fields = {"retention.ms": "11", "retention.bytes": "12", "esker.retention.enforcer": "both"}
    assert [str(one) for one in (built_in.retention_ms, built_in.retention_bytes)] + [
        built_in.enforcer
    ] == [TOPIC_CONFIGS[name].default for name in fields]
    defaults = [
        ConfigRecord(resource_type=4, resource_name="", name=known, value=value)
        for name, value in fields.items()
        if (known := TOPIC_CONFIGS[name].broker_name) is not None
    ]
    end = write_log(tmp_path / "defaults", [[topic, *defaults]])
    assert list(topics_at(LogFiles(tmp_path / "defaults"), end).values()) == [
        TopicSettings("t", 11, 12, "both")
    ]


@pytest.mark.parametrize(
    ("policy", "limits"), [("compact", (-1, -1)), ("", (-1, -1)), ("compact, delete", (9, 8))]
)
def test_the_retention_job_sets_no_limits_for_a_topic_whose_policy_lacks_delete(
    policy: str, limits: tuple[int, int], tmp_path: Path
) -> None:
    settings = {"cleanup.policy": policy, "retention.ms": "9", "retention.bytes": "8"}
    records = [
        ConfigRecord(resource_type=2, resource_name="t", name=name, value=value)
        for name, value in settings.items()
    ]
    end = write_log(tmp_path / "log", [[TopicRecord(name="t", topic_id=TOPIC), *records]])
    (topic,) = topics_at(LogFiles(tmp_path / "log"), end).values()
    assert (topic.retention_ms, topic.retention_bytes) == limits


def test_the_retention_job_refuses_a_cluster_log_with_an_unknown_record(
    tmp_path: Path,
) -> None:
    values = [encode_record(TopicRecord(name="t", topic_id=TOPIC)), b"\x01\xe7\x07\x00"]
    end = write_values(tmp_path / "log", [values])
    with pytest.raises(LogsError, match="record of type 999"):
        topics_at(LogFiles(tmp_path / "log"), end)
