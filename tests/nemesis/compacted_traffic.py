"""Keyed records in a compacted topic while a nemesis works, and the judgement of what is left.

A thread writes rising numbers under some keys, some of them of nearly a megabyte, and tombstones.
At the end each key is written once more in peace, so its newest value is known. Compaction must
come to its end then: each key's newest record is there, and no other record of that key.

Source: docs/design/compaction.md.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import threading
import time
from pathlib import Path
from random import Random
from types import TracebackType
from typing import Final

from coordinator.batch.client import CoordinatorClient
from records.batch import iter_batches, iter_records
from records.rpc.fetch import FetchRequest, FetchResponse
from records.rpc.rewriting import ListDisklessObjectsRequest
from tests.clients.client import How, Message, Refused
from tests.clients.cluster import EskerCluster
from tests.clients.confluent import Confluent
from tests.clients.test_orphan_sweep import SHORT, Sweep
from tests.nemesis.record_traffic import end_offset
from tests.raft.driver.client import Client as Wire
from tests.waiting import Deadline, wait_until

TOPIC: Final = "compacted"
POLICY: Final = "cleanup.policy"
CONFIGS: Final = {
    POLICY: "compact",
    "min.cleanable.dirty.ratio": "0.01",
    "retention.ms": "-1",
    "delete.retention.ms": "1000",
    "max.message.bytes": "4000000",
}
REWRITING: Final = {
    "esker.compaction.interval.ms": "300",
    "esker.compaction.min.age.ms": "300",
    "esker.compaction.max.wait.ms": "600",
    "esker.compaction.min.saved.runs": "4",
    "esker.compaction.object.bytes": str(1 << 20),
    "esker.delete.physical.max.ms": "9200",
    "log.cleaner.dedupe.buffer.size": "4096",
}
"""Merging and compaction a few times a second, of small objects and with small maps of keys."""

KEYS: Final = 300  # more than a map of keys holds
LARGE_KEYS: Final = 2
LARGE_KEY_BYTES: Final = 1_000_000
AT_ONCE: Final = 60
HOW: Final = How(idempotent=True, max_request_bytes=4_000_000)
FETCH_VERSION: Final = 11
FETCH_BYTES: Final = 16 * 1024 * 1024


class CompactedTraffic:
    """Writes to the compacted topic inside of a `with` block."""

    def __init__(self, bootstrap: str, seed: int) -> None:
        self.sent = 0
        self._random = Random(seed)
        self._bootstrap = bootstrap
        self._keys = [b"key-%d" % number for number in range(KEYS)]
        self._keys += [b"%d" % number * LARGE_KEY_BYTES for number in range(LARGE_KEYS)]
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._write)

    def _write(self) -> None:
        client = Confluent(self._bootstrap)
        while not self._stop.is_set():
            keys = self._random.choices(self._keys[:KEYS], k=AT_ONCE)
            if self._random.random() < 0.1:
                keys.append(self._random.choice(self._keys[KEYS:]))
            with contextlib.suppress(Refused):  # it may be there or not: a later value follows
                self._send(client, keys)
            self._stop.wait(0.2)

    def _send(self, client: Confluent, keys: list[bytes]) -> dict[bytes, bytes | None]:
        values: dict[bytes, bytes | None] = {}
        messages = []
        for key in keys:
            self.sent += 1
            value = None if self._random.random() < 0.1 else b"%d" % self.sent
            values[key] = value
            messages.append(Message(value, key))
        client.send(TOPIC, messages, HOW)
        return values

    def __enter__(self) -> CompactedTraffic:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._stop.set()
        self._thread.join()

    def check(self, cluster: EskerCluster) -> int:
        """Write each key once more, and wait until compaction has left one record of each.

        Returns the number of records that are left.
        """
        newest = self._send(Confluent(self._bootstrap), self._keys)
        values = {key: value for key, value in newest.items() if value is not None}
        left: list[tuple[bytes, bytes | None]] = []

        def is_compacted() -> bool:
            for address in cluster.brokers:
                left[:] = read_compacted(address)
                found = dict(left)  # of equal keys, the newest counts
                found_values = {key: value for key, value in found.items() if value is not None}
                wrong = {key[:20] for key in self._keys if found_values.get(key) != values.get(key)}
                assert not wrong, f"{address}: {len(wrong)} keys have other values: {wrong}"
            return len(left) == len(found)

        wait_until(is_compacted, "one record of each key is left", state=lambda: len(left))
        return len(left)


def read_compacted(address: tuple[str, int]) -> list[tuple[bytes, bytes | None]]:
    """Read the keys and values of the compacted topic, in order, up to its end."""
    records: list[tuple[bytes, bytes | None]] = []
    position = 0
    deadline = Deadline(f"{TOPIC} is read up to its end")
    with Wire(*address, timeout_s=10) as wire:
        end = end_offset(wire, TOPIC, 0)  # of the coordinator; a broker's replica may be behind
        while position < end:
            asked = FetchRequest.FetchTopic
            place = asked.FetchPartition(
                partition=0, fetch_offset=position, partition_max_bytes=FETCH_BYTES
            )
            request = FetchRequest(
                max_wait_ms=100, min_bytes=1, max_bytes=FETCH_BYTES,
                topics=(asked(topic=TOPIC, partitions=(place,)),),
            )  # fmt: skip
            (found,) = wire.ask(request, FetchResponse, FETCH_VERSION).responses[0].partitions
            end = max(end, found.high_watermark)
            before = position
            for batch in iter_batches(found.records or b""):
                assert batch.header.end_offset > position, f"{batch.header} at {position}"
                position = batch.header.end_offset
                records += [
                    (
                        bytes(record.key or b""),
                        None if record.value is None else bytes(record.value),
                    )
                    for record in iter_records(batch)
                ]
            if position == before:
                time.sleep(deadline.pause_s(f"{position} of {end}: error {found.error_code}"))
    return records


def compactors(cluster: EskerCluster) -> list[int]:
    """Return the ids of the processes that merge and compact for brokers."""
    brokers = {cluster.processes[one].pid for one in cluster.broker_ids if one in cluster.processes}
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            fields = stat.read_text().rpartition(")")[2].split()
            if int(fields[1]) in brokers and fields[0] != "Z":
                found.append(int(stat.parent.name))
    return found


def kill_compactor(cluster: EskerCluster) -> None:
    """kill -9 each process that merges and compacts, once there is one."""
    for process in wait_until(lambda: compactors(cluster), "a broker merges or compacts"):
        with contextlib.suppress(ProcessLookupError):
            os.kill(process, signal.SIGKILL)


def check_no_object_leaks(cluster: EskerCluster) -> int:
    """Wait until the store has exactly the objects that hold runs; return their number.

    An upload that ended after its lease is left to the sweep for orphans, which finds it by a
    listing (docs/orphans.md).
    """
    sweep = Sweep(cluster)

    def seen() -> tuple[set[int], set[int]]:
        names = (path.name for path in cluster.store.rglob("[0-9]*") if path.is_file())
        return {int(name) for name in names if name.isdecimal()}, asyncio.run(_used(cluster))

    def is_clean() -> bool:
        stored, used = seen()
        if used and stored == used:
            return True
        if sweep.plan(*SHORT)["planned"]["objects"]:
            sweep.apply()
        return False

    def difference() -> str:
        stored, used = seen()
        return f"leaked {sorted(stored - used)[:9]}, missing {sorted(used - stored)[:9]}"

    wait_until(is_clean, "the store has only objects that hold runs", state=difference)
    return len(seen()[0])


async def _used(cluster: EskerCluster) -> set[int]:
    client = CoordinatorClient(cluster.controllers)
    try:
        answer = await client.call(
            ListDisklessObjectsRequest(
                coordinator_partition=0, from_object_id=0, max_objects=10_000,
                deleted_before_ms=-1,
            )
        )  # fmt: skip
    finally:
        await client.close()
    assert not answer.error_code, answer.error_message
    assert answer.next_object_id < 0, "more objects than one answer lists"
    return {row.object_id for row in answer.objects if row.used_bytes}
