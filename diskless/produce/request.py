"""A Produce request from when it is decoded until it is answered, and its memory until it is free.

The surprise: two things end, each at a time of its own. The answer is due when every partition has
an outcome, or when the request's time is over; the request's bytes are free when its last batch is
back from the writer, whoever has been answered by then.

Source: the protocol guide, Produce; KIP-467 (errors by record); docs/design/broker.md#produce.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from diskless.produce.buffer import AppendResult
from diskless.produce.validation import Outcome, Refusal
from records.kafka_errors import ErrorCode
from records.rpc.produce import ProduceRequest, ProduceResponse

FIRST_WITH_TOPIC_IDS: Final = 13


_Topic = ProduceResponse.TopicProduceResponse
_Partition = ProduceResponse.TopicProduceResponse.PartitionProduceResponse
_RecordError = _Partition.BatchIndexAndErrorMessage


class AwaitedPartition:
    """One partition of a request, until it is known what became of its batch."""

    __slots__ = ("index", "outcome", "request", "validated")

    def __init__(self, request: PendingProduce, index: int) -> None:
        self.request = request
        self.index = index
        self.validated: Outcome | None = None  # before it was taken
        self.outcome: AppendResult | Refusal | None = None

    def appended(self, result: AppendResult) -> None:
        """Told by the writer, once: the batch's memory is not needed any more."""
        self.settle(result)
        self.request.landed()

    def settle(self, outcome: AppendResult | Refusal) -> None:
        """The outcome; later ones, after the request has timed out, are nobody's."""
        if self.outcome is None:
            self.outcome = outcome
            self.request.settled()


class PendingProduce:
    """A request until it is answered, and its memory until its last batch has landed."""

    def __init__(
        self,
        asked: ProduceRequest,
        version: int,
        answer: Callable[[PendingProduce], None],
        free: Callable[[], None],
    ) -> None:
        """
        Args:  answer: called once, when every partition has an outcome.
               free: called once, when the request's bytes are nobody's any more.
        """
        self.asked = asked
        self.by_id = version >= FIRST_WITH_TOPIC_IDS
        self.version = version
        self.is_read = False
        self.is_over = False  # its time is; what is not read by then never is
        self.topics = [
            (
                topic.name,
                topic.topic_id,
                [AwaitedPartition(self, partition.index) for partition in topic.partition_data],
            )
            for topic in asked.topic_data
        ]
        self._answer: Callable[[PendingProduce], None] | None = answer
        self._free = free
        self._landing = 1  # batches at a writer, and the reading of the request itself
        self._open = 1 + sum(len(awaited) for _, _, awaited in self.topics)  # without outcome

    def settle_all(self, outcome: AppendResult) -> None:
        """The outcome of whatever has none yet."""
        for _, _, partitions in self.topics:
            for awaited in partitions:
                awaited.settle(outcome)

    def settled(self) -> None:
        """One thing fewer to wait for."""
        self._open -= 1
        if not self._open:
            answer, self._answer = self._answer, None
            if answer is not None:
                answer(self)
            self._let_go()

    def handed_over(self) -> None:
        """A batch is at a writer."""
        self._landing += 1

    def landed(self) -> None:
        """A batch is back, or the request is read."""
        self._landing -= 1
        if not self._landing:
            self._free()
            self._let_go()

    def _let_go(self) -> None:
        """Once nobody needs it, take the ring apart that it is with its partitions.

        Else its bytes would stay until the garbage collector comes by, which it seldom does.
        """
        if self._open <= 0 and (not self._landing or not self.is_read):
            self.topics.clear()
            del self.asked

    def expire(self) -> None:
        """The time is over: nothing more is known of what is open."""
        self.is_over = True
        self.settle_all(
            AppendResult(ErrorCode.REQUEST_TIMED_OUT, "its outcome was not known in time")
        )
        if not self.is_read:
            self.settled()

    def read(self) -> None:
        """All its batches are refused, or at a writer."""
        self.is_read = True
        self.settled()
        self.landed()

    @property
    def errors(self) -> list[AppendResult | Refusal]:
        """The outcomes so far that are none of success."""
        outcomes = [one.outcome for _, _, partitions in self.topics for one in partitions]
        return [one for one in outcomes if isinstance(one, Refusal) or (one and one.error)]


def response_of(taken: PendingProduce) -> ProduceResponse:
    """The answer, once every partition has an outcome."""
    return ProduceResponse(
        responses=tuple(
            _Topic(
                name=name,
                topic_id=topic_id,
                partition_responses=tuple(_partition(one) for one in partitions),
            )
            for name, topic_id, partitions in taken.topics
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
                _RecordError(batch_index=one.batch_index, batch_index_error_message=one.message)
                for one in outcome.record_errors
            ),
        )
    error = outcome.error
    if error == ErrorCode.UNKNOWN_TOPIC_ID and not awaited.request.by_id:  # deleted meanwhile
        error = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    return _Partition(
        index=awaited.index,
        error_code=error,
        base_offset=outcome.base_offset,
        log_append_time_ms=outcome.log_append_time,
        log_start_offset=outcome.log_start_offset,
        error_message=outcome.message,
    )
