"""A broker's Prometheus metrics. Source: docs/broker.md, Metrics."""

from __future__ import annotations

import re
from math import inf
from pathlib import Path

from prometheus_client import CollectorRegistry, generate_latest

from diskless.backup.shipper import BackupSettings, Shipper
from diskless.compaction.service import RewritingCounters
from diskless.fetch.local_segments.cache import LocalSegments, LocalSegmentsSettings
from diskless.metrics import BrokerCollector
from diskless.quotas.rates import Windows
from diskless.quotas.throttling import Throttling
from diskless.stores.faults import Fault, FaultRule
from diskless.topic_metrics import TopicCollector
from tests.diskless.cluster_world import ClusterWorld
from tests.diskless.records_world import RecordsBroker, batch
from tests.diskless.virtual_time import run

PAGE = Path(__file__).parents[2] / "docs" / "broker.md"


class NotRewriting:
    """The counters of a broker that never rewrote anything."""

    counters = RewritingCounters()

    def success_ages_s(self) -> dict[str, float]:
        return dict.fromkeys(self.counters.kinds, inf)


def collector(broker: RecordsBroker) -> BrokerCollector:
    return BrokerCollector(
        broker.cluster,
        produce=broker.produce_service,
        fetch=broker.fetch_service,
        writers=broker.writers,
        in_flight=broker.in_flight,
        cache=broker.cache,
        cleaner=broker.cleaner,
        backup=Shipper(
            broker.store,
            tuple,
            broker.cluster,
            BackupSettings(is_enabled=True, prefix="backup", interval_s=20.0, retention_s=60.0),
            release="0.2",
            is_living=lambda: True,
            clock=lambda: 0.0,
            wall_ms=lambda: 0,
        ),
        rewriting=NotRewriting(),
        staleness=broker.staleness,
        throttling=Throttling(broker.cluster, Windows(), idle_ms=lambda: 600_000),
        unknown_racks=lambda: {"nowhere": 3},
        zones=broker.zones,
        topics=TopicCollector(broker.cluster, broker.traffic, max_series=1_000),
        segments=LocalSegments(
            LocalSegmentsSettings(Path("never-begun"), "c-1", 1), wall_ms=broker.world.wall_ms
        ),
    )


def values(broker: RecordsBroker) -> dict[str, float]:
    registry = CollectorRegistry()
    registry.register(collector(broker))
    text = generate_latest(registry).decode()
    lines = [line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#")]
    return {name.removeprefix("esker_broker_"): float(value) for name, value in lines}


def test_a_brokers_metrics_count_produced_and_fetched_records() -> None:
    async def story() -> None:
        async with ClusterWorld() as world:
            await world.create("t")
            broker = RecordsBroker(world, 1)
            for number in range(3):
                await broker.produce("t", 0, batch(number, 9, now_ms=world.wall_ms()))
            await broker.produce("nowhere", 0, batch(4, now_ms=world.wall_ms()))
            found = await broker.fetch("t", 0, 0)
            await broker.fetch("t", 0, 77)
            upload = frozenset({"upload"})
            broker.store.rules = (FaultRule(fault=Fault.REFUSED, operations=upload),)
            await broker.produce("t", 0, batch(5, now_ms=world.wall_ms()))
            broker.cluster.ages_ms[0] = 31_000.0
            await broker.fetch("t", 0, 0)
            seen = values(broker)
            expected = {
                "produce_requests_total": 5,
                "batches_in_total": 4,
                "records_in_total": 7,
                'produce_refusals_total{error="3"}': 1,
                "objects_total": 3,
                "object_batches_total": 3,
                "uploads_failed_total": 1,
                "upload_seconds_count": 3,
                'commit_seconds_bucket{le="+Inf"}': 3,
                "fetch_requests_total": 3,
                "bytes_out_total": len(found.records or b""),
                'fetch_errors_total{error="1"}': 1,
                'fetch_errors_total{error="6"}': 1,
                "fetch_barriers_total": 1,
                "stale_refusals_total": 1,
                "store_gets_total": 0,
                "in_flight_bytes": 0,
                "append_bytes": 0,
                'replica_lag{coordinator="0"}': 0,
                'replica_age_seconds{coordinator="0"}': 31,
                "replica_age_limit_seconds": 30,
                'unknown_racks_total{rack="nowhere"}': 3,
                'zone_bytes_out_total{zone="unknown"}': len(found.records or b""),
            }
            assert {name: seen.get(name) for name in expected} == expected
            await broker.end()

    run(story)


def test_the_metrics_page_lists_exactly_the_existing_metrics() -> None:
    async def story() -> set[str]:
        async with ClusterWorld() as world:
            broker = RecordsBroker(world, 1)
            names = {metric.name for metric in collector(broker).collect()}
            await broker.end()
            return names

    documented = set(
        re.findall(r"`((?:esker_broker|esker_group|kafka)_[a-z_]+)`", PAGE.read_text())
    )
    assert documented == run(story)
