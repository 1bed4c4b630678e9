"""Hands a plan's orphans over to their coordinators, which judge each key once more.

`MarkOrphans` judges each key as isSafeToDeleteFile would: keys that are referred to, or can still
be committed, are refused; the others are marked in the coordinator's log, and a broker deletes them
after the delay. Repeating a request changes nothing.

So the journal beside the plan need not list keys. The plan is read in windows; after all keys of a
window are answered, one line records how many rows are done and the counts so far. After a crash
the same command repeats at most one window. Memory holds one window, however long the plan is.

Source: docs/design/pipeline.md#applying-a-plan.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any, Final, Protocol

from coordinator.errors import CoordinatorError
from records.rpc.objects import MarkOrphansRequest, MarkOrphansResponse
from spark_jobs.orphans.scan import LARGE_FRACTION, PLAN, Candidate
from spark_jobs.plans.apply import WHOLE_PLAN
from spark_jobs.plans.journal import whole_lines
from spark_jobs.plans.sealed_file import SealedFile

WINDOW_ROWS: Final = 2_000
KEYS_OF_REQUEST: Final = 500
SAMPLE: Final = 20


class Coordinator(Protocol):
    """A coordinator, wherever it leads (`coordinator.batch.client`)."""

    async def call(self, request: MarkOrphansRequest) -> MarkOrphansResponse: ...


class OrphansPlan:
    """A plan in a file, which is verified when it is opened."""

    def __init__(self, path: Path) -> None:
        """Open the file of a plan to remove orphans, and verify the file.

        Raises:  SealError; OSError.
        """
        self.file = SealedFile(path, PLAN)
        header = self.file.header
        self.cluster_id: str = header["cluster_id"]
        self.expires_at_ms: int = header["expires_at_ms"]

    @property
    def plan_id(self) -> str:
        """Return the id of the plan, which is equal for equal contents."""
        return self.file.file_id

    @property
    def is_large(self) -> bool:
        """Return whether the plan covers more than `LARGE_FRACTION` of the listed bytes."""
        end = self.file.end
        return bool(end["planned_bytes"] > LARGE_FRACTION * end["listed_bytes"])

    def rows(self, start: int = 0) -> Iterator[Candidate]:
        """Yield the plan's rows from index `start` on.

        Raises:  OSError.
        """
        return (Candidate(**row) for row in self.file.rows(start))


@dataclass(slots=True)
class Progress:
    """The results of applying a plan so far."""

    rows_done: int = 0  # of the plan's, from its front
    taken: int = 0  # accepted, now or before: to be deleted
    refused: Counter[int] = field(default_factory=Counter)  # by error code
    sample: list[tuple[str, int]] = field(default_factory=list)  # keys that were refused, and why
    unanswered: str | None = None  # why applying stopped
    whole_refusal: int = 0  # the error code that refuses the whole plan

    def count_answer(self, key: str, code: int) -> None:
        """Count the coordinator's answer for one key, by its error code."""
        if not code:
            self.taken += 1
            return
        self.refused[code] += 1
        if len(self.sample) < SAMPLE:
            self.sample.append((key, code))


class Journal:
    """The progress of a plan, one line for each answered window, in a file beside the plan."""

    def __init__(self, path: Path, plan_id: str) -> None:
        self.path = path
        self._plan_id = plan_id

    def read(self) -> Progress:
        """Return the journaled progress of earlier executions, and cut off an incomplete last line.

        Raises:  OSError; ValueError if the journal is another plan's, or none.
        """
        progress = Progress()
        for line in whole_lines(self.path)[-1:]:
            try:
                plan_id = _restore(json.loads(line), progress)
            except (ValueError, KeyError, TypeError, AttributeError) as error:
                raise ValueError(f"{self.path} is not a plan's journal ({error!r})") from None
            if plan_id != self._plan_id:
                raise ValueError(f"{self.path} is the journal of plan {plan_id}")
        return progress

    def write(self, progress: Progress) -> None:
        """Append the run's progress durably to the journal.

        Raises:  OSError.
        """
        entry = {
            "plan_id": self._plan_id,
            "rows_done": progress.rows_done,
            "taken": progress.taken,
            "refused": {str(code): n for code, n in sorted(progress.refused.items())},
            "sample": progress.sample,
        }
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(entry) + "\n")
            file.flush()
            os.fsync(file.fileno())


def _restore(entry: Any, progress: Progress) -> str:
    """Restore the progress from a line of the journal, and return the id of its plan."""
    progress.rows_done, progress.taken = int(entry["rows_done"]), int(entry["taken"])
    progress.refused.update({int(code): int(n) for code, n in entry["refused"].items()})
    progress.sample = [(key, code) for key, code in entry["sample"]]
    return str(entry["plan_id"])


async def apply_orphans(
    plan: OrphansPlan,
    journal: Journal,
    coordinator: Callable[[int], Coordinator],
    *,
    progress: Callable[[int], None] = lambda _: None,
) -> Progress:
    """Send the planned keys that the journal lacks to their coordinators, to be marked.

    Args:    coordinator: of a partition of `__diskless-metadata`.
             progress: called with the number of answered rows after each window.
    Raises:  OSError; ValueError if the journal is another plan's.
    """
    done = journal.read()
    progress(done.rows_done)
    rows = plan.rows(done.rows_done)
    while window := list(islice(rows, WINDOW_ROWS)):
        answers = await _hand_over(plan, window, coordinator, done)
        if answers is None:
            return done
        for key, code in answers:
            done.count_answer(key, code)
        done.rows_done += len(window)
        journal.write(done)
        progress(len(window))
    return done


async def _hand_over(
    plan: OrphansPlan,
    window: Sequence[Candidate],
    coordinator: Callable[[int], Coordinator],
    done: Progress,
) -> list[tuple[str, int]] | None:
    """Send some keys to their coordinators; return each key's error code, or None to end the run.

    `done` has the reason to stop.
    """
    answers: list[tuple[str, int]] = []
    for number in sorted({row.coordinator for row in window}):
        keys = [row.key for row in window if row.coordinator == number]
        for first in range(0, len(keys), KEYS_OF_REQUEST):
            chunk = tuple(keys[first : first + KEYS_OF_REQUEST])
            request = MarkOrphansRequest(
                coordinator_partition=number,
                cluster_id=plan.cluster_id,
                expires_at_ms=plan.expires_at_ms,
                object_keys=chunk,
            )
            try:
                answer = await coordinator(number).call(request)
            except CoordinatorError as error:
                done.unanswered = f"coordinator {number}: {error.message}"
                return None
            if answer.error_code in WHOLE_PLAN:
                done.whole_refusal = answer.error_code
                return None
            if answer.error_code:
                done.unanswered = f"coordinator {number}: {answer.error_message}"
                return None
            answers += zip(chunk, answer.key_error_codes, strict=True)
    return answers
