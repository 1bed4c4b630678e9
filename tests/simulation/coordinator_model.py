"""What batch coordinators may have decided, by a model that believes none of them.

Three sources, compared with each other:

- what brokers really uploaded (`uploaded`), so that nothing is committed that nobody sent;
- the committed log, read record by record: a list of batches for each partition, which must have
  neither gaps nor duplicates, and for each object the one answer that may ever be given;
- `InMemoryState`, which replays the committed records: every replica's state and every checkpoint
  must be the same as its, at the same offset.

An answer is judged the moment it leaves its coordinator. If it tells of something that is not
committed by then, it depends on what can still be lost (invariant 11, docs/design/invariants.md).

Source: docs/design/batch-coordinator.md; invariants 4-8 and 11 (docs/design/invariants.md).
"""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID

from coordinator.batch.decide.log_start import BY_TIME
from coordinator.batch.interface import NEVER_COMMITTED
from coordinator.batch.memory import InMemoryState
from coordinator.batch.settings import KEPT_ANSWERS, CoordinatorSettings
from coordinator.batch.state import MAX_SEQUENCE
from records.batch import Batch, iter_batches, iter_records
from records.diskless import (
    DeleteFenceRecord,
    LeaseClosedRecord,
    LeaseGrantedRecord,
    LeasesForgottenRecord,
    LogStartOffsetsRecord,
    ObjectCommitRecord,
    ObjectsMarkedRecord,
)
from records.errors import RecordError
from records.frame import decode_record
from records.kafka_errors import ErrorCode
from records.object_keys import ObjectKeys
from records.rpc.batch_coordinator import (
    CommitBatch,
    CommitBatchesRequest,
    CommitBatchesResponse,
    CommitBatchResult,
    DeleteDisklessRecordsRequest,
    DeleteDisklessRecordsResponse,
)
from records.rpc.objects import (
    AcquireObjectLeaseRequest,
    AcquireObjectLeaseResponse,
    GetFilesToDeleteRequest,
    GetFilesToDeleteResponse,
    IsSafeToDeleteFileRequest,
    IsSafeToDeleteFileResponse,
)
from records.types import OffsetAndEpoch
from tests.simulation.coordinators import copied
from tests.simulation.world import MS, SECOND, World

if TYPE_CHECKING:
    from tests.simulation.coordinators import CoordinatingProcess

COPY_EVERY: Final = 24  # batches of the log
LOOK_EVERY_US: Final = 2 * SECOND
SLOWEST_CLOCK: Final = 0.9  # of a leader, against the world's

Place = tuple[UUID, int]
"""A partition: topic and index."""

Name = tuple[int, int, UUID, int, int]
"""A batch: producer, its epoch, partition, first sequence. Sent again it has the same name."""


def batches_of(request: CommitBatchesRequest) -> list[tuple[Place, CommitBatch]]:
    """A request's batches, each with its partition."""
    return [
        ((topic.topic_id, group.partition_index), batch)
        for topic in request.topics
        for group in topic.partitions
        for batch in group.batches
    ]


def name_of(place: Place, batch: CommitBatch) -> Name | None:
    """What a batch is told apart by; None if it has no producer."""
    if batch.producer_id < 0:
        return None
    return (batch.producer_id, batch.producer_epoch, *place, batch.base_sequence)


class CoordinatorModel:
    """See the module. It takes the place of `tests.simulation.state.StateModel`."""

    def __init__(
        self, world: World, settings: CoordinatorSettings, rare: Counter[str], old: frozenset[int]
    ) -> None:
        """
        Args:  old: producers whose state may have expired: they begin where they like.
        """
        self.world = world
        self.rare = rare
        self.keys: ObjectKeys = settings.keys
        self.delay_us = int(settings.file_delete_delay_ms * SLOWEST_CLOCK * MS)
        self.proposed_us: dict[tuple[int, int | None], int] = {}  # by epoch and offset
        self._old = old
        # what was uploaded, and what is in the store
        self.uploaded: dict[int, CommitBatchesRequest] = {}
        self.deleted: set[int] = set()
        # what is committed
        self.state = InMemoryState()
        self._batches: list[Batch] = []
        self._copies: list[tuple[int, int, InMemoryState]] = [(0, 0, InMemoryState())]
        self._files: dict[OffsetAndEpoch, bytes] = {}
        self.ends: dict[Place, int] = defaultdict(int)
        self.starts: dict[Place, int] = defaultdict(int)
        self.told: dict[Place, int] = defaultdict(int)  # ends that somebody was told of
        self.retention_us: int | None = None  # what is younger by true time must not be deleted
        self._written_us: dict[Place, list[tuple[int, int]]] = defaultdict(list)  # ends of commits
        self.stored: dict[Name, int] = {}  # where each batch of a producer is
        self._next: dict[tuple[int, int, UUID, int], int] = {}  # sequences
        self.answer: dict[int, tuple[CommitBatchResult, ...]] = {}  # by object
        self._later: dict[int, tuple[int, int, int]] = {}  # by object: lease, broker, which commit
        self._commits: Counter[tuple[int, int]] = Counter()  # by broker and epoch
        self._last_of_lease: dict[int, int] = {}
        self._granted: dict[int, LeaseGrantedRecord] = {}
        self._forgotten: set[int] = set()
        self._fenced: set[int] = set()
        self._closed_us: dict[int, int] = {}  # by lease
        self._marked_us: dict[int, int] = {}  # by object
        self.never: dict[int, str] = {}  # objects that were called dead, and how
        self._epoch_of: dict[int, int] = {}  # by object: of its commit's leader
        self._answered: set[int] = set()  # objects
        self._looked_us: dict[CoordinatingProcess, int] = {}
        self.over = False  # all is still: look at everybody

    # -- the committed log -----------------------------------------------------------------------

    def commit(self, batch: Batch) -> None:
        """The next batch of the one log there is."""
        batch = next(iter_batches(bytes(batch.view)))
        if len(self._batches) % COPY_EVERY == 0:
            offset = int(batch.header.base_offset)
            self._copies.append((offset, len(self._batches), copied(self.state)))
        self._batches.append(batch)
        if batch.header.is_control:
            return
        header = batch.header
        when_us = self.proposed_us.get((header.leader_epoch, header.base_offset))
        assert when_us is not None, f"nobody proposed {header}"
        for record in iter_records(batch):
            decoded = decode_record(record.value)
            if isinstance(decoded, ObjectCommitRecord):
                self._epoch_of[decoded.object_id] = int(header.leader_epoch)
            self._note(decoded, when_us)
            self.state.apply(int(record.offset), decoded)

    def _note(self, record: Any, when_us: int) -> None:
        match record:
            case ObjectCommitRecord():
                self._commit(record)
            case LeaseGrantedRecord():
                self._granted[record.lease_id] = record
                self._closed_us.update((lease, when_us) for lease in record.closed_lease_ids)
                self.rare["leases closed by a newer epoch"] += len(record.closed_lease_ids)
            case LeaseClosedRecord():
                self._closed_us[record.lease_id] = when_us
                self.rare["leases expired"] += record.reason == 1
            case LeasesForgottenRecord():
                self._forgotten.update(record.lease_ids)
                self.rare["leases forgotten"] += len(record.lease_ids)
            case DeleteFenceRecord():
                self._fenced.update(record.object_ids)
                self.rare["objects fenced"] += 1
            case ObjectsMarkedRecord():
                self._marked_us.update((object_id, when_us) for object_id in record.object_ids)
                self.rare["objects marked"] += len(record.object_ids)
            case LogStartOffsetsRecord():
                for index, partition, offset in zip(
                    record.topic_indexes, record.partitions, record.log_start_offsets, strict=True
                ):
                    place = (record.topic_ids[index], partition)
                    assert self.starts[place] <= offset <= self.ends[place], (
                        f"{place} starts at {offset}, was {self.starts[place]}, ends at"
                        f" {self.ends[place]} (invariant 8)"
                    )
                    if record.reason == BY_TIME:
                        self._check_age(place, offset, when_us)
                    self.starts[place] = offset

    def _check_age(self, place: Place, offset: int, when_us: int) -> None:
        """Assert that the records below a new log start are old by true time."""
        if self.retention_us is None:
            return
        written_us = max(at_us for end, at_us in self._written_us[place] if end <= offset)
        assert when_us - written_us >= self.retention_us, (
            f"{place} starts at {offset}: records were deleted {(when_us - written_us) / SECOND} s"
            " after they were written, their retention is an hour"
        )

    def _commit(self, record: ObjectCommitRecord) -> None:
        """An object's batches: those that were uploaded, at the ends of their partitions."""
        object_id = record.object_id
        request = self.uploaded.get(object_id)
        assert request is not None, f"phantom: object {object_id} is committed, nobody sent it"
        assert object_id not in self.never, (
            f"object {object_id} is committed, after {self.never[object_id]} (invariant 11)"
        )
        assert object_id not in self.deleted, f"object {object_id} is committed, and deleted"
        assert object_id not in self.answer, f"object {object_id} is committed twice"
        last = self._last_of_lease.get(record.lease_id, -1)
        assert object_id > last, f"object {object_id} is committed after {last} of its lease"
        self._last_of_lease[record.lease_id] = object_id
        batches = batches_of(request)
        sent = [
            (b.byte_offset, b.size, b.last_offset + 1, b.producer_id, b.base_sequence)
            for _, b in batches
        ]
        said = list(
            zip(
                record.byte_offsets,
                record.byte_sizes,
                record.record_counts,
                record.producer_ids,
                record.base_sequences,
                strict=True,
            )
        )
        assert sent == said, f"object {object_id} holds {sent}, committed was {said}"
        nothing = (0,) * len(batches)
        errors, duplicates = record.error_codes or nothing, record.duplicates or nothing
        results = []
        for i, (place, batch) in enumerate(batches):
            base = record.base_offsets[i]
            if not errors[i]:
                self._place(place, batch, base, duplicate=bool(duplicates[i]))
            unknown = errors[i] in (
                ErrorCode.UNKNOWN_TOPIC_ID,
                ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
            )
            by_append = record.timestamp_types[i] and not errors[i]
            time = record.max_timestamps[i] if by_append else -1
            log_start = -1 if unknown else self.starts[place]
            results.append(CommitBatchResult(errors[i], base, time, log_start, bool(duplicates[i])))
            self.rare[f"batches refused: {errors[i]}"] += errors[i] > 0
        self.answer[object_id] = tuple(results)
        broker = (record.broker_id, record.broker_epoch)
        self._commits[broker] += 1
        self._later[object_id] = (record.lease_id, record.broker_id, self._commits[broker])

    def _place(self, place: Place, batch: CommitBatch, base: int, *, duplicate: bool) -> None:
        name, count = name_of(place, batch), batch.last_offset + 1
        if duplicate:
            assert name is not None, f"{batch} is called a duplicate"
            assert self.stored.get(name) == base, (
                f"{name} is called a duplicate of what is at {base}; it is at"
                f" {self.stored.get(name)} (invariant 6)"
            )
            self.rare["duplicates answered"] += 1
            return
        assert base == self.ends[place], (
            f"{place}: a batch at {base}, the partition ends at {self.ends[place]} (invariant 5)"
        )
        self.ends[place] = base + count
        self._written_us[place].append((base + count, self.world.now_us))
        if name is None:
            return
        assert name not in self.stored, (
            f"{name} is stored twice, at {self.stored[name]} and {base} (invariant 6)"
        )
        self.stored[name] = base
        producer, epoch, topic, partition, sequence = name
        stream = (producer, epoch, topic, partition)
        begins = sequence if producer in self._old and epoch == 0 else 0
        expected = self._next.get(stream, begins)
        assert sequence == expected, f"lost: {stream} goes on at {sequence}, not at {expected}"
        self._next[stream] = (sequence + count) & MAX_SEQUENCE
        self.rare["sequences wrapped"] += self._next[stream] < sequence

    # -- answers ---------------------------------------------------------------------------------

    def answers(self, process: CoordinatingProcess, request: Any, answer: Any) -> None:
        """An answer leaves its coordinator: it must be true, and stay true."""
        match request, answer:
            case CommitBatchesRequest(), CommitBatchesResponse():
                self._answers_commit(process, request, answer)
            case AcquireObjectLeaseRequest(), AcquireObjectLeaseResponse():
                self._answers_lease(process, request, answer)
            case IsSafeToDeleteFileRequest(), IsSafeToDeleteFileResponse():
                self._answers_safe(process, request, answer)
            case GetFilesToDeleteRequest(), GetFilesToDeleteResponse():
                for file in answer.files:
                    self._may_be_deleted(process, self.keys.object_id(file.object_key))
            case DeleteDisklessRecordsRequest(), DeleteDisklessRecordsResponse():
                for topic in answer.responses:
                    for told in topic.partitions:
                        start = self.starts[topic.topic_id, told.partition_index]
                        assert told.error_code or told.low_watermark <= start, (
                            f"{process} answers {told}; the log starts at {start} (invariant 11)"
                        )

    def _answers_commit(
        self,
        process: CoordinatingProcess,
        request: CommitBatchesRequest,
        answer: CommitBatchesResponse,
    ) -> None:
        object_id, code = request.object_id, answer.error_code
        first = self.answer.get(object_id)
        if not code:
            results = tuple(r for t in answer.topics for p in t.partitions for r in p.results)
            assert first is not None, (
                f"{process} answers a commit of object {object_id} that is not committed"
                " (invariant 11)"
            )
            assert results == first, f"{process}: object {object_id}: {results}, first {first}"
            self.rare["retries given the first answer"] += object_id in self._answered
            self._answered.add(object_id)
            for (place, batch), result in zip(batches_of(request), results, strict=True):
                if not result.error_code:
                    end = result.assigned_base_offset + batch.last_offset + 1
                    self.told[place] = max(self.told[place], end)
            later = process.quorum.epoch > self._epoch_of[object_id]
            self.rare["commits answered by a later leader"] += later
        elif code == ErrorCode.DUPLICATE_SEQUENCE_NUMBER:
            assert first is not None, f"{process}: object {object_id} is not committed: {answer}"
            lease, broker, number = self._later[object_id]
            epoch_of = self.uploaded[object_id].broker_epoch
            newer = self._commits[broker, epoch_of] - number
            assert lease in self._forgotten or newer >= KEPT_ANSWERS, (
                f"{process}: the answer of object {object_id} is not kept, {newer} came later"
            )
            self.rare["answers no longer kept"] += 1
        else:
            assert code in NEVER_COMMITTED, f"{process}: object {object_id}: {answer}"
            self.rare[f"commits refused: {ErrorCode(code).name}"] += 1
            self._is_dead(process, object_id, f"it was answered {ErrorCode(code).name}")

    def _is_dead(self, process: CoordinatingProcess, object_id: int, why: str) -> None:
        assert object_id not in self.answer, (
            f"{process}: object {object_id} is committed, and {why} (invariant 11)"
        )
        self.never[object_id] = why

    def _answers_lease(
        self,
        process: CoordinatingProcess,
        request: AcquireObjectLeaseRequest,
        answer: AcquireObjectLeaseResponse,
    ) -> None:
        if answer.error_code:
            self.rare[f"leases refused: {ErrorCode(answer.error_code).name}"] += 1
            self.rare["leases refused"] += 1
            return
        granted = self._granted.get(answer.lease_id)
        assert granted is not None, f"{process} grants a lease that is not committed: {answer}"
        expected = (request.broker_id, request.broker_epoch, answer.first_object_id)
        said = (granted.broker_id, granted.broker_epoch, granted.first_object_id)
        assert said == expected, f"{process} answers {answer} to {request}, committed is {granted}"

    def _answers_safe(
        self,
        process: CoordinatingProcess,
        request: IsSafeToDeleteFileRequest,
        answer: IsSafeToDeleteFileResponse,
    ) -> None:
        object_id = self.keys.object_id(request.object_key)
        assert not answer.error_code, f"{process}: {request} is answered {answer}"
        if answer.is_safe:
            self._is_dead(process, object_id, "it was called safe to delete")
        else:
            assert object_id in self.answer, (
                f"{process}: object {object_id} is not committed, and may not go (invariant 11)"
            )

    def _may_be_deleted(self, process: CoordinatingProcess, object_id: int) -> None:
        """Nothing refers to it, nothing ever will, and the delay is over (invariant 7)."""
        self.rare["objects listed for deletion"] += 1
        if object_id in self.answer:
            stored = self.state.objects.get(object_id)
            assert stored is None or not stored.used_bytes, (
                f"{process}: object {object_id} may be deleted, {stored} (invariant 7)"
            )
            since_us = self._marked_us.get(object_id)
        else:
            leases = [
                lease_id
                for lease_id, lease in self._granted.items()
                if 0 <= object_id - lease.first_object_id < lease.object_count
            ]
            since_us = self._closed_us.get(leases[0])
            self.rare["orphans listed for deletion"] += 1
            self._is_dead(process, object_id, "it was called an orphan")
        assert since_us is not None, f"{process}: object {object_id} may be deleted: why?"
        waited_us = self.world.now_us - since_us
        assert waited_us >= self.delay_us, (
            f"{process}: object {object_id} may be deleted {waited_us // MS} ms after it was marked"
        )

    # -- states and checkpoints --------------------------------------------------------------------

    def at(self, offset: int) -> InMemoryState:
        """The state after everything below `offset`."""
        if offset >= self._batches[-1].header.end_offset if self._batches else True:
            return self.state
        first, base = next(
            (number, state) for at, number, state in reversed(self._copies) if at <= offset
        )
        state = copied(base)
        for batch in self._batches[first:]:
            if batch.header.end_offset > offset:
                break
            if not batch.header.is_control:
                for record in iter_records(batch):
                    state.apply(int(record.offset), decode_record(record.value))
        return state

    def published(self, process: CoordinatingProcess, snapshot_id: OffsetAndEpoch) -> None:
        """A checkpoint is there, whole: is it the state of the log there (invariant 4)?"""
        data = process.machine.disk.content(process.store.path(snapshot_id))
        known = self._files.get(snapshot_id)
        assert known is None or known == data, (
            f"{process}: checkpoint {snapshot_id} is another here than elsewhere (invariant 4)"
        )
        if known is not None:
            return
        try:
            values = [
                bytes(record.value or b"")
                for batch in iter_batches(data)
                if not batch.header.is_control
                for record in iter_records(batch)
            ]
        except RecordError as error:
            raise AssertionError(f"{process}: checkpoint {snapshot_id} is damaged") from error
        state = self.at(snapshot_id.offset)
        state.check_invariants()
        assert values == state.checkpoint(), (
            f"{process}: checkpoint {snapshot_id} is not the state of the log there (invariant 4)"
        )
        self._files[snapshot_id] = data

    def look(self, process: Any) -> None:
        """Is the state that the process has what the log says? Asked more often than done."""
        host, state, now_us = process.host, process.state, self.world.now_us
        looked_us = self._looked_us.get(process, -LOOK_EVERY_US)
        if host is None or state is None or not host.ready:
            return
        if now_us - looked_us < LOOK_EVERY_US and not self.over:
            return
        self._looked_us[process] = now_us
        expected, applied = self.at(state.applied.offset), state.applied
        expected.check_invariants()
        mine = state.store
        if not isinstance(mine, InMemoryState):
            assert state.values() == expected.checkpoint(), (
                f"{process}: its state at {applied} is not that of the log (invariant 4)"
            )
            return
        for name, table in vars(expected).items():
            if name != "applied_offset":  # control records do not move it
                found = getattr(mine, name)
                assert found == table, f"{process}: {name} differs at {applied} (invariant 4)"
