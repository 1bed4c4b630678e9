"""State found by columns is the state that a coordinator has, record by record.

The lives are those of `tests.coordinator.test_quorum_versus_memory`: leases, retries, duplicates,
deletions, moves, restarts. At the end of each the log it left is read here, once from its beginning
and once from a checkpoint on.
"""

from __future__ import annotations

import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import precondition, rule, run_state_machine_as_test

from coordinator.memory import InMemoryState
from coordinator.runs import Run
from raft.segments.files import RealFileSystem
from raft.segments.segment import segment_name
from records.types import Epoch, OffsetAndEpoch
from records.uuids import decode_uuid
from snapshot.writer import CheckpointWriter
from spark_jobs.log_files import LogFiles
from spark_jobs.state import LogState, state_at
from tests.coordinator.test_quorum_versus_memory import QuorumVersusMemory

seen: Counter[str] = Counter()


def as_rows(state: LogState) -> dict[str, Any]:
    """In the coordinator's own words."""
    logs: dict[Any, Any] = {}
    for row in state.partitions.to_pylist():
        place = decode_uuid(row["topic_id"]), row["partition"]
        logs[place] = row["log_start_offset"], row["high_watermark"]
    runs: dict[Any, list[Run]] = {}
    for row in state.runs.to_pylist():
        place = decode_uuid(row.pop("topic_id")), row.pop("partition")
        runs.setdefault(place, []).append(Run(**row))
    objects = {
        row["object_id"]: (
            row["size_bytes"], row["used_bytes"], row["broker_id"], row["committed_at_ms"],
            -1 if row["marked_at_ms"] is None else row["marked_at_ms"],
        )
        for row in state.objects.to_pylist()
    }  # fmt: skip
    return {"logs": logs, "runs": runs, "objects": objects}


def expected(state: InMemoryState) -> dict[str, Any]:
    places = {
        log_id: (topic_id, partition)
        for topic_id, topic in state.topics.items()
        for partition, log_id in enumerate(topic.log_ids)
        if log_id >= 0
    }
    return {
        "logs": {place: state.logs[log_id] for log_id, place in places.items()},
        "runs": {places[log_id]: runs for log_id, runs in state.runs.items()},
        "objects": {
            object_id: (
                one.size_bytes, one.used_bytes, one.broker_id, one.committed_at_ms, one.marked_at_ms
            )
            for object_id, one in state.objects.items()
        },
    }  # fmt: skip


class Lives(QuorumVersusMemory):
    """Those lives, and a look at what they leave."""

    def __init__(self) -> None:
        super().__init__()
        self.taken: tuple[int, list[bytes]] | None = None

    @precondition(lambda self: self.taken is None)
    @rule()
    def take_a_checkpoint(self) -> None:
        self.catch_up()
        if self.oracle.applied_offset:
            self.taken = self.oracle.applied_offset, self.oracle.checkpoint()

    def teardown(self) -> None:
        self.catch_up()
        with tempfile.TemporaryDirectory(prefix="esker-spark-") as name:
            self.look(Path(name))
        super().teardown()

    def look(self, directory: Path) -> None:
        log, oracle = self.world.log, self.oracle
        end = oracle.applied_offset
        (directory / segment_name(0)).write_bytes(log.read(log.start_offset, 1 << 30))
        found = as_rows(state_at(LogFiles(directory), end))
        assert found == expected(oracle)
        seen.update({what: len(rows) for what, rows in found.items()})
        seen["marked"] += sum(one[4] >= 0 for one in found["objects"].values())
        seen["log starts"] += sum(log_start > 0 for log_start, _ in found["logs"].values())
        if self.taken is not None and self.taken[0] < end:
            self.from_checkpoint(directory, *self.taken)
            assert as_rows(state_at(LogFiles(directory), end)) == expected(oracle)
            seen["from a checkpoint"] += 1

    def from_checkpoint(self, directory: Path, offset: int, values: list[bytes]) -> None:
        """The log now begins where the checkpoint ends, or with the batch around that."""
        whole = directory / segment_name(0)
        tail = self.world.log.read(offset, 1 << 30)
        (directory / segment_name(offset)).write_bytes(tail)
        whole.unlink()
        snapshot_id = OffsetAndEpoch(offset, Epoch(1))
        files = RealFileSystem()
        with CheckpointWriter.create(files, directory, snapshot_id, last_timestamp=0) as writer:
            writer.append_values(values)
            writer.freeze()


def test_columns_find_what_a_coordinator_has() -> None:
    seen.clear()
    run_state_machine_as_test(
        Lives,
        settings=settings(
            max_examples=25,
            stateful_step_count=50,
            deadline=None,
            derandomize=True,
            database=None,
            phases=[Phase.generate],
            suppress_health_check=list(HealthCheck),
        ),
    )
    print(dict(sorted(seen.items())))
    for what in ("logs", "runs", "objects", "marked", "log starts", "from a checkpoint"):
        assert seen[what], f"{what}: {seen[what]} in all examples"


def test_nothing_was_ever_committed(tmp_path: Path) -> None:
    (tmp_path / segment_name(0)).touch()
    state = state_at(LogFiles(tmp_path), 0)
    assert (state.partitions.num_rows, state.runs.num_rows, state.objects.num_rows) == (0, 0, 0)
