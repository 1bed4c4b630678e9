"""What Prometheus reads of a broker's membership and of its listeners.

Source: docs/design/broker.md; `diskless.metrics` has what it produces, fetches and keeps.
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
    """A `diskless.broker.Broker`."""

    listeners: dict[str, Listener]
    dispatchers: dict[str, Dispatcher]

    @property
    def is_fenced(self) -> bool: ...


def member_families(broker: Member) -> Iterator[Metric]:
    """All of them."""
    yield GaugeMetricFamily(
        PREFIX + "fenced",
        "1 while clients are sent elsewhere, as the controller said last",
        value=float(broker.is_fenced),
    )
    connections = GaugeMetricFamily(
        PREFIX + "connections", "Open connections of clients", labels=("listener",)
    )
    memory = GaugeMetricFamily(
        PREFIX + "request_bytes", "Bytes of requests not answered yet", labels=("listener",)
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
    yield from _of_requests(broker.dispatchers)


def _of_requests(dispatchers: Mapping[str, Dispatcher]) -> Iterator[Metric]:
    requests = CounterMetricFamily(
        PREFIX + "requests", "Requests that came", labels=("listener", "api")
    )
    clients = CounterMetricFamily(
        PREFIX + "clients",
        "Clients that said what they are, by what they said",
        labels=("listener", "software", "version"),
    )
    for name, dispatcher in dispatchers.items():
        for key, count in dispatcher.requests.items():
            requests.add_metric((name, API[key].request.schema().name), count)
        for (software, version), count in dispatcher.clients.items():
            clients.add_metric((name, software, version), count)
    yield from (requests, clients)
