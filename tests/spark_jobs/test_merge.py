"""Plans of merges: made from logs, applied by engines, judged range by range, resumed.

Source: docs/design/compaction.md.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from random import Random
from typing import Any
from uuid import UUID

import pytest
from typer.testing import CliRunner

from coordinator.errors import CoordinatorError
from diskless.compaction.planner import MergeSettings
from esker.commands.spark import app, merge_text
from records.diskless import RewriteLeaseGrantedRecord
from records.frame import read_frame
from records.kafka_errors import ErrorCode
from records.object_keys import ObjectKeys
from records.rpc.batch_coordinator import DeleteDisklessRecordsRequest
from records.rpc.rewriting import RewriteLeaseRequest
from records.uuids import encode_uuid
from records.wal import FINAL
from spark_jobs.merge import apply as applying
from spark_jobs.merge import plan as planning
from spark_jobs.merge.apply import Journal, Outcome, WrongClusterError, apply_merges
from spark_jobs.merge.plan import MergePlan, PlanSettings, write_plan
from spark_jobs.plans.sealed_file import SealError
from spark_jobs.readers.engines import LocalEngine, SparkEngine
from spark_jobs.readers.log_files import LogFiles
from spark_jobs.report.cube import LocalReportEngine
from spark_jobs.report.job import Question, make_report
from spark_jobs.retention.digest_cache import DigestCache
from spark_jobs.retention.sweep import make_plan
from spark_jobs.tables.log_state import state_at
from spark_jobs.tables.topics import TopicSettings
from tests.coordinator.batch.actors import OTHER_TOPIC, TOPIC, batch, delete
from tests.coordinator.batch.contract_transactions import mark, marker, send
from tests.coordinator.batch.rewriter_actor import objects
from tests.coordinator.batch.subjects import KEYS
from tests.spark_jobs.logs import write_values
from tests.spark_jobs.merge_world import NAMES, MergeWorld
from tests.spark_jobs.plans import Worlds, naive_effect, naive_rows

SETTINGS = PlanSettings(KEYS.prefix, 1 << 20)
PLACES = [(topic, partition) for topic in NAMES for partition in (0, 1)]
LATER_MS = 3_600_000


def story(tmp_path: Path, work: Callable[[MergeWorld], Awaitable[None]]) -> None:
    async def on_loop() -> None:
        world = MergeWorld(tmp_path)
        await world.begin()
        await work(world)

    asyncio.run(on_loop())


async def fill(world: MergeWorld, count: int = 20) -> None:
    for _ in range(count):
        await world.append(dict.fromkeys(PLACES, 3))


async def delete_records(
    world: MergeWorld, partition: int, offset: int, topic: UUID = TOPIC
) -> None:
    asked = DeleteDisklessRecordsRequest.Topic
    partitions = (asked.Partition(partition_index=partition, offset=offset),)
    topics = (asked(topic_id=topic, partitions=partitions),)
    await world.world.coordinator.call(DeleteDisklessRecordsRequest(topics=topics))


def planned(
    world: MergeWorld, settings: PlanSettings = SETTINGS, name: str = "plan", **how: Any
) -> MergePlan:
    path = world.directory.parent / name
    write_plan(world, path, settings, now_ms=world.world.now_ms() + LATER_MS, **how)
    return MergePlan(path)


def journal_of(plan: MergePlan) -> Journal:
    return Journal(plan.file.path.with_name(plan.file.path.name + ".journal"), plan.plan_id)


async def applied(world: MergeWorld, plan: MergePlan, engine: Any = None, **how: Any) -> Outcome:
    return await apply_merges(
        plan, journal_of(plan), how.pop("coordinator", lambda _: world.world.coordinator),
        world.store, engine or LocalEngine(), **how,
    )  # fmt: skip


def test_applying_a_merge_plan_leaves_one_run_of_each_partition_with_the_same_records(
    tmp_path: Path,
) -> None:
    async def work(world: MergeWorld) -> None:
        await fill(world)
        before = [await world.read(*place) for place in PLACES]
        plan = planned(world)
        assert (plan.merge_count, plan.file.end["runs"]) == (1, 80)
        steps: list[int] = []
        outcome = await applied(world, plan, progress=steps.append)
        assert (outcome.old_runs, outcome.new_runs, outcome.left) == (80, 4, [])
        assert (outcome.failed, outcome.unanswered, sum(steps)) == ({}, None, 1)
        for place, rows in zip(PLACES, before, strict=True):
            (run,) = await world.runs(*place)
            assert run.object_format == FINAL
            assert await world.read(*place) == rows
        assert planned(world, name="next").merge_count == 0

    story(tmp_path, work)


def test_applying_a_merge_plan_leases_object_ids_for_the_plan_and_releases_the_lease(
    tmp_path: Path,
) -> None:
    async def work(world: MergeWorld) -> None:
        await fill(world)
        plan = planned(world)
        seen: list[RewriteLeaseRequest] = []

        class Watched:
            async def call(self, request: Any) -> Any:
                if isinstance(request, RewriteLeaseRequest):
                    seen.append(request)
                return await world.world.coordinator.call(request)

        await applied(world, plan, coordinator=lambda _: Watched())
        assert {request.plan_id for request in seen} == {plan.lease_owner}
        assert {request.broker_id for request in seen} == {-1}
        assert [request.releases for request in seen] == [False, True]
        assert -2 not in {use.marked_at_ms for use in (await objects(world.world)).values()}

    story(tmp_path, work)


def test_the_merge_planner_skips_young_runs_soon_expiring_runs_and_deleted_topics(
    tmp_path: Path,
) -> None:
    async def work(world: MergeWorld) -> None:
        await fill(world)
        path = tmp_path / "young"
        write_plan(world, path, SETTINGS, now_ms=world.world.now_ms())
        assert MergePlan(path).merge_count == 0
        world.configs["retention.ms"] = "1000"
        assert planned(world, name="expiring").merge_count == 0
        world.configs.clear()
        await delete(world.world, OTHER_TOPIC)
        plan = planned(world, name="rest")
        assert {source.topic_id for merge in plan.merges() for source in merge.sources} == {TOPIC}

    story(tmp_path, work)


def test_a_merge_plan_limited_by_max_bytes_has_the_most_profitable_merges(tmp_path: Path) -> None:
    async def work(world: MergeWorld) -> None:
        await fill(world, 60)
        small = PlanSettings(KEYS.prefix, 8_000)
        whole = planned(world, small)
        assert whole.merge_count > 2
        part = planned(world, small._replace(max_bytes=9_000), "part")
        assert part.merge_count == 1
        end = part.file.end
        assert end["left_merges"] == whole.merge_count - 1
        assert end["bytes"] + end["left_bytes"] == whole.file.end["bytes"]

    story(tmp_path, work)


def test_the_merge_planner_reads_a_bounded_number_of_runs_from_the_oldest_objects(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def work(world: MergeWorld) -> None:
        await fill(world, 40)
        monkeypatch.setattr(planning, "MAX_RUNS", 80)
        plan = planned(world)
        assert (plan.file.end["runs"], plan.file.end["unseen_runs"]) == (80, 80)
        await applied(world, plan)
        runs = await world.runs()
        assert [run.object_format for run in runs] == [FINAL] + [1] * 20

    story(tmp_path, work)


def test_the_next_merge_plan_rewrites_merged_objects_with_few_live_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(planning, "SPARSE_BYTES", 1)
    monkeypatch.setattr(planning, "SMALL_RUN_BYTES", 1)

    async def work(world: MergeWorld) -> None:
        await fill(world)
        await applied(world, planned(world))
        for topic, partition in PLACES[1:]:
            await delete_records(world, partition, -1, topic)
        await world.world.advance(1)
        plan = planned(world, name="sparse")
        assert [len(merge.sources) for merge in plan.merges()] == [1]
        rows = await world.read()
        assert (await applied(world, plan)).old_runs == 1
        assert await world.read() == rows

    story(tmp_path, work)


def test_a_missing_source_object_stops_only_its_partitions_merge_and_is_reported(
    tmp_path: Path,
) -> None:
    async def work(world: MergeWorld) -> None:
        await fill(world, 10)
        lost = await world.append({PLACES[0]: 3})
        await fill(world, 10)
        plan = planned(world)
        (world.directory / KEYS.key(lost)).unlink()
        outcome = await applied(world, plan)
        (left,) = outcome.left
        assert (left.partition, left.first_offset, left.runs, left.code) == (0, 30, 11, 0)
        assert "no such object" in str(left.reason) or "No such file" in str(left.reason)
        assert (outcome.old_runs, len(outcome.done)) == (10 + 3 * 20, 1)
        shown = "\n".join(merge_text.outcome_lines(plan, outcome))
        assert "1 ranges of 11 runs are left as they were:" in shown
        assert "orders-0 from offset 30: unreadable: " in shown

    story(tmp_path, work)


def test_the_coordinator_refuses_only_ranges_that_changed_after_the_merge_plan_was_made(
    tmp_path: Path,
) -> None:
    async def work(world: MergeWorld) -> None:
        await fill(world)
        plan = planned(world)
        await delete_records(world, 1, 7)
        outcome = await applied(world, plan)
        (left,) = outcome.left
        assert (left.partition, left.first_offset, left.runs) == (1, 0, 20)
        assert left.code == ErrorCode.OFFSET_OUT_OF_RANGE
        assert outcome.old_runs == 60
        again = planned(world, name="next")
        assert (await applied(world, again)).old_runs == 18

    story(tmp_path, work)


@pytest.mark.parametrize("dies_at", range(1, 9))
def test_the_next_run_completes_a_merge_plan_that_was_interrupted_at_any_point(
    tmp_path: Path, dies_at: int
) -> None:
    """Every request fails before or behind the coordinator, and the command dies there."""

    class Killed(BaseException):
        pass

    async def work(world: MergeWorld) -> None:
        await fill(world, 60)
        before = [await world.read(*place) for place in PLACES]
        plan = planned(world, PlanSettings(KEYS.prefix, 8_000))
        steps = 0

        class Dying:
            async def call(self, request: Any) -> Any:
                nonlocal steps
                steps += 1
                if steps == dies_at:
                    raise Killed
                answer = await world.world.coordinator.call(request)
                steps += 1
                if steps == dies_at:
                    raise Killed
                return answer

        with pytest.raises(Killed):
            await applied(world, plan, coordinator=lambda _: Dying(), window=2)
        outcome = await applied(world, plan, window=2)
        assert len(outcome.done) == plan.merge_count
        assert [await world.read(*place) for place in PLACES] == before
        await applied(world, planned(world, name="next"))
        for place in PLACES:
            assert all(run.object_format == FINAL for run in await world.runs(*place))
        state = world.world.coordinator.state
        await world.world.advance(30 * 60_000)  # the leases of the killed command end
        state.check_invariants()

    story(tmp_path, work)


def test_the_next_run_of_a_merge_plan_does_not_repeat_a_completed_merge(tmp_path: Path) -> None:
    async def work(world: MergeWorld) -> None:
        await fill(world)
        plan = planned(world)
        await applied(world, plan)

        def unused(_: int) -> Any:
            raise AssertionError("a request for a completed plan")

        assert (await applied(world, plan, coordinator=unused)).old_runs == 80
        other = Journal(journal_of(plan).path, "another")
        with pytest.raises(ValueError, match=f"is the journal of plan {plan.plan_id}"):
            other.read()

    story(tmp_path, work)


def test_another_clusters_coordinator_refuses_a_merge_plan_before_it_leases_object_ids(
    tmp_path: Path,
) -> None:
    async def work(world: MergeWorld) -> None:
        await fill(world)
        plan = planned(world, SETTINGS._replace(prefix="elsewhere"))
        with pytest.raises(WrongClusterError, match="not a key of this coordinator"):
            await applied(world, plan)
        leased = RewriteLeaseGrantedRecord.schema().key
        assert leased not in {read_frame(value)[0] for value in world.gather()}

    story(tmp_path, work)


def test_applying_a_merge_plan_stops_with_the_reason_if_the_coordinator_grants_no_lease(
    tmp_path: Path,
) -> None:
    async def work(world: MergeWorld) -> None:
        await fill(world)
        plan = planned(world)

        class Away:
            async def call(self, request: Any) -> Any:
                if isinstance(request, RewriteLeaseRequest):
                    raise CoordinatorError(ErrorCode.COORDINATOR_NOT_AVAILABLE, "no leader")
                return await world.world.coordinator.call(request)

        outcome = await applied(world, plan, coordinator=lambda _: Away())
        assert outcome.unanswered == "coordinator 0: no leader"
        world.world.view.raise_level(2)
        outcome = await applied(world, plan)
        assert str(outcome.unanswered).startswith("coordinator 0: UNSUPPORTED_VERSION")
        assert not outcome.done

    story(tmp_path, work)


def test_a_merge_fails_and_can_be_repeated_if_its_object_key_has_other_bytes(
    tmp_path: Path,
) -> None:
    async def work(world: MergeWorld) -> None:
        await fill(world)
        plan = planned(world)
        for object_id in range(1_000, 1_016):
            world.store.write_new(KEYS.key(object_id), b"other")
        outcome = await applied(world, plan)
        assert "other bytes" in outcome.failed[0]
        assert not outcome.done
        for _ in range(15):
            outcome = await applied(world, plan)
        assert (await applied(world, plan)).old_runs == 80

    story(tmp_path, work)


def test_a_merge_task_that_runs_twice_finds_its_own_object_and_succeeds(tmp_path: Path) -> None:
    async def work(world: MergeWorld) -> None:
        await fill(world)
        plan = planned(world)

        class Twice(LocalEngine):
            def run(self, task: Any, work: Any, *_: Any, **__: Any) -> Any:
                super().run(task, work)
                return super().run(task, work)

        assert (await applied(world, plan, Twice())).old_runs == 80

    story(tmp_path, work)


def test_applying_a_merge_plan_renews_its_lease_while_it_rewrites_objects(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    renewed = asyncio.Event()

    async def renew(leases: Any) -> None:
        await leases._ask(lease_id=leases._lease.lease_id)
        renewed.set()

    monkeypatch.setattr(applying, "_renew", renew)

    async def work(world: MergeWorld) -> None:
        await fill(world)
        loop = asyncio.get_running_loop()

        class Slow(LocalEngine):
            def run(self, *arguments: Any, **how: Any) -> Any:
                asyncio.run_coroutine_threadsafe(renewed.wait(), loop).result(30)
                return super().run(*arguments, **how)

        assert (await applied(world, planned(world), Slow())).old_runs == 80

    story(tmp_path, work)


def test_the_merge_command_refuses_an_edited_or_truncated_plan(tmp_path: Path) -> None:
    async def work(world: MergeWorld) -> None:
        await fill(world)
        text = planned(world).file.path.read_text()
        for harmed in (text[:-20], text.replace('"partition": 0', '"partition": 1', 1), "", "{}\n"):
            (tmp_path / "harmed").write_text(harmed)
            with pytest.raises(SealError):
                MergePlan(tmp_path / "harmed")
            shown = CliRunner().invoke(app, ["merge", "show", str(tmp_path / "harmed")])
            assert (shown.exit_code, shown.output.count("\n")) == (4, 1)

    story(tmp_path, work)


def test_equal_inputs_give_the_same_merge_plan_byte_for_byte(tmp_path: Path) -> None:
    async def work(world: MergeWorld) -> None:
        await fill(world)
        first, second = planned(world), planned(world, name="again")
        assert first.file.path.read_bytes() == second.file.path.read_bytes()
        keys = ObjectKeys(prefix=KEYS.prefix, cluster_id=KEYS.cluster_id, coordinator_partition=0)
        (merge,) = first.merges()
        assert merge.size_bytes == first.file.end["bytes"]
        assert {run.object_key for source in merge.sources for run in source.runs} == {
            keys.key(object_id) for object_id in range(20)
        }

    story(tmp_path, work)


def test_the_merge_commands_print_the_plan_and_its_results_for_people_and_programs(
    tmp_path: Path,
) -> None:
    async def work(world: MergeWorld) -> None:
        await fill(world)
        plan = planned(world)
        path = str(plan.file.path)
        shown = CliRunner().invoke(app, ["merge", "show", path])
        assert shown.exit_code == 0
        assert "orders  2           40" in shown.output
        assert "1 merges of" in shown.output
        document = json.loads(CliRunner().invoke(app, ["merge", "show", path, "--json"]).output)
        assert (document["runs"], document["saved_runs"]) == (80, 76)
        assert document["topics"]["visits"]["partitions"] == 2
        outcome = await applied(world, plan)
        words = ["merge", "apply", path, "--store", "x", "--bootstrap-controller", "h:1"]
        plan.file.path.with_name("plan.journal").rename(f"{path}.{plan.plan_id}.journal")
        done = CliRunner().invoke(app, words)
        assert (done.exit_code, "No request was sent" in done.output) == (0, True)
        assert "1 of 1 merges done: 80 runs became 4" in done.output
        answer = json.loads(CliRunner().invoke(app, [*words, "--json"]).stdout)
        assert (answer["done"], answer["old_runs"], answer["left"]) == (1, 80, [])
        assert outcome.written_bytes == answer["written_bytes"]

    story(tmp_path, work)


@pytest.mark.spark
def test_spark_and_the_local_engine_merge_the_same_plan_to_the_same_objects(
    tmp_path: Path, spark: Any
) -> None:
    found = []
    for name, engine in (("local", LocalEngine(helper=True)), ("spark", SparkEngine(spark))):

        async def work(world: MergeWorld, engine: Any = engine) -> None:
            await fill(world, 60)
            plan = planned(world, PlanSettings(KEYS.prefix, 8_000))
            outcome = await applied(world, plan, engine)
            assert outcome.left == []
            ids = range(1_000, 1_000 + plan.merge_count)
            found.append([(world.directory / KEYS.key(one)).read_bytes() for one in ids])
            found.append([await world.read(*place) for place in PLACES])

        story(tmp_path / name, work)
    assert found[0] == found[2]
    assert found[1] == found[3]


def test_retention_plans_and_their_freed_bytes_take_replaced_runs_into_account(
    tmp_path: Path,
) -> None:
    """They equal those of a quadratic planner, with a cache of digests and without one."""

    async def work(world: MergeWorld) -> None:
        await fill(world)
        await applied(world, planned(world, PlanSettings(KEYS.prefix, 8_000)))
        await world.world.advance(1_000_000)
        await world.broker.acquire()
        await fill(world, 10)
        await delete_records(world, 1, 7)
        end = write_values(tmp_path / "log", [[value] for value in world.gather()])
        state = state_at(LogFiles(tmp_path / "log"), end)
        logs, now_ms = Worlds(tmp_path, [(tmp_path / "log", end)], Random(1)), world.world.now_ms()
        cache = DigestCache(tmp_path / "digests")
        for ms, size in ((-1, 900), (500_000, -1)):
            settings = {
                encode_uuid(topic): TopicSettings(name, ms, size, "external")
                for topic, name in NAMES.items()
            }
            logs.set(settings)
            expected = naive_rows(state, settings, coordinator=0, now_ms=now_ms)
            assert len(expected) == 4
            for kept in (None, cache, cache):
                made = make_plan(logs, now_ms=now_ms, digest_cache=kept)
                assert made.rows == expected
                assert made.effects[0] == naive_effect(state, expected, logs.batch_bytes(0))

    story(tmp_path, work)


def test_the_report_counts_the_bytes_of_replaced_runs_as_dead_and_of_new_runs_as_live(
    tmp_path: Path,
) -> None:
    async def work(world: MergeWorld) -> None:
        await fill(world)
        await applied(world, planned(world, PlanSettings(KEYS.prefix, 8_000)))
        await fill(world, 10)
        await applied(world, planned(world, PlanSettings(KEYS.prefix, 4_000), "second"))
        await delete_records(world, 1, 35)
        state = state_at(world.log("__diskless-metadata-0"))
        live: dict[str, int] = {}
        for run in state.runs.to_pylist():
            live[run["topic_id"]] = live.get(run["topic_id"], 0) + run["byte_size"]
        question = Question(now_ms=world.world.now_ms())
        report = make_report(world, LocalReportEngine(), question)
        topics = report.tables["topics"].to_pylist()
        shown = {row["topic_id"]: row["live_bytes"] for row in topics if row["topic_id"]}
        assert shown == live
        objects = report.tables["object_ages"].to_pylist()
        assert sum(row["objects"] for row in objects) == state.objects.num_rows
        used = [row["used_bytes"] > 0 for row in state.objects.to_pylist()]
        free = sum(row["objects"] for row in objects if row["status"] == "free")
        assert (free, free > 0) == (used.count(False), True)

    story(tmp_path, work)


def test_a_merge_plan_merges_markers_and_leaves_runs_above_the_last_stable_offset(
    tmp_path: Path,
) -> None:
    """The plan goes through its file. Readers get the control batches that brokers would build."""

    async def work(world: MergeWorld) -> None:
        world.world.view.raise_level(4)
        for number in range(1, 11):
            await fill(world, 2)
            await mark(world.world, marker(number, number % 2, producer=9))
        before, count = await world.read(), len(await world.runs())
        await send(world.broker, batch(0, 1, producer=7), numbers=(1,))  # stays open
        await fill(world)
        plan = planned(world, PlanSettings(KEYS.prefix, 1 << 20))
        sources = [source for merge in plan.merges() for source in merge.sources]
        (source,) = [one for one in sources if (one.topic_id, one.partition) == (TOPIC, 0)]
        assert (len(source.runs), sum(run.is_marker for run in source.runs)) == (count, 10)
        outcome = await applied(world, plan)
        assert not outcome.failed
        assert not outcome.left
        runs = await world.runs()
        assert [run.object_format for run in runs[:2]] == [2, 1]
        assert await world.read(end=runs[1].base_offset) == before

    story(tmp_path, work)


def test_a_merge_plan_follows_the_merge_settings_that_it_is_given(tmp_path: Path) -> None:
    async def work(world: MergeWorld) -> None:
        await fill(world, 4)
        few = PlanSettings(KEYS.prefix, 1 << 20)
        assert planned(world, few).merge_count == 0, "three runs of each partition are saved"
        more = few._replace(merging=MergeSettings(min_saved_runs=4))
        assert planned(world, more, "more").merge_count == 1
        old = few._replace(merging=MergeSettings(LATER_MS * 2, min_saved_runs=4))
        assert planned(world, old, "old").merge_count == 0

    story(tmp_path, work)
