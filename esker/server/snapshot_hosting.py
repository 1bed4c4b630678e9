"""Connects a node's driver to `snapshot`: stores, the rule for log starts, hosts.

`raft` may not import `snapshot`, nor the other way round; here they meet.

Source: docs/design/README.md#rooms-and-imports, docs/design/snapshots.md#where-the-log-starts.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from raft.driver.counters import Timings
from raft.driver.node_services import ServiceHost, StateListener
from raft.driver.snapshot_hosting import LogStartView, SnapshotOutcome
from raft.interfaces import ReplicatedLog, StateMachine
from raft.segments.files import FileSystem
from records.types import Offset, OffsetAndEpoch
from snapshot.generation import Pace
from snapshot.host import MachineHost
from snapshot.log_start import (
    Candidate,
    Holder,
    Kind,
    LogStartSettings,
    follower_log_start,
    leader_log_start,
)
from snapshot.policy import SnapshotPolicy, SnapshotSettings
from snapshot.scheduling import NotHostedError
from snapshot.store import SnapshotStore

READERS_RETURN_MS: Final = 10_000
"""An archive that follows a log looks for a new leader every second or two."""


def monotonic_ms() -> int:
    """Return the monotonic time in ms, by the clock of snapshot stores and hosts."""
    return time.monotonic_ns() // 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotKeeping:
    """Implements `raft.driver.snapshot_hosting.SnapshotHosting`."""

    node_id: int
    snapshots: SnapshotSettings = field(default_factory=SnapshotSettings)
    log_starts: LogStartSettings = field(default_factory=LogStartSettings)
    apply_delay_ms: Mapping[str, float] = field(default_factory=dict)  # of `Pace`, by topic

    def store(self, files: FileSystem, directory: Path) -> SnapshotStore:
        """Open the store of a group's checkpoints. Raises OSError."""
        return SnapshotStore(files, directory, now_ms=monotonic_ms)

    def log_start(self, view: LogStartView) -> OffsetAndEpoch | None:
        """Return the checkpoint where the log should start, or None to leave the start unchanged.

        Source: docs/design/snapshots.md#where-the-log-starts.
        """
        if view.leading_since_ms is None:
            ids = [one.snapshot_id for one in view.checkpoints]
            told = view.leader_log_start or Offset(0)
            return follower_log_start(ids, told, log_start_offset=view.log_start_offset)
        return leader_log_start(
            [Candidate(*one) for one in view.checkpoints],
            [
                *(
                    Holder(
                        f"node {one.node_id}",
                        Kind.VOTER if one.voter else Kind.OBSERVER,
                        one.offset,
                        one.last_fetch_ms,
                    )
                    for one in view.replicas
                ),
                *self._readers(view, view.leading_since_ms),
            ],
            log_start_offset=view.log_start_offset,
            log_bytes=view.log_bytes,
            now_ms=view.now_ms,
            leading_since_ms=view.leading_since_ms,
            settings=self.log_starts,
        )

    def _readers(self, view: LogStartView, since_ms: int) -> list[Holder]:
        """Return the archives that still need records and so keep the log from starting later.

        Soon after an election the result has a further archive, which may not have fetched yet.
        """
        bound = self.log_starts.archive_max_lag_bytes
        if not bound:
            return []
        readers = [
            Holder(f"archive {one.node_id}", Kind.READER, one.offset, one.last_fetch_ms, bound)
            for one in view.readers
        ]
        if view.now_ms - since_ms < min(READERS_RETURN_MS, self.log_starts.live_ms):
            readers.append(Holder("an archive, perhaps", Kind.READER, None, view.now_ms, bound))
        return readers

    def host(
        self,
        log: ReplicatedLog,
        machine: StateMachine,
        node: ServiceHost,
        listener: StateListener | None,
    ) -> _Hosted:
        """Host a state machine on a log, and write checkpoints of the machine's state."""
        assert isinstance(log.snapshots, SnapshotStore), (
            f"{log.name} keeps no checkpoints: {log.snapshots}"
        )
        policy = SnapshotPolicy(self.snapshots, self.node_id)
        loop = _Loop(node, log.name)
        host = MachineHost(
            log,
            machine,
            log.snapshots,
            policy=policy,
            loop=loop,
            unique=lambda: 1 + secrets.randbits(62),
            listener=listener,
            pace=Pace(apply_delay_ms=self.apply_delay_ms.get(log.name.rpartition("-")[0], 0.0)),
        )
        hosted = _Hosted(host, loop)
        host.start()
        return hosted


class _Loop:
    """A node's event loop, and one thread per group for its checkpoints."""

    def __init__(self, node: ServiceHost, name: str) -> None:
        self._node = node
        self._threads = ThreadPoolExecutor(1, thread_name_prefix=f"checkpoint-{name}")
        self._jobs = 0  # submitted, and not over
        self._closing = False
        self.call_soon = node.call_soon
        self.call_later = node.call_later
        self.fail = node.fail

    def now_ms(self) -> float:
        """Return the event loop's time in ms, with fractions of a millisecond."""
        return time.monotonic() * 1_000

    def offload(self, job: Callable[[], None], done: Callable[[], None]) -> None:
        """Run `job` in the job thread, then call `done`; an exception in `job` stops the node."""

        def over(future: asyncio.Future[None]) -> None:
            error = future.exception()
            if error is not None:
                self.fail(error)
            else:
                done()
            self._jobs -= 1
            self._end_if_idle()

        self._jobs += 1
        future = asyncio.get_running_loop().run_in_executor(self._threads, job)
        future.add_done_callback(over)

    def close(self) -> None:
        """End the job thread after the queued jobs, which may still delete a partial file."""
        self._closing = True
        self._end_if_idle()

    def _end_if_idle(self) -> None:
        if self._closing and not self._jobs:
            self._threads.shutdown(wait=False)


class _Hosted:
    """Implements `raft.driver.snapshot_hosting.HostedMachine`."""

    def __init__(self, host: MachineHost, loop: _Loop) -> None:
        self.generations = Timings()
        self.loads = Timings()
        self._host = host
        self._loop = loop
        host.on_generated = self.generations.add
        host.on_loaded = self.loads.add

    @property
    def applied_offset(self) -> Offset:
        return self._host.machine.applied.offset

    @property
    def generating(self) -> bool:
        return self._host.generation is not None

    @property
    def checkpoint_bytes(self) -> int:
        return self._host.checkpoint_bytes

    def take_now(self, done: Callable[[SnapshotOutcome], None]) -> None:
        def told(answer: OffsetAndEpoch | Exception) -> None:
            if isinstance(answer, Exception):
                done(SnapshotOutcome(None, str(answer), not isinstance(answer, NotHostedError)))
            else:
                done(SnapshotOutcome(answer))

        self._host.take_now(told)

    def close(self) -> None:
        self._host.stop()
        self._loop.close()
