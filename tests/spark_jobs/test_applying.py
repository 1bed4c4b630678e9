"""Tests that a plan survives as a file, and is applied once however often it is interrupted."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from coordinator.batch.decide.plans import PLAN_LASTS_MS
from coordinator.errors import CoordinatorError
from esker.commands.spark import retention_tables
from records.kafka_errors import ErrorCode
from records.rpc.batch_coordinator import ApplyRetentionRequest, ApplyRetentionResponse
from records.uuids import encode_uuid, random_uuid
from spark_jobs.orphans import apply as orphans_applying
from spark_jobs.plans import apply as applying
from spark_jobs.plans.apply import NO_ANSWER, Journal, Outcome, apply_plan
from spark_jobs.plans.retention_plan import (
    EXPIRES_AFTER_MS,
    Effect,
    Plan,
    PlanError,
    PlanRow,
    read_plan,
    write_plan,
)
from spark_jobs.prices import Prices

TOPIC, OTHER = encode_uuid(random_uuid()), encode_uuid(random_uuid())


def row(partition: int, *, coordinator: int = 0, topic_id: str = TOPIC) -> PlanRow:
    return PlanRow(coordinator, topic_id, "t", partition, 0, 10 + partition, 1, 5, 1, 100, 4, 400)


def plan(*rows: PlanRow, live_bytes: int = 10_000) -> Plan:
    effect = Effect(live_bytes, 100, 1, 120, 7, {"long": 7})
    return Plan("cluster", 1_000, {"__diskless-metadata-0": 50}, list(rows), {0: effect})


class Coordinators:
    """Coordinators that record rows, and refuse the given ones."""

    def __init__(self, refused: dict[int, int] | None = None) -> None:
        self.refused = refused or {}
        self.requests: list[ApplyRetentionRequest] = []
        self.log_starts: dict[tuple[int, int], int] = {}
        self.before: Callable[[], Awaitable[None]] | None = None

    def __call__(self, number: int) -> Coordinators:
        self.number = number
        return self

    async def call(self, request: ApplyRetentionRequest) -> ApplyRetentionResponse:
        self.requests.append(request)
        assert request.coordinator_partition == self.number
        told = []
        for topic in request.topics:
            answers = []
            for one in topic.partitions:
                error = self.refused.get(one.partition_index, 0)
                if not error:
                    key = self.number, one.partition_index
                    self.log_starts[key] = one.log_start_offset
                answers.append(
                    ApplyRetentionResponse.Topic.Partition(
                        partition_index=one.partition_index,
                        error_code=error,
                        low_watermark=-1 if error else one.log_start_offset,
                    )
                )
            told.append(
                ApplyRetentionResponse.Topic(topic_id=topic.topic_id, partitions=tuple(answers))
            )
        if self.before is not None:
            await self.before()
        return ApplyRetentionResponse(responses=tuple(told))


def applied(made: Plan, journal: Path, coordinators: Coordinators, at_once: int = 500) -> Outcome:
    ask = apply_plan(made, Journal(journal, made), coordinators, rows_of_request=at_once)
    return asyncio.run(ask)


def test_a_retention_plan_survives_writing_and_reading(tmp_path: Path) -> None:
    made = plan(row(0), row(1, topic_id=OTHER))
    write_plan(made, tmp_path / "plan")
    assert read_plan(tmp_path / "plan") == made
    write_plan(made, tmp_path / "again")
    assert (tmp_path / "again").read_bytes() == (tmp_path / "plan").read_bytes()


@pytest.mark.parametrize(
    "harm",
    [
        lambda text: text[: len(text) // 2],
        lambda text: text.replace('"new_log_start": 10', '"new_log_start": 99'),
        lambda text: text[:0],
        lambda text: text[:0] + "hello\n",
        lambda text: text.replace("esker-retention-plan", "shopping-list"),
        lambda text: text.replace('"version": 2', '"version": 3'),
        lambda text: "\n".join(text.splitlines()[1:]),
    ],
)
def test_reading_a_damaged_retention_plan_file_raises_an_error(
    tmp_path: Path, harm: Callable[[str], str]
) -> None:
    path = tmp_path / "plan"
    write_plan(plan(row(0)), path)
    path.write_text(harm(path.read_text()))
    with pytest.raises(PlanError, match=str(path)):
        read_plan(path)


def test_a_plans_share_of_live_bytes_is_shown_as_exactly_as_it_is_judged() -> None:
    """25.46 % is over the 25 % that need a word of the operator, and must not read 25 %."""
    effect = Effect(10_000, 2_546, 0, 0, 0, {})
    (line,) = retention_tables._effect_lines(0, effect, Prices())
    assert "2546 of 10000 live bytes go (25.46%)" in line


def test_a_retention_plan_counts_as_large_if_it_removes_a_large_share_of_live_bytes() -> None:
    assert plan(row(0), live_bytes=399).is_large
    assert not plan(row(0), live_bytes=400).is_large


def test_the_retention_job_sends_every_row_of_a_plan_to_its_coordinator(tmp_path: Path) -> None:
    coordinators = Coordinators()
    made = plan(row(0), row(1, topic_id=OTHER), row(2), row(3, coordinator=4))
    outcome = applied(made, tmp_path / "journal", coordinators)
    assert outcome.applied == {0: 10, 1: 11, 2: 12, 3: 13}
    assert coordinators.log_starts == {(0, 0): 10, (0, 1): 11, (0, 2): 12, (4, 3): 13}
    assert [one.cluster_id for one in coordinators.requests] == ["cluster"] * 2
    assert coordinators.requests[0].expires_at_ms == made.expires_at_ms == 3_601_000


def test_a_retention_plan_expires_at_the_time_from_which_coordinators_refuse_the_plan() -> None:
    assert EXPIRES_AFTER_MS == PLAN_LASTS_MS


def test_applying_a_retention_plan_continues_after_a_refused_row(tmp_path: Path) -> None:
    outcome = applied(plan(row(0), row(1), row(2)), tmp_path / "j", Coordinators({1: 44}))
    assert (outcome.applied, outcome.refused) == ({0: 10, 2: 12}, {1: 44})
    assert not outcome.is_stale()


class Reluctant(Coordinators):
    """A coordinator that moves a log start by at most four, one row a request, up to `ends`."""

    def __init__(self, ends: dict[int, int], busy: int = 0) -> None:
        """Args:  busy: the number of requests after the first that find it busy."""
        super().__init__()
        self.ends = ends
        self.busy = busy

    async def call(self, request: ApplyRetentionRequest) -> ApplyRetentionResponse:
        self.requests.append(request)
        is_busy = 1 < len(self.requests) <= 1 + self.busy
        group = ApplyRetentionResponse.Topic.Partition
        left, answers = 4, []
        for one in request.topics[0].partitions:
            place = one.partition_index
            key = self.number, place
            at = self.log_starts.get(key, 0)
            end = min(one.log_start_offset, self.ends.get(place, 99))
            code = 44 if end <= at < one.log_start_offset else 0 if left and not is_busy else 15
            if not code and at < end:
                self.log_starts[key] = at = min(end, at + left)
                left = 0
            answers.append(group(partition_index=place, error_code=code, low_watermark=at))
        (topic,) = request.topics
        told = ApplyRetentionResponse.Topic(topic_id=topic.topic_id, partitions=tuple(answers))
        return ApplyRetentionResponse(responses=(told,))


def test_the_retention_job_sends_a_partly_applied_plan_row_again_until_it_is_complete(
    tmp_path: Path,
) -> None:
    made, coordinators = plan(row(0), row(1), row(2)), Reluctant({})
    outcome = applied(made, tmp_path / "j", coordinators)
    assert (outcome.applied, outcome.refused) == ({0: 10, 1: 11, 2: 12}, {})
    assert outcome.stopped_short(made) == []
    assert len(coordinators.requests) == 9, "four offsets at a time"


def test_the_plan_journal_distinguishes_partly_applied_rows_from_refused_rows(
    tmp_path: Path,
) -> None:
    made, coordinators = plan(row(0), row(1), row(2)), Reluctant({0: 6, 1: 0})
    outcome = applied(made, tmp_path / "j", coordinators)
    assert (outcome.applied, outcome.refused) == ({0: 6, 2: 12}, {1: 44})
    assert outcome.stopped_short(made) == [0]
    assert Journal(tmp_path / "j", made).read().applied == {0: 6, 2: 12}


@pytest.mark.parametrize(("busy", "why"), [(20, None), (200, "COORDINATOR_NOT_AVAILABLE")])
def test_the_retention_job_repeats_requests_to_a_busy_coordinator_a_limited_number_of_times(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, busy: int, why: str | None
) -> None:
    monkeypatch.setattr(applying, "WAIT_S", 0.0)
    made, coordinators = plan(row(0), row(1)), Reluctant({}, busy)
    outcome = applied(made, tmp_path / "j", coordinators)
    assert outcome.unanswered == (None if why is None else f"coordinator 0: {why}")
    assert outcome.applied == ({0: 10, 1: 11} if why is None else {})


def test_a_retention_plan_whose_rows_have_all_expired_is_stale(tmp_path: Path) -> None:
    outcome = applied(plan(row(0), row(1)), tmp_path / "j", Coordinators({0: 32, 1: 32}))
    assert outcome.is_stale()


def test_the_retention_job_limits_the_number_of_plan_rows_in_a_request(tmp_path: Path) -> None:
    coordinators = Coordinators()
    outcome = applied(plan(*map(row, range(5))), tmp_path / "j", coordinators, 2)
    assert len(outcome.applied) == 5
    assert len(coordinators.requests) == 3


def test_applying_a_retention_plan_after_a_kill_continues_where_its_journal_ends(
    tmp_path: Path,
) -> None:
    """The process is killed after the second answer, before it is written to the journal."""
    made, journal = plan(*map(row, range(5))), tmp_path / "j"
    coordinators = Coordinators()

    async def killed() -> None:
        if len(coordinators.requests) == 2:
            raise KeyboardInterrupt

    coordinators.before = killed
    with pytest.raises(KeyboardInterrupt):
        applied(made, journal, coordinators, 2)
    assert Journal(journal, made).read().applied == {0: 10, 1: 11}
    with journal.open("a") as file:
        file.write('{"plan_id": "' + made.plan_id)  # a line that was being written
    coordinators.before = None
    outcome = applied(made, journal, coordinators, 2)
    assert outcome.applied == {i: 10 + i for i in range(5)}
    assert len(coordinators.requests) == 4, "one request twice, and the last"
    assert len(Journal(journal, made).read().applied) == 5
    applied(made, journal, coordinators, 2)
    assert len(coordinators.requests) == 4, "and nothing is left to ask"


def test_the_next_run_of_the_retention_job_sends_plan_rows_without_an_answer_again(
    tmp_path: Path,
) -> None:
    made, coordinators = plan(row(0), row(1, coordinator=1)), Coordinators()

    async def away() -> None:
        if coordinators.number == 1:
            raise CoordinatorError(ErrorCode.COORDINATOR_NOT_AVAILABLE, "nobody leads")

    coordinators.before = away
    outcome = applied(made, tmp_path / "j", coordinators)
    assert (outcome.applied, outcome.unanswered) == ({0: 10}, "coordinator 1: nobody leads")


@pytest.mark.parametrize("code", sorted(NO_ANSWER))
def test_the_retention_job_sends_plan_rows_again_after_a_broker_found_no_coordinator(
    tmp_path: Path, code: int
) -> None:
    """A broker that reaches no coordinator reports an error for every row; they are sent again."""
    made, coordinators = plan(row(0), row(1), row(2)), Coordinators({1: code, 2: code})
    outcome = applied(made, tmp_path / "j", coordinators, 1)
    assert (outcome.applied, outcome.refused) == ({0: 10}, {})
    assert outcome.unanswered == f"coordinator 0: {ErrorCode(code).name}"
    assert len(coordinators.requests) == 2, "it goes no further"
    coordinators.refused = {}
    outcome = applied(made, tmp_path / "j", coordinators, 1)
    assert (outcome.applied, outcome.unanswered) == ({0: 10, 1: 11, 2: 12}, None)


def test_a_retention_plan_that_another_cluster_refused_still_applies_to_its_own_cluster(
    tmp_path: Path,
) -> None:
    made, journal = plan(row(0), row(1)), tmp_path / "j"
    foreign = int(ErrorCode.INCONSISTENT_CLUSTER_ID)
    assert applied(made, journal, Coordinators({0: foreign, 1: foreign})).is_stale()
    outcome = applied(made, journal, Coordinators())
    assert (outcome.applied, outcome.refused) == ({0: 10, 1: 11}, {})


def test_the_retention_job_reports_a_plan_that_expires_while_it_is_applied_as_stale(
    tmp_path: Path,
) -> None:
    outcome = applied(plan(row(0), row(1), row(2)), tmp_path / "j", Coordinators({1: 44, 2: 32}))
    assert outcome.is_stale()


def test_the_retention_job_refuses_a_journal_of_another_plan(tmp_path: Path) -> None:
    applied(plan(row(0)), tmp_path / "j", Coordinators())
    with pytest.raises(ValueError, match="journal of plan"):
        applied(plan(row(1)), tmp_path / "j", Coordinators())


@pytest.mark.parametrize("line", ["{}", "hello", "[]", "7"])
def test_the_retention_job_refuses_an_invalid_journal_of_a_plan(tmp_path: Path, line: str) -> None:
    (tmp_path / "j").write_text(line + "\n")
    with pytest.raises(ValueError, match="is not a plan's journal"):
        applied(plan(row(0)), tmp_path / "j", Coordinators())
    with pytest.raises(ValueError, match="is not a plan's journal"):
        orphans_applying.Journal(tmp_path / "j", "0").read()


def test_the_journal_of_a_retention_plan_has_one_json_object_in_each_line(tmp_path: Path) -> None:
    made = plan(row(0), row(1))
    applied(made, tmp_path / "j", Coordinators({1: 44}))
    lines = [json.loads(line) for line in (tmp_path / "j").read_text().splitlines()]
    assert lines == [
        {"plan_id": made.plan_id, "row": 0, "error": 0, "log_start": 10},
        {"plan_id": made.plan_id, "row": 1, "error": 44, "log_start": -1},
    ]
