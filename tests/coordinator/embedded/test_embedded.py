"""The embedded coordinator: the same commands make the same state and answers, on every node.

The library's own nodes are started by the example and by the contract suite. Here is what stands on
top of it: a machine that must not care where it began, and settings that must not be forgotten.
"""

from __future__ import annotations

import asyncio
import contextlib
import pickle
import subprocess
import sys
import time
from pathlib import Path
from random import Random
from typing import Any
from uuid import UUID

import msgpack
import pytest

from coordinator.batch.cluster_view import StaticView, TopicConfig
from coordinator.batch.memory import InMemoryCoordinator
from coordinator.batch.settings import CoordinatorSettings
from coordinator.embedded import EmbeddedCoordinator, EmbeddedSettings
from coordinator.embedded.commands import MAINTENANCE, Replica
from coordinator.embedded.coordinator import _Later
from coordinator.errors import CoordinatorError
from examples import embedded_coordinator as example
from records.codec import encode_message
from records.kafka_errors import ErrorCode
from records.object_keys import ObjectKeys
from records.rpc.base import Request
from records.rpc.batch_coordinator import (
    CommitBatch,
    CommitBatchesRequest,
    CommitBatchesResponse,
    DeleteDisklessRecordsRequest,
    DeleteDisklessTopicsRequest,
    InitDisklessTopicsRequest,
    ListDisklessOffsetsRequest,
)
from records.rpc.objects import (
    AcquireObjectLeaseRequest,
    DeleteFilesRequest,
    GetFilesToDeleteRequest,
    IsSafeToDeleteFileRequest,
    ReleaseObjectLeaseRequest,
)
from tests.examples import seeds
from tests.ports import free_ports

ROOT = Path(__file__).parents[3]
KEYS = ObjectKeys(prefix="p", cluster_id="abc", coordinator_partition=0)
SETTINGS = CoordinatorSettings(
    keys=KEYS, file_delete_delay_ms=300, lease_timeout_ms=2_000, answer_retention_ms=500,
    producer_expiration_ms=1_000, tombstone_retention_ms=400, maintenance_limit=3,
)  # fmt: skip
VIEW = StaticView(default_config=TopicConfig(retention_ms=800, retention_bytes=5_000))
TOPICS = [UUID(int=i) for i in range(1, 5)]
SEEDS = seeds(20)


def given(**changed: Any) -> dict[str, Any]:
    return {
        "self_address": "127.0.0.1:1",
        "other_addresses": ("127.0.0.1:2",),
        "bind_address": "127.0.0.1:1",
        "password": "secret",
        "coordinator": SETTINGS,
    } | changed


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"password": ""}, "password: without one"),
        ({"bind_address": ""}, "bind_address: name one"),
        ({"bind_address": ":4000"}, "bind_address: name one"),
        ({"journal_file": "j"}, "with only one, a restart loses the state"),
        ({"dump_file": "d"}, "with only one, a restart loses the state"),
        ({"library": {"password": None}}, "password has a setting of its own"),
    ],
)
def test_the_embedded_coordinator_refuses_pysyncobj_settings_that_endanger_data_or_security(
    changed: dict[str, Any], says: str
) -> None:
    EmbeddedSettings(**given())
    with pytest.raises(ValueError, match=says):
        EmbeddedSettings(**given(**changed))


def test_the_embedded_coordinator_refuses_a_configuration_without_password_or_bind_address() -> (
    None
):
    for name in ("password", "bind_address"):
        settings = given()
        del settings[name]
        with pytest.raises(TypeError, match=name):
            EmbeddedSettings(**settings)


def test_the_embedded_example_prints_the_expected_output() -> None:
    ran = subprocess.run(
        [sys.executable, "-m", "examples.embedded_coordinator"],
        cwd=ROOT, capture_output=True, text=True, check=True, timeout=280,
    )  # fmt: skip
    assert ran.stdout.splitlines()[-2:] == [
        "a survivor commits 5 more, at offsets [50, 60, 70, 80, 90]",
        "the other finds 10 runs up to 100",
    ]


def test_coordinator_retention_deletes_no_batch_that_the_embedded_example_commits() -> None:
    """Maintenance may come before the reader: a batch from 1970 would be deleted by then."""
    coordinator = InMemoryCoordinator(
        SETTINGS, StaticView(), now_ms=lambda: time.time_ns() // 1_000_000
    )

    async def story() -> dict[str, Any]:
        await example.create_topic(coordinator)
        await example.commit(coordinator, broker_id=0)
        coordinator.run_maintenance()
        return await example.find(coordinator)

    found = asyncio.run(story())
    assert (found["high_watermark"], len(found["objects"])) == (50, 5)


def test_a_closed_embedded_node_leaves_no_open_file_descriptor() -> None:
    """The library's own pipe included: a process may start and close as many as it likes.

    Only descriptors that appeared while the node ran count, and only while they stay open: other
    threads of the process, left by other tests, open some at any time.
    """

    async def story() -> list[str]:
        (port,) = free_ports(1)
        address = f"127.0.0.1:{port}"
        coordinator = EmbeddedCoordinator(
            EmbeddedSettings(
                **given(self_address=address, other_addresses=(), bind_address=address)
            )
        )
        before = open_descriptors()
        await coordinator.start()
        opened = open_descriptors() - before
        assert any("pipe:" in one for one in opened), opened
        assert any("socket:" in one for one in opened), opened
        await coordinator.close()
        return sorted(opened & open_descriptors())

    assert asyncio.run(story()) == []


def open_descriptors() -> set[str]:
    """Number and file of each open descriptor."""
    found = set()
    for descriptor in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):  # the listing's own
            found.add(f"{descriptor.name} {descriptor.readlink()}")
    return found


# --- the machine --------------------------------------------------------------------------------


def command(request: Request | None, time_ms: int) -> bytes:
    key, body = MAINTENANCE, msgpack.packb((f"leader-{time_ms // 2_500}", time_ms + 7))
    if request is not None:
        key, body = request.schema().key or 0, encode_message(request, 0)
    packed: bytes = msgpack.packb((key, body, time_ms))
    return packed


def any_commit(random: Random) -> CommitBatchesRequest:
    topic = CommitBatchesRequest.Topic
    at, topics = 0, []
    for topic_id in random.sample(TOPICS, random.randint(1, 2)):
        partitions = []
        for partition in random.sample(range(3), random.randint(1, 2)):
            batches = []
            for _ in range(random.randint(1, 3)):
                producer = random.choice((-1, 7, 8))
                first = random.choice((0, 2, 4, 6)) if producer >= 0 else -1
                batches.append(
                    CommitBatch(
                        at, 100, 0, 1, random.randrange(20_000), random.randint(0, 1), producer,
                        0 if producer >= 0 else -1, first, first + 1 if producer >= 0 else -1,
                    )
                )  # fmt: skip
                at += 100 + random.choice((0, 0, 50))
            partitions.append(topic.Partition(partition_index=partition, batches=tuple(batches)))
        topics.append(topic(topic_id=topic_id, partitions=tuple(partitions)))
    object_id = random.randrange(40)
    return CommitBatchesRequest(
        broker_id=1, broker_epoch=random.choice((1, 1, 1, 2)), lease_id=object_id // 4,
        object_id=object_id, object_format=1, object_size=at, topics=tuple(topics),
    )  # fmt: skip


def any_request(random: Random) -> Request | None:
    """A request, most often a possible one; None: maintenance."""
    topic_id, key = random.choice(TOPICS), KEYS.key(random.randrange(40))
    match random.choices(range(10), weights=(6, 8, 2, 60, 6, 1, 6, 6, 4, 20))[0]:
        case 0:
            topic = InitDisklessTopicsRequest.Topic
            named = topic(topic_id=topic_id, topic_name=f"t{topic_id.int}", num_partitions=3)
            return InitDisklessTopicsRequest(controller_epoch=1, topics=(named,))
        case 1:
            return AcquireObjectLeaseRequest(
                coordinator_partition=0, broker_id=1, broker_epoch=1, object_count=4
            )
        case 2:
            return ReleaseObjectLeaseRequest(
                coordinator_partition=0, broker_id=1, broker_epoch=1, lease_id=random.randrange(10)
            )
        case 3:
            return any_commit(random)
        case 4:
            asked = DeleteDisklessRecordsRequest.Topic
            partition = asked.Partition(partition_index=0, offset=random.choice((-1, 1, 5)))
            return DeleteDisklessRecordsRequest(
                topics=(asked(topic_id=topic_id, partitions=(partition,)),)
            )
        case 5:
            return DeleteDisklessTopicsRequest(controller_epoch=1, topic_ids=(topic_id,))
        case 6:
            return GetFilesToDeleteRequest(coordinator_partition=0, max_files=10)
        case 7:
            return DeleteFilesRequest(coordinator_partition=0, object_keys=(key,))
        case 8:
            looked_for = ListDisklessOffsetsRequest.Topic
            partition_of = looked_for.Partition(partition_index=0, timestamp=random.choice((-1, 5)))
            return ListDisklessOffsetsRequest(
                topics=(looked_for(topic_id=topic_id, partitions=(partition_of,)),)
            )
        case _:
            return random.choice(
                (None, IsSafeToDeleteFileRequest(coordinator_partition=0, object_key=key))
            )


@pytest.mark.parametrize("seed", SEEDS)
def test_an_embedded_replica_loaded_from_a_snapshot_answers_like_the_original_replica(
    seed: int,
) -> None:
    """Wherever the snapshot was taken; clocks of callers run apart and backwards."""
    random = Random(seed)
    whole, late = Replica(SETTINGS, VIEW), Replica(SETTINGS, VIEW)
    began = random.randrange(5, 250)
    committed = 0
    for step in range(300):
        if step == began:
            late = Replica(SETTINGS, VIEW)
            late.load(pickle.loads(pickle.dumps(_Later(whole), 2)))
        done = command(any_request(random), 10_000 + step * 20 + random.choice((0, -500, 300)))
        answer = whole.execute(done)
        if step >= began:
            assert late.execute(done) == answer, f"seed {seed}, step {step}"
            assert late.snapshot() == whole.snapshot(), f"seed {seed}, step {step}"
        assert not isinstance(answer, CoordinatorError), f"seed {seed}, step {step}: {answer}"
        committed += isinstance(answer, CommitBatchesResponse) and bool(answer.topics)
    whole.coordinator.state.check_invariants()
    assert committed >= 10, "too few commits to say anything"


INIT = encode_message(InitDisklessTopicsRequest(controller_epoch=1, topics=()), 0)
INIT_KEY = InitDisklessTopicsRequest.schema().key


@pytest.mark.parametrize(
    "nonsense",
    [
        b"",
        b"\xc1",
        msgpack.packb((1094, b"\xff", 1)),
        msgpack.packb((77, b"", 1)),
        msgpack.packb(("x", b"", 1)),
        msgpack.packb((MAINTENANCE, b"")),
        msgpack.packb((MAINTENANCE, b"", 1)),
        msgpack.packb(([], b"", 1)),
        msgpack.packb((INIT_KEY, INIT, "1")),
        msgpack.packb((INIT_KEY, INIT, 1.5)),
        msgpack.packb((INIT_KEY, INIT, -1)),
        msgpack.packb((INIT_KEY, INIT, 2**64 - 1)),
        msgpack.packb((MAINTENANCE, msgpack.packb(("leader", "1")), 1)),
        msgpack.packb((MAINTENANCE, msgpack.packb(("leader", 2**63)), 1)),
        msgpack.packb((MAINTENANCE, msgpack.packb((7, 1)), 1)),
    ],
)
def test_an_embedded_replica_refuses_an_invalid_command_without_a_change_of_its_state(
    nonsense: bytes,
) -> None:
    replica = Replica(SETTINGS, VIEW)
    before = replica.snapshot()
    answer = replica.execute(nonsense)
    assert isinstance(answer, CoordinatorError)
    assert answer.code is ErrorCode.INVALID_REQUEST
    assert replica.snapshot() == before
