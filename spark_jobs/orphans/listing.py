"""Lists all objects of one cluster, and keeps the listing on disk until it is compared.

    listing = take_listing(store, keys, directory, now_ms)
    for rows in listing.rows(): ...

Keys begin with two hex digits, so there are 256 listings, made several at a time. Each goes to a
file of its own: 29 bytes an object, read again in the order of the keys, one file at a time; memory
does not grow with the bucket. A listing is complete or fails: an error in any of the 256 makes the
whole listing fail.

Keys of other clusters, and keys of another form, are counted, a few of them are kept as a sample,
and the rest is dropped: what never gets here can never be planned.

Source: docs/design/batch-coordinator.md#keys, docs/design/pipeline.md#orphans; the S3 API reference
(ListObjectsV2).
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from diskless.stores.interface import StoredObject
from records.object_keys import MAX_OBJECT_ID, Ancestor, Ancestors, ObjectKeys, spread
from spark_jobs.orphans.known_objects import Ids, KnownObjects, is_in
from spark_jobs.readers.object_store import ObjectStore

Rows = npt.NDArray[Any]
"""Objects with our cluster's keys, in the order of `ORDER`."""

ROW: Final = np.dtype(
    [
        ("spread", "u1"),  # what the key's two hex digits say
        ("coordinator", "<i4"),
        ("object_id", "<i8"),
        ("size_bytes", "<i8"),
        ("modified_ms", "<i8"),  # by the store's clock
    ]
)
ORDER: Final = ("spread", "coordinator", "object_id")

SPREADS: Final = tuple(f"{number:02x}" for number in range(256))
THREADS: Final = 8
PIECE_ROWS: Final = 50_000
SAMPLE: Final = 10
MAX_CLUSTERS: Final = 100
"""Number of other clusters counted by themselves; the rest are counted together."""

OTHERS: Final = "others"

_SHAPE: Final = re.compile(
    r"(?P<spread>[0-9a-f]{2})/(?P<cluster>[A-Za-z0-9_-]+)/(?P<coordinator>0|[1-9][0-9]{0,8})/"
    r"(?P<object_id>0|[1-9][0-9]{0,18})"
)


@dataclass(frozen=True, slots=True)
class Naming:
    """The form of the keys of a cluster's objects, for all its coordinators. Can be pickled.

    >>> naming = Naming("esker", "Ck3xYz")
    >>> naming.key(0, 4711)
    'esker/ce/Ck3xYz/0/4711'
    >>> naming.parse("esker/ce/Ck3xYz/0/4711")
    (206, 0, 4711)
    >>> naming.parse("esker/ce/other/0/4711"), naming.parse("esker/00/Ck3xYz/0/4711")
    ('other', None)

    A restored cluster goes on with the objects of its ancestors:

    >>> restored = Naming("esker", "restored", (Ancestor("Ck3xYz", (5_000,)),))
    >>> restored.parse("esker/ce/Ck3xYz/0/4711"), restored.is_of_ancestor(0, 4711)
    ((206, 0, 4711), True)
    """

    prefix: str  # before the two hex digits; "" for none
    cluster_id: str
    ancestors: tuple[Ancestor, ...] = ()  # oldest first

    def key(self, coordinator: int, object_id: int) -> str:
        """Return the key under which an object is stored."""
        keys = ObjectKeys(
            prefix=self.prefix,
            cluster_id=self.cluster_id,
            coordinator_partition=coordinator,
            ancestors=Ancestors(self.ancestors),
        )
        return keys.key(object_id)

    def is_of_ancestor(self, coordinator: int, object_id: int) -> bool:
        """Return whether an ancestor of this cluster wrote the object."""
        return Ancestors(self.ancestors).find(coordinator, object_id) is not None

    def listed(self, digits: str) -> str:
        """Return the prefix of all keys that begin with these two hex digits."""
        return f"{self.prefix}/{digits}/" if self.prefix else f"{digits}/"

    def parse(self, key: str) -> tuple[int, int, int] | str | None:
        """Parse an object's key into its first two hex digits, its coordinator and its object id.

        Returns: the cluster's id for a key of another cluster; None for a key of another form.
        """
        below = key
        if self.prefix:
            if not key.startswith(self.prefix + "/"):
                return None
            below = key[len(self.prefix) + 1 :]
        found = _SHAPE.fullmatch(below)
        if found is None:
            return None
        digits, object_id = int(found["spread"], 16), int(found["object_id"])
        coordinator = int(found["coordinator"])
        writer = Ancestors(self.ancestors).find(coordinator, object_id) or self.cluster_id
        if found["cluster"] != writer:
            return None if found["cluster"] == self.cluster_id else found["cluster"]
        if object_id > MAX_OBJECT_ID or spread(object_id) != digits:
            return None
        return digits, coordinator, object_id


@dataclass(slots=True)
class Tally:
    """Counts of a listing, with samples of foreign and strange keys."""

    objects: int = 0  # of our cluster
    size_bytes: int = 0
    foreign: Counter[str] = field(default_factory=Counter)  # objects by other clusters' ids
    foreign_bytes: int = 0
    foreign_sample: list[str] = field(default_factory=list)
    strange: int = 0  # objects whose keys are no cluster's
    strange_bytes: int = 0
    strange_sample: list[str] = field(default_factory=list)

    def add(self, other: Tally) -> None:
        """Add the counts and sample keys of another part of the listing."""
        self.objects += other.objects
        self.size_bytes += other.size_bytes
        for cluster_id, count in other.foreign.items():
            self._foreign(cluster_id, count)
        self.foreign_bytes += other.foreign_bytes
        self.foreign_sample = (self.foreign_sample + other.foreign_sample)[:SAMPLE]
        self.strange += other.strange
        self.strange_bytes += other.strange_bytes
        self.strange_sample = (self.strange_sample + other.strange_sample)[:SAMPLE]

    def take(self, found: StoredObject, naming: Naming) -> tuple[int, int, int] | None:
        """Count an object; return the fields of its key if the object is of this cluster."""
        parsed = naming.parse(found.key)
        if parsed is None:
            self.strange += 1
            self.strange_bytes += found.size_bytes
            if len(self.strange_sample) < SAMPLE:
                self.strange_sample.append(found.key)
            return None
        if isinstance(parsed, str):
            self._foreign(parsed, 1)
            self.foreign_bytes += found.size_bytes
            if len(self.foreign_sample) < SAMPLE:
                self.foreign_sample.append(found.key)
            return None
        self.objects += 1
        self.size_bytes += found.size_bytes
        return parsed

    def _foreign(self, cluster_id: str, count: int) -> None:
        known = cluster_id in self.foreign or len(self.foreign) < MAX_CLUSTERS
        self.foreign[cluster_id if known else OTHERS] += count


def pieces(found: Iterable[StoredObject], naming: Naming, tally: Tally) -> Iterator[Rows]:
    """Yield the listed objects of this cluster as rows, and count these and other objects."""
    rows: list[tuple[int, ...]] = []
    for stored in found:
        ours = tally.take(stored, naming)
        if ours is None:
            continue
        rows.append((*ours, stored.size_bytes, stored.modified_ms))
        if len(rows) == PIECE_ROWS:
            yield np.array(rows, ROW)
            rows = []
    if rows:
        yield np.array(rows, ROW)


@dataclass(frozen=True, slots=True)
class Listing:
    """A complete listing, in files of a directory of its own."""

    directory: Path
    began_ms: int
    ended_ms: int  # ms since 1970, by this machine's clock
    tally: Tally

    def rows(self) -> Iterator[Rows]:
        """Yield the listed objects, sorted, grouped by the first two digits of their keys.

        Raises:  OSError.
        """
        for digits in SPREADS:
            path = self.directory / digits
            if path.exists():
                rows = np.fromfile(path, ROW)
                rows.sort(order=ORDER)
                yield rows

    def not_live(self, known: Mapping[int, KnownObjects]) -> Iterator[Rows]:
        """Yield the listed objects that are live in none of the coordinators' logs."""
        for rows in self.rows():
            lives = np.zeros(len(rows), np.bool_)
            for coordinator, of_it in known.items():
                ours = rows["coordinator"] == coordinator
                lives[ours] = is_in(of_it.live, rows["object_id"][ours])
            yield rows[~lives]

    def suspects(self, known: Mapping[int, KnownObjects]) -> Iterator[tuple[int, Ids]]:
        """Yield by coordinator the live objects that the listing lacks or has with another size."""
        there = {number: np.zeros(len(of_it.live), np.bool_) for number, of_it in known.items()}
        for rows in self.rows():
            for coordinator, of_it in known.items():
                ours = rows[rows["coordinator"] == coordinator]
                ours = ours[is_in(of_it.live, ours["object_id"])]
                whole = ours["size_bytes"] == of_it.size_of(ours["object_id"])
                there[coordinator][np.searchsorted(of_it.live, ours["object_id"][whole])] = True
        for coordinator, of_it in known.items():
            yield coordinator, of_it.live[~there[coordinator]]


def take_listing(
    store: ObjectStore,
    naming: Naming,
    directory: Path,
    now_ms: Callable[[], int],
    *,
    progress: Callable[[int], None] = lambda _: None,
) -> Listing:
    """List all keys of the store that begin with two hex digits, and write the rows to files.

    Args:    directory: exists and is empty; the caller deletes it.
             progress: called with 1 after each of the 256 listings.
    Raises:  StorageError; OSError. The directory then holds no complete listing.
    """
    began_ms = now_ms()
    tally = Tally()

    def list_part(digits: str) -> Tally:
        counted = Tally()
        found = store.list(naming.listed(digits))
        for rows in pieces(found, naming, counted):
            with (directory / digits).open("ab") as file:
                rows.tofile(file)
        return counted

    with ThreadPoolExecutor(THREADS, thread_name_prefix="list") as threads:
        try:
            for counted in threads.map(list_part, SPREADS):
                tally.add(counted)
                progress(1)
        except BaseException:
            threads.shutdown(wait=True, cancel_futures=True)
            raise
    return Listing(directory, began_ms, now_ms(), tally)


def keep_listing(
    found: Iterable[StoredObject], naming: Naming, directory: Path, taken_ms: int
) -> Listing:
    """Store a listing made by another program, such as an inventory of the store.

    Args:    found: in any order.
             taken_ms: when it was begun; later objects may be missing in it.
    Raises:  what `found` raises; OSError.
    """
    tally = Tally()
    for rows in pieces(found, naming, tally):
        for number in np.unique(rows["spread"]).tolist():
            with (directory / SPREADS[number]).open("ab") as file:
                rows[rows["spread"] == number].tofile(file)
    return Listing(directory, taken_ms, taken_ms, tally)
