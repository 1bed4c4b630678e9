"""Broker processes: they come, are members, serve, go, and come again with nothing but their id."""

from __future__ import annotations

import contextlib
import json
import re
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest
from prometheus_client import Metric
from prometheus_client.parser import text_string_to_metric_families

from records.rpc.fetch import FetchRequest, FetchResponse
from tests.clients.client import EARLIEST, Message
from tests.clients.cluster import EskerCluster
from tests.clients.confluent import Confluent
from tests.ports import free_port
from tests.raft.driver.client import Client as Wire
from tests.waiting import wait_until

FIRST, SECOND = 101, 102
FETCH_BY_NAME = 11
METRICS = "esker.metrics.listener"
NOT_LEADER_OR_FOLLOWER = 6
SETTINGS = {
    "initial.broker.registration.timeout.ms": "60000",
    "metadata.max.retention.bytes": "1",
}
PATIENT = "registration.timeout.ms=90000"


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EskerCluster]:
    """Two brokers; every test leaves both running and ready, and all of the quorum."""
    own = {SECOND: {METRICS: f"127.0.0.1:{free_port()}"}}
    home = tmp_path_factory.mktemp("brokers")
    with EskerCluster(home, settings=SETTINGS, settings_of=own) as running:
        running.start()
        yield running


def lives(cluster: EskerCluster, node: int) -> list[str]:
    """How often a broker was ready: its lines on standard output."""
    place = f"Broker {node} is ready at 127.0.0.1:{cluster.ports[node]}"
    return [line for line in cluster.output(node).splitlines() if line == place]


def wait_until_ready_again(cluster: EskerCluster, node: int, before: int) -> None:
    def ready() -> bool:
        cluster.check_alive()
        return len(lives(cluster, node)) > before

    wait_until(ready, f"broker {node} is ready for the {before + 1}th time")


def round_trip(cluster: EskerCluster, topic: str, count: int = 20) -> None:
    """Through whichever brokers the topic's partitions have."""
    with Confluent(cluster.bootstrap) as client:
        messages = [Message(f"{topic} {number}".encode()) for number in range(count)]
        client.send(topic, messages)
        with client.follow(topic, 0, EARLIEST) as reader:
            values = [read.value for read in reader.read(count)]
    assert values == [message.value for message in messages]


def fetch_error(cluster: EskerCluster, topic: str) -> int:
    """What the first broker answers to a Fetch of a topic's first record."""
    of_topic = FetchRequest.FetchTopic
    partition = of_topic.FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1 << 20)
    request = FetchRequest(
        max_wait_ms=0,
        min_bytes=0,
        topics=(of_topic(topic=topic, partitions=(partition,)),),
    )
    with Wire("127.0.0.1", cluster.ports[FIRST]) as wire:
        answer = wire.ask(request, FetchResponse, FETCH_BY_NAME)
    found = answer.responses[0].partitions[0]
    assert found.error_code or found.records, "neither an error nor the record"
    return found.error_code


def test_a_ready_broker_prints_its_addresses(cluster: EskerCluster) -> None:
    for broker in cluster.broker_ids:
        starts = cluster.output(broker).count("listening=no")
        assert len(lives(cluster, broker)) == starts > 0, cluster.output(broker)
    round_trip(cluster, "first")


def test_a_broker_exports_each_metric_once_on_its_metrics_page(cluster: EskerCluster) -> None:
    round_trip(cluster, "measured")
    (place,) = re.findall(rf"{METRICS}=(.*)", cluster.properties(SECOND).read_text())

    def healthy() -> bool:
        """503 until a read barrier has succeeded lately."""
        with contextlib.suppress(HTTPError), urlopen(f"http://{place}/health") as health:
            return bool(json.load(health)["healthy"])
        return False

    def families_of_an_unfenced_broker() -> list[Metric] | None:
        """On a busy machine a heartbeat may come too late; the next one unfences the broker."""
        with urlopen(f"http://{place}/metrics") as page:
            families = list(text_string_to_metric_families(page.read().decode()))
        fenced = {sample.name: sample.value for family in families for sample in family.samples}
        return None if fenced["esker_broker_fenced"] else families

    wait_until(healthy, "the broker says that it is healthy")
    families = wait_until(families_of_an_unfenced_broker, "the broker is unfenced")
    names = [family.name for family in families]
    assert len(names) == len(set(names)), [name for name in names if names.count(name) > 1]
    samples = {
        (sample.name, *sorted(sample.labels.items())): sample.value
        for family in families
        for sample in family.samples
    }
    assert samples["esker_broker_epoch",] > 0
    asked = ("api", "DescribeClusterRequest"), ("listener", "PLAINTEXT")
    assert samples["esker_broker_requests_total", *asked] > 0, "the fixture has asked each broker"
    assert (
        samples["kafka_server_raft_metrics_high_watermark", ("group", "__cluster_metadata-0")] > 0
    )


def test_metadata_does_not_name_a_broker_that_was_stopped(cluster: EskerCluster) -> None:
    before = len(lives(cluster, FIRST))
    began = time.monotonic()
    cluster.stop(FIRST)  # in time, exit code 0
    assert "stopped=clean" in cluster.output(FIRST)
    assert cluster.knows(SECOND) == {SECOND}, "clients are sent elsewhere before it ends"
    assert time.monotonic() - began < 30
    round_trip(cluster, "while-it-is-away")
    cluster.launch(FIRST)
    wait_until_ready_again(cluster, FIRST, before)
    cluster.wait_until_ready()


def test_a_killed_broker_restarts_before_its_session_expires(
    cluster: EskerCluster,
) -> None:
    before = len(lives(cluster, FIRST))
    cluster.kill(FIRST)
    cluster.launch(FIRST)
    wait_until_ready_again(cluster, FIRST, before)
    cluster.wait_until_ready()
    round_trip(cluster, "after-a-kill")


def test_a_broker_with_a_lost_disk_serves_again_once_its_directory_is_formatted(
    cluster: EskerCluster,
) -> None:
    """By then the logs begin at their checkpoints: it has those fetched."""
    before = len(lives(cluster, SECOND))
    cluster.kill(SECOND)
    at = ",".join(f"{host}:{port}" for host, port in cluster.controllers)
    for group in ("__cluster_metadata-0", "__diskless-metadata-0"):
        cluster._esker("snapshot", "take", "--bootstrap-controller", at, "--group", group)
    cluster.wipe(SECOND)
    cluster.launch(SECOND)
    wait_until_ready_again(cluster, SECOND, before)
    cluster.wait_until_ready()
    assert cluster.output(SECOND).count("action=fetched_snapshot") >= 2
    round_trip(cluster, "after-a-loss")


def test_brokers_serve_clients_after_the_quorums_leader_is_killed(cluster: EskerCluster) -> None:
    round_trip(cluster, "before-the-leader-died")
    for node in cluster.quorum_ids:  # each in turn: one of them led each log
        cluster.kill(node)
        round_trip(cluster, f"without-{node}")
        cluster.launch(node)
    for node in cluster.quorum_ids:
        wait_until(lambda node=node: cluster.listens(node), f"node {node} is back")  # type: ignore[misc]
    cluster.check_alive()


def leader_of(cluster: EskerCluster, group: str) -> int:
    """As the nodes' own lines tell it: who became leader last."""
    epochs = {
        int(epoch): node
        for node in cluster.quorum_ids
        for epoch in re.findall(rf"group={group} role=leader epoch=(\d+)", cluster.output(node))
    }
    return epochs[max(epochs)]


@pytest.mark.parametrize("group", ["__cluster_metadata-0", "__diskless-metadata-0"])
def test_a_paused_quorum_leader_delays_clients_no_longer_than_an_election_takes(
    cluster: EskerCluster, group: str
) -> None:
    """Its connections stay open, and what brokers asked it is never answered.

    How long that may take depends on how busy this machine is: so the same is done before.
    """
    with Confluent(cluster.bootstrap) as client:
        began = time.monotonic()
        client.create_topic(f"before-{group}", 1, {})
        round_trip(cluster, f"before-{group}")
        usual = time.monotonic() - began
        node = leader_of(cluster, group)
        cluster.signal(node, signal.SIGSTOP)
        try:
            began = time.monotonic()
            client.send(f"before-{group}", [Message(b"one more")])
            sent = time.monotonic()
            client.create_topic(f"while-{group}", 1, {})
            created = time.monotonic()
        finally:
            cluster.signal(node, signal.SIGCONT)
        took = (
            f"record {sent - began:.1f} s, topic {created - sent:.1f} s; both {usual:.1f} s before"
        )
        assert sent - began < 4 + 8 * usual, f"without {node}: {took}"
        assert created - sent < 7 + 8 * usual, f"without {node}: {took}"


def test_the_controller_refuses_a_second_broker_with_the_same_id_while_the_first_serves(
    cluster: EskerCluster, tmp_path: Path
) -> None:
    before = len(lives(cluster, FIRST))
    text = cluster.properties(FIRST).read_text()
    text = text.replace(str(cluster.log_dir(FIRST)), str(tmp_path / "twin"))
    text = text.replace(f"127.0.0.1:{cluster.ports[FIRST]}", f"127.0.0.1:{free_port()}")
    assert "registration.timeout.ms=60000" in text
    text = text.replace("registration.timeout.ms=60000", "registration.timeout.ms=8000")
    with EskerCluster(tmp_path, brokers=0, quorum=()) as twin:
        twin.cluster_id = cluster.cluster_id
        twin.properties(FIRST).write_text(text)
        twin.format(FIRST)
        twin.launch(FIRST)
        assert twin.processes.pop(FIRST).wait(90) == 1
        assert "another live broker has this id" in twin.output(FIRST).splitlines()[-1]
    cluster.wait_until_ready()  # it may have been fenced for a moment, for it was slow
    assert len(lives(cluster, FIRST)) == before


def test_a_broker_that_finds_no_quorum_logs_that_it_waits_and_then_exits(tmp_path: Path) -> None:
    """And one that loses its quorum serves what it knows, for a time.

    Source: docs/design/broker.md#staleness-is-bounded.
    """
    settings = SETTINGS | {
        "initial.broker.registration.timeout.ms": "3000",
        "diskless.file.delete.delay.ms": "12000",
    }
    with EskerCluster(tmp_path, brokers=1, settings=settings) as cluster:
        cluster.launch(FIRST)
        assert cluster.processes.pop(FIRST).wait(90) == 1
        lines = cluster.output(FIRST).splitlines()
        assert any("waits_for='__cluster_metadata-0'" in line for line in lines), lines
        assert lines[-1] == (
            "esker: broker 101 read no __cluster_metadata-0 within 3000 ms "
            "(initial.broker.registration.timeout.ms): is a majority of "
            f"controller.quorum.voters running, and of cluster {cluster.cluster_id}?"
        )
        path = cluster.properties(FIRST)
        path.write_text(path.read_text().replace("registration.timeout.ms=3000", PATIENT))
        cluster.launch(FIRST)
        cluster.launch(1, 2)  # a majority is enough, whenever it comes
        wait_until_ready_again(cluster, FIRST, 0)
        round_trip(cluster, "kept")
        cluster.kill(1, 2)
        assert fetch_error(cluster, "kept") == 0, "what it knows, it goes on serving"
        wait_until(
            lambda: fetch_error(cluster, "kept") == NOT_LEADER_OR_FOLLOWER,
            "its metadata is older than half of the deletion delay",
        )
        began = time.monotonic()
        cluster.stop(FIRST)  # nobody to say farewell to
        assert time.monotonic() - began < 40


def test_a_broker_that_is_interrupted_during_its_start_exits_with_code_0(tmp_path: Path) -> None:
    with EskerCluster(tmp_path, brokers=1, settings=SETTINGS) as cluster:
        cluster.launch(FIRST)
        wait_until(lambda: "listening=no" in cluster.output(FIRST), "its logs are open")
        cluster.signal(FIRST, signal.SIGINT)
        assert cluster.processes.pop(FIRST).wait(60) == 0
        assert "Traceback" not in cluster.output(FIRST)


def test_one_process_runs_both_the_controller_role_and_the_broker_role(tmp_path: Path) -> None:
    with EskerCluster(tmp_path, brokers=0, quorum=(1,)) as cluster:
        port = free_port()
        path, own = cluster.properties(1), cluster.ports[1]
        text = path.read_text().replace("roles=controller", "roles=broker,controller")
        listeners = f"CONTROLLER://127.0.0.1:{own}"
        path.write_text(text.replace(listeners, f"{listeners},PLAINTEXT://127.0.0.1:{port}"))
        cluster.ports[1] = port
        for life in range(2):  # and once more, on what it has kept
            cluster.launch(1)
            wait_until_ready_again(cluster, 1, life)
            with Confluent(f"127.0.0.1:{port}") as client:
                client.send("own", [Message(b"value")])
                with client.follow("own", 0, EARLIEST) as reader:
                    assert reader.read(1)[0].value == b"value"
            cluster.stop(1)
        assert "Traceback" not in cluster.output(1)


def test_a_node_reports_an_unusable_store_in_one_line_that_names_the_setting(
    tmp_path: Path,
) -> None:
    with EskerCluster(tmp_path, brokers=1) as cluster:
        cluster.store.write_text("no directory")
        cluster.launch(FIRST)
        assert cluster.processes.pop(FIRST).wait(90) == 1
        said = f"esker: esker.storage.directory.path: {cluster.store}: File exists"
        assert cluster.output(FIRST).splitlines() == [said]
