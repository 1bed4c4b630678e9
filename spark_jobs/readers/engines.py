"""Engines run a function on each piece of a log: in this process, or in Spark.

An engine takes a function and its arguments, one for each piece, and returns the results in order.
The function reads the piece where it is called; only its result travels, and must be small. So both
engines run the same code on the same pieces, and give the same plan.

The trap is how little Spark is used for: no table goes in, and none comes out. A range of numbers
is mapped to answers, one task a piece; a task whose executor is lost is run again elsewhere.

Source: docs/design/pipeline.md#two-engines.
"""

from __future__ import annotations

import pickle
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any, Final, Protocol, TypeVar

import pyarrow as pa

from records.errors import RecordError
from spark_jobs.readers.helper_process import Helper, HelperError
from spark_jobs.readers.log_files import LostRangeError
from spark_jobs.readers.logs import LogsError

TASKS: Final = 64
"""Largest number of tasks in a Spark job: each has a cost, and pieces may be small."""

A = TypeVar("A")
R = TypeVar("R")

THREADS: Final = 2
"""Threads of the local engine: NumPy and checksums, much of the work, release the GIL."""

HELPED: Final = 4
"""Pieces from which on a helper is worth its start, a third of a second."""


class Engine(Protocol):
    """Runs a task on each piece of some work."""

    def run(
        self,
        task: Callable[[A], R],
        work: Sequence[A],
        progress: Callable[[int], None] = lambda _: None,
        *,
        light: bool = False,
    ) -> list[R]:
        """Return `task`'s result for each item of `work`, in order.

        `progress` is called with the number of items that were finished since the last call.

        Args:    light: each takes some ms, so several may be put together.
        Raises:  what `task` raises; by Spark, LogsError for damage.
        """
        ...


class LocalEngine:
    """Runs on two threads of this process; or in it and a helper process, for many heavy pieces."""

    def __init__(self, *, helper: bool = False) -> None:
        """Set whether the engine may share its work with a helper process.

        Args:    helper: pieces are large, and a second process may work on them.
        """
        self._helper = helper

    def run(
        self,
        task: Callable[[A], R],
        work: Sequence[A],
        progress: Callable[[int], None] = lambda _: None,
        *,
        light: bool = False,
    ) -> list[R]:
        """Run the task on each item of work, on two threads or with a helper process."""
        if self._helper and not light and len(work) >= HELPED:
            return _run_with_helper(task, work, progress)
        found = []
        with ThreadPoolExecutor(THREADS) as pool:
            for item in pool.map(task, work):
                found.append(item)
                progress(1)
        return found


def _run_with_helper(
    task: Callable[[A], R], work: Sequence[A], progress: Callable[[int], None]
) -> list[R]:
    """Divide the items of work between this process and a helper; each takes items when it is free.

    What the other did not answer, and what failed here, is done in order at the end: so the error
    that is raised is that of the first piece that has one.
    """
    left, found = deque(range(len(work))), dict[int, R]()

    def feed(helper: Helper) -> None:
        with suppress(HelperError, IndexError):  # no helper any more, or nothing left
            while True:
                number = left.popleft()
                found[number] = helper.ask(work[number])

    reported = 0
    with Helper(task) as helper, ThreadPoolExecutor(1) as pool:
        fed = pool.submit(feed, helper)
        try:
            with suppress(IndexError):
                while True:
                    number = left.popleft()
                    try:
                        found[number] = task(work[number])
                    except Exception:
                        left.clear()
                    progress(len(found) - reported)
                    reported = len(found)
            fed.result()
        except BaseException:  # Ctrl-C: the result is not needed
            left.clear()
            helper.kill()
            raise
    for number in range(len(work)):
        if number not in found:
            found[number] = task(work[number])
    progress(len(work) - reported)
    return [found[number] for number in range(len(work))]


class SparkEngine:
    """Runs one Spark job, with a task for each piece, or for several if there are many."""

    def __init__(self, spark: Any, tasks: int = TASKS) -> None:
        self._spark = spark
        self._tasks = tasks

    def run(
        self,
        task: Callable[[A], R],
        work: Sequence[A],
        progress: Callable[[int], None] = lambda _: None,
        *,
        light: bool = False,
    ) -> list[R]:
        """Run the task on each item of work in one Spark job, and return the results in order."""
        if not work:
            return []
        pickled = [pickle.dumps(item) for item in work]
        most = self._tasks
        if light:  # as many as a shuffle has: by then the session knows how wide it is
            most = min(most, int(self._spark.conf.get("spark.sql.shuffle.partitions")))

        def answers(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            for batch in batches:
                for number in batch.column(0).to_pylist():
                    yield _run_task(task, number, pickled[number])

        rows = self._spark.range(0, len(work), 1, min(len(work), most)).mapInArrow(
            answers, "number bigint, failed boolean, answer binary"
        )
        table = rows.toArrow()
        progress(len(work))
        found: dict[int, Any] = {}
        for number, failed, answer in zip(*(c.to_pylist() for c in table.columns), strict=True):
            if failed:
                raise pickle.loads(answer)
            found[number] = pickle.loads(answer)
        return [found[number] for number in range(len(work))]


def _run_task(task: Callable[[Any], Any], number: int, work: bytes) -> pa.RecordBatch:
    """Run one task in a worker; return its pickled result, or its error about unreadable logs.

    Such an error is returned and not raised, because a retry would not help.
    """
    failed = False
    try:
        answer = pickle.dumps(task(pickle.loads(work)))
    except RecordError as error:
        failed, answer = True, pickled(LogsError(str(error)))
    except (LogsError, LostRangeError, OSError) as error:
        failed, answer = True, pickled(error)
    return pa.RecordBatch.from_pydict({"number": [number], "failed": [failed], "answer": [answer]})


def pickled(error: Exception) -> bytes:
    """Pickle a task's error, or a LogsError with its text if the error cannot be pickled."""
    try:
        data = pickle.dumps(error)
        pickle.loads(data)
    except Exception:
        data = pickle.dumps(LogsError(f"{type(error).__name__}: {error}"))
    return data
