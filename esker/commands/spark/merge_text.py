"""Formats the output of `esker spark merge`: lines for people, JSON for programs.

Source: docs/design/pipeline.md#plans.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

from esker.commands.spark.orphans_text import at
from esker.commands.text_tables import table
from records.kafka_errors import ErrorCode, error_name

if TYPE_CHECKING:
    from spark_jobs.merge.apply import Left, Outcome
    from spark_jobs.merge.plan import MergePlan

SHOWN: Final = 20
MIB: Final = 1 << 20

_WHY: Final = {
    ErrorCode.FENCED_STATE_EPOCH: "its runs have changed since the plan was made",
    ErrorCode.OFFSET_OUT_OF_RANGE: "its log start has moved, or a transaction in it is open",
    ErrorCode.UNKNOWN_TOPIC_ID: "the topic was deleted",
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: "the partition was deleted",
    ErrorCode.COORDINATOR_NOT_AVAILABLE: "the coordinator did not answer",
}


def plan_lines(made: MergePlan) -> Iterator[str]:
    """Yield lines and a table of text that describe a plan of merges."""
    end = made.file.end
    yield f"Plan {made.plan_id} of cluster {made.cluster_id}, as of {at(made.now_ms)}"
    topics = _topics(made)
    if not topics:
        yield "Nothing to merge."
    else:
        most = sorted(topics.items(), key=lambda item: -item[1]["runs"])[:SHOWN]
        rows = [
            (name, str(row["partitions"]), str(row["runs"]), str(row["bytes"]))
            for name, row in most
        ]
        yield table(("Topic", "Partitions", "Runs", "Bytes"), rows)
        if len(topics) > len(most):
            yield f"... and {len(topics) - len(most)} more topics"
        yield (
            f"{end['merges']} merges of {end['bytes']} bytes: {end['runs']} runs become "
            f"{end['runs'] - end['saved_runs']}"
        )
    yield _gets(made)
    if end["left_merges"]:
        yield f"Left by --max-mib: {end['left_merges']} merges of {end['left_bytes']} bytes"
    if end["unseen_runs"]:
        yield f"Not looked at: {end['unseen_runs']} runs; apply this plan, and make another one"


def _gets(made: MergePlan) -> str:
    """Return a line with the GETs per MiB of a consumer of all partitions, now and merged."""
    end = made.file.end
    mib = max(1, end["live_bytes"]) / MIB
    merged = end["live_runs"] - end["saved_runs"]
    return (
        f"A consumer of everything needs {end['live_runs'] / mib:.2f} GETs per MiB now, "
        f"{merged / mib:.2f} after it"
    )


def _topics(made: MergePlan) -> dict[str, Counter[str]]:
    """Return the number of partitions, runs and bytes of each topic in a plan."""
    topics: dict[str, Counter[str]] = {}
    seen: set[tuple[str, int]] = set()
    for row in made.file.rows():
        found = topics.setdefault(row["topic"], Counter())
        found["runs"] += len(row["sizes"])
        found["bytes"] += sum(row["sizes"])
        found["partitions"] += (row["topic"], row["partition"]) not in seen
        seen.add((row["topic"], row["partition"]))
    return topics


def plan_json(made: MergePlan) -> dict[str, Any]:
    """Return a plan of merges as JSON, with the totals of the plan and of each topic."""
    return {
        "plan_id": made.plan_id,
        "cluster_id": made.cluster_id,
        "now_ms": made.now_ms,
        **made.file.end,
        "topics": {name: dict(row) for name, row in sorted(_topics(made).items())},
    }


def outcome_lines(made: MergePlan, outcome: Outcome) -> Iterator[str]:
    """Yield the lines that describe the applied and the remaining part of a plan of merges."""
    yield (
        f"{len(outcome.done)} of {made.merge_count} merges done: {outcome.old_runs} runs became "
        f"{outcome.new_runs}; {outcome.read_bytes} bytes read, {outcome.written_bytes} written"
    )
    if outcome.left:
        runs = sum(left.runs for left in outcome.left)
        yield f"  {len(outcome.left)} ranges of {runs} runs are left as they were:"
        names = _names(made)
        for left in outcome.left[:SHOWN]:
            name = names.get(left.topic_id, left.topic_id)
            yield f"    {name}-{left.partition} from offset {left.first_offset}: {_why(left)}"
        if len(outcome.left) > SHOWN:
            yield f"    ... and {len(outcome.left) - SHOWN} more"
        yield "  The next plan has what of them is worth merging."
    for number, error in sorted(outcome.failed.items())[:SHOWN]:
        yield f"  merge {number} failed: {error}"
    if outcome.unanswered is not None:
        yield f"  stopped: {outcome.unanswered}"
    if len(outcome.done) < made.merge_count:
        yield "  Run the same command to continue."


def _names(made: MergePlan) -> dict[str, str]:
    """Return the names of a plan's topics by their ids."""
    return {row["topic_id"]: row["topic"] for row in made.file.rows()}


def _why(left: Left) -> str:
    if not left.code:
        return f"unreadable: {left.reason}"
    known = _WHY.get(ErrorCode(left.code)) if left.code in set(ErrorCode) else None
    return known or error_name(left.code)


def outcome_json(made: MergePlan, outcome: Outcome) -> dict[str, Any]:
    """Return the results of applying a plan of merges as JSON."""
    return {
        "plan_id": made.plan_id,
        "merges": made.merge_count,
        "done": len(outcome.done),
        "old_runs": outcome.old_runs,
        "new_runs": outcome.new_runs,
        "read_bytes": outcome.read_bytes,
        "written_bytes": outcome.written_bytes,
        "left": [left._asdict() | {"why": _why(left)} for left in outcome.left],
        "failed": {str(number): error for number, error in sorted(outcome.failed.items())},
        "unanswered": outcome.unanswered,
    }
