"""A Java node comes up by our snapshots, and Kafka's tools read the ones that we generate.

The Java node is a controller of Kafka's that is not among our voters. Its settings name our nodes
as `controller.quorum.bootstrap.servers`, its directory is formatted with our cluster id and
`--no-initial-controllers`. It needs nothing that only a controller could have written: the feature
level `metadata.version`, which `storage format` puts into our bootstrap records, is enough to
replicate and to load. What it wants besides is to register (ControllerRegistration), but it looks
for the leader's address in the voters' record of kraft.version 1, and a log with static voters has
none; it says so on standard error, and goes on replicating.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from raft.segments.files import RealFileSystem
from records.batch import iter_batches
from snapshot import checkpoint_name, list_checkpoints, verify_checkpoint
from snapshot.framing import Origin
from tests.interop.dump_output import dump
from tests.interop.esker_nodes import EskerQuorum
from tests.interop.kafka_run import DUMP, Kafka, Plan, configure_node
from tests.interop.kafka_scenario import CLUSTER_ID
from tests.interop.reading import read
from tests.raft.driver.client import Client
from tests.waiting import wait_until

pytestmark = pytest.mark.java

OBSERVER = 100
METADATA = "__cluster_metadata-0"
BENCH = "esker-bench-log-0"
SETTINGS = {"esker.bench.log.enable": "true", "esker.bench.log.state": "kv"}
FILES = RealFileSystem()


@pytest.fixture(scope="module")
def quorum(kafka: Kafka, tmp_path_factory: pytest.TempPathFactory) -> Iterator[EskerQuorum]:
    """Three nodes whose cluster log is long enough to be cut."""
    assert kafka.jars.is_dir()
    with EskerQuorum(tmp_path_factory.mktemp("esker"), settings=SETTINGS) as running:
        running.wait_for_leader()
        yield running


def controller_of_kafka(kafka: Kafka, quorum: EskerQuorum, home: Path) -> Plan:
    """A Java controller that knows our nodes by address, and is no voter."""
    plan = configure_node(
        kafka,
        home,
        node_id=OBSERVER,
        roles="controller",
        settings={"controller.quorum.bootstrap.servers": quorum.bootstrap},
    )
    plan.format(CLUSTER_ID, "--no-initial-controllers")
    return plan


def logged(directory: Path) -> list[bytes]:
    """A log's whole batches, from all its segments; one that is being written is left out."""
    return [
        bytes(batch.view)
        for segment in sorted(directory.glob("*.log"))
        for batch in iter_batches(segment.read_bytes(), allow_partial_tail=True)
    ]


def base_offset(batch: bytes) -> int:
    return int.from_bytes(batch[:8], "big")


def listed(quorum: EskerQuorum, group: str) -> list[dict[str, Any]]:
    """What `esker snapshot list --bootstrap-controller` says of a group, by node."""
    words = ("snapshot", "list", "--bootstrap-controller", quorum.bootstrap, "--group", group)
    return [json.loads(line) for line in quorum.esker(*words, "--json").splitlines()]


def test_a_java_observer_replicates_eskers_cluster_log_byte_for_byte(
    kafka: Kafka, tmp_path: Path
) -> None:
    """Of a quorum of one: for five minutes after it is gone, a replica holds on to the log."""
    with EskerQuorum(tmp_path, node_ids=(1,)) as alone:
        leader = alone.wait_for_leader()
        plan = controller_of_kafka(kafka, alone, tmp_path / "observer")
        with plan.started([]) as observer:
            wait_until(lambda: len(logged(observer.metadata_log)) > 3, state=observer.said)
            wait_until(lambda: OBSERVER in alone.observers(leader), state=alone.said)
        theirs, ours = logged(plan.directory / METADATA), logged(alone.metadata_log(leader))
    assert theirs == ours[: len(theirs)]
    assert not list_checkpoints(FILES, plan.directory / METADATA), "it came by the log alone"


def test_a_late_java_controller_loads_eskers_snapshot(
    kafka: Kafka, quorum: EskerQuorum, tmp_path: Path
) -> None:
    leader = quorum.wait_for_leader()
    bootstrap = ("--bootstrap-controller", quorum.bootstrap)
    taken = [
        json.loads(line)
        for line in quorum.esker("snapshot", "take", *bootstrap, "--json").splitlines()
    ]
    assert {one["nodeId"] for one in taken} == set(quorum.ports)
    # The leader's alone: a follower whose only checkpoint ends later keeps its log for longer.
    wait_until(
        lambda: leads_from_a_snapshot(quorum, leader),
        state=lambda: f"{listed(quorum, METADATA)}",
    )
    plan = controller_of_kafka(kafka, quorum, tmp_path / "observer")
    copy = plan.directory / METADATA
    with plan.started([]) as observer:
        wait_until(
            lambda: copy.exists() and list_checkpoints(FILES, copy) != [], state=observer.said
        )
        (fetched, *_) = list_checkpoints(FILES, copy)
        wait_until(lambda: len(logged(copy)) > 3, state=observer.said)
    theirs = (copy / checkpoint_name(fetched)).read_bytes()
    assert theirs == (quorum.metadata_log(leader) / checkpoint_name(fetched)).read_bytes()
    their_log = logged(copy)
    assert base_offset(their_log[0]) == fetched.offset, "its log begins where the snapshot ends"
    ours = logged(quorum.metadata_log(leader))
    begin = next(n for n, batch in enumerate(ours) if base_offset(batch) == fetched.offset)
    assert their_log == ours[begin : begin + len(their_log)]


def test_kafkas_tools_read_the_checkpoints_that_esker_nodes_write(
    kafka: Kafka, quorum: EskerQuorum
) -> None:
    """The cluster log's by DumpLogSegments with its metadata decoder, and by MetadataShell, which
    loads it as a node does. The bench log's records are ours alone: DumpLogSegments reads its
    batches, and finds every checksum right.
    """
    leader = quorum.wait_for_leader_of("esker-bench-log")
    with Client("127.0.0.1", quorum.ports[leader]) as client:
        keys = [b"key-%d" % n for n in range(100)]
        client.produce_keyed([(key, b"value of " + key) for key in keys])
    for group in (METADATA, BENCH):
        words = ("--bootstrap-controller", quorum.bootstrap, "--group", group)
        quorum.esker("snapshot", "take", *words, "--node", str(leader))
    (cluster,) = newest(quorum.group_log(leader, METADATA))
    (bench,) = newest(quorum.group_log(leader, BENCH))
    for path in (cluster, bench):
        assert verify_checkpoint(FILES, path, decode=True).origin is Origin.ESKER
    assert dump(kafka, [cluster])[cluster] == read(cluster)
    image = kafka.shell(cluster, "tree", "/image/topics/byName")
    assert "esker-bench-log" in image, image
    assert "__diskless-metadata" in image, image
    level = kafka.shell(cluster, "tree", "/image/features")
    assert re.search(r"metadataVersion|metadata.version", level), level
    said = kafka.run(DUMP, "--files", bench, "--deep-iteration").out
    valid = re.findall(r"^baseOffset: .* isvalid: (\w+)", said, re.MULTILINE)
    assert set(valid) == {"true"}, said
    assert len(re.findall(r"^\| offset: ", said, re.MULTILINE)) >= 100, said


def leads_from_a_snapshot(quorum: EskerQuorum, leader: int) -> bool:
    """Return whether a leader's cluster log begins behind the first record."""
    (own,) = (node for node in listed(quorum, METADATA) if node["nodeId"] == leader)
    return bool(own["logStartOffset"] > 0)


def newest(directory: Path) -> list[Path]:
    return [directory / checkpoint_name(one) for one in list_checkpoints(FILES, directory)][-1:]
