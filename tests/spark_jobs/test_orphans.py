"""Tests which objects of a listing are planned as orphans, and how a plan is applied.

Source: docs/design/batch-coordinator.md#object-leases, docs/design/pipeline.md#orphans;
docs/orphans.md.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from coordinator.errors import CoordinatorError
from diskless.stores.interface import StorageError, StoredObject
from records.diskless import LeaseClosedRecord, LeaseGrantedRecord, LeasesForgottenRecord
from records.frame import encode_record
from records.kafka_errors import ErrorCode
from records.object_keys import Ancestor
from records.rpc.objects import MarkOrphansRequest, MarkOrphansResponse
from spark_jobs.orphans import apply as orphans_applying
from spark_jobs.orphans.apply import Journal, OrphansPlan, apply_orphans
from spark_jobs.orphans.listing import (
    PIECE_ROWS,
    SPREADS,
    Listing,
    Naming,
    Tally,
    pieces,
    take_listing,
)
from spark_jobs.orphans.scan import (
    GRACE_MS,
    HOUR_MS,
    SEEN_FILE,
    OrphansError,
    Outcome,
    Rules,
    find_orphans,
    plan_orphans,
)
from spark_jobs.plans.sealed_file import SealedFile, SealError, writing
from tests.spark_jobs.orphans_world import HeldUpStore, MemoryLogs

NAMING = Naming("esker", "c-1")
START_MS = 1_700_000_000_000


def of_lease(first: int, count: int, lease_id: int) -> list[bytes]:
    """Return the records of a lease that was granted, released before any upload, and forgotten."""
    records = [
        LeaseGrantedRecord(
            lease_id=lease_id, broker_id=1, broker_epoch=1, first_object_id=first,
            object_count=count, granted_at_ms=0, closed_lease_ids=(),
        ),
        LeaseClosedRecord(lease_id=lease_id, closed_at_ms=0, end_object_id=first, reason=0),
        LeasesForgottenRecord(lease_ids=(lease_id,)),
    ]  # fmt: skip
    return [encode_record(record) for record in records]


class Bucket:
    """A store below a directory, with everything that is needed to sweep it."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.store = HeldUpStore(directory / "objects")
        self.logs = MemoryLogs(of_lease(0, 1_000, 0), "c-1")
        self.naming = NAMING
        self.listings = directory / "listings"
        self.out = directory / "plan.jsonl"
        self.now_ms = START_MS
        self.listings.mkdir()
        self.store.root.mkdir()

    def put(self, key: str, *, modified_ms: int | None = None, data: bytes = b"abc") -> None:
        path = self.store.root / key
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
        at_ms = self.now_ms if modified_ms is None else modified_ms
        os.utime(path, ns=(0, at_ms * 1_000_000))

    def orphan(self, object_id: int, coordinator: int = 0) -> str:
        key = NAMING.key(coordinator, object_id)
        self.put(key)
        return key

    def take(self) -> Listing:
        scratch = self.directory / f"scratch-{self.now_ms}"
        scratch.mkdir(exist_ok=True)
        for old in scratch.iterdir():
            old.unlink()
        return take_listing(self.store, self.naming, scratch, lambda: self.now_ms)

    def sweep(self, rules: Rules = Rules()) -> Outcome:  # noqa: B008 (a value)
        found = find_orphans(self.take(), self.logs, self.naming)
        return plan_orphans(
            found, self.naming, self.store.uri, directory=self.listings, out=self.out, rules=rules
        )

    def planned(self) -> list[str]:
        return [row.key for row in OrphansPlan(self.out).rows()]

    def files(self) -> set[str]:
        found = (path for path in self.directory.rglob("*") if path.is_file())
        return {
            str(path.relative_to(self.directory)) for path in found if "scratch" not in str(path)
        }


@pytest.fixture
def bucket(tmp_path: Path) -> Bucket:
    """Return an empty bucket."""
    return Bucket(tmp_path)


def test_the_orphans_job_plans_an_orphan_after_two_listings_a_grace_period_apart(
    bucket: Bucket,
) -> None:
    key = bucket.orphan(7)
    for hours, planned in ((0, []), (1, []), (71, []), (72, [key]), (200, [key])):
        bucket.now_ms = START_MS + hours * HOUR_MS
        outcome = bucket.sweep()
        assert bucket.planned() == planned, hours
        assert outcome.planned.objects + outcome.waiting.objects == 1
        if not planned:
            assert outcome.due_ms == START_MS + GRACE_MS


def test_the_orphans_job_does_not_plan_an_old_orphan_after_a_single_listing(bucket: Bucket) -> None:
    bucket.put(NAMING.key(0, 7), modified_ms=0)
    bucket.sweep()
    assert bucket.planned() == []


def test_the_orphans_job_counts_a_rewritten_or_reappeared_orphan_as_seen_for_the_first_time(
    bucket: Bucket,
) -> None:
    same, other_time, other_size, away = (bucket.orphan(number) for number in range(4))
    bucket.sweep()
    bucket.now_ms += 10 * HOUR_MS
    bucket.put(other_time)
    bucket.put(other_size, modified_ms=START_MS, data=b"four")
    (bucket.store.root / away).unlink()
    bucket.sweep()
    bucket.put(away, modified_ms=START_MS)
    bucket.now_ms = START_MS + GRACE_MS
    bucket.sweep()
    assert bucket.planned() == [same]
    bucket.now_ms += GRACE_MS
    bucket.sweep()
    assert sorted(bucket.planned()) == sorted([same, other_time, other_size, away])


def test_the_orphans_job_plans_no_orphan_if_the_stores_clock_is_far_ahead(bucket: Bucket) -> None:
    key = NAMING.key(0, 7)
    bucket.put(key, modified_ms=START_MS + HOUR_MS)
    bucket.sweep()
    bucket.now_ms += GRACE_MS
    outcome = bucket.sweep()
    assert (bucket.planned(), outcome.skewed.objects) == ([], 1)
    bucket.now_ms += HOUR_MS
    assert bucket.sweep().skewed.objects == 0
    assert bucket.planned() == [key]


def test_the_orphans_job_plans_objects_although_the_stores_clock_is_slightly_skewed(
    bucket: Bucket,
) -> None:
    bucket.put(NAMING.key(0, 7), modified_ms=START_MS + 10 * 60_000)
    bucket.put(NAMING.key(0, 8), modified_ms=START_MS - 1_000 * HOUR_MS)
    bucket.sweep()
    bucket.now_ms += GRACE_MS
    bucket.sweep()
    assert len(bucket.planned()) == 2


def test_the_orphans_job_writes_no_plan_if_the_local_clock_went_back(bucket: Bucket) -> None:
    bucket.orphan(7)
    bucket.sweep()
    before = (bucket.listings / SEEN_FILE).read_bytes()
    bucket.out.unlink()
    bucket.now_ms -= 1
    with pytest.raises(OrphansError, match="1 ms after this one began: the clocks disagree"):
        bucket.sweep()
    assert not bucket.out.exists()
    assert (bucket.listings / SEEN_FILE).read_bytes() == before


def test_a_failed_store_listing_leaves_the_orphans_plan_and_the_sightings_file_unchanged(
    bucket: Bucket,
) -> None:
    for object_id in range(300):
        bucket.orphan(object_id)
    bucket.sweep()
    bucket.now_ms += GRACE_MS
    before = bucket.files()
    bucket.store.fails_at = "esker/80/"
    seen = (bucket.listings / SEEN_FILE).read_bytes()
    with pytest.raises(StorageError, match="the disk is gone"):
        bucket.sweep()
    assert bucket.files() == before
    assert (bucket.listings / SEEN_FILE).read_bytes() == seen
    bucket.store.fails_at = None
    assert bucket.sweep().planned.objects == 300


def test_the_orphans_job_reports_object_keys_of_other_clusters_and_never_plans_them(
    bucket: Bucket,
) -> None:
    own = bucket.orphan(7)
    foreign = Naming("esker", "c-2").key(0, 7)
    bucket.put(foreign)
    bucket.put(Naming("esker", "c-3").key(0, 8))
    odd = ["esker/07/c-1/0/7x", "esker/08/c-1/0", "esker/00/c-1/0/7", "esker/07/c-1/0/007"]
    for key in odd:
        bucket.put(key)
    bucket.put("elsewhere/7")
    bucket.put("07/c-1/0/7")
    bucket.sweep()
    bucket.now_ms += GRACE_MS
    bucket.sweep()
    assert bucket.planned() == [own]
    report = SealedFile(bucket.out, "esker-orphans-plan").end["report"]
    assert report["foreign"]["by_cluster"] == {"c-2": 1, "c-3": 1}
    assert foreign in report["foreign"]["sample"]
    assert sorted(report["strange"]["sample"]) == sorted(odd)
    assert (report["listed"]["objects"], report["strange"]["objects"]) == (1, 4)


def test_the_orphans_job_leaves_objects_of_a_restored_clusters_ancestor_alone(
    bucket: Bucket,
) -> None:
    """The lost cluster may have acknowledged what the restored log does not name."""
    unnamed = bucket.orphan(7)
    bucket.naming = restored = Naming("esker", "c-9", (Ancestor("c-1", (500,)),))
    bucket.logs = MemoryLogs(bucket.logs.records, "c-9")
    own = restored.key(0, 700)
    assert restored.key(0, 7) == unnamed
    bucket.put(own)
    bucket.put(Naming("esker", "c-9").key(0, 8))  # no object has this key: 8 is the ancestor's
    bucket.sweep()
    bucket.now_ms += GRACE_MS
    bucket.sweep()
    assert bucket.planned() == [own]
    report = SealedFile(bucket.out, "esker-orphans-plan").end["report"]
    assert report["of_them"]["of_ancestor"] == {"objects": 1, "bytes": 3}
    assert (report["foreign"]["by_cluster"], report["strange"]["objects"]) == ({}, 1)


def test_the_orphans_job_reports_object_ids_unknown_to_the_log_and_never_plans_them(
    bucket: Bucket,
) -> None:
    bucket.put(NAMING.key(0, 1_000))  # in no lease yet
    bucket.put(NAMING.key(3, 7))  # of a coordinator without a log
    for _ in range(2):
        bucket.sweep()
        bucket.now_ms += GRACE_MS
    assert bucket.planned() == []
    of_them = SealedFile(bucket.out, "esker-orphans-plan").end["report"]["of_them"]
    assert of_them["not_given"]["objects"] == of_them["other_coordinator"]["objects"] == 1


def test_the_orphans_job_refuses_logs_of_another_cluster(bucket: Bucket) -> None:
    bucket.logs.cluster_id = "c-2"
    with pytest.raises(OrphansError, match="c-2, the listing to c-1"):
        bucket.sweep()


def test_the_orphans_job_refuses_sightings_of_another_store(bucket: Bucket) -> None:
    bucket.orphan(7)
    bucket.sweep()
    (bucket.directory / "copy").mkdir()
    bucket.store = HeldUpStore(bucket.directory / "copy")
    bucket.now_ms += GRACE_MS
    with pytest.raises(OrphansError, match="holds listings of"):
        bucket.sweep()


@pytest.mark.parametrize("how", ["cut", "edited", "longer"])
def test_the_orphans_job_refuses_an_edited_plan_or_sightings_file(how: str, bucket: Bucket) -> None:
    bucket.orphan(7)
    bucket.sweep()
    bucket.now_ms += GRACE_MS
    bucket.sweep()
    for path in (bucket.out, bucket.listings / SEEN_FILE):
        text = path.read_text()
        path.write_text(
            {"cut": text[:-5], "edited": text.replace('"object_id": 7', '"object_id": 8')}.get(
                how, text + "{}\n"
            )
        )
    with pytest.raises(SealError, match="make a new one"):
        OrphansPlan(bucket.out)
    with pytest.raises(SealError, match="make a new one"):
        bucket.sweep()


def test_the_orphans_job_processes_a_store_listing_in_chunks_of_bounded_size() -> None:
    """Rows are written to disk in chunks, however many there are."""
    tally = Tally()

    def found() -> Iterator[StoredObject]:
        for object_id in range(3 * PIECE_ROWS + 1):
            yield StoredObject(NAMING.key(0, object_id), 1, 0)

    sizes = [len(rows) for rows in pieces(found(), NAMING, tally)]
    assert sizes == [PIECE_ROWS, PIECE_ROWS, PIECE_ROWS, 1]
    assert tally.objects == 3 * PIECE_ROWS + 1


def test_the_orphans_job_lists_every_two_digit_prefix_of_object_keys() -> None:
    assert len(set(SPREADS)) == 256
    assert {NAMING.key(0, object_id)[6:8] for object_id in range(10_000)} == set(SPREADS)


# --- applying -------------------------------------------------------------------------------------


class Recorder:
    """A coordinator that accepts everything until it becomes unavailable."""

    def __init__(self, away_after: int = 10**9, answer: Callable[[str], int] = lambda _: 0) -> None:
        self.asked: list[str] = []
        self.away_after = away_after
        self.answer = answer
        self.whole = 0

    async def call(self, request: MarkOrphansRequest) -> MarkOrphansResponse:
        if self.away_after == 0:
            raise CoordinatorError(ErrorCode.COORDINATOR_NOT_AVAILABLE, "nobody leads")
        self.away_after -= 1
        if self.whole:
            return MarkOrphansResponse(error_code=self.whole)
        self.asked += request.object_keys
        codes = tuple(self.answer(key) for key in request.object_keys)
        return MarkOrphansResponse(key_error_codes=codes)


@pytest.fixture
def plan(bucket: Bucket, monkeypatch: pytest.MonkeyPatch) -> OrphansPlan:
    """Return a plan of 25 orphans, applied in windows of 10 and requests of 4."""
    monkeypatch.setattr(orphans_applying, "WINDOW_ROWS", 10)
    monkeypatch.setattr(orphans_applying, "KEYS_OF_REQUEST", 4)
    for object_id in range(25):
        bucket.orphan(object_id)
    bucket.sweep()
    bucket.now_ms += GRACE_MS
    assert bucket.sweep().planned.objects == 25
    return OrphansPlan(bucket.out)


def journal(plan: OrphansPlan, tmp_path: Path) -> Journal:
    return Journal(tmp_path / "plan.journal", plan.plan_id)


@pytest.mark.parametrize("answered", range(10))
def test_after_an_interrupt_the_orphans_job_repeats_only_the_requests_that_were_in_flight(
    answered: int, plan: OrphansPlan, tmp_path: Path
) -> None:
    first, second = Recorder(away_after=answered), Recorder()
    done = asyncio.run(apply_orphans(plan, journal(plan, tmp_path), lambda _: first))
    assert (done.unanswered is None) == (answered >= 8)  # three requests, three, and two
    done = asyncio.run(apply_orphans(plan, journal(plan, tmp_path), lambda _: second))
    assert (done.taken, done.rows_done, done.unanswered) == (25, 25, None)
    keys = [row.key for row in plan.rows()]
    assert sorted(set(first.asked + second.asked)) == sorted(keys)
    assert len(first.asked) + len(second.asked) <= 25 + 10
    third = Recorder(away_after=0)
    done = asyncio.run(apply_orphans(plan, journal(plan, tmp_path), lambda _: third))
    assert (done.taken, done.unanswered) == (25, None)


def test_the_orphans_job_ignores_an_incomplete_line_of_its_journal(
    plan: OrphansPlan, tmp_path: Path
) -> None:
    first = Recorder(away_after=4)
    asyncio.run(apply_orphans(plan, journal(plan, tmp_path), lambda _: first))
    path = tmp_path / "plan.journal"
    whole = path.read_bytes()
    path.write_bytes(whole + whole[:20])
    again = Recorder()
    done = asyncio.run(apply_orphans(plan, journal(plan, tmp_path), lambda _: again))
    assert (done.taken, len(again.asked)) == (25, 15)


def test_the_orphans_job_counts_refused_object_keys_and_marks_all_other_keys(
    plan: OrphansPlan, tmp_path: Path
) -> None:
    keys = [row.key for row in plan.rows()]
    picky = Recorder(answer=lambda key: 44 if key in keys[3:5] else 0)
    done = asyncio.run(apply_orphans(plan, journal(plan, tmp_path), lambda _: picky))
    assert (done.taken, done.refused) == (23, {44: 2})
    assert done.sample == [(keys[3], 44), (keys[4], 44)]
    assert journal(plan, tmp_path).read() == done


@pytest.mark.parametrize("code", [32, 104])
def test_applying_an_orphans_plan_stops_when_a_coordinator_refuses_the_whole_plan(
    code: int, plan: OrphansPlan, tmp_path: Path
) -> None:
    strict = Recorder()
    strict.whole = code
    done = asyncio.run(apply_orphans(plan, journal(plan, tmp_path), lambda _: strict))
    assert (done.whole_refusal, done.rows_done) == (code, 0)
    assert not (tmp_path / "plan.journal").exists()


def test_the_orphans_job_refuses_to_apply_a_plan_with_another_plans_journal(
    plan: OrphansPlan, tmp_path: Path
) -> None:
    asyncio.run(apply_orphans(plan, journal(plan, tmp_path), lambda _: Recorder()))
    with pytest.raises(ValueError, match="is the journal of plan"):
        Journal(tmp_path / "plan.journal", "another").read()


def test_the_orphans_job_sends_each_coordinator_only_that_coordinators_object_keys(
    tmp_path: Path,
) -> None:
    row = {"size_bytes": 1, "modified_ms": 0, "first_seen_ms": 0}
    header = {"cluster_id": "c-1", "expires_at_ms": 1}
    with writing(tmp_path / "p", "esker-orphans-plan", header) as rows:
        for object_id in range(9):
            number = object_id % 2
            key = NAMING.key(number, object_id)
            rows.add({"key": key, "coordinator": number, "object_id": object_id, **row})
    plan = OrphansPlan(tmp_path / "p")
    asked = {0: Recorder(), 1: Recorder()}
    done = asyncio.run(apply_orphans(plan, journal(plan, tmp_path), asked.__getitem__))
    assert done.taken == 9
    for number, recorder in asked.items():
        assert len(recorder.asked) == 5 - number
        assert all(f"/c-1/{number}/" in key for key in recorder.asked)


def test_an_orphans_plan_counts_as_large_if_it_has_a_large_share_of_the_listed_bytes(
    plan: OrphansPlan,
) -> None:
    assert plan.is_large


def test_the_orphans_benchmark_finds_the_difference_of_two_key_sets() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "bench.bench_orphans", "--objects", "1500"],
        cwd=Path(__file__).parents[2], capture_output=True, text=True, check=True, timeout=60,
    )  # fmt: skip
    assert "1,500 objects listed, 15 orphans" in done.stdout
