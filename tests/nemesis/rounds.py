"""One round of the broker nemesis: start a cluster, let clients work under faults, find anomalies.

A round's plan (its faults, their order and their victims) comes from a seed. Real processes keep
their own timing, so a seed repeats the plan and not the history.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Final

from records.kafka_errors import ErrorCode
from tests.clients.bad_stores import CLASS_NAME
from tests.clients.client import Refused
from tests.clients.cluster import FIRST_BROKER, PROGRAM, EskerCluster
from tests.clients.confluent import Confluent
from tests.nemesis import compacted_traffic
from tests.nemesis.anomalies import AnomaliesError, Anomaly, find_anomalies
from tests.nemesis.audited import check_audit
from tests.nemesis.broker_cluster import BrokerCluster
from tests.nemesis.broker_faults import SEGMENTS, SETTINGS, BrokerNemesis, read_partition
from tests.nemesis.broker_main import SPOILED
from tests.nemesis.compacted_traffic import (
    REWRITING,
    CompactedTraffic,
    check_no_object_leaks,
)
from tests.nemesis.disks import Disks
from tests.nemesis.group_traffic import GroupTraffic
from tests.nemesis.record_history import RecordHistory
from tests.nemesis.record_traffic import Traffic
from tests.waiting import wait_until

DEATHS: Final = ("kill_broker", "kill_coordinator", "hold_quorum", "kill_all")
PROCESS_FAULTS: Final = (
    *DEATHS,
    "blink_broker",
    "freeze_broker",
    "stop_broker",
    "wipe_broker",
    "pause_broker",
    "kill_brokers",
    "kill_controller",
    "pause_coordinator",
    "pause_quorum",
)
NETWORK_FAULTS: Final = (
    "cut_broker_off",
    "cut_clients_off",
    "cut_coordinator_off",
    "cut_controller_off",
    "deafen_coordinator",
    "flap_broker",
    "slow_broker",
)
DISK_FAULTS: Final = ("fill_coordinator_disk", "fail_power", "fail_all_power", "fill_store")
CLOCK_FAULTS: Final = ("skew_broker", "skew_voter", "skew_quorum")
STORE_FAULTS: Final = ("refuse_uploads", "stall_store", "lie_about_uploads", "damage_fetches")
SEGMENT_FAULTS: Final = ("damage_segments",)
REWRITING_FAULTS: Final = ("kill_compactors", "flip_policy")
ALL_FAULTS: Final = (
    *PROCESS_FAULTS, *NETWORK_FAULTS, *DISK_FAULTS, *CLOCK_FAULTS, *STORE_FAULTS,
    *SEGMENT_FAULTS,
)  # fmt: skip

TOPIC: Final = "records"
GROUP: Final = "readers"
PARTITIONS: Final = 4
HASTY: Final = SETTINGS | {
    "diskless.storage.class.name": CLASS_NAME,
    "diskless.file.delete.delay.ms": "2000",
    "esker.file.delete.interval.ms": "200",
    "esker.append.upload.timeout.ms": "1000",
    "esker.object.lease.timeout.ms": "3000",
    "log.retention.check.interval.ms": "500",
}
"""Leases end under paused brokers, objects that are not committed by then are deleted at once, and
retention is judged twice a second."""

SPOILED_PROGRAM: Final = ("tests.nemesis.broker_main",)


@dataclass(slots=True)
class Round:
    """The result of one round."""

    seed: int
    faults: tuple[str, ...]
    anomalies: list[Anomaly] = field(default_factory=list)
    acknowledged: int = 0
    unknown: int = 0
    polled: int = 0
    end_reads: int = 0
    commits: int = 0
    committed_reads: int = 0
    rebalances: int = 0
    seconds: float = 0.0
    happened: Counter[str] = field(default_factory=Counter)

    def __str__(self) -> str:
        return (
            f"{self.acknowledged} records acknowledged, {self.unknown} unknown, "
            f"{self.polled} polled; {self.end_reads} end offsets, {self.commits} commits, "
            f"{self.committed_reads} committed offsets read; {self.rebalances} rebalances; "
            f"{dict(self.happened)}"
        )

    def check(self) -> None:
        """Raises AnomaliesError."""
        if self.anomalies:
            raise AnomaliesError(self.anomalies)


def run_round(
    directory: Path,
    seed: int,
    faults: Sequence[str],
    *,
    spoiled: str = "",
    disks: Disks | None = None,
    rewriting: bool = False,
) -> Round:
    """Run one round.

    Args:  spoiled: a mistake of the brokers (`broker_main`). disks: for faults of disks.
           rewriting: merge and compact all the time, a compacted topic, too.
    """
    began = time.monotonic()
    result = Round(seed, tuple(faults))
    with _cluster(directory, faults, spoiled, disks, rewriting=rewriting) as cluster:
        cluster.start()
        _create_topic(cluster, TOPIC, PARTITIONS, {})
        compacted = CompactedTraffic(cluster.bootstrap, seed) if rewriting else None
        if compacted is not None:
            _create_topic(cluster, compacted_traffic.TOPIC, 1, compacted_traffic.CONFIGS)
        is_hasty = isinstance(cluster, BrokerCluster)
        traffic = Traffic(
            cluster.bootstrap, TOPIC, PARTITIONS, watched=_watched(cluster),
            with_aiokafka=is_hasty, seed=seed,
        )  # fmt: skip
        with GroupTraffic(cluster.bootstrap, TOPIC, GROUP, traffic.history) as group:
            group.settle()
            with traffic, compacted or contextlib.nullcontext():
                BrokerNemesis(cluster, traffic, Random(seed)).run(faults)
            _read_everything(cluster, traffic, group)
            result.rebalances = group.rebalances
            result.happened = traffic.happened + group.happened
        history = traffic.history
        result.anomalies = find_anomalies(history)
        if compacted is not None:
            left = compacted.check(cluster)
            objects = check_no_object_leaks(cluster)
            print(f"compacted: {compacted.sent} records sent, {left} left; {objects} objects")
        if not result.anomalies:
            check_audit(cluster)
        cluster.check_alive()
    result.acknowledged, result.unknown = history.acknowledged, history.unknown
    result.polled = sum(
        len(getattr(one, "records", ())) for rows in history.consumers.values() for one in rows
    )
    result.end_reads = sum(map(len, history.end_reads.values()))
    result.commits = sum(map(len, history.commits.values()))
    result.committed_reads = sum(map(len, history.committed_reads.values()))
    result.seconds = time.monotonic() - began
    return result


@contextlib.contextmanager
def _cluster(
    directory: Path, faults: Sequence[str], spoiled: str, disks: Disks | None, *, rewriting: bool
) -> Iterator[EskerCluster]:
    """A cluster that can have these faults; one without proxies and rules where none needs them."""
    os.environ[SPOILED] = spoiled
    program = SPOILED_PROGRAM if spoiled else PROGRAM
    home = directory / "cluster"
    try:
        if set(faults) <= set(PROCESS_FAULTS) and not rewriting:
            with EskerCluster(home, settings=SETTINGS, program=program) as cluster:
                yield cluster
        else:
            needed = disks if set(faults) & set(DISK_FAULTS) else None
            settings = HASTY | (REWRITING if rewriting else {})
            has_segments = rewriting or bool(set(faults) & set(SEGMENT_FAULTS))
            segments = {FIRST_BROKER: {"esker.cache.dir": str(home / SEGMENTS)}}
            with BrokerCluster(
                home,
                disks=needed,
                settings=settings,
                settings_of=segments if has_segments else {},
            ) as cluster:
                yield cluster
    finally:
        del os.environ[SPOILED]


def _create_topic(
    cluster: EskerCluster, topic: str, partitions: int, configs: Mapping[str, str]
) -> None:
    """Create a topic. On a busy machine the controller may change meanwhile."""
    client = Confluent(cluster.bootstrap)

    def exists() -> bool:
        try:
            client.create_topic(topic, partitions, configs)
        except Refused as refused:
            return refused.code == ErrorCode.TOPIC_ALREADY_EXISTS
        return True

    wait_until(exists, f"topic {topic} is created")


def _watched(cluster: EskerCluster) -> list[tuple[str, int]]:
    return cluster.client_addresses if isinstance(cluster, BrokerCluster) else cluster.brokers


def read_logs(cluster: EskerCluster, history: RecordHistory, topic: str) -> dict[int, int]:
    """Read all of a topic from each broker into the history, and return the partitions' ends."""
    ends: dict[int, int] = {}
    for broker, address in zip(cluster.broker_ids, cluster.brokers, strict=True):
        logs = {at: read_partition(address, topic, at) for at in range(PARTITIONS)}
        history.logs[f"broker {broker}"] = logs
        for at, log in logs.items():
            ends[at] = max(ends.get(at, 0), log[-1][0] + 1 if log else 0)
    return ends


def _read_everything(cluster: EskerCluster, traffic: Traffic, group: GroupTraffic) -> None:
    """Read all logs from each broker, and let consumers and the group come to their ends."""
    ends = read_logs(cluster, traffic.history, TOPIC)
    traffic.read_up_to(ends)
    with contextlib.suppress(AssertionError):  # then the history has records that are unseen
        wait_until(lambda: group.has_had(ends), "the group has had everything")
    invoked = time.monotonic_ns()
    for at, offset in Confluent(cluster.bootstrap).committed(GROUP, TOPIC).items():
        traffic.history.read_committed(GROUP, at, invoked, offset)
