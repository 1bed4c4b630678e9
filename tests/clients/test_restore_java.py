"""A Java consumer that runs on while its cluster is lost and restored is told what it lost.

Source: KIP-320; docs/design/restore.md#leader-epochs-are-timelines.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

import pytest

from tests.clients.cluster import EskerCluster
from tests.clients.confluent import Confluent
from tests.clients.restoring import (
    Ledger,
    Load,
    commit,
    committed,
    delete,
    esker,
    read_all,
    restore,
    set_aside,
    wait_for_records,
)
from tests.ecosystem.java_program import JavaProgram
from tests.interop.conftest import kafka, kafka_release, written_by_kafka
from tests.interop.kafka_run import Kafka
from tests.waiting import wait_until

__all__ = ["kafka", "kafka_release", "written_by_kafka"]

pytestmark = [pytest.mark.java, pytest.mark.soak, pytest.mark.timeout(900)]

PROGRAM: Final = Path(__file__).with_name("ReadThroughRestore.java")
TOPIC, GROUP = "ledger", "readers"
FAR: Final = 1_000_000


def survivor_knows(cluster: EskerCluster, survivor: int) -> bool:
    """Return whether a broker's copy of the groups' log is level with its leader's."""
    at = ",".join(f"{host}:{port}" for host, port in cluster.controllers)
    words = ("quorum", "describe", "__consumer_offsets-0", "--replication")
    found = esker(*words, "--bootstrap-controller", at)
    ends = {one["nodeId"]: one["logEndOffset"] for one in found["replicas"]}
    return bool(ends.get(survivor) == max(ends.values()))


def said(program: JavaProgram, word: str) -> list[list[int]]:
    """Return the numbers in the lines that begin with a word."""
    program.check_alive()
    lines = [line.split() for line in program.output.splitlines()]
    return [list(map(int, numbers)) for first, *numbers in filter(None, lines) if first == word]


def test_a_running_java_consumer_notices_the_truncation_and_its_group_goes_on_at_the_exact_end(
    tmp_path: Path, kafka: Kafka
) -> None:
    """The only survivor was stopped before the last records, which the consumer has read."""
    ledger, after = Ledger(), Ledger()
    settings = {"esker.lineage.timeout.ms": "1000"}
    with EskerCluster(tmp_path / "cluster", settings=settings) as cluster:
        cluster.start()
        Confluent(cluster.bootstrap).create_topic(TOPIC, 1, {})
        survivor, other = cluster.broker_ids
        with Load(cluster.bootstrap, TOPIC, 1, ledger):
            wait_for_records(ledger, 200)
        # The survivor's copy of the groups' log has an offset that its copy of the batches lacks.
        commit(cluster.bootstrap, GROUP, {(TOPIC, 0): FAR})
        wait_until(lambda: survivor_knows(cluster, survivor), "the survivor has read that")
        cluster.stop(survivor)
        with Load(cluster.bootstrap, TOPIC, 1, ledger):
            wait_for_records(ledger, len(ledger.acknowledged) + 200)
        read = max(offset for _, offset in ledger.acknowledged) + 1
        words = (cluster.bootstrap, TOPIC, GROUP)
        with JavaProgram(kafka, tmp_path, "reader", str(PROGRAM), *words) as reader:
            # Records that were purged by their producer may have been stored, too.
            wait_until(lambda: said(reader, "read")[-1:] >= [[read]], f"it has read up to {read}")
            cluster.kill()
            sources = set_aside(cluster, survivor)
            delete(cluster, *cluster.quorum_ids, other)
            done = restore(cluster, sources)
            assert [one["group"] for one in done["lostGroupOffsets"]] == [GROUP]
            exact_end = done["lostGroupOffsets"][0]["offset"]
            assert 0 < exact_end < read
            cluster.start()
            assert committed(cluster.bootstrap, GROUP, TOPIC, 1) == {0: exact_end}
            told = wait_until(lambda: said(reader, "truncated"), "it notices the truncation")
            assert told == [[exact_end, 0]]
            with Load(cluster.bootstrap, TOPIC, 1, after):
                wait_for_records(after, 50)
            first = wait_until(lambda: said(reader, "group"), "the group reads on")
            assert first == [[exact_end, 1]]
        found = read_all(cluster.bootstrap, TOPIC, 1)
        exact, lost = ledger.split(found, {0: exact_end})
        print(f"acknowledged {len(ledger.acknowledged)} = exact {exact} + lost {len(lost)}")
        assert len(lost) == read - exact_end
