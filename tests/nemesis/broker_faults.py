"""Brokers and the quorum below them, killed and paused while clients work.

Faults are as in `nemesis.nemesis`: each has had its effect before it is healed, nothing waits for a
time and hopes, and the plan comes from a seed.
"""

from __future__ import annotations

import contextlib
import signal
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from random import Random
from typing import Final

from esker.client.quorum_admin import AdminError, describe_quorum
from esker.settings.values import Endpoint
from raft.net import run
from records.batch import iter_batches, iter_records
from records.rpc.fetch import FetchRequest, FetchResponse
from records.rpc.list_offsets import ListOffsetsRequest, ListOffsetsResponse
from tests.clients.cluster import EskerCluster
from tests.nemesis.record_history import Value
from tests.nemesis.record_traffic import REQUEST_TIMEOUT_MS, Traffic
from tests.raft.driver.client import Client as Wire
from tests.raft.driver.client import ClientError
from tests.waiting import Deadline, wait_until

DISKLESS_METADATA: Final = "__diskless-metadata"
CLUSTER_METADATA: Final = "__cluster_metadata"
SESSION_MS: Final = 1_500
SETTINGS: Final = {
    "broker.session.timeout.ms": str(SESSION_MS),
    "broker.heartbeat.interval.ms": "200",
    "diskless.append.commit.interval.ms": "50",  # so that a kill meets what is buffered
}
CALM: Final = 200  # records acknowledged between two faults
BLINK_S: Final = 0.5
FETCH_VERSION: Final = 11
LIST_OFFSETS_VERSION: Final = 6
LATEST: Final = -1  # ListOffsets' timestamp
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
        (other, *_) = [one for one in self._cluster.broker_ids if one != victim]
        with self._paused(victim):
            wait_until(
                lambda: victim not in self._cluster.knows(other), f"broker {victim} is fenced",
            )  # fmt: skip
            self.wait_for_records(CALM)

    def freeze_broker(self) -> None:
        """A pause shorter than its session."""
        with self._paused(self._random.choice(self._cluster.broker_ids)):
            time.sleep(BLINK_S)  # the fault's length

    def kill_brokers(self) -> None:
        """All of them, at once."""
        self._cluster.kill(*self._cluster.broker_ids)
        self._cluster.launch(*self._cluster.broker_ids)

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

    # --- helpers ------------------------------------------------------------------------------

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
        self._cluster.launch(victim)
        wait_until(lambda: self._listens(victim), f"node {victim} listens")

    def _listens(self, node: int) -> bool:
        try:
            socket.create_connection(("127.0.0.1", self._cluster.ports[node]), 1).close()
        except OSError:
            return False
        return True

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


def read_partition(address: tuple[str, int], topic: str, partition: int) -> list[tuple[int, Value]]:
    """All of a partition, as one broker has it once it has what is committed; CRCs are checked."""
    log: list[tuple[int, Value]] = []
    deadline = Deadline(f"{topic}-{partition} is read up to its end")
    with Wire(*address, timeout_s=10) as wire:
        end_offset = _end_offset(wire, topic, partition)
        while len(log) < end_offset:
            time.sleep(deadline.pause_s(f"{len(log)} of {end_offset}"))
            asked = FetchRequest.FetchTopic
            place = asked.FetchPartition(
                partition=partition, fetch_offset=len(log), partition_max_bytes=FETCH_BYTES
            )
            request = FetchRequest(
                max_wait_ms=100, min_bytes=1, max_bytes=FETCH_BYTES,
                topics=(asked(topic=topic, partitions=(place,)),),
            )  # fmt: skip
            (found,) = wire.ask(request, FetchResponse, FETCH_VERSION).responses[0].partitions
            if found.error_code:
                raise ClientError(found.error_code)
            end_offset = max(end_offset, found.high_watermark)
            for batch in iter_batches(found.records or b""):
                log += [
                    (record.offset, Value.decode(bytes(record.value or b"")))
                    for record in iter_records(batch)
                    if record.offset >= len(log)
                ]
    return log


def _end_offset(wire: Wire, topic: str, partition: int) -> int:
    """Behind the read barrier: a broker's own replica may lag."""
    asked = ListOffsetsRequest.ListOffsetsTopic
    place = asked.ListOffsetsPartition(partition_index=partition, timestamp=LATEST)
    request = ListOffsetsRequest(replica_id=-1, topics=(asked(name=topic, partitions=(place,)),))
    answer = wire.ask(request, ListOffsetsResponse, LIST_OFFSETS_VERSION)
    (found,) = answer.topics[0].partitions
    if found.error_code:
        raise ClientError(found.error_code)
    return found.offset
