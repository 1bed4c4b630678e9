"""Audits of random legal histories are clean: leases, retries, deletions, moves, restarts.

Each history is audited from the log's beginning and from a checkpoint, in one segment and in many.
The histories are those of `tests.coordinator.batch.test_quorum_versus_memory`.

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
    audit_directory,
    broken_rules,
    describe_findings,
    write_checkpoint,
    write_segments,
)

seen: Counter[str] = Counter()


class AuditedHistories(QuorumVersusMemory):
    """Random histories, each followed by an audit of the log they leave."""

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
            self.audit_log(Path(name))
        super().teardown()

    def audit_log(self, directory: Path) -> None:
        log, end = self.world.log, self.oracle.applied_offset
        write_segments(directory, bytes(log.read(log.start_offset, 1 << 30)), 4)
        for offset, values in self.taken:
            write_checkpoint(directory, offset, values)
        self.assert_clean(directory)
        if self.taken and self.taken[0][0] < end:
            offset = self.taken[0][0]
            for path in directory.glob("*.log"):
                path.unlink()
            write_segments(directory, bytes(log.read(Offset(offset), 1 << 30)), 3)
            seen["from a checkpoint"] += 1
            self.assert_clean(directory)

    def assert_clean(self, directory: Path) -> None:
        report = audit_directory(directory)
        assert not broken_rules(report), describe_findings(report)
        (log,) = report.logs
        assert log.end_offset >= self.oracle.applied_offset
        seen["checkpoints compared"] += len(log.checkpoints)
        seen.update({f"type {key}": count for (key, _), count in log.types.items()})


class AuditedAppends(AuditedHistories):
    """Random histories without rewriting, in which objects are removed more often."""

    def replace_several(self) -> None:  # type: ignore[override]
        """Rewrite nothing."""

    def lease_for_rewriting(self) -> None:  # type: ignore[override]
        """Grant no rewriter a lease."""


def test_audits_of_valid_random_coordinator_histories_find_no_violation() -> None:
    wanted = (
        "checkpoints compared", "from a checkpoint", "type 1104", "type 1109", "type 1110",
    )  # fmt: skip
    live_until_seen(AuditedAppends, seen, wanted, lives=13, steps=50)


def test_audits_of_valid_random_histories_with_replaced_runs_find_no_violation() -> None:
    wanted = ("checkpoints compared", "from a checkpoint", "type 1109", "type 1119")
    live_until_seen(AuditedHistories, seen, wanted, lives=10, steps=50)
