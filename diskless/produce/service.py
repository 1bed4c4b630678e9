"""Produce: from a request to batches on their way, and back to one answer.

Each partition of a request is judged by itself and answered by itself, in one answer: when all its
batches have an outcome, or when the request's time is over. A batch whose outcome is not known by
then is answered REQUEST_TIMED_OUT, and goes on: it may be committed a moment later. That is why a
producer that is not idempotent may see a record twice, here as with any Kafka.

With acks=0 nobody is answered, and an error closes the connection, as nothing else could tell.

A request that memory has no room for waits, and its connection is not read
(`diskless.produce.in_flight`).
So does one that names a topic by an id which this broker has not heard of: another broker may have
told the client, a moment ago, and there are clients that do not ask twice. And so does one whose
records take long to validate: that is done in a thread, while others are served.

Source: the protocol guide, Produce; KIP-467 (errors by record); docs/design/broker.md#produce.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from typing import Final, Protocol
from uuid import UUID

from coordinator.controller.image import MetadataImage, TopicImage
from diskless.produce.buffer import AppendResult, Waiter
from diskless.produce.in_flight import InFlight
from diskless.produce.request import AwaitedPartition, PendingProduce, response_of
from diskless.produce.validation import (
    USUAL_RATIO,
    Accepted,
    Refusal,
    TakesLongError,
    TopicRules,
    is_compressed,
    takes_long,
    validate,
)
from raft.net import (
    Answer,
    Frame,
    Reason,
    Reply,
    RequestHeader,
    ServerConnection,
)
from raft.net.handlers import payload
from records.codec import decode_message
from records.kafka_errors import ErrorCode
from records.rpc.produce import ProduceRequest

HEAR_S: Final = 3.0  # of a topic that somebody else may have told the client of
HEAR_SHARE: Final = 0.9  # of a request's time: what is over is answered REQUEST_TIMED_OUT


NO_TRANSACTIONS: Final = "transactions are not supported by this cluster"

HearOf = Callable[[Callable[[MetadataImage], bool], float], Awaitable[MetadataImage | None]]
"""A `diskless.cluster.Cluster`'s `image_where`."""


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


@dataclass(slots=True)
class ProduceCounters:
    """What producers brought, for metrics."""

    requests: int = 0
    bytes_in: int = 0  # of requests
    batches: int = 0  # taken
    records: int = 0
    refused: Counter[int] = field(default_factory=Counter)  # partitions, by error code


class ProduceService:
    """Serves Produce for one broker. Belongs to the event loop."""

    def __init__(
        self,
        *,
        image: Callable[[], MetadataImage],
        image_where: HearOf,
        writer: Callable[[int], Writer | None],
        now_ms: Callable[[], int],
        in_flight: InFlight,
    ) -> None:
        """
        Args:  writer: of a coordinator partition; None while this broker has no epoch to write in.
               now_ms: the wall clock, ms since 1970, that timestamps are compared with.
               in_flight: the memory that requests take until their batches are written.
        """
        self.counters = ProduceCounters()
        self._image = image
        self._image_where = image_where
        self._preparing: set[asyncio.Task[None]] = set()  # a loop itself keeps no task alive
        self._validating = asyncio.Semaphore(1)
        self._writer = writer
        self._now_ms = now_ms
        self._in_flight = in_flight
        self._rules: dict[UUID, TopicRules] = {}
        self._rules_of: MetadataImage | None = None

    def serve(self, connection: ServerConnection, header: RequestHeader, body: Frame) -> Answer:
        """Take the batches; the answer comes when their outcomes are known.

        Raises:  RecordError for a request that cannot be decoded.
        """
        request = decode_message(ProduceRequest, body, header.api_version, whole=False)
        self.counters.requests += 1
        self.counters.bytes_in += len(body)
        reply = Reply(connection)
        silent = request.acks == 0
        loop = asyncio.get_running_loop()
        timer: asyncio.TimerHandle | None = None

        def answer(produced: PendingProduce) -> None:
            if timer is not None:
                timer.cancel()
            if not silent:
                reply.send(payload(header, response_of(produced)))
            elif produced.errors and not connection.closed:
                connection.close(Reason.UNTOLD, produced.errors[0].message or "")

        size_bytes = len(body)
        produced = PendingProduce(
            request, header.api_version, answer, lambda: self._in_flight.give_back(size_bytes)
        )
        if not silent:
            timer = loop.call_later(max(0, request.timeout_ms) / 1_000, produced.expire)
        unanswered = reply if silent else None
        is_unheard = (
            produced.by_id and _hear_s(request) > 0 and not _has_all(self._image(), request)
        )
        if is_unheard or not self._judged(request, produced):
            preparing = loop.create_task(self._prepare(request, produced, size_bytes, reply))
            self._preparing.add(preparing)
            preparing.add_done_callback(self._preparing.discard)
            connection.hold()
            return reply
        if self._in_flight.is_full:
            self._wait(connection, produced, size_bytes, unanswered)
            return reply
        self._take(produced, size_bytes)
        return None if silent else reply

    async def _prepare(
        self, request: ProduceRequest, produced: PendingProduce, size_bytes: int, reply: Reply
    ) -> None:
        """Take the request once its topics are heard of, or were not in time, and it is judged."""
        connection = reply.connection
        unanswered = reply if request.acks == 0 else None
        try:
            if produced.by_id and not _has_all(self._image(), request):
                await self._image_where(lambda image: _has_all(image, request), _hear_s(request))
            if not produced.is_over and not self._judged(request, produced):
                async with self._validating:
                    await self._validate(request, produced, connection)
            if self._in_flight.is_full and not produced.is_over:
                self._wait(connection, produced, size_bytes, unanswered)
                return
            if not connection.closed and not produced.is_over:
                self._take(produced, size_bytes)
            if unanswered is not None:
                unanswered.send(None)
        except Exception as error:  # an assertion too: the connection tells the loop
            reply.fail(error)
        finally:
            connection.go_on()

    def _judged(self, request: ProduceRequest, produced: PendingProduce) -> bool:
        """Validate what is compressed, here and now; False if that, or the rest, takes long."""
        if takes_long(_batches(request)):
            return False
        image = self._image()
        for asked, (name, topic_id, awaited) in zip(
            request.topic_data, produced.topics, strict=True
        ):
            topic = image.topics.get(topic_id) if produced.by_id else image.topic(name)
            for one, partition in zip(awaited, asked.partition_data, strict=True):
                records = partition.records
                if topic is None or records is None or not is_compressed(records):
                    continue
                rules, limit_bytes = self._rules_for(image, topic), USUAL_RATIO * len(records)
                now_ms = self._now_ms()
                try:
                    one.validated = validate(records, produced.version, rules, now_ms, limit_bytes)
                except TakesLongError:
                    return False
        return True

    async def _validate(
        self, request: ProduceRequest, produced: PendingProduce, connection: ServerConnection
    ) -> None:
        """Validate in a thread; the interpreter gives the loop its turns."""
        image = self._image()
        for asked, (name, topic_id, awaited) in zip(
            request.topic_data, tuple(produced.topics), strict=False
        ):
            topic = image.topics.get(topic_id) if produced.by_id else image.topic(name)
            for one, partition in zip(awaited, asked.partition_data, strict=True):
                if produced.is_over or connection.closed:
                    return
                if one.validated is None and topic is not None and one.index in topic.partitions:
                    rules = self._rules_for(image, topic)
                    one.validated = await asyncio.to_thread(
                        validate, partition.records, produced.version, rules, self._now_ms()
                    )

    def _wait(
        self,
        connection: ServerConnection,
        produced: PendingProduce,
        size_bytes: int,
        unanswered: Reply | None,
    ) -> None:
        """Take the request when there is memory for it; its connection is not read until then."""
        connection.hold()

        def go_on() -> None:
            if not connection.closed and not produced.is_over:
                self._take(produced, size_bytes)
            if unanswered is not None:
                unanswered.send(None)
            connection.go_on()

        self._in_flight.wait(go_on)

    def _take(self, produced: PendingProduce, size_bytes: int) -> None:
        self._in_flight.take(size_bytes)
        refusal = self._whole_refusal(produced.asked)
        if refusal is not None:
            produced.settle_all(refusal)
        else:
            self._append_all(produced)
        for one in produced.errors:
            self.counters.refused[int(one.error)] += 1
        produced.read()

    @staticmethod
    def _whole_refusal(request: ProduceRequest) -> AppendResult | None:
        if request.acks not in (-1, 0, 1):
            return AppendResult(
                ErrorCode.INVALID_REQUIRED_ACKS, f"acks={request.acks} is none of -1, 0, 1"
            )
        if request.transactional_id is not None:
            return AppendResult(ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, NO_TRANSACTIONS)
        return None

    def _append_all(self, produced: PendingProduce) -> None:
        image = self._image()
        for asked, (name, topic_id, awaited) in zip(
            produced.asked.topic_data, produced.topics, strict=True
        ):
            topic = image.topics.get(topic_id) if produced.by_id else image.topic(name)
            for one, partition in zip(awaited, asked.partition_data, strict=True):
                if topic is None:
                    code = (
                        ErrorCode.UNKNOWN_TOPIC_ID
                        if produced.by_id
                        else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
                    )
                    one.settle(AppendResult(code, "this broker knows no such topic"))
                else:
                    self._append(image, topic, one, partition.records, produced.version)

    def _append(
        self,
        image: MetadataImage,
        topic: TopicImage,
        awaited: AwaitedPartition,
        records: bytes | memoryview | None,
        version: int,
    ) -> None:
        if topic.is_internal:
            text = f"{topic.name} belongs to the cluster itself"
            awaited.settle(AppendResult(ErrorCode.INVALID_TOPIC_EXCEPTION, text))
            return
        if awaited.index not in topic.partitions:
            text = f"{topic.name} has no partition {awaited.index}"
            awaited.settle(AppendResult(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, text))
            return
        rules = self._rules_for(image, topic)
        outcome = awaited.validated or validate(records, version, rules, self._now_ms())
        if isinstance(outcome, Refusal):
            awaited.settle(outcome)
            return
        if outcome.batch.header.is_transactional:
            awaited.settle(
                AppendResult(ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, NO_TRANSACTIONS)
            )
            return
        writer = self._writer(topic.coordinator(awaited.index))
        if writer is None:
            text = "this broker may not write now: it is starting, closing or fenced"
            awaited.settle(AppendResult(ErrorCode.NOT_LEADER_OR_FOLLOWER, text))
            return
        self.counters.batches += 1
        self.counters.records += outcome.batch.header.record_count
        awaited.request.handed_over()
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
            rules = self._rules[topic.topic_id] = TopicRules.of(image, topic.name)
        return rules


def _batches(request: ProduceRequest) -> Iterator[bytes | memoryview | None]:
    return (one.records for topic in request.topic_data for one in topic.partition_data)


def _hear_s(request: ProduceRequest) -> float:
    """How long its topics are waited for; with acks=0 it has no time of its own."""
    left_s = HEAR_SHARE * max(0, request.timeout_ms) / 1_000
    return min(HEAR_S, left_s) if request.acks else HEAR_S


def _has_all(image: MetadataImage, request: ProduceRequest) -> bool:
    return all(topic.topic_id in image.topics for topic in request.topic_data)
