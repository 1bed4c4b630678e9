"""Dangling references: offsets that the log promises and the store has not got. That is data loss.

    found = find_dangling(logs, store, naming, list_store)

Here the logs come first: what they refer to now must be in a listing that is made afterwards.
Whatever seems to be missing is then looked for by itself, and those still missing are compared with
the newest log once more: an object may have been retired between the two. What is left is told,
with the offsets that cannot be read any more, and never repaired.

An object that is there with another size is no better: the bytes that its runs point at cannot be
the ones that were committed.

Source: docs/design/pipeline.md#dangling-references; invariant 7 (docs/design/invariants.md).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import islice
from typing import Any, Final, NamedTuple, Protocol

import numpy as np

from spark_jobs.orphans.known_objects import Ids, Known, is_in
from spark_jobs.orphans.listing import Naming, Tally
from spark_jobs.orphans.scan import OrphansError, read_known
from spark_jobs.readers.logs import DISKLESS_METADATA, Logs
from spark_jobs.readers.object_store import ObjectStore
from spark_jobs.tables.log_state import LogState, state_at

THREADS: Final = 8
AT_ONCE: Final = 1_000  # looked for, before the next are taken up


class Lost(NamedTuple):
    """A live object that the store has not got, or has otherwise."""

    coordinator: int
    object_id: int
    key: str
    size_bytes: int  # as committed
    stored_bytes: int | None  # None: it is not there


class Affected(NamedTuple):
    """A partition with offsets that cannot be read."""

    topic_id: str
    topic: str
    partition: int
    offsets: int  # how many
    ranges: list[tuple[int, int]]  # of them, both inclusive, rising, not touching


@dataclass(frozen=True, slots=True)
class Dangling:
    """What was found; nothing, one hopes."""

    live: int  # objects that the logs refer to
    looked_for: int  # of them: were not in the listing, or not with their size
    retired: int  # of those: missing, but nothing refers to them by now
    lost: list[Lost]
    affected: list[Affected]
    listed: Tally


class Listed(Protocol):
    """A whole listing, wherever its rows are kept."""

    @property
    def tally(self) -> Tally: ...

    def suspects(self, known: Mapping[int, Known]) -> Iterator[tuple[int, Ids]]:
        """By coordinator, live objects that are not listed with the size they were committed with.

        A coordinator may come several times.
        """
        ...


def find_dangling(
    logs: Logs,
    store: ObjectStore,
    naming: Naming,
    list_store: Callable[[], Listed],
    *,
    progress: Callable[[str], None] = lambda _: None,
) -> Dangling:
    """Compare the logs with a listing that is made now, and both once more.

    Raises:  OrphansError if the store holds nothing of a cluster that has objects; StorageError; as
             `known_at` and `state_at`.
    """
    known = read_known(logs, naming, progress=progress)
    live = sum(len(one.live) for one in known.values())
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
        for one in _looked_for(store, naming, coordinator, ids, sizes):
            missing[coordinator][one.object_id] = one.stored_bytes
    found = sum(len(some) for some in missing.values())
    lost, affected = _still_referred_to(logs, naming, missing, progress)
    return Dangling(live, looked_for, found - len(lost), lost, affected, listing.tally)


def _looked_for(
    store: ObjectStore, naming: Naming, coordinator: int, ids: Ids, sizes: Ids
) -> Iterator[Lost]:
    """Those that the store, asked for each of them, has not got as they were committed."""

    def look(one: tuple[int, int]) -> Lost | None:
        object_id, size_bytes = one
        key = naming.key(coordinator, object_id)
        found = store.head(key)
        stored = None if found is None else found.size_bytes
        return (
            None if stored == size_bytes else Lost(coordinator, object_id, key, size_bytes, stored)
        )

    waiting = zip(ids.tolist(), sizes.tolist(), strict=True)
    with ThreadPoolExecutor(THREADS, thread_name_prefix="head") as threads:
        while some := list(islice(waiting, AT_ONCE)):
            yield from filter(None, threads.map(look, some))


def _still_referred_to(
    logs: Logs,
    naming: Naming,
    missing: Mapping[int, Mapping[int, int | None]],
    progress: Callable[[str], None],
) -> tuple[list[Lost], list[Affected]]:
    lost: list[Lost] = []
    affected: list[Affected] = []
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
                here.append(Lost(coordinator, object_id, key, size_bytes, of_it[object_id]))
        lost += here
        affected += affected_by(state, [one.object_id for one in here])
    return lost, affected


def _is_one_of(table: Any, object_ids: list[int]) -> Any:
    import pyarrow as pa
    import pyarrow.compute as pc

    return pc.is_in(table["object_id"], value_set=pa.array(object_ids, pa.int64()))


def affected_by(state: LogState, object_ids: list[int]) -> list[Affected]:
    """The live offsets whose bytes are in these objects, by partition."""
    wanted = np.array(sorted(object_ids), np.int64)
    hits = np.flatnonzero(is_in(wanted, state.runs["object_id"].to_numpy()))
    bases = state.runs["base_offset"].to_numpy()[hits]
    lasts = state.runs["last_offset"].to_numpy()[hits]
    of_partition = np.searchsorted(state.run_bounds, hits, side="right") - 1
    found = []
    for at in np.unique(of_partition).tolist():
        row = state.partitions.slice(at, 1).to_pylist()[0]
        mine = of_partition == at
        ranges: list[tuple[int, int]] = []
        for base, last in zip(bases[mine].tolist(), lasts[mine].tolist(), strict=True):
            first = max(base, row["log_start_offset"])
            if ranges and ranges[-1][1] + 1 == first:
                ranges[-1] = (ranges[-1][0], last)
            else:
                ranges.append((first, last))
        count = sum(last - first + 1 for first, last in ranges)
        found.append(Affected(row["topic_id"], row["topic"], row["partition"], count, ranges))
    return found
