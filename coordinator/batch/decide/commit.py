"""Committing an object: offsets for its batches, or a reason why not.

The object is judged first: whose lease, which id, was it answered before (`_judge_object`). Then
its form: byte ranges inside the object that do not overlap. Then each batch by itself: one client's
refused batch does not touch the others', and the commit record tells of it all the same, because a
retry must get the same answer.

Idempotence is Kafka's table (ProducerAppendInfo, ProducerStateEntry), with one difference on
purpose. Kafka lets a producer that it has no state of begin anywhere, because state may have been
deleted. Here its predecessor may be on its way through another broker, so it must begin at 0,
unless its id is so old that state of it can have expired.

A transactional batch names its transaction's number. It is refused if that transaction has ended
here, or another one of its producer is open: by a code that lets the client send it again.

This is the hot path, about two microseconds a batch: columns are made by `zip`, in C, and the loop
touches only what idempotence needs. A batch in sequence never leaves the loop.

Source: docs/design/batch-coordinator.md#idempotence,
docs/design/transactions-batches.md#commitbatches; KIP-1164, CommitBatches; upstream's
ProducerAppendInfo.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import chain, islice, pairwise
from operator import add, le
from typing import Any, Final, NamedTuple

from coordinator.batch.decide.base import Context, Decision
from coordinator.batch.reads import Candidates
from coordinator.batch.settings import KEPT_BATCHES, MAX_BATCHES, MAX_OBJECT_BYTES
from coordinator.batch.state import (
    MAX_SEQUENCE,
    NO_LOG,
    UNKNOWN_ID,
    KeptBatch,
    Producer,
    Tables,
    Topic,
)
from coordinator.batch.transactions import (
    NEEDS_LEVEL,
    TRANSACTIONS_LEVEL,
    Transactional,
    opened,
)
from coordinator.errors import CoordinatorError
from coordinator.features import may_write_format
from records.diskless import ObjectCommitRecord
from records.kafka_errors import ErrorCode
from records.rpc.batch_coordinator import (
    CommitBatchesRequest,
    CommitBatchesResponse,
    CommitBatchResult,
    TransactionalBatch,
)

MAX_RECORDS: Final = 2**28
"""Largest number of records in one batch. Five kept batches then never wrap around all sequences,
so a batch cannot be in sequence and a duplicate at once."""

MAX_OFFSET: Final = 2**63 - 1
"""The last offset that records and responses can carry; a partition takes no batch that might pass
it."""

_NO_OFFSET: Final = -1

_TopicAnswer = CommitBatchesResponse.Topic
_GroupAnswer = CommitBatchesResponse.Topic.Partition

Answered = Decision[CommitBatchesResponse]

_Row = tuple[int, ...]
"""Record count, time, its type, producer id, epoch, first sequence, last sequence."""

_new: Final[Callable[[type[CommitBatchResult], tuple[Any, ...]], CommitBatchResult]] = (
    tuple.__new__  # a third of the cost of building a named tuple field by field
)


class Refused(NamedTuple):
    """The result of a batch that gets no offset: an error, or the answer of its first commit."""

    error_code: int
    duplicate_of: KeptBatch | None = None


def decide_commit(
    request: CommitBatchesRequest, tables: Tables, candidates: Candidates, context: Context
) -> Answered:
    """Assign offsets to the batches of an uploaded object, or refuse its commit.

    Args:  tables: pending state. candidates: applied state, asked only about a forgotten lease.
    """
    answered = _judge_object(request, tables, candidates)
    if answered is not None:
        return answered
    columns = _columns(request)
    if isinstance(columns, str):
        return _refuse(ErrorCode.INVALID_REQUEST, columns)
    proofs = _proofs(request, columns, context)
    if isinstance(proofs, str):
        return _refuse(ErrorCode.INVALID_REQUEST, proofs)
    return _Commit(tables, candidates, context, proofs).decide(request, columns)


def _refuse(code: ErrorCode, message: str) -> Answered:
    return Decision((), CommitBatchesResponse(error_code=code, error_message=message))


_NO_PRODUCER: Final = Refused(ErrorCode.INVALID_RECORD)
_NO_TIME: Final = Refused(ErrorCode.INVALID_TIMESTAMP)


# --- the object --------------------------------------------------------------------------------


def _judge_object(
    request: CommitBatchesRequest, tables: Tables, candidates: Candidates
) -> Answered | None:
    """Return the response to a repeated or forbidden commit, or None for a commit to accept."""
    count = sum(len(group.batches) for topic in request.topics for group in topic.partitions)
    if count > MAX_BATCHES:
        message = f"{count} batches in one object, at most {MAX_BATCHES}"
        return _refuse(ErrorCode.MESSAGE_TOO_LARGE, message)
    object_id, lease_id = request.object_id, request.lease_id
    lease = tables.leases.get(lease_id)
    if lease is None:
        return _judge_without_lease(request, tables, candidates)
    if lease.rewrite is not None:
        return _refuse(ErrorCode.INVALID_REQUEST, f"lease {lease_id} is a rewriter's")
    if lease.broker_id != request.broker_id:
        return _refuse(ErrorCode.INVALID_REQUEST, f"lease {lease_id} is another broker's")
    if not lease.first_object_id <= object_id < lease.end_object_id:
        return _refuse(ErrorCode.INVALID_REQUEST, f"object {object_id} is not of lease {lease_id}")
    if lease.broker_epoch != request.broker_epoch:
        message = f"lease {lease_id} is of broker epoch {lease.broker_epoch}"
        return _refuse(ErrorCode.INVALID_REQUEST, message)
    if object_id <= lease.last_committed_id:
        if lease.committed(object_id):
            return _first_answer(object_id, tables)
        message = f"object {lease.last_committed_id} was committed before"
        return _refuse(ErrorCode.OPERATION_NOT_ATTEMPTED, message)
    if not lease.is_open:
        broker = tables.brokers.get(lease.broker_id)
        if broker is not None and broker.epoch > lease.broker_epoch:
            message = f"broker {lease.broker_id} has epoch {broker.epoch} by now"
            return _refuse(ErrorCode.STALE_BROKER_EPOCH, message)
        return _refuse(ErrorCode.OPERATION_NOT_ATTEMPTED, f"lease {lease_id} is over")
    if object_id in lease.fenced:
        return _refuse(ErrorCode.OPERATION_NOT_ATTEMPTED, "it was called safe to delete")
    return None


def _judge_without_lease(
    request: CommitBatchesRequest, tables: Tables, candidates: Candidates
) -> Answered:
    """Return the response to a commit of an object id that no lease in the tables contains."""
    counters = tables.counters
    granted = 0 <= request.lease_id < counters.next_lease_id
    if not granted or not 0 <= request.object_id < counters.next_object_id:
        return _refuse(ErrorCode.INVALID_REQUEST, f"no lease {request.lease_id} was granted")
    stored = candidates.stored_object(request.object_id)
    if stored is not None and stored.committed_at_ms >= 0:
        return _refuse(ErrorCode.DUPLICATE_SEQUENCE_NUMBER, "its answer is no longer kept")
    return _refuse(ErrorCode.OPERATION_NOT_ATTEMPTED, f"lease {request.lease_id} is long over")


def _first_answer(object_id: int, tables: Tables) -> Answered:
    """Return the response to an object's first commit, or an error if that was discarded."""
    answer = tables.answers.get(object_id)
    if answer is None:
        return _refuse(ErrorCode.DUPLICATE_SEQUENCE_NUMBER, "its answer is no longer kept")
    count = len(answer.base_offsets)
    batches = zip(
        answer.error_codes or (0,) * count,
        answer.base_offsets,
        answer.append_times or (-1,) * count,
        answer.duplicates or (0,) * count,
        strict=True,
    )
    topics: dict[int, list[_GroupAnswer]] = {}
    for index, partition, batch_count, log_start in zip(
        answer.topic_indexes,
        answer.partitions,
        answer.batch_counts,
        answer.log_start_offsets,
        strict=True,
    ):
        results = tuple(
            CommitBatchResult(error, base, -1 if error else time, log_start, bool(duplicate))
            for _, (error, base, time, duplicate) in zip(range(batch_count), batches, strict=False)
        )
        topics.setdefault(index, []).append(
            _GroupAnswer(partition_index=partition, results=results)
        )
    answered = tuple(
        _TopicAnswer(topic_id=answer.topic_ids[index], partitions=tuple(groups))
        for index, groups in topics.items()
    )
    return Decision((), CommitBatchesResponse(topics=answered))


def _judge_number(row: Transactional | None, proof: TransactionalBatch | None) -> Refused | None:
    """Return the refusal of a batch with a wrong transaction number, or None to accept it."""
    if row is None:
        return None
    if proof is None:
        return Refused(ErrorCode.INVALID_TXN_STATE) if row.is_open else None
    if row.accepts(proof.transaction_number):
        return None
    return Refused(ErrorCode.NOT_ENOUGH_REPLICAS)


# --- its form ----------------------------------------------------------------------------------


class _Columns(NamedTuple):
    """The request's batches, column by column."""

    byte_offsets: tuple[int, ...]
    sizes: tuple[int, ...]
    counts: list[int]  # this and the next: what a batch is judged by
    times: tuple[int, ...]
    kinds: tuple[int, ...]
    producer_ids: tuple[int, ...]
    epochs: tuple[int, ...]
    sequences: tuple[int, ...]
    last_sequences: tuple[int, ...]


def _columns(request: CommitBatchesRequest) -> _Columns | str:
    """Return the fields of a request's batches as columns, or an error message if malformed."""
    if len({topic.topic_id for topic in request.topics}) != len(request.topics):
        return "a topic is named twice"
    groups = []
    for topic in request.topics:
        partitions = topic.partitions
        if len({group.partition_index for group in partitions}) != len(partitions):
            return f"a partition of topic {topic.topic_id} is named twice"
        groups += [group.batches for group in partitions]
    if not groups or not all(groups):
        return "a partition without batches" if groups else "an object without batches"
    places, sizes, bases, lasts, times, kinds, producers, epochs, firsts, ends = zip(
        *chain.from_iterable(groups), strict=True
    )
    counts = [last - base + 1 for base, last in zip(bases, lasts, strict=True)]
    if min(counts) < 1 or max(counts) > MAX_RECORDS:
        return f"a batch of {min(counts)} to {max(counts)} records"
    if min(sizes) < 1 or min(places) < 0:
        return "a batch of no or negative size, or at a negative place"
    if min(kinds) < 0 or max(kinds) > 1:
        return "a timestamp type that is neither 0 nor 1"
    if request.object_format < 0:
        return f"object format {request.object_format}"
    if request.object_size > MAX_OBJECT_BYTES:
        return f"an object of {request.object_size} bytes, at most {MAX_OBJECT_BYTES}"
    behind = tuple(map(add, places, sizes))
    if not all(map(le, behind, places[1:])):
        order = sorted(range(len(places)), key=places.__getitem__)
        if any(behind[a] > places[b] for a, b in pairwise(order)):
            return "two batches share bytes of the object"
    if max(behind) > request.object_size:
        return f"a batch ends at {max(behind)} of an object of {request.object_size} bytes"
    return _Columns(places, sizes, counts, times, kinds, producers, epochs, firsts, ends)


def _proofs(
    request: CommitBatchesRequest, columns: _Columns, context: Context
) -> dict[int, TransactionalBatch] | str:
    """Return the transaction proofs of batches by batch index, or an error message.

    Raises:  CoordinatorError below the level of transactions: the object is to be sent again.
    """
    named = request.transactional
    if named and not may_write_format(context.view.features(), TRANSACTIONS_LEVEL):
        raise CoordinatorError(ErrorCode.COORDINATOR_NOT_AVAILABLE, NEEDS_LEVEL)
    proofs = {proof.batch_index: proof for proof in named}
    if len(proofs) != len(named):
        return "a batch has two proofs of its transaction"
    for index, proof in proofs.items():
        if not 0 <= index < len(columns.counts):
            return f"a proof of batch {index}, of {len(columns.counts)}"
        if columns.producer_ids[index] < 0:
            return f"batch {index} is transactional and has no producer id"
        if proof.transaction_number < 0 or proof.transaction_version not in (1, 2):
            return f"a proof makes no sense: {proof}"
    return proofs


# --- each batch --------------------------------------------------------------------------------


class _Commit:
    """One commit's decision in progress."""

    __slots__ = (
        "base_offsets",
        "candidates",
        "context",
        "new_producers",
        "proofs",
        "refused",
        "tables",
    )

    def __init__(
        self,
        tables: Tables,
        candidates: Candidates,
        context: Context,
        proofs: dict[int, TransactionalBatch],
    ) -> None:
        self.candidates = candidates
        self.proofs = proofs  # of transactional batches, by index of the batch
        self.new_producers = 0
        self.tables = tables
        self.context = context
        self.base_offsets: list[int] = []
        self.refused: dict[int, Refused] = {}  # by index of the batch

    def decide(self, request: CommitBatchesRequest, columns: _Columns) -> Answered:
        """Assign offsets to every batch of the request, partition by partition."""
        answered, topic_ids, topic_indexes, partitions, batch_counts = [], [], [], [], []
        rows = zip(*columns[2:], strict=True)
        for index, topic in enumerate(request.topics):
            known = self.tables.topics.get(topic.topic_id)
            groups = []
            for group in topic.partitions:
                partition, count = group.partition_index, len(group.batches)
                results = self._decide_group(known, partition, count, rows)
                if results is None:
                    message = "a last sequence does not fit first sequence and record count"
                    return _refuse(ErrorCode.INVALID_REQUEST, message)
                groups.append(_GroupAnswer(partition_index=partition, results=results))
                topic_indexes.append(index)
                partitions.append(partition)
                batch_counts.append(count)
            topic_ids.append(topic.topic_id)
            answered.append(_TopicAnswer(topic_id=topic.topic_id, partitions=tuple(groups)))
        times, kinds, errors, duplicates = self._outcomes(columns)
        record = ObjectCommitRecord(
            object_id=request.object_id,
            object_format=request.object_format,
            size_bytes=request.object_size,
            broker_id=request.broker_id,
            broker_epoch=request.broker_epoch,
            lease_id=request.lease_id,
            committed_at_ms=self.context.now_ms,
            topic_ids=tuple(topic_ids),
            topic_indexes=tuple(topic_indexes),
            partitions=tuple(partitions),
            batch_counts=tuple(batch_counts),
            byte_offsets=columns.byte_offsets,
            byte_sizes=columns.sizes,
            base_offsets=tuple(self.base_offsets),
            record_counts=tuple(columns.counts),
            max_timestamps=times,
            timestamp_types=kinds,
            producer_ids=columns.producer_ids,
            producer_epochs=columns.epochs,
            base_sequences=columns.sequences,
            error_codes=errors,
            duplicates=duplicates,
            transaction_numbers=self._transaction_numbers(),
        )
        return Decision((record,), CommitBatchesResponse(topics=tuple(answered)))

    def _decide_group(
        self, topic: Topic | None, partition: int, batch_count: int, rows: Iterator[_Row]
    ) -> tuple[CommitBatchResult, ...] | None:
        """Return a partition's batch results; None if a sequence contradicts its record count."""
        group = islice(rows, batch_count)
        if topic is None or topic.deleted_at_ms >= 0:
            return self._refuse_group(ErrorCode.UNKNOWN_TOPIC_ID, len(list(group)))
        log_id = topic.log_ids[partition] if 0 <= partition < len(topic.log_ids) else NO_LOG
        log = self.tables.logs.get(log_id)
        if log is None:
            return self._refuse_group(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, len(list(group)))
        log_start, end = log
        if end + batch_count * MAX_RECORDS > MAX_OFFSET:
            return self._refuse_group(ErrorCode.OFFSET_OUT_OF_RANGE, len(list(group)))
        now_ms, get_producer = self.context.now_ms, self.tables.producers.get
        several = batch_count > 1
        changed: dict[int, Producer] = {}  # by this group's earlier batches
        base_offsets, proofs = self.base_offsets, self.proofs
        proof: TransactionalBatch | None = None
        results = []
        for count, time, kind, producer_id, epoch, sequence, said_last in group:
            refused: Refused | None = None
            if producer_id >= 0:
                last = (sequence + count - 1) & MAX_SEQUENCE
                if last != said_last and sequence >= 0:
                    return None
                state = changed.get(producer_id) if several else None
                if state is None:
                    state = get_producer((log_id, producer_id))
                if proofs:
                    proof = proofs.get(len(base_offsets))
                if (
                    state is None
                    or state[0] != epoch
                    or state[3] is not None
                    or proof is not None
                    or sequence != (state[2][-1][1] + 1) & MAX_SEQUENCE
                ):
                    refused = self._judge_batch(state, proof, producer_id, epoch, sequence, last)
            elif producer_id < -1:
                refused = _NO_PRODUCER
            if time < -1:
                refused = _NO_TIME
            if refused is not None:
                results.append(self._refuse_batch(refused, log_start))
                continue
            base_offsets.append(end)
            append_time = now_ms if kind else -1
            results.append(_new(CommitBatchResult, (0, end, append_time, log_start, False)))
            if several and producer_id >= 0:
                batch = (sequence, last, end, append_time)
                kept = state[2][1 - KEPT_BATCHES :] if state and state[0] == epoch else ()
                row = state[3] if state is not None else None
                if proof is not None:
                    row = opened(row, proof.transaction_number, end)
                changed[producer_id] = (epoch, now_ms, (*kept, batch), row)
            end += count
        return tuple(results)

    def _judge_batch(
        self,
        state: Producer | None,
        proof: TransactionalBatch | None,
        producer_id: int,
        epoch: int,
        sequence: int,
        last: int,
    ) -> Refused | None:
        """Return the refusal of a batch that breaks its producer's sequence, or None to accept it.

        Kafka's table: tests/coordinator holds it line by line, docs/coordinator.md prints it.
        """
        if epoch < 0 or sequence < 0:
            return Refused(ErrorCode.INVALID_RECORD)
        if state is None:
            can_have_expired = self._epoch_can_have_expired(proof) and self._state_can_have_expired(
                producer_id
            )
            if sequence and not can_have_expired:
                return Refused(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER)
            self.new_producers += 1
            known = self.candidates.producer_count()
            if known + self.new_producers > self.context.settings.max_producers:
                return Refused(ErrorCode.POLICY_VIOLATION)
            return None
        known_epoch, _, kept, transactional = state
        if epoch == known_epoch:
            for batch in kept:
                if batch[0] == sequence and batch[1] == last:
                    return Refused(0, batch)
        # Before the epoch: the number of a broker's old image is no reason to end the producer.
        refused = _judge_number(transactional, proof)
        if refused is not None:
            return refused
        if epoch < known_epoch:
            return Refused(ErrorCode.INVALID_PRODUCER_EPOCH)
        follows = (kept[-1][1] + 1) & MAX_SEQUENCE if epoch == known_epoch and kept else 0
        return None if sequence == follows else Refused(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER)

    def _epoch_can_have_expired(self, proof: TransactionalBatch | None) -> bool:
        """Return whether the state of a transactional producer's epoch can have expired.

        A transactional producer keeps its id through many epochs, and each begins at sequence 0. In
        version 2 each transaction has an epoch of its own.
        """
        if proof is None:
            return True
        expired_ms = self.context.deletion_ms - self.context.settings.producer_expiration_ms
        return proof.transaction_version == 1 and proof.epoch_began_at_ms <= expired_ms

    def _state_can_have_expired(self, producer_id: int) -> bool:
        """Return whether the producer state of a producer id can have expired.

        The log says so, without a clock. Only a log that never had a record of level 2 leaves it to
        the age of the id.
        """
        largest_expired_id = self.tables.counters.largest_expired_id
        if largest_expired_id != UNKNOWN_ID:
            return producer_id <= largest_expired_id
        handed_out_ms = self.context.view.producer_id_handed_out_ms(producer_id)
        if handed_out_ms is None:
            return True
        lifetime_ms = self.context.settings.producer_expiration_ms
        return self.context.now_ms - handed_out_ms >= lifetime_ms

    def _transaction_numbers(self) -> tuple[int, ...]:
        """Return the transaction number of each batch, or an empty result if no batch has one."""
        if not self.proofs:
            return ()
        numbers = [-1] * len(self.base_offsets)
        for index, proof in self.proofs.items():
            numbers[index] = proof.transaction_number
        return tuple(numbers)

    def _refuse_group(self, error_code: int, count: int) -> tuple[CommitBatchResult, ...]:
        refused = Refused(error_code)
        return tuple(self._refuse_batch(refused, -1) for _ in range(count))

    def _refuse_batch(self, refused: Refused, log_start: int) -> CommitBatchResult:
        self.refused[len(self.base_offsets)] = refused
        error_code, first = refused
        if first is None:
            self.base_offsets.append(_NO_OFFSET)
            return CommitBatchResult(error_code, _NO_OFFSET, -1, log_start, False)
        self.base_offsets.append(first[2])
        return CommitBatchResult(0, first[2], first[3], log_start, True)

    def _outcomes(
        self, columns: _Columns
    ) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
        """Return the batches' timestamps, timestamp types, error codes and duplicate flags.

        These are columns of the commit record; the last two are empty if all batches are accepted.
        """
        times, kinds = columns.times, columns.kinds
        if any(kinds):
            now_ms = self.context.now_ms
            times = tuple(now_ms if kind else time for kind, time in zip(kinds, times, strict=True))
        if not self.refused:
            return times, kinds, (), ()
        errors, duplicates = [0] * len(times), [0] * len(times)
        told_times, told_kinds = list(times), list(kinds)
        for index, (error_code, first) in self.refused.items():
            errors[index] = error_code
            if first is not None:
                duplicates[index] = 1
                told_times[index], told_kinds[index] = first[3], int(first[3] >= 0)
        return (
            tuple(told_times),
            tuple(told_kinds),
            tuple(errors) if any(errors) else (),
            tuple(duplicates) if any(duplicates) else (),
        )
