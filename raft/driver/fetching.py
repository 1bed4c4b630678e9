"""Fetches a checkpoint from the leader, chunk by chunk, over a connection of its own.

A chunk is as large as arrives in a fraction of a second: a slow link must show progress, or the
core takes its leader for dead and the download never ends. The next chunk is requested while
one is written, so neither network nor disk waits for the other. Everything that touches the disk is
done by one thread of the download's own: a gigabyte that is flushed must not stand before a flush
of the log.

What is on the disk survives: a lost connection is dialled again, a new leader that has the same
checkpoint continues it, and after a restart it goes on. What contradicts itself is thrown away and
begun again. Whether to try again is the core's decision (`SnapshotFailed`), which backs off.

The trap: an abandoned download is still finished if it is complete. A checkpoint that is being
verified and renamed may be published the next moment, so its end is reported even in a later epoch.

Source: KIP-630, Fetching Snapshots, Response Handling; `raft.core.events` (SnapshotFetched).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Final, TypeVar

from raft.core.effects import FetchSnapshot
from raft.core.events import Event, SnapshotFailed, SnapshotFetched, SnapshotProgress
from raft.core.messages import FetchSnapshotRequest
from raft.core.voters import Endpoint, ReplicaKey
from raft.driver.counters import Counters
from raft.driver.peers import (
    API_VERSIONS_KEY,
    API_VERSIONS_VERSION,
    CONNECT_TIMEOUT_MS,
    VERSIONS_TIMEOUT_MS,
    DialSettings,
    kind_of,
    read_versions,
)
from raft.interfaces import Download, EpochStarts, RejectedSnapshotError, SnapshotChunk, Snapshots
from raft.net import ClientConnection, ConnectError, ConnectionLostError, connect
from raft.wire.responses import Group, UnexpectedAnswerError
from raft.wire.snapshots import RefusedError, read_fetch_snapshot_response, write_fetch_snapshot
from records.codec import decode_message, encode_parts
from records.errors import RecordError
from records.kafka_errors import ErrorCode
from records.rpc import cluster, fetch
from records.types import NodeId, OffsetAndEpoch

log = logging.getLogger("raft.driver")

T = TypeVar("T")

API_KEY: Final = 59
MIN_CHUNK_BYTES: Final = 64 * 1024
MAX_CHUNK_BYTES: Final = 8 * 1024 * 1024  # upstream's MAX_FETCH_SIZE_BYTES; our leaders send less
CHUNK_S: Final = 0.1  # how long a chunk should take; a leader is doubted after seconds
CHUNK_TIMEOUT_MS: Final = 10_000
OVERHEAD_BYTES: Final = 64 * 1024  # of an answer beside its bytes
MAX_FAILURES: Final = 5  # connections in a row that brought nothing
RECONNECT_S: Final = 0.05  # doubled with each failure

_PART_IS_USELESS: Final = (ErrorCode.SNAPSHOT_NOT_FOUND, ErrorCode.POSITION_OUT_OF_RANGE)
"""Error codes after which the part downloaded so far is of no use."""


@dataclass(slots=True, kw_only=True)
class _Progress:
    """The state of one download."""

    effect: FetchSnapshot
    download: Download | None = None
    chunk_bytes: int = MIN_CHUNK_BYTES
    epochs: EpochStarts = ()  # as the complete checkpoint names them
    complete: bool = False  # all bytes have arrived: it can no longer be abandoned
    failures: int = 0


class SnapshotFetcher:
    """Downloads checkpoints for one group, one at a time.

    Its methods belong to the event loop; disk access runs in a thread.
    """

    def __init__(
        self,
        *,
        group: Group,
        cluster_id: str,
        replica: ReplicaKey,
        snapshots: Snapshots,
        dial_settings: DialSettings,
        endpoints: Callable[[NodeId], Endpoint | None],
        counters: Counters,
        post: Callable[[Event], None],
        on_fault: Callable[[NodeId, str], None],
    ) -> None:
        """Create a snapshot fetcher that has no download yet.

        Args:    on_fault: called with a leader's id and how it broke the protocol.
        """
        self._group = group
        self._cluster_id = cluster_id
        self._replica = replica
        self._snapshots = snapshots
        self._dial_settings = dial_settings
        self._endpoints = endpoints
        self._counters = counters
        self._post = post
        self._on_fault = on_fault
        self._task: asyncio.Task[Event] | None = None
        self._under_way: _Progress | None = None
        self._wanted: FetchSnapshot | None = None  # once what is under way has ended
        self._threads = ThreadPoolExecutor(1, thread_name_prefix=f"download-{group.name}")
        self._closed = False

    @property
    def receiving(self) -> OffsetAndEpoch | None:
        """Return the checkpoint that is being fetched, or None."""
        return self._under_way.effect.snapshot_id if self._under_way is not None else None

    def fetch(self, effect: FetchSnapshot) -> None:
        """Download the checkpoint that the Raft core requests; first end any other download.

        If that is of this very checkpoint, complete and being verified, its end is the answer.
        """
        under_way = self._under_way
        if under_way is None:
            self._begin(effect)
        elif not under_way.complete or self.receiving != effect.snapshot_id:
            self._wanted = effect
            self._cancel(under_way)

    def abandon(self, snapshot_id: OffsetAndEpoch) -> None:
        """Stop a download and keep its partial file; a complete download is still published."""
        if self._wanted is not None and self._wanted.snapshot_id == snapshot_id:
            self._wanted = None
        under_way = self._under_way
        if under_way is not None and under_way.effect.snapshot_id == snapshot_id:
            self._cancel(under_way)

    def _cancel(self, under_way: _Progress) -> None:
        if not under_way.complete and self._task is not None:
            self._task.cancel()

    async def close(self) -> None:
        """Stop any download; a checkpoint that is being renamed still gets its final name."""
        self._closed = True
        self._wanted = None
        task, under_way = self._task, self._under_way
        if task is not None and under_way is not None:
            self._cancel(under_way)
            await asyncio.wait((task,))
        self._threads.shutdown(wait=True)

    def _begin(self, effect: FetchSnapshot) -> None:
        self._under_way = _Progress(effect=effect)
        self._task = asyncio.get_running_loop().create_task(self._run(self._under_way))
        self._task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[Event]) -> None:
        """Report a download's outcome, unless it was abandoned, and begin the next download."""
        self._task = self._under_way = None
        wanted, self._wanted = self._wanted, None
        if wanted is not None and not self._closed:
            self._begin(wanted)
        if not task.cancelled():
            self._post(task.result())

    # --- one download -------------------------------------------------------------------------

    async def _run(self, progress: _Progress) -> Event:
        """Download one checkpoint, and return the event that reports success or failure."""
        snapshot_id = progress.effect.snapshot_id
        try:
            if await self._fetch(progress):
                self._snapshots.added(snapshot_id)
                return SnapshotFetched(snapshot_id, tuple(progress.epochs))
        except RejectedSnapshotError as error:
            await self._release_download(progress, discard=True)
            self._counters.snapshots_rejected += 1
            self._on_fault(progress.effect.leader_id, f"snapshot {snapshot_id}: {error}")
        except OSError as error:
            await self._release_download(progress, discard=True)  # the log may need the disk space
            self._log(progress, f"action=fetch_snapshot error={str(error)!r}")
        finally:
            await self._release_download(progress, discard=False)
        return SnapshotFailed(snapshot_id)

    async def _release_download(self, progress: _Progress, *, discard: bool) -> None:
        """Close the partial file, and delete it if `discard`, even if the task is cancelled."""
        download, progress.download = progress.download, None
        if download is not None:
            end = download.discard if discard else download.keep
            with contextlib.suppress(OSError):
                await asyncio.shield(self._in_thread(end))

    async def _fetch(self, progress: _Progress) -> bool:
        """Download and publish a checkpoint; return False after a refusal or repeated failures.

        Raises:  RejectedSnapshotError, OSError.
        """
        snapshot_id = progress.effect.snapshot_id
        began = time.monotonic()
        receive = self._in_thread(lambda: self._snapshots.receive(snapshot_id))
        progress.download = download = await self._await_download(receive, progress)
        resumed_at = download.position
        self._counters.snapshots_resumed += resumed_at > 0
        self._log(progress, f"action=fetch_snapshot position={resumed_at}")
        while not progress.complete:
            try:
                await self._fetch_over_one_connection(progress, download)
            except RefusedError as error:
                self._log(progress, f"action=fetch_snapshot refused={error}")
                if error.error in _PART_IS_USELESS:
                    await self._release_download(progress, discard=True)
                return False
            except (ConnectError, ConnectionLostError, RecordError) as error:
                progress.failures += 1
                if isinstance(error, RecordError):
                    self._on_fault(progress.effect.leader_id, f"FetchSnapshot: {error}")
                self._log(progress, f"action=fetch_snapshot lost={str(error)!r}")
                if progress.failures >= MAX_FAILURES:
                    return False
                await asyncio.sleep(RECONNECT_S * 2**progress.failures)
            except UnexpectedAnswerError as error:
                raise RejectedSnapshotError(str(error)) from None
        progress.epochs = await self._in_thread(download.publish)
        progress.download = None
        fetched_bytes = download.position - resumed_at
        self._counters.snapshots_fetched += 1
        self._counters.snapshot_fetched_bytes += fetched_bytes
        elapsed_ms = (time.monotonic() - began) * 1_000
        self._log(progress, f"action=fetched_snapshot bytes={fetched_bytes} ms={elapsed_ms:.0f}")
        return True

    async def _await_download(
        self, receive: asyncio.Future[Download], progress: _Progress
    ) -> Download:
        """Return the partial file that `receive` opens; close the file if cancelled."""
        try:
            return await asyncio.shield(receive)
        except asyncio.CancelledError:
            with contextlib.suppress(OSError):
                progress.download = await receive
            raise

    async def _fetch_over_one_connection(self, progress: _Progress, download: Download) -> None:
        """Fetch a checkpoint's chunks until the last chunk arrives or the connection fails."""
        connection, version = await self._connect(progress.effect.leader_id)
        sent = self._send_request(connection, version, progress, download.position)
        try:
            while True:
                request, future, sent_at = sent
                chunk = self._read(await future, version, request)
                elapsed_s = time.monotonic() - sent_at
                progress.chunk_bytes = next_chunk_bytes(request.max_bytes, elapsed_s)
                end = request.position + len(chunk.data)
                last = end >= chunk.size_bytes or not len(chunk.data)
                if not last:
                    sent = self._send_request(connection, version, progress, end)
                whole = await self._take(download, request.position, chunk)
                progress.failures = 0
                progress.complete = whole
                self._post(SnapshotProgress(complete=whole))
                if whole:
                    return
        finally:
            sent[1].cancel()  # the request for the next chunk, whose answer is not needed any more
            connection.close()

    async def _take(self, download: Download, position: int, chunk: SnapshotChunk) -> bool:
        """Write a chunk of a checkpoint to the partial file at the chunk's position.

        Raises RejectedSnapshotError, OSError.
        """
        return await asyncio.shield(self._in_thread(lambda: download.take(position, chunk)))

    # --- the connection -----------------------------------------------------------------------

    async def _connect(self, leader_id: NodeId) -> tuple[ClientConnection, int]:
        """Connect to the leader, and agree on a version of FetchSnapshot.

        Raises ConnectError, ConnectionLostError, RecordError.
        """
        endpoint = self._endpoints(leader_id)
        if endpoint is None:
            raise RefusedError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        connection = await connect(
            endpoint.host,
            endpoint.port,
            client_id=self._dial_settings.client_id,
            timeout_ms=CONNECT_TIMEOUT_MS,
            max_response_bytes=MAX_CHUNK_BYTES + OVERHEAD_BYTES,
        )
        try:
            request = cluster.ApiVersionsRequest(
                client_software_name="esker", client_software_version="0"
            )
            answer = await connection.request(
                kind_of(API_VERSIONS_KEY, API_VERSIONS_VERSION),
                tuple(encode_parts(request, API_VERSIONS_VERSION)),
                timeout_ms=VERSIONS_TIMEOUT_MS,
            )
            version = read_versions(answer).get(API_KEY)
            if version is None:
                raise RefusedError(ErrorCode.UNSUPPORTED_VERSION)
        except BaseException:
            connection.close()
            raise
        return connection, version

    def _send_request(
        self, connection: ClientConnection, version: int, progress: _Progress, position: int
    ) -> tuple[FetchSnapshotRequest, asyncio.Future[memoryview | bytes], float]:
        request = FetchSnapshotRequest(
            cluster_id=self._cluster_id,
            replica=self._replica,
            epoch=progress.effect.epoch,
            snapshot_id=progress.effect.snapshot_id,
            position=position,
            max_bytes=progress.chunk_bytes,
        )
        message = write_fetch_snapshot(self._group, request)
        future = connection.request(
            kind_of(API_KEY, version),
            tuple(encode_parts(message, version)),
            timeout_ms=CHUNK_TIMEOUT_MS,
        )
        return request, future, time.monotonic()

    def _read(
        self, answer: memoryview | bytes, version: int, request: FetchSnapshotRequest
    ) -> SnapshotChunk:
        message = decode_message(fetch.FetchSnapshotResponse, answer, version)
        return read_fetch_snapshot_response(message, self._group, request)

    # --- small things -------------------------------------------------------------------------

    def _in_thread(self, job: Callable[[], T]) -> asyncio.Future[T]:
        return asyncio.get_running_loop().run_in_executor(self._threads, job)

    def _log(self, progress: _Progress, text: str) -> None:
        effect = progress.effect
        log.info(
            "node=%d group=%s leader=%d epoch=%d snapshot=%d-%d %s",
            self._replica.id, self._group.name, effect.leader_id, effect.epoch,
            *effect.snapshot_id, text,
        )  # fmt: skip


def next_chunk_bytes(chunk_bytes: int, elapsed_s: float) -> int:
    """Return the size in bytes of a download's next chunk, from the duration of its last chunk.

    >>> [next_chunk_bytes(262_144, elapsed_s) for elapsed_s in (0.01, 0.1, 3)]
    [524288, 262144, 131072]
    """
    if elapsed_s < CHUNK_S / 2:
        return min(chunk_bytes * 2, MAX_CHUNK_BYTES)
    if elapsed_s > CHUNK_S * 2:
        return max(chunk_bytes // 2, MIN_CHUNK_BYTES)
    return chunk_bytes
