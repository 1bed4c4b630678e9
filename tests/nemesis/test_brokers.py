"""Two brokers, three quorum nodes, librdkafka: everything dies and stands still in turn.

At the end all partitions are read from both brokers: nothing acknowledged is lost, nothing is there
twice, each producer's records are in order, offsets have no gaps, and a consumer that read along
saw just that, and a group of two has had it all, without one rebalance (docs/design/groups.md;
invariants 5, 6 and 9, docs/design/invariants.md). Brokers with a mistake in them are found out.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Final

import pytest

from diskless.stores.faults import Fault, FaultRule
from tests.clients.bad_stores import CLASS_NAME, spoiled_by
from tests.clients.cluster import PROGRAM, EskerCluster
from tests.clients.confluent import Confluent
from tests.nemesis.audited import check_audit
from tests.nemesis.broker_faults import SETTINGS, BrokerNemesis, read_partition
from tests.nemesis.broker_main import SPOILED
from tests.nemesis.group_traffic import GroupTraffic
from tests.nemesis.record_history import (
    Acknowledged,
    RecordHistory,
    Value,
    WrongRecordsError,
    check_same,
)
from tests.nemesis.record_traffic import Traffic
from tests.nemesis.test_nemesis import seed_of_run
from tests.waiting import wait_until

SHORT: Final = ("kill_broker", "kill_coordinator", "hold_quorum", "kill_all")
ALL: Final = (
    *SHORT,
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
TOPIC: Final = "records"
GROUP: Final = "readers"
PARTITIONS: Final = 4
HASTY: Final = {
    "diskless.storage.class.name": CLASS_NAME,
    "diskless.file.delete.delay.ms": "2000",
    "esker.file.delete.interval.ms": "200",
    "esker.append.upload.timeout.ms": "1000",
    "esker.object.lease.timeout.ms": "3000",
}
"""Leases end under paused brokers, and what is not committed by then is deleted at once."""

BAD_STORE: Final = (
    FaultRule(fault=Fault.LOST_ANSWER, operations=frozenset({"upload"}), probability=0.1),
    FaultRule(fault=Fault.ERROR, probability=0.1),
    FaultRule(fault=Fault.THROTTLED, probability=0.05, delay_s=0.2),
    FaultRule(fault=Fault.SLOW, probability=0.2, delay_s=0.3),
)
SPOILED_PROGRAM: Final = ("tests.nemesis.broker_main",)


def work(
    directory: Path,
    seed: int,
    faults: list[str],
    spoiled: str = "",
    store_rules: Sequence[FaultRule] = (),
) -> None:
    """One run: start, work and suffer, read, check. Raises WrongRecordsError.

    Args:  spoiled: the mistake of the brokers. store_rules: how the store is bad meanwhile.
    """
    os.environ[SPOILED] = spoiled
    program = SPOILED_PROGRAM if spoiled else PROGRAM
    settings = SETTINGS | (HASTY if store_rules else {})
    try:
        with EskerCluster(directory / "cluster", settings=settings, program=program) as cluster:
            cluster.start()
            Confluent(cluster.bootstrap).create_topic(TOPIC, PARTITIONS, {})
            traffic = Traffic(cluster.bootstrap, TOPIC, PARTITIONS)
            with GroupTraffic(cluster.bootstrap, TOPIC, GROUP) as group:
                group.settle()
                with traffic, spoiled_by(cluster.store, *store_rules):
                    BrokerNemesis(cluster, traffic, Random(seed)).run(faults)
                check(cluster, traffic, group)
    finally:
        del os.environ[SPOILED]
    print(
        f"{traffic.acknowledged} records acknowledged, {len(traffic.history.unknown)} unknown; "
        f"{dict(traffic.happened)}; group: {group.rebalances} rebalances, {dict(group.happened)}"
    )


def check(cluster: EskerCluster, traffic: Traffic, group: GroupTraffic) -> None:
    """What both brokers have, and what the consumer and the group saw."""
    logs = [
        {at: read_partition(broker, TOPIC, at) for at in range(PARTITIONS)}
        for broker in cluster.brokers
    ]
    ends = {at: len(log) for at, log in logs[0].items()}
    try:
        traffic.history.check(logs[0])
    finally:
        traffic.read_up_to(ends)
    wait_until(lambda: group.has_had(ends), "the group has had everything")
    committed = Confluent(cluster.bootstrap).committed(GROUP, TOPIC)
    if committed != ends:
        raise WrongRecordsError(f"the group committed {ends}, and {committed} is there")
    check_same("the brokers", logs[0], logs[1])
    check_same("the consumer", traffic.seen, logs[0])
    assert not group.rebalances, f"who acts for a group may die at no cost: {group.happened}"
    check_audit(cluster)
    cluster.check_alive()


def test_killing_and_pausing_brokers_and_quorum_nodes_loses_no_record(tmp_path: Path) -> None:
    seed = seed_of_run()
    work(tmp_path, seed, Random(seed).sample(SHORT, len(SHORT)))


def test_the_produced_record_check_finds_a_broker_that_acknowledges_before_the_commit(
    tmp_path: Path,
) -> None:
    """A record is lost, or is not where it was said to be: which is found first varies."""
    seed = seed_of_run()
    with pytest.raises(WrongRecordsError, match=r"lost|was told"):
        work(tmp_path, seed, ["kill_brokers"], "acknowledges first")


def test_the_produced_record_check_finds_a_broker_that_forgets_producer_state(
    tmp_path: Path,
) -> None:
    """What is under way while nobody commits is sent again, and then committed twice."""
    seed = seed_of_run()
    with pytest.raises(WrongRecordsError, match="duplicate"):
        work(tmp_path, seed, ["hold_quorum"], "forgets producers")


def test_the_produced_record_check_finds_a_broker_that_forgets_commits(tmp_path: Path) -> None:
    seed = seed_of_run()
    with pytest.raises(WrongRecordsError, match="the group committed"):
        work(tmp_path, seed, [], "forgets commits")


@pytest.mark.soak
@pytest.mark.timeout(600)
def test_brokers_under_a_long_sequence_of_faults_lose_no_record(tmp_path: Path) -> None:
    seed = seed_of_run()
    work(tmp_path, seed, Random(seed).sample(ALL, len(ALL)))


@pytest.mark.soak
@pytest.mark.timeout(600)
def test_brokers_over_a_failing_object_store_lose_no_record(tmp_path: Path) -> None:
    """Uploads that happened and are said to have failed, errors, slowness; leases that end early
    and a hasty cleaner; and everything dies.
    """
    seed = seed_of_run()
    work(tmp_path, seed, Random(seed).sample(ALL, 7), store_rules=BAD_STORE)


# --- the judge ------------------------------------------------------------------------------------

A, B, C = (Value("p", 0, number) for number in range(3))
RIGHT: Final = [(0, A), (1, B), (2, C)]


def judged(log: list[tuple[int, Value]], offsets: tuple[int | None, ...] = (0, 1, 2)) -> None:
    """A, B and C were sent and acknowledged one after the other; this is what is there."""
    history = RecordHistory()
    for number, (value, offset) in enumerate(zip((A, B, C), offsets, strict=True)):
        history.sent_ns[value] = 10 * number
        history.acknowledged[value] = Acknowledged(offset, 10 * number + 5)
    history.check({0: log})


def test_the_produced_record_check_accepts_a_log_with_each_acknowledged_record_once_in_order() -> (
    None
):
    judged(RIGHT)
    judged(RIGHT, (None, None, None))


@pytest.mark.parametrize(
    ("log", "says"),
    [
        (RIGHT[:2], "lost"),
        ([(0, A), (1, B), (2, B), (3, C)], "duplicate"),
        ([(0, A), (1, C), (2, B)], "out of order"),
        ([(0, A), (2, B), (3, C)], "gap"),
        ([*RIGHT, (3, Value("p", 0, 3))], "nobody sent"),
    ],
)
def test_the_produced_record_check_finds_each_fault_planted_in_a_log(
    log: list[tuple[int, Value]], says: str
) -> None:
    with pytest.raises(WrongRecordsError, match=says):
        judged(log)


def test_the_produced_record_check_finds_a_record_acknowledged_at_a_wrong_offset() -> None:
    with pytest.raises(WrongRecordsError, match="was told 7"):
        judged(RIGHT, (0, 1, 7))


def test_the_produced_record_check_finds_a_log_order_that_contradicts_acknowledgement_times() -> (
    None
):
    """By another producer, so that only the clock tells."""
    history, later = RecordHistory(), Value("q", 0, 0)
    history.sent_ns = {A: 0, later: 10}
    history.acknowledged = {A: Acknowledged(1, 5), later: Acknowledged(0, 15)}
    with pytest.raises(WrongRecordsError, match="was acknowledged"):
        history.check({0: [(0, later), (1, A)]})
