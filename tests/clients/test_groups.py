"""Real consumers in groups, while what they rest on dies.

One story, told once, and then asked about. Three libraries have a group of two each, and one broker
acts for all three; besides, a group of static members, and one whose member dies. The leader of the
log of groups is killed, then the broker, which comes back. A producer writes all the while.

Source: docs/design/groups.md; invariant 9 (docs/design/invariants.md).
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any, Final

import pytest
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition

from coordinator.rendezvous import group_broker
from esker.client.quorum_admin import describe_quorum
from esker.settings.values import Endpoint
from raft.net import run
from tests.clients.cluster import EskerCluster
from tests.clients.confluent import Confluent
from tests.processes import ROOT
from tests.waiting import DEADLINE_S, wait_until

LIBRARIES: Final = ("confluent", "aiokafka", "kafka-python")
TOPIC: Final = "orders"
PARTITIONS: Final = 4
PAUSE_S: Final = 0.02  # between two messages
SOME: Final = 3  # commits of every member, to call it progress

Place = tuple[int, int, str]
"""Partition, offset, value."""


class Process:
    """`tests.clients.group_member`, and all that it has said."""

    def __init__(self, home: Path, library: str, bootstrap: str, group: str, *words: str) -> None:
        self.events: list[dict[str, Any]] = []
        with (home / f"{group}-{words[0]}.err").open("ab") as errors:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.clients.group_member", library, bootstrap, group,
                 TOPIC, *words],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, cwd=ROOT,
            )  # fmt: skip
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self.events.append(json.loads(line))

    def of(self, what: str, who: str | None = None) -> list[dict[str, Any]]:
        """Its events of one kind."""
        return [e for e in self.events if e["what"] == what and who in (None, e["who"])]

    def finish(self) -> None:
        """Let its members leave."""
        assert self._process.stdin is not None
        self._process.stdin.close()

    def end(self) -> None:
        """kill -9, if it still lives."""
        self._process.kill()
        self._process.wait()
        self._reader.join()
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            pipe.close()

    def wait(self) -> None:
        self._process.wait(DEADLINE_S)
        self._reader.join()


@dataclass
class Group:
    """Its processes, one after the other or at once, and where the story has marked them."""

    name: str
    processes: list[Process]
    settled: dict[int, int] = field(default_factory=dict)  # events of each, once all were at work
    ended: dict[int, int] = field(default_factory=dict)  # and before they were told to leave

    def mark(self, where: dict[int, int]) -> None:
        where.update({at: len(process.events) for at, process in enumerate(self.processes)})

    def read(self) -> list[Place]:
        return [tuple(at) for p in self.processes for e in p.of("read") for at in e["at"]]

    def committed(self) -> dict[int, int]:
        """The highest offset that was acknowledged, by partition."""
        found: dict[int, int] = defaultdict(int)
        for process in self.processes:
            for event in process.of("committed"):
                for partition, offset in event["offsets"].items():
                    found[int(partition)] = max(found[int(partition)], offset)
        return found

    def meanwhile(self) -> list[dict[str, Any]]:
        """What happened between the marks, but for reading, committing and complaining."""
        usual = ("read", "committed", "retried", "complained")
        return [
            event
            for at, process in enumerate(self.processes)
            if at in self.settled
            for event in process.events[self.settled[at] : self.ended[at]]
            if event["what"] not in usual
        ]


class Writer:
    """A producer that writes one small message after the other, round the partitions."""

    def __init__(self, bootstrap: str) -> None:
        self.written: list[Place] = []
        self.failed: list[str] = []
        self._stop = threading.Event()
        self._producer = Producer(
            {
                "bootstrap.servers": bootstrap, "enable.idempotence": True, "log_level": 0,
                "linger.ms": 0, "reconnect.backoff.max.ms": 500,
                "topic.metadata.refresh.interval.ms": 1_000,
            }
        )  # fmt: skip
        self._thread = threading.Thread(target=self._write)
        self._thread.start()

    def _write(self) -> None:
        for number in count():
            if self._stop.is_set():
                break
            value = f"v{number}".encode()
            self._producer.produce(
                TOPIC, value, partition=number % PARTITIONS, on_delivery=self._told
            )
            self._producer.poll(PAUSE_S)
        self._producer.flush(DEADLINE_S)

    def _told(self, error: Any, message: Any) -> None:
        if error is not None:
            self.failed.append(str(error))
        else:
            place = (message.partition(), message.offset(), message.value().decode())
            self.written.append(place)

    def stop(self) -> None:
        self._stop.set()
        self._thread.join()

    @property
    def end_offsets(self) -> dict[int, int]:
        ends: dict[int, int] = {}
        for partition, offset, _ in self.written:
            ends[partition] = max(ends.get(partition, 0), offset + 1)
        return ends


@dataclass
class Told:
    """What is left when the story is over."""

    groups: dict[str, Group]
    writer: Writer
    resumed: dict[str, dict[int, int]]  # by group: where a member that comes later goes on


def named(kind: str, broker: int, brokers: tuple[int, ...]) -> str:
    """The name of a group that this broker acts for."""
    names = (f"{kind}-{number}" for number in count())
    return next(name for name in names if group_broker(name, brokers) == broker)


def progress(groups: list[Group], cluster: EskerCluster) -> None:
    """Wait until all living members of these groups have committed some more."""
    before = [[len(process.of("committed")) for process in group.processes] for group in groups]
    members = [
        [len({event["who"] for event in process.of("assigned")}) for process in group.processes]
        for group in groups
    ]

    def some_more() -> bool:
        cluster.check_alive()
        return all(
            len(process.of("committed")) >= had + SOME * many
            for group, all_had, all_many in zip(groups, before, members, strict=True)
            for process, had, many in zip(group.processes, all_had, all_many, strict=True)
        )

    wait_until(some_more, f"everybody commits on: {[group.name for group in groups]}")


def owned(group: Group) -> dict[str, set[int]]:
    """The partitions of each member, as it was told of them. Eagerly or piece by piece."""
    held: dict[str, set[int]] = defaultdict(set)
    for process in group.processes:
        for event in process.events:
            if event["what"] == "assigned":
                held[event["who"]] |= set(event["partitions"])
            elif event["what"] in ("revoked", "lost"):
                held[event["who"]] -= set(event["partitions"])
    return held


def settle(groups: list[Group]) -> None:
    """Wait until two members of each share all partitions, and have committed."""

    def shared(group: Group) -> bool:
        held = [partitions for partitions in owned(group).values() if partitions]
        committed = {e["who"] for p in group.processes for e in p.of("committed")}
        all_held = sorted(partition for partitions in held for partition in partitions)
        return all_held == [*range(PARTITIONS)] and len(held) == len(committed) == 2

    for group in groups:
        wait_until(lambda group=group: shared(group), f"{group.name} is shared")  # type: ignore[misc]
        group.mark(group.settled)


def kill_leader_of_groups(cluster: EskerCluster) -> int:
    bootstrap = tuple(Endpoint(*address) for address in cluster.controllers)
    described = run(describe_quorum(bootstrap, "__consumer_offsets", 0, timeout_ms=20_000))
    leader = int(described.partition.leader_id)
    cluster.kill(leader)
    return leader


def begin(cluster: EskerCluster, group: str) -> None:
    """Commit, for nobody, that the group begins at the beginning.

    So no member asks for the earliest offset: if librdkafka loses a partition while it does, it
    reads that from the earliest later on, whatever is committed (docs/clients.md).
    """
    consumer = Consumer({"bootstrap.servers": cluster.bootstrap, "group.id": group})

    def begun() -> bool:
        places = [TopicPartition(TOPIC, partition, 0) for partition in range(PARTITIONS)]
        try:
            consumer.commit(offsets=places, asynchronous=False)
        except KafkaException:
            return False
        return True

    try:
        wait_until(begun, f"{group} begins at 0")
    finally:
        consumer.close()


def resume(cluster: EskerCluster, group: str) -> dict[int, int]:
    """The committed offsets, as a consumer that comes later asks for them."""
    consumer = Consumer({"bootstrap.servers": cluster.bootstrap, "group.id": group})
    try:
        places = [TopicPartition(TOPIC, partition) for partition in range(PARTITIONS)]
        return {one.partition: one.offset for one in consumer.committed(places, timeout=DEADLINE_S)}
    finally:
        consumer.close()


def tell(cluster: EskerCluster, started: list[Process]) -> Told:
    """The story. Whatever it starts is in `started`."""
    acts, other = cluster.broker_ids
    Confluent(cluster.bootstrap).create_topic(TOPIC, PARTITIONS, {})

    def start(group: str, library: str, *words: str) -> Process:
        process = Process(cluster.home, library, cluster.bootstrap, group, *words)
        started.append(process)
        return process

    def make(kind: str, broker: int, starts: Callable[[str], list[Process]]) -> Group:
        name = named(kind, broker, cluster.broker_ids)
        begin(cluster, name)
        return Group(name, starts(name))

    static, mortal = ("--static", "--cooperative"), ("--session-ms", "6000")
    groups = {
        library: make(library, acts, lambda name, lib=library: [start(name, lib, "a", "b")])  # type: ignore[misc]
        for library in LIBRARIES
    }
    groups["static"] = make(
        "static", other, lambda name: [start(name, "confluent", who, *static) for who in "ab"]
    )
    groups["mortal"] = make(
        "mortal", other, lambda name: [start(name, "confluent", who, *mortal) for who in "ab"]
    )
    writer = Writer(cluster.bootstrap)
    try:
        settle(list(groups.values()))
        moved = [groups[library] for library in LIBRARIES]
        groups["mortal"].processes[0].end()
        leader = kill_leader_of_groups(cluster)
        progress([*moved, groups["static"]], cluster)
        cluster.launch(leader)

        restarted = groups["static"]
        restarted.processes[0].end()
        restarted.processes.append(start(restarted.name, "confluent", "a", *static))
        wait_until(lambda: len(restarted.processes[2].of("committed")) >= SOME, "it is back")

        cluster.kill(acts)
        progress(moved, cluster)
        survivor = groups["mortal"].processes[1]
        wait_until(
            lambda: {p for e in survivor.of("read") for p, *_ in e["at"]} == {*range(PARTITIONS)},
            "the survivor reads everything",
        )
        cluster.launch(acts)
        cluster.wait_until_ready()
        progress(moved, cluster)
    finally:
        writer.stop()
    ends = writer.end_offsets
    for group in groups.values():
        wait_until(
            lambda group=group: group.committed() == ends,  # type: ignore[misc]
            f"{group.name} is level with {ends}",
        )
        group.mark(group.ended)
    for process in started:
        process.finish()
    for process in started:
        process.wait()
    resumed = {group.name: resume(cluster, group.name) for group in groups.values()}
    return Told(groups, writer, resumed)


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Told]:
    settings = {"broker.session.timeout.ms": "3000", "broker.heartbeat.interval.ms": "500"}
    started: list[Process] = []
    try:
        with EskerCluster(tmp_path_factory.mktemp("groups"), settings=settings) as cluster:
            cluster.start()
            yield tell(cluster, started)
            cluster.check_alive()
    finally:
        for process in started:
            process.end()


@pytest.mark.parametrize("library", LIBRARIES)
def test_killing_the_groups_log_leader_and_the_coordinating_broker_causes_no_rebalance(
    told: Told, library: str
) -> None:
    assert told.groups[library].meanwhile() == []


@pytest.mark.parametrize("library", LIBRARIES)
def test_consumer_group_members_read_every_record_once_and_in_order(
    told: Told, library: str
) -> None:
    read = told.groups[library].read()
    assert sorted(read) == sorted(told.writer.written)
    for partition in range(PARTITIONS):
        offsets = [offset for one, offset, _ in read if one == partition]
        assert offsets == sorted(offsets), f"partition {partition}"


def test_a_static_member_that_returns_within_its_session_causes_no_rebalance(told: Told) -> None:
    """KIP-345, with cooperative rebalancing (KIP-429)."""
    group = told.groups["static"]
    before, _, after = group.processes
    (assigned,) = after.of("assigned")
    assert set(assigned["partitions"]) == owned(Group(group.name, [before]))["a"]
    assert group.meanwhile() == []


def test_a_killed_group_member_is_removed_and_no_record_is_skipped(told: Told) -> None:
    group = told.groups["mortal"]
    assert {tuple(place) for place in group.read()} == set(told.writer.written)
    survivor = owned(Group(group.name, group.processes[1:2]))
    assert [event["what"] for event in group.processes[1].of("error")] == []
    assert set(survivor) == {"b"}


def test_a_new_group_member_resumes_at_the_last_committed_offset(told: Told) -> None:
    assert not told.writer.failed
    for group in told.groups.values():
        assert told.resumed[group.name] == told.writer.end_offsets, group.name


SHORT_SESSION: Final = ("--session-ms", "6000", "--heartbeat-ms", "2000")
DEATHS: Final = 5


@pytest.mark.soak
def test_group_members_with_a_session_of_6_s_stay_in_their_group_when_their_broker_is_killed(
    tmp_path: Path,
) -> None:
    """Kill the coordinating broker at five phases of the heartbeats, with default settings."""
    processes: list[Process] = []
    groups: list[Group] = []
    try:
        with EskerCluster(tmp_path) as cluster:
            cluster.start()
            acts = cluster.broker_ids[0]
            Confluent(cluster.bootstrap).create_topic(TOPIC, PARTITIONS, {})
            for library in LIBRARIES:
                name = named(library, acts, cluster.broker_ids)
                begin(cluster, name)
                words = ("a", "b", *SHORT_SESSION)
                processes.append(Process(cluster.home, library, cluster.bootstrap, name, *words))
                groups.append(Group(name, processes[-1:]))
            writer = Writer(cluster.bootstrap)
            try:
                settle(groups)
                for death in range(DEATHS):
                    time.sleep(6 + death * 2 / DEATHS)  # the phase of the members' heartbeats
                    cluster.kill(acts)
                    progress(groups, cluster)
                    cluster.launch(acts)
                    cluster.wait_until_ready()
                    progress(groups, cluster)
            finally:
                writer.stop()
            for group in groups:
                group.mark(group.ended)
    finally:
        for process in processes:
            process.end()
    assert {group.name: group.meanwhile() for group in groups} == {g.name: [] for g in groups}
