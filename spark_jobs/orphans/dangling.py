"""Finds dangling references: objects that the log refers to and the store does not have, which is
data loss.

    found = find_dangling(logs, store, naming, list_store)

Here the logs are read first: the objects that they refer to must be in a listing that is made
afterwards. Each object that seems to be missing is then looked up by itself, and those still
missing are compared with the newest log once more, because retention may have retired an object in
between. The rest is reported with the offsets that can no longer be read, and never repaired.

An object of another size counts as lost too: its bytes cannot be the ones that were committed.

Source: docs/design/pipeline.md#dangling-references; invariant 7 (docs/design/invariants.md).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import islice
from typing import Any, Final, NamedTuple, Protocol

import numpy as np

from spark_jobs.orphans.known_objects import Ids, KnownObjects, is_in
from spark_jobs.orphans.listing import Naming, Tally
from spark_jobs.orphans.scan import OrphansError, read_known_objects
from spark_jobs.readers.logs import DISKLESS_METADATA, Logs
from spark_jobs.readers.object_store import ObjectStore
from spark_jobs.tables.log_state import LogState, state_at

THREADS: Final = 8
AT_ONCE: Final = 1_000  # objects looked up in one round


class LostObject(NamedTuple):
    """A live object that is missing in the store, or has another size there."""

    coordinator: int
    object_id: int
    key: str
    size_bytes: int  # as committed
    stored_bytes: int | None  # None: it is missing


class AffectedPartition(NamedTuple):
    """A partition with offsets that cannot be read."""

    topic_id: str
    topic: str
    partition: int
    offsets: int  # how many
    ranges: list[tuple[int, int]]  # of them, both inclusive, rising, not touching


@dataclass(frozen=True, slots=True)
class Dangling:
    """The result of a comparison."""

    live: int  # objects that the logs refer to
    looked_for: int  # those not listed with their size, and so looked up
    retired: int  # those missing and no longer referred to
    lost: list[LostObject]
    affected: list[AffectedPartition]
    listed: Tally


class WholeListing(Protocol):
    """A complete listing, in memory, in files or in Spark."""

    @property
    def tally(self) -> Tally: ...

    def suspects(self, known: Mapping[int, KnownObjects]) -> Iterator[tuple[int, Ids]]:
        """Yield by coordinator the live objects that the listing lacks or has with another size.

        A coordinator may come several times.
        """
        ...


def find_dangling(
    logs: Logs,
    store: ObjectStore,
    naming: Naming,
    list_store: Callable[[], WholeListing],
    *,
    progress: Callable[[str], None] = lambda _: None,
) -> Dangling:
    """Find the live objects that the store lacks or has with another size.

    Raises:  OrphansError if the store holds nothing of a cluster that has objects; StorageError; as
             `known_objects_at` and `state_at`.
    """
    known = read_known_objects(logs, naming, progress=progress)
    live = sum(len(candidate.live) for candidate in known.values())
    listing = list_store()
    if live and not listing.tally.objects:
        raise OrphansError(
            f"{store.uri} holds no object of cluster {naming.cluster_id} below "
            f"{naming.prefix!r}, the logs refer to {live}: is this the cluster's store and prefix?"
        )
    looked_for = 0
    missing: dict[int, dict[int, int | None]] = {number: {} for number in known}
    for coordinator, ids in listing.suspects(known):
        looked_for += len(ids)
        sizes = known[coordinator].size_of(ids)
        for candidate in _look_up(store, naming, coordinator, ids, sizes):
            missing[coordinator][candidate.object_id] = candidate.stored_bytes
    found = sum(len(ids_missing) for ids_missing in missing.values())
    lost, affected = _recheck(logs, naming, missing, progress)
    return Dangling(live, looked_for, found - len(lost), lost, affected, listing.tally)


def _look_up(
    store: ObjectStore, naming: Naming, coordinator: int, ids: Ids, sizes: Ids
) -> Iterator[LostObject]:
    """Request each object from the store, and yield objects that are missing or differ in size."""

    def look(candidate: tuple[int, int]) -> LostObject | None:
        object_id, size_bytes = candidate
        key = naming.key(coordinator, object_id)
        found = store.head(key)
        stored = None if found is None else found.size_bytes
        return (
            None
            if stored == size_bytes
            else LostObject(coordinator, object_id, key, size_bytes, stored)
        )

    waiting = zip(ids.tolist(), sizes.tolist(), strict=True)
    with ThreadPoolExecutor(THREADS, thread_name_prefix="head") as threads:
        while chunk := list(islice(waiting, AT_ONCE)):
            yield from filter(None, threads.map(look, chunk))


def _recheck(
    logs: Logs,
    naming: Naming,
    missing: Mapping[int, Mapping[int, int | None]],
    progress: Callable[[str], None],
) -> tuple[list[LostObject], list[AffectedPartition]]:
    lost: list[LostObject] = []
    affected: list[AffectedPartition] = []
    for coordinator, of_it in missing.items():
        if not of_it:
            continue
        progress(f"{DISKLESS_METADATA}{coordinator}")
        log = logs.log(f"{DISKLESS_METADATA}{coordinator}")
        state = state_at(log, log.end_offset())
        objects = state.objects.filter(_is_one_of(state.objects, sorted(of_it)))
        here = []
        for row in objects.select(["object_id", "size_bytes", "used_bytes"]).to_pylist():
            if row["used_bytes"]:
                object_id, size_bytes = row["object_id"], row["size_bytes"]
                key = naming.key(coordinator, object_id)
                here.append(LostObject(coordinator, object_id, key, size_bytes, of_it[object_id]))
        lost += here
        affected += affected_by(state, [one.object_id for one in here])
    return lost, affected


def _is_one_of(table: Any, object_ids: list[int]) -> Any:
    import pyarrow as pa
    import pyarrow.compute as pc

    return pc.is_in(table["object_id"], value_set=pa.array(object_ids, pa.int64()))


def affected_by(state: LogState, object_ids: list[int]) -> list[AffectedPartition]:
    """Return the undeleted offsets whose bytes are in these objects, by partition."""
    wanted = np.array(sorted(object_ids), np.int64)
    hits = np.flatnonzero(is_in(wanted, state.runs["object_id"].to_numpy()))
    bases = state.runs["base_offset"].to_numpy()[hits]
    lasts = state.runs["last_offset"].to_numpy()[hits]
    of_partition = np.searchsorted(state.run_bounds, hits, side="right") - 1
    found = []
    for index in np.unique(of_partition).tolist():
        row = state.partitions.slice(index, 1).to_pylist()[0]
        mine = of_partition == index
        ranges: list[tuple[int, int]] = []
        for base, last in zip(bases[mine].tolist(), lasts[mine].tolist(), strict=True):
            first = max(base, row["log_start_offset"])
            if ranges and ranges[-1][1] + 1 == first:
                ranges[-1] = (ranges[-1][0], last)
            else:
                ranges.append((first, last))
        count = sum(last - first + 1 for first, last in ranges)
        found.append(
            AffectedPartition(row["topic_id"], row["topic"], row["partition"], count, ranges)
        )
    return found
