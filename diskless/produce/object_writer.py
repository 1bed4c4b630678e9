"""Writes buffered batches as objects and commits them in the order in which buffers were closed.

    append ─► buffer ─► closed ─► id ─► upload ─┐ (several at once)
                                                ├─► commit, in order ─► answers
              closed ─► id ─► upload ───────────┘

Uploads overlap and may end in any order; commits do not. A producer's second batch may be in a
later object than its first, and offsets are given in the order of commits.

What can fail, and the error that producers get:

- no id, because no coordinator answers or the lease is refused: nothing was written;
  NOT_ENOUGH_REPLICAS, and a producer may send again;
- the upload, with its retries: KAFKA_STORAGE_ERROR. The id is not used again, and later objects
  pass: the coordinator refuses their batches of the same idempotent producers by sequence, so order
  is kept;
- no coordinator takes the commit, and none can have taken it: NOT_ENOUGH_REPLICAS;
- the commit's outcome is unknown: the writer submits the same commit again until it is known
  (`commit_file` is idempotent). Meanwhile the produce service answers REQUEST_TIMED_OUT when a
  request's timeout is over;
- this broker was fenced, or is closing: NOT_LEADER_OR_FOLLOWER.

The trap: an upload that is reported as failed may still have happened. So an id is never used for
other bytes, and the coordinator finds objects that were uploaded and not committed: it knows which
ids were never committed.

Source: KIP-1163, Produce path, Error handling; docs/design/broker.md#produce,
docs/design/broker.md#errors-a-producer-sees.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any, Final, NamedTuple, Protocol
from uuid import UUID

from coordinator.batch.interface import NEVER_COMMITTED, CallTarget
from coordinator.batch.settings import KEPT_ANSWERS
from coordinator.controller.config_defs import PROCESS_CONFIGS
from coordinator.errors import CoordinatorError
from diskless.histograms import Histogram
from diskless.produce.buffer import AppendBuffer, AppendResult, ClosedBuffer, Waiter
from diskless.produce.closing import BufferClosing, ClosingSettings, Reason
from diskless.produce.object_ids import LeasedId, LeaseRefusedError, ObjectIds
from diskless.produce.validation import Accepted
from diskless.stores import ObjectStorage, StorageError
from diskless.transactions.proofs import Proof
from records.compression import Buffer
from records.kafka_errors import ErrorCode
from records.object_keys import ObjectKeys
from records.rpc.batch_coordinator import CommitBatchesRequest, CommitBatchesResponse
from records.wal import build_object

log = logging.getLogger("diskless.produce.service")


NOT_WRITTEN: Final = AppendResult(
    ErrorCode.NOT_ENOUGH_REPLICAS, "no batch coordinator takes it now"
)
CLOSING: Final = AppendResult(
    ErrorCode.NOT_LEADER_OR_FOLLOWER, "this broker is closing or was fenced"
)
UNKNOWN: Final = AppendResult(
    ErrorCode.REQUEST_TIMED_OUT, "it may have been written, or may yet be"
)
_MESSAGES: Final = {
    int(ErrorCode.POLICY_VIOLATION): "there are too many idempotent producers (esker.max.producers)"
}
"""What a coordinator's error codes mean, where Kafka's name of the code does not say it."""

MAX_MESSAGE: Final = 300  # characters of a store's reason, in each partition of a response
RELEASE_S: Final = 2.0  # for the coordinator to take a lease back
RETRY_MAX_S: Final = 2.0  # between two uploads of one object, or two submissions of its commit


class CommittingCoordinator(CallTarget, Protocol):
    """The part of a batch coordinator that a writer needs."""

    def submit(self, request: CommitBatchesRequest) -> asyncio.Future[CommitBatchesResponse]:
        """Submit a commit; the coordinator decides commits in the order of submission."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WriterSettings:
    """Sizes and times of buffers, uploads and leases. Times in ms.

    Raises:  ValueError naming what does not fit together.
    """

    commit_interval_ms: int = int(PROCESS_CONFIGS["diskless.append.commit.interval.ms"].default)
    buffer_max_bytes: int = int(PROCESS_CONFIGS["diskless.append.buffer.max.bytes"].default)
    max_uploads: int = 8  # at the same time
    upload_timeout_ms: int = 60_000  # of one object, with its retries
    upload_retry_ms: int = 50  # the first pause; each next one twice as long, and jittered
    lease_ids: int = 1_000  # ids of one lease
    lease_timeout_ms: int = 15 * 60_000  # the coordinator's
    closing: ClosingSettings = field(default_factory=ClosingSettings)

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> WriterSettings:
        """Build the writer's settings from a mapping of setting names to parsed values.

        Raises ValueError for conflicting ones.
        """
        return cls(
            commit_interval_ms=values["diskless.append.commit.interval.ms"],
            buffer_max_bytes=values["diskless.append.buffer.max.bytes"],
            max_uploads=values["esker.append.max.uploads"],
            upload_timeout_ms=values["esker.append.upload.timeout.ms"],
            lease_timeout_ms=values["esker.object.lease.timeout.ms"],
            closing=ClosingSettings.of(values),
        )

    def __post_init__(self) -> None:
        if self.lease_timeout_ms < 2 * self.upload_timeout_ms:
            raise ValueError(
                f"a lease of {self.lease_timeout_ms} ms does not outlive an upload of "
                f"{self.upload_timeout_ms} ms: it must be twice as long"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """The broker that writes, and its epoch."""

    cluster_id: str
    broker_id: int
    broker_epoch: int


@dataclass(slots=True)
class WriterCounters:
    """Counts of objects, uploads and commits, for metrics."""

    objects: int = 0  # committed
    object_bytes: int = 0
    batches: int = 0
    uploads_failed: int = 0  # objects whose upload failed for good
    uploads_repeated: int = 0
    refused: int = 0  # objects that no coordinator took
    in_doubt: int = 0  # commits that had to be submitted again
    upload_s: Histogram = field(default_factory=Histogram)
    commit_s: Histogram = field(default_factory=Histogram)


class _Object(NamedTuple):
    """A closed buffer with its key, while it is uploaded and committed."""

    closed: ClosedBuffer
    request: CommitBatchesRequest
    key: str
    data: bytes
    upload: asyncio.Task[None]


class ObjectWriter:
    """Writes the objects of one coordinator partition. Belongs to the event loop."""

    def __init__(
        self,
        *,
        store: ObjectStorage,
        coordinator: CommittingCoordinator,
        keys: ObjectKeys,
        identity: Identity,
        settings: WriterSettings,
        random: Random,
        on_fenced: Callable[[], None],
        on_written: Callable[[str, bytes], None] = lambda _key, _data: None,
        on_committed: Callable[[CommitBatchesResponse], None] = lambda _: None,
        is_living: Callable[[], bool] = lambda: True,
        counters: WriterCounters | None = None,
        closing: BufferClosing | None = None,
        wall_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
    ) -> None:
        """Create a writer of objects with an empty buffer.

        Args:    on_fenced: called when the coordinator knows a newer epoch of this broker.
                 on_written: called with key and bytes of each object that was committed.
                 on_committed: called with the offsets of its batches, afterwards.
                 is_living: whether committed records may be acknowledged (`diskless.lineage`).
                 counters: shared with other writers.
                 closing: closes the buffer before the interval is over; None: nothing does.
                 wall_ms: the wall clock, for the ages of epochs of transactional producers.
        """
        self.counters = counters or WriterCounters()
        self.in_flight_bytes = 0  # of batches that are being buffered, uploaded or committed
        self._store = store
        self._coordinator = coordinator
        self._keys = keys
        self._identity = identity
        self._settings = settings
        self._random = random
        self._on_fenced = on_fenced
        self._on_written = on_written
        self._on_committed = on_committed
        self._is_living = is_living
        self._closing = closing
        self._wall_ms = wall_ms
        self._loop = asyncio.get_running_loop()
        self._ids = ObjectIds(
            coordinator,
            coordinator_partition=keys.coordinator_partition,
            broker_id=identity.broker_id,
            broker_epoch=identity.broker_epoch,
            block_size=settings.lease_ids,
            usable_s=(settings.lease_timeout_ms - settings.upload_timeout_ms) / 2_000,
        )
        self._buffer = AppendBuffer(settings.buffer_max_bytes)
        self._timer: asyncio.TimerHandle | None = None
        self._closed: deque[ClosedBuffer] = deque()
        self._uploading: deque[_Object] = deque()
        self._uploads = asyncio.Semaphore(settings.max_uploads)
        self._commits = asyncio.Semaphore(KEPT_ANSWERS // 2)
        self._naming: asyncio.Task[None] | None = None
        self._committing: asyncio.Task[None] | None = None
        self._awaiting_outcome: set[asyncio.Task[None]] = set()
        self._stopped = False

    def change(self, settings: WriterSettings) -> None:
        """Use new settings for later buffers; open leases and uploads keep the old settings."""
        self._settings = settings
        self._buffer.max_bytes = settings.buffer_max_bytes
        if self._timer is not None:
            self._timer.cancel()
            self._start_timer()

    # --- buffering ------------------------------------------------------------------------------

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
        """Buffer a validated batch, and later report its outcome to `waiter`.

        Args:  proof: of a transactional batch, that its transaction is ongoing.
        """
        if self._stopped:
            waiter.appended(CLOSING)
            return
        if not self._buffer.fits(accepted):
            self.close_buffer(Reason.SIZE)
        self._buffer.add(
            topic_id, partition, accepted, append_time=append_time, waiter=waiter, proof=proof
        )
        self.in_flight_bytes += len(accepted.batch.view)
        if self._buffer.is_full:
            self.close_buffer(Reason.SIZE)
            return
        if self._timer is None:
            self._start_timer()
        if self._closing is not None:
            self._closing.note_append()

    def _start_timer(self) -> None:
        delay_s = self._settings.commit_interval_ms / 1_000
        self._timer = self._loop.call_later(delay_s, self.close_buffer, Reason.INTERVAL)

    @property
    def has_batches(self) -> bool:
        """Return whether the open buffer holds any batch."""
        return bool(self._buffer.batch_count)

    @property
    def open_bytes(self) -> int:
        """Return the bytes of the batches in the open buffer."""
        return self._buffer.size_bytes

    @property
    def open_runs(self) -> int:
        """Return the number of partitions with batches in the open buffer."""
        return self._buffer.partition_count

    @property
    def can_upload(self) -> bool:
        """Return whether an upload of the buffer could begin at once."""
        return not self._closed and not self._uploads.locked()

    @property
    def is_writing(self) -> bool:
        """Return whether an object of closed batches is being uploaded or committed."""
        return bool(self._closed or self._uploading or self._awaiting_outcome)

    def close_buffer(self, reason: Reason) -> None:
        """Close the buffer; any batches in it become the next object in commit order."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._buffer.batch_count:
            if self._closing is not None:
                self._closing.note_closed(reason, self.open_bytes, self.open_runs)
            self._closed.append(self._buffer.close())
            if self._naming is None:
                self._naming = self._loop.create_task(self._name_all())

    def fence(self) -> None:
        """Stop writing, and drop the batches that were not yet submitted to a coordinator.

        Commits that were submitted are repeated until their outcome is known.
        """
        self.close_buffer(Reason.STOP)
        self._stopped = True
        for task in (self._naming, self._committing):
            if task is not None:
                task.cancel()
        self._naming = self._committing = None
        while self._uploading:
            written = self._uploading.popleft()
            written.upload.cancel()
            self._settle_all(written.closed, CLOSING)
        while self._closed:
            self._settle_all(self._closed.popleft(), CLOSING)

    @property
    def is_working(self) -> bool:
        """Return whether any batch's outcome is still unknown."""
        return self.is_writing or self.has_batches

    async def close(self, timeout_s: float) -> None:
        """Write all buffered batches, wait for all outcomes, and release the lease.

        Args:    timeout_s: after it, producers are told that an open outcome is unknown.
        """
        self.close_buffer(Reason.STOP)
        self._stopped = True
        deadline = self._loop.time() + timeout_s
        while working := [
            task for task in (self._naming, self._committing, *self._awaiting_outcome) if task
        ]:
            left_s = deadline - self._loop.time()
            if left_s <= 0:
                await self._give_up(working)
                return
            await asyncio.wait(working, timeout=left_s, return_when=asyncio.FIRST_COMPLETED)
        with contextlib.suppress(TimeoutError):  # a lease that is not released expires
            async with asyncio.timeout(RELEASE_S):
                await self._ids.release()

    async def _give_up(self, working: list[asyncio.Task[None]]) -> None:
        """Cancel all uploads and commits, so that this writer commits no further object."""
        uploads = [written.upload for written in self._uploading]
        for task in (*working, *uploads):
            task.cancel()
        await asyncio.wait([*working, *uploads])
        while self._uploading:
            self._settle_all(self._uploading.popleft().closed, CLOSING)
        while self._closed:
            self._settle_all(self._closed.popleft(), CLOSING)

    # --- names and uploads ----------------------------------------------------------------------

    async def _name_all(self) -> None:
        """Assign object ids to closed buffers, oldest first, and start the uploads."""
        try:
            while self._closed:
                await self._uploads.acquire()
                try:
                    leased = await self._ids.next()
                except (CoordinatorError, LeaseRefusedError) as error:
                    self._uploads.release()
                    log.warning("object_ids=none reason=%r", str(error))
                    self._refuse_closed(error)
                    continue
                self._begin(self._closed.popleft(), leased)
        finally:
            self._naming = None

    def _refuse_closed(self, error: Exception) -> None:
        """Report the batches of closed buffers without an object id as not written."""
        fenced = isinstance(error, LeaseRefusedError) and error.fenced
        while self._closed:
            self._settle_all(self._closed.popleft(), CLOSING if fenced else NOT_WRITTEN)
        if fenced:
            self._on_fenced()

    def _begin(self, closed: ClosedBuffer, leased: LeasedId) -> None:
        identity = self._identity
        parts, size_bytes = build_object(
            closed.content,
            cluster_id=identity.cluster_id,
            object_id=leased.object_id,
            broker_id=identity.broker_id,
            broker_epoch=identity.broker_epoch,
        )
        request = closed.commit_request(
            broker_id=identity.broker_id,
            broker_epoch=identity.broker_epoch,
            lease_id=leased.lease_id,
            object_id=leased.object_id,
            object_size=size_bytes,
            coordinator_partition=self._keys.coordinator_partition,
            now_ms=self._wall_ms(),
        )
        key = self._keys.key(leased.object_id)
        data = b"".join(parts)
        upload = self._loop.create_task(self._upload(key, [data], size_bytes))
        upload.add_done_callback(_retrieve)
        self._uploading.append(_Object(closed, request, key, data, upload))
        if self._committing is None:
            self._committing = self._loop.create_task(self._commit_all())

    async def _upload(self, key: str, parts: Sequence[Buffer], size_bytes: int) -> None:
        """Upload an object, retrying with the same bytes and key until the deadline.

        Raises:  StorageError of the last attempt.
        """
        settings = self._settings
        began = self._loop.time()
        deadline = began + settings.upload_timeout_ms / 1_000
        pause_s = settings.upload_retry_ms / 1_000
        try:
            while True:
                try:
                    async with asyncio.timeout_at(deadline):
                        await self._store.upload(key, parts, size_bytes)
                    self.counters.upload_s.add(self._loop.time() - began)
                    return
                except TimeoutError:
                    raise StorageError(key, "the upload took too long") from None
                except StorageError as error:
                    jittered_s = pause_s * (0.5 + self._random.random())
                    if not error.retriable or self._loop.time() + jittered_s >= deadline:
                        raise
                    self.counters.uploads_repeated += 1
                    log.info("key=%s action=upload_again reason=%r", key, str(error))
                await asyncio.sleep(jittered_s)
                pause_s = min(RETRY_MAX_S, 2 * pause_s)
        finally:
            self._uploads.release()
            if self._closing is not None:
                self._closing.note_upload_end()

    # --- commits --------------------------------------------------------------------------------

    async def _commit_all(self) -> None:
        """Submit the commits of uploaded objects, in the order in which buffers were closed."""
        try:
            while self._uploading:
                written = await self._next_uploaded()
                error = written.upload.exception()
                if error is None:
                    await self._commits.acquire()
                    answer = self._coordinator.submit(written.request)
                    task = self._loop.create_task(self._outcome(written, answer))
                    self._awaiting_outcome.add(task)
                    task.add_done_callback(self._awaiting_outcome.discard)
                else:
                    self.counters.uploads_failed += 1
                    log.warning("object=%d error=%r", written.request.object_id, str(error))
                    text = f"the object store failed: {error}"[:MAX_MESSAGE]
                    result = AppendResult(ErrorCode.KAFKA_STORAGE_ERROR, text)
                    self._settle_all(written.closed, result)
                self._uploading.remove(written)
        finally:
            self._committing = None

    async def _next_uploaded(self) -> _Object:
        """Wait for the oldest object's upload, even if later uploads end earlier."""
        oldest = self._uploading[0]
        await asyncio.wait([oldest.upload])
        return oldest

    async def _outcome(self, written: _Object, answer: Awaitable[CommitBatchesResponse]) -> None:
        """Report a commit's outcome to its batches; while unknown, submit the commit again."""
        began = self._loop.time()
        pause_s = self._settings.upload_retry_ms / 1_000
        in_doubt = False
        try:
            while True:
                try:
                    response = await answer
                    self.counters.commit_s.add(self._loop.time() - began)
                    self._settle(written, response)
                    return
                except CoordinatorError as error:
                    object_id, code = written.request.object_id, error.code
                    log.warning("object=%d reason=%r", object_id, str(error))
                    if code is ErrorCode.COORDINATOR_NOT_AVAILABLE and not in_doubt:
                        self.counters.refused += 1
                        self._settle_all(written.closed, NOT_WRITTEN)
                        return
                in_doubt = True
                self.counters.in_doubt += 1
                await asyncio.sleep(pause_s * (0.5 + self._random.random()))
                pause_s = min(RETRY_MAX_S, 2 * pause_s)
                answer = self._coordinator.submit(written.request)
        except asyncio.CancelledError:
            self._settle_all(written.closed, UNKNOWN)
            raise
        finally:
            self._commits.release()

    def _settle(self, written: _Object, response: CommitBatchesResponse) -> None:
        """Report to an object's batches the outcomes in the coordinator's commit response."""
        if not self._is_living():
            # Another cluster may have been restored without this commit.
            self._settle_all(written.closed, UNKNOWN)
            return
        if response.error_code == ErrorCode.NONE:
            self.in_flight_bytes -= written.closed.data_bytes
            self.counters.objects += 1
            self.counters.object_bytes += written.request.object_size
            self.counters.batches += written.closed.batch_count
            self._on_written(written.key, written.data)
            self._on_committed(response)
            written.closed.settle_each(
                [
                    AppendResult(
                        row.error_code, _MESSAGES.get(row.error_code), row.assigned_base_offset,
                        row.log_append_time, row.log_start_offset,
                    )
                    for topic in response.topics
                    for partition in topic.partitions
                    for row in partition.results
                ]
            )  # fmt: skip
            return
        code = response.error_code
        self.counters.refused += 1
        log.warning(
            "object=%d refused=%d reason=%r",
            written.request.object_id, code, response.error_message,
        )  # fmt: skip
        if code == ErrorCode.STALE_BROKER_EPOCH:
            self._settle_all(written.closed, CLOSING)
            self._on_fenced()
        elif code in NEVER_COMMITTED:
            self._settle_all(written.closed, NOT_WRITTEN)
        elif code == ErrorCode.DUPLICATE_SEQUENCE_NUMBER:
            # Committed, but any batch may have been refused; clients take this code for success.
            self._settle_all(written.closed, UNKNOWN)
        else:
            self._settle_all(written.closed, AppendResult(code, response.error_message))

    def _settle_all(self, closed: ClosedBuffer, result: AppendResult) -> None:
        self.in_flight_bytes -= closed.data_bytes
        closed.settle_all(result)


def _retrieve(upload: asyncio.Task[None]) -> None:
    """Retrieve the error of an abandoned upload, so that asyncio does not log the error."""
    if not upload.cancelled():
        upload.exception()
