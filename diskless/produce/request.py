"""A Produce request in progress: the outcomes it waits for, and the memory it occupies.

The trap: the answer and the memory have different ends. The answer is due when every partition has
an outcome, or when the request times out; the request's bytes are free when the writer has settled
its last batch, which may be long after the answer.

Source: the protocol guide, Produce; KIP-467 (errors by record); docs/design/broker.md#produce.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final
from uuid import UUID

from diskless.produce.buffer import AppendResult
from diskless.produce.spreading import Destination
from diskless.produce.validation import Decompression, Outcome, Refusal
from diskless.transactions.proofs import Proof
from records.kafka_errors import ErrorCode
from records.rpc.produce import ProduceRequest, ProduceResponse

FIRST_WITH_TOPIC_IDS: Final = 13


_Topic = ProduceResponse.TopicProduceResponse
_Partition = ProduceResponse.TopicProduceResponse.PartitionProduceResponse
_RecordError = _Partition.BatchIndexAndErrorMessage


class AwaitedPartition:
    """One partition of a request, waiting for the outcome of its batch."""

    __slots__ = ("index", "outcome", "proof", "request", "validated")

    def __init__(self, request: PendingProduce, index: int) -> None:
        self.request = request
        self.index = index
        self.validated: Outcome | None = None  # if it was validated before the request was taken
        self.outcome: AppendResult | Refusal | None = None
        self.proof: Proof | None = None  # of a transactional batch

    def appended(self, result: AppendResult) -> None:
        """Set the partition's outcome to its writer's result; the writer calls this once."""
        if self.proof is not None and result.error == ErrorCode.NOT_ENOUGH_REPLICAS:
            self.proof.refused(self.proof.producer)
        self.settle(result)
        self.request.finish_append()

    def settle(self, outcome: AppendResult | Refusal) -> None:
        """Set the partition's outcome, unless the partition already has an outcome.

        A producer that names topics by name gets no error of topic ids.
        """
        if self.outcome is None:
            if outcome.error == ErrorCode.UNKNOWN_TOPIC_ID and not self.request.by_id:
                outcome = outcome._replace(error=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)  # deleted
            self.outcome = outcome
            self.request.count_outcome()


class PendingProduce:
    """A request that is not answered yet, or whose batches the writers still hold."""

    def __init__(
        self,
        request: ProduceRequest,
        version: int,
        answer: Callable[[PendingProduce], None],
        free: Callable[[], None],
        decompression: Decompression | None = None,
    ) -> None:
        """Create the state of a decoded Produce request that waits for its partitions' outcomes.

        Args:  answer: called once, when every partition has an outcome.
               free: called once, when the request's bytes are no longer needed.
               decompression: the limit that its compressed batches share; None: the usual one.
        """
        self.request = request
        self.by_id = version >= FIRST_WITH_TOPIC_IDS
        self.version = version
        self.decompression = decompression or Decompression()
        self.destination: Destination | None = None  # where its producer should go, if anywhere
        self.proven: dict[tuple[UUID, int], Proof | ErrorCode] = {}  # by the transaction log
        self.is_taken = False
        self.is_over = False  # timed out; a request that is not taken by then never is
        self.topics = [
            (
                topic.name,
                topic.topic_id,
                [AwaitedPartition(self, partition.index) for partition in topic.partition_data],
            )
            for topic in request.topic_data
        ]
        self._answer: Callable[[PendingProduce], None] | None = answer
        self._free = free
        self._appending = 1  # batches at a writer, and the taking of the request itself
        self._open = 1 + sum(len(awaited) for _, _, awaited in self.topics)  # without outcome

    def settle_all(self, outcome: AppendResult) -> None:
        """Set this outcome for every partition that has no outcome yet."""
        for _, _, partitions in self.topics:
            for awaited in partitions:
                awaited.settle(outcome)

    def count_outcome(self) -> None:
        """Count one partition's outcome, and answer the request after the last outcome."""
        self._open -= 1
        if not self._open:
            answer, self._answer = self._answer, None
            if answer is not None:
                answer(self)
            self._break_cycle()

    def count_append(self) -> None:
        """Count one batch that was passed to a writer."""
        self._appending += 1

    def finish_append(self) -> None:
        """Count a batch as settled; after the last batch, free the memory of the request."""
        self._appending -= 1
        if not self._appending:
            self._free()
            self._break_cycle()

    def _break_cycle(self) -> None:
        """Drop the cyclic references of a finished request, so that its memory is freed at once.

        Otherwise the request's bytes would stay until the garbage collector runs, which is seldom.
        """
        if self._open <= 0 and (not self._appending or not self.is_taken):
            self.topics.clear()
            del self.request

    def expire(self, store_fault: str | None = None) -> None:
        """Answer REQUEST_TIMED_OUT for every partition without an outcome.

        Args:  store_fault: why the object store takes nothing now, if it does not.
        """
        self.is_over = True
        text = "its outcome was not known in time"
        if store_fault is not None:
            text = f"{text}; the object store fails: {store_fault}"
        self.settle_all(AppendResult(ErrorCode.REQUEST_TIMED_OUT, text))
        if not self.is_taken:
            self.count_outcome()

    def finish_taking(self) -> None:
        """Record that each batch of the request was refused or passed to a writer."""
        self.is_taken = True
        self.count_outcome()
        self.finish_append()

    @property
    def errors(self) -> list[AppendResult | Refusal]:
        """Return the errors among the partition outcomes that are known."""
        partitions = [partition for _, _, awaited in self.topics for partition in awaited]
        outcomes = [partition.outcome for partition in partitions]
        return [o for o in outcomes if isinstance(o, Refusal) or (o and o.error)]


def response_of(produced: PendingProduce) -> ProduceResponse:
    """Build the Produce response; every partition must have an outcome."""
    return ProduceResponse(
        responses=tuple(
            _Topic(
                name=name,
                topic_id=topic_id,
                partition_responses=tuple(_partition(awaited) for awaited in partitions),
            )
            for name, topic_id, partitions in produced.topics
        )
    )


def _partition(awaited: AwaitedPartition) -> _Partition:
    outcome = awaited.outcome
    assert outcome is not None, f"partition {awaited.index} is answered without an outcome"
    if isinstance(outcome, Refusal):
        return _Partition(
            index=awaited.index,
            error_code=outcome.error,
            base_offset=-1,
            error_message=outcome.message,
            record_errors=tuple(
                _RecordError(batch_index=error.batch_index, batch_index_error_message=error.message)
                for error in outcome.record_errors
            ),
        )
    return _Partition(
        index=awaited.index,
        error_code=outcome.error,
        base_offset=outcome.base_offset,
        log_append_time_ms=outcome.log_append_time,
        log_start_offset=outcome.log_start_offset,
        error_message=outcome.message,
    )
