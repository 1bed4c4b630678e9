"""Finds orphans that only a listing shows, and plans those that two listings have seen.

    listing = take_listing(store, naming, scratch, now_ms)           # first the store,
    found = find_orphans(listing, logs, naming)                      # then the logs
    plan_orphans(found, naming, directory=..., out=..., rules=Rules())

The coordinator knows the orphans of its leases from its log. What it cannot know is an upload that
ended after its key was deleted: then the bytes arrived. Such an object does no harm but costs money
until it is deleted.

An orphan is planned if it was in two listings a grace period apart, with the same size and time; if
it is as old by the store's own clock; if its key is one of this cluster's; and if its lease was
over when the logs were read, so that nothing can ever commit it
(spark_jobs/orphans/known_objects.py). Each of these conditions would be enough if all assumptions
held.

Between listings, a file keeps the orphans that were seen, each with the time of its first sighting.
It is compared in the order of the keys, so neither the file nor the plan is in memory whole.

Source: docs/design/batch-coordinator.md#object-leases, docs/design/pipeline.md#orphans;
docs/orphans.md.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from typing import Any, Final, NamedTuple, Protocol

import numpy as np

from spark_jobs.orphans.known_objects import Kind, KnownObjects, known_objects_at
from spark_jobs.orphans.listing import Naming, Rows, Tally
from spark_jobs.plans.sealed_file import Rows as Written
from spark_jobs.plans.sealed_file import SealedFile, writing
from spark_jobs.readers.logs import DISKLESS_METADATA, Logs, coordinators_of

HOUR_MS: Final = 3_600_000
GRACE_MS: Final = 72 * HOUR_MS
SHORTEST_GRACE_MS: Final = 24 * HOUR_MS
SKEW_MS: Final = 15 * 60_000
"""The largest believable difference between the store's clock and ours."""

EXPIRES_AFTER_MS: Final = HOUR_MS
LARGE_FRACTION: Final = 0.25
"""A plan for a greater part of all listed bytes needs `--allow-large`."""

SEEN: Final = "esker-orphans-seen"
PLAN: Final = "esker-orphans-plan"
SEEN_FILE: Final = "seen.jsonl"
SAMPLE: Final = 20
UNKNOWN_COORDINATOR: Final = "other_coordinator"
"""The kind of an object whose coordinator has no log here."""

OF_ANCESTOR: Final = "of_ancestor"
"""The kind of an object of a lost cluster that the restored log does not name. It is left alone:
the lost cluster may have acknowledged the records in it. The other kinds are those of `Kind`."""


class OrphansError(Exception):
    """The comparison cannot conclude anything. One sentence says why."""


class WholeListing(Protocol):
    """A complete listing, in memory, in files or in Spark."""

    @property
    def began_ms(self) -> int: ...

    @property
    def ended_ms(self) -> int: ...

    @property
    def tally(self) -> Tally: ...

    def not_live(self, known: Mapping[int, KnownObjects]) -> Iterator[Rows]:
        """Yield the listed objects that are live in none of the coordinators' logs.

        Sorted by `listing.ORDER`; those of one spread in one chunk, or in consecutive ones.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """The age from which an orphan is planned. The caller has checked that it is long enough."""

    grace_ms: int = GRACE_MS
    skew_ms: int = SKEW_MS


class Candidate(NamedTuple):
    """An orphan, as a row of a plan or of the file of sightings."""

    key: str
    coordinator: int
    object_id: int
    size_bytes: int
    modified_ms: int  # by the store's clock
    first_seen_ms: int  # the end of the first listing that it was in, by ours


@dataclass(slots=True)
class Count:
    """A number of objects, and their bytes as listed."""

    objects: int = 0
    size_bytes: int = 0

    def add(self, sizes: Any) -> None:
        """Add objects of these sizes in bytes to the count and the total."""
        self.objects += len(sizes)
        self.size_bytes += int(np.sum(sizes))

    def as_json(self) -> dict[str, int]:
        """Return the number of objects and their bytes as JSON."""
        return {"objects": self.objects, "bytes": self.size_bytes}


@dataclass(slots=True)
class FoundOrphans:
    """A listing, and the objects that the logs knew afterwards."""

    listing: WholeListing
    naming: Naming
    known: Mapping[int, KnownObjects]
    counts: dict[str, Count] = field(default_factory=dict)  # by lower-case names of `Kind`

    def orphans(self) -> Iterator[Rows]:
        """Yield the rows of orphans; count all other objects by kind."""
        self.counts = {kind.name.lower(): Count() for kind in Kind}
        self.counts[UNKNOWN_COORDINATOR] = Count()
        self.counts[OF_ANCESTOR] = Count()
        tally, live = self.listing.tally, self.counts[Kind.LIVE.name.lower()]
        live.objects, live.size_bytes = tally.objects, tally.size_bytes
        for rows in self.listing.not_live(self.known):
            live.objects -= len(rows)
            live.size_bytes -= int(np.sum(rows["size_bytes"]))
            yield self._orphans_in(rows)

    def _orphans_in(self, rows: Rows) -> Rows:
        is_orphan = np.zeros(len(rows), np.bool_)
        numbers = np.unique(rows["coordinator"]).tolist()
        for number in numbers:
            of_it = rows["coordinator"] == number
            if number not in self.known:
                self.counts[UNKNOWN_COORDINATOR].add(rows["size_bytes"][of_it])
                continue
            ids, sizes = rows["object_id"][of_it], rows["size_bytes"][of_it]
            kinds = self.known[number].classify(ids)
            inherited = (kinds == Kind.ORPHAN) & (ids < first_own_id(self.naming, number))
            self.counts[OF_ANCESTOR].add(sizes[inherited])
            for kind in Kind:
                self.counts[kind.name.lower()].add(sizes[(kinds == kind) & ~inherited])
            is_orphan[of_it] = (kinds == Kind.ORPHAN) & ~inherited
        return rows[is_orphan]


def first_own_id(naming: Naming, coordinator: int) -> int:
    """Return the object id from which on no ancestor of the cluster wrote an object."""
    below = [one.object_ids_below[coordinator:] for one in naming.ancestors]
    return max((bounds[0] for bounds in below if bounds), default=0)


def find_orphans(
    listing: WholeListing,
    logs: Logs,
    naming: Naming,
    *,
    progress: Callable[[str], None] = lambda _: None,
) -> FoundOrphans:
    """Read the logs, after a listing was taken, to tell its orphans from other listed objects.

    Args:    progress: called with the name of each log before it is read.
    Raises:  OrphansError if they are another cluster's; as `known_objects_at`.
    """
    return FoundOrphans(listing, naming, read_known_objects(logs, naming, progress=progress))


def read_known_objects(
    logs: Logs, naming: Naming, *, progress: Callable[[str], None] = lambda _: None
) -> dict[int, KnownObjects]:
    """Read the object states from each coordinator's log up to its current end.

    Raises:  as `find_orphans`.
    """
    if logs.cluster_id != naming.cluster_id:
        raise OrphansError(
            f"the logs belong to cluster {logs.cluster_id}, the listing to {naming.cluster_id}"
        )
    known = {}
    for coordinator in coordinators_of(logs):
        progress(f"{DISKLESS_METADATA}{coordinator}")
        log = logs.log(f"{DISKLESS_METADATA}{coordinator}")
        known[coordinator] = known_objects_at(log, log.end_offset(), coordinator=coordinator)
    return known


# --- earlier sightings ----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class EarlierSightings:
    """The orphans that earlier listings showed; `file` is None if there was no listing."""

    file: SealedFile | None

    @property
    def ended_ms(self) -> int | None:
        """Return the end time (ms since 1970) of the latest earlier listing; None without one."""
        return None if self.file is None else int(self.file.header["ended_ms"])

    def by_spread(self, naming: Naming) -> Iterator[tuple[int, dict[tuple[int, int], Candidate]]]:
        """Yield the orphans of earlier listings in groups by the first two digits of their keys."""

        def spread_of(one: Candidate) -> int:
            parsed = naming.parse(one.key)
            assert isinstance(parsed, tuple), f"a sealed file holds a foreign key: {one}"
            return parsed[0]

        if self.file is None:
            return
        rows = (Candidate(**row) for row in self.file.rows())
        for spread, some in groupby(rows, key=spread_of):
            yield spread, {(one.coordinator, one.object_id): one for one in some}


def read_sightings(directory: Path, place: Mapping[str, str], began_ms: int) -> EarlierSightings:
    """Read the time at which each orphan of earlier listings of this store was first listed.

    Args:    place: cluster id, store and prefix, as `plan_orphans` writes them.
             began_ms: of the new listing.
    Raises:  OrphansError if they were of another place, or are not over yet; SealError; OSError.
    """
    path = directory / SEEN_FILE
    if not path.exists():
        return EarlierSightings(None)
    file = SealedFile(path, SEEN)
    before = {name: file.header[name] for name in place}
    if before != place:
        differ = [name for name in place if before[name] != place[name]]
        differences = (
            f"another {n.replace('_id', '')} ({before[n]}, not {place[n]})" for n in differ
        )
        raise OrphansError(
            f"{directory} holds listings of {', '.join(differences)}: use another directory for "
            "--listings"
        )
    if file.header["ended_ms"] > began_ms:
        raise OrphansError(
            f"the last listing in {directory} ended {file.header['ended_ms'] - began_ms} ms after "
            "this one began: the clocks disagree, or two sweeps run at once"
        )
    return EarlierSightings(file)


# --- the plan -------------------------------------------------------------------------------------


@dataclass(slots=True)
class Outcome:
    """The counts of a comparison."""

    planned: Count = field(default_factory=Count)
    waiting: Count = field(default_factory=Count)  # first seen less than a grace period ago
    skewed: Count = field(default_factory=Count)  # younger by the store's clock than by ours
    due_ms: int | None = None  # when the first waiting one may be planned
    sample: list[Candidate] = field(default_factory=list)


def scope_of(naming: Naming, uri: str) -> dict[str, str]:
    """Return the cluster, store and prefix that a listing or plan applies to."""
    return {"cluster_id": naming.cluster_id, "store": uri, "prefix": naming.prefix}


def plan_orphans(
    found: FoundOrphans,
    naming: Naming,
    uri: str,
    *,
    directory: Path,
    out: Path,
    rules: Rules,
    made_ms: int | None = None,
) -> Outcome:
    """Write each orphan's first listing time, and a plan to delete orphans past their grace period.

    Nothing else is changed; the plan may be empty. The sightings are written last: if this fails,
    it is as if there had been no listing.

    Args:    directory: holds the sightings of earlier listings.
             made_ms: now, from when the plan expires; None: when the listing ended. An inventory
             may be days old, and its plan still holds: an orphan is one for ever.
    Raises:  OrphansError; SealError; StorageError; OSError.
    """
    listing, place = found.listing, scope_of(naming, uri)
    seen = read_sightings(directory, place, listing.began_ms)
    times = {"began_ms": listing.began_ms, "ended_ms": listing.ended_ms}
    header = {
        **place,
        **times,
        "logs": {
            f"{DISKLESS_METADATA}{candidate.coordinator}": candidate.offset
            for candidate in found.known.values()
        },
    }
    of_plan = {
        **header,
        "seen_before_ms": seen.ended_ms,
        "grace_ms": rules.grace_ms,
        "expires_at_ms": EXPIRES_AFTER_MS + (listing.ended_ms if made_ms is None else made_ms),
    }
    outcome = Outcome()
    with ExitStack() as files:
        keep = files.enter_context(writing(directory / SEEN_FILE, SEEN, header))
        plan = files.enter_context(writing(out, PLAN, of_plan))
        for candidate in _combine_sightings(found, naming, seen):
            keep.add(candidate._asdict())
            _judge(candidate, listing.began_ms, rules, outcome, plan)
        plan.end.update(
            planned_bytes=outcome.planned.size_bytes,
            listed_bytes=listing.tally.size_bytes,
            report=report_of(found, outcome),
        )
    return outcome


def _combine_sightings(
    found: FoundOrphans, naming: Naming, seen: EarlierSightings
) -> Iterator[Candidate]:
    """Yield each listed orphan with the time of the earliest listing that has it unchanged."""
    earlier = seen.by_spread(naming)
    at, of_spread = -1, dict[tuple[int, int], Candidate]()
    for rows in found.orphans():
        for spread, coordinator, object_id, size_bytes, modified_ms in rows.tolist():
            while at < spread:
                at, of_spread = next(earlier, (256, {}))
            before = of_spread.get((coordinator, object_id)) if at == spread else None
            first_ms = found.listing.ended_ms
            if before is not None and before[3:5] == (size_bytes, modified_ms):
                first_ms = before.first_seen_ms
            key = naming.key(coordinator, object_id)
            yield Candidate(key, coordinator, object_id, size_bytes, modified_ms, first_ms)


def _judge(
    candidate: Candidate, began_ms: int, rules: Rules, outcome: Outcome, plan: Written
) -> None:
    count = outcome.planned
    if began_ms - candidate.first_seen_ms < rules.grace_ms:
        count = outcome.waiting
        due_ms = candidate.first_seen_ms + rules.grace_ms
        outcome.due_ms = due_ms if outcome.due_ms is None else min(outcome.due_ms, due_ms)
    elif began_ms - candidate.modified_ms < rules.grace_ms - rules.skew_ms:
        count = outcome.skewed
    else:
        plan.add(candidate._asdict())
        if len(outcome.sample) < SAMPLE:
            outcome.sample.append(candidate)
    count.objects += 1
    count.size_bytes += candidate.size_bytes


def report_of(found: FoundOrphans, outcome: Outcome) -> dict[str, Any]:
    """Return the number of objects of each kind in the listing, as JSON for the plan."""
    tally = found.listing.tally
    return {
        "listed": {"objects": tally.objects, "bytes": tally.size_bytes},
        "referred_to": sum(len(objects.live) for objects in found.known.values()),
        "of_them": {name: count.as_json() for name, count in found.counts.items()},
        "planned": outcome.planned.as_json(),
        "waiting": outcome.waiting.as_json(),
        "skewed": outcome.skewed.as_json(),
        "due_ms": outcome.due_ms,
        "foreign": {
            "objects": sum(tally.foreign.values()),
            "bytes": tally.foreign_bytes,
            "by_cluster": dict(tally.foreign),
            "sample": tally.foreign_sample,
        },
        "strange": {
            "objects": tally.strange,
            "bytes": tally.strange_bytes,
            "sample": tally.strange_sample,
        },
    }
