"""Two brokers, three quorum nodes, Kafka clients: everything dies, stands still or is cut off.

The history of all clients has no anomaly (`tests.nemesis.anomalies`; invariants 5, 6 and 9,
docs/design/invariants.md), and the group of two did not rebalance once (docs/design/groups.md).
Brokers with a mistake in them are found out.
"""

from __future__ import annotations

import os
from pathlib import Path
from random import Random
from typing import Final

import pytest

from tests.nemesis.anomalies import AnomaliesError, Kind
from tests.nemesis.disks import Disks
from tests.nemesis.rounds import (
    ALL_FAULTS,
    DEATHS,
    DISK_FAULTS,
    PROCESS_FAULTS,
    STORE_FAULTS,
    run_round,
)
from tests.nemesis.test_nemesis import seed_of_run

ROUNDS: Final = int(os.environ.get("NEMESIS_ROUNDS", "10"))
FAULTS_OF_A_ROUND: Final = 4


def check_round(directory: Path, seed: int, faults: list[str], disks: Disks | None = None) -> None:
    """Run a round that must have no anomaly and no rebalance."""
    result = run_round(directory, seed, faults, disks=disks)
    print(result)
    result.check()
    assert not result.rebalances, f"the group rebalanced: {result.happened}"


def check_spoiled(
    directory: Path, seed: int, faults: list[str], mistake: str, *kinds: Kind
) -> None:
    """Run a round with a mistake in the brokers, of which one of these anomalies must tell."""
    result = run_round(directory, seed, faults, spoiled=mistake)
    print(result, AnomaliesError(result.anomalies), sep="\n")
    assert {anomaly.kind for anomaly in result.anomalies} & set(kinds)


def test_killing_and_pausing_brokers_and_quorum_nodes_loses_no_record(tmp_path: Path) -> None:
    seed = seed_of_run()
    check_round(tmp_path, seed, Random(seed).sample(DEATHS, len(DEATHS)))


def test_the_anomaly_checker_finds_a_broker_that_acknowledges_before_the_commit(
    tmp_path: Path,
) -> None:
    """A record is lost, or is not where it was said to be: which is found first varies."""
    seed = seed_of_run()
    kinds = Kind.LOST_WRITE, Kind.INCONSISTENT_OFFSETS
    check_spoiled(tmp_path, seed, ["kill_brokers"], "acknowledges first", *kinds)


def test_the_anomaly_checker_finds_a_broker_that_forgets_producer_state(tmp_path: Path) -> None:
    """What is under way while nobody commits is sent again, and then committed twice."""
    seed = seed_of_run()
    check_spoiled(tmp_path, seed, ["hold_quorum"], "forgets producers", Kind.DUPLICATE)


@pytest.mark.soak
@pytest.mark.timeout(600)
def test_brokers_under_each_fault_of_processes_lose_no_record(tmp_path: Path) -> None:
    seed = seed_of_run()
    check_round(tmp_path, seed, Random(seed).sample(PROCESS_FAULTS, len(PROCESS_FAULTS)))


@pytest.mark.soak
@pytest.mark.timeout(600)
def test_brokers_over_a_failing_object_store_lose_no_record(tmp_path: Path) -> None:
    """The store fails while everything dies."""
    seed = seed_of_run()
    random = Random(seed)
    faults = [*STORE_FAULTS, *random.sample(PROCESS_FAULTS, 5)]
    check_round(tmp_path, seed, random.sample(faults, len(faults)))


@pytest.mark.soak
@pytest.mark.timeout(600)
@pytest.mark.parametrize("number", range(ROUNDS))
def test_the_histories_of_clients_have_no_anomaly_under_random_faults(
    tmp_path: Path, number: int
) -> None:
    """NEMESIS_ROUNDS is the number of rounds, 10 by default."""
    seed = seed_of_run() + number
    faults = [name for name in ALL_FAULTS if name not in DISK_FAULTS]
    check_round(tmp_path, seed, Random(seed).sample(faults, FAULTS_OF_A_ROUND))


@pytest.mark.soak
@pytest.mark.root
@pytest.mark.timeout(600)
def test_the_histories_of_clients_have_no_anomaly_under_disk_faults(
    tmp_path: Path, disks: Disks
) -> None:
    seed = seed_of_run()
    check_round(tmp_path, seed, Random(seed).sample(DISK_FAULTS, len(DISK_FAULTS)), disks)
