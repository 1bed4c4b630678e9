"""The batch coordinator in memory: what every other one is measured against.

`InMemoryState` is the whole state in dicts and lists, changed by `apply` alone. It says what a
record means as plainly as it can be said, so tests compare the database with it, checkpoint by
checkpoint.

`InMemoryCoordinator` decides and applies at once: its log is only an offset that counts. Nothing it
knows outlives the process, except through a checkpoint.

Source: docs/design/batch-coordinator.md#one-interface-three-implementations.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import pairwise
from typing import Any, TypeVar
from uuid import UUID

from coordinator.batch import decide
from coordinator.batch.applying import apply_record, ended_objects, log_ids_of_markers
from coordinator.batch.calls import LeaderLookup, Lookup, Report, Write, call_of
from coordinator.batch.checkpoint import checkpoint_values, load_record
from coordinator.batch.cluster_view import ClusterView, Enforcer
from coordinator.batch.decide import Context, Decision
from coordinator.batch.reads import at_once
from coordinator.batch.retention import TopicPartition, retention_pass
from coordinator.batch.runs import (
    MARKER,
    NO_OBJECT,
    NOT_MARKED,
    OPEN,
    Run,
    StoredObject,
    aborted_of,
    found_orphan,
    marker_runs,
    ranges_of,
    runs_of,
)
from coordinator.batch.settings import CoordinatorSettings
from coordinator.batch.state import (
    Answer,
    AppliedReplacing,
    Broker,
    Cleaning,
    Counters,
    Lease,
    Log,
    LogId,
    Producer,
    ProducerKey,
    Topic,
    log_ids_of,
)
from coordinator.batch.steady_clock import SteadyClock
from coordinator.batch.transactions import Aborted, OpenTransactions
from coordinator.errors import CoordinatorError
from records.diskless import (
    DisklessPartitionsReleasedRecord,
    DisklessPartitionsRemovedRecord,
    LeaseClosedRecord,
    LogStartOffsetsRecord,
    ObjectCommitRecord,
    ObjectsMarkedRecord,
    ObjectsRemovedRecord,
    OrphansFoundRecord,
    RewriteLeaseGrantedRecord,
    RunsReplacedRecord,
    SteadyTimeRecord,
    TransactionMarkersRecord,
)
from records.frame import decode_record
from records.kafka_errors import ErrorCode
from records.rpc.base import CoordinatorRequest, Response
from records.schema import MetadataRecord

A = TypeVar("A", bound=Response)
R = TypeVar("R")


class InMemoryState:
    """All of a coordinator's state: `Tables`, `Runs`, `Candidates`, and its checkpoints."""

    def __init__(self) -> None:
        self.applied_offset = 0  # everything below (exclusive) is in the state
        self.topics: dict[UUID, Topic] = {}
        self.logs: dict[LogId, Log] = {}
        self.producers: dict[ProducerKey, Producer] = {}
        self.leases: dict[int, Lease] = {}
        self.brokers: dict[int, Broker] = {}
        self.answers: dict[int, Answer] = {}
        self.cleanings: dict[LogId, Cleaning] = {}
        self.open_transactions: dict[LogId, OpenTransactions] = {}
        self.aborted: dict[LogId, list[Aborted]] = {}  # by last offset; no empty lists
        self.replacing = AppliedReplacing()
        self.counters = Counters()
        self.runs: dict[LogId, list[Run]] = {}  # live ones, by offset; no empty lists
        self.objects: dict[int, StoredObject] = {}

    # --- changing it ----------------------------------------------------------------------------

    def apply(self, offset: int, record: MetadataRecord) -> None:
        """Apply the log record at `offset` to the state; offsets must rise."""
        assert offset >= self.applied_offset, f"offset {offset} after {self.applied_offset}"
        match record:
            case ObjectCommitRecord():
                self._commit(record)
            case LogStartOffsetsRecord():
                apply_record(self, record)
                for index, partition in zip(record.topic_indexes, record.partitions, strict=True):
                    self._trim(self.topics[record.topic_ids[index]].log_ids[partition])
            case DisklessPartitionsRemovedRecord() | DisklessPartitionsReleasedRecord():
                log_ids = [self.topics[record.topic_id].log_ids[p] for p in record.partitions]
                apply_record(self, record)
                self._drop_logs({log_id for log_id in log_ids if log_id >= 0})
            case ObjectsMarkedRecord():
                for object_id in record.object_ids:
                    stored = self.objects.get(object_id)
                    if stored is not None and stored.marked_at_ms == NOT_MARKED:
                        marked = stored._replace(marked_at_ms=record.marked_at_ms)
                        self.objects[object_id] = marked
            case OrphansFoundRecord():
                for object_id in record.object_ids:
                    self.objects.setdefault(object_id, found_orphan(record.marked_at_ms))
            case ObjectsRemovedRecord():
                for object_id in record.object_ids:
                    gone = self.objects.pop(object_id, None)
                    assert gone is None or gone.used_bytes == 0, f"in use: {object_id} {gone}"
                apply_record(self, record)
            case RunsReplacedRecord():
                self._replace(record)
            case TransactionMarkersRecord():
                apply_record(self, record)
                self._add_markers(record)
            case LeaseClosedRecord() | RewriteLeaseGrantedRecord():
                ended = ended_objects(self, record)
                apply_record(self, record)
                for object_id in ended:
                    closed = self.objects[object_id]._replace(marked_at_ms=NOT_MARKED)
                    self.objects[object_id] = closed
            case _:
                apply_record(self, record)
        self.applied_offset = offset + 1

    def _commit(self, record: ObjectCommitRecord) -> None:
        log_ids = log_ids_of(self, record)
        apply_record(self, record)
        used_bytes = 0
        filled = set()
        for log_id, *fields in runs_of(record, log_ids):
            run = Run._make(fields)
            used_bytes += run.byte_size
            filled.add(log_id)
            self.runs.setdefault(log_id, []).append(run)
        topics = {
            record.topic_ids[index].bytes
            for index, log_id in zip(record.topic_indexes, log_ids, strict=True)
            if log_id in filled
        }
        self.objects[record.object_id] = StoredObject(
            record.size_bytes,
            used_bytes,
            record.object_format,
            record.broker_id,
            record.committed_at_ms,
            -1,
            tuple(sorted(topics)),
        )

    def _add_markers(self, record: TransactionMarkersRecord) -> None:
        log_ids = log_ids_of_markers(self, record)
        for index, run in marker_runs(record):
            self.runs.setdefault(log_ids[index], []).append(run)
        for index, entry in aborted_of(record):
            log_id = log_ids[index]
            self.aborted.setdefault(log_id, []).append(entry)
            self._end_aborted(log_id)

    def _end_aborted(self, log_id: LogId, named: Iterable[tuple[int, int]] = ()) -> None:
        """Remove a partition's aborted transactions that are `named` or end below its log start."""
        gone, log_start = set(named), self.logs[log_id][0]
        left = [
            entry
            for entry in self.aborted.pop(log_id, [])
            if entry.last_offset >= log_start
            and (entry.producer_id, entry.first_offset) not in gone
        ]
        if left:
            self.aborted[log_id] = left

    def _replace(self, record: RunsReplacedRecord) -> None:
        apply_record(self, record)
        new = StoredObject(
            record.size_bytes,
            0,
            record.object_format,
            record.broker_id,
            record.replaced_at_ms,
            0,
            (),
        )
        used_bytes, topics = 0, set()
        for replaced in ranges_of(record):
            topic_id = record.topic_ids[replaced.topic_index]
            log_id = self.topics[topic_id].log_ids[replaced.partition]
            runs, log_start = self.runs[log_id], self.logs[log_id][0]
            first = bisect_left(runs, replaced.first_offset, key=lambda run: run.base_offset)
            end = bisect_left(runs, replaced.end_offset, key=lambda run: run.base_offset)
            old = runs[first:end]
            assert len(old) == replaced.old_run_count, f"{old} of {log_id}, and not {replaced}"
            assert old[0].base_offset == replaced.first_offset, f"{old[0]} of {log_id}: {replaced}"
            assert old[-1].last_offset + 1 == replaced.end_offset, f"{old[-1]}, {replaced}"
            self._unuse(old)
            runs[first:end] = [run for run in replaced.runs if run.last_offset >= log_start]
            used_bytes += sum(r.byte_size for r in replaced.runs if r.last_offset >= log_start)
            topics.add(topic_id.bytes)
            self._end_aborted(log_id, replaced.ended_aborted)
        filled = self.objects.get(record.object_id, new)  # its own runs may be among the old
        self.objects[record.object_id] = filled._replace(
            used_bytes=filled.used_bytes + used_bytes,
            marked_at_ms=NOT_MARKED if record.closes_object else OPEN,
            topics=tuple(sorted({*filled.topics, *topics})),
        )

    def _trim(self, log_id: LogId) -> None:
        """Delete a partition's runs below its log start; subtract the bytes from their objects."""
        runs = self.runs.get(log_id, [])
        dead = bisect_left(runs, self.logs[log_id][0], key=lambda run: run.last_offset)
        self._unuse(runs[:dead])
        del runs[:dead]
        if not runs:
            self.runs.pop(log_id, None)
        self._end_aborted(log_id)

    def _drop_logs(self, log_ids: set[LogId]) -> None:
        for log_id in log_ids:
            self._unuse(self.runs.pop(log_id, []))
            self.aborted.pop(log_id, None)
        for key in [key for key in self.producers if key[0] in log_ids]:
            del self.producers[key]

    def _unuse(self, runs: Iterable[Run]) -> None:
        for run in runs:
            if run.object_format == MARKER:
                continue
            stored = self.objects[run.object_id]
            died_ms = stored.first_deletion_ms
            if self.counters.notes_deletions and self.counters.steady_ms >= 0:
                steady_ms = self.counters.steady_ms
                died_ms = steady_ms if died_ms < 0 else min(died_ms, steady_ms)
            self.objects[run.object_id] = stored._replace(
                used_bytes=stored.used_bytes - run.byte_size, first_deletion_ms=died_ms
            )

    def check_invariants(self) -> None:
        """Assert that runs of batches have no gaps, and that objects' used bytes are correct.

        These are invariants 5 and 8 of docs/design/invariants.md.
        """
        used: dict[int, int] = {}
        for log_id, runs in self.runs.items():
            log_start, high_watermark = self.logs[log_id]
            assert runs[0].base_offset <= log_start <= runs[0].last_offset, f"{log_start} {runs[0]}"
            for run, after in pairwise(runs):
                assert run.last_offset + 1 == after.base_offset, f"gap: {run} {after}"
            assert runs[-1].last_offset + 1 == high_watermark, f"{runs[-1]} {high_watermark}"
            for run in runs:
                if run.object_format == MARKER:
                    assert (run.object_id, run.byte_size) == (NO_OBJECT, 0), f"a marker: {run}"
                    continue
                used[run.object_id] = used.get(run.object_id, 0) + run.byte_size
        for log_id, (log_start, high_watermark) in self.logs.items():
            assert log_start <= high_watermark, f"log {log_id}: {log_start} {high_watermark}"
            assert log_id in self.runs or log_start == high_watermark, f"log {log_id}: no runs"
        for object_id, stored in self.objects.items():
            expected = used.pop(object_id, 0)
            assert stored.used_bytes == expected, f"object {object_id}: {stored}, {expected} used"
            assert stored.marked_at_ms < 0 or not expected, f"marked in use: {object_id}"
        assert not used, f"runs in objects that are gone: {used}"
        self._check_transactions()

    def _check_transactions(self) -> None:
        """Assert that the tables of transactions agree with producer states and runs."""
        rows: dict[LogId, list[tuple[int, int]]] = {}
        for (log_id, producer_id), (_, _, kept, row) in self.producers.items():
            assert kept or row is not None, f"neither batches nor markers: {producer_id}, {log_id}"
            if row is not None and row.is_open:
                rows.setdefault(log_id, []).append((row.first_offset, producer_id))
        assert {key: tuple(sorted(found)) for key, found in rows.items()} == self.open_transactions
        for log_id, found in self.open_transactions.items():
            stable, bases = found[0][0], {run.base_offset for run in self.runs.get(log_id, ())}
            log_start = self.logs[log_id][0]
            assert stable < log_start or stable in bases, f"{stable} is inside of a run: {log_id}"
        for log_id, entries in self.aborted.items():
            last = [entry.last_offset for entry in entries]
            assert last == sorted(set(last)), f"aborted transactions of {log_id}: {entries}"
            assert last[0] >= self.logs[log_id][0], f"below the log start: {entries[0]}"

    # --- reading it: Runs -----------------------------------------------------------------------

    def runs_from(self, log_id: LogId, offset: int) -> Sequence[Run]:
        """Return a partition's runs of batches from the run that contains `offset` on."""
        runs = self.runs.get(log_id, [])
        return runs[bisect_left(runs, offset, key=lambda run: run.last_offset) :]

    def first_run_since(self, log_id: LogId, timestamp: int, from_offset: int) -> Run | None:
        """Return the first run from an offset on that has a record at or after `timestamp`."""
        runs = self.runs_from(log_id, from_offset)
        return next((run for run in runs if run.max_timestamp >= timestamp), None)

    def run_of_max_timestamp(self, log_id: LogId, from_offset: int) -> Run | None:
        """Return the first of the runs from an offset on that have the greatest max timestamp."""
        runs = self.runs_from(log_id, from_offset)
        return max(runs, key=lambda run: run.max_timestamp, default=None)

    def run_totals(self, log_id: LogId) -> tuple[int, int]:
        """Return the number and total bytes of a partition's undeleted runs of batches."""
        runs = self.runs.get(log_id, [])
        return len(runs), sum(run.byte_size for run in runs)

    def aborted_from(self, log_id: LogId, offset: int) -> Iterable[Aborted]:
        """Return a partition's aborted transactions that end at or above an offset, by end."""
        entries = self.aborted.get(log_id, [])
        return entries[bisect_left(entries, offset, key=lambda entry: entry.last_offset) :]

    # --- reading it: Candidates -----------------------------------------------------------------

    def stored_object(self, object_id: int) -> StoredObject | None:
        """Return an object of the state by its object id, or None if there is no such object."""
        return self.objects.get(object_id)

    def unused_objects(self, limit: int) -> list[int]:
        """Return up to `limit` ids of objects with all batches deleted and no deletion mark."""
        unused = (
            object_id
            for object_id, stored in self.objects.items()
            if not stored.used_bytes and stored.marked_at_ms == NOT_MARKED
        )
        return sorted(unused)[:limit]

    def marked_objects(self, first_ms: int, last_ms: int, limit: int) -> list[tuple[int, int]]:
        """Return up to `limit` (mark time, object id) pairs of marks set in a time range."""
        marked = ((o.marked_at_ms, i) for i, o in self.objects.items() if o.marked_at_ms >= 0)
        return sorted(pair for pair in marked if first_ms <= pair[0] <= last_ms)[:limit]

    def producer_count(self) -> int:
        """Return the number of producer states: one for each partition of a producer."""
        return len(self.producers)

    def idle_producers(self, appended_before_ms: int, limit: int) -> list[ProducerKey]:
        """Return (log id, producer id) pairs of producers whose last append was before a time."""
        idle = (
            key
            for key, (_, at_ms, _, row) in self.producers.items()
            if at_ms < appended_before_ms and not (row and row.is_open)
        )
        return sorted(idle)[:limit]

    def producers_of(self, log_id: LogId, limit: int) -> list[ProducerKey]:
        """Return (log id, producer id) pairs of up to `limit` producers of a partition."""
        return sorted(key for key in self.producers if key[0] == log_id)[:limit]

    def last_offset_of_runs(self, log_id: LogId, limit: int) -> int | None:
        """Return the last offset of a partition's first `limit` undeleted runs of batches."""
        runs = self.runs.get(log_id, [])
        return runs[min(limit, len(runs)) - 1].last_offset if runs else None

    # --- reading it: coordinator.batch.describe
    # --------------------------------------------------------

    def objects_with_runs_of(self, log_ids: Sequence[LogId]) -> Iterable[int]:
        """Return the ids of objects with an undeleted run of batches of these partitions."""
        runs = (run for log_id in log_ids for run in self.runs.get(log_id, []))
        return {run.object_id for run in runs if run.object_format != MARKER}

    def stored_objects(self, from_object_id: int = 0) -> Iterable[tuple[int, StoredObject]]:
        """Return the objects of the state from an object id on, with their ids."""
        return sorted(item for item in self.objects.items() if item[0] >= from_object_id)

    def run_totals_in_object(self, log_id: LogId, object_id: int) -> tuple[int, int]:
        """Return the number and total bytes of a partition's undeleted runs in one object."""
        sizes = [r.byte_size for r in self.runs.get(log_id, []) if r.object_id == object_id]
        return len(sizes), sum(sizes)

    # --- checkpoints ----------------------------------------------------------------------------

    def checkpoint(self) -> list[bytes]:
        """Return the encoded records of a checkpoint; equal states give equal bytes."""
        return list(checkpoint_values(self))

    @classmethod
    def load(cls, values: Iterable[Any], applied_offset: int) -> InMemoryState:
        """Build a state from the records of a checkpoint."""
        state = cls()
        for value in values:
            load_record(state, decode_record(value))
        state.applied_offset = applied_offset
        return state

    def all_objects(self) -> Iterable[tuple[int, StoredObject]]:
        """Return all objects with their object ids for a checkpoint, by rising id."""
        return sorted(self.objects.items())

    def all_runs(self, log_id: LogId) -> Iterable[Run]:
        """Return a partition's undeleted runs of batches for a checkpoint."""
        return self.runs.get(log_id, [])

    def all_aborted(self, log_id: LogId) -> Iterable[Aborted]:
        """Return a partition's aborted transactions by rising last offset, for a checkpoint."""
        return self.aborted.get(log_id, [])

    def all_producers(self, log_id: LogId) -> Iterator[tuple[int, Producer]]:
        """Yield a partition's producer states by rising producer id, for a checkpoint."""
        for key in sorted(key for key in self.producers if key[0] == log_id):
            yield key[1], self.producers[key]

    def all_answers(self) -> Iterable[tuple[int, Answer]]:
        """Return the commit responses kept for retries with their object ids, for a checkpoint."""
        return sorted(self.answers.items())

    def add_objects(self, objects: Iterable[tuple[int, StoredObject]]) -> None:
        """Add objects from a checkpoint to the state."""
        self.objects.update(objects)

    def add_aborted(self, log_id: LogId, entries: Iterable[Aborted]) -> None:
        """Add one partition's aborted transactions from a checkpoint to the state."""
        self.aborted.setdefault(log_id, []).extend(entries)

    def add_runs(self, log_id: LogId, rows: Iterable[Run]) -> None:
        """Add one partition's runs of batches from a checkpoint to the state."""
        runs = self.runs.setdefault(log_id, [])
        for run in rows:
            if run.appended_at_ms < 0:
                committed_at_ms = self.objects[run.object_id].committed_at_ms
                run = run._replace(appended_at_ms=committed_at_ms)
            runs.append(run)


class InMemoryCoordinator:
    """A `BatchCoordinator` that is alone: what it decides is committed at once.

    Args:  now_ms: the wall clock, ms since 1970. steady_ms: a clock that never steps, on the same
           scale when this begins. Tests move them apart.
    """

    def __init__(
        self,
        settings: CoordinatorSettings,
        view: ClusterView,
        now_ms: Callable[[], int],
        steady_ms: Callable[[], int] | None = None,
        state: InMemoryState | None = None,
    ) -> None:
        self.settings = settings
        self.view = view
        self.state = InMemoryState() if state is None else state
        self.log: list[tuple[int, MetadataRecord]] = []
        self._now_ms = now_ms
        self._steady_ms = now_ms if steady_ms is None else steady_ms
        self.leader_since_ms = self._steady_ms()
        self._clock = SteadyClock(self._steady_ms)
        self.retention_at: TopicPartition | None = None
        self._closed = False

    def context(self) -> Context:
        """Return the current times, the cluster view and the settings for a decision."""
        if self._closed:
            raise CoordinatorError(ErrorCode.COORDINATOR_NOT_AVAILABLE, "it is closed")
        return Context(
            self._now_ms(),
            self._steady_ms(),
            self.leader_since_ms,
            self.shared_ms(),
            self.view,
            self.settings,
        )

    def shared_ms(self) -> int | None:
        """Return the steady time, or None while the clock is held.

        The only voter agrees with itself.
        """
        return self._clock.read(self.state.counters.steady_ms, self._now_ms(), lambda: True)

    def commit(self, decision: Decision[R]) -> R:
        """Apply a decision's records to the state and return the decision's response."""
        for record in decision.records:
            offset = self.state.applied_offset
            self.log.append((offset, record))
            self.state.apply(offset, record)
            if isinstance(record, SteadyTimeRecord):
                self._clock.note(record.steady_ms, replaces=record.replaces != 0)
        return decision.response

    def run_maintenance(self) -> None:
        """Run every maintenance step once, as a leader does periodically."""
        state, context = self.state, self.context()
        self.commit(decide.decide_expired_leases(state, context))
        limit = self.settings.maintenance_limit
        found = retention_pass(
            state, self.view, context.deletion_ms, after=self.retention_at, max_runs=limit
        )
        self.retention_at = found.stopped_at
        self.commit(decide.decide_retention(found.rows, state, context, Enforcer.COORDINATOR))
        self.commit(decide.decide_dismantling(state, state, context))
        self.commit(decide.decide_expired_producers(state, state, context))
        self.commit(decide.decide_marks(state, context))
        self.commit(decide.decide_forgotten_leases(state, context))
        self.commit(decide.decide_expired_tombstones(state, context))
        self.commit(decide.decide_stamp(state, context))

    # --- a BatchCoordinator ---------------------------------------------------------------------

    async def call(self, request: CoordinatorRequest[A]) -> A:
        """Decide or answer a request from the state in memory, and return the response."""
        state, context = self.state, self.context()
        match call_of(request).kind:
            case Write(decide):
                return self.commit(decide(request, state, state, context))
            case Lookup(turns):
                return at_once(turns(request, lambda: (state, state), self.settings))
            case Report(read):
                return read(request, state, self.settings)
            case LeaderLookup(read):
                return read(request, state, state, context)

    async def close(self) -> None:
        """Close the coordinator; later calls raise CoordinatorError."""
        self._closed = True
