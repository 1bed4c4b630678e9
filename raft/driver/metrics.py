"""Serves Prometheus the quorum's metrics under upstream's names, and answers health checks.

Every group has its `raft-metrics` (current leader, epoch, vote, state, high watermark, log end,
latencies, rates), spelled as the usual JMX exporter spells them. Of the cluster log there are also
KIP-631's MetadataCommitLatencyMs and MetadataCommitRate. Rates and averages are over the time since
the last scrape, so they are right for one scraper only.

The HTTP server knows four paths and no more: `/metrics`, `/health`, and its parts `/health/live`
and `/health/ready` (docs/design/health.md#three-questions).

Source: KIP-595, Monitoring; KIP-631, Monitoring; upstream's KafkaRaftMetrics.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from typing import Final, NamedTuple, Protocol

from prometheus_client import CollectorRegistry, GCCollector, ProcessCollector, generate_latest
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric

from raft.driver.config import METADATA_GROUP
from raft.driver.group import GroupDriver
from raft.driver.health import Health
from raft.driver.snapshot_hosting import HostedMachine
from raft.driver.snapshot_metrics import snapshot_families
from raft.net import Listener
from raft.net.http import HttpServer, json_response, response
from raft.wire.responses import Group, wire_node
from records.types import NodeId

STATES: Final = ("leader", "candidate", "prospective", "resigned", "follower", "unattached")
PREFIX: Final = "kafka_server_raft_metrics_"


class _Host(Protocol):
    node_id: NodeId
    groups: dict[Group, GroupDriver]
    hosted: dict[Group, HostedMachine]
    listener: Listener

    @property
    def health(self) -> _Healthy: ...


class _Healthy(Protocol):
    def __call__(self) -> Health: ...


class _Window(NamedTuple):
    """A group's counters at one scrape."""

    at: float
    appended: int
    fetched: int
    committed: int | None  # the high watermark; None while it is unknown
    busy_s: float

    @classmethod
    def of(cls, driver: GroupDriver) -> _Window:
        counters = driver.counters
        return cls(
            time.monotonic(),
            counters.appended_records,
            counters.fetched_records,
            driver.quorum.log.high_watermark,
            counters.busy_s,
        )

    def committed_since(self, before: _Window) -> int:
        """Return the number of records committed since the sample `before`, or 0 if unknown.

        What was committed before a restart must not count as a burst of commits.
        """
        if self.committed is None or before.committed is None:
            return 0
        return self.committed - before.committed


class QuorumCollector:
    """Builds the metrics at each scrape; keeps only the counters that rates need."""

    def __init__(self, host: _Host) -> None:
        self._host = host
        self._windows: dict[str, _Window] = {}

    def collect(self) -> Iterator[Metric]:
        """Return all metric families of the quorum, each with one sample per group."""
        values: dict[str, dict[str, float]] = {}
        states = GaugeMetricFamily(
            PREFIX + "current_state", "1 for the state this group is in", labels=("group", "state")
        )
        for group, driver in tuple(self._host.groups.items()):
            for name, value in self._of_group(driver).items():
                values.setdefault(name, {})[group.name] = value
            state = type(driver.quorum.role).__name__.lower()
            if not driver.quorum.is_voter:
                state = "observer"
            for known in (*STATES, "observer"):
                states.add_metric((group.name, known), float(known == state))
        yield states
        for name, by_group in values.items():
            family = GaugeMetricFamily(PREFIX + name, HELP[name], labels=("group",))
            for group_name, value in by_group.items():
                family.add_metric((group_name,), value)
            yield family
        yield from self._of_controller(values)
        yield from snapshot_families(self._host)
        yield from self._of_listener()

    def _of_group(self, driver: GroupDriver) -> dict[str, float]:
        quorum, counters = driver.quorum, driver.counters
        now = _Window.of(driver)
        window = self._windows.get(driver.name, now)  # the first look has no rates
        self._windows[driver.name] = now
        elapsed = max(now.at - window.at, 0.001)
        latencies = counters.commit_latencies_ms
        voted = quorum.election_state.voted
        high_watermark = quorum.log.high_watermark
        values: dict[str, float] = {
            "current_leader": wire_node(quorum.leader_id),
            "current_epoch": quorum.epoch,
            "current_vote": wire_node(voted.id if voted else None),
            "high_watermark": -1 if high_watermark is None else high_watermark,
            "log_end_offset": quorum.log.end_offset,
            "log_end_epoch": quorum.log.last_epoch,
            "commit_latency_avg": sum(latencies) / len(latencies) if latencies else 0.0,
            "commit_latency_max": max(latencies, default=0.0),
            "election_latency_avg": (
                counters.election_latency_ms / counters.elections if counters.elections else 0.0
            ),
            "election_latency_max": counters.election_latency_max_ms,
            "append_records_rate": (now.appended - window.appended) / elapsed,
            "fetch_records_rate": (now.fetched - window.fetched) / elapsed,
            "commit_rate": now.committed_since(window) / elapsed,
            "poll_idle_ratio_avg": max(0.0, 1 - (now.busy_s - window.busy_s) / elapsed),
            "number_of_voters": len(quorum.voters),
            "peer_faults": counters.peer_faults,
            "unconfirmed_epochs": len(quorum.unconfirmed_epochs),
            "in_doubt": float(quorum.in_doubt),
            "reported_forks": len(quorum.reported_forks),
            "floor": quorum.log.floor,
        }
        latencies.clear()
        return values

    def _of_controller(self, values: dict[str, dict[str, float]]) -> Iterator[Metric]:
        """Yield the cluster log's commit latency and commit rate under their names in KIP-631."""
        name = METADATA_GROUP.name
        for family, source, text in (
            (
                "kafka_controller_metadata_commit_latency_ms",
                "commit_latency_avg",
                "MetadataCommitLatencyMs: from append to commit, ms",
            ),
            (
                "kafka_controller_metadata_commit_rate",
                "commit_rate",
                "MetadataCommitRate: records committed per second",
            ),
        ):
            if name in values.get(source, {}):
                yield GaugeMetricFamily(family, text, value=values[source][name])

    def _of_listener(self) -> Iterator[Metric]:
        listener, health = self._host.listener, self._host.health()
        yield GaugeMetricFamily(
            "esker_healthy",
            "1 while this node is ready: no degradation keeps it from its work",
            value=float(health.healthy),
        )
        degradations = GaugeMetricFamily(
            "esker_degradation", "1 for each fault that this node notices now", labels=("name",)
        )
        for name in dict.fromkeys(degradation.name for degradation in health.degradations):
            degradations.add_metric((name,), 1.0)
        yield degradations
        yield GaugeMetricFamily(
            "esker_connections", "Open connections", value=len(listener.connections)
        )
        ended = CounterMetricFamily(
            "esker_connections_closed", "Connections closed, by reason", labels=("reason",)
        )
        for reason, count in listener.ended.items():
            ended.add_metric((str(reason),), count)
        yield ended


HELP: Final = {
    "current_leader": "Node id of the leader; -1 if unknown",
    "current_epoch": "Current epoch of this replica",
    "current_vote": "Node id that this replica voted for in its epoch; -1 if none",
    "high_watermark": "Offset below which all records are committed; -1 if unknown",
    "log_end_offset": "Offset of the next record",
    "log_end_epoch": "Epoch of the last record",
    "commit_latency_avg": "Average from append to commit on the leader since the last scrape, ms",
    "commit_latency_max": "Maximum from append to commit on the leader since the last scrape, ms",
    "election_latency_avg": "Average from campaigning to a known leader since the start, ms",
    "election_latency_max": "Maximum from campaigning to a known leader since the start, ms",
    "append_records_rate": "Records appended per second",
    "fetch_records_rate": "Records fetched from the leader per second",
    "commit_rate": "Records committed per second",
    "poll_idle_ratio_avg": "Fraction of time in which this group was idle",
    "number_of_voters": "Size of the voter set in force",
    "peer_faults": "Messages from peers that broke the protocol, since the start",
    "in_doubt": "1 if a fork was found and this replica has stopped",
    "reported_forks": "Replicas whose committed records this leader does not have",
    "floor": "Offset below which all records are known to be committed and flushed here",
    "unconfirmed_epochs": "Voters whose reported epoch they have not confirmed themselves",
}


class _FunctionCollector:
    """A Prometheus collector that calls a function."""

    def __init__(self, collect: Callable[[], Iterable[Metric]]) -> None:
        self.collect = collect


class MetricsServer:
    """Serves `/metrics` and health checks over HTTP, one request per connection."""

    def __init__(self, host: _Host, more: Callable[[], Iterable[Metric]] | None = None) -> None:
        """Register the collectors; `more` returns the metrics of the services at each scrape.

        The process's own metrics (CPU, memory, open files, garbage collections) have the names
        that Prometheus clients share.
        """
        self._host = host
        self._registry = CollectorRegistry()
        ProcessCollector(registry=self._registry)
        GCCollector(registry=self._registry)
        self._registry.register(QuorumCollector(host))
        if more is not None:
            self._registry.register(_FunctionCollector(more))
        self._server = HttpServer(self._answer)

    @property
    def port(self) -> int:
        """Return the port in use, once the server was started."""
        return self._server.port

    async def start(self, host: str, port: int) -> None:
        """Listen for HTTP scrapes of the metrics. Raises OSError."""
        await self._server.start(host, port)

    async def close(self) -> None:
        """Stop listening for HTTP scrapes of the metrics."""
        await self._server.close()

    async def _answer(self, path: bytes) -> bytes:
        if path == b"/metrics":
            return response("200 OK", "text/plain; version=0.0.4", generate_latest(self._registry))
        if path == b"/health/live":
            return json_response({"live": True}, ok=True)  # the loop turns, or nothing answers
        if path in (b"/health", b"/health/ready"):
            health = self._host.health()
            shown = health.as_json() if path == b"/health" else health.readiness_as_json()
            return json_response(shown, ok=health.healthy)
        paths = b"try /metrics, /health, /health/ready or /health/live\n"
        return response("404 Not Found", "text/plain", paths)
