"""`esker compaction`: how far topics are merged and compacted, from the batch coordinators' state.

Source: docs/design/compaction.md.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from esker.commands.base import CommandGroup
from esker.commands.cluster_access import (
    AsJson,
    Controller,
    Server,
    Target,
    TimeoutMs,
    ask_coordinator,
    coordinators,
    fail,
    target,
)
from esker.commands.names import TopicNames
from esker.commands.text_tables import show
from records.final_batches import MAX_RUN_BYTES
from records.kafka_errors import error_name
from records.rpc.objects import DescribeDisklessTopicsRequest
from records.rpc.rewriting import DescribeCleaningRequest, DescribeCleaningResponse

app = CommandGroup("Describe the unfinished merging and compaction of topics.")

EXAMPLE: Final = "Example: esker compaction describe orders --json"
AT_ONCE: Final = 1_000
MIB: Final = 1 << 20

_Found = DescribeCleaningResponse.Topic.Partition


@app.callback(epilog=EXAMPLE)
def compaction() -> None:
    """Describe the unfinished merging and compaction of topics."""


class Backlog(NamedTuple):
    """The backlog of merging and compaction of one partition."""

    topic: str
    partition: int
    stored_bytes: int | None  # None: unknown until rows of deleted runs are gone
    runs: int | None
    merged_runs: int | None  # that a complete merge would leave
    dirty_ratio: float
    cleaned_until: int
    last_stable_offset: int

    @property
    def gets_per_mib(self) -> float | None:
        """Return the GETs per MiB that a consumer of the whole partition needs now."""
        return _ratio(self.runs, self.stored_bytes)

    @property
    def merged_gets_per_mib(self) -> float | None:
        """Return the GETs per MiB that a consumer needs once all runs are merged."""
        return _ratio(self.merged_runs, self.stored_bytes)


@app.command(epilog=EXAMPLE)
def describe(
    topic: TopicNames = None,
    bootstrap_controller: Controller = None,
    bootstrap_server: Server = None,
    as_json: AsJson = False,
    timeout_ms: TimeoutMs = 5000,
) -> None:
    """Print the runs, the dirty ratio and the GETs per MiB of each partition.

    A consumer that reads a partition from its beginning sends a GET for each of its Runs, which are
    GetsPerMiB now and MergedGetsPerMiB after a merge. DirtyRatio is the part of the partition's
    offsets that was never compacted; it means nothing for topics that are not compacted.
    """
    cluster = target(bootstrap_controller, bootstrap_server)
    names = tuple(dict.fromkeys(topic or ()))
    rows = find_backlogs(cluster, names, timeout_ms)
    show({"partitions": [_json(row) for row in rows]}, "\n".join(map(_text, rows)), as_json=as_json)
    unknown = sorted(set(names) - {row.topic for row in rows})
    if unknown:
        names_text = ", ".join(unknown)
        fail(f"no such diskless topic: {names_text}; `esker topics list --diskless` prints all")


def find_backlogs(cluster: Target, names: tuple[str, ...], timeout_ms: int) -> list[Backlog]:
    """Return the backlog of each partition of some topics, or of all if `names` is empty.

    Exits the command if a coordinator gives no answer.
    """
    rows = [
        row
        for coordinator in coordinators(cluster, timeout_ms)
        for row in _describe(cluster, coordinator, names, timeout_ms)
    ]
    return sorted(rows, key=lambda row: (row.topic, row.partition))


def _describe(
    cluster: Target, coordinator: int, names: tuple[str, ...], timeout_ms: int
) -> list[Backlog]:
    """Return the unfinished merging and compaction of one coordinator's partitions."""
    described = ask_coordinator(
        cluster,
        coordinator,
        DescribeDisklessTopicsRequest(coordinator_partition=coordinator, topic_names=names or None),
        timeout_ms,
    )
    _stop_on(described.error_code, described.error_message)
    partitions = [
        (topic.topic_id, topic.topic_name, partition.partition_index)
        for topic in described.topics
        if not topic.error_code
        for partition in topic.partitions
    ]
    rows = []
    for first in range(0, len(partitions), AT_ONCE):
        some = partitions[first : first + AT_ONCE]
        answer = ask_coordinator(
            cluster,
            coordinator,
            DescribeCleaningRequest(
                coordinator_partition=coordinator,
                topics=tuple(
                    DescribeCleaningRequest.Topic(topic_id=topic_id, partitions=(index,))
                    for topic_id, _, index in some
                ),
            ),
            timeout_ms,
        )
        _stop_on(answer.error_code, answer.error_message)
        for (_, name, _), found in zip(some, answer.responses, strict=True):
            if not found.partitions[0].error_code:
                rows.append(_backlog(name, found.partitions[0]))
    return rows


def _backlog(topic: str, found: _Found) -> Backlog:
    live = found.last_stable_offset - found.log_start_offset
    dirty = found.last_stable_offset - max(found.cleaned_until, found.log_start_offset)
    known = found.run_count >= 0
    merged = -(-found.stored_bytes // MAX_RUN_BYTES)
    return Backlog(
        topic,
        found.partition_index,
        found.stored_bytes if known else None,
        found.run_count if known else None,
        min(found.run_count, merged) if known else None,
        dirty / live if live > 0 else 0.0,
        max(0, found.cleaned_until),
        found.last_stable_offset,
    )


def _ratio(runs: int | None, size_bytes: int | None) -> float | None:
    if runs is None or not size_bytes:
        return None
    return runs * MIB / size_bytes


def _stop_on(code: int, message: str | None) -> None:
    if code:
        fail(f"{error_name(code)}: {message}" if message else error_name(code))


def _number(value: float | None) -> str:
    if value is None:
        return "unknown"
    return f"{value:.2f}" if isinstance(value, float) else str(value)


def _text(row: Backlog) -> str:
    return (
        f"Topic: {row.topic}  Partition: {row.partition}  Runs: {_number(row.runs)}"
        f"  MergedRuns: {_number(row.merged_runs)}  StoredBytes: {_number(row.stored_bytes)}"
        f"  GetsPerMiB: {_number(row.gets_per_mib)}"
        f"  MergedGetsPerMiB: {_number(row.merged_gets_per_mib)}"
        f"  DirtyRatio: {_number(row.dirty_ratio)}  CleanedUntil: {row.cleaned_until}"
        f"  LastStableOffset: {row.last_stable_offset}"
    )


def _json(row: Backlog) -> dict[str, Any]:
    return {
        "topic": row.topic,
        "partition": row.partition,
        "runs": row.runs,
        "mergedRuns": row.merged_runs,
        "storedBytes": row.stored_bytes,
        "getsPerMiB": row.gets_per_mib,
        "mergedGetsPerMiB": row.merged_gets_per_mib,
        "dirtyRatio": row.dirty_ratio,
        "cleanedUntil": row.cleaned_until,
        "lastStableOffset": row.last_stable_offset,
    }
