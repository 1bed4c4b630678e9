"""Produce: from a request to batches on their way, and back to one answer.

Each partition of a request is judged by itself and answered by itself, in one answer: when all its
batches have an outcome, or when the request's time is over. A batch whose outcome is not known by
then is answered REQUEST_TIMED_OUT, and goes on: it may be committed a moment later. That is why a
producer that is not idempotent may see a record twice, here as with any Kafka.

With acks=0 nobody is answered, and an error closes the connection, as nothing else could tell.

Source: the protocol guide, Produce; KIP-467 (errors by record); DESIGN §8 (Produce).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Final, Protocol
from uuid import UUID

from coordinator.controller.decide.configs import topic_value
from coordinator.controller.image import MetadataImage, TopicImage
from diskless.buffer import AppendResult, Waiter
from diskless.validation import Accepted, Refusal, TopicRules, validate
from raft.net import (
    Answer,
    Frame,
    NetError,
    Reason,
    Reply,
    RequestHeader,
    ServerConnection,
)
from raft.net.handlers import payload
from records.codec import decode_message
from records.rpc.produce import ProduceRequest, ProduceResponse

FIRST_WITH_TOPIC_IDS: Final = 13

UNKNOWN_TOPIC_OR_PARTITION: Final = 3
REQUEST_TIMED_OUT: Final = 7
INVALID_TOPIC_EXCEPTION: Final = 17
NOT_ENOUGH_REPLICAS: Final = 19
INVALID_REQUIRED_ACKS: Final = 21
TRANSACTIONAL_ID_AUTHORIZATION_FAILED: Final = 53
UNKNOWN_TOPIC_ID: Final = 100

NO_TRANSACTIONS: Final = "transactions are not supported by this cluster"

_Topic = ProduceResponse.TopicProduceResponse
_Partition = ProduceResponse.TopicProduceResponse.PartitionProduceResponse
_RecordError = _Partition.BatchIndexAndErrorMessage


class Writer(Protocol):
    """An `object_writer.ObjectWriter`."""

    def append(
        self,
        topic_id: UUID,
        partition: int,
        accepted: Accepted,
        *,
        append_time: bool,
        waiter: Waiter,
    ) -> None: ...


class _Awaited:
    """One partition of a request, until it is known what became of its batch."""

    __slots__ = ("index", "outcome", "request")

    def __init__(self, request: _Request, index: int) -> None:
        self.request = request
        self.index = index
        self.outcome: AppendResult | Refusal | None = None

    def appended(self, result: AppendResult) -> None:
        self.settle(result)

    def settle(self, outcome: AppendResult | Refusal) -> None:
        """The outcome; later ones, after the request has timed out, are nobody's."""
        if self.outcome is None:
            self.outcome = outcome
            self.request.settled()


class _Request:
    """A request until it is answered."""

    def __init__(self, answer: Callable[[_Request], None]) -> None:
        self.topics: list[tuple[str, UUID, list[_Awaited]]] = []
        self._answer: Callable[[_Request], None] | None = answer
        self._open = 1  # partitions without outcome, and the reading of the request itself

    def expect(self, awaited: Sequence[_Awaited]) -> None:
        self._open += len(awaited)

    def settled(self) -> None:
        self._open -= 1
        if not self._open:
            self._finish()

    def expire(self) -> None:
        """The time is over: nothing more is known of what is open."""
        text = "its outcome was not known in time"
        for _, _, partitions in self.topics:
            for awaited in partitions:
                awaited.settle(AppendResult(REQUEST_TIMED_OUT, text))

    def _finish(self) -> None:
        answer, self._answer = self._answer, None
        if answer is not None:
            answer(self)


class ProduceService:
    """Serves Produce for one broker. Belongs to the event loop."""

    def __init__(
        self,
        *,
        image: Callable[[], MetadataImage],
        writer: Callable[[int], Writer | None],
        now_ms: Callable[[], int],
    ) -> None:
        """
        Args:  writer: of a coordinator partition; None while this broker has no epoch to write in.
               now_ms: the wall clock, ms since 1970, that timestamps are compared with.
        """
        self._image = image
        self._writer = writer
        self._now_ms = now_ms
        self._rules: dict[UUID, TopicRules] = {}
        self._rules_of: MetadataImage | None = None

    def serve(self, connection: ServerConnection, header: RequestHeader, body: Frame) -> Answer:
        """Take the batches; the answer comes when their outcomes are known.

        Raises:  RecordError for a request that cannot be decoded; NetError for acks=0 that fails.
        """
        request = decode_message(ProduceRequest, body, header.api_version)
        refusal = self._whole_refusal(request)
        if request.acks == 0:
            self._take_silently(connection, request, header, refusal)
            return None
        reply = Reply(connection)
        loop = asyncio.get_running_loop()
        timer: asyncio.TimerHandle | None = None

        def answer(taken: _Request) -> None:
            if timer is not None:
                timer.cancel()
            reply.send(payload(header, _response(taken)))

        taken = _Request(answer)
        self._take(taken, request, header.api_version, refusal)
        timer = loop.call_later(max(0, request.timeout_ms) / 1_000, taken.expire)
        taken.settled()  # it is read
        return reply

    def _take_silently(
        self,
        connection: ServerConnection,
        request: ProduceRequest,
        header: RequestHeader,
        refusal: Refusal | AppendResult | None,
    ) -> None:
        def check(taken: _Request) -> None:
            outcomes = [one.outcome for _, _, partitions in taken.topics for one in partitions]
            bad = [one for one in outcomes if isinstance(one, Refusal) or (one and one.error)]
            if bad and not connection.closed:
                connection.close()

        taken = _Request(check)
        self._take(taken, request, header.api_version, refusal)
        outcomes = [one.outcome for _, _, partitions in taken.topics for one in partitions]
        refused = [one for one in outcomes if isinstance(one, Refusal) or (one and one.error)]
        if refused:
            raise NetError(Reason.MALFORMED, f"acks=0: {refused[0].message}")
        taken.settled()

    @staticmethod
    def _whole_refusal(request: ProduceRequest) -> AppendResult | None:
        if request.acks not in (-1, 0, 1):
            return AppendResult(INVALID_REQUIRED_ACKS, f"acks={request.acks} is none of -1, 0, 1")
        if request.transactional_id is not None:
            return AppendResult(TRANSACTIONAL_ID_AUTHORIZATION_FAILED, NO_TRANSACTIONS)
        return None

    def _take(
        self,
        taken: _Request,
        request: ProduceRequest,
        version: int,
        refusal: Refusal | AppendResult | None,
    ) -> None:
        image = self._image()
        for asked in request.topic_data:
            awaited = [_Awaited(taken, partition.index) for partition in asked.partition_data]
            taken.topics.append((asked.name, asked.topic_id, awaited))
            taken.expect(awaited)
            by_id = version >= FIRST_WITH_TOPIC_IDS
            topic = image.topics.get(asked.topic_id) if by_id else image.topic(asked.name)
            for one, partition in zip(awaited, asked.partition_data, strict=True):
                if refusal is not None:
                    one.settle(refusal)
                elif topic is None:
                    code = UNKNOWN_TOPIC_ID if by_id else UNKNOWN_TOPIC_OR_PARTITION
                    one.settle(AppendResult(code, "this broker knows no such topic"))
                else:
                    self._append(image, topic, one, partition.records, version)

    def _append(
        self,
        image: MetadataImage,
        topic: TopicImage,
        awaited: _Awaited,
        records: bytes | memoryview | None,
        version: int,
    ) -> None:
        if topic.is_internal:
            text = f"{topic.name} belongs to the cluster itself"
            awaited.settle(AppendResult(INVALID_TOPIC_EXCEPTION, text))
            return
        if awaited.index not in topic.partitions:
            text = f"{topic.name} has no partition {awaited.index}"
            awaited.settle(AppendResult(UNKNOWN_TOPIC_OR_PARTITION, text))
            return
        rules = self._rules_for(image, topic)
        outcome = validate(records, version, rules, self._now_ms())
        if isinstance(outcome, Refusal):
            awaited.settle(outcome)
            return
        if outcome.batch.header.is_transactional:
            awaited.settle(AppendResult(TRANSACTIONAL_ID_AUTHORIZATION_FAILED, NO_TRANSACTIONS))
            return
        writer = self._writer(topic.coordinator(awaited.index))
        if writer is None:
            text = "this broker may not write now: it is starting, or is fenced"
            awaited.settle(AppendResult(NOT_ENOUGH_REPLICAS, text))
            return
        writer.append(
            topic.topic_id,
            awaited.index,
            outcome,
            append_time=rules.log_append_time,
            waiter=awaited,
        )

    def _rules_for(self, image: MetadataImage, topic: TopicImage) -> TopicRules:
        """As of this image; remembered until there is another."""
        if image is not self._rules_of:
            self._rules.clear()
            self._rules_of = image
        rules = self._rules.get(topic.topic_id)
        if rules is None:
            rules = self._rules[topic.topic_id] = rules_of(image, topic.name)
        return rules


def rules_of(image: MetadataImage, topic: str) -> TopicRules:
    """A topic's settings that its batches must keep."""
    return TopicRules(
        max_message_bytes=int(topic_value(image, topic, "max.message.bytes")),
        log_append_time=topic_value(image, topic, "message.timestamp.type") == "LogAppendTime",
        timestamp_before_max_ms=int(topic_value(image, topic, "message.timestamp.before.max.ms")),
        timestamp_after_max_ms=int(topic_value(image, topic, "message.timestamp.after.max.ms")),
    )


def _response(taken: _Request) -> ProduceResponse:
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


def _partition(awaited: _Awaited) -> _Partition:
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
    return _Partition(
        index=awaited.index,
        error_code=outcome.error,
        base_offset=outcome.base_offset,
        log_append_time_ms=outcome.log_append_time,
        log_start_offset=outcome.log_start_offset,
        error_message=outcome.message,
    )
