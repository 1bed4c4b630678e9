"""Requests about quotas, and throttled clients, on a broker of Esker and on Apache Kafka.

pytest tests/interop/test_quota_answers.py                     # Esker, in this process
pytest -m soak tests/interop/test_quota_answers.py             # Apache Kafka, again
pytest -m soak tests/interop/test_quota_answers.py --rewrite   # and its answers recorded anew
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, TypeVar

import pytest

from coordinator.controller.mutation_quotas import MutationWindow
from records.kafka_errors import ErrorCode
from records.rpc import API
from records.rpc.base import Request
from records.rpc.cluster import ApiVersionsRequest
from records.rpc.produce import ProduceRequest
from records.rpc.topics import (
    CreatePartitionsRequest,
    CreateTopicsRequest,
    DeleteTopicsRequest,
)
from tests.clients.apache_kafka import apache_kafka_node
from tests.diskless.broker_world import running_broker
from tests.diskless.cluster_world import ClusterWorld
from tests.diskless.records_world import batch, fetching
from tests.interop import quota_table
from tests.interop.kafka_run import Kafka
from tests.interop.quota_table import APP, RECORDED, Entity, alter
from tests.raft.driver.client import Client
from tests.waiting import DEADLINE_S, wait_until

T = TypeVar("T")


DIFFERENCES: Final[dict[str, tuple[Any, str]]] = {
    f"{key} nan": (
        [[entity, "INVALID_REQUEST", f"Quota {name} is not a number"]],
        "Kafka accepts NaN, and then limits nothing",
    )
    for key, name, entity in (
        ("bytes", "producer_byte_rate", "user=ann"),
        ("percentage", "request_percentage", "user=ann"),
        ("mutations", "controller_mutation_rate", "client-id=app"),
        ("connections", "connection_creation_rate", "ip=10.0.0.7"),
    )
}
"""Answers of Esker that are not Kafka's, and why."""


class Asker:
    """A client of one broker."""

    def __init__(self, port: int, client_id: str = "app", *, settle_s: float = 0.0) -> None:
        """Connect to a broker.

        Args:  settle_s: Kafka's broker applies a quota a moment after its controller has answered.
        """
        self.port = port
        self._settle_s = settle_s
        self._client = Client("127.0.0.1", port, timeout_s=DEADLINE_S, client_id=client_id)

    def __call__(self, request: Request, version: int) -> Any:
        key = request.schema().key
        assert key is not None
        return self._client.ask(request, API[key].response, version)

    def set(self, **quotas: float | None) -> None:
        """Set quotas of the client id `app`."""
        self.set_of(APP, **quotas)

    def set_of(self, entity: Entity, **quotas: float | None) -> None:
        """Set quotas of an entity."""
        answer = self(alter((entity, tuple(quotas.items()))), 1)
        assert not answer.entries[0].error_code, answer
        time.sleep(self._settle_s)

    def close(self) -> None:
        self._client.close()


def on_esker(tell: Callable[[Asker], T]) -> T:
    """Tell a story to a broker of Esker, on a cluster in memory."""

    def story(port: int) -> T:
        asker = Asker(port)
        try:
            return tell(asker)
        finally:
            asker.close()

    async def run() -> T:
        async with (
            ClusterWorld(brokers=(), mutation_window=MutationWindow(SAMPLES, 1)) as world,
            running_broker(world) as broker,
        ):
            return await asyncio.to_thread(story, broker.listeners["PLAIN"].port)

    return asyncio.run(run())


def on_kafka(kafka: Kafka, home: Path, tell: Callable[[Asker], T]) -> T:
    """Tell a story to a node of Apache Kafka."""
    settings = {"controller.quota.window.num": str(SAMPLES)}
    with apache_kafka_node(kafka, home, settings) as node:
        asker = Asker(node.ports["PLAINTEXT"], settle_s=1.0)
        try:
            return tell(asker)
        finally:
            asker.close()


# --- answers to requests about quotas -----------------------------------------------------------


def settled(asker: Asker) -> Callable[[Request, int], Any]:
    """Ask Kafka, whose broker shows a change a moment after its controller has answered."""

    def ask(request: Request, version: int) -> Any:
        answer = asker(request, version)
        time.sleep(0.03)
        return answer

    return ask


@pytest.mark.java
@pytest.mark.soak
def test_apache_kafka_gives_the_recorded_answers_to_requests_about_quotas(
    kafka: Kafka, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    found = on_kafka(kafka, tmp_path / "kafka", lambda asker: quota_table.answers(settled(asker)))
    if request.config.getoption("--rewrite"):
        rows = (f"{json.dumps(label)}: {json.dumps(row)}" for label, row in found.items())
        RECORDED.write_text("{\n" + ",\n".join(rows) + "\n}\n")
    assert found == json.loads(RECORDED.read_text())


def test_esker_answers_requests_about_quotas_as_apache_kafka_does() -> None:
    found = json.loads(json.dumps(on_esker(quota_table.answers)))
    recorded = json.loads(RECORDED.read_text())
    assert list(found) == list(recorded)
    expected = recorded | {label: answer for label, (answer, _) in DIFFERENCES.items()}
    wrong = {
        label: (found[label], expected[label]) for label in found if found[label] != expected[label]
    }
    assert not wrong, json.dumps(wrong, indent=1)


# --- throttled clients --------------------------------------------------------------------------


TOPIC: Final = "limited"
RATE: Final = 10_000.0
MUTATIONS: Final = 20.0
SAMPLES: Final = 2  # of mutations: forty may be saved up
SPAN_S: Final = 10  # of the samples that are full, by default


def create_topic(asker: Asker) -> None:
    topic = CreateTopicsRequest.CreatableTopic(
        name=TOPIC, num_partitions=1, replication_factor=1, assignments=(), configs=()
    )
    asker(CreateTopicsRequest(topics=(topic,), timeout_ms=10_000), 5)
    wait_until(lambda: not produce(asker, 1).responses[0].partition_responses[0].error_code, TOPIC)


def produce(asker: Asker, size: int, acks: int = -1) -> Any:
    sent = ProduceRequest.TopicProduceData
    records = batch(1, now_ms=1, size=size)
    request = ProduceRequest(
        acks=acks,
        timeout_ms=30_000,
        topic_data=(
            sent(name=TOPIC, partition_data=(sent.PartitionProduceData(index=0, records=records),)),
        ),
    )
    return asker(request, 12)


def next_answer_s(asker: Asker) -> float:
    """Return how long the next answer on the connection takes."""
    began = time.monotonic()
    asker(ApiVersionsRequest(client_software_name="t", client_software_version="1"), 4)
    return time.monotonic() - began


def produced_and_fetched(asker: Asker) -> dict[str, Any]:
    """Exceed the quota of bytes produced, and that of bytes fetched."""
    create_topic(asker)
    found: dict[str, Any] = {"without a quota": produce(asker, 300_000).throttle_time_ms}
    asker.set(producer_byte_rate=RATE)
    found["below the quota"] = produce(asker, 1_000).throttle_time_ms
    answer = produce(asker, 105_000)
    found["above the quota"] = answer.throttle_time_ms
    found["the batch is written"] = answer.responses[0].partition_responses[0].error_code == 0
    found["muted for s"] = next_answer_s(asker)
    found["not muted again"] = next_answer_s(asker)
    asker.set(producer_byte_rate=None, consumer_byte_rate=RATE)
    request = fetching(TOPIC, [(0, 3)], max_bytes=1 << 20)
    fetched = asker(request, 12)  # 105,000 bytes
    found["fetch throttled"] = fetched.throttle_time_ms
    found["fetched partitions"] = len(fetched.responses)
    found["fetch muted for s"] = next_answer_s(asker)
    again = asker(request, 12)
    found["fetched again"] = (again.throttle_time_ms, len(again.responses))
    return found


def mutated(asker: Asker) -> dict[str, Any]:
    """Exceed the quota of mutations, as clients that know its error and as one that does not."""
    asker.set(controller_mutation_rate=MUTATIONS)

    def create(name: str, partitions: int, version: int = 7, **more: Any) -> tuple[str, int]:
        topic = CreateTopicsRequest.CreatableTopic(
            name=name, num_partitions=partitions, replication_factor=1, assignments=(), configs=()
        )
        request = CreateTopicsRequest(topics=(topic,), timeout_ms=30_000, **more)
        answer = asker(request, version)
        code = ErrorCode(answer.topics[0].error_code).name
        return code, answer.throttle_time_ms

    found: dict[str, Any] = {}
    found["below the burst"] = create("a", 10)
    found["refused otherwise"] = create("a", 10)
    found["overdrawn"] = create("b", 60)
    found["strict"] = create("c", 1)
    found["strict muted for s"] = next_answer_s(asker)
    found["an old version overdraws"] = create("d", 30, 4)
    found["old muted for s"] = next_answer_s(asker)
    found["validated only"] = create("e", 30, validate_only=True)
    found["after validation"] = create("e", 1)
    next_answer_s(asker)
    grow = CreatePartitionsRequest.CreatePartitionsTopic(name="a", count=40, assignments=None)
    answer = asker(
        CreatePartitionsRequest(topics=(grow,), timeout_ms=30_000, validate_only=False), 3
    )
    found["partitions"] = ErrorCode(answer.results[0].error_code).name, answer.throttle_time_ms
    delete = DeleteTopicsRequest.DeleteTopicState(name="a")
    answer = asker(DeleteTopicsRequest(topics=(delete,), timeout_ms=30_000), 6)
    found["deletion"] = ErrorCode(answer.responses[0].error_code).name, answer.throttle_time_ms
    next_answer_s(asker)
    answer = asker(DeleteTopicsRequest(topics=(delete,), timeout_ms=30_000), 6)
    found["deletion later"] = ErrorCode(answer.responses[0].error_code).name
    return found


def requested(asker: Asker) -> dict[str, Any]:
    """Exceed the quota of request time by a share that nobody stays below."""
    found: dict[str, Any] = {"without a quota": versions(asker)}
    asker.set(request_percentage=1e-6)
    found["throttled ms"] = versions(asker)
    found["muted for s"] = next_answer_s(asker)
    asker.set(request_percentage=None)
    found["without it again"] = versions(asker)
    return found


def connected(asker: Asker) -> dict[str, Any]:
    """Connect from an address more often than it may."""
    me: Entity = (("ip", "127.0.0.1"),)
    asker.set_of(me, connection_creation_rate=1.0)
    found: dict[str, Any] = {"served": 0}
    while "closed after s" not in found and found["served"] < 40:
        began = time.monotonic()
        late = Asker(asker.port)
        try:
            versions(late)
            found["served"] += 1
        except ConnectionError:
            found["closed after s"] = time.monotonic() - began
        finally:
            late.close()
    found["an open connection"] = versions(asker)
    asker.set_of(me, connection_creation_rate=None)
    late = Asker(asker.port)
    found["without a quota again"] = versions(late)
    late.close()
    return found


def versions(asker: Asker) -> int:
    request = ApiVersionsRequest(client_software_name="t", client_software_version="1")
    return int(asker(request, 4).throttle_time_ms)


def check(found: dict[str, Any]) -> None:
    """Check what throttled clients were told and how long they were muted.

    The times follow from the bytes: they are paid for at the rate of the quota, except for those of
    the samples that are full. Kafka answers the same to the same requests, but for a millisecond.
    """
    told_ms, muted_s = found["above the quota"], found["muted for s"]
    assert 500 <= told_ms <= 700, found
    assert told_ms / 1_000 - 0.05 < muted_s, found
    fetch_told_ms, fetch_muted_s = found["fetch throttled"], found["fetch muted for s"]
    assert 500 <= fetch_told_ms <= 600, found
    assert fetch_told_ms / 1_000 - 0.05 < fetch_muted_s, found
    rest = {
        key: value
        for key, value in found.items()
        if not key.endswith((" quota", "for s", "throttled"))
    }
    assert (found["without a quota"], found["below the quota"]) == (0, 0), found
    assert rest.pop("not muted again") < told_ms / 1_000, found
    assert rest == {
        "the batch is written": True,
        "fetched partitions": 0,
        "fetched again": (0, 1),
    }, found


def check_mutated(found: dict[str, Any]) -> None:
    """Check what was answered while the quota of twenty partitions a second was exceeded."""
    times_ms = {key: found.pop(key)[1] for key in ("strict", "an old version overdraws")}
    times_ms |= {key: found.pop(key)[1] for key in ("after validation", "deletion")}
    muted_s = found.pop("strict muted for s"), found.pop("old muted for s")
    assert 200 < times_ms["strict"] <= 1_500, times_ms
    for key in ("an old version overdraws", "after validation", "deletion"):
        assert 500 < times_ms[key] <= 1_500, times_ms
    assert times_ms["strict"] / 1_000 - 0.1 < muted_s[0], (times_ms, muted_s)
    assert times_ms["an old version overdraws"] / 1_000 - 0.1 < muted_s[1], (times_ms, muted_s)
    assert found == {
        "below the burst": ("NONE", 0),
        "refused otherwise": ("TOPIC_ALREADY_EXISTS", 0),
        "overdrawn": ("NONE", 0),
        "validated only": ("NONE", 0),
        "partitions": ("NONE", 0),
        "deletion later": "NONE",
    }


def check_requested(found: dict[str, Any]) -> None:
    """Check the throttle time of requests: one sample of the window, at most."""
    assert found["muted for s"] > 0.8, found
    del found["muted for s"]
    assert found == {"without a quota": 0, "throttled ms": 1_000, "without it again": 0}


def check_connected(found: dict[str, Any]) -> None:
    """Check that ten connections are served, what the window allows, and the others closed late."""
    assert 10 <= found.pop("served") <= 12, found
    assert 0.1 < found.pop("closed after s") < 3, found
    assert found == {"an open connection": 0, "without a quota again": 0}


STORIES: Final = (
    (produced_and_fetched, check),
    (requested, check_requested),
    (mutated, check_mutated),
    (connected, check_connected),
)


@pytest.mark.java
@pytest.mark.soak
def test_apache_kafka_throttles_as_the_stories_say(kafka: Kafka, tmp_path: Path) -> None:
    found = on_kafka(kafka, tmp_path / "kafka", lambda asker: [tell(asker) for tell, _ in STORIES])
    for (_, check_story), answers in zip(STORIES, found, strict=True):
        check_story(answers)


@pytest.mark.parametrize(("tell", "check_story"), STORIES)
def test_esker_throttles_as_apache_kafka_does(
    tell: Callable[[Asker], dict[str, Any]], check_story: Callable[[dict[str, Any]], None]
) -> None:
    check_story(on_esker(tell))
