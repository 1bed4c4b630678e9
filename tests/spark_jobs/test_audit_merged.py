"""The audit of merged objects: sound ones are clean, and each planted fault is found.

Source: docs/audit.md, docs/design/compaction.md.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

from typer.testing import CliRunner

from esker.commands.spark import app
from records.batch import iter_batches
from records.diskless import RunsReplacedRecord
from records.frame import decode_record
from spark_jobs.merge.plan import PlanSettings
from tests.coordinator.batch.subjects import KEYS
from tests.spark_jobs.audit_plants import edit
from tests.spark_jobs.audit_world import Entry
from tests.spark_jobs.merge_world import MergeWorld
from tests.spark_jobs.test_audit_command import a_node
from tests.spark_jobs.test_merge import applied, fill, planned

MERGED = 1_000
"""Id of the first merged object."""


def merged(tmp_path: Path) -> tuple[MergeWorld, list[Entry]]:
    """Return a world with merged objects, and its coordinator's log."""
    world = MergeWorld(tmp_path)

    async def live() -> None:
        await world.begin()
        await fill(world)
        await applied(world, planned(world, PlanSettings(KEYS.prefix, 6_000)))
        await fill(world, 3)

    asyncio.run(live())
    return world, [Entry(decode_record(value)) for value in world.gather()]


def audited(world: MergeWorld, entries: list[Entry]) -> str:
    node = a_node(world.directory.parent / "node", entries)
    words = ["--log-dir", node, "--store", world.directory, "--prefix", KEYS.prefix]
    out = world.directory.parent / "violations.jsonl"
    words += ["--bytes", "full", "--out", out]
    done = CliRunner().invoke(app, ["audit", *map(str, words)])
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    return done.output + out.read_text()


def change(world: MergeWorld, harm: Callable[[bytearray], None], object_id: int = MERGED) -> None:
    path = world.directory / KEYS.key(object_id)
    data = bytearray(path.read_bytes())
    harm(data)
    path.write_bytes(data)


def second_batch(data: bytearray) -> int:
    """Return the position of the second batch."""
    return len(next(iter_batches(bytes(data), verify_crc=False)).view)


def flip_a_value(data: bytearray) -> None:
    data[second_batch(data) + 70] ^= 1


def move_a_base_offset(data: bytearray) -> None:
    """Change bytes that no checksum of a batch covers."""
    data[second_batch(data) + 7] -= 1


def damage_the_footer(data: bytearray) -> None:
    data[-40] ^= 1


def test_the_audit_of_undamaged_merged_objects_finds_no_violation(
    tmp_path: Path,
) -> None:
    world, entries = merged(tmp_path)
    output = audited(world, entries)
    assert "bytes-sound" not in output
    assert "footer-agrees" not in output
    assert "replaced-live" not in output
    assert "of rewritten objects" not in output


def test_the_audit_finds_each_fault_in_the_bytes_of_merged_objects(tmp_path: Path) -> None:
    world, entries = merged(tmp_path)
    change(world, flip_a_value)
    change(world, move_a_base_offset, MERGED + 1)
    change(world, damage_the_footer, MERGED + 2)
    lines = audited(world, entries).splitlines()
    for object_id, rule, what in (
        (MERGED, "bytes-sound", "crc"),
        (MERGED + 1, "bytes-sound", "a batch begins at offset"),
        (MERGED + 2, "footer-agrees", "the footer's checksum is wrong"),
    ):
        found = [line for line in lines if line.startswith("{") and KEYS.key(object_id) in line]
        assert len(found) == 1, (object_id, "\n".join(lines))
        assert what in found[0], found
        assert rule in found[0], found


def test_the_audit_finds_a_replacement_with_the_digest_of_other_runs(tmp_path: Path) -> None:
    world, entries = merged(tmp_path)
    index, record = next(
        (i, one.value) for i, one in enumerate(entries) if isinstance(one.value, RunsReplacedRecord)
    )
    digests = (record.old_run_digests[0] ^ 1, *record.old_run_digests[1:])
    entries = edit(entries, index, old_run_digests=digests)
    output = audited(world, entries)
    assert "replaced-live" in output
    assert "are not those whose digest the record has" in output
