"""Prometheus metrics by topic, partition and group, with a bounded number of series.

Each series has one owner, so that a sum over all brokers counts nothing twice: traffic is counted
where it passed, a partition's offsets by the broker that leads it for clients without a rack, and a
group's lag by the group's coordinator. A broker that leads nothing yields none of these.

The trap: a series that would be one too many is left out, and `esker_broker_series_left_out` says
so. A lag that is not there is not 0.

Source: docs/broker.md#metrics-of-a-broker; Kafka's BrokerTopicMetrics and Log.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from itertools import islice
from typing import Final, NamedTuple
from uuid import UUID

from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric

from coordinator.controller.image import MetadataImage
from coordinator.controller.placement import leader, preferred_brokers, unfenced_brokers
from diskless.cluster import Cluster
from diskless.traffic import Traffic

TOPIC_PREFIX: Final = "kafka_server_broker_topic_metrics_"
LOG_PREFIX: Final = "kafka_log_log_"
_UNKNOWN: Final = UUID(int=0)


class _Lag(NamedTuple):
    """A group's position in a partition, and how many records it has not read."""

    labels: tuple[str, str, str]  # group, topic, partition
    committed: int
    lag: int


class _Led(NamedTuple):
    """The partitions that this broker led when topics and brokers were these."""

    topics: object
    brokers: object
    partitions: tuple[tuple[UUID, int], ...]
    is_complete: bool


class TopicCollector:
    """Collects the metrics by topic, partition and group when Prometheus scrapes."""

    def __init__(self, cluster: Cluster, traffic: Traffic, max_series: int) -> None:
        """Create a collector.

        Args:  max_series: of each metric; 0: none of these metrics is there.
        """
        self._cluster = cluster
        self._traffic = traffic
        self._max_series = max_series
        self._led = _Led(None, None, (), is_complete=True)

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics, and of which of them some series are left out."""
        left_out = GaugeMetricFamily(
            "esker_broker_series_left_out",
            "1 if there would be more series than esker.metrics.max.series, by their subject",
            labels=("of",),
        )
        if self._max_series:
            for of, (families, is_complete) in (
                ("topics", self._topics()),
                ("partitions", self._partitions()),
                ("groups", self._groups()),
            ):
                yield from families
                left_out.add_metric((of,), float(not is_complete))
        yield left_out

    def _topics(self) -> tuple[list[Metric], bool]:
        """Return the traffic of the busiest topics, and whether these are all."""
        traffic, topics = self._traffic, self._cluster.image.topics
        known = [one for one in traffic.bytes_in.keys() | traffic.bytes_out.keys() if one in topics]
        busiest = heapq.nlargest(
            self._max_series, known, lambda one: traffic.bytes_in[one] + traffic.bytes_out[one]
        )
        families: list[Metric] = []
        for name, text, counts in (
            ("messages_in", "Records accepted from producers", traffic.records_in),
            ("bytes_in", "Bytes of batches accepted from producers", traffic.bytes_in),
            ("bytes_out", "Bytes of batches sent to consumers", traffic.bytes_out),
        ):
            family = CounterMetricFamily(TOPIC_PREFIX + name, text, labels=("topic",))
            for topic_id in busiest:
                family.add_metric((topics[topic_id].name,), counts[topic_id])
            families.append(family)
        return families, len(busiest) == len(known)

    def _partitions(self) -> tuple[list[Metric], bool]:
        """Return the offsets of partitions that this broker leads, and whether these are all."""
        start, end = (
            GaugeMetricFamily(LOG_PREFIX + name, text, labels=("topic", "partition"))
            for name, text in (
                ("log_start_offset", "Offset of the first record that can be read"),
                ("log_end_offset", "Offset of the next record"),
            )
        )
        image = self._cluster.image
        if self._led.topics is not image.topics or self._led.brokers is not image.brokers:
            self._led = self._find_led(image)
        for topic_id, partition in self._led.partitions:
            ends = self._ends(topic_id, partition)
            if ends is not None:
                labels = (image.topics[topic_id].name, str(partition))
                start.add_metric(labels, ends[0])
                end.add_metric(labels, ends[1])
        return [start, end], self._led.is_complete

    def _find_led(self, image: MetadataImage) -> _Led:
        """Return the first partitions of an image that this broker leads for clients of no rack."""
        brokers = preferred_brokers(unfenced_brokers(image))
        led = (
            (topic_id, partition)
            for topic_id, topic in image.topics.items()
            if not topic.is_internal
            for partition in topic.partitions
            if leader(topic_id, partition, None, brokers) == self._cluster.broker_id
        )
        first = tuple(islice(led, self._max_series))
        return _Led(image.topics, image.brokers, first, next(led, None) is None)

    def _ends(self, topic_id: UUID, partition: int) -> tuple[int, int] | None:
        """Return a partition's log start and end in this broker's replica; None if unknown."""
        topic = self._cluster.image.topics.get(topic_id)
        if topic is None or partition not in topic.partitions:
            return None
        replica = self._cluster.replica(topic.coordinator(partition))
        return None if replica is None else replica.ends(topic_id, partition)

    def _groups(self) -> tuple[list[Metric], bool]:
        """Return offsets and lags of groups that this broker owns, and whether these are all."""
        committed, lag = (
            GaugeMetricFamily(name, text, labels=("group", "topic", "partition"))
            for name, text in (
                ("esker_group_committed_offset", "Offset from which a group goes on"),
                ("esker_group_lag", "Records between a group's committed offset and the end"),
            )
        )
        lags = self._lags()
        for found in islice(lags, self._max_series):
            committed.add_metric(found.labels, found.committed)
            lag.add_metric(found.labels, found.lag)
        return [committed, lag], next(lags, None) is None

    def _lags(self) -> Iterator[_Lag]:
        """Yield the lags of this broker's groups in partitions that exist."""
        topic_ids = self._cluster.image.topic_ids
        for name, group in self._cluster.groups():
            if group.broker_id != self._cluster.broker_id:
                continue
            for (topic, partition), offset in group.offsets.items():
                topic_id = topic_ids.get(topic)
                if topic_id is None or offset.topic_id not in (_UNKNOWN, topic_id):
                    continue  # deleted, or created anew since
                ends = self._ends(topic_id, partition)
                if ends is not None:
                    labels = (name, topic, str(partition))
                    yield _Lag(labels, offset.offset, max(0, ends[1] - offset.offset))
