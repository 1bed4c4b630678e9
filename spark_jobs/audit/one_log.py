"""Audits one log, from the plan to the findings.

The plan cuts the log wherever a checkpoint ends, so that the state at each checkpoint is the state
between two spans. Tasks return facts: counts, end states, checksums, violations.

The trap is damage. A log that cannot be read at one offset is judged up to there, and the report
says that the rest was not; a guess about the rest would report violations that are none.

Source: docs/design/pipeline.md#the-audit, docs/design/invariants.md; `spark_jobs.audit.tasks` holds
the tasks.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

import numpy as np

from records.diskless import (
    ObjectsMarkedRecord,
    ObjectsRemovedRecord,
)
from records.frame import decode_record
from records.object_keys import ObjectKeys
from snapshot.names import checkpoint_name
from spark_jobs.audit.answers import HEADS, AnswerTracker, KeptAnswers, NamedIds
from spark_jobs.audit.checkpoint_rules import REPLAY_RULES
from spark_jobs.audit.checkpoints import (
    CoordinatorFacts,
    Object,
    end_state_of_checkpoint,
    replay_facts,
    transactions_of_checkpoint,
)
from spark_jobs.audit.events import check_events
from spark_jobs.audit.ledger import Ledger
from spark_jobs.audit.log import BatchSpan, SpanSummary, check_spans, summarise_span
from spark_jobs.audit.objects import (
    LiveState,
    OldRuns,
    OldRunsOf,
    marked_committed,
    orphans_deleted,
    replaced_live,
)
from spark_jobs.audit.replicas import BlockSums, batches_in_block, differing_blocks, replicas_agree
from spark_jobs.audit.rows import EndState
from spark_jobs.audit.rules import Findings
from spark_jobs.audit.store import Bucket, Depth
from spark_jobs.audit.tasks import (
    AuditContext,
    SpanVerdict,
    check_a_cluster,
    judge_rewritten,
    judge_span,
    read_facts,
    sum_batches,
    summarise_part,
)
from spark_jobs.audit.transactions import (
    MAX_TIMEOUT_MS,
    Open,
    ProducerKey,
    TransactionState,
    TransactionTracker,
)
from spark_jobs.readers.engines import Engine
from spark_jobs.readers.log_files import FileSpan, LogFiles
from spark_jobs.readers.logs import DISKLESS_METADATA, Log, Logs, LogsError, Span
from spark_jobs.readers.object_store import ObjectStore
from spark_jobs.tables.ancestors import ancestors_of
from spark_jobs.tables.schemas import OBJECT_COMMIT_KEY

SPLIT_BYTES: Final = 16 * 1024 * 1024
"""Size of the log that one task judges: about a million batches, a few hundred MB as columns."""

MAX_CHECKPOINTS: Final = 4
"""Number of checkpoints of each log and replica that are compared with the log: the newest."""

Progress = Callable[[int], None]
"""Called with the number of tasks that have just finished."""


@dataclass(frozen=True, slots=True)
class AuditRequest:
    """The objects and replicas that an audit checks, besides logs and checkpoints."""

    store: ObjectStore | None = None
    prefix: str = ""  # of the objects' keys
    depth: Depth = Depth.NONE
    replicas: tuple[tuple[str, Logs], ...] = ()  # other ones of the same logs, with names
    name: str = "the first"  # of the replica that is audited
    split_bytes: int = SPLIT_BYTES
    max_timeout_ms: int = MAX_TIMEOUT_MS  # transaction.max.timeout.ms of the cluster


@dataclass(slots=True)
class LogReport:
    """Counts of the records, checkpoints and objects that an audit checked in one log."""

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
        """Return the number of commit records in the log."""
        return sum(n for (kind, _), n in self.types.items() if kind == OBJECT_COMMIT_KEY)


@dataclass(slots=True)
class Report:
    """The result of an audit: the logs it read, its findings, and what it skipped."""

    cluster_id: str
    logs: list[LogReport] = field(default_factory=list)
    findings: Findings = field(default_factory=Findings)
    unchecked: dict[str, str] = field(default_factory=dict)  # rule or rules: why


@dataclass(frozen=True, slots=True)
class _Checkpoint:
    """A checkpoint to compare with the log; `name` stands for it in violations."""

    name: str
    span: Span


class LogAudit:
    """Audits one log of a cluster and adds its findings to the report."""

    def __init__(
        self,
        logs: Logs,
        name: str,
        engine: Engine,
        audit_request: AuditRequest,
        report: Report,
        progress: Progress,
    ) -> None:
        self._log = logs.log(name)
        self._logs, self._name = logs, name
        self._engine, self._request, self._progress = engine, audit_request, progress
        self._report, self._findings = report, report.findings
        self.open: dict[ProducerKey, Open] = {}  # transactions, at the end of a coordinator's log
        self.newest_ms = -1  # time of the newest commit or marker, ms since 1970
        self._end = self._log.end_offset()
        self._checkpoints = self._all_checkpoints()
        self._spans = self._plan_spans()
        start = self._spans[0].start_offset if self._spans else 0
        if self._spans and self._spans[0].is_checkpoint:
            start = self._spans[0].end_offset
        self._about = LogReport(name, start, self._end)
        report.logs.append(self._about)

    def _run(self, task: Callable[[Any], Any], work: Sequence[Any]) -> list[Any]:
        return self._engine.run(task, work, self._progress)

    def _all_checkpoints(self) -> list[_Checkpoint]:
        found = _checkpoints_of(self._name, self._log, self._end)
        for replica, others in self._request.replicas:
            if self._name in others.names():
                other = others.log(self._name)
                found += _checkpoints_of(f"{replica}: {self._name}", other, self._end)
        return found

    def _plan_spans(self) -> list[Span]:
        """Split the log into spans that do not extend across the end offset of any checkpoint."""
        cuts = sorted({checkpoint.span.end_offset for checkpoint in self._checkpoints})
        spans: list[Span] = []
        for span in self._log.spans(self._end, split_bytes=self._request.split_bytes):
            rest: Span | None = span
            for cut in () if span.is_checkpoint else cuts:
                if rest is not None and rest.start_offset < cut < rest.end_offset:
                    before, rest = rest.within(0, cut - 1), rest.within(cut, rest.end_offset - 1)
                    spans += [before] if before is not None else []
            spans += [rest] if rest is not None else []
        return spans

    def _summarise(self, *, keeps_events: bool) -> list[SpanSummary]:
        parts: list[SpanSummary] = self._run(
            partial(summarise_part, self._name, keeps_events), self._spans
        )
        if any(part.is_gone for part in parts) and self._plan_spans() != self._spans:
            raise LogsError(f"{self._name}: its head was cut off while it was read; audit again")
        parts = self._cut_at_damage(parts, keeps_events=keeps_events)
        check_spans(self._name, parts, self._findings)
        for part in parts:
            self._findings.merge(part.findings)
            if not part.is_checkpoint:
                self._about.types.update(part.types)
                self._about.control.update(part.control)
            for kind, offset in part.unknown.items():
                self._about.unknown.setdefault(kind, offset)
        return parts

    def _cut_at_damage(self, parts: list[SpanSummary], *, keeps_events: bool) -> list[SpanSummary]:
        """Split spans that are unreadable in the middle; return the summaries of all spans."""
        sound = [
            span.within(span.start_offset, part.readable_end - 1)
            if part.unreadable is not None and part.readable_end > span.start_offset
            else None
            for span, part in zip(self._spans, parts, strict=True)
        ]
        pieces = [piece for piece in sound if piece is not None]
        again = iter(self._run(partial(summarise_part, self._name, keeps_events), pieces))
        spans, found = [], []
        for span, part, piece in zip(self._spans, parts, sound, strict=True):
            if piece is not None:
                spans += [piece, span]
                rest = SpanSummary(part.readable_end, part.end_offset, False)
                rest.unreadable, rest.is_gone = part.unreadable, part.is_gone
                found += [next(again), rest]
            else:
                spans.append(span)
                found.append(part)
        self._spans = spans
        return found

    def _checkpoints_to_compare(self) -> list[_Checkpoint]:
        """Return the checkpoints that can be compared with records which the log still has."""
        return [
            checkpoint
            for checkpoint in self._checkpoints
            if checkpoint.span.end_offset > self._about.start_offset
            and checkpoint.span != self._spans[0]
        ]

    # --- the cluster's log

    def audit_cluster(self) -> None:
        """Check every rule about the cluster's own log."""
        parts = self._summarise(keeps_events=False)
        if any(part.unreadable is not None for part in parts):
            self._report.unchecked[self._name] = "it cannot be read to its end"
            return
        compared = [
            (checkpoint.name, checkpoint.span) for checkpoint in self._checkpoints_to_compare()
        ]
        self._about.checkpoints = [name for name, _ in compared]
        work = [(self._name, tuple(self._spans), tuple(compared))] if self._spans else []
        for found in self._run(check_a_cluster, work):
            self._findings.merge(found)

    def audit_batches(self) -> None:
        """Check the rules that hold for every log, whatever its records mean."""
        if any(part.unreadable is not None for part in self._summarise(keeps_events=False)):
            self._report.unchecked[self._name] = "it cannot be read to its end"

    # --- a coordinator's log

    def audit_coordinator(self) -> EndState:
        """Check every rule about a coordinator's log, and return the state at its end."""
        parts = self._summarise(keeps_events=True)
        facts = self._read_checkpoints()
        base = facts.get(self._spans[0]) if self._spans and self._spans[0].is_checkpoint else None
        first = int(bool(self._spans) and self._spans[0].is_checkpoint)
        if first and base is None:
            if "checkpoint-readable" not in self._findings.counts:
                raise LogsError(f"{self._name}: its checkpoint went while it was read; audit again")
            self._report.unchecked[self._name] = "the checkpoint that it begins with is damaged"
            return EndState()
        whole = next((i for i, part in enumerate(parts) if part.unreadable is not None), len(parts))
        if whole < len(parts):
            why = f"nothing from offset {parts[whole].start_offset} on can be judged"
            self._report.unchecked[self._name] = why
        parts, spans = parts[:whole], self._spans[:whole]
        ledger = Ledger()
        for part in parts:
            check_events(self._name, ledger, part.events, self._findings)
        before, ends_at = self._states_before(parts, ledger, base)
        transactions = self._follow_transactions(parts, ledger, base)
        verdicts = self._judge(ledger, spans, before)
        self._check_objects(ledger, base, verdicts)
        self._replay(ledger, facts, ends_at, verdicts, transactions)
        return ends_at.get(self._end, EndState())

    def _follow_transactions(
        self, parts: Sequence[SpanSummary], ledger: Ledger, base: CoordinatorFacts | None
    ) -> dict[int, TransactionState]:
        """Check the log's transactions; return those of each checkpoint to compare, by offset."""
        tracker = TransactionTracker(
            self._name,
            ledger,
            TransactionState() if base is None else transactions_of_checkpoint(base),
            (batch for part in parts for batch in part.first_batches),
            (marker for part in parts for marker in part.markers),
            self._findings,
        )
        ends = sorted({one.span.end_offset for one in self._checkpoints_to_compare()})
        found = {offset: tracker.advance_to(offset) for offset in ends}
        self.newest_ms = max((part.newest_ms for part in parts), default=-1)
        self.open = tracker.check_age(self._end, self.newest_ms, self._request.max_timeout_ms)
        return found

    def _read_checkpoints(self) -> dict[Span, CoordinatorFacts]:
        """Return the state in each readable checkpoint, and report the faults of all of them."""
        wanted = [*self._checkpoints]
        known = {checkpoint.span for checkpoint in wanted}
        if self._spans and self._spans[0].is_checkpoint and self._spans[0] not in known:
            wanted.insert(0, _Checkpoint(f"{self._name} (its first checkpoint)", self._spans[0]))
        facts = {}
        for checkpoint, (found, findings) in zip(
            wanted,
            self._run(read_facts, [(checkpoint.name, checkpoint.span) for checkpoint in wanted]),
            strict=True,
        ):
            self._findings.merge(findings)
            if found is not None:
                facts[checkpoint.span] = found
        return facts

    def _states_before(
        self, parts: Sequence[SpanSummary], ledger: Ledger, base: CoordinatorFacts | None
    ) -> tuple[list[EndState], dict[int, EndState]]:
        """Return the coordinator's state before each span, at each checkpoint and at the end."""
        running = EndState() if base is None else end_state_of_checkpoint(base)
        wanted = {self._end, *(checkpoint.span.end_offset for checkpoint in self._checkpoints)}
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

    def _judge(
        self, ledger: Ledger, spans: Sequence[Span], before: Sequence[EndState]
    ) -> list[SpanVerdict]:
        offsets = sorted(
            {self._end, *(one.span.end_offset for one in self._checkpoints_to_compare())}
        )
        bucket = None
        if self._request.store is not None:
            number = int(self._name.removeprefix(DISKLESS_METADATA))
            keys = ObjectKeys(
                prefix=self._request.prefix,
                cluster_id=self._logs.cluster_id,
                coordinator_partition=number,
                ancestors=ancestors_of(self._logs),
            )
            bucket = Bucket(self._request.store, keys, self._request.depth)
        shared = AuditContext(self._name, ledger, self._end, tuple(offsets), bucket)
        verdicts: list[SpanVerdict] = self._run(
            partial(judge_span, shared), list(zip(spans, before, strict=True))
        )
        if ledger.rewritten:
            verdicts += self._run(partial(judge_rewritten, shared), [ledger])
        for one in verdicts:
            if one.store_failed is not None:
                raise one.store_failed
            self._findings.merge(one.findings)
        return verdicts

    def _check_objects(
        self, ledger: Ledger, base: CoordinatorFacts | None, verdicts: Sequence[SpanVerdict]
    ) -> None:
        """Report the faults of objects that show only when all spans of the log are combined."""
        committed = np.concatenate(
            [np.array(list(ledger.rewritten), np.int64), *(part.objects[0] for part in verdicts)]
        )
        old: OldRunsOf = {}
        for verdict in verdicts:
            for key, found in verdict.old.items():
                old[key] = old.get(key, OldRuns()).add(found)
        self._findings.add("replaced-live", self._name, replaced_live(ledger, old))
        known = () if base is None else base.objects
        faults = marked_committed(ledger, committed, known)
        self._findings.add("marked-committed", self._name, faults)
        self._findings.add("orphans-deleted", self._name, orphans_deleted(ledger, committed))
        for verdict in verdicts:
            live = verdict.live.get(self._end, LiveState())
            self._about.objects += sum(used > 0 for used in live.used.values())
            self._about.live_bytes += sum(live.used.values())
            self._about.objects_read += verdict.read
        gone = [fault for verdict in verdicts for fault in verdict.missing_objects]
        if gone:
            lawful = self._objects_released_since()
            self._findings.add(
                "object-exists",
                self._name,
                (fault for object_id, fault in gone if object_id not in lawful),
            )

    def _objects_released_since(self) -> set[int]:
        """Return the ids of objects that the coordinator marked or removed while the audit ran."""
        gone: set[int] = set()
        end = self._log.end_offset()
        types = (ObjectsMarkedRecord, ObjectsRemovedRecord)
        if end > self._end:
            for span in self._log.spans(end, start_offset=self._end):
                for _, value in summarise_span(self._name, span).events:
                    record = decode_record(value)
                    if isinstance(record, types):
                        gone.update(record.object_ids)
        return gone

    def _replay(
        self,
        ledger: Ledger,
        facts: dict[Span, CoordinatorFacts],
        ends_at: dict[int, EndState],
        verdicts: Sequence[SpanVerdict],
        transactions: dict[int, TransactionState],
    ) -> None:
        """Replay the log, and report each checkpoint that differs from the replayed state."""
        base = facts.get(self._spans[0]) if self._spans else None
        heads = np.concatenate(
            [np.zeros((len(HEADS) + 1, 0), np.int64), *(part.objects for part in verdicts)], axis=1
        )
        following = AnswerTracker(ledger, heads, KeptAnswers() if base is None else base.kept)
        named = NamedIds.of(ledger)
        for checkpoint in sorted(
            self._checkpoints_to_compare(), key=lambda checkpoint: checkpoint.span.end_offset
        ):
            offset, found = checkpoint.span.end_offset, facts.get(checkpoint.span)
            if found is None or offset not in ends_at:
                continue
            live = LiveState()
            for part in verdicts:
                live.add(part.live.get(offset, LiveState()))
            committed = {} if base is None else dict(base.objects)
            ids, *columns = heads[:4, heads[HEADS.index("log_offset")] < offset].tolist()
            for object_id, size, broker, time in zip(ids, *columns, strict=True):
                committed[object_id] = Object(size, 0, broker, time, -1)
            for object_id, item in ledger.rewritten.items():
                if 0 <= item.opened < offset:
                    committed[object_id] = Object(
                        item.size_bytes, 0, item.broker_id, item.opened_at_ms, -1
                    )
            places = {i: [place for place, _ in starts] for i, starts in found.kept.starts.items()}
            kept = following.advance_to(offset, places)
            log = replay_facts(
                offset, ledger, ends_at[offset], live, committed, kept, named, transactions[offset]
            )
            self._findings.check(checkpoint.name, REPLAY_RULES, found, log)
            self._about.checkpoints.append(checkpoint.name)

    # --- replicas

    def compare_replicas(self) -> None:
        """Compare this replica's batches with other replicas' batches, over common offsets."""
        for replica, others in self._request.replicas:
            other = log_if_there(others, self._name)
            if other is None:
                continue
            end = min(self._end, other.end_offset())
            starts = [_start(log.spans(end)) for log in (self._log, other)]
            start = max(starts)
            if start >= end:
                continue
            both = [
                tuple(log.spans(end, start_offset=start, split_bytes=self._request.split_bytes))
                for log in (self._log, other)
            ]
            if not all(isinstance(span, BatchSpan) for spans in both for span in spans):
                continue
            names = self._name, f"{replica}: {self._name}"
            ours, theirs = (self._sums(n, spans) for n, spans in zip(names, both, strict=True))
            if ours is None or theirs is None:
                why = f"not all of it, or of {self._request.name}, can be read"
                self._report.unchecked[f"replicas-agree of {replica}, {self._name}"] = why
                continue
            for block in differing_blocks(ours, theirs):
                batches = [batches_in_block(spans, block) for spans in both]
                faults = replicas_agree(self._request.name, replica, *batches)
                self._findings.add("replicas-agree", self._name, faults)

    def _sums(self, name: str, spans: Sequence[Span]) -> BlockSums | None:
        """Sum the hashes of a replica's batches by block of offsets; return None if unreadable."""
        total = BlockSums()
        for sums, findings in self._run(partial(sum_batches, name), spans):
            if sums is None:
                if name != self._name:  # of the log itself it has been said
                    self._findings.merge(findings)
                return None
            total.merge(sums)
        return total


def log_if_there(logs: Logs, name: str) -> Log | None:
    """Return a log by its name, also one that `Logs.names` leaves out; None if it is not there."""
    try:
        return logs.log(name)
    except LogsError:
        if name in logs.names():
            raise
        return None


def _start(spans: Sequence[Span]) -> int:
    """Return the first span's start offset, or its end offset if that span is a checkpoint."""
    if not spans:
        return 0
    return spans[0].end_offset if spans[0].is_checkpoint else spans[0].start_offset


def _checkpoints_of(name: str, log: Log, end_offset: int) -> list[_Checkpoint]:
    """Return the newest checkpoints of a replica whose files are on this machine."""
    files = getattr(log, "files", None)
    if not isinstance(files, LogFiles):
        return []
    found = [
        snapshot_id for snapshot_id in files.checkpoints() if 0 < snapshot_id.offset <= end_offset
    ]
    return [
        _Checkpoint(
            f"{name}/{checkpoint_name(snapshot_id)}",
            FileSpan(files.directory / checkpoint_name(snapshot_id), True, 0, snapshot_id.offset),
        )
        for snapshot_id in found[-MAX_CHECKPOINTS:]
    ]
