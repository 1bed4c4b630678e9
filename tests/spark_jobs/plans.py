"""Plans made by a naive planner: too slow to be used, too simple to be wrong."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Any

from records.diskless import ObjectCommitRecord
from records.frame import decode_record
from records.metadata import ConfigRecord, NoOpRecord, TopicRecord
from records.schema import MetadataRecord
from records.uuids import decode_uuid
from spark_jobs.plans.retention_plan import Effect, PlanRow
from spark_jobs.readers.log_files import LogFiles
from spark_jobs.readers.logs import CLUSTER_METADATA, DISKLESS_METADATA, Span
from spark_jobs.tables.log_state import LogState
from spark_jobs.tables.topics import TopicSettings
from tests.spark_jobs.logs import write_log


def naive_rows(
    state: LogState, topics: Mapping[str, TopicSettings], *, coordinator: int, now_ms: int
) -> list[PlanRow]:
    """Try every prefix of every partition, and take the greatest that may be removed."""
    runs: dict[Any, list[dict[str, Any]]] = {}
    for run in state.runs.to_pylist():
        runs.setdefault((run["topic_id"], run["partition"]), []).append(run)
    found = []
    for row in state.partitions.to_pylist():
        one = topics.get(row["topic_id"])
        if one is None or row["deleted_at_ms"] is not None or one.enforcer == "coordinator":
            continue
        mine = runs.get((row["topic_id"], row["partition"]), [])
        by_time = by_size = 0
        for n in range(len(mine) + 1):
            if one.retention_ms >= 0 and all(
                now_ms - time_of(run) > one.retention_ms for run in mine[:n]
            ):
                by_time = n
            left = sum(run["byte_size"] for run in mine[n:])
            if one.retention_bytes >= 0 and left >= one.retention_bytes:
                by_size = n
        removed = mine[: max(by_time, by_size)]
        if removed:
            reason, limit = (
                (1, one.retention_ms) if by_time >= by_size else (2, one.retention_bytes)
            )
            found.append(
                PlanRow(
                    coordinator, row["topic_id"], row["topic"], row["partition"],
                    row["log_start_offset"], removed[-1]["last_offset"] + 1, reason, limit,
                    len(removed), sum(run["byte_size"] for run in removed),
                    len(mine), sum(run["byte_size"] for run in mine),
                )
            )  # fmt: skip
    return found


def time_of(run: Mapping[str, Any]) -> int:
    """Return the timestamp that a run's age is counted from."""
    return int(run["appended_at_ms"] if run["max_timestamp"] < 0 else run["max_timestamp"])


def batch_bytes(log: LogFiles, end: int) -> dict[int, int]:
    """Sum the bytes of accepted batches of each object that the log has a commit of."""
    found: dict[int, int] = {}
    for span in log.spans(end):
        for _, value in span.values():
            record: Any = decode_record(value)
            if isinstance(record, ObjectCommitRecord):
                nothing = (0,) * len(record.byte_sizes)
                outcomes = zip(
                    record.error_codes or nothing, record.duplicates or nothing, strict=True
                )
                found[record.object_id] = sum(
                    0 if any(outcome) else size
                    for outcome, size in zip(outcomes, record.byte_sizes, strict=True)
                )
    return found


def naive_effect(state: LogState, rows: Sequence[PlanRow], accepted: Mapping[int, int]) -> Effect:
    """Compute a plan's effect run by run.

    Args:  accepted: bytes of accepted batches by object; other objects count with all stored bytes.
    """
    starts = {(row.topic_id, row.partition): row.new_log_start for row in rows}
    names = {row["topic_id"]: row["topic"] or row["topic_id"] for row in state.topics.to_pylist()}
    used: Counter[int] = Counter()
    users: dict[int, set[str]] = {}
    removed = live = 0
    for run in state.runs.to_pylist():
        live += run["byte_size"]
        if run["last_offset"] >= starts.get((run["topic_id"], run["partition"]), 0):
            used[run["object_id"]] += run["byte_size"]
            users.setdefault(run["object_id"], set()).add(names[run["topic_id"]])
        else:
            removed += run["byte_size"]
    objects = state.objects.to_pylist()
    freed = [one for one in objects if one["used_bytes"] and not used[one["object_id"]]]
    pinned_by: Counter[str] = Counter()
    pinned = 0
    for one in objects:
        if used[one["object_id"]]:
            dead = accepted.get(one["object_id"], one["size_bytes"]) - used[one["object_id"]]
            pinned += dead
            pinned_by.update(dict.fromkeys(users[one["object_id"]], dead))
    return Effect(
        live_bytes=live,
        removed_bytes=removed,
        objects_freed=len(freed),
        freed_bytes=sum(one["size_bytes"] for one in freed),
        pinned_bytes=pinned,
        pinned_by={name: size for name, size in pinned_by.items() if size},
    )


@dataclass
class Cut:
    """A log cut into pieces at random offsets."""

    files: LogFiles
    end: int
    random: Random

    def end_offset(self) -> int:
        return self.end

    def spans(self, end_offset: int, **_: Any) -> list[Span]:
        found: list[Span] = []
        for span in self.files.spans(end_offset):
            if span.is_checkpoint or span.end_offset - span.start_offset < 2:
                found.append(span)
                continue
            offsets = range(span.start_offset + 1, span.end_offset)
            cuts = sorted(self.random.sample(offsets, self.random.randint(0, min(4, len(offsets)))))
            bounds = [span.start_offset, *cuts, span.end_offset]
            pieces = (span.within(a, b - 1) for a, b in pairwise(bounds))
            found += [piece for piece in pieces if piece is not None]
        return found


class Worlds:
    """Random histories as the coordinators of one cluster."""

    cluster_id = "worlds"

    def __init__(
        self, directory: Path, logs: Sequence[tuple[Path, int]], random: Random | None = None
    ) -> None:
        """
        Args:    directory: for the cluster's log. logs: each one's directory and end offset.
                 random: cuts the logs in pieces; None: they stay whole.
        """
        self._directory = directory
        self._logs = logs
        self._random = random
        self._settings = 0

    def set(self, settings: Mapping[str, TopicSettings]) -> None:
        """Write these topics and settings to the cluster's log."""
        self._settings += 1
        self._cluster = self._directory / f"settings-{self._settings}"
        self._end = write_log(self._cluster, [[NoOpRecord(), *_records(settings)]])

    def batch_bytes(self, number: int) -> dict[int, int]:
        """Return the bytes of accepted batches by object, as far as a log has their commits."""
        path, end = self._logs[number]
        return batch_bytes(LogFiles(path), end)

    def names(self) -> list[str]:
        numbers = range(len(self._logs))
        return [CLUSTER_METADATA, *(f"{DISKLESS_METADATA}{number}" for number in numbers)]

    def log(self, name: str) -> Any:
        if name == CLUSTER_METADATA:
            return LogFiles(self._cluster)
        path, end = self._logs[int(name.removeprefix(DISKLESS_METADATA))]
        return Cut(LogFiles(path), end, self._random or _Never())


class _Never(Random):
    """A random source that cuts nothing."""

    def randint(self, a: int, b: int) -> int:  # noqa: ARG002
        return a


def _records(settings: Mapping[str, TopicSettings]) -> Iterable[MetadataRecord]:
    for topic_id, one in settings.items():
        yield TopicRecord(name=one.name, topic_id=decode_uuid(topic_id))
        for name, value in (
            ("retention.ms", one.retention_ms),
            ("retention.bytes", one.retention_bytes),
            ("esker.retention.enforcer", one.enforcer),
        ):
            yield ConfigRecord(resource_type=2, resource_name=one.name, name=name, value=str(value))
