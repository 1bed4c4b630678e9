"""Produce: validate a request's batches, hand them to the writers, and answer once.

Each partition of a request is validated and answered by itself, in one response: when all batches
have an outcome, or when the request times out. A batch whose outcome is not known by then is
answered REQUEST_TIMED_OUT and may still be committed a moment later. That is why a producer that is
not idempotent may see a record twice, here as with any Kafka.

With acks=0 there is no response, and an error closes the connection, which is the only signal left.

Three kinds of requests wait, and their connections are not read meanwhile: those that exceed the
memory bound (`diskless.produce.in_flight`); those that name a topic id which this broker does not
know yet, because another broker may have announced it a moment ago and some clients do not retry;
and those whose records take long to validate, which happens in a thread.

Source: the protocol guide, Produce; KIP-467 (errors by record); docs/design/broker.md#produce.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final, Protocol
from uuid import UUID

from coordinator.controller.image import MetadataImage, TopicImage
from coordinator.features import has_transactions
from diskless.access.gate import Gate
from diskless.access.topics import denied_produce
from diskless.cluster import Cluster
from diskless.loop_turns import takes_long
from diskless.produce import bounds, old_versions
from diskless.produce.buffer import AppendResult, Waiter
from diskless.produce.closing import BufferClosing
from diskless.produce.in_flight import InFlight
from diskless.produce.request import AwaitedPartition, PendingProduce, response_of
from diskless.produce.spreading import ProducerSpreading
from diskless.produce.validation import (
    Accepted,
    Decompression,
    Refusal,
    TakesLongError,
    TopicRules,
    is_compressed,
    transactional_producer,
    validate,
)
from diskless.request_time import in_thread, timed
from diskless.traffic import Traffic
from diskless.transactions.proofs import Producer, Proof, TransactionProofs
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
from records.compression import MAX_DECOMPRESSED_BYTES
from records.kafka_errors import ErrorCode
from records.rpc.produce import ProduceRequest

TOPIC_WAIT_S: Final = 3.0  # for a topic id that another broker may have announced
IMAGE_CHECK_S: Final = 0.02  # between two looks at the image's age: an idle log publishes no image
TOPIC_WAIT_SHARE: Final = 0.9  # of a request's timeout: past it the answer is REQUEST_TIMED_OUT


NO_TRANSACTIONS: Final = "transactions are not supported by this cluster"


class Writer(Protocol):
    """The part of an `object_writer.ObjectWriter` that Produce needs."""

    def append(
        self,
        topic_id: UUID,
        partition: int,
        accepted: Accepted,
        *,
        append_time: bool,
        waiter: Waiter,
        proof: Proof | None = None,
    ) -> None:
        """Buffer a validated batch, and later report its outcome to `waiter`."""


@dataclass(slots=True)
class ProduceCounters:
    """Counts of produced requests, batches and records, for metrics."""

    requests: int = 0
    bytes_in: int = 0  # of requests
    batches: int = 0  # accepted
    records: int = 0
    refused: Counter[int] = field(default_factory=Counter)  # partitions, by error code


class ProduceService:
    """Serves Produce for one broker. Belongs to the event loop."""

    def __init__(
        self,
        cluster: Cluster,
        *,
        writer: Callable[[int], Writer | None],
        now_ms: Callable[[], int],
        in_flight: InFlight,
        closing: BufferClosing,
        max_decompressed_bytes: int = MAX_DECOMPRESSED_BYTES,
        store_fault: Callable[[], str | None] = lambda: None,
        spreading: ProducerSpreading | None = None,
        proofs: TransactionProofs | None = None,
        gate: Gate | None = None,
        traffic: Traffic | None = None,
    ) -> None:
        """Create the service that answers Produce requests for this cluster.

        Args:  writer: gives the writer of a coordinator partition; None while this broker has no
                   epoch to write under.
               now_ms: the wall clock, ms since 1970, that timestamps are compared with.
               in_flight: the memory that requests take until their batches are written.
               closing: is told what producers do, and closes buffers early.
               max_decompressed_bytes: of all compressed batches of one request.
               store_fault: gives the reason why the object store takes nothing now, or None.
               spreading: sends producers on to brokers that came back.
               proofs: of transactional batches; None: this broker takes none.
               gate: says what producers may write; None: everything.
               traffic: counts the accepted batches of each topic.
        """
        self.counters = ProduceCounters()
        self._cluster = cluster
        self._preparing: set[asyncio.Task[None]] = set()  # a loop itself keeps no task alive
        self._validating = asyncio.Semaphore(1)
        self._writer = writer
        self._now_ms = now_ms
        self._in_flight = in_flight
        self._max_decompressed_bytes = max_decompressed_bytes
        self._closing = closing
        self._store_fault = store_fault
        self._spreading = spreading
        self._proofs = proofs
        self._gate = gate
        self._traffic = traffic or Traffic(cluster.image.topics)
        self._rules: dict[UUID, TopicRules] = {}
        self._rules_of: MetadataImage | None = None

    def serve(self, connection: ServerConnection, header: RequestHeader, body: Frame) -> Answer:
        """Accept a Produce request, and answer once all outcomes of its batches are known.

        Raises:  BadHeaderError for a request that names too much, or is of a version before
                 record batches and wants no answer; RecordError for one that cannot be decoded.
        """
        if header.api_version <= old_versions.LAST_VERSION:
            return old_versions.refuse(header, body)
        bounds.check(header, body)
        request = decode_message(ProduceRequest, body, header.api_version, whole=False)
        self.counters.requests += 1
        self.counters.bytes_in += len(body)
        self._closing.awaited.note_request(connection.id)
        reply = Reply(connection)
        silent = request.acks == 0
        loop = asyncio.get_running_loop()
        timer: asyncio.TimerHandle | None = None

        def answer(produced: PendingProduce) -> None:
            if timer is not None:
                timer.cancel()
            errors = produced.errors
            for outcome in errors:
                self.counters.refused[int(outcome.error)] += 1
            if not silent:
                self._closing.awaited.note_answer(connection.id)
                reply.send(payload(header, response_of(produced)))
            elif errors and not connection.closed:
                connection.close(Reason.ACKS_0_FAILED, errors[0].message or "")

        size_bytes = len(body)
        produced = PendingProduce(
            request,
            header.api_version,
            answer,
            lambda: self._in_flight.release(size_bytes),
            Decompression(self._max_decompressed_bytes),
        )
        if not silent:
            if self._spreading is not None:
                produced.destination = self._spreading.destination(connection, header.client_id)
            timer = loop.call_later(
                max(0, request.timeout_ms) / 1_000, lambda: produced.expire(self._store_fault())
            )
        self._settle_denied(connection, produced)
        unanswered = reply if silent else None
        awaits_topics = (
            produced.by_id
            and _topic_wait_s(request) > 0
            and not _has_topics(self._cluster.image, request)
        )
        needs_thread = not awaits_topics and not self._validate_inline(request, produced)
        if awaits_topics or needs_thread or self._unproven(produced):
            work = self._prepare(
                request,
                produced,
                size_bytes,
                reply,
                awaits_topics=awaits_topics,
                needs_thread=needs_thread,
            )
            preparing = loop.create_task(timed(work))
            self._preparing.add(preparing)
            preparing.add_done_callback(self._preparing.discard)
            connection.pause_reading()
            return reply
        if self._in_flight.is_full:
            self._take_later(connection, produced, size_bytes, unanswered)
            return reply
        self._take(produced, size_bytes)
        return None if silent else reply

    async def _prepare(
        self,
        request: ProduceRequest,
        produced: PendingProduce,
        size_bytes: int,
        reply: Reply,
        *,
        awaits_topics: bool,
        needs_thread: bool,
    ) -> None:
        """Wait for topics and proofs, validate the request's batches, and pass them to writers.

        Args:  awaits_topics: whether the image lacks topics of the request.
               needs_thread: whether the loop has left the validation of some batches to a thread.
        """
        connection = reply.connection
        unanswered = reply if request.acks == 0 else None
        try:
            if awaits_topics:
                await self._await_topics(request)
                self._settle_denied(connection, produced)
                needs_thread = not produced.is_over and not self._validate_inline(request, produced)
            if needs_thread and not produced.is_over:
                self._closing.validating += 1
                try:
                    async with self._validating:
                        await self._validate_in_thread(request, produced, connection)
                finally:
                    self._closing.validating -= 1
            if not produced.is_over:
                await self._prove(produced)
            if self._in_flight.is_full and not produced.is_over:
                self._take_later(connection, produced, size_bytes, unanswered)
                return
            if not connection.closed and not produced.is_over:
                self._take(produced, size_bytes)
            if unanswered is not None:
                unanswered.send(None)
        except Exception as error:  # an assertion too: the connection tells the loop
            reply.fail(error)
        finally:
            connection.resume_reading()

    def _settle_denied(self, connection: ServerConnection, produced: PendingProduce) -> None:
        """Set the error of each partition that the producer may not write to."""
        if self._gate is None or produced.is_over:
            return
        request = produced.request
        code, denied = denied_produce(
            request,
            self._gate.asked(connection, produced.version),
            is_transactional=request.transactional_id is not None
            and any(transactional_producer(batch) for batch in _batches(request)),
        )
        for index in denied:
            for awaited in produced.topics[index][2]:
                awaited.settle(AppendResult(code))

    def _unproven(self, produced: PendingProduce) -> dict[Producer, dict[tuple[UUID, int], str]]:
        """Return the partitions, with topic names, whose transactional batches lack a proof.

        Proofs that this broker knows are set on the request.
        """
        request, image = produced.request, self._cluster.image
        missing: dict[Producer, dict[tuple[UUID, int], str]] = {}
        if request.transactional_id is None or not self._takes_transactions():
            return missing
        assert self._proofs is not None, "a broker that takes transactions without proofs"
        for sent_topic, (name, topic_id, awaited) in zip(
            request.topic_data, produced.topics, strict=True
        ):
            topic = image.topics.get(topic_id) if produced.by_id else image.topic(name)
            if topic is None:
                continue
            for partition, sent in zip(awaited, sent_topic.partition_data, strict=True):
                named = transactional_producer(sent.records)
                if named is None or sent.index not in topic.partitions or partition.outcome:
                    continue
                producer = Producer(request.transactional_id, *named)
                key = (topic.topic_id, sent.index)
                proof = self._proofs.find(producer, key, produced.version)
                if proof is None:
                    missing.setdefault(producer, {})[key] = topic.name
                else:
                    produced.proven[key] = proof
        return missing

    async def _prove(self, produced: PendingProduce) -> None:
        """Ask the transaction log for the proofs that this broker does not know."""
        for producer, partitions in self._unproven(produced).items():
            assert self._proofs is not None, "partitions to prove without proofs"
            produced.proven |= await self._proofs.prove(producer, partitions, produced.version)

    def _takes_transactions(self) -> bool:
        """Return whether this broker takes transactional batches now."""
        return self._proofs is not None and has_transactions(self._cluster.image.features)

    async def _await_topics(self, request: ProduceRequest) -> None:
        """Wait until the image has the request's topics, or is newer than the request.

        Another broker may have announced a topic that this image does not have yet. What was
        committed before the request arrived is in an image that is newer, so a topic that is not in
        there is unknown.
        """
        loop = asyncio.get_running_loop()
        began = loop.time()
        left_s = _topic_wait_s(request)
        while left_s > 0 and not _has_topics(self._cluster.image, request):
            age_ms = self._cluster.image_age_ms()
            waited_s = loop.time() - began
            if age_ms is not None and age_ms < waited_s * 1_000:
                return
            left_s = max(0.0, _topic_wait_s(request) - waited_s)
            await self._cluster.image_where(
                lambda image: _has_topics(image, request), min(left_s, IMAGE_CHECK_S)
            )

    def _validate_inline(self, request: ProduceRequest, produced: PendingProduce) -> bool:
        """Validate compressed batches on the event loop; return False if a thread is needed."""
        if takes_long(_batches(request)):
            return False
        image = self._cluster.image
        for sent_topic, (name, topic_id, awaited) in zip(
            request.topic_data, produced.topics, strict=True
        ):
            topic = image.topics.get(topic_id) if produced.by_id else image.topic(name)
            for partition, sent in zip(awaited, sent_topic.partition_data, strict=True):
                records = sent.records
                if partition.outcome is not None:
                    continue
                if topic is None or records is None or not is_compressed(records):
                    continue
                rules, now_ms = self._rules_for(image, topic), self._now_ms()
                try:
                    partition.validated = validate(
                        records,
                        produced.version,
                        rules,
                        now_ms,
                        produced.decompression,
                        inline=True,
                    )
                except TakesLongError:
                    return False
        return True

    async def _validate_in_thread(
        self, request: ProduceRequest, produced: PendingProduce, connection: ServerConnection
    ) -> None:
        """Validate batches in a thread, so that the event loop serves other requests."""
        image = self._cluster.image
        for sent_topic, (name, topic_id, awaited) in zip(
            request.topic_data, tuple(produced.topics), strict=False
        ):
            topic = image.topics.get(topic_id) if produced.by_id else image.topic(name)
            for partition, sent in zip(awaited, sent_topic.partition_data, strict=True):
                if produced.is_over or connection.closed:
                    return
                is_known = topic is not None and partition.index in topic.partitions
                is_known = is_known and partition.outcome is None
                if partition.validated is None and topic is not None and is_known:
                    rules = self._rules_for(image, topic)
                    partition.validated = await in_thread(
                        validate,
                        sent.records,
                        produced.version,
                        rules,
                        self._now_ms(),
                        produced.decompression,
                    )

    def _take_later(
        self,
        connection: ServerConnection,
        produced: PendingProduce,
        size_bytes: int,
        unanswered: Reply | None,
    ) -> None:
        """Process the request once memory is free, and stop reading its connection until then."""
        connection.pause_reading()

        def resume() -> None:
            if not connection.closed and not produced.is_over:
                self._take(produced, size_bytes)
            if unanswered is not None:
                unanswered.send(None)
            connection.resume_reading()

        self._in_flight.wait(resume)
        self._closing.close_for_memory()

    def _take(self, produced: PendingProduce, size_bytes: int) -> None:
        """Pass every batch of the request to its writer, or set its partition's error."""
        self._in_flight.acquire(size_bytes)
        refusal = self._refusal_of_request(produced.request)
        if refusal is not None:
            produced.settle_all(refusal)
        else:
            image = self._cluster.image
            writers: dict[int, Writer | None] = {}
            for sent_topic, (name, topic_id, partitions) in zip(
                produced.request.topic_data, produced.topics, strict=True
            ):
                topic = image.topics.get(topic_id) if produced.by_id else image.topic(name)
                batches = [
                    (awaited, sent.records)
                    for awaited, sent in zip(partitions, sent_topic.partition_data, strict=True)
                    if awaited.outcome is None
                ]
                if topic is None or topic.is_internal:
                    refusal = _refusal_of_topic(topic, by_id=produced.by_id)
                    for awaited, _ in batches:
                        awaited.settle(refusal)
                elif batches:
                    self._append(image, topic, batches, writers)
        produced.finish_taking()

    def _refusal_of_request(self, request: ProduceRequest) -> AppendResult | None:
        """Return the error that an invalid request gets for all partitions, or None if valid."""
        if request.acks not in (-1, 0, 1):
            return AppendResult(
                ErrorCode.INVALID_REQUIRED_ACKS, f"acks={request.acks} is none of -1, 0, 1"
            )
        if request.transactional_id is not None and not self._takes_transactions():
            return AppendResult(ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, NO_TRANSACTIONS)
        return None

    def _append(
        self,
        image: MetadataImage,
        topic: TopicImage,
        batches: Iterable[tuple[AwaitedPartition, bytes | memoryview | None]],
        writers: dict[int, Writer | None],
    ) -> None:
        """Pass a topic's batches to their writers, or set their partitions' errors.

        Args:  writers: of the request's batches so far, by coordinator partition.
        """
        rules, now_ms = self._rules_for(image, topic), self._now_ms()
        batch_count = record_count = size_bytes = 0
        for awaited, sent in batches:
            accepted = self._accepted(topic, awaited, sent, rules, now_ms)
            if accepted is None:
                continue
            coordinator = topic.coordinator(awaited.index)
            if coordinator not in writers:
                writers[coordinator] = self._writer(coordinator)
            writer = writers[coordinator]
            if writer is None:
                text = "this broker may not write now: it is starting, closing or fenced"
                awaited.settle(AppendResult(ErrorCode.NOT_LEADER_OR_FOLLOWER, text))
                continue
            batch_count += 1
            record_count += accepted.batch.header.record_count
            size_bytes += len(accepted.batch.view)
            awaited.request.count_append()
            writer.append(
                topic.topic_id,
                awaited.index,
                accepted,
                append_time=rules.log_append_time,
                waiter=awaited,
                proof=awaited.proof,
            )
        if batch_count:
            self.counters.batches += batch_count
            self.counters.records += record_count
            self._traffic.records_in[topic.topic_id] += record_count
            self._traffic.bytes_in[topic.topic_id] += size_bytes

    def _accepted(
        self,
        topic: TopicImage,
        awaited: AwaitedPartition,
        records: bytes | memoryview | None,
        rules: TopicRules,
        now_ms: int,
    ) -> Accepted | None:
        """Return a partition's validated batch, or set the partition's error and return None."""
        if awaited.index not in topic.partitions:
            text = f"{topic.name} has no partition {awaited.index}"
            awaited.settle(AppendResult(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, text))
            return None
        request = awaited.request
        destination = request.destination
        if destination is not None:
            there = destination.broker_elsewhere(topic.topic_id, awaited.index)
            if there is not None:
                text = f"broker {there} leads {topic.name}-{awaited.index} now"
                awaited.settle(AppendResult(ErrorCode.NOT_LEADER_OR_FOLLOWER, text))
                return None
        outcome = awaited.validated or validate(
            records, request.version, rules, now_ms, request.decompression
        )
        if isinstance(outcome, Refusal):
            awaited.settle(outcome)
            return None
        if outcome.batch.header.is_transactional and not self._has_proof(topic, awaited):
            return None
        return outcome

    @staticmethod
    def _has_proof(topic: TopicImage, awaited: AwaitedPartition) -> bool:
        """Return whether a transactional batch is proved; set its proof or the error."""
        request = awaited.request
        if request.request.transactional_id is None:
            text = "a transactional batch without a transactional id"
            awaited.settle(AppendResult(ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, text))
            return False
        found = request.proven.get((topic.topic_id, awaited.index))
        if isinstance(found, Proof):
            awaited.proof = found
            return True
        text = "the transaction log does not show this partition in the producer's transaction"
        awaited.settle(AppendResult(found or ErrorCode.NOT_ENOUGH_REPLICAS, text))
        return False

    def _rules_for(self, image: MetadataImage, topic: TopicImage) -> TopicRules:
        """Return the topic's validation rules, cached until the cluster image changes."""
        if image is not self._rules_of:
            self._rules.clear()
            self._rules_of = image
        rules = self._rules.get(topic.topic_id)
        if rules is None:
            rules = self._rules[topic.topic_id] = TopicRules.of(image, topic.name)
        return rules


def _refusal_of_topic(topic: TopicImage | None, *, by_id: bool) -> AppendResult:
    """Return the error of a topic that is unknown (None) or internal."""
    if topic is None:
        code = ErrorCode.UNKNOWN_TOPIC_ID if by_id else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        return AppendResult(code, "this broker knows no such topic")
    text = f"{topic.name} belongs to the cluster itself"
    return AppendResult(ErrorCode.INVALID_TOPIC_EXCEPTION, text)


def _batches(request: ProduceRequest) -> Iterator[bytes | memoryview | None]:
    return (sent.records for topic in request.topic_data for sent in topic.partition_data)


def _topic_wait_s(request: ProduceRequest) -> float:
    """Return the number of seconds that a request may wait for unknown topic ids.

    acks=0 has no timeout of its own.
    """
    left_s = TOPIC_WAIT_SHARE * max(0, request.timeout_ms) / 1_000
    return min(TOPIC_WAIT_S, left_s) if request.acks else TOPIC_WAIT_S


def _has_topics(image: MetadataImage, request: ProduceRequest) -> bool:
    """Return whether the cluster image has every topic that the request names by id."""
    return all(topic.topic_id in image.topics for topic in request.topic_data)
