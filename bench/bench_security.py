"""Measures the cost of access control, TLS and handshakes.

    python -m bench.bench_security [authorize] [metadata] [tls] [handshakes] [--rounds 5] [--tiny]

* authorize: a Produce over 1,000 partitions, each of its own topic, with 10,000 access control
  entries: literal and prefixed ones, of one user and of ten for each topic. "first" decides each
  topic, "kept" finds what was decided before, as all later requests of a client do. The entry that
  is added then is one of many: how long does the loop take to use the new table?
* metadata: Metadata of 10,000 topics for a client that may describe half of them, at a broker's
  handler on a loop of its own: the longest turn of the loop, in which nothing else is served. For
  all topics, with authorized operations, for named ones, and for a client that may describe none.
* tls: one node, written to and read by librdkafka over SASL_PLAINTEXT and over SASL_SSL in turn:
  MB for each second that the node's process has of a processor, which other load disturbs little.
* handshakes: clients that connect by TLS and SCRAM, and leave at once, ever more of them, to a node
  without a limit of handshakes: how many a second, and does it lose a heartbeat? Then to a node
  with the default limit: the p99 of a producer beside them, and alone, in turn.

Of decisions the least processor time of the rounds; of turns the median, and
the processor time of the loop's thread beside the time on the wall, which includes that load.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import multiprocessing
import os
import platform
import statistics
import subprocess
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any, Final
from uuid import UUID

from confluent_kafka import Consumer, Producer, TopicPartition

from coordinator.controller.access import AccessSettings, AccessTable
from coordinator.controller.apply import ImageEdit
from coordinator.controller.authorizer import ALLOW, Operation, PatternType, ResourceType
from coordinator.controller.guarding import Asked
from coordinator.controller.image import MetadataImage
from coordinator.controller.security import Security, SecurityEdit
from diskless.access.gate import Gate
from diskless.access.topics import denied_produce
from diskless.apis.cluster import ClusterApis
from diskless.apis.handler import on_broker
from raft.driver.node import tune_interpreter
from raft.net import NetError, connect
from raft.net.certificates import TlsContexts, TlsSettings
from raft.net.handlers import Served
from raft.net.header import RequestKind, parse_request_header, request_header
from raft.net.principal import Principal
from raft.net.runner import run
from raft.net.sasl import Credentials
from raft.net.security import OutgoingSecurity, outgoing
from records.codec import encode_message
from records.metadata import AccessControlEntryRecord, PartitionRecord, TopicRecord
from records.rpc.cluster import MetadataRequest
from records.rpc.produce import ProduceRequest
from records.types import Epoch, Offset
from tests.clients import secured
from tests.clients.secured import SecuredNode
from tests.diskless.calling import Caller

ENTRIES: Final = 10_000
TOPICS_OF_PRODUCE: Final = 1_000
TOPICS: Final = 10_000
USER: Final = Principal("User", "u0")
STRANGER: Final = Principal("User", "stranger")
HOST: Final = "10.0.0.7"
VERSION: Final = 10  # of Metadata: the last with authorized operations of the cluster
RECORD: Final = os.urandom(1_000)
RECORDS: Final = 100_000
SCRAM_USER, SCRAM_SECRET = "carol", "carols-secret"
HANDSHAKERS: Final = (1, 4, 16, 64, 256)
LOST_HEARTBEAT: Final = "broker=1 reason="
NO_SUPER_USERS: Final = AccessSettings(frozenset(), allow_everyone=False)


def say(text: str) -> None:
    print(text, flush=True)


# --- authorize ----------------------------------------------------------------------------------


def entry(number: int, name: str, pattern: PatternType, user: str) -> AccessControlEntryRecord:
    return AccessControlEntryRecord(
        id=UUID(int=number + 1),
        resource_type=ResourceType.TOPIC,
        resource_name=name,
        pattern_type=pattern,
        principal=f"User:{user}",
        host="*",
        operation=Operation.WRITE,
        permission_type=ALLOW,
    )


def entries(count: int, users: int, pattern: PatternType) -> Security:
    """Return access control entries: for each topic one of each of these users."""
    edit = SecurityEdit(Security())
    for number in range(count):
        edit.apply(entry(number, f"topic-{number // users:06}", pattern, f"u{number % users}"))
    return edit.freeze()


def least_ms(rounds: int, work: Callable[[], object], before: Callable[[], object]) -> float:
    """Return the least processor time in ms of some rounds of work, each after a preparation."""
    best = float("inf")
    for _ in range(rounds):
        before()
        began = time.thread_time()
        work()
        best = min(best, time.thread_time() - began)
    return best * 1_000


def authorize(rounds: int, count: int, topics: int) -> None:
    """Print the time of the decisions about one Produce request."""
    for pattern in (PatternType.LITERAL, PatternType.PREFIXED):
        for users in (1, 10):
            image = MetadataImage(security=entries(count, users, pattern))
            shown = [image]
            table = AccessTable(NO_SUPER_USERS, lambda shown=shown: shown[0], lambda: True)
            request = ProduceRequest(
                transactional_id=None,
                acks=-1,
                timeout_ms=1_000,
                topic_data=tuple(
                    ProduceRequest.TopicProduceData(name=f"topic-{number:06}", partition_data=())
                    for number in range(topics)
                ),
            )

            def decide(
                table: AccessTable = table,
                request: ProduceRequest = request,
                shown: list[MetadataImage] = shown,
            ) -> None:
                asked = Asked(table.of(USER, HOST), 12, shown[0])
                _, denied = denied_produce(request, asked, is_transactional=False)
                assert not denied, f"{len(denied)} topics are denied"

            decide()
            first = least_ms(rounds, decide, table._forget)
            kept = least_ms(rounds, decide, lambda: None)
            numbers = iter(range(count, count + rounds))

            def add(shown: list[MetadataImage] = shown, numbers: Any = numbers) -> None:
                edit = SecurityEdit(shown[0].security)
                edit.apply(entry(next(numbers), "other", PatternType.LITERAL, "u0"))
                shown[0] = MetadataImage(security=edit.freeze())

            added = least_ms(rounds, lambda table=table: table.of(USER, HOST), add)
            say(
                f"authorize, Produce of {topics:,} topics, {count:,} {pattern.name.lower()} "
                f"entries of {users} users: kept {kept:.2f} ms (must 1 ms), first {first:.2f} ms; "
                f"table after one more entry {added:.2f} ms"
            )


# --- transport ---------------------------------------------------------------------------------


def client_of(node: SecuredNode, protocol: str) -> dict[str, Any]:
    """Return librdkafka's settings for a listener of a node."""
    settings = {
        "bootstrap.servers": node.address(protocol),
        "security.protocol": protocol,
        "sasl.mechanism": "PLAIN",
        "sasl.username": secured.USER,
        "sasl.password": secured.PASSWORD,
        "log_level": 0,
    }
    return settings | ({"ssl.ca.location": str(node.ca_file)} if "SSL" in protocol else {})


def create(node: SecuredNode, topic: str) -> None:
    """Create a topic."""
    config = node.command_config("SASL_SSL")
    created = node.run("topics", "create", topic, config=config)
    assert created.returncode == 0, created.stderr


def processor_s(node: SecuredNode) -> float:
    """Return the processor time that a node's process has used."""
    assert node.process is not None, "a node that does not run"
    fields = Path(f"/proc/{node.process.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def produce_mb(node: SecuredNode, protocol: str, topic: str, count: int) -> None:
    """Write records of RECORD_BYTES, and wait until all are acknowledged."""
    producer = Producer(client_of(node, protocol) | {"linger.ms": 20, "batch.size": 1_000_000})
    failed: list[str] = []

    def on_delivery(error: Any, _: object) -> None:
        if error is not None:
            failed.append(str(error))

    for _ in range(count):
        while True:
            try:
                producer.produce(topic, RECORD, on_delivery=on_delivery)
            except BufferError:
                producer.poll(0.05)
            else:
                break
        producer.poll(0)
    assert producer.flush(120) == 0, "records that are not acknowledged"
    assert not failed, failed[0]


def fetch_mb(node: SecuredNode, protocol: str, topic: str, count: int) -> None:
    """Read records from the beginning of a topic."""
    consumer = Consumer(client_of(node, protocol) | {"group.id": "bench"})
    consumer.assign([TopicPartition(topic, 0, 0)])
    read = 0
    while read < count:
        read += len(consumer.consume(10_000, 1.0))
    consumer.close()


def tls(rounds: int, count: int) -> None:
    """Print the MB that a node serves by a second of a processor, with and without TLS."""
    found: dict[tuple[str, str], list[float]] = {}
    megabytes = count * len(RECORD) / 1e6
    with TemporaryDirectory() as home, SecuredNode(Path(home)) as node:
        for number in range(rounds):
            for protocol in ("SASL_PLAINTEXT", "SASL_SSL"):
                topic = f"{protocol}-{number}"
                create(node, topic)
                for work in (produce_mb, fetch_mb):
                    began, wall = processor_s(node), time.perf_counter()
                    work(node, protocol, topic, count)
                    took, wall = processor_s(node) - began, time.perf_counter() - wall
                    name = work.__name__.removesuffix("_mb")
                    found.setdefault((name, protocol), []).append(megabytes / took)
                    say(f"  {name} {protocol}: {megabytes / took:.0f} MB/s of processor, "
                        f"{megabytes / wall:.0f} MB/s of time")  # fmt: skip
    for name in ("produce", "fetch"):
        plain = statistics.median(found[name, "SASL_PLAINTEXT"])
        with_tls = statistics.median(found[name, "SASL_SSL"])
        say(
            f"tls, {name} {megabytes:.0f} MB: SASL_SSL {with_tls:.0f}, SASL_PLAINTEXT {plain:.0f} "
            f"MB a second of the node's processor, {with_tls / plain:.2f}x (must 0.35x)"
        )


async def connect_again_and_again(
    address: tuple[str, int], ca_file: Path, at_once: int, seconds: float
) -> int:
    """Connect by TLS and SCRAM, and leave, for some time; return how often that succeeded."""
    tls_settings = TlsSettings.of({"ssl.truststore.location": str(ca_file)})
    security = OutgoingSecurity(
        tls=TlsContexts(tls_settings, server=False),
        sasl=Credentials("SCRAM-SHA-256", SCRAM_USER, SCRAM_SECRET),
    )
    ends, done = time.monotonic() + seconds, 0

    async def repeat() -> None:
        nonlocal done
        while time.monotonic() < ends:
            try:
                connection = await connect(*address, timeout_ms=10_000)
            except NetError:
                continue
            connection.close()
            done += 1

    with outgoing(security):
        await asyncio.gather(*(repeat() for _ in range(at_once)))
    return done


def handshakers(address: tuple[str, int], ca_file: Path, at_once: int, seconds: float) -> float:
    """Connect from a process of its own; return the handshakes a second."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        done = pool.submit(_handshakers, address, ca_file, at_once, seconds)
        return done.result() / seconds


def _handshakers(address: tuple[str, int], ca_file: Path, at_once: int, seconds: float) -> int:
    return run(connect_again_and_again(address, ca_file, at_once, seconds))


def scram_node(home: str, more: str) -> SecuredNode:
    """Return a node that takes PLAIN and SCRAM."""
    users = ("--add-scram", f"SCRAM-SHA-256=[name={SCRAM_USER},password={SCRAM_SECRET}]")
    return SecuredNode(Path(home), ("PLAIN", "SCRAM-SHA-256"), more, format_options=users)


def connected_producer(node: SecuredNode) -> Producer:
    """Return a producer that has written a record: others that connect may not delay it."""
    producer = Producer(client_of(node, "SASL_SSL") | {"linger.ms": 0})
    producer.produce("latency", RECORD)
    assert producer.flush(60) == 0, "no acknowledgement within 60 s"
    return producer


def latency_99_ms(producer: Producer, seconds: float) -> float:
    """Return the 99th percentile of the time to an acknowledgement, of 50 records a second."""
    times: list[float] = []
    ends = time.perf_counter() + seconds
    while (sent := time.perf_counter()) < ends:
        producer.produce(
            "latency",
            RECORD,
            on_delivery=lambda _e, _m, sent=sent: times.append(time.perf_counter() - sent),
        )
        producer.poll(0.02)
    producer.flush(60)
    return sorted(times)[int(len(times) * 0.99)] * 1_000


def handshakes(rounds: int, seconds: float) -> None:
    """Print the handshakes a second, and what heartbeats and a producer feel of them."""
    unlimited = "esker.listener.max.handshakes.per.second=100000\n"
    with TemporaryDirectory() as home, scram_node(home, unlimited) as node:
        address = ("127.0.0.1", node.ports["SASL_SSL"])
        for at_once in HANDSHAKERS:
            lost = node.output.read_text().count(LOST_HEARTBEAT)
            began = processor_s(node)
            rate = handshakers(address, node.ca_file, at_once, seconds)
            each_ms = (processor_s(node) - began) * 1_000 / max(rate * seconds, 1)
            lost = node.output.read_text().count(LOST_HEARTBEAT) - lost
            say(f"handshakes, {at_once} clients at once, no limit: {rate:.0f} a second, "
                f"{each_ms:.1f} ms of the node's processor each, "
                f"{lost} heartbeats lost")  # fmt: skip
            if lost:
                break
    with TemporaryDirectory() as home, scram_node(home, "") as node:
        address = ("127.0.0.1", node.ports["SASL_SSL"])
        create(node, "latency")
        ratios, rates = [], []
        producer = connected_producer(node)
        latency_99_ms(producer, 1)
        for _ in range(rounds):
            alone = latency_99_ms(producer, seconds)
            with ThreadPoolExecutor(1) as pool:
                words = (address, node.ca_file, HANDSHAKERS[-1], seconds + 2)
                load = pool.submit(handshakers, *words)
                time.sleep(1.5)  # the process starts
                beside = latency_99_ms(producer, seconds)
                rates.append(load.result())
            ratios.append(beside / alone)
            say(f"  producer's p99: alone {alone:.1f} ms, beside {beside:.1f} ms")
    say(
        f"handshakes at the default limit, {statistics.median(rates):.0f} a second: "
        f"p99 of a producer {statistics.median(ratios):.2f}x (must 1.5x)"
    )


# --- metadata -----------------------------------------------------------------------------------


class Turns:
    """Measures the longest turn of the running loop, by the wall and by its thread's processor."""

    def __init__(self) -> None:
        self.wall_ms = self.processor_ms = 0.0
        self._wall = self._processor = 0.0
        self._ends = False

    def __enter__(self) -> Turns:
        self._turn()
        self.wall_ms = self.processor_ms = 0.0
        return self

    def __exit__(self, *_: object) -> None:
        self._turn()
        self._ends = True

    def _turn(self) -> None:
        if self._ends:
            return
        wall, processor = time.perf_counter(), time.thread_time()
        self.wall_ms = max(self.wall_ms, (wall - self._wall) * 1_000)
        self.processor_ms = max(self.processor_ms, (processor - self._processor) * 1_000)
        self._wall, self._processor = wall, processor
        asyncio.get_running_loop().call_soon(self._turn)


def cluster_of(topics: int) -> MetadataImage:
    """Return an image with topics of one partition, every second of which USER may describe."""
    edit = ImageEdit(MetadataImage())
    for number in range(topics):
        topic_id = UUID(int=number + 1)
        edit.apply(TopicRecord(name=f"topic-{number:06}", topic_id=topic_id))
        edit.apply(
            PartitionRecord(
                partition_id=0,
                topic_id=topic_id,
                replicas=(1,),
                isr=(1,),
                removing_replicas=(),
                adding_replicas=(),
                leader=1,
                leader_epoch=0,
                partition_epoch=0,
                directories=(),
            )
        )
        if number % 2:
            edit.apply(entry(number, f"topic-{number:06}", PatternType.LITERAL, "u0"))
    return edit.publish(Offset(topics), Epoch(1))


async def no_creation(*_: object) -> Any:
    raise AssertionError("no topic is to be created")


def handlers_of(image: MetadataImage) -> tuple[Mapping[int, Served], AccessTable]:
    """Return a broker's handlers of requests about the cluster, and their table of access."""
    cluster: Any = SimpleNamespace(image=image, cluster_id="bench", broker_id=1)
    table = AccessTable(NO_SUPER_USERS, lambda: image, lambda: True)
    apis = ClusterApis(cluster, create=no_creation, auto_create=False, num_partitions=1)
    gate = Gate(table, lambda: image)
    served = apis.handlers("PLAINTEXT").items()
    return {key: on_broker(each, gate, lambda: False) for key, each in served}, table


async def longest_turn(
    handlers: Mapping[int, Served], table: AccessTable, user: Principal, request: MetadataRequest
) -> Turns:
    """Return the longest turn of the loop while one request is answered."""
    kind = RequestKind.of(3, VERSION, first_flexible=9)
    frame = request_header(kind, 1, "bench") + encode_message(request, VERSION)
    header = parse_request_header(frame, {3: 9})
    caller: Any = Caller(principal=user)
    table._forget()
    table.of(user, HOST)
    with Turns() as turns:
        await asyncio.sleep(0)
        answer = await caller.answer(handlers[3].serve(caller, header, frame[header.body_at :]))
    assert answer is not None, "no answer"
    return turns


def metadata(rounds: int, count: int) -> None:
    """Print the longest turn of a loop that answers Metadata."""
    handlers, table = handlers_of(cluster_of(count))
    named = tuple(
        MetadataRequest.MetadataRequestTopic(name=f"topic-{number:06}") for number in range(count)
    )
    rows: Iterable[tuple[str, Principal, MetadataRequest]] = (
        ("all topics", USER, MetadataRequest(topics=None)),
        (
            "all topics with operations",
            USER,
            MetadataRequest(topics=None, include_topic_authorized_operations=True),
        ),
        ("named topics", USER, MetadataRequest(topics=named)),
        ("named topics, none allowed", STRANGER, MetadataRequest(topics=named)),
    )
    tune_interpreter()
    for label, user, request in rows:
        turns = []
        for _ in range(rounds):
            gc.collect()
            turns.append(run(longest_turn(handlers, table, user, request)))
        processor, wall = (
            statistics.median(getattr(turn, name) for turn in turns)
            for name in ("processor_ms", "wall_ms")
        )
        say(
            f"metadata, {label} of {count:,}: longest turn of the loop, median of {rounds}, "
            f"{processor:.1f} ms of processor, {wall:.1f} ms of time (must 10 ms)"
        )


ROWS: Final = ("authorize", "metadata", "tls", "handshakes")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("rows", nargs="*", help=f"of {', '.join(ROWS)}; default: all")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--tiny", action="store_true", help="for tests: a few of everything")
    words = parser.parse_args()
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False
    ).stdout.strip()
    load = os.getloadavg()[0]
    say(f"commit {commit}, Python {platform.python_version()}, load {load:.1f}")
    part = 100 if words.tiny else 1
    rows = words.rows or ROWS
    if "authorize" in rows:
        authorize(words.rounds, ENTRIES // part, TOPICS_OF_PRODUCE // part)
    if "metadata" in rows:
        metadata(words.rounds, TOPICS // part)
    if "tls" in rows:
        tls(words.rounds, RECORDS // part)
    if "handshakes" in rows:
        handshakes(words.rounds, 0.5 if words.tiny else 5.0)


if __name__ == "__main__":
    main()
