"""Brokers of the simulated quorum: they upload objects, commit them, and never lose count.

A broker leases ids, closes objects in order, keeps several commits in flight, and after any loss or
refusal sends everything unanswered again, oldest first (`coordinator.batch.commit_queue` is the
production
code that does this; it is asyncio's, so here is the same in the simulator's words). Connections
are the simulated network's: what was sent before one was given up may still arrive, after a newer
one's requests, after the object was given up, after the broker started again with a higher epoch.

Its clients are producers: batches in sequence, at most five in flight in a partition, sent again
with the same sequence until an offset comes back, perhaps through another broker.

Source: docs/design/batch-coordinator.md#commits-are-idempotent-by-object-id,
docs/design/broker.md#produce; KIP-1164; Kafka's Sender.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import partial
from random import Random
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID

from coordinator.batch.state import MAX_SEQUENCE
from coordinator.errors import CoordinatorError
from records.kafka_errors import ErrorCode
from records.rpc.batch_coordinator import CommitBatch, CommitBatchesRequest, CommitBatchesResponse
from records.rpc.objects import (
    AcquireObjectLeaseRequest,
    AcquireObjectLeaseResponse,
    DeleteFilesRequest,
    GetFilesToDeleteRequest,
    IsSafeToDeleteFileRequest,
)
from tests.simulation.callers import Caller
from tests.simulation.coordinator_model import Place, batches_of
from tests.simulation.world import MS, SECOND

if TYPE_CHECKING:
    from tests.simulation.coordinator_cluster import Callers

OBJECT_US: Final = 4 * SECOND  # at most; then it is given up
RETRY_US: Final = 40 * MS
MAX_IN_FLIGHT: Final = 4
MAX_UNANSWERED: Final = 8
STREAM_IN_FLIGHT: Final = 5


class Sent:
    """A batch of a producer that has no offset yet."""

    __slots__ = ("batch", "first", "home", "number")

    def __init__(self, number: int, batch: CommitBatch) -> None:
        self.number = number  # of its stream
        self.batch = batch
        self.home: Commit | None = None  # the object it is in; None: to be sent (again)
        self.first = False  # nothing before it was without an answer when it was put there


class Stream:
    """A producer's batches of one partition."""

    def __init__(self, producer_id: int, place: Place, home: int, *, old: bool) -> None:
        self.producer_id = producer_id
        self.place = place
        self.home = home  # index of the broker
        self.epoch = 0
        self.next = MAX_SEQUENCE - 20 - producer_id if old else 0
        self.unanswered: deque[Sent] = deque()
        self._count = 0
        self.settled = not old  # its first batch has an offset
        self.gone = False  # its topic is
        self.now_ms: Callable[[], int] | None = None  # true time, for timestamps; None: of 1970

    def take(self, random: Random, limit: int, *, more: bool) -> list[Sent]:
        """What goes into the object that is being filled: what was refused, then what is new."""
        taken: list[Sent] = []
        for sent in self.unanswered:
            if sent.home is None and len(taken) < limit:
                sent.first = sent is self.unanswered[0]
                taken.append(sent)
            elif taken:
                break  # what follows is under way already, and will be refused
        in_flight = STREAM_IN_FLIGHT if self.settled else 1
        waits = any(sent.home is None and sent not in taken for sent in self.unanswered)
        while more and not waits and len(taken) < limit and self._window() < in_flight:
            count = 1 if random.random() < 0.6 else random.randrange(2, 9)
            last = (self.next + count - 1) & MAX_SEQUENCE
            self._count += 1
            size, timestamp = random.randrange(60, 200), random.randrange(1000)
            sent = Sent(
                self._count,
                CommitBatch(
                    byte_offset=0,
                    size=size,
                    base_offset=0,
                    last_offset=count - 1,
                    batch_max_timestamp=timestamp if self.now_ms is None else self.now_ms(),
                    message_timestamp_type=int(random.random() < 0.3 and self.now_ms is None),
                    producer_id=self.producer_id,
                    producer_epoch=self.epoch,
                    base_sequence=self.next,
                    last_sequence=last,
                ),
            )
            sent.first = not self.unanswered
            self.next = (self.next + count) & MAX_SEQUENCE
            self.unanswered.append(sent)
            taken.append(sent)
        return taken

    def _window(self) -> int:
        """From the first without an answer to the last: what a coordinator must remember."""
        return self._count + 1 - self.unanswered[0].number if self.unanswered else 0

    def send_again(self, home: int) -> None:
        """Through another broker, all of it."""
        self.home = home
        for sent in self.unanswered:
            sent.home = None

    def bump(self) -> None:
        """The producer begins anew."""
        self.epoch += 1
        self.next = 0


class Commit:
    """An object until it is answered."""

    __slots__ = (
        "answered",
        "batches",
        "deadline_us",
        "invoked_us",
        "known",
        "object_id",
        "request",
    )

    def __init__(
        self,
        request: CommitBatchesRequest,
        batches: list[tuple[Stream, Sent] | None],
        now_us: int,
        patience_us: int,
        known: frozenset[UUID],
    ) -> None:
        self.object_id = request.object_id
        self.request = request
        self.batches = batches
        self.invoked_us = now_us
        self.deadline_us = now_us + patience_us
        self.answered = False
        self.known = known  # topics that were created before


class Uploader(Caller):
    """A broker, through all its lives."""

    def __init__(self, callers: Callers, index: int, random: Random) -> None:
        super().__init__(callers, 101 + index, random)
        self.index = index
        self.epoch = 1
        self.unanswered: deque[Commit] = deque()
        self._sent = 0  # of the unanswered, from the left
        self._in_flight = 0
        self._failed = False
        self._lease: tuple[int, int, int] | None = None  # id, next object id, end
        self._asks_for_lease = False
        self._paused = False
        self.world.after(1 + int(random.random() * callers.pause_us), self._act)

    def restart(self) -> None:
        """Everything in memory is lost; its clients go elsewhere, or come back."""
        self.epoch += 1
        self.unanswered.clear()
        self._sent = self._in_flight = 0
        self._failed = self._asks_for_lease = self._paused = False
        self._lease = None
        self.forget()
        for stream in self.callers.streams:
            if stream.home == self.index:
                stream.send_again(self.random.randrange(self.callers.brokers))

    def idle(self) -> bool:
        """Nothing is under way."""
        return not self.unanswered

    # -- filling objects -----------------------------------------------------------------------

    def _act(self) -> None:
        random, callers = self.random, self.callers
        self.world.after(1 + int(random.random() * 2 * callers.pause_us), self._act)
        self._give_up()
        if self._lease is None or self._lease[1] >= self._lease[2]:
            self._ask_for_lease()
        elif len(self.unanswered) < MAX_UNANSWERED:
            self._fill()
        if random.random() < 0.05:
            self._clean()
        self._pump()

    def _ask_for_lease(self) -> None:
        if self._asks_for_lease or self._paused:
            return
        self._asks_for_lease = True
        epoch = self.epoch
        if self.random.random() < 0.1 and epoch > 1:
            epoch -= 1  # a life that is over asks, too
        request = AcquireObjectLeaseRequest(
            coordinator_partition=0,
            broker_id=self.index,
            broker_epoch=epoch,
            object_count=self.random.choice((2, 5, 20, 200)),
        )
        self.call(request, lambda answer: self._leased(epoch, answer))

    def _leased(
        self, epoch: int, answer: AcquireObjectLeaseResponse | CoordinatorError | None
    ) -> None:
        self._asks_for_lease = False
        if isinstance(answer, AcquireObjectLeaseResponse):
            if not answer.error_code and epoch == self.epoch:
                first = answer.first_object_id
                self._lease = (answer.lease_id, first, first + answer.object_count)
        else:
            self._rest()

    def _fill(self) -> None:
        """Close an object, upload it, and commit it in its turn."""
        callers, random = self.callers, self.random
        streams = [s for s in callers.streams if s.home == self.index and not s.gone]
        random.shuffle(streams)
        more = not callers.stopped
        chosen: list[tuple[Place, Stream | None, Sent | None, CommitBatch]] = []
        for stream in streams[: 1 + random.randrange(4)]:
            for sent in stream.take(random, random.choice((1, 1, 2, 3, 5)), more=more):
                chosen.append((stream.place, stream, sent, sent.batch))
        if more and random.random() < 0.2:
            place, size = random.choice(callers.places), random.randrange(60, 200)
            timestamp = 7 if self.callers.now_ms is None else self.callers.now_ms()
            batch = CommitBatch(0, size, 0, random.randrange(3), timestamp, 0, -1, -1, -1, -1)
            chosen.append((place, None, None, batch))
        if not chosen:
            return
        assert self._lease is not None
        lease_id, object_id, end = self._lease
        self._lease = (lease_id, object_id + 1, end)
        request, order = self._object(lease_id, object_id, chosen)
        if random.random() < 0.03:
            callers.rare["uploads failed"] += 1  # its id is burnt; what follows passes
            return
        callers.model.uploaded[object_id] = request
        patience_us = random.choice((OBJECT_US, OBJECT_US // 4, OBJECT_US // 8))
        known = frozenset(callers.created)
        commit = Commit(request, order, self.world.now_us, patience_us, known)
        for told in order:
            if told is not None:
                told[1].home = commit
        self.unanswered.append(commit)

    def _object(
        self,
        lease_id: int,
        object_id: int,
        chosen: list[tuple[Place, Stream | None, Sent | None, CommitBatch]],
    ) -> tuple[CommitBatchesRequest, list[tuple[Stream, Sent] | None]]:
        """Batches grouped by topic and partition, back to back."""
        order: list[tuple[Stream, Sent] | None] = []
        position, topics = 0, []
        for topic_id in sorted({place[0] for place, *_ in chosen}):
            groups = []
            for partition in sorted({place[1] for place, *_ in chosen if place[0] == topic_id}):
                batches = []
                for place, stream, sent, batch in chosen:
                    if place == (topic_id, partition):
                        batches.append(batch._replace(byte_offset=position))
                        position += batch.size
                        order.append(None if stream is None or sent is None else (stream, sent))
                groups.append(
                    CommitBatchesRequest.Topic.Partition(
                        partition_index=partition, batches=tuple(batches)
                    )
                )
            topics.append(CommitBatchesRequest.Topic(topic_id=topic_id, partitions=tuple(groups)))
        request = CommitBatchesRequest(
            broker_id=self.index,
            broker_epoch=self.epoch,
            lease_id=lease_id,
            object_id=object_id,
            object_format=0,
            object_size=position + 40,
            topics=tuple(topics),
        )
        return request, order

    # -- committing them -----------------------------------------------------------------------

    def _pump(self) -> None:
        if self._failed or self._paused:
            return
        while self._sent < len(self.unanswered) and self._in_flight < MAX_IN_FLIGHT:
            commit = self.unanswered[self._sent]
            self._sent += 1
            self._in_flight += 1
            self.call(commit.request, partial(self._answered, self.epoch, commit))

    def _answered(
        self, epoch: int, commit: Commit, answer: CommitBatchesResponse | CoordinatorError | None
    ) -> None:
        if epoch != self.epoch:
            return
        self._in_flight -= 1
        if isinstance(answer, CommitBatchesResponse):
            self._settle(commit, answer)
            if commit in self.unanswered:
                self.unanswered.remove(commit)
                self._sent = max(0, self._sent - 1)
        else:
            self._failed = True
        if self._failed and not self._in_flight:
            self._failed, self._sent = False, 0
            if self.random.random() < 0.5:
                self.hang_up()
            self._rest()
        self._pump()

    def _rest(self) -> None:
        """Nobody led there: look again, but not at once."""
        if not self._paused:
            self._paused = True
            self.world.after(1 + int(self.random.random() * 2 * RETRY_US), self._rested, self.epoch)

    def _rested(self, epoch: int) -> None:
        if epoch == self.epoch:
            self._paused = False
            if self.random.random() < 0.5 or not self.callers.seems_to_lead(self.connection):
                self.hang_up()
            self._pump()

    def _give_up(self) -> None:
        """The oldest has waited for too long; perhaps it is committed all the same."""
        while self.unanswered and self.unanswered[0].deadline_us < self.world.now_us:
            commit = self.unanswered.popleft()
            self._sent = max(0, self._sent - 1)
            self.callers.rare["objects given up"] += 1
            self._free(commit)
            if self.random.random() < 0.5:
                self.hang_up()  # what is under way may arrive after what is sent next
            if self.random.random() < 0.9:
                self._may_it_go(commit.object_id)

    def _free(self, commit: Commit) -> None:
        for batch in commit.batches:
            if batch is not None and batch[1].home is commit:
                batch[1].home = None

    def _settle(self, commit: Commit, answer: CommitBatchesResponse) -> None:
        """The answer, whichever attempt it answers: clients hear of it."""
        callers = self.callers
        if answer.error_code:
            self._free(commit)
            if answer.error_code != ErrorCode.DUPLICATE_SEQUENCE_NUMBER:
                self._lease = None  # it is over, or we are
                if answer.error_code == ErrorCode.STALE_BROKER_EPOCH:
                    callers.rare["brokers fenced"] += 1
            return
        results = [r for t in answer.topics for p in t.partitions for r in p.results]
        names = batches_of(commit.request)
        for batch, result, (place, _) in zip(commit.batches, results, names, strict=True):
            if batch is not None:
                self._tell_client(commit, *batch, place, result)
        if not commit.answered:
            commit.answered = True
            callers.acknowledged_count += 1
            callers.newest_acknowledged_us = max(callers.newest_acknowledged_us, commit.invoked_us)

    def _tell_client(
        self, commit: Commit, stream: Stream, sent: Sent, place: Place, result: Any
    ) -> None:
        callers, code = self.callers, result.error_code
        current = sent.home is commit and sent in stream.unanswered
        if not code:
            base = callers.model.stored.get(
                (stream.producer_id, sent.batch.producer_epoch, *place, sent.batch.base_sequence)
            )
            assert base == result.assigned_base_offset, (
                f"{place}: {sent.batch} was acknowledged at {result.assigned_base_offset}, it is"
                f" at {base} (invariant 5)"
            )
            if sent in stream.unanswered:
                stream.unanswered.remove(sent)
                stream.settled = True
            if not stream.unanswered and self.random.random() < 0.03 and not callers.stopped:
                stream.bump()
            return
        if not current:
            return
        sent.home = None
        if code == ErrorCode.UNKNOWN_TOPIC_ID:
            assert place[0] in callers.deleted_topics or place[0] not in commit.known, (
                f"{place} is unknown, though it was created"
            )
            if place[0] in callers.deleted_topics:
                stream.gone = True
                stream.unanswered.clear()
            return
        assert code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, f"{sent.batch} is refused: {result}"
        assert not sent.first, f"{place}: {sent.batch} is next in sequence, and is refused"

    # -- deleting what nobody needs --------------------------------------------------------------

    def _may_it_go(self, object_id: int) -> None:
        key = self.callers.model.keys.key(object_id)
        request = IsSafeToDeleteFileRequest(coordinator_partition=0, object_key=key)

        def answered(answer: Any) -> None:
            if answer is not None and not isinstance(answer, CoordinatorError) and answer.is_safe:
                self.callers.model.deleted.add(object_id)

        self.call(request, answered)

    def _clean(self) -> None:
        def listed(answer: Any) -> None:
            if answer is None or isinstance(answer, CoordinatorError) or not answer.files:
                return
            keys = tuple(file.object_key for file in answer.files)
            model = self.callers.model
            model.deleted.update(model.keys.object_id(key) for key in keys)
            gone = DeleteFilesRequest(coordinator_partition=0, object_keys=keys)
            self.call(gone, lambda _: None)

        request = GetFilesToDeleteRequest(coordinator_partition=0, max_files=20)
        self.call(request, listed)


def topic(number: int) -> UUID:
    """The id of a topic."""
    return UUID(int=number)
