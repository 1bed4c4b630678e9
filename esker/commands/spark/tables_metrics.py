"""Metrics of `esker spark tables run`, as Prometheus reads them.

Source: docs/tables.md#metrics.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, Counter, Gauge, start_http_server

if TYPE_CHECKING:
    from spark_jobs.topic_tables.job import Step


class TablesMetrics:
    """Counters and gauges of tables, by topic."""

    def __init__(self, registry: CollectorRegistry) -> None:
        def counter(name: str, text: str) -> Counter:
            return Counter(f"esker_tables_{name}", text, ["topic"], registry=registry)

        def gauge(name: str, text: str) -> Gauge:
            return Gauge(f"esker_tables_{name}", text, ["topic"], registry=registry)

        self.rows = counter("rows", "Rows that were committed.")
        self.dead_letters = counter("bad_records", "Records whose value could not be decoded.")
        self.commits = counter("commits", "Batches that were committed.")
        self.failures = counter("failures", "Batches that failed, and starts that did.")
        self.lag_records = gauge("lag_records", "Records that the table does not have yet.")
        self.lag_seconds = gauge(
            "lag_seconds", "Age of the table's newest record, or 0 if none is missing."
        )
        self.batch_seconds = gauge("batch_seconds", "Duration of the last batch.")

    def add(self, topic: str, step: Step) -> None:
        """Count a step of a topic's table."""
        self.lag_records.labels(topic).set(step.lag.records)
        self.lag_seconds.labels(topic).set(step.lag.seconds)
        if step.offsets:
            self.rows.labels(topic).inc(step.rows)
            self.dead_letters.labels(topic).inc(step.bad)
            self.commits.labels(topic).inc()
            self.batch_seconds.labels(topic).set(step.seconds)


def serve(port: int) -> TablesMetrics:
    """Serve metrics over HTTP on a port, until the process ends.

    Raises:  OSError.
    """
    registry = CollectorRegistry()
    start_http_server(port, registry=registry)
    return TablesMetrics(registry)
