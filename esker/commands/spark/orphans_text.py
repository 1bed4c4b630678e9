"""Formats the output of `esker spark orphans`: lines for people, JSON for programs.

Source: docs/design/pipeline.md#plans.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

from esker.commands.text_tables import table
from records.kafka_errors import ErrorCode

if TYPE_CHECKING:
    from spark_jobs.orphans.apply import OrphansPlan, Progress
    from spark_jobs.orphans.dangling import Dangling

SHOWN: Final = 20
JSON_OBJECTS: Final = 1_000
RANGES: Final = 3

_KINDS: Final = {
    "live": "referred to",
    "marked": "to be deleted already",
    "of_lease": "orphans that their coordinator knows",
    "leased": "of an open lease",
    "not_given": "under ids that the logs read here never gave",
    "other_coordinator": "of a coordinator without a log",
    "of_ancestor": "of a cluster that was restored, and not in the log",
    "orphan": "orphans that only a listing shows",
}

_WHY: Final = {
    ErrorCode.POLICY_VIOLATION: "it is referred to, or its lease is not forgotten yet: the next "
    "plan will include it if it is still an orphan",
    ErrorCode.INVALID_REQUEST: "the key does not belong to that coordinator",
    ErrorCode.INVALID_TIMESTAMP: "the plan has expired: make a new one",
    ErrorCode.INCONSISTENT_CLUSTER_ID: "the plan is another cluster's",
}


def at(ms: int) -> str:
    """Format a time in ms since 1970 as UTC text."""
    return datetime.fromtimestamp(ms / 1000, UTC).isoformat(timespec="seconds")


def why(code: int) -> str:
    """Explain the error code of a coordinator that refused the key of an object."""
    return _WHY.get(ErrorCode(code), f"error {code}") if code in set(ErrorCode) else f"error {code}"


def plan_lines(made: OrphansPlan) -> Iterator[str]:
    """Yield lines of text about a plan to remove orphans and about its listing of the store."""
    header, report = made.file.header, made.file.end["report"]
    yield (
        f"Plan {made.plan_id} of cluster {made.cluster_id}, {header['store']} as listed at "
        f"{at(header['began_ms'])}"
    )
    rows = [
        (says, str(report["of_them"][name]["objects"]), str(report["of_them"][name]["bytes"]))
        for name, says in _KINDS.items()
        if report["of_them"][name]["objects"] or name in ("live", "orphan")
    ]
    yield table(("Objects that are", "Count", "Bytes"), rows)
    referred_to = report.get("referred_to", 0)
    if referred_to and not report["listed"]["objects"]:
        yield (
            f"None of the {referred_to} objects that the logs refer to is in {header['store']}: is "
            "it the cluster's store, and --prefix its brokers' esker.object.key.prefix?"
        )
    yield from _others(report)
    if made.file.count:
        headings = ("Key", "Bytes", "Written", "FirstSeen")
        yield table(
            headings,
            [
                (row.key, str(row.size_bytes), at(row.modified_ms), at(row.first_seen_ms))
                for row in islice(made.rows(), SHOWN)
            ],
        )
        if made.file.count > SHOWN:
            yield f"... and {made.file.count - SHOWN} more"
    planned = report["planned"]
    yield f"Planned: {planned['objects']} objects of {planned['bytes']} bytes"


def _others(report: dict[str, Any]) -> Iterator[str]:
    for name, says in (("foreign", "of other clusters"), ("strange", "with no key of a cluster")):
        if report[name]["objects"]:
            yield (
                f"Besides {report[name]['objects']} objects {says}, left alone: "
                f"{', '.join(report[name]['sample'][:3])}"
            )
    if report["waiting"]["objects"]:
        yield (
            f"Waiting: {report['waiting']['objects']} orphans of {report['waiting']['bytes']} "
            f"bytes, seen for less than the grace; list again from {at(report['due_ms'])}"
        )
    if report["skewed"]["objects"]:
        yield (
            f"Kept: {report['skewed']['objects']} orphans, too young by the store's clock, which "
            "disagrees with ours"
        )


def plan_json(made: OrphansPlan) -> dict[str, Any]:
    """Return a plan to remove orphans as JSON, with a sample of the plan's rows.

    The plan's file has all rows.
    """
    sample = [row._asdict() for row in islice(made.rows(), SHOWN)]
    header = {name: value for name, value in made.file.header.items() if name != "version"}
    return {"plan_id": made.plan_id, **header, **made.file.end["report"], "sample": sample}


def outcome_lines(made: OrphansPlan, done: Progress) -> Iterator[str]:
    """Yield lines of text about the results of applying a plan to remove orphans."""
    if done.whole_refusal:
        yield f"Refused: {why(done.whole_refusal)}"
        return
    yield f"{done.taken} of {made.file.count} objects handed over; brokers delete them"
    for code, count in sorted(done.refused.items()):
        yield f"  {count} refused: {why(code)}"
    for key, _ in done.sample:
        yield f"    {key}"
    if done.unanswered is not None:
        yield f"  {made.file.count - done.rows_done} left: {done.unanswered}"
        yield "  Run the same command to continue."


def outcome_json(made: OrphansPlan, done: Progress) -> dict[str, Any]:
    """Return the results of applying a plan to remove orphans as JSON."""
    return {
        "plan_id": made.plan_id,
        "rows": made.file.count,
        "taken": done.taken,
        "refused": {str(code): count for code, count in sorted(done.refused.items())},
        "sample": [list(refusal) for refusal in done.sample],
        "left": made.file.count - done.rows_done,
        "unanswered": done.unanswered,
        "error": done.whole_refusal,
    }


def dangling_lines(found: Dangling) -> Iterator[str]:
    """Yield the lines that describe lost objects and unreadable offsets."""
    yield (
        f"{found.live} objects are referred to; {found.looked_for} were looked for by themselves, "
        f"{found.retired} of them are not referred to any more"
    )
    if not found.lost:
        yield "Nothing is missing."
        return
    yield f"{len(found.lost)} OBJECTS ARE LOST:"
    yield table(
        ("Key", "Bytes", "Stored"),
        [
            (
                item.key,
                str(item.size_bytes),
                "-" if item.stored_bytes is None else str(item.stored_bytes),
            )
            for item in found.lost[:SHOWN]
        ],
    )
    if len(found.lost) > SHOWN:
        yield f"... and {len(found.lost) - SHOWN} more"
    yield "These offsets cannot be read:"
    yield table(
        ("Topic", "Partition", "Offsets", "From-to"),
        [
            (item.topic, str(item.partition), str(item.offsets), _ranges(item.ranges))
            for item in found.affected
        ],
    )


def _ranges(ranges: list[tuple[int, int]]) -> str:
    shown = ", ".join(f"{first}-{last}" for first, last in ranges[:RANGES])
    return shown if len(ranges) <= RANGES else f"{shown} and {len(ranges) - RANGES} more"


def dangling_json(found: Dangling) -> dict[str, Any]:
    """Return lost objects, up to JSON_OBJECTS of them, and unreadable offsets as JSON."""
    return {
        "live": found.live,
        "looked_for": found.looked_for,
        "retired": found.retired,
        "lost": len(found.lost),
        "objects": [item._asdict() for item in found.lost[:JSON_OBJECTS]],
        "affected": [item._asdict() for item in found.affected],
    }
