"""`esker diskless`: output for people and programs, and error lines."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from typing import Any, cast
from uuid import UUID

import pytest
from msgspec import structs
from typer.testing import CliRunner

from coordinator.batch.interface import BatchCoordinator
from coordinator.errors import CoordinatorError
from esker.cli import app
from esker.commands.diskless import merge_topics
from records.kafka_errors import ErrorCode
from records.rpc.objects import (
    DescribeDisklessObjectRequest,
    DescribeDisklessObjectResponse,
    DescribeDisklessTopicsRequest,
    DescribeDisklessTopicsResponse,
)
from tests.coordinator.batch.served import Node

runner = CliRunner()
ONE = ("--coordinator", "0")  # or a controller would be asked how many there are
KEY = "esker/f6/xBIbbGYlSzqHPEyzl9QSWw/0/4711"

ORDERS = DescribeDisklessTopicsResponse.Topic(
    topic_id=UUID(int=7), topic_name="orders", object_bytes=900, past_object_bytes=200,
    dead_bytes=100,
    partitions=tuple(
        DescribeDisklessTopicsResponse.Topic.Partition(
            partition_index=i, log_start_offset=10 * i, high_watermark=100, run_count=3,
            stored_bytes=300,
        )
        for i in range(2)
    ),
)  # fmt: skip


class Canned:
    """A coordinator that serves one topic and one object."""

    async def call(self, request: Any) -> Any:
        if isinstance(request, DescribeDisklessObjectRequest):
            return self._describe_object(request)
        assert isinstance(request, DescribeDisklessTopicsRequest), request
        names = request.topic_names if request.topic_names is not None else ("orders",)
        unknown = DescribeDisklessTopicsResponse.Topic
        return DescribeDisklessTopicsResponse(
            applied_offset=57,
            topics=tuple(
                ORDERS
                if name == "orders"
                else unknown(topic_id=UUID(int=0), topic_name=name, error_code=3)
                for name in names
            ),
        )

    def _describe_object(
        self, request: DescribeDisklessObjectRequest
    ) -> DescribeDisklessObjectResponse:
        if request.object_key != KEY:
            raise CoordinatorError(ErrorCode.COORDINATOR_NOT_AVAILABLE, "not here")
        return DescribeDisklessObjectResponse(
            applied_offset=57, object_id=4711, object_format=1, size_bytes=450, used_bytes=300,
            broker_id=2, committed_at_ms=1_700_000_000_000, marked_at_ms=1_700_000_060_000,
            owners=(
                DescribeDisklessObjectResponse.Owner(
                    topic_id=UUID(int=7), topic_name="orders", partition_index=1, run_count=3,
                    used_bytes=300,
                ),
            ),
        )  # fmt: skip


@pytest.fixture(scope="module")
def bootstrap() -> Iterator[str]:
    """Run a node in a thread, since the command runs its own event loop."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    node = Node(cast(BatchCoordinator, Canned()))
    asyncio.run_coroutine_threadsafe(node.start(), loop).result(60)
    yield "{}:{}".format(*node.address)
    asyncio.run_coroutine_threadsafe(node.stop(), loop).result(60)
    loop.call_soon_threadsafe(loop.stop)
    thread.join()
    loop.close()


def invoke(bootstrap: str, *words: str) -> Any:
    return runner.invoke(app, ["diskless", *words, "--bootstrap-controller", bootstrap])


def test_diskless_describe_prints_the_stored_and_object_bytes_of_a_topic(bootstrap: str) -> None:
    shown = invoke(bootstrap, "describe", *ONE)
    assert shown.exit_code == 0, shown.stderr
    assert shown.stdout.splitlines() == [
        "Topic: orders  TopicId: AAAAAAAAAAAAAAAAAAAABw  PartitionCount: 2  StoredBytes: 600"
        "  ObjectBytes: 900  PastObjectBytes: 200  DeadBytes: 100",
        "  Partition: 0  LogStartOffset: 0  HighWatermark: 100  Runs: 3  StoredBytes: 300",
        "  Partition: 1  LogStartOffset: 10  HighWatermark: 100  Runs: 3  StoredBytes: 300",
    ]


def test_the_diskless_commands_print_one_object_with_the_json_option(bootstrap: str) -> None:
    found = json.loads(invoke(bootstrap, "describe", "orders", "--json", *ONE).stdout)
    assert found["coordinators"] == [{"coordinator": 0, "appliedOffset": 57}]
    (topic,) = found["topics"]
    assert (topic["topic"], topic["storedBytes"], topic["deadBytes"]) == ("orders", 600, 100)
    assert [partition["logStartOffset"] for partition in topic["partitions"]] == [0, 10]
    found = json.loads(invoke(bootstrap, "object", KEY, "--json").stdout)
    assert (found["sizeBytes"], found["usedBytes"], found["markedAtMs"]) == (
        450,
        300,
        1_700_000_060_000,
    )
    assert found["owners"][0]["topicId"] == "AAAAAAAAAAAAAAAAAAAABw"


def test_diskless_object_prints_the_partitions_that_use_an_object(bootstrap: str) -> None:
    shown = invoke(bootstrap, "object", KEY)
    assert shown.exit_code == 0, shown.stderr
    rows = dict(line.split(": ", 1) for line in shown.stdout.splitlines()[:-1])
    assert {name: value.strip() for name, value in rows.items()} == {
        "Key": KEY,
        "ObjectId": "4711",
        "Format": "1",
        "SizeBytes": "450",
        "UsedBytes": "300",
        "BrokerId": "2",
        "CommittedAt": "2023-11-14 22:13:20.000+00:00",
        "MarkedForDeletionAt": "2023-11-14 22:14:20.000+00:00",
    }
    assert shown.stdout.splitlines()[-1] == "  Topic: orders  Partition: 1  Runs: 3  UsedBytes: 300"


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        (["describe", "orders", "nope", "--coordinator", "0"], 1, "no such diskless topic: nope"),
        (["object", "a/00/b/0/1", "--timeout-ms", "1000"], 1, "not here"),
        (["object", "a/00/b/1/1", "--timeout-ms", "1000"], 1, "no coordinator for partition 1"),
        (["object", "4711"], 2, "does not end in /COORDINATOR/OBJECT-ID"),
        (["describe", "--coordinator", "-1"], 2, "coordinator"),
    ],
)
def test_a_failed_diskless_command_prints_one_line_and_sets_the_exit_code(
    bootstrap: str, words: list[str], code: int, says: str
) -> None:
    shown = invoke(bootstrap, *words)
    assert shown.exit_code == code
    assert says in " ".join(shown.stderr.split())


def test_an_invalid_bootstrap_address_exits_with_2_and_an_unreachable_controller_with_1(
    bootstrap: str,
) -> None:
    shown = invoke("nonsense", "describe")
    assert shown.exit_code == 2
    host, _, _ = bootstrap.partition(":")
    shown = invoke(f"{host}:1", "describe", "--timeout-ms", "1000")
    assert shown.exit_code == 1
    assert "no controller answers" in shown.stderr


def test_diskless_describe_prints_a_topic_with_two_coordinators_once() -> None:
    first, second = (
        structs.replace(ORDERS, partitions=(partition,)) for partition in ORDERS.partitions
    )
    other = structs.replace(ORDERS, topic_id=UUID(int=8), topic_name="more")
    unknown = structs.replace(ORDERS, error_code=3)
    whole, *rest = reversed(merge_topics([second, unknown, other, first]))
    assert whole.partitions == ORDERS.partitions
    assert (whole.object_bytes, whole.past_object_bytes, whole.dead_bytes) == (1800, 400, 200)
    assert rest == [other]
