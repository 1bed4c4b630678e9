"""What does a sweep for orphans cost an object, in time and in memory, beside two sets of keys?

    python -m bench.bench_orphans [--objects 1000000]

A log of commits of one batch, in leases that are over; a listing of them all, and of one object in
a hundred that nobody committed and that came back after it was deleted. Listing and log are in
memory already: no network and no disk is measured. The peer does what one would write first: decode
each commit, put its key into a set, list into another set, subtract. Both find the same orphans.
Memory is what is allocated at the peak, in a run of its own, over what listing and log take.
"""

from __future__ import annotations

import argparse
import platform
import shutil
import subprocess
import tempfile
import time
import tracemalloc
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from diskless.stores.interface import StoredObject
from records.compression import Buffer
from records.diskless import (
    LeaseClosedRecord,
    LeaseGrantedRecord,
    ObjectCommitRecord,
    ObjectsRemovedRecord,
)
from records.frame import decode_record, encode_record
from records.uuids import decode_uuid
from spark_jobs.orphans.apply import OrphansPlan
from spark_jobs.orphans.known_objects import known_objects_of
from spark_jobs.orphans.listing import Naming, take_listing
from spark_jobs.orphans.scan import GRACE_MS, Rules, find_orphans, plan_orphans
from spark_jobs.readers.log_position import LogPosition

NAMING: Final = Naming("", "AIBw1rCRR1Wa3lKmL8IDcg")
LEASE_IDS: Final = 10_000
ORPHAN_EACH: Final = 100  # every hundredth id was never committed
TOPIC: Final = decode_uuid("ctXfegCnRjyerjWhgm4hPw")
WRITTEN_MS: Final = 1_000


def records(objects: int) -> Iterator[bytes]:
    """Yield records of closed leases; every hundredth object id of a lease has no commit."""
    for lease_id, first in enumerate(range(0, objects, LEASE_IDS)):
        end = min(objects, first + LEASE_IDS)
        granted = LeaseGrantedRecord(
            lease_id=lease_id, broker_id=1, broker_epoch=1, first_object_id=first,
            object_count=end - first, granted_at_ms=0, closed_lease_ids=(),
        )  # fmt: skip
        yield encode_record(granted)
        for object_id in range(first, end):
            if object_id % ORPHAN_EACH:
                yield encode_record(commit(object_id, lease_id))
        closed = LeaseClosedRecord(lease_id=lease_id, closed_at_ms=0, end_object_id=end, reason=0)
        yield encode_record(closed)
        passed = tuple(range(-(-first // ORPHAN_EACH) * ORPHAN_EACH, end, ORPHAN_EACH))
        yield encode_record(ObjectsRemovedRecord(object_ids=passed))


def commit(object_id: int, lease_id: int) -> ObjectCommitRecord:
    """Return the commit record of an object with one batch."""
    return ObjectCommitRecord(
        object_id=object_id, object_format=1, size_bytes=4_000, broker_id=1, broker_epoch=1,
        lease_id=lease_id, committed_at_ms=0, topic_ids=(TOPIC,), topic_indexes=(0,),
        partitions=(0,), batch_counts=(1,), byte_offsets=(0,), byte_sizes=(3_900,),
        base_offsets=(object_id * 10,), record_counts=(10,), max_timestamps=(0,),
        timestamp_types=(0,), producer_ids=(-1,), producer_epochs=(-1,), base_sequences=(-1,),
        error_codes=(), duplicates=(),
    )  # fmt: skip


@dataclass(frozen=True)
class InMemory:
    """A span, a log and logs at once; and the listing of a store."""

    values_of: list[bytes]
    listed: dict[str, list[StoredObject]]
    cluster_id: str = NAMING.cluster_id
    uri: str = "memory"

    def names(self) -> list[str]:
        return ["__diskless-metadata-0"]

    def log(self, _name: str) -> InMemory:
        return self

    def end_offset(self) -> int:
        return len(self.values_of)

    def spans(self, _end_offset: int, **_: Any) -> list[InMemory]:
        return [self]

    def values(self) -> Iterator[tuple[LogPosition, Buffer]]:
        for offset, value in enumerate(self.values_of):
            yield LogPosition(False, offset, 1, 0), value

    def list(self, prefix: str = "") -> Iterator[StoredObject]:
        return iter(self.listed[prefix])


def world(objects: int) -> InMemory:
    """Return a store in memory with `objects` listed objects and the coordinator's log."""
    listed: dict[str, list[StoredObject]] = {f"{number:02x}/": [] for number in range(256)}
    for object_id in range(objects):
        key = NAMING.key(0, object_id)
        listed[key[:3]].append(StoredObject(key, 4_000, WRITTEN_MS))
    return InMemory(list(records(objects)), listed)


def naive(bucket: InMemory) -> int:
    """Count the orphans as the difference of two sets of object keys."""
    live = set()
    for _, value in bucket.values():
        record = decode_record(value)
        if isinstance(record, ObjectCommitRecord):
            live.add(NAMING.key(0, record.object_id))
    listed = {found.key for prefix in bucket.listed for found in bucket.list(prefix)}
    return len(listed - live)


def sweep(bucket: InMemory, directory: Path, now_ms: int) -> int:
    """List the store, compare it with the log, plan removals, and return the plan's size."""
    with tempfile.TemporaryDirectory(dir=directory) as scratch:
        listing = take_listing(bucket, NAMING, Path(scratch), lambda: now_ms)  # type: ignore[arg-type]
        found = find_orphans(listing, bucket, NAMING)  # type: ignore[arg-type]
        plan_orphans(
            found, NAMING, bucket.uri, directory=directory, out=directory / "plan", rules=Rules()
        )
    return OrphansPlan(directory / "plan").file.count


def timed(work: Callable[[], Any]) -> tuple[float, Any]:
    """Return the seconds that `work` took, and its result."""
    began = time.perf_counter()
    result = work()
    return time.perf_counter() - began, result


def peak(work: Callable[[], Any]) -> int:
    """Return the peak of the bytes that `work` has allocated at one time."""
    tracemalloc.start()
    work()
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return most


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--objects", type=int, default=1_000_000)
    objects = parser.parse_args().objects
    described = subprocess.run(
        ["git", "describe", "--always", "--dirty"], capture_output=True, text=True, check=False
    ).stdout.strip()
    print(f"commit {described}, Python {platform.python_version()}, {platform.machine()}")
    bucket = world(objects)
    directory = Path(tempfile.mkdtemp(prefix="esker-bench-"))
    try:
        sweep(bucket, directory, WRITTEN_MS)
        ours_s, planned = timed(lambda: sweep(bucket, directory, WRITTEN_MS + GRACE_MS))
        naive_s, differing = timed(lambda: naive(bucket))
        known_s, _ = timed(lambda: known_objects_of([bucket], objects, coordinator=0))  # type: ignore[list-item]
        assert differing == planned, f"{differing} differ, {planned} are planned"
        ours_bytes = peak(lambda: sweep(bucket, directory, WRITTEN_MS + 2 * GRACE_MS))
        naive_bytes = peak(lambda: naive(bucket))
    finally:
        shutil.rmtree(directory)
    print(f"{objects:,} objects listed, {differing:,} orphans")
    print(f"sweep      {ours_s:6.2f} s  {ours_bytes / objects:6.0f} bytes an object")
    print(f"  the log  {known_s:6.2f} s of it")
    print(f"two sets   {naive_s:6.2f} s  {naive_bytes / objects:6.0f} bytes an object")
    print(f"time {ours_s / naive_s:.2f}x, memory {ours_bytes / naive_bytes:.2f}x of two sets")


if __name__ == "__main__":
    main()
