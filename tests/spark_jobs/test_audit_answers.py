"""Checkpoints agree with the log on kept answers and dead ids, at every offset of a history.

Source: docs/design/batch-coordinator.md#object-leases,
docs/design/batch-coordinator.md#commits-are-idempotent-by-object-id; invariants 4, 6 and 7
(docs/design/invariants.md).
"""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from records.diskless import (
    KeptAnswerState,
    LeaseState,
    ObjectCommitRecord,
    ObjectsState,
    OrphansFoundRecord,
)
from records.frame import encode_record
from spark_jobs.audit import one_log as audit_one_log
from spark_jobs.audit.answers import KEPT_ANSWERS
from tests.coordinator.batch.actors import (
    TOPIC,
    Broker,
    batch,
    create,
    delete_records,
    mark_orphans,
)
from tests.coordinator.batch.subjects import SETTINGS, MemoryWorld
from tests.spark_jobs.audit_world import (
    Entry,
    audit_directory,
    broken_rules,
    checkpoint_at,
    describe_findings,
    write_checkpoint,
    write_entries,
)


def a_history_of_sweeps() -> list[Entry]:
    """Return a log whose orphans are found after their lease was forgotten, removed, and found
    again.
    """
    return [Entry(1), *asyncio.run(_live())]


async def _live() -> list[Entry]:
    world = MemoryWorld(SETTINGS)
    await create(world, TOPIC, 1)
    one, two = Broker(world, 1), Broker(world, 2)
    await one.acquire(10)
    await one.commit(batch(0, 1))
    one.next_id += 2
    assert await one.is_safe(one.next_id + 1)
    await one.commit(batch(0, 2))
    await two.acquire(200)
    for _ in range(KEPT_ANSWERS - 1):
        await two.commit(batch(0, 1), size=100)
    await one.release()
    await world.advance(SETTINGS.file_delete_delay_ms)
    await one.deleted(*await one.files())
    await world.advance(SETTINGS.answer_retention_ms)  # the first lease is forgotten
    assert await mark_orphans(world, 1, 7) == [0, 0]
    await two.commit(batch(0, 1))
    await two.commit(batch(0, 1))
    await delete_records(world, 4)
    await world.advance(SETTINGS.file_delete_delay_ms)
    await one.deleted(*await one.files())
    assert await mark_orphans(world, 1) == [0]
    await two.commit(batch(0, 1))
    again = Broker(world, 2, 2)
    await again.acquire(200)
    await again.commit(batch(0, 1))
    return [Entry(record) for _, record in world.coordinator.log]


HISTORY = a_history_of_sweeps()


@pytest.mark.parametrize("first", [0, 6, 30, 60, 80])
def test_the_audit_reports_no_violation_in_correct_checkpoints_at_any_offset(
    first: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The log starts at its beginning, or at a checkpoint."""
    monkeypatch.setattr(audit_one_log, "MAX_CHECKPOINTS", 1_000)
    write_entries(tmp_path, HISTORY, 1)
    for path in tmp_path.glob("*.log"):
        if int(path.stem) < first:
            path.unlink()
    kinds: set[type] = set()
    fields: set[str] = set()
    found = 0
    for offset in range(max(first, 1), len(HISTORY)):
        records = checkpoint_at(HISTORY, offset)
        write_checkpoint(tmp_path, offset, [encode_record(record) for record in records])
        kinds |= {type(record) for record in records}
        leases = [one for one in records if isinstance(one, LeaseState)]
        named = ("skipped", "fenced", "orphans")
        fields |= {name for one in leases for name in named if getattr(one, name)}
        objects = [one for one in records if isinstance(one, ObjectsState)]
        found += sum(one.broker_ids.count(-1) for one in objects)
    report = audit_directory(tmp_path)
    assert not broken_rules(report), describe_findings(report)
    assert len(report.logs[0].checkpoints) == len(HISTORY) - 1 - first
    assert found > 1
    assert KeptAnswerState in kinds
    assert fields == {"skipped", "fenced", "orphans"} or first > 6


def test_the_audit_reports_a_commit_of_an_object_marked_as_orphan_as_a_violation(
    tmp_path: Path,
) -> None:
    life = list(HISTORY)
    at = next(i for i, one in enumerate(life) if isinstance(one.value, OrphansFoundRecord))
    values = (one.value for one in life[at:])
    later = next(value for value in values if isinstance(value, ObjectCommitRecord))
    found = OrphansFoundRecord(object_ids=(later.object_id,), marked_at_ms=5)
    write_entries(tmp_path, [*life[:at], Entry(found), *life[at:]])
    report = audit_directory(tmp_path)
    assert set(broken_rules(report)) == {"fenced-uncommitted"}, describe_findings(report)


@pytest.mark.parametrize("object_id", [-1, 10_000])
def test_the_audit_reports_an_orphan_whose_object_id_was_never_leased_as_a_violation(
    object_id: int, tmp_path: Path
) -> None:
    found = OrphansFoundRecord(object_ids=(object_id,), marked_at_ms=5)
    write_entries(tmp_path, [*HISTORY, Entry(found)])
    assert set(broken_rules(audit_directory(tmp_path))) == {"objects-leased"}
