"""What do access control, TLS and handshakes cost?

    python -m bench.bench_security [authorize] [metadata] [--rounds 5] [--tiny]

* authorize: a Produce over 1,000 partitions, each of its own topic, with 10,000 access control
  entries: literal and prefixed ones, of one user and of ten for each topic. "first" decides each
  topic, "kept" finds what was decided before, as all later requests of a client do. The entry that
  is added then is one of many: how long does the loop take to use the new table?
* metadata: Metadata of 10,000 topics for a client that may describe half of them, at a broker's
  handler on a loop of its own: the longest turn of the loop, in which nothing else is served. For
  all topics, with authorized operations, for named ones, and for a client that may describe none.

The least of the rounds, which other load on the machine disturbs least; of turns the median, and
the processor time of the loop's thread beside the time on the wall, which includes that load.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import os
import platform
import statistics
import subprocess
import time
from collections.abc import Callable, Iterable, Mapping
from types import SimpleNamespace
from typing import Any, Final
from uuid import UUID

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
from raft.net.handlers import Served
from raft.net.header import RequestKind, parse_request_header, request_header
from raft.net.principal import Principal
from raft.net.runner import run
from records.codec import encode_message
from records.metadata import AccessControlEntryRecord, PartitionRecord, TopicRecord
from records.rpc.cluster import MetadataRequest
from records.rpc.produce import ProduceRequest
from records.types import Epoch, Offset
from tests.diskless.calling import Caller

ENTRIES: Final = 10_000
TOPICS_OF_PRODUCE: Final = 1_000
TOPICS: Final = 10_000
USER: Final = Principal("User", "u0")
STRANGER: Final = Principal("User", "stranger")
HOST: Final = "10.0.0.7"
VERSION: Final = 10  # of Metadata: the last with authorized operations of the cluster
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
    """Return the least time in ms of some rounds of work, each after a preparation."""
    best = float("inf")
    for _ in range(rounds):
        before()
        began = time.perf_counter()
        work()
        best = min(best, time.perf_counter() - began)
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


ROWS: Final = ("authorize", "metadata")


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


if __name__ == "__main__":
    main()
