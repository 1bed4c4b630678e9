"""Audits of legal histories are clean, however wild the histories: leases, retries, deletions,
moves, restarts; from the log's beginning, and from a checkpoint on; in one piece, and in many.

The lives are those of `tests.coordinator.batch.test_quorum_versus_memory`.

Source: docs/design/invariants.md.
"""

from __future__ import annotations

import tempfile
from collections import Counter
from pathlib import Path

from hypothesis.stateful import precondition, rule

from records.types import Offset
from tests.coordinator.batch.test_quorum_versus_memory import QuorumVersusMemory
from tests.lives import live_until_seen
from tests.spark_jobs.audit_world import (
    audited,
    complaints,
    told,
    write_checkpoint,
    write_segments,
)

seen: Counter[str] = Counter()


class Lives(QuorumVersusMemory):
    """Those lives, and an audit of what they leave."""

    def __init__(self) -> None:
        super().__init__()
        self.taken: list[tuple[int, list[bytes]]] = []

    @precondition(lambda self: len(self.taken) < 3)
    @rule()
    def take_a_checkpoint(self) -> None:
        self.catch_up()
        if self.oracle.applied_offset > (self.taken[-1][0] if self.taken else 0):
            self.taken.append((self.oracle.applied_offset, self.oracle.checkpoint()))

    def teardown(self) -> None:
        self.catch_up()
        with tempfile.TemporaryDirectory(prefix="esker-audit-") as name:
            self.look(Path(name))
        super().teardown()

    def look(self, directory: Path) -> None:
        log, end = self.world.log, self.oracle.applied_offset
        write_segments(directory, bytes(log.read(log.start_offset, 1 << 30)), 4)
        for offset, values in self.taken:
            write_checkpoint(directory, offset, values)
        self.is_clean(directory)
        if self.taken and self.taken[0][0] < end:
            offset = self.taken[0][0]
            for path in directory.glob("*.log"):
                path.unlink()
            write_segments(directory, bytes(log.read(Offset(offset), 1 << 30)), 3)
            seen["from a checkpoint"] += 1
            self.is_clean(directory)

    def is_clean(self, directory: Path) -> None:
        report = audited(directory)
        assert not told(report), complaints(report)
        (log,) = report.logs
        assert log.end_offset >= self.oracle.applied_offset
        seen["checkpoints compared"] += len(log.checkpoints)
        seen.update({f"type {key}": count for (key, _), count in log.types.items()})


def test_legal_histories_are_clean() -> None:
    wanted = (
        "checkpoints compared", "from a checkpoint", "type 1104", "type 1109", "type 1110",
    )  # fmt: skip
    live_until_seen(Lives, seen, wanted, lives=25, steps=50)
