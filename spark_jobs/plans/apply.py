"""Applies a retention plan in bounded requests, with a journal, so that it can be repeated safely.

Each row is one partition's new log start, and the coordinator judges it by its current state. So a
row may be refused while the others are applied, and a row whose answer was lost may be sent again.
A log start may also stop short of the planned one: part of the way, and then the row is sent again;
or for good, where the next runs must be kept (clocks differ, or the plan is of another history).
Answers are written to the journal beside the plan before the next request is sent: after a crash
the same command continues where the journal ends, and repeats at most one request.

Source: docs/design/pipeline.md#applying-a-plan.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from typing import Final, Protocol

from coordinator.errors import CoordinatorError
from records.kafka_errors import ErrorCode
from records.rpc.batch_coordinator import ApplyRetentionRequest, ApplyRetentionResponse
from records.uuids import decode_uuid
from spark_jobs.plans.journal import whole_lines
from spark_jobs.plans.retention_plan import Plan, PlanRow

ROWS_OF_REQUEST: Final = 100

WHOLE_PLAN: Final = frozenset({ErrorCode.INCONSISTENT_CLUSTER_ID, ErrorCode.INVALID_TIMESTAMP})
"""Errors that refuse the whole plan: it is another cluster's, or has expired. They are not written
to the journal: a plan that was applied to the wrong cluster may still be applied to its own."""

NO_ANSWER: Final = frozenset(
    {
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
    }
)
"""Errors of every row when a broker could not reach the coordinator: no row was judged."""


WAIT_S: Final = 0.05
MAX_WAITS: Final = 100
"""Retries while a coordinator is busy with the rows that were applied just now."""


class Coordinator(Protocol):
    """A coordinator, wherever it leads (`coordinator.batch.client`)."""

    async def call(self, request: ApplyRetentionRequest) -> ApplyRetentionResponse: ...


@dataclass(slots=True)
class Outcome:
    """The results of a plan's rows, by their index in the plan."""

    applied: dict[int, int] = field(default_factory=dict)  # row: the log start there is now
    refused: dict[int, int] = field(default_factory=dict)  # row: the coordinator's error code
    unanswered: str | None = None  # why some rows have no answer; None: all have

    def stopped_short(self, plan: Plan) -> list[int]:
        """Return the indexes of rows whose log start moved less far than the plan requires."""
        return [
            i
            for i, log_start in sorted(self.applied.items())
            if log_start < plan.rows[i].new_log_start
        ]

    def is_stale(self) -> bool:
        """Return whether a coordinator refused the whole plan as expired or foreign."""
        return any(code in WHOLE_PLAN for code in self.refused.values())


class Journal:
    """The answered rows of a plan, one line each, in a file beside the plan."""

    def __init__(self, path: Path, plan: Plan) -> None:
        self.path = path
        self._plan_id = plan.plan_id

    def read(self) -> Outcome:
        """Return the journaled results of earlier executions, and cut off an incomplete last line.

        Raises:  OSError; ValueError if it is another plan's, or none.
        """
        outcome = Outcome()
        try:
            entries = [json.loads(line) for line in whole_lines(self.path)]
            answers = [
                (entry["plan_id"], entry["row"], entry["error"], entry["log_start"])
                for entry in entries
            ]
        except (ValueError, KeyError, TypeError) as error:
            raise ValueError(f"{self.path} is not a plan's journal ({error!r})") from None
        for plan_id, row, code, log_start in answers:
            if plan_id != self._plan_id:
                raise ValueError(f"{self.path} is the journal of plan {plan_id}")
            if code:
                outcome.refused[row] = code
            else:
                outcome.applied[row] = log_start
        return outcome

    def write(self, answers: Iterable[tuple[int, int, int]]) -> None:
        """Append to the journal the row number, error code and log start of each answered row.

        Raises:  OSError.
        """
        with self.path.open("a", encoding="utf-8") as file:
            for row, error, log_start in answers:
                entry = {
                    "plan_id": self._plan_id, "row": row, "error": error, "log_start": log_start
                }  # fmt: skip
                file.write(json.dumps(entry) + "\n")


async def apply_plan(
    plan: Plan,
    journal: Journal,
    coordinator: Callable[[int], Coordinator],
    *,
    progress: Callable[[int], None] = lambda _: None,
    rows_of_request: int = ROWS_OF_REQUEST,
) -> Outcome:
    """Send the plan's rows that the journal lacks to their coordinators, and journal the answers.

    Args:    coordinator: of a partition of `__diskless-metadata`.
             progress: called with the number of answered rows after each request.
             rows_of_request: largest number of rows in a request, which a crash may repeat.
    Raises:  OSError; ValueError if the journal is another plan's.
    """
    outcome = journal.read()
    known = outcome.applied.keys() | outcome.refused.keys()
    open_rows = [(i, row) for i, row in enumerate(plan.rows) if i not in known]
    async for answers in _answers(plan, open_rows, coordinator, outcome, rows_of_request):
        journal.write(answer for answer in answers if answer[1] not in WHOLE_PLAN)
        for row, error, log_start in answers:
            if error:
                outcome.refused[row] = error
            else:
                outcome.applied[row] = log_start
        progress(len(answers))
    return outcome


async def _answers(
    plan: Plan,
    rows: Sequence[tuple[int, PlanRow]],
    coordinator: Callable[[int], Coordinator],
    outcome: Outcome,
    rows_of_request: int,
) -> AsyncIterator[list[tuple[int, int, int]]]:
    for number, of_coordinator in groupby(rows, key=lambda numbered: numbered[1].coordinator):
        waiting = list(of_coordinator)
        while waiting:
            sent, waiting = waiting[:rows_of_request], waiting[rows_of_request:]
            moved: dict[int, int] = {}  # by row: the log start that it has reached
            waits = 0
            while sent:
                before = dict(moved)
                try:
                    answer = await coordinator(number).call(_request(plan, number, sent))
                except CoordinatorError as error:
                    outcome.unanswered = f"coordinator {number}: {error.message}"
                    return
                answers, sent = _split_answers(sent, _answers_of(sent, answer), moved)
                lost = next((code for _, code, _ in answers if code in NO_ANSWER), None)
                waits = waits + 1 if sent and moved == before else 0
                if lost is not None or waits > MAX_WAITS:
                    code = ErrorCode.COORDINATOR_NOT_AVAILABLE if lost is None else ErrorCode(lost)
                    outcome.unanswered = f"coordinator {number}: {code.name}"
                    return
                yield answers
                if waits:
                    await asyncio.sleep(WAIT_S)


def _split_answers(
    rows: Sequence[tuple[int, PlanRow]],
    answers: Iterable[tuple[int, int, int]],
    moved: dict[int, int],
) -> tuple[list[tuple[int, int, int]], list[tuple[int, PlanRow]]]:
    """Split answered rows of a plan into rows with final answers and rows to send again.

    Args:    moved: log starts that rows have come to; changed.
    """
    final, again = [], []
    for (i, code, log_start), numbered in zip(answers, _request_order(rows), strict=True):
        if code == ErrorCode.POLICY_VIOLATION and i in moved:
            final.append((i, 0, moved[i]))  # as far as it may go
        elif not code and moved.get(i, -1) < log_start < numbered[1].new_log_start:
            moved[i] = log_start
            again.append(numbered)
        elif code == ErrorCode.COORDINATOR_NOT_AVAILABLE and moved:
            again.append(numbered)
        else:
            final.append((i, code, log_start))
    return final, again


def _request_order(rows: Sequence[tuple[int, PlanRow]]) -> list[tuple[int, PlanRow]]:
    """Return the rows of a plan grouped by topic, which is their order in a request."""
    return [numbered for of_topic in _by_topic(rows).values() for numbered in of_topic]


def _by_topic(rows: Sequence[tuple[int, PlanRow]]) -> Mapping[str, list[tuple[int, PlanRow]]]:
    found: dict[str, list[tuple[int, PlanRow]]] = {}
    for numbered in rows:
        found.setdefault(numbered[1].topic_id, []).append(numbered)
    return found


def _request(plan: Plan, number: int, rows: Sequence[tuple[int, PlanRow]]) -> ApplyRetentionRequest:
    topic = ApplyRetentionRequest.Topic
    return ApplyRetentionRequest(
        cluster_id=plan.cluster_id,
        expires_at_ms=plan.expires_at_ms,
        coordinator_partition=number,
        topics=tuple(
            topic(
                topic_id=decode_uuid(topic_id),
                partitions=tuple(
                    topic.Partition(
                        partition_index=row.partition,
                        log_start_offset=row.new_log_start,
                        reason=row.reason,
                        limit=row.limit,
                    )
                    for _, row in of_topic
                ),
            )
            for topic_id, of_topic in _by_topic(rows).items()
        ),
    )


def _answers_of(
    rows: Sequence[tuple[int, PlanRow]], answer: ApplyRetentionResponse
) -> list[tuple[int, int, int]]:
    """Return row number, error code and log start of each answer, in the request's order."""
    partitions = [partition for topic in answer.responses for partition in topic.partitions]
    return [
        (i, partition.error_code, partition.low_watermark)
        for (i, _), partition in zip(_request_order(rows), partitions, strict=True)
    ]
