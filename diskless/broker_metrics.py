"""Prometheus metrics of a broker's membership and listeners.

Source: docs/design/broker.md; `diskless.metrics` has those of Produce, Fetch and the cache.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Protocol

from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric

from diskless.dispatch import Dispatcher
from diskless.metrics import PREFIX
from raft.net import Listener
from records.rpc import API


class Member(Protocol):
    """The part of a `diskless.broker.Broker` that is measured."""

    listeners: dict[str, Listener]
    dispatchers: dict[str, Dispatcher]

    @property
    def is_fenced(self) -> bool: ...

    @property
    def is_preferred(self) -> bool: ...


def member_metrics(broker: Member) -> Iterator[Metric]:
    """Yield the metrics of the broker's membership, connections and requests."""
    yield GaugeMetricFamily(
        PREFIX + "fenced",
        "1 while the controller fences this broker and clients are sent to others, else 0",
        value=float(broker.is_fenced),
    )
    yield GaugeMetricFamily(
        PREFIX + "preferred",
        "1 while clients are sent to this broker if it is unfenced; 0: it was unready for long",
        value=float(broker.is_preferred),
    )
    connections = GaugeMetricFamily(
        PREFIX + "connections", "Open connections of clients", labels=("listener",)
    )
    memory = GaugeMetricFamily(
        PREFIX + "request_bytes", "Bytes of requests without a response yet", labels=("listener",)
    )
    closed = CounterMetricFamily(
        PREFIX + "connections_closed", "Connections closed", labels=("listener", "reason")
    )
    for name, listener in broker.listeners.items():
        connections.add_metric((name,), len(listener.connections))
        memory.add_metric((name,), listener.memory_used)
        for reason, count in listener.ended.items():
            closed.add_metric((name, str(reason)), count)
    yield from (connections, memory, closed)
    yield from _request_metrics(broker.dispatchers)


def _request_metrics(dispatchers: Mapping[str, Dispatcher]) -> Iterator[Metric]:
    requests = CounterMetricFamily(
        PREFIX + "requests", "Requests received", labels=("listener", "api")
    )
    clients = CounterMetricFamily(
        PREFIX + "clients",
        "ApiVersions requests, by the client's software and version",
        labels=("listener", "software", "version"),
    )
    for name, dispatcher in dispatchers.items():
        for key, count in dispatcher.requests.items():
            requests.add_metric((name, API[key].request.schema().name), count)
        for (software, version), count in dispatcher.clients.items():
            clients.add_metric((name, software, version), count)
    yield from (requests, clients)
