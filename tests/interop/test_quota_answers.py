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

from records.rpc import API
from records.rpc.base import Request
from records.rpc.cluster import ApiVersionsRequest
from records.rpc.produce import ProduceRequest
from records.rpc.topics import CreateTopicsRequest
from tests.clients.apache_kafka import apache_kafka_node
from tests.diskless.broker_world import running_broker
from tests.diskless.cluster_world import ClusterWorld
from tests.diskless.records_world import batch, fetching
from tests.interop import quota_table
from tests.interop.kafka_run import Kafka
from tests.interop.quota_table import APP, RECORDED, alter
from tests.raft.driver.client import Client
from tests.waiting import DEADLINE_S, wait_until

T = TypeVar("T")


class Asker:
    """A client of one broker."""

    def __init__(self, port: int, client_id: str = "app") -> None:
        self._client = Client("127.0.0.1", port, timeout_s=DEADLINE_S, client_id=client_id)

    def __call__(self, request: Request, version: int) -> Any:
        key = request.schema().key
        assert key is not None
        return self._client.ask(request, API[key].response, version)

    def set(self, **quotas: float | None) -> None:
        """Set quotas of the client id `app`."""
        answer = self(alter((APP, tuple(quotas.items()))), 1)
        assert not answer.entries[0].error_code, answer
        time.sleep(0.1)  # Kafka's broker applies it a moment after its controller has answered

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
            ClusterWorld(brokers=()) as world,
            running_broker(world) as broker,
        ):
            return await asyncio.to_thread(story, broker.listeners["PLAIN"].port)

    return asyncio.run(run())


def on_kafka(kafka: Kafka, home: Path, tell: Callable[[Asker], T]) -> T:
    """Tell a story to a node of Apache Kafka."""
    with apache_kafka_node(kafka, home) as node:
        asker = Asker(node.ports["PLAINTEXT"])
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


# --- throttled clients --------------------------------------------------------------------------


TOPIC: Final = "limited"
RATE: Final = 10_000.0
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


@pytest.mark.java
@pytest.mark.soak
def test_apache_kafka_throttles_bytes_by_muting_the_channel(kafka: Kafka, tmp_path: Path) -> None:
    check(on_kafka(kafka, tmp_path / "kafka", produced_and_fetched))


def test_esker_throttles_bytes_as_apache_kafka_does() -> None:
    check(on_esker(produced_and_fetched))
