"""Prometheus metrics of a broker's produce, fetch, cache and deletion.

Names begin with `esker_broker_`; Kafka has none for what a diskless broker does. Counters count
from the start of the process, so several scrapers do not interfere.

Check first: `..._replica_age_seconds` near half of diskless.file.delete.delay.ms (this broker will
stop serving data), `..._in_flight_bytes` at its limit (the store is slower than the producers),
`..._missing_objects_total` above zero (referenced data is not in the store),
`..._rewriting_success_age_seconds` that grows (nothing is merged or compacted).

Source: docs/design/broker.md; docs/broker.md lists all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Final, Protocol

from prometheus_client.metrics_core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)

from coordinator.controller.image import MetadataImage
from diskless.backup.shipper import Shipper
from diskless.cluster import Replica
from diskless.compaction.service import RewritingCounters
from diskless.fetch.local_segments.cache import LocalSegments
from diskless.fetch.local_segments.format import KIND_NAMES
from diskless.fetch.object_cache import CacheCounters
from diskless.fetch.read_ahead import ReadAhead
from diskless.fetch.service import FetchCounters
from diskless.fetch.staleness import Staleness
from diskless.histograms import Histogram
from diskless.object_deletion import CleaningCounters
from diskless.produce.closing import BufferClosing, Reason
from diskless.produce.in_flight import InFlight
from diskless.produce.object_writer import WriterCounters
from diskless.produce.service import ProduceCounters
from diskless.quotas.throttling import Throttling
from diskless.topic_metrics import TopicCollector
from diskless.zones import ZoneTraffic

PREFIX = "esker_broker_"


class ObservedCluster(Protocol):
    """The part of a `diskless.cluster.Cluster` that is measured."""

    @property
    def image(self) -> MetadataImage: ...

    def replica(self, coordinator: int) -> Replica | None: ...

    def replica_age_ms(self, coordinator: int) -> float | None: ...


class _Produces(Protocol):
    counters: ProduceCounters


class _Fetches(Protocol):
    counters: FetchCounters
    reading_bytes: int
    read_ahead: ReadAhead


class _Writes(Protocol):
    counters: WriterCounters
    closing: BufferClosing

    @property
    def epoch(self) -> int | None: ...

    @property
    def in_flight_bytes(self) -> int: ...


class _Caches(Protocol):
    counters: CacheCounters
    kept_bytes: int


class _Cleans(Protocol):
    counters: CleaningCounters


class _Rewrites(Protocol):
    counters: RewritingCounters

    def success_ages_s(self) -> Mapping[str, float]: ...


class BrokerCollector:
    """Collects the metrics when Prometheus scrapes."""

    def __init__(
        self,
        cluster: ObservedCluster,
        *,
        produce: _Produces,
        fetch: _Fetches,
        writers: _Writes,
        in_flight: InFlight,
        cache: _Caches,
        cleaner: _Cleans,
        backup: Shipper | None,
        rewriting: _Rewrites,
        staleness: Staleness,
        throttling: Throttling,
        unknown_racks: Callable[[], Mapping[str, int]],
        zones: ZoneTraffic,
        topics: TopicCollector,
        segments: LocalSegments | None = None,
    ) -> None:
        """Create a collector of the metrics of these services.

        Args:  unknown_racks: gives requests counted by unknown rack.
               segments: None: the broker has no local segments, and no metrics of them.
        """
        self._cluster = cluster
        self._produce = produce
        self._fetch = fetch
        self._writers = writers
        self._in_flight = in_flight
        self._cache = cache
        self._cleaner = cleaner
        self._backup = backup
        self._rewriting = rewriting
        self._staleness = staleness
        self._throttling = throttling
        self._unknown_racks = unknown_racks
        self._zones = zones
        self._topics = topics
        self._segments = segments

    def collect(self) -> Iterator[Metric]:
        """Yield all of the broker's metrics."""
        yield from self._produce_metrics()
        yield from self._writers_metrics()
        yield from self._fetch_metrics()
        yield from self._cache_metrics()
        if self._segments is not None:
            yield from _segment_metrics(self._segments)
        yield from self._cleaning_metrics()
        if self._backup is not None:
            yield from self._backup_metrics(self._backup)
        yield from self._rewriting_metrics()
        yield from self._replicas_metrics()
        yield from self._quota_metrics()
        text = "Requests of clients in a rack without a broker"
        yield _counters("unknown_racks", text, "rack", self._unknown_racks())
        text = "Bytes of Produce requests, by the client's zone: same, other, unknown"
        yield _counters("zone_bytes_in", text, "zone", self._zones.bytes_in)
        text = "Bytes of batches sent to consumers, by the client's zone: same, other, unknown"
        yield _counters("zone_bytes_out", text, "zone", self._zones.bytes_out)
        yield from self._topics.collect()

    def _produce_metrics(self) -> Iterator[Metric]:
        counters, in_flight = self._produce.counters, self._in_flight
        yield _counter("produce_requests", "Produce requests", counters.requests)
        yield _counter("bytes_in", "Bytes of Produce requests", counters.bytes_in)
        yield _counter("batches_in", "Batches accepted from producers", counters.batches)
        yield _counter("records_in", "Records accepted from producers", counters.records)
        yield _by_code(
            "produce_refusals",
            "Partitions of Produce requests that ended with an error, by error",
            counters.refused,
        )
        text = "Bytes of Produce requests that are not written yet"
        yield _gauge("in_flight_bytes", text, in_flight.used_bytes)
        text = "The limit of in_flight_bytes; past it Produce requests wait"
        yield _gauge("in_flight_limit_bytes", text, in_flight.max_bytes)
        text = "Produce requests that wait for memory; their sockets are not read"
        yield _gauge("produce_requests_held_back", text, in_flight.waiting)
        text = "Produce requests that had to wait for memory"
        yield _counter("produce_requests_held_back_ever", text, in_flight.held_back)

    def _writers_metrics(self) -> Iterator[Metric]:
        counters, epoch = self._writers.counters, self._writers.epoch
        yield _gauge(
            "epoch",
            "The broker epoch of the writers; -1: none",
            -1 if epoch is None else epoch,
        )
        text = "Bytes of batches that are buffered, uploaded or being committed"
        yield _gauge("append_bytes", text, self._writers.in_flight_bytes)
        yield _counter("objects", "Objects that this broker committed", counters.objects)
        yield _counter(
            "object_bytes", "Bytes of the objects that this broker committed", counters.object_bytes
        )
        closing = self._writers.closing.counters
        text = (
            "Buffers that became objects, by reason: quiet producers, memory, size, interval, stop"
        )
        closed = {str(reason): closing.closed[reason] for reason in Reason}
        yield _counters("buffers_closed", text, "reason", closed)
        yield _histogram("object_size_bytes", "Bytes of batches in an object", closing.object_bytes)
        yield _counter(
            "object_batches", "Batches in the objects that this broker committed", counters.batches
        )
        yield _counter(
            "uploads_failed",
            "Objects whose upload failed after all retries",
            counters.uploads_failed,
        )
        yield _counter("uploads_repeated", "Uploads that were retried", counters.uploads_repeated)
        yield _counter("commits_refused", "Objects whose commit was refused", counters.refused)
        text = "Commits that were submitted again because their outcome was unknown"
        yield _counter("commits_in_doubt", text, counters.in_doubt)
        yield _histogram(
            "upload_seconds", "Time of an object's upload, with retries", counters.upload_s
        )
        text = "Time from sending a commit to knowing its outcome"
        yield _histogram("commit_seconds", text, counters.commit_s)

    def _fetch_metrics(self) -> Iterator[Metric]:
        counters = self._fetch.counters
        yield _counter("fetch_requests", "Fetch requests", counters.requests)
        yield _counter("bytes_out", "Bytes of batches sent to consumers", counters.bytes_out)
        text = "Partitions of Fetch responses with errors, by error"
        yield _by_code("fetch_errors", text, counters.errors)
        text = "Bytes of Fetch responses that are being read from the store"
        yield _gauge("fetch_reading_bytes", text, self._fetch.reading_bytes)
        text = "Offsets that the coordinator checked behind its read barrier"
        yield _counter("fetch_barriers", text, counters.barriers)
        text = "Consumers redirected to a broker in their own rack"
        yield _counter("fetch_redirects", text, counters.redirects)
        text = "Fetches from a rack without a broker"
        yield _counter("fetch_unknown_racks", text, counters.unknown_racks)
        text = "Objects that are referenced and not in the store"
        yield _counter("missing_objects", text, counters.missing_objects)
        text = "Reads whose bytes differ from those that were committed"
        yield _counter("damaged_runs", text, counters.damaged_runs)
        text = "Batch lookups refused because the replica was too old"
        yield _counter("stale_refusals", text, self._staleness.refusals)

    def _cache_metrics(self) -> Iterator[Metric]:
        counters = self._cache.counters
        yield _gauge("cache_bytes", "Bytes of objects cached in memory", self._cache.kept_bytes)
        yield _counter("cache_reads", "Reads of objects", counters.reads)
        yield _counter("cache_hits", "Reads without a request to the store", counters.hits)
        ahead = self._fetch.read_ahead
        text = "Bytes read ahead for sequential consumers"
        yield _counter("read_ahead_bytes", text, ahead.counters.bytes)
        text = "Bytes read ahead that a consumer reached"
        yield _counter("read_ahead_used_bytes", text, ahead.counters.used_bytes)
        text = "Bytes read ahead that no consumer has reached yet"
        yield _gauge("read_ahead_pending_bytes", text, ahead.pending_bytes)
        text = "Runs that could not be read ahead"
        yield _counter("read_ahead_failures", text, ahead.counters.failures)
        yield _counter("store_gets", "GET requests to the store", counters.gets)
        yield _counter("store_get_bytes", "Bytes requested by GETs", counters.get_bytes)

    def _cleaning_metrics(self) -> Iterator[Metric]:
        counters = self._cleaner.counters
        yield _counter("cleaning_passes", "Passes of object deletion", counters.passes)
        yield _gauge("cleaning_listed", "Objects that the last pass listed", counters.listed)
        text = "Objects that the last pass left, because a backup may need them"
        yield _gauge("cleaning_held", text, counters.held)
        yield _counter(
            "objects_deleted",
            "Objects whose deletion the coordinator has confirmed",
            counters.deleted,
        )
        yield _counter("deletions_failed", "Deletions that the store refused", counters.failed)
        text = "Passes that ended early: the store or the coordinator was not available"
        yield _counter("cleaning_interrupted", text, counters.interrupted)
        text = "Keys listed for deletion that are not this cluster's; never deleted"
        yield _counter("cleaning_foreign_keys", text, counters.foreign)

    def _backup_metrics(self, backup: Shipper) -> Iterator[Metric]:
        counters = backup.counters
        text = "Seconds since this broker backed the logs up, or found nothing new; 0: another does"
        yield _gauge("backup_success_age_seconds", text, backup.age_s or 0.0)
        yield _counter("backup_manifests", "Backups written", counters.manifests)
        text = "Backups that had nothing to write"
        yield _counter("backup_quiet", text, counters.quiet)
        yield _counter("backup_failures", "Attempts that failed", counters.failed)
        yield _counter("backup_bytes", "Bytes of logs and checkpoints backed up", counters.bytes)
        text = "Objects of backups deleted, because no restore needs them"
        yield _counter("backup_objects_deleted", text, counters.deleted)
        text = "1 if the logs lack committed records that their backup has, else 0"
        yield _gauge("backup_contradicted", text, float(backup.contradiction is not None))

    def _rewriting_metrics(self) -> Iterator[Metric]:
        counters = self._rewriting.counters
        yield _counter("rewriting_passes", "Passes of merging and compaction", counters.passes)
        text = "Source bytes of the merges and compactions that the last pass planned"
        yield _gauge("rewriting_backlog_bytes", text, counters.backlog_bytes)
        text = "Runs that the planned merges save and the planned compactions read"
        yield _gauge("rewriting_backlog_runs", text, counters.backlog_runs)
        text = "Objects in use with deleted bytes whose deadline has passed by half"
        yield _gauge("rewriting_overdue_objects", text, counters.overdue_objects)
        text = "Age of the oldest deletion in these objects"
        yield _gauge("rewriting_overdue_age_seconds", text, counters.overdue_age_ms / 1000)
        text = "Runs of batches that were replaced so that deleted bytes go"
        yield _counter("rewriting_overdue_runs", text, counters.overdue_runs)
        text = "Runs that could not be rewritten: their bytes are damaged or missing"
        yield _counter("rewriting_damaged_runs", text, counters.damaged_runs)
        text = "Records that compaction removed"
        yield _counter("compaction_removed_records", text, counters.removed_records)
        for name, text in _OF_TASKS.items():
            values = {kind: getattr(counts, name) for kind, counts in counters.kinds.items()}
            yield _counters(f"rewriting_{name}", text, "kind", values)
        text = "Time since a task of this kind succeeded, or none was due; +Inf: never"
        ages_s = self._rewriting.success_ages_s()
        yield _gauges("rewriting_success_age_seconds", text, "kind", ages_s)

    def _replicas_metrics(self) -> Iterator[Metric]:
        lags, ages_s = dict[str, float](), dict[str, float]()
        for coordinator in range(self._cluster.image.coordinator_count):
            replica = self._cluster.replica(coordinator)
            if replica is not None:
                lags[str(coordinator)] = replica.lag
            age_ms = self._cluster.replica_age_ms(coordinator)
            ages_s[str(coordinator)] = float("inf") if age_ms is None else age_ms / 1000
        yield _gauges("replica_lag", "Committed records not applied yet", "coordinator", lags)
        text = "Upper bound of the replica's age; +Inf: it has never caught up"
        yield _gauges("replica_age_seconds", text, "coordinator", ages_s)
        text = "The age past which a replica serves no data"
        yield _gauge("replica_age_limit_seconds", text, self._staleness.limit_ms / 1000)

    def _quota_metrics(self) -> Iterator[Metric]:
        throttling = self._throttling
        text = "Answers that told a client of a throttle time, by type of quota"
        yield _counters("throttled_requests", text, "quota", throttling.throttled)
        text = "Throttle times that clients were told of, in ms, by type of quota"
        yield _counters("throttle_ms", text, "quota", throttling.throttle_ms)
        text = "Connections that are not read because their clients are throttled"
        yield _gauge("muted_connections", text, len(throttling.muting))
        text = "Connections of addresses above their quota, which were closed"
        yield _counter("throttled_connections", text, throttling.connections.held)
        text = "Rates that are measured for quotas"
        rates = len(throttling.clients) + len(throttling.connections)
        yield _gauge("quota_rates", text, rates)


def _segment_metrics(segments: LocalSegments) -> Iterator[Metric]:
    counters = segments.counters
    counts = {name: segments.count(kind) for kind, name in KIND_NAMES.items()}
    yield _gauges("local_segments", "Local segments, by kind", "kind", counts)
    sizes = {name: segments.bytes_of_kind[kind] for kind, name in KIND_NAMES.items()}
    yield _gauges("local_segment_bytes", "Bytes of local segments, by kind", "kind", sizes)
    text = "Reads of partitions that asked local segments"
    yield _counter("local_segment_reads", text, counters.reads)
    text = "Reads of partitions that local segments answered, at least in part"
    yield _counter("local_segment_hits", text, counters.hits)
    text = "Bytes of batches sent to consumers from local segments"
    yield _counter("local_segment_read_bytes", text, counters.read_bytes)
    text = "Bytes of batches that were read from memory or the store instead"
    yield _counter("local_segment_missed_bytes", text, counters.missed_bytes)
    text = "Bytes of batches written to local segments"
    yield _counter("local_segment_written_bytes", text, counters.written_bytes)
    text = "Bytes of batches that were not written: the queue was full"
    yield _counter("local_segment_dropped_bytes", text, counters.dropped_bytes)
    text = "Bytes of chunks that were read because this broker became their replica"
    yield _counter("local_segment_warmed_bytes", text, counters.warmed_bytes)
    text = "Bytes of this broker's chunks that were not read: there was no room"
    yield _counter("local_segment_unwarmed_bytes", text, counters.unwarmed_bytes)
    text = "Bytes of batches that wait to be written to local segments"
    yield _gauge("local_segment_queued_bytes", text, segments.queued_bytes)
    text = "Writes to local segments that the disk refused"
    yield _counter("local_segment_write_failures", text, counters.failures)
    text = "Local segments that were deleted, by reason"
    yield _counters("local_segment_discards", text, "reason", counters.discarded)


_OF_TASKS: Final = {
    "tasks": "Tasks that the child process began",
    "failures": "Tasks that failed: the store, the coordinator or the child process",
    "old_runs": "Runs of batches that were replaced",
    "new_runs": "Runs of batches that replaced older runs",
    "refused_ranges": "Ranges that the coordinator refused to replace; each is planned anew",
    "read_bytes": "Bytes of runs that were rewritten",
    "written_bytes": "Bytes of rewritten objects",
}
"""Counters of both kinds of tasks, `merge` and `compaction`, by field."""


def _counter(name: str, text: str, value: float) -> Metric:
    return CounterMetricFamily(PREFIX + name, text, value=value)


def _gauge(name: str, text: str, value: float) -> Metric:
    return GaugeMetricFamily(PREFIX + name, text, value=value)


def _counters(name: str, text: str, label: str, values: Mapping[str, float]) -> Metric:
    family = CounterMetricFamily(PREFIX + name, text, labels=[label])
    for value_of_label, value in values.items():
        family.add_metric([value_of_label], value)
    return family


def _gauges(name: str, text: str, label: str, values: Mapping[str, float]) -> Metric:
    family = GaugeMetricFamily(PREFIX + name, text, labels=[label])
    for value_of_label, value in values.items():
        family.add_metric([value_of_label], value)
    return family


def _by_code(name: str, text: str, counts: Mapping[int, int]) -> Metric:
    return _counters(name, text, "error", {str(code): n for code, n in sorted(counts.items())})


def _histogram(name: str, text: str, values: Histogram) -> Metric:
    return HistogramMetricFamily(
        PREFIX + name, text, buckets=list(values.cumulative_counts()), sum_value=values.sum
    )
