"""Brokers and the quorum below them, spoiled in every way while clients work.

Processes are killed and paused; links are cut, held and slowed; disks fill up and lose what was not
flushed; wall clocks are wrong; the object store refuses, stalls, lies and fills up.

Faults are as in `nemesis.nemesis`: each has had its effect before it is healed, nothing waits for a
time and hopes, and the plan comes from a seed.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import product
from pathlib import Path
from random import Random
from typing import Final

from diskless.stores.faults import Fault, FaultRule
from esker.client.quorum_admin import AdminError, describe_quorum
from esker.settings.values import Endpoint
from raft.net import run
from records.batch import iter_batches, iter_records
from records.rpc.fetch import FetchRequest, FetchResponse
from tests.clients.bad_stores import spoiled, spoiled_by
from tests.clients.client import Refused
from tests.clients.cluster import EskerCluster
from tests.clients.confluent import Confluent
from tests.nemesis import compacted_traffic
from tests.nemesis.broker_cluster import CLIENTS, LAST_BYTES, STORE_BYTES, BrokerCluster
from tests.nemesis.compacted_traffic import kill_compactor
from tests.nemesis.proxy import Links
from tests.nemesis.record_history import Value
from tests.nemesis.record_traffic import REQUEST_TIMEOUT_MS, Traffic, end_offset
from tests.raft.driver.client import Client as Wire
from tests.raft.driver.client import ClientError
from tests.waiting import Deadline, wait_until

DISKLESS_METADATA: Final = "__diskless-metadata"
CLUSTER_METADATA: Final = "__cluster_metadata"
SEGMENTS: Final = "segments"  # of a cluster's home: the first broker's local segments, if any
SESSION_MS: Final = 1_500
SETTINGS: Final = {
    "broker.session.timeout.ms": str(SESSION_MS),
    "broker.heartbeat.interval.ms": "200",
    "diskless.append.commit.interval.ms": "50",  # so that a kill meets what is buffered
}
MINUTES_A_DAY: Final = 24 * 60
BROKER_SKEWS: Final = (-9 * MINUTES_A_DAY, -45, 45, 9 * MINUTES_A_DAY)
VOTER_SKEWS: Final = (-9 * MINUTES_A_DAY, -120, 120, 9 * MINUTES_A_DAY)
QUORUM_SKEWS: Final = (-120, 120, 9 * MINUTES_A_DAY)
"""Minutes. Nine days are more than a topic's retention. What all voters believe together while they
are a day behind, and nobody can know better, is left out: docs/design/clocks.md."""

BAD_STORE: Final = (
    FaultRule(fault=Fault.LOST_ANSWER, operations=frozenset({"upload"}), probability=0.1),
    FaultRule(fault=Fault.ERROR, probability=0.1),
    FaultRule(fault=Fault.THROTTLED, probability=0.05, delay_s=0.2),
    FaultRule(fault=Fault.SLOW, probability=0.2, delay_s=0.3),
)
FULL: Final = "make room"
"""In what a node says at its end if its disk is full, be it the log or SQLite that met it."""
SLOW_BYTES_PER_S: Final = 2_000
CALM: Final = 200  # records acknowledged between two faults
BLINK_S: Final = 0.5
FETCH_VERSION: Final = 11
FETCH_BYTES: Final = 4 * 1024 * 1024


class BrokerNemesis:
    """Faults against everything that runs."""

    def __init__(self, cluster: EskerCluster, traffic: Traffic, random: Random) -> None:
        self.faults = 0
        self._cluster = cluster
        self._traffic = traffic
        self._random = random
        self._began = time.monotonic()

    def run(self, faults: Sequence[str]) -> None:
        """Each of these faults, healed before the next begins."""
        for name in faults:
            self.wait_for_records(CALM)
            began = time.monotonic()
            fault: Callable[[], None] = getattr(self, name)
            fault()
            self.faults += 1
            ended = time.monotonic()
            self._cluster.wait_until_ready()
            self.wait_for_records()
            healed_s = time.monotonic() - ended
            self._say(f"{name} lasted {ended - began:.2f} s, all was well {healed_s:.2f} s after")
        self.wait_for_records(CALM)

    def wait_for_records(self, count: int = 1) -> None:
        """Until so many records are acknowledged that are sent from now on."""
        traffic = self._traffic
        before = traffic.acknowledged + traffic.outstanding + count
        wait_until(
            lambda: traffic.acknowledged > before or traffic.failed is not None,
            "records are acknowledged after a fault",
            state=lambda: f"{traffic.acknowledged} of {before}, {traffic.outstanding} outstanding",
        )
        traffic.check_alive()

    # --- brokers ------------------------------------------------------------------------------

    def kill_broker(self) -> None:
        """With batches buffered, uploaded and committed just then; the other one takes over."""
        victim = self._random.choice(self._cluster.broker_ids)
        self._cluster.kill(victim)
        self.wait_for_records()
        self._cluster.launch(victim)

    def blink_broker(self) -> None:
        """Dead and back before anybody has missed it."""
        victim = self._random.choice(self._cluster.broker_ids)
        self._cluster.kill(victim)
        self._cluster.launch(victim)

    def stop_broker(self) -> None:
        """An orderly end: it writes what it has, and tells that it goes."""
        victim = self._random.choice(self._cluster.broker_ids)
        self._cluster.stop(victim)
        self.wait_for_records()
        self._cluster.launch(victim)

    def wipe_broker(self) -> None:
        """It keeps nothing that matters."""
        victim = self._random.choice(self._cluster.broker_ids)
        self._cluster.kill(victim)
        self._cluster.wipe(victim)
        self._cluster.launch(victim)

    def pause_broker(self) -> None:
        """Longer than its session and its clients' patience; it wakes up fenced."""
        victim = self._random.choice(self._cluster.broker_ids)
        with self._paused(victim):
            self._wait_until_fenced(victim)
            self.wait_for_records(CALM)

    def freeze_broker(self) -> None:
        """A pause shorter than its session."""
        with self._paused(self._random.choice(self._cluster.broker_ids)):
            time.sleep(BLINK_S)  # the fault's length

    def kill_brokers(self) -> None:
        """All of them, at once."""
        self._cluster.kill(*self._cluster.broker_ids)
        self._cluster.launch(*self._cluster.broker_ids)

    # --- merging and compaction (with `rewriting`) ----------------------------------------------

    def kill_compactors(self) -> None:
        """The processes that merge and compact die at odd moments, four times each."""
        for _ in range(4):
            kill_compactor(self._cluster)
            time.sleep(self._random.uniform(0, 0.5))  # and the length of the peace

    def flip_policy(self) -> None:
        """A topic is compacted, then not, and then again, while a broker compacts it."""
        client = Confluent(self._cluster.bootstrap)
        for _ in range(3):
            for policy in ("delete", "compact,delete", "compact"):
                wait_until(
                    lambda policy=policy: _is_altered(client, policy), f"the policy is {policy}"
                )
                self.wait_for_records()

    def damage_segments(self) -> None:
        """Files of local segments are changed, cut off, swapped and deleted under a broker."""
        for _ in range(6):
            files = sorted((self._cluster.home / SEGMENTS).glob("*/*.*"))
            if files:
                self._damage(self._random.choice(files), self._random.choice(files))
            self.wait_for_records()

    def _damage(self, path: Path, other: Path) -> None:
        with contextlib.suppress(FileNotFoundError):  # it was discarded meanwhile
            match self._random.randrange(4):
                case 0:
                    path.unlink()
                case 1:
                    os.truncate(path, self._random.randrange(path.stat().st_size + 1))
                case 2:
                    shutil.copy(other, path.with_suffix(".swapped"))
                    path.with_suffix(".swapped").rename(path)
                case _:
                    with path.open("r+b") as file:
                        file.seek(self._random.randrange(path.stat().st_size + 1))
                        file.write(self._random.randbytes(40))

    # --- the quorum ---------------------------------------------------------------------------

    def kill_coordinator(self) -> None:
        """Who leads the batch coordinator's log."""
        self._kill_and_restart(self._leader(DISKLESS_METADATA))

    def kill_second_coordinator(self) -> None:
        """Who leads the log of the second batch coordinator, where there is one."""
        self._kill_and_restart(self._leader(DISKLESS_METADATA, 1))

    def kill_controller(self) -> None:
        """Who leads the cluster's log: brokers' sessions begin anew."""
        self._kill_and_restart(self._leader(CLUSTER_METADATA))

    def pause_coordinator(self) -> None:
        """It wakes up believing that it still leads."""
        victim = self._leader(DISKLESS_METADATA)
        with self._paused(victim):
            wait_until(
                lambda: self._leader(DISKLESS_METADATA) != victim, "another coordinator leads",
            )  # fmt: skip
            self.wait_for_records()

    def pause_quorum(self) -> None:
        """Nobody commits; brokers go on serving what they know, and hold what they are sent."""
        with self._paused(*self._cluster.quorum_ids):
            time.sleep(BLINK_S)  # the fault's length

    def hold_quorum(self) -> None:
        """So long that producers give up waiting and send again what may yet be committed."""
        with self._paused(*self._cluster.quorum_ids):
            time.sleep(2 * REQUEST_TIMEOUT_MS / 1000)  # the fault's length

    def kill_all(self) -> None:
        """Everything at once, with records under way."""
        self._cluster.kill()
        self._cluster.launch(*self._cluster.ports)

    # --- the network (a BrokerCluster) --------------------------------------------------------

    def cut_broker_off(self) -> None:
        """A broker does not reach the quorum, and clients still reach it, until it is fenced."""
        victim = self._random.choice(self._cluster.broker_ids)
        with self._apart({victim}, self._cluster.quorum_ids, silently=self._random.random() < 0.5):
            self._wait_until_fenced(victim)
            self.wait_for_records(CALM)

    def cut_clients_off(self) -> None:
        """A broker's clients do not reach it; to the cluster it is well, so it keeps its place."""
        victim = self._random.choice(self._cluster.broker_ids)
        with self._apart({CLIENTS}, {victim}, silently=self._random.random() < 0.5):
            time.sleep(BLINK_S)  # the fault's length

    def cut_coordinator_off(self) -> None:
        """The coordinator does not reach the voters, and brokers still reach it."""
        self._split_off(self._leader(DISKLESS_METADATA), DISKLESS_METADATA)

    def cut_controller_off(self) -> None:
        """The active controller does not reach the voters, and brokers still reach it."""
        self._split_off(self._leader(CLUSTER_METADATA), CLUSTER_METADATA)

    def deafen_coordinator(self) -> None:
        """Everybody hears the coordinator, and it hears nobody: not its voters, not the brokers."""
        victim = self._leader(DISKLESS_METADATA)
        links = self._links()
        for other in (*self._cluster.quorum_ids, *self._cluster.broker_ids):
            if other != victim:
                links.hold(other, victim)
        try:
            wait_until(
                lambda: self._leader(DISKLESS_METADATA) != victim, "another coordinator leads"
            )
            self.wait_for_records()
        finally:
            links.heal()

    def flap_broker(self) -> None:
        """A broker's connections to quorum and clients break and come back at odd moments."""
        victim = self._random.choice(self._cluster.broker_ids)
        for _ in range(4):
            with self._apart({victim}, {*self._cluster.quorum_ids, CLIENTS}, silently=False):
                time.sleep(self._random.uniform(0, 0.3))  # the fault's length
            time.sleep(self._random.uniform(0, 0.3))  # and the length of the peace

    def slow_broker(self) -> None:
        """A broker's connections to the quorum drip, in both directions."""
        victim = self._random.choice(self._cluster.broker_ids)
        links = self._links()
        for node in self._cluster.quorum_ids:
            links.drip(victim, node, SLOW_BYTES_PER_S)
            links.drip(node, victim, SLOW_BYTES_PER_S)
        try:
            time.sleep(BLINK_S)  # the fault's length
        finally:
            links.heal()

    # --- disks (a BrokerCluster with disks) ---------------------------------------------------

    def fill_coordinator_disk(self) -> None:
        """The coordinator's disk is full: it ends by itself, and returns once there is room."""
        victim = self._leader(DISKLESS_METADATA)
        ballast = self._broker_cluster.fill_disk(victim)
        self._broker_cluster.wait_for_end(victim, FULL)
        self.wait_for_records(CALM)
        ballast.unlink()
        self._launch_voters(victim)

    def fail_power(self) -> None:
        """Voters, one to all of them, lose what their disks had not flushed."""
        victims = self._random.sample(
            self._cluster.quorum_ids, self._random.randint(1, len(self._cluster.quorum_ids))
        )
        self._fail_power(victims)
        self._launch_voters(*victims)

    def fail_all_power(self) -> None:
        """All voters lose what their disks had not flushed, and all brokers die."""
        self._cluster.kill(*self._cluster.broker_ids)
        self._fail_power(self._cluster.quorum_ids)
        self._cluster.launch(*self._cluster.ports)

    def fill_store(self) -> None:
        """The object store's disk is full, until producers have had errors."""
        disks, store = self._broker_cluster.disks, self._cluster.store
        assert disks is not None
        disks.resize(store, disks.used_bytes(store) + LAST_BYTES)
        try:
            time.sleep(2 * REQUEST_TIMEOUT_MS / 1000)  # the fault's length
        finally:
            disks.resize(store, STORE_BYTES)

    # --- clocks (a BrokerCluster) -------------------------------------------------------------

    def skew_broker(self) -> None:
        """A broker's wall clock is wrong."""
        self._skew(self._random.choice(BROKER_SKEWS), self._random.choice(self._cluster.broker_ids))

    def skew_voter(self) -> None:
        """One voter's wall clock is wrong, and it leads if an election has it so."""
        victim, other = self._random.sample(self._cluster.quorum_ids, 2)
        self._skew(self._random.choice(VOTER_SKEWS), victim, also=other)

    def skew_quorum(self) -> None:
        """All voters start anew with one wrong wall clock, and later with the right one."""
        self._skew(self._random.choice(QUORUM_SKEWS), *self._cluster.quorum_ids)

    # --- the store (with `CLASS_NAME`) --------------------------------------------------------

    def refuse_uploads(self) -> None:
        """The object store takes no object for a while."""
        with spoiled(self._cluster.store, Fault.ERROR, "upload"):
            time.sleep(2 * REQUEST_TIMEOUT_MS / 1000)  # the fault's length

    def stall_store(self) -> None:
        """The object store is slow enough that requests time out."""
        delay_s = 1.5 * REQUEST_TIMEOUT_MS / 1000
        with spoiled(self._cluster.store, Fault.SLOW, "upload", "fetch", delay_s=delay_s):
            time.sleep(2 * delay_s)  # the fault's length

    def lie_about_uploads(self) -> None:
        """Uploads that happened are said to have failed; others are slow, throttled or fail."""
        with spoiled_by(self._cluster.store, *BAD_STORE):
            self.wait_for_records(CALM)

    def damage_fetches(self) -> None:
        """Every other read from the object store has a wrong byte."""
        with spoiled(self._cluster.store, Fault.DAMAGED, "fetch", probability=0.5):
            self.wait_for_records(CALM)

    # --- helpers ------------------------------------------------------------------------------

    @property
    def _broker_cluster(self) -> BrokerCluster:
        assert isinstance(self._cluster, BrokerCluster)
        return self._cluster

    def _links(self) -> Links:
        return self._broker_cluster.links

    @contextmanager
    def _apart(
        self, some: Iterable[int], others: Iterable[int], *, silently: bool
    ) -> Iterator[None]:
        """Let no traffic pass between two sets of nodes: connections are held, or reset."""
        links = self._links()
        for a, b in product(some, others):
            if silently:
                links.hold(a, b)
                links.hold(b, a)
            else:
                links.cut(a, b)
        try:
            yield
        finally:
            links.heal()

    def _split_off(self, victim: int, topic: str) -> None:
        others = [node for node in self._cluster.quorum_ids if node != victim]
        with self._apart({victim}, others, silently=self._random.random() < 0.5):
            wait_until(lambda: self._leader(topic) != victim, "another voter leads")
            self.wait_for_records(CALM)

    def _wait_until_fenced(self, victim: int) -> None:
        (other, *_) = [one for one in self._cluster.broker_ids if one != victim]
        wait_until(lambda: victim not in self._cluster.knows(other), f"broker {victim} is fenced")

    def _fail_power(self, victims: Sequence[int]) -> None:
        for node in victims:
            self._cluster.signal(node, signal.SIGSTOP)
        self._broker_cluster.lose_power(victims)

    def _launch_voters(self, *nodes: int) -> None:
        self._cluster.launch(*nodes)
        for node in nodes:
            wait_until(lambda node=node: self._cluster.listens(node), f"node {node} listens")  # type: ignore[misc]

    def _skew(self, minutes: float, *victims: int, also: int | None = None) -> None:
        """Let nodes run with a wrong clock, and then with the right one.

        Args:  also: a node that is started anew after them, so that another one leads.
        """
        self._cluster.kill(*victims)
        self._broker_cluster.launch_skewed(minutes, *victims)
        for node in victims:
            wait_until(lambda node=node: self._cluster.listens(node), f"node {node} listens")  # type: ignore[misc]
        if also is not None:
            self._cluster.kill(also)
            self._launch_voters(also)
        self.wait_for_records(CALM)
        self._cluster.kill(*victims)
        self._launch_voters(*victims)

    def _leader(self, topic: str, partition: int = 0) -> int:
        bootstrap = tuple(Endpoint(*address) for address in self._cluster.controllers)
        found: list[int] = []

        def told() -> bool:
            with contextlib.suppress(AdminError):
                answer = run(describe_quorum(bootstrap, topic, partition, timeout_ms=1_000))
                found[:] = [answer.partition.leader_id]
            return bool(found) and found[0] in self._cluster.quorum_ids

        wait_until(told, f"{topic}-{partition} has a leader")
        return found[0]

    def _kill_and_restart(self, victim: int) -> None:
        self._cluster.kill(victim)
        self.wait_for_records()  # by the two others
        self._launch_voters(victim)

    @contextmanager
    def _paused(self, *nodes: int) -> Iterator[None]:
        for node in nodes:
            self._cluster.signal(node, signal.SIGSTOP)
        try:
            yield
        finally:
            for node in nodes:
                self._cluster.signal(node, signal.SIGCONT)

    def _say(self, what: str) -> None:
        print(f"{time.monotonic() - self._began:6.2f} {what}", flush=True)


def _is_altered(client: Confluent, policy: str) -> bool:
    try:
        client.alter_topic(compacted_traffic.TOPIC, compacted_traffic.POLICY, policy)
    except Refused:
        return False
    return True


def read_partition(address: tuple[str, int], topic: str, partition: int) -> list[tuple[int, Value]]:
    """Read all of a partition from one broker, once it has what is committed. CRCs are checked."""
    log: list[tuple[int, Value]] = []
    position = 0
    deadline = Deadline(f"{topic}-{partition} is read up to its end")
    with Wire(*address, timeout_s=10) as wire:
        end = end_offset(wire, topic, partition)
        while position < end:
            time.sleep(deadline.pause_s(f"{position} of {end}"))
            asked = FetchRequest.FetchTopic
            place = asked.FetchPartition(
                partition=partition, fetch_offset=position, partition_max_bytes=FETCH_BYTES
            )
            request = FetchRequest(
                max_wait_ms=100, min_bytes=1, max_bytes=FETCH_BYTES,
                topics=(asked(topic=topic, partitions=(place,)),),
            )  # fmt: skip
            (found,) = wire.ask(request, FetchResponse, FETCH_VERSION).responses[0].partitions
            if found.error_code:
                raise ClientError(found.error_code)
            end = max(end, found.high_watermark)
            for batch in iter_batches(found.records or b""):
                log += [
                    (record.offset, Value.decode(bytes(record.value or b"")))
                    for record in iter_records(batch)
                    if record.offset >= position
                ]
                position = batch.header.end_offset
    return log
