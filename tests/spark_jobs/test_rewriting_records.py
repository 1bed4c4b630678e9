"""The records of merging and compaction in archives and in `esker dump-log`.

Source: docs/design/compaction.md#records.
"""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

from typer.testing import CliRunner

from esker.cli import app
from records.frame import decode_record, encode_record, read_frame
from spark_jobs.archive.check import check_archive
from spark_jobs.archive.engines import LocalArchiveEngine
from spark_jobs.readers.archived_logs import ArchivedLogs
from spark_jobs.readers.logs import CLUSTER_METADATA, ReplicaLogs
from spark_jobs.readers.object_store import open_store
from spark_jobs.tables.log_state import state_at
from tests.coordinator.batch.actors import TOPIC, Broker, batch, create
from tests.coordinator.batch.rewriter_actor import Range, Rewriter
from tests.coordinator.batch.subjects import KEYS, SETTINGS, MemoryWorld
from tests.spark_jobs.logs import mark_committed, write_checkpoint, write_values
from tests.spark_jobs.merge_world import MergeWorld
from tests.spark_jobs.test_audit_cluster import the_history
from tests.spark_jobs.test_merge import applied, fill, planned

LOG = "__diskless-metadata-0"
NEW_TYPES = {1117, 1118, 1119, 1128, 1129}


async def _history() -> tuple[int, list[bytes], list[bytes]]:
    """Return a checkpoint's offset and values, and the values of the log behind it."""
    world = MemoryWorld(SETTINGS)
    world.view.raise_level(3)
    await create(world, TOPIC, 2)
    one, rewriter = Broker(world, 1), Rewriter(world)
    await one.acquire(20)
    for _ in range(6):
        await one.commit(batch(0, 3))
    await rewriter.acquire()
    await rewriter.replace(Range(0, 6))
    rewriter.next_object()
    await rewriter.replace(Range(0, 6, bound=12, removed=1, parts=2))
    offset, checkpoint = world.coordinator.state.applied_offset, await world.checkpoint()
    world.coordinator.log.clear()
    await world.advance(SETTINGS.lease_timeout_ms // 2)
    await rewriter.renew()
    rewriter.next_object()
    await rewriter.replace(Range(12, 18), closes=True)
    await Rewriter(world, epoch=2).acquire()
    await one.commit(batch(0, 1))
    return offset, checkpoint, [encode_record(record) for _, record in world.coordinator.log]


def a_node(directory: Path) -> Path:
    """Write a node's directory whose coordinator log begins with a checkpoint."""
    offset, checkpoint, values = asyncio.run(_history())
    end = write_values(directory / LOG, [[value] for value in values], start_offset=offset)
    records = [decode_record(value) for value in checkpoint]
    write_checkpoint(directory / LOG, (offset, 1), records)
    cluster = [[encode_record(record)] for record in the_history()]
    ends = {CLUSTER_METADATA: write_values(directory / CLUSTER_METADATA, cluster), LOG: end}
    mark_committed(directory, ends)
    types = {read_frame(value)[0] for value in (*checkpoint, *values)}
    assert types >= NEW_TYPES, NEW_TYPES - types
    return directory


def test_an_archive_of_replaced_runs_and_rewrite_leases_has_the_same_state_as_the_log(
    tmp_path: Path,
) -> None:
    node, place = a_node(tmp_path / "node"), tmp_path / "archive"
    words = ["spark", "archive", "--log-dir", str(node), "--out", str(place)]
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0, done.output
    store = open_store(str(place))
    assert not check_archive(store, engine=LocalArchiveEngine()).faults
    ours = state_at(ReplicaLogs(node).log(LOG))
    theirs = state_at(ArchivedLogs(store).log(LOG), ours.offset)
    for table in ("topics", "partitions", "runs", "objects", "producers"):
        assert getattr(ours, table).equals(getattr(theirs, table)), table
    assert set(ours.runs.column("object_format").to_pylist()) == {1, 2}


def test_dump_log_shows_the_records_of_replaced_runs_and_rewrite_leases(tmp_path: Path) -> None:
    node = a_node(tmp_path / "node")
    files = [*(node / LOG).glob("*.log"), *(node / LOG).glob("*.checkpoint")]
    done = CliRunner().invoke(app, ["dump-log", *map(str, files), "--json"])
    assert done.exit_code == 0, done.output
    text = done.stdout
    for name in (
        "RewriteLeaseGrantedRecord", "RewriteLeaseRenewedRecord", "RunsReplacedRecord",
        "RewriteLeaseState", "CleaningState",
    ):  # fmt: skip
        assert name in text, text[:2_000]
    shown = CliRunner().invoke(app, ["dump-log", *map(str, files)])
    assert shown.exit_code == 0, shown.output
    for text in ("firstOffsets=[12] endOffsets=[18] oldRunCounts=[2]", "cleanedUntil=[6]"):
        assert text in shown.output
    verified = CliRunner().invoke(app, ["dump-log", *map(str, files), "--verify"])
    assert verified.exit_code == 0, verified.output


def test_dump_log_shows_and_verifies_a_merged_object_and_finds_a_changed_base_offset(
    tmp_path: Path,
) -> None:
    world = MergeWorld(tmp_path)

    async def live() -> None:
        await world.begin()
        await fill(world)
        await applied(world, planned(world))

    asyncio.run(live())
    path = world.directory / KEYS.key(1_000)
    done = CliRunner().invoke(app, ["dump-log", str(path), "--json"])
    kinds = [json.loads(line) for line in done.stdout.splitlines()]
    (whole,) = [line for line in kinds if line["type"] == "object"]
    assert (whole["objectId"], whole["objectFormat"]) == (1_000, 2)
    assert [line["batchCount"] for line in kinds if line["type"] == "partition"] == [20] * 4
    verified = CliRunner().invoke(app, ["dump-log", str(path), "--verify"])
    assert verified.exit_code == 0, verified.output
    data = bytearray(path.read_bytes())
    data[7] ^= 1  # the base offset of the first batch, which no checksum of a batch covers
    path.write_bytes(data)
    verified = CliRunner().invoke(app, ["dump-log", str(path), "--verify"])
    assert verified.exit_code == 1, verified.output
