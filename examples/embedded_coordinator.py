"""A batch coordinator with no servers: three processes of an application agree among themselves.

    python -m examples.embedded_coordinator

Each process runs an EmbeddedCoordinator. One of them creates a topic and commits objects; another
one, which committed nothing, says where the batches lie. Then the leader is killed, and a survivor
goes on where it was. Nothing here survives power loss; see `coordinator.embedded`.
"""

from __future__ import annotations

import asyncio
import json
import secrets
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from typing import Any, Final, TypeVar
from uuid import UUID

from coordinator.batch.interface import BatchCoordinator
from coordinator.batch.settings import CoordinatorSettings
from coordinator.embedded import EmbeddedCoordinator, EmbeddedSettings
from coordinator.errors import CoordinatorError
from examples.ports import free_ports
from records.object_keys import ObjectKeys
from records.rpc.batch_coordinator import (
    CommitBatch,
    CommitBatchesRequest,
    FindBatchesRequest,
    InitDisklessTopicsRequest,
)
from records.rpc.objects import AcquireObjectLeaseRequest

TOPIC: Final = UUID(int=7)
OBJECTS: Final = 5  # committed before and after the leader is killed
BATCH_BYTES: Final = 1_000
PATIENCE_S: Final = 30

T = TypeVar("T")


# --- one process ------------------------------------------------------------------------------


def settings(index: int, addresses: list[str], password: str) -> EmbeddedSettings:
    return EmbeddedSettings(
        self_address=addresses[index],
        other_addresses=tuple(a for i, a in enumerate(addresses) if i != index),
        bind_address=addresses[index],
        password=password,
        timeout_ms=PATIENCE_S * 1_000,
        coordinator=CoordinatorSettings(
            keys=ObjectKeys(prefix="demo", cluster_id="embedded", coordinator_partition=0)
        ),
    )


async def patiently(call: Callable[[], Awaitable[T]]) -> T:
    """Repeat a call until it succeeds, because it fails while the processes elect a leader.

    The same request every time: its outcome may be unknown, and repeated it changes nothing more.
    """
    deadline = time.monotonic() + PATIENCE_S
    while True:
        try:
            return await call()
        except CoordinatorError:
            if time.monotonic() > deadline:
                raise
        await asyncio.sleep(0.1)


async def create_topic(coordinator: BatchCoordinator) -> None:
    topic = InitDisklessTopicsRequest.Topic(topic_id=TOPIC, topic_name="events", num_partitions=1)
    request = InitDisklessTopicsRequest(controller_epoch=1, topics=(topic,))
    await patiently(lambda: coordinator.call(request))


async def commit(coordinator: BatchCoordinator, broker_id: int) -> list[int]:
    """Commit objects of one batch each, and return the batches' assigned base offsets."""
    asked = AcquireObjectLeaseRequest(
        coordinator_partition=0, broker_id=broker_id, broker_epoch=1, object_count=OBJECTS
    )
    lease = await patiently(lambda: coordinator.call(asked))
    topic = CommitBatchesRequest.Topic
    offsets = []
    for number in range(OBJECTS):
        now_ms = time.time_ns() // 1_000_000  # an old batch would be retention's at once
        batch = CommitBatch(0, BATCH_BYTES, 0, 9, now_ms, 0, -1, -1, -1, -1)
        partition = topic.Partition(partition_index=0, batches=(batch,))
        request = CommitBatchesRequest(
            broker_id=broker_id,
            broker_epoch=1,
            lease_id=lease.lease_id,
            object_id=lease.first_object_id + number,
            object_format=1,
            object_size=BATCH_BYTES,
            topics=(topic(topic_id=TOPIC, partitions=(partition,)),),
        )
        answer = await patiently(lambda request=request: coordinator.call(request))  # type: ignore[misc]
        assert not answer.error_code, answer
        offsets.append(answer.topics[0].partitions[0].results[0].assigned_base_offset)
    return offsets


async def find(coordinator: BatchCoordinator) -> dict[str, object]:
    """Return the partition's high watermark and object keys, from this process's local state."""
    topic = FindBatchesRequest.Topic
    partition = topic.Partition(partition_index=0, offset=0, max_bytes=2**30)
    answer = await coordinator.call(
        FindBatchesRequest(
            topics=(topic(topic_id=TOPIC, partitions=(partition,)),), max_bytes=2**30
        )
    )
    found = answer.responses[0].partitions[0]
    return {
        "high_watermark": found.high_watermark,
        "objects": [batch.object_key for batch in found.batches],
    }


async def serve(index: int, addresses: list[str], password: str) -> None:
    """Run one process: execute each command on standard input, and print its answer as JSON."""
    coordinator = EmbeddedCoordinator(settings(index, addresses, password))
    await coordinator.start()
    print(json.dumps("ready"), flush=True)
    loop = asyncio.get_running_loop()
    while word := (await loop.run_in_executor(None, sys.stdin.readline)).strip():
        try:
            answer: Any = None
            match word:
                case "create":
                    await create_topic(coordinator)
                case "commit":
                    answer = await commit(coordinator, index)
                case "find":
                    answer = await find(coordinator)
                case "leads":
                    answer = coordinator.leads
            print(json.dumps({"answer": answer}), flush=True)
        except CoordinatorError as error:
            print(json.dumps({"error": str(error)}), flush=True)
    await coordinator.close()


# --- three of them ----------------------------------------------------------------------------


def until(ask: Callable[[], Any], enough: Callable[[Any], Any]) -> Any:
    """Call `ask` until `enough` accepts the answer, and return that answer."""
    deadline = time.monotonic() + PATIENCE_S
    while not enough(answer := ask()):
        if time.monotonic() > deadline:
            raise SystemExit(f"after {PATIENCE_S} s still {answer}")
        time.sleep(0.01)
    return answer


class Process:
    """One of the application's processes."""

    def __init__(self, index: int, addresses: list[str], password: str) -> None:
        self.index = index
        self._process = subprocess.Popen(
            [sys.executable, "-m", "examples.embedded_coordinator", str(index), *addresses],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        self._say(password)  # not on the command line, which everybody can read

    def wait_until_ready(self) -> None:
        assert json.loads(self._hear()) == "ready"

    def ask(self, word: str) -> Any:
        """Send a command word to the process, and return the process's answer."""
        self._say(word)
        said = json.loads(self._hear())
        if "error" in said:
            raise SystemExit(f"process {self.index}: {said['error']}")
        return said["answer"]

    def find(self, end_offset: int) -> Any:
        """Wait until the process's local state has this end offset; return the found batches."""
        return until(lambda: self.ask("find"), lambda found: found["high_watermark"] >= end_offset)

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()

    def _say(self, line: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(line + "\n")
        self._process.stdin.flush()

    def _hear(self) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise SystemExit(f"process {self.index} ended")
        return line


def main() -> None:
    addresses = [f"127.0.0.1:{port}" for port in free_ports(3)]
    password = secrets.token_hex(16)
    processes = [Process(index, addresses, password) for index in range(3)]
    try:
        for process in processes:
            process.wait_until_ready()
        print("three processes agree, with no server among them")
        first, _, third = processes
        first.ask("create")
        print(f"process 0 commits {OBJECTS} objects, at offsets {first.ask('commit')}")
        found = third.find(10 * OBJECTS)
        print(f"process 2 finds {len(found['objects'])} runs up to {found['high_watermark']}")
        leader = until(lambda: [p for p in processes if p.ask("leads")], bool)[0]
        leader.kill()
        print("the leader is killed")
        survivor, other = (process for process in processes if process is not leader)
        print(f"a survivor commits {OBJECTS} more, at offsets {survivor.ask('commit')}")
        found = other.find(20 * OBJECTS)
        print(f"the other finds {len(found['objects'])} runs up to {found['high_watermark']}")
    finally:
        for process in processes:
            process.kill()


if __name__ == "__main__":
    if len(sys.argv) > 1:
        asyncio.run(serve(int(sys.argv[1]), sys.argv[2:], sys.stdin.readline().strip()))
    else:
        main()
