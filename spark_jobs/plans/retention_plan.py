"""Writes and reads a retention plan: a file that people review before they apply it.

JSON, one object a line: a header that says what the plan was made from, then the rows by
coordinator, topic id and partition, then a line that seals everything before it. The same inputs
give the same bytes, so two plans can be compared; a file that was cut off or edited is refused.

Source: docs/design/pipeline.md#plans.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple

from spark_jobs.plans.sealed_file import writing_whole

KIND: Final = "esker-retention-plan"
VERSION: Final = 2
EXPIRES_AFTER_MS: Final = 3_600_000


LARGE_FRACTION: Final = 0.25
"""A plan that removes a greater part of all live bytes needs `--allow-large`."""


class PlanRow(NamedTuple):
    """A partition's new log start under the settings that were assumed."""

    coordinator: int  # the partition of __diskless-metadata that it belongs to
    topic_id: str
    topic: str
    partition: int
    old_log_start: int  # inclusive
    new_log_start: int
    reason: int  # 1 retention.ms, 2 retention.bytes
    limit: int  # the setting's value
    runs: int  # removed
    bytes: int  # removed, logically
    runs_before: int  # live
    bytes_before: int


@dataclass(frozen=True, slots=True)
class Effect:
    """A plan's effect on the objects of one coordinator, in bytes except `objects_freed`."""

    live_bytes: int  # before
    removed_bytes: int
    objects_freed: int
    freed_bytes: int  # of those objects, as they are stored
    pinned_bytes: int  # of dead batches in objects that stay, once the plan is applied
    pinned_by: Mapping[str, int]  # topic: dead bytes in objects that its live runs keep


class PlanError(Exception):
    """A file is not a whole retention plan. One sentence names it."""


@dataclass(frozen=True, slots=True)
class Plan:
    """The planned rows, and the inputs that they were made from."""

    cluster_id: str
    now_ms: int  # ages were counted from here; ms since 1970
    logs: Mapping[str, int]  # log: the offset (exclusive) up to which it was read
    rows: Sequence[PlanRow]
    effects: Mapping[int, Effect]  # by coordinator

    @property
    def expires_at_ms(self) -> int:
        """Return the time from which coordinators refuse all rows, in ms since 1970."""
        return self.now_ms + EXPIRES_AFTER_MS

    @property
    def plan_id(self) -> str:
        """Return the id of the plan, which is equal for equal inputs and rows."""
        parts = [self.cluster_id, self.now_ms, sorted(self.logs.items()), *self.rows]
        return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:16]

    @property
    def is_large(self) -> bool:
        """Return whether the plan removes more than `LARGE_FRACTION` of all live bytes."""
        live = sum(effect.live_bytes for effect in self.effects.values())
        return sum(row.bytes for row in self.rows) > LARGE_FRACTION * live


def write_plan(plan: Plan, path: Path) -> None:
    """Write a plan to a file, completely or not at all.

    Raises:  OSError.
    """
    header = {
        "kind": KIND,
        "version": VERSION,
        "plan_id": plan.plan_id,
        "cluster_id": plan.cluster_id,
        "now_ms": plan.now_ms,
        "expires_at_ms": plan.expires_at_ms,
        "logs": dict(sorted(plan.logs.items())),
        "effects": {
            str(coordinator): asdict(effect) for coordinator, effect in sorted(plan.effects.items())
        },
    }
    lines = [json.dumps(header), *(json.dumps(row._asdict()) for row in plan.rows)]
    body = "".join(line + "\n" for line in lines)
    seal = {"rows": len(plan.rows), "sha256": hashlib.sha256(body.encode()).hexdigest()}
    with writing_whole(path) as file:
        file.write((body + json.dumps(seal) + "\n").encode())


def read_plan(path: Path) -> Plan:
    """Read a retention plan from a file and verify its checksum.

    Raises:  PlanError if it is not a plan, of another version, cut off or edited; OSError.
    """
    try:
        text = path.read_text(encoding="utf-8")
        lines = text.splitlines()
        seal, header = json.loads(lines[-1]), json.loads(lines[0])
        if header["kind"] != KIND:
            raise PlanError(f"{path} is not a retention plan")
        if header["version"] != VERSION:
            raise PlanError(f"{path} is a plan of version {header['version']}, not {VERSION}")
        body = text[: len(text) - len(lines[-1]) - 1]
        if seal["sha256"] != hashlib.sha256(body.encode()).hexdigest():
            raise PlanError(f"{path} was changed after it was written: make a new plan")
        return _plan(header, [json.loads(line) for line in lines[1:-1]])
    except (ValueError, KeyError, TypeError, IndexError):
        raise PlanError(f"{path} is not a whole retention plan: make a new one") from None


def _plan(header: Mapping[str, Any], rows: Sequence[Mapping[str, Any]]) -> Plan:
    return Plan(
        cluster_id=header["cluster_id"],
        now_ms=header["now_ms"],
        logs=header["logs"],
        rows=[PlanRow(**row) for row in rows],
        effects={
            int(coordinator): Effect(**effect) for coordinator, effect in header["effects"].items()
        },
    )
