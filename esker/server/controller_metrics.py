"""The controller's Prometheus metrics, by Kafka's names.

ControllerRequestsRate is over the time since the last look, so it belongs to one scraper; the
counter beside it belongs to everybody.

Source: KIP-631, New Metrics; upstream's ControllerMetadataMetrics.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from typing import Protocol

from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric

from coordinator.controller.handover import HandOver
from coordinator.controller.leader import Controller
from coordinator.controller.machine import ControllerMachine
from coordinator.controller.preference import is_preferred
from records.rpc import API

PREFIX = "kafka_controller_"


class Counted(Protocol):
    """The parts of a node's controller that the metrics count."""

    machine: ControllerMachine
    controller: Controller | None
    handover: HandOver | None
    served: Counter[int]  # requests, by api key


class ControllerCollector:
    """Builds the controller's metrics for each scrape."""

    def __init__(self, counted: Counted) -> None:
        self._counted = counted
        self._seen = (0, time.monotonic())

    def collect(self) -> Iterator[Metric]:
        """Return all metrics of the controller quorum's state."""
        counted = self._counted
        controller, image = counted.controller, counted.machine.image
        brokers = list(image.brokers.values())
        fenced = sum(broker.fenced for broker in brokers)
        partitions = sum(len(topic.partitions) for topic in image.topics.values())
        active = controller is not None and controller.active_epoch is not None
        values = {
            "metadata_lag": (
                controller.metadata_lag if controller is not None else 0,
                "MetadataLag: committed records that are not applied here yet",
            ),
            "requests_rate": (self._rate(), "ControllerRequestsRate: requests a second"),
            "active_controller_count": (float(active), "ActiveControllerCount: 1 if it is here"),
            "active_broker_count": (len(brokers) - fenced, "ActiveBrokerCount: not fenced"),
            "fenced_broker_count": (fenced, "FencedBrokerCount"),
            "global_topic_count": (len(image.topics), "GlobalTopicCount"),
            "global_partition_count": (partitions, "GlobalPartitionCount"),
        }
        for name, (value, text) in values.items():
            yield GaugeMetricFamily(PREFIX + name, text, value=value)
        yield GaugeMetricFamily(
            "esker_controller_hand_over_outstanding",
            "Topics that a batch coordinator is still to be told of",
            value=counted.handover.outstanding if counted.handover is not None else 0,
        )
        yield GaugeMetricFamily(
            "esker_controller_unpreferred_brokers",
            "Registered brokers that clients are not sent to because they were unready",
            value=sum(not is_preferred(broker) for broker in brokers),
        )
        yield CounterMetricFamily(
            "esker_controller_preference_changes",
            "Changes of a broker's preference that this node decided",
            value=controller.preferences.changes if controller is not None else 0,
        )
        yield CounterMetricFamily(
            "esker_controller_contradictions",
            "Committed records that fitted nothing and changed nothing",
            value=counted.machine.contradictions,
        )
        requests = CounterMetricFamily(
            "esker_controller_requests", "Requests to the controller, by api", labels=("api",)
        )
        for key, count in sorted(counted.served.items()):
            name = API[key].request.schema().name.removesuffix("Request")
            requests.add_metric((name,), count)
        yield requests

    def _rate(self) -> float:
        total, now = sum(self._counted.served.values()), time.monotonic()
        (before, then), self._seen = self._seen, (total, now)
        return (total - before) / max(now - then, 0.001)
