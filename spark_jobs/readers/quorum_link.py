"""Blocking calls to the leader of one log, which is found again after each failure.

    with QuorumLink(quorum, "__diskless-metadata-0") as link:
        link.describe().high_watermark
        link.fetch(1_000).records

A leader is found by DescribeQuorum, which only a leader answers; after any failure, and when
another node leads, it is looked for again until the time-out.

The trap is the thread. A notebook has an event loop running in the very thread that calls us,
where no second one may run; so the connection lives on a loop in a thread of its own.

Source: KIP-595 (Fetch of observers, DescribeQuorum), KIP-630 (FetchSnapshot), KIP-919.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, Self, TypeVar

from raft.interfaces import SnapshotChunk
from raft.net import NetError, Reason, loop_factory
from raft.net.client_properties import security_of
from raft.net.rpc import Rpc, open_rpc
from records.compression import Buffer
from records.kafka_errors import ErrorCode, error_name
from records.rpc import fetch as wire
from records.rpc.base import Request, Response
from records.rpc.cluster import DescribeClusterRequest, DescribeClusterResponse
from records.rpc.quorum import DescribeQuorumRequest, DescribeQuorumResponse
from records.rpc.snapshots import DescribeSnapshotsRequest, DescribeSnapshotsResponse
from records.types import Epoch, Offset, OffsetAndEpoch
from spark_jobs.readers.logs import LogsError

T = TypeVar("T")
R = TypeVar("R", bound=Response)

Address = tuple[str, int]

FETCH_BYTES: Final = 1024 * 1024
"""Bytes of log in one response: a leader reads it between two of its replicas' requests."""

_FETCH_VERSION: Final = 12  # the last that names a log by topic, and not by an id
_CONTROLLERS: Final = 2  # DescribeCluster's endpoint type
_ATTEMPT_MS: Final = 5_000  # a leader that stands still for so long may be one no more
_PAUSE_S: Final = 0.1
_MAX_ADDRESSES: Final = 64

_FIND_AGAIN: Final = (
    ErrorCode.NOT_LEADER_OR_FOLLOWER,
    ErrorCode.REQUEST_TIMED_OUT,
    ErrorCode.BROKER_NOT_AVAILABLE,  # it is shutting down
    ErrorCode.FENCED_LEADER_EPOCH,
    ErrorCode.UNKNOWN_LEADER_EPOCH,
)
"""Errors after which the leader is looked for again."""


class GoneError(Exception):
    """The leader does not have the checkpoint, or it is shorter."""


@dataclass(frozen=True, slots=True)
class Quorum:
    """The addresses of a quorum and the identity to use there. Can be pickled."""

    addresses: tuple[Address, ...]
    cluster_id: str  # empty: not known yet
    replica_id: int  # an observer's own, and no voter's
    timeout_ms: int = 30_000
    security: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    """Client properties of TLS and SASL; none: the security of the process."""


class Described(NamedTuple):
    """A log as its leader describes it; offsets are exclusive but the first."""

    epoch: int
    log_start_offset: int
    log_end_offset: int
    high_watermark: int
    log_bytes: int
    checkpoints: tuple[OffsetAndEpoch, ...]  # oldest first


class Fetched(NamedTuple):
    """A leader's answer to a Fetch: batches, or the reason why the offset cannot be read."""

    high_watermark: int  # -1: not known to it yet
    log_start_offset: int
    records: Buffer
    diverging: tuple[int, int] | None = None  # its log leaves ours: (epoch, where that ends)
    snapshot_id: OffsetAndEpoch | None = None  # its log begins later: fetch this first


def partition_of(log: str) -> tuple[str, int]:
    """Split a log's name into its topic and partition number.

    >>> partition_of("__diskless-metadata-12")
    ('__diskless-metadata', 12)
    """
    topic, _, number = log.rpartition("-")
    if not topic or not number.isdecimal():
        raise LogsError(f"{log} is not the name of a log, such as __cluster_metadata-0")
    return topic, int(number)


class QuorumLink:
    """A connection to the leader of one log. Any thread may use it, one call at a time."""

    def __init__(self, quorum: Quorum, log: str) -> None:
        """Prepare a connection to a log's leader, which is opened on first use.

        Raises:  LogsError for an invalid log name.
        """
        self._leader = _Leader(quorum, *partition_of(log))
        self._loop = (loop_factory() or asyncio.new_event_loop)()
        self._thread = threading.Thread(
            target=self._loop.run_forever, name=f"quorum-{log}", daemon=True
        )
        self._thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection and drop pending requests."""
        if not self._loop.is_closed():
            self._submit(_cancel_others()).result()
            self._submit(self._leader.close()).result()
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()

    def _submit(self, what: Coroutine[Any, Any, T]) -> Future[T]:
        return asyncio.run_coroutine_threadsafe(what, self._loop)

    def call(
        self,
        request: Callable[[int], Request],
        response: type[R],
        error_of: Callable[[R], int],
        version: int | None = None,
    ) -> R:
        """Build a request for the leader's epoch, send it to the leader, and return the response.

        Args:    error_of: the answer's error code; those that mean "not I" are tried again.
        Raises:  LogsError if no leader answers in time.
        """
        return self._submit(self._leader.ask(request, response, error_of, version)).result()

    def cluster_id(self) -> str:
        """Return the quorum's cluster id.

        Raises:  LogsError.
        """
        return self._submit(self._leader.cluster_id()).result()

    def names(self) -> list[str]:
        """List the logs of the leader's node.

        Raises:  LogsError.
        """
        answer = self.call(
            lambda _: DescribeSnapshotsRequest(), DescribeSnapshotsResponse, lambda a: a.error_code
        )
        if answer.error_code:
            raise LogsError(f"listing the logs failed: {error_name(answer.error_code)}")
        return [f"{group.topic_name}-{group.partition_index}" for group in answer.groups]

    def describe(self) -> Described:
        """Return the leader's description of the log: its offsets, size and checkpoints.

        Raises:  LogsError.
        """
        return self._submit(self._leader.describe()).result()

    def fetch(
        self, offset: int, last_epoch: int | None = None, *, max_bytes: int = FETCH_BYTES
    ) -> Fetched:
        """Fetch committed and uncommitted batches, beginning with the batch that holds `offset`.

        Raises:  LogsError.
        """
        return self.begin_fetch(offset, last_epoch, max_bytes=max_bytes).result()

    def begin_fetch(
        self, offset: int, last_epoch: int | None = None, *, max_bytes: int = FETCH_BYTES
    ) -> Future[Fetched]:
        """Begin a fetch, and return its result as a future.

        Args:    last_epoch: of the record before `offset`; None: any.
                 max_bytes: about; a first batch that is larger comes whole.
        """
        return self._submit(self._leader.fetch(offset, last_epoch, max_bytes))

    def fetch_snapshot(
        self, snapshot_id: OffsetAndEpoch, position: int, max_bytes: int
    ) -> SnapshotChunk:
        """Fetch up to `max_bytes` bytes of a checkpoint, beginning with byte `position`.

        Raises:  GoneError; LogsError.
        """
        return self._submit(self._leader.fetch_snapshot(snapshot_id, position, max_bytes)).result()


async def _cancel_others() -> None:
    """Cancel all other tasks of this event loop, such as prefetches."""
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)


class _Leader:
    """The connection to a leader, on an event loop."""

    def __init__(self, quorum: Quorum, topic: str, partition: int) -> None:
        self._quorum = quorum
        self._topic = topic
        self._partition = partition
        self._security = security_of(dict(quorum.security)) if quorum.security else None
        self._known = list(quorum.addresses)
        self._rpc: Rpc | None = None
        self._epoch = -1
        self._high_watermark = -1

    async def close(self) -> None:
        if self._rpc is not None:
            self._rpc.connection.close()
            self._rpc = None

    # --- the leader ---------------------------------------------------------------------------

    async def ask(
        self,
        request: Callable[[int], Request],
        response: type[R],
        error_of: Callable[[R], int],
        version: int | None = None,
    ) -> R:
        return await self._retry(lambda: self._ask_once(request, response, error_of, version))

    async def _ask_once(
        self,
        request: Callable[[int], Request],
        response: type[R],
        error_of: Callable[[R], int],
        version: int | None,
    ) -> R:
        rpc = await self._find()
        answer = await rpc.call(request(self._epoch), response, version)
        error = error_of(answer)
        if error in _FIND_AGAIN:
            raise _RetriableError(f"{rpc.connection.peer} answers {error_name(error)}")
        if error == ErrorCode.INCONSISTENT_CLUSTER_ID:
            raise LogsError(f"{rpc.connection.peer} is of another cluster")
        return answer

    async def _retry(self, attempt: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Retry a call until the time-out, with a new search for the leader each time."""
        deadline = time.monotonic() + self._quorum.timeout_ms / 1_000
        while True:
            try:
                return await attempt()
            except (NetError, _RetriableError) as error:
                await self.close()
                if time.monotonic() >= deadline:
                    log = f"{self._topic}-{self._partition}"
                    raise LogsError(explain_missing_leader(log, error)) from error
            await asyncio.sleep(_PAUSE_S)

    async def _find(self) -> Rpc:
        """Return a connection to the leader, the node that answers DescribeQuorum."""
        if self._rpc is not None:
            return self._rpc
        failure = "there is no leader"
        tried: set[Address] = set()
        waiting = list(self._known)
        while waiting and len(tried) < _MAX_ADDRESSES:
            address = waiting.pop(0)
            if address in tried:
                continue
            tried.add(address)
            try:
                rpc = await open_rpc(*address, timeout_ms=self._attempt_ms, security=self._security)
                try:
                    if await self._leads(rpc):
                        self._know_first(address)
                        self._rpc = rpc
                        return rpc
                    waiting += await self._others(rpc)
                finally:
                    if self._rpc is not rpc:
                        rpc.connection.close()
            except NetError as error:
                failure = str(error)
        raise _RetriableError(failure)

    @property
    def _attempt_ms(self) -> int:
        return min(_ATTEMPT_MS, self._quorum.timeout_ms)

    async def _leads(self, rpc: Rpc) -> bool:
        request_type = DescribeQuorumRequest.TopicData
        partition = request_type.PartitionData(partition_index=self._partition)
        topics = (request_type(topic_name=self._topic, partitions=(partition,)),)
        answer = await rpc.call(DescribeQuorumRequest(topics=topics), DescribeQuorumResponse)
        if answer.error_code or len(answer.topics) != 1 or len(answer.topics[0].partitions) != 1:
            return False
        partition_response = answer.topics[0].partitions[0]
        if partition_response.error_code:
            return False
        self._epoch, self._high_watermark = (
            partition_response.leader_epoch,
            partition_response.high_watermark,
        )
        return True

    async def _others(self, rpc: Rpc) -> list[Address]:
        answer = await self._cluster(rpc)
        found = [(node.host, node.port) for node in answer.brokers[:_MAX_ADDRESSES]]
        for address in found:
            if address not in self._known and len(self._known) < _MAX_ADDRESSES:
                self._known.append(address)
        return found

    def _know_first(self, address: Address) -> None:
        if address in self._known:
            self._known.remove(address)
        self._known.insert(0, address)

    async def _cluster(self, rpc: Rpc) -> DescribeClusterResponse:
        return await rpc.call(
            DescribeClusterRequest(
                include_cluster_authorized_operations=False, endpoint_type=_CONTROLLERS
            ),
            DescribeClusterResponse,
        )

    # --- what to ask --------------------------------------------------------------------------

    async def cluster_id(self) -> str:
        async def attempt() -> str:
            rpc = await self._find()
            await self._others(rpc)
            return (await self._cluster(rpc)).cluster_id

        return await self._retry(attempt)

    async def describe(self) -> Described:
        """Describe the log and its checkpoints, once the leader has a high watermark."""

        async def attempt() -> Described:
            await self.close()  # look for the leader again
            rpc = await self._find()
            if self._high_watermark < 0:
                raise _RetriableError("its leader does not know the high watermark yet")
            request_type = DescribeSnapshotsRequest.Topic(
                topic_name=self._topic, partitions=(self._partition,)
            )
            answer = await rpc.call(
                DescribeSnapshotsRequest(topics=(request_type,)), DescribeSnapshotsResponse
            )
            if answer.error_code or len(answer.groups) != 1 or answer.groups[0].error_code:
                raise _RetriableError("its leader does not report the log's start")
            partition_response = answer.groups[0]
            checkpoints = (
                OffsetAndEpoch(Offset(one.end_offset), Epoch(one.epoch))
                for one in partition_response.snapshots
            )
            return Described(
                self._epoch,
                partition_response.log_start_offset,
                partition_response.log_end_offset,
                self._high_watermark,
                partition_response.log_size,
                tuple(sorted(checkpoints)),
            )

        return await self._retry(attempt)

    async def fetch(self, offset: int, last_epoch: int | None, max_bytes: int) -> Fetched:
        def request(epoch: int) -> wire.FetchRequest:
            partition = wire.FetchRequest.FetchTopic.FetchPartition(
                partition=self._partition,
                current_leader_epoch=epoch,
                fetch_offset=offset,
                last_fetched_epoch=epoch if last_epoch is None else last_epoch,
                partition_max_bytes=max_bytes,
            )
            topic = wire.FetchRequest.FetchTopic(topic=self._topic, partitions=(partition,))
            return wire.FetchRequest(
                cluster_id=self._quorum.cluster_id or None,
                replica_id=self._quorum.replica_id,
                max_wait_ms=0,
                min_bytes=0,
                max_bytes=max_bytes,
                topics=(topic,),
            )

        answer = await self.ask(request, wire.FetchResponse, _fetch_error, _FETCH_VERSION)
        error = _fetch_error(answer)
        if error:
            raise LogsError(f"{self._topic}-{self._partition}: Fetch failed: {error_name(error)}")
        partition_response = answer.responses[0].partitions[0]
        diverging, snapshot = partition_response.diverging_epoch, partition_response.snapshot_id
        return Fetched(
            partition_response.high_watermark,
            partition_response.log_start_offset,
            partition_response.records or b"",
            (diverging.epoch, diverging.end_offset) if diverging.epoch >= 0 else None,
            OffsetAndEpoch(Offset(snapshot.end_offset), Epoch(snapshot.epoch))
            if snapshot.end_offset >= 0
            else None,
        )

    async def fetch_snapshot(
        self, snapshot_id: OffsetAndEpoch, position: int, max_bytes: int
    ) -> SnapshotChunk:
        request_type = wire.FetchSnapshotRequest.TopicSnapshot

        def request(epoch: int) -> wire.FetchSnapshotRequest:
            partition = request_type.PartitionSnapshot(
                partition=self._partition,
                current_leader_epoch=epoch,
                snapshot_id=request_type.PartitionSnapshot.SnapshotId(
                    end_offset=snapshot_id.offset, epoch=snapshot_id.epoch
                ),
                position=position,
            )
            return wire.FetchSnapshotRequest(
                cluster_id=self._quorum.cluster_id or None,
                replica_id=self._quorum.replica_id,
                max_bytes=max_bytes,
                topics=(request_type(name=self._topic, partitions=(partition,)),),
            )

        answer = await self.ask(request, wire.FetchSnapshotResponse, _snapshot_error)
        error = _snapshot_error(answer)
        if error in (ErrorCode.SNAPSHOT_NOT_FOUND, ErrorCode.POSITION_OUT_OF_RANGE):
            checkpoint = f"checkpoint {snapshot_id.offset}-{snapshot_id.epoch}"
            raise GoneError(f"{checkpoint}: {error_name(error)}")
        if error:
            raise LogsError(
                f"{self._topic}-{self._partition}: FetchSnapshot failed: {error_name(error)}"
            )
        partition_response = answer.topics[0].partitions[0]
        if (
            partition_response.position != position
            or len(partition_response.unaligned_records) > max_bytes
        ):
            raise LogsError(
                f"{self._topic}-{self._partition}: the response has bytes that were not requested"
            )
        return SnapshotChunk(partition_response.size, partition_response.unaligned_records)


def explain_missing_leader(log: str, error: Exception) -> str:
    """Return the error text for a log without a leader, with a hint at the likely cause."""
    of_broker = isinstance(error, NetError) and error.reason is Reason.UNSUPPORTED
    next_step = (
        "is it a broker's address? --bootstrap-controller wants a controller's"
        if of_broker
        else "are a majority of the voters running?"
    )
    return f"{log} has no leader that answers ({error}): {next_step}"


class _RetriableError(Exception):
    """An error that may pass: with another leader, or later."""


def _fetch_error(answer: wire.FetchResponse) -> int:
    if answer.error_code:
        return answer.error_code
    if len(answer.responses) != 1 or len(answer.responses[0].partitions) != 1:
        return -1
    return answer.responses[0].partitions[0].error_code


def _snapshot_error(answer: wire.FetchSnapshotResponse) -> int:
    if answer.error_code:
        return answer.error_code
    if len(answer.topics) != 1 or len(answer.topics[0].partitions) != 1:
        return -1
    return answer.topics[0].partitions[0].error_code
