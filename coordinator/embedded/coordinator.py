"""A batch coordinator inside an application's own processes, replicated by PySyncObj.

    coordinator = EmbeddedCoordinator(settings)
    await coordinator.start()

A command is a request, as it would travel over a socket, with its caller's time. Every node decides
it for itself, in the order of the log, against the same state and with the same clocks; so every
node finds the same records and the same answer. Nothing is decided ahead of agreement, hence there
is no pending state, and no answer that can be lost.

Every node runs a `coordinator.embedded.commands.Replica`; this module has the library and its
limits.

What it does not promise, because the library under it does not (measured with 0.3.17):

- *It does not survive power loss.* PySyncObj never flushes: with a journal it outlives kill -9 of
  all processes, and no more. Without one, it outlives no majority.
- A peer with the password can run code in this process: the library unpickles what it receives. It
  is encrypted with a key made of the password, so without a password anybody could; and it listens
  everywhere unless told where. Hence both must be given. A journal without a dump file loses
  everything at a full restart after some thousand commands: both or neither.
- A leader cut off from the others answers nothing, yet calls itself leader for up to 30 s.
- `findBatches` reads this node's own state, which may be behind. All else goes through the log.
- Wall clocks are trusted: one that is an hour ahead moves append times and retention by an hour.
- Leadership moves without notice; what was under way then has an unknown outcome.
- All state is in memory, on every node.

Source: docs/design/batch-coordinator.md#one-interface-three-implementations; PySyncObj's own
documents and source.
"""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar, cast

import msgpack
from pysyncobj import FAIL_REASON, SyncObj, SyncObjConf, SyncObjConsumer, replicated

from coordinator.batch.calls import Lookup, Report, call_of
from coordinator.batch.cluster_view import ClusterView, StaticView
from coordinator.batch.reads import at_once
from coordinator.batch.settings import CoordinatorSettings
from coordinator.embedded.commands import MAINTENANCE, Replica
from coordinator.errors import CoordinatorError
from records.codec import encode_message
from records.kafka_errors import ErrorCode
from records.rpc.base import CoordinatorRequest, Response

R = TypeVar("R", bound=Response)

log: Final = logging.getLogger("esker.coordinator")

ENTRY_BYTES: Final = 4 * 1024 * 1024
"""Bytes that the library sends at once; a longer commit would take the library's slow path."""

CERTAINLY_NOT: Final = frozenset(
    {FAIL_REASON.QUEUE_FULL, FAIL_REASON.MISSING_LEADER, FAIL_REASON.REQUEST_DENIED}
)
"""The library's failures after which a command was surely not taken."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EmbeddedSettings:
    """Settings of one node. Settings, view, password and addresses must equal the other nodes'.

    Raises:  ValueError naming what is missing or impossible.
    """

    self_address: str  # host:port, as the others reach this node
    other_addresses: tuple[str, ...]
    bind_address: str  # host:port: where this node listens
    password: str
    coordinator: CoordinatorSettings
    view: ClusterView = field(default_factory=StaticView)  # answers must not depend on the node
    journal_file: str | None = None
    dump_file: str | None = None
    timeout_ms: int = 10_000  # of one call
    sweep_interval_ms: int = 1_000
    library: Mapping[str, object] = field(default_factory=dict)  # more for SyncObjConf

    def __post_init__(self) -> None:
        if not self.password:
            raise ValueError(
                "password: without one, any peer that connects runs code in this process"
            )
        if not self.bind_address.rpartition(":")[0]:
            raise ValueError("bind_address: name one, or the library listens on every interface")
        if (self.journal_file is None) != (self.dump_file is None):
            raise ValueError("journal_file and dump_file: with only one, a restart loses the state")
        for key in ("password", "bindAddress", "journalFile", "fullDumpFile"):
            if key in self.library:
                raise ValueError(f"library: {key} has a setting of its own")


class _Later:
    """A snapshot made when it is pickled: in the library's forked child, if it forks."""

    def __init__(self, replica: Replica) -> None:
        self._replica = replica

    def __reduce__(self) -> tuple[type[bytes], tuple[bytes]]:
        return bytes, (self._replica.snapshot(),)


class _Machine(SyncObjConsumer):  # type: ignore[misc]
    """The library's view of a replica."""

    def __init__(self, replica: Replica) -> None:
        super().__init__()
        self._replica = replica
        self.broken: BaseException | None = None

    @replicated  # type: ignore[untyped-decorator]
    def execute(self, command: bytes) -> Response | CoordinatorError | None:
        """Execute a replicated command on this node, in the order of the log."""
        if self.broken is None:
            try:
                return self._replica.execute(command)
            except Exception as error:  # ours: this node must not answer any more
                log.exception("a command broke this replica")
                self.broken = error
        return CoordinatorError(ErrorCode.COORDINATOR_NOT_AVAILABLE, f"broken: {self.broken!r}")

    def _serialize(self) -> dict[str, object]:
        return {"snapshot": _Later(self._replica)}

    def _deserialize(self, data: dict[str, bytes]) -> None:
        self._replica.load(data["snapshot"])


class EmbeddedCoordinator:
    """One node's BatchCoordinator. Every node answers every call."""

    def __init__(self, settings: EmbeddedSettings, now_ms: Callable[[], int] | None = None) -> None:
        self._settings = settings
        self._now_ms = _wall_clock_ms if now_ms is None else now_ms
        self._replica = Replica(settings.coordinator, settings.view)
        self._machine = _Machine(self._replica)
        self._node: Any = None
        self._sweeper: asyncio.Task[None] | None = None
        self._under_way: set[asyncio.Future[Any]] = set()

    async def start(self) -> None:
        """Join the other nodes and wait until this node has applied the agreed commands.

        Raises:  CoordinatorError COORDINATOR_NOT_AVAILABLE if that takes longer than `timeout_ms`.
        """
        settings = self._settings
        # made here, not in a thread that ends: the library stops with the thread that made it
        self._node = SyncObj(
            settings.self_address,
            list(settings.other_addresses),
            SyncObjConf(
                password=settings.password,
                bindAddress=settings.bind_address,
                journalFile=settings.journal_file,
                fullDumpFile=settings.dump_file,
                **{
                    "appendEntriesUseBatch": False,  # 2 ms a command instead of 80
                    "appendEntriesBatchSizeBytes": ENTRY_BYTES,
                    "commandsWaitLeader": False,  # no leader: say so at once
                    **settings.library,
                },
            ),
            consumers=[self._machine],
        )
        deadline = time.monotonic() + settings.timeout_ms / 1000
        while not self._node.isReady():
            if time.monotonic() >= deadline:
                raise _unavailable("a majority of the nodes did not meet in time")
            await asyncio.sleep(0.01)
        self._sweeper = asyncio.get_running_loop().create_task(self._sweep())

    @property
    def leads(self) -> bool:
        """Return whether this node believes itself to be the leader."""
        return self._node is not None and bool(self._node._isLeader())

    async def close(self) -> None:
        """Stop this coordinator's node; calls in flight end with CoordinatorError.

        The other nodes continue if they are a majority.
        """
        if self._sweeper is not None:
            self._sweeper.cancel()
        node, self._node = self._node, None
        if node is not None:
            await asyncio.to_thread(node.destroy_synchronous)
            _close_pipe(node)
        for waiting in tuple(self._under_way):
            if not waiting.done():
                code = ErrorCode.NOT_LEADER_OR_FOLLOWER
                waiting.set_exception(CoordinatorError(code, "this node was closed"))

    # --- commands

    async def _replicate(self, request: CoordinatorRequest[R]) -> R:
        """Replicate a request as a command and return the response that every node computes."""
        call = call_of(request)
        answer = await self._command(call.api_key, encode_message(request, 0))
        assert isinstance(answer, call.response), f"{answer} answers {request}"
        return answer

    async def _command(self, key: int | None, body: bytes) -> Response | None:
        if self._node is None:
            raise _unavailable("it is closed, or not started")
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[Any] = loop.create_future()
        self._under_way.add(answer)
        answer.add_done_callback(self._under_way.discard)

        def tell(result: object, failure: int) -> None:
            if answer.done():
                return
            if failure == FAIL_REASON.SUCCESS:
                answer.set_result(result)
            elif failure in CERTAINLY_NOT:
                answer.set_exception(_unavailable(f"PySyncObj's reason {failure}"))
            else:
                code = ErrorCode.NOT_LEADER_OR_FOLLOWER
                answer.set_exception(CoordinatorError(code, f"PySyncObj's reason {failure}"))

        def callback(result: object, failure: int) -> None:  # in the library's thread
            if not loop.is_closed():
                loop.call_soon_threadsafe(tell, result, failure)

        command = msgpack.packb((key, body, self._now_ms()))
        self._machine.execute(command, callback=callback)
        try:
            async with asyncio.timeout(self._settings.timeout_ms / 1000):
                result = await answer
        except TimeoutError:
            raise CoordinatorError(
                ErrorCode.REQUEST_TIMED_OUT, "no answer in time: the outcome is unknown"
            ) from None
        if isinstance(result, CoordinatorError):
            raise result
        return cast(Response | None, result)

    async def _sweep(self) -> None:
        """Submit a maintenance command periodically while this node leads."""
        leadership: str | None = None
        while True:
            if not self.leads:
                leadership = None
            else:
                leadership = leadership or secrets.token_hex(8)
                try:
                    await self.sweep(leadership, time.monotonic_ns() // 1_000_000)
                except CoordinatorError as error:
                    log.info("a sweep was not carried out: %s", error)
            await asyncio.sleep(self._settings.sweep_interval_ms / 1000)

    async def sweep(self, leadership: str, at_ms: int) -> None:
        """Replicate a command that advances the steady clock and runs the maintenance.

        `at_ms` is on the monotonic clock of the leadership of this name.
        """
        await self._command(MAINTENANCE, msgpack.packb((leadership, at_ms)))

    def checkpoint(self) -> list[bytes]:
        """Return the checkpoint records of this node's current state."""
        with self._replica.lock:
            return self._replica.coordinator.state.checkpoint()

    # --- a BatchCoordinator

    async def call(self, request: CoordinatorRequest[R]) -> R:
        """Answer a read request from this node's state, or a write request by a replicated command.

        Lookups that may be old and reports read this node's own state. All else is a command: the
        library has no read barrier, and delays have one clock only if commands move it.
        """
        match call_of(request).kind:
            case Lookup(turns, denies) if denies is not None:
                if self._node is None:
                    raise _unavailable("it is closed, or not started")
                with self._replica.lock:
                    state = self._replica.coordinator.state
                    answer = at_once(
                        turns(request, lambda: (state, state), self._settings.coordinator)
                    )
                return await self._replicate(request) if denies(answer) else answer
            case Report(read):
                with self._replica.lock:
                    state = self._replica.coordinator.state
                    return read(request, state, self._settings.coordinator)
            case _:
                return await self._replicate(request)


def _close_pipe(node: SyncObj) -> None:
    """Close the pipe that PySyncObj leaves open after its thread has ended.

    Two descriptors a node, until the process ends. The library has no name for them outside, hence
    the two private ones; a version that closes them itself may have others.
    """
    notifier = getattr(node, "_SyncObj__pipeNotifier", None)
    for end in ("_PipeNotifier__pipeR", "_PipeNotifier__pipeW"):
        if (descriptor := getattr(notifier, end, None)) is not None:
            os.close(descriptor)


def _wall_clock_ms() -> int:
    return time.time_ns() // 1_000_000


def _unavailable(message: str) -> CoordinatorError:
    return CoordinatorError(ErrorCode.COORDINATOR_NOT_AVAILABLE, message)
