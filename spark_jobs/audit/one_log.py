"""One log's audit, from plan to findings: what is read where, and what is put together here.

The plan cuts the log wherever a checkpoint ends, so that what stands at each is the state between
two spans. What tasks find comes back as facts: counts, ends, checksums, violations.

The surprise is damage. A log that cannot be read at one place is judged up to there, and the report
says that nothing behind it was; a guess about the rest would find violations that are none.

Source: docs/design/pipeline.md#the-audit, docs/design/invariants.md; `spark_jobs.audit.tasks` is
what runs in tasks.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

import numpy as np

from records.diskless import ObjectsMarkedRecord, ObjectsRemovedRecord
from records.frame import decode_record
from records.object_keys import ObjectKeys
from snapshot.names import checkpoint_name
from spark_jobs.audit.answers import HEADS, Following, Kept, Named
from spark_jobs.audit.checkpoints import REPLAY, Facts, Object, ends_of_facts, replayed_at
from spark_jobs.audit.events import check_events
from spark_jobs.audit.ledger import Ledger
from spark_jobs.audit.log import BatchSpan, Gathered, check_parts, gather
from spark_jobs.audit.objects import Live, marked_committed, orphans_deleted
from spark_jobs.audit.replicas import Sums, batches_of, differing, replicas_agree
from spark_jobs.audit.rows import Ends
from spark_jobs.audit.rules import Findings
from spark_jobs.audit.store import Bucket, Depth
from spark_jobs.audit.tasks import (
    Judged,
    Shared,
    add_up,
    check_a_cluster,
    gather_part,
    judge,
    read_facts,
)
from spark_jobs.readers.engines import Engine
from spark_jobs.readers.log_files import FileSpan, LogFiles
from spark_jobs.readers.logs import DISKLESS_METADATA, Log, Logs, LogsError, Span
from spark_jobs.readers.object_store import ObjectStore
from spark_jobs.tables.schemas import OBJECT_COMMIT_KEY

SPLIT_BYTES: Final = 16 * 1024 * 1024
"""Of log that one task judges: a million batches or so, a few hundred MB as columns."""

MAX_CHECKPOINTS: Final = 4
"""Of a log and replica, that are compared with the log: the newest."""

Progress = Callable[[int], None]
"""Is told of pieces of work that are done."""


@dataclass(frozen=True, slots=True)
class Asked:
    """What is to be looked at, besides logs and checkpoints."""

    store: ObjectStore | None = None
    prefix: str = ""  # of the objects' keys
    depth: Depth = Depth.NONE
    replicas: tuple[tuple[str, Logs], ...] = ()  # other ones of the same logs, with names
    name: str = "the first"  # of the replica that is audited
    split_bytes: int = SPLIT_BYTES


@dataclass(slots=True)
class LogReport:
    """What was looked at of one log."""

    name: str
    start_offset: int
    end_offset: int  # exclusive
    types: Counter[tuple[int, int]] = field(default_factory=Counter)  # by type and version
    control: Counter[int] = field(default_factory=Counter)
    unknown: dict[tuple[int, int], int] = field(default_factory=dict)  # first offset
    checkpoints: list[str] = field(default_factory=list)  # those compared with the log
    objects: int = 0  # in use, as of the end
    objects_read: int = 0  # with their bytes
    live_bytes: int = 0

    @property
    def commits(self) -> int:
        """Of objects."""
        return sum(n for (kind, _), n in self.types.items() if kind == OBJECT_COMMIT_KEY)


@dataclass(slots=True)
class Report:
    """What an audit found."""

    cluster_id: str
    logs: list[LogReport] = field(default_factory=list)
    findings: Findings = field(default_factory=Findings)
    unchecked: dict[str, str] = field(default_factory=dict)  # rule or rules: why


@dataclass(frozen=True, slots=True)
class _Checkpoint:
    """One that is compared with the log; `name` is what it is called in violations."""

    name: str
    span: Span


class OneLog:
    def __init__(
        self,
        logs: Logs,
        name: str,
        engine: Engine,
        asked: Asked,
        report: Report,
        progress: Progress,
    ) -> None:
        self._log = logs.log(name)
        self._cluster_id, self._name = logs.cluster_id, name
        self._engine, self._asked, self._progress = engine, asked, progress
        self._report, self._findings = report, report.findings
        self._end = self._log.end_offset()
        self._checkpoints = self._all_checkpoints()
        self._spans = self._planned()
        start = self._spans[0].start_offset if self._spans else 0
        if self._spans and self._spans[0].is_checkpoint:
            start = self._spans[0].end_offset
        self._about = LogReport(name, start, self._end)
        report.logs.append(self._about)

    def _run(self, task: Callable[[Any], Any], work: Sequence[Any]) -> list[Any]:
        return self._engine.run(task, work, self._progress)

    def _all_checkpoints(self) -> list[_Checkpoint]:
        found = _checkpoints_of(self._name, self._log, self._end)
        for replica, others in self._asked.replicas:
            if self._name in others.names():
                other = others.log(self._name)
                found += _checkpoints_of(f"{replica}: {self._name}", other, self._end)
        return found

    def _planned(self) -> list[Span]:
        """The log in pieces, one of which ends wherever a checkpoint does."""
        cuts = sorted({one.span.end_offset for one in self._checkpoints})
        spans: list[Span] = []
        for span in self._log.spans(self._end, split_bytes=self._asked.split_bytes):
            rest: Span | None = span
            for cut in () if span.is_checkpoint else cuts:
                if rest is not None and rest.start_offset < cut < rest.end_offset:
                    before, rest = rest.within(0, cut - 1), rest.within(cut, rest.end_offset - 1)
                    spans += [before] if before is not None else []
            spans += [rest] if rest is not None else []
        return spans

    def _gathered(self, *, keeps_events: bool) -> list[Gathered]:
        parts: list[Gathered] = self._run(
            partial(gather_part, self._name, keeps_events), self._spans
        )
        if any(part.is_gone for part in parts) and self._planned() != self._spans:
            raise LogsError(f"{self._name}: its head was cut off while it was read; audit again")
        check_parts(self._name, parts, self._findings)
        for part in parts:
            self._findings.merge(part.findings)
            if not part.is_checkpoint:
                self._about.types.update(part.types)
                self._about.control.update(part.control)
            for kind, offset in part.unknown.items():
                self._about.unknown.setdefault(kind, offset)
        return parts

    def _compared(self) -> list[_Checkpoint]:
        """Those that the log before them is here of."""
        return [
            one
            for one in self._checkpoints
            if one.span.end_offset > self._about.start_offset and one.span != self._spans[0]
        ]

    # --- the cluster's

    def audit_cluster(self) -> None:
        """Every rule about the cluster's own log."""
        parts = self._gathered(keeps_events=False)
        if any(part.unreadable is not None for part in parts):
            self._report.unchecked[self._name] = "it cannot be read to its end"
            return
        compared = [(one.name, one.span) for one in self._compared()]
        self._about.checkpoints = [name for name, _ in compared]
        work = [(self._name, tuple(self._spans), tuple(compared))] if self._spans else []
        for found in self._run(check_a_cluster, work):
            self._findings.merge(found)

    # --- a coordinator's

    def audit_coordinator(self) -> Ends:
        """Every rule about a coordinator's log; where it ends."""
        parts = self._gathered(keeps_events=True)
        facts = self._facts()
        base = facts.get(self._spans[0]) if self._spans and self._spans[0].is_checkpoint else None
        first = int(bool(self._spans) and self._spans[0].is_checkpoint)
        if first and base is None:
            if "checkpoint-readable" not in self._findings.counts:
                raise LogsError(f"{self._name}: its checkpoint went while it was read; audit again")
            self._report.unchecked[self._name] = "the checkpoint that it begins with is damaged"
            return Ends()
        whole = next((i for i, part in enumerate(parts) if part.unreadable is not None), len(parts))
        if whole < len(parts):
            why = f"nothing from offset {parts[whole].start_offset} on can be judged"
            self._report.unchecked[self._name] = why
        parts, spans = parts[:whole], self._spans[:whole]
        ledger = Ledger()
        for part in parts:
            check_events(self._name, ledger, part.events, self._findings)
        before, ends_at = self._before(parts, ledger, base)
        judged = self._judged(ledger, spans, before)
        self._take_objects(ledger, base, judged)
        self._replay(ledger, facts, ends_at, judged)
        return ends_at.get(self._end, Ends())

    def _facts(self) -> dict[Span, Facts]:
        """Of every checkpoint that can be read, each sound or its faults told."""
        wanted = [*self._checkpoints]
        known = {one.span for one in wanted}
        if self._spans and self._spans[0].is_checkpoint and self._spans[0] not in known:
            wanted.insert(0, _Checkpoint(f"{self._name} (its first checkpoint)", self._spans[0]))
        facts = {}
        for one, (found, findings) in zip(
            wanted, self._run(read_facts, [(one.name, one.span) for one in wanted]), strict=True
        ):
            self._findings.merge(findings)
            if found is not None:
                facts[one.span] = found
        return facts

    def _before(
        self, parts: Sequence[Gathered], ledger: Ledger, base: Facts | None
    ) -> tuple[list[Ends], dict[int, Ends]]:
        """What was before each span, and where things stood at each checkpoint and at the end."""
        running = Ends() if base is None else ends_of_facts(base)
        wanted = {self._end, *(one.span.end_offset for one in self._checkpoints)}
        before, ends_at = [], {}
        moved = iter([*ledger.start_events, (self._end, ("", 0), 0)])
        event = next(moved)
        for part in parts:
            places = set()
            while event[0] < part.end_offset:
                places.add(event[1])
                event = next(moved)
            before.append(running.of(part.ends, places))
            running.absorb(part.ends)
            if part.end_offset in wanted:
                ends_at[part.end_offset] = running.copy()
        return before, ends_at

    def _judged(
        self, ledger: Ledger, spans: Sequence[Span], before: Sequence[Ends]
    ) -> list[Judged]:
        offsets = sorted({self._end, *(one.span.end_offset for one in self._compared())})
        bucket = None
        if self._asked.store is not None:
            number = int(self._name.removeprefix(DISKLESS_METADATA))
            keys = ObjectKeys(
                prefix=self._asked.prefix,
                cluster_id=self._cluster_id,
                coordinator_partition=number,
            )
            bucket = Bucket(self._asked.store, keys, self._asked.depth)
        shared = Shared(self._name, ledger, self._end, tuple(offsets), bucket)
        judged: list[Judged] = self._run(
            partial(judge, shared), list(zip(spans, before, strict=True))
        )
        for one in judged:
            if one.store_failed is not None:
                raise one.store_failed
            self._findings.merge(one.findings)
        return judged

    def _take_objects(self, ledger: Ledger, base: Facts | None, judged: Sequence[Judged]) -> None:
        """What only all spans together say of objects."""
        committed = np.concatenate([np.zeros(0, np.int64), *(one.objects[0] for one in judged)])
        known = () if base is None else base.objects
        faults = marked_committed(ledger, committed, known)
        self._findings.add("marked-committed", self._name, faults)
        self._findings.add("orphans-deleted", self._name, orphans_deleted(ledger, committed))
        for one in judged:
            live = one.live.get(self._end, Live())
            self._about.objects += sum(used > 0 for used in live.used.values())
            self._about.live_bytes += sum(live.used.values())
            self._about.objects_read += one.read
        gone = [fault for one in judged for fault in one.missing]
        if gone:
            lawful = self._gone_since()
            self._findings.add(
                "object-exists",
                self._name,
                (fault for object_id, fault in gone if object_id not in lawful),
            )

    def _gone_since(self) -> set[int]:
        """Objects that the log let go of while the audit ran."""
        gone: set[int] = set()
        end = self._log.end_offset()
        types = (ObjectsMarkedRecord, ObjectsRemovedRecord)
        if end > self._end:
            for span in self._log.spans(end, start_offset=self._end):
                for _, value in gather(self._name, span).events:
                    record = decode_record(value)
                    if isinstance(record, types):
                        gone.update(record.object_ids)
        return gone

    def _replay(
        self,
        ledger: Ledger,
        facts: dict[Span, Facts],
        ends_at: dict[int, Ends],
        judged: Sequence[Judged],
    ) -> None:
        """Every checkpoint against the log before it."""
        base = facts.get(self._spans[0]) if self._spans else None
        heads = np.concatenate(
            [np.zeros((len(HEADS) + 1, 0), np.int64), *(part.objects for part in judged)], axis=1
        )
        following = Following(ledger, heads, Kept() if base is None else base.kept)
        named = Named.of(ledger)
        for one in sorted(self._compared(), key=lambda one: one.span.end_offset):
            offset, found = one.span.end_offset, facts.get(one.span)
            if found is None or offset not in ends_at:
                continue
            live = Live()
            for part in judged:
                live.add(part.live.get(offset, Live()))
            committed = {} if base is None else dict(base.objects)
            ids, *columns = heads[:4, heads[HEADS.index("log_offset")] < offset].tolist()
            for object_id, size, broker, time in zip(ids, *columns, strict=True):
                committed[object_id] = Object(size, 0, broker, time, -1)
            places = {i: [place for place, _ in told] for i, told in found.kept.starts.items()}
            kept = following.until(offset, places)
            log = replayed_at(offset, ledger, ends_at[offset], live, committed, kept, named)
            self._findings.check(one.name, REPLAY, found, log)
            self._about.checkpoints.append(one.name)

    # --- replicas

    def compare_replicas(self) -> None:
        """This replica's bytes against each other one's, as far as both have them."""
        for replica, others in self._asked.replicas:
            if self._name not in others.names():
                continue
            other = others.log(self._name)
            end = min(self._end, other.end_offset())
            starts = [_start(log.spans(end)) for log in (self._log, other)]
            start = max(starts)
            if start >= end:
                continue
            both = [
                tuple(log.spans(end, start_offset=start, split_bytes=self._asked.split_bytes))
                for log in (self._log, other)
            ]
            if not all(isinstance(span, BatchSpan) for spans in both for span in spans):
                continue
            names = self._name, f"{replica}: {self._name}"
            ours, theirs = (self._sums(n, spans) for n, spans in zip(names, both, strict=True))
            if ours is None or theirs is None:
                why = f"not all of it, or of {self._asked.name}, can be read"
                self._report.unchecked[f"replicas-agree of {replica}, {self._name}"] = why
                continue
            for block in differing(ours, theirs):
                batches = [batches_of(spans, block) for spans in both]
                faults = replicas_agree(self._asked.name, replica, *batches)
                self._findings.add("replicas-agree", self._name, faults)

    def _sums(self, name: str, spans: Sequence[Span]) -> Sums | None:
        """A replica's; None if it cannot be read, which is a finding."""
        total = Sums()
        for sums, findings in self._run(partial(add_up, name), spans):
            if sums is None:
                if name != self._name:  # of the log itself it has been said
                    self._findings.merge(findings)
                return None
            total.merge(sums)
        return total


def _start(spans: Sequence[Span]) -> int:
    """Where the log itself begins, behind the checkpoint."""
    if not spans:
        return 0
    return spans[0].end_offset if spans[0].is_checkpoint else spans[0].start_offset


def _checkpoints_of(name: str, log: Log, end_offset: int) -> list[_Checkpoint]:
    """The newest checkpoints of a replica whose files are here."""
    files = getattr(log, "files", None)
    if not isinstance(files, LogFiles):
        return []
    found = [one for one in files.checkpoints() if 0 < one.offset <= end_offset]
    return [
        _Checkpoint(
            f"{name}/{checkpoint_name(one)}",
            FileSpan(files.directory / checkpoint_name(one), True, 0, one.offset),
        )
        for one in found[-MAX_CHECKPOINTS:]
    ]
