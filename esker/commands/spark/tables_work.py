"""The loop of `esker spark tables`: takes tables on, batch after batch, and tells what happens."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import typer

from esker.commands.spark.common import ENVIRONMENT, stop

if TYPE_CHECKING:
    from esker.commands.spark.tables_metrics import TablesMetrics
    from spark_jobs.topic_tables.job import Job, Step


class TablesWork:
    """Takes tables on, one topic after the other; what stops a topic leaves the others alone."""

    def __init__(
        self,
        topics: Sequence[str],
        make_job: Callable[[str, Any], Job],
        metrics: TablesMetrics | None = None,
        *,
        as_json: bool,
        backwards: bool = False,
    ) -> None:
        self.topics = topics
        self._make_job = make_job
        self._metrics = metrics
        self._as_json = as_json
        self._backwards = backwards
        self._engine: Any = None
        self._has_ended: Callable[[], bool] = lambda: False
        self._started: dict[str, Job | None] = dict.fromkeys(topics)
        self.failed: dict[str, str] = {}

    def loop(
        self, engine: Any, interval_s: float | None, has_ended: Callable[[], bool]
    ) -> Mapping[str, str]:
        """Take all tables on until nothing is missing, or for ever; return failed topics.

        Ends the command if the engine has ended.

        Args:    interval_s: seconds to wait where nothing is missing; None: stop there.
                 has_ended: whether the engine does no work any more.
        """
        self._engine, self._has_ended = engine, has_ended
        while len(self.failed) < len(self._started):
            behind = [self._step(topic, once=interval_s is None) for topic in self._started]
            if any(behind):
                continue
            if interval_s is None:
                break
            time.sleep(interval_s)
        return self.failed

    def _step(self, topic: str, *, once: bool) -> bool:
        """Take a table on by a batch; return whether it is still behind."""
        from spark_jobs.topic_tables.job import is_lasting

        if topic in self.failed:
            return False
        try:
            job = self._started[topic]
            if job is None:
                job = self._make_job(topic, self._engine)
                job.start()
                self._started[topic] = job
            step = job.step()
        except Exception as error:  # of any catalogue, or of Spark
            self._started[topic] = None  # the next attempt reads from the table where to begin
            if self._metrics is not None:
                self._metrics.failures.labels(topic).inc()
            if self._has_ended():
                stop("Spark has ended; run the same command to continue", ENVIRONMENT)
            lasting = once or is_lasting(error)
            if lasting:
                self.failed[topic] = sentence(error)
            again = "this topic stops here" if lasting else "the next attempt follows"
            typer.echo(f"esker: {topic}: {sentence(error)}; {again}", err=True)
            return False
        self._show(topic, step)
        return step.offsets > 0 and step.lag.records > 0

    def _show(self, topic: str, step: Step) -> None:
        if self._metrics is not None:
            self._metrics.add(topic, step)
        if not step.offsets:
            return
        if self._as_json:
            document = {"topic": topic, **step._asdict(), "lag": step.lag._asdict()}
            typer.echo(json.dumps(document))
            return
        now = datetime.now(UTC).isoformat(timespec="seconds")
        bad = f", {step.bad} bad (the first: {step.first_bad})" if step.bad else ""
        typer.echo(
            f"{now} {topic}: {step.rows} rows in {step.seconds:.1f} s{bad}; "
            f"{step.lag.records} records {'before it' if self._backwards else 'behind'}"
        )


def engine_of(spark: Any) -> Any:
    from spark_jobs.readers.engines import LocalEngine, SparkEngine

    return LocalEngine(helper=True) if spark is None else SparkEngine(spark)


def has_ended(spark: Any) -> bool:
    """Return whether Spark's JVM has died, or its context was stopped by the cluster."""
    if spark is None:
        return False
    try:
        return bool(spark.sparkContext._jsc.sc().isStopped())
    except Exception:  # whatever the connection died of
        return True


def sentence(error: BaseException) -> str:
    """Describe an error of a catalogue or of Spark in one line."""
    text = " ".join(str(error).split())
    return text[:500] or type(error).__name__
