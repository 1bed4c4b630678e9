"""Runs several brokers of one properties file, each in a process of its own.

    await supervise_until_signalled(load_host(path))

The supervisor binds the bootstrap ports, starts the processes, starts those that die again, kills
those that hang, and stops all of them together. It serves no client. A process tells over a pipe
that it lives: `ready` once, and a sign of life each second.

The trap: a pause of the whole host silences every process, and the supervisor as well. After a
pause of its own it gives all of them as long as before.

Source: docs/design/processes.md.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import fcntl
import json
import logging
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from functools import partial
from pathlib import Path
from typing import Final

from diskless.fetch.local_segments.directory import (
    SETTING,
    CacheDirectoryError,
    check_directory,
    other_directories,
)
from diskless.fetch.local_segments.disk_threads import DiskThreads
from diskless.fetch.local_segments.segment_disk import BEGIN_S
from esker.server.back_off import FIRST_S, BackOff
from esker.server.host_metrics import ChildStatus, HostMetrics
from esker.server.host_status import (
    STATUS_FILE,
    SUPERVISOR_LOCK,
    BrokerProcess,
    write_status,
)
from esker.server.process import METRICS_AT, READY, announce
from esker.server.storage import open_storage
from esker.settings.config import Endpoint, HostSettings, NodeSettings
from raft.driver.registry import LOCK_FILE

log = logging.getLogger("esker")

TICK_S: Final = 0.1
PAUSE_S: Final = 5.0  # between two ticks: the host stood still
HANG_S: Final = 30.0  # without a sign of life
IMPORT_S: Final = 120.0  # until the first sign of life: Python imports modules, on a busy host
STOP_S: Final = (
    45.0  # for a broker to drain: it waits for the controller, the store and its clients
)
LEFTOVERS_S: Final = 60.0  # for the processes of a supervisor that was killed
BACKLOG: Final = 1_024
REPORT_BYTES: Final = 4_096


class State(Enum):
    """What a broker process does; see docs/design/processes.md#states-of-a-child."""

    STARTING = "starting"
    READY = "ready"
    WAITING = "waiting"
    STOPPING = "stopping"
    STOPPED = "stopped"


NEXT: Final = {
    State.STARTING: {State.READY, State.WAITING, State.STOPPING},
    State.READY: {State.WAITING, State.STOPPING},
    State.WAITING: {State.STARTING, State.STOPPED},
    State.STOPPING: {State.STOPPED},
    State.STOPPED: set(),
}


class HostError(Exception):
    """The broker processes cannot be started or stopped; the message is one sentence."""


@dataclass(slots=True)
class Child:
    """One broker process, and what is known of it."""

    settings: NodeSettings
    state: State = State.WAITING
    process: subprocess.Popen[bytes] | None = None
    reports: int | None = None  # the pipe that it reports on
    heard_at: float = 0.0  # when it was started, or last gave a sign of life
    was_heard: bool = False  # this process has given a sign of life
    ready_at: float | None = None
    start_at: float = 0.0  # while waiting
    starts: int = 0
    metrics_port: int | None = None
    back_off: BackOff = field(default_factory=BackOff)

    @property
    def broker_id(self) -> int:
        """Return the broker's id."""
        return self.settings.node_id

    def become(self, state: State) -> None:
        """Change the state, as `NEXT` allows."""
        assert state in NEXT[self.state], f"broker {self.broker_id}: {self.state} -> {state}"
        self.state = state

    def ready_s(self, now: float) -> float | None:
        """Return for how long it has been ready, or None if it is not."""
        return None if self.ready_at is None else now - self.ready_at


async def supervise_until_signalled(host: HostSettings) -> None:
    """Run the brokers until SIGTERM or SIGINT, then stop them together.

    Raises:  StorageError for a directory; HostError for a port, or for brokers that do not stop;
             OSError.
    """
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    await supervise(host, stop)


async def supervise(host: HostSettings, stop: asyncio.Event) -> None:
    """Run the brokers until `stop` is set. Raises the errors of `supervise_until_signalled`."""
    for settings in host.brokers:
        meta, _ = open_storage(settings)
        await _check_segments(settings, meta.cluster_id)
    with (host.log_dir / SUPERVISOR_LOCK).open("w") as lock:
        if not _is_locked(lock.fileno()):
            raise HostError(f"{host.log_dir} is in use by another `esker start`: stop that one")
        (host.log_dir / STATUS_FILE).unlink(missing_ok=True)  # of a supervisor that has ended
        await _wait_for_leftovers(host.brokers)
        sockets = _listen(host)
        supervisor = Supervisor(host.brokers, sockets)
        metrics = HostMetrics(supervisor.statuses)
        try:
            if host.metrics is not None:
                await metrics.start(host.metrics.host, host.metrics.port)
            places = ",".join(str(place) for place in host.shared.values())
            log.info("processes=%d listening=%s", len(host.brokers), places)
            await supervisor.run(stop, lambda processes: write_status(host.log_dir, processes))
        finally:
            await metrics.close()
            for listening in (one for found in sockets.values() for one in found):
                listening.close()


class Supervisor:
    """Starts, watches and stops the broker processes."""

    def __init__(
        self,
        brokers: Iterable[NodeSettings],
        sockets: Mapping[str, Sequence[socket.socket]],
        *,
        program: Sequence[str] = (sys.executable, "-m", "esker.server.broker_process"),
        stop_s: float = STOP_S,
    ) -> None:
        """Prepare to run the brokers.

        Args:  sockets: the bootstrap ports by listener, which every broker accepts from.
               program: the command of one broker, to which its id is added.
               stop_s: for the brokers to drain, before they are killed.
        """
        self._sockets = sockets
        self._program = program
        self._stop_s = stop_s
        self._ticked_at = 0.0
        self._was_announced = False
        self.children = tuple(Child(settings=settings) for settings in brokers)

    def statuses(self) -> list[ChildStatus]:
        """Return what is known of each broker process."""
        now = asyncio.get_running_loop().time()
        return [
            ChildStatus(
                broker_id=child.broker_id,
                state=child.state.value,
                restarts=max(0, child.starts - 1),
                is_crash_loop=child.back_off.is_crash_loop(child.ready_s(now)),
                metrics_port=child.metrics_port,
            )
            for child in self.children
        ]

    async def run(
        self,
        stop: asyncio.Event,
        on_change: Callable[[Mapping[int, BrokerProcess]], None] = lambda _: None,
    ) -> None:
        """Run the brokers until `stop` is set, then stop them.

        Args:    on_change: gets the processes by broker id, at the start and after each change.
        Raises:  HostError if a broker had to be killed.
        """
        loop = asyncio.get_running_loop()
        self._ticked_at = loop.time()
        told: dict[int, BrokerProcess] = {}
        try:
            while not stop.is_set():
                self._tick(loop.time())
                processes = self._processes()
                if processes != told:
                    told = processes
                    _tell(on_change, told)
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(stop.wait(), TICK_S)
            await self._stop()
        finally:
            for child in self.children:  # those that still run, also after an exception
                if child.process is not None:
                    child.process.kill()
                    self._reap(child, child.process.wait())

    def _processes(self) -> dict[int, BrokerProcess]:
        return {
            child.broker_id: BrokerProcess(
                child.state.value,
                child.starts,
                None if child.process is None else child.process.pid,
            )
            for child in self.children
        }

    def _tick(self, now: float) -> None:
        """Take note of ended and hanging processes, and start those that are due."""
        if now - self._ticked_at > PAUSE_S:
            for child in self.children:
                child.heard_at = now
        self._ticked_at = now
        for child in self.children:
            if child.process is not None:
                code = child.process.poll()
                if code is not None:
                    self._on_ended(child, code, now)
                elif now - child.heard_at > (HANG_S if child.was_heard else IMPORT_S):
                    silent_s = now - child.heard_at
                    log.error("broker=%d hangs=%.0fs action=kill", child.broker_id, silent_s)
                    child.process.kill()
                    child.heard_at = now  # it ends within a tick or two
            if child.state is State.WAITING and now >= child.start_at:
                self._start(child, now)

    def _start(self, child: Child, now: float) -> None:
        reads, writes = os.pipe()
        numbers = {name: [one.fileno() for one in each] for name, each in self._sockets.items()}
        inherited = [number for each in numbers.values() for number in each]
        child.process = subprocess.Popen(
            [*self._program, str(child.broker_id)],
            stdin=subprocess.PIPE,
            pass_fds=(*inherited, writes),
        )
        os.close(writes)
        os.set_blocking(reads, False)
        child.reports, child.heard_at, child.was_heard, child.ready_at = reads, now, False, None
        child.starts += 1
        asyncio.get_running_loop().add_reader(reads, self._on_report, child)
        handed = {
            "properties": dict(child.settings.given),
            "sockets": numbers,
            "reports": writes,
        }
        assert child.process.stdin is not None
        with contextlib.suppress(OSError):
            child.process.stdin.write(json.dumps(handed).encode() + b"\n")
            child.process.stdin.flush()  # it stays open: its end is the end of this supervisor
        child.become(State.STARTING)
        log.info(
            "broker=%d state=starting pid=%d starts=%d",
            child.broker_id, child.process.pid, child.starts,
        )  # fmt: skip

    def _on_report(self, child: Child) -> None:
        """Read what a broker process says of itself."""
        assert child.reports is not None, "a report of no process"
        data = os.read(child.reports, REPORT_BYTES)
        if not data:  # it ends
            asyncio.get_running_loop().remove_reader(child.reports)
            return
        now = child.heard_at = asyncio.get_running_loop().time()
        child.was_heard = True
        for line in data.decode(errors="replace").splitlines():
            if line == READY and child.state is State.STARTING:
                child.become(State.READY)
                child.ready_at = now
                log.info("broker=%d state=ready", child.broker_id)
                self._announce()
            elif line.startswith(METRICS_AT):
                child.metrics_port = int(line.removeprefix(METRICS_AT))

    def _announce(self) -> None:
        """Say once that all brokers are ready."""
        is_ready = all(child.state is State.READY for child in self.children)
        if is_ready and not self._was_announced:
            self._was_announced = True
            announce(f"{len(self.children)} broker processes are ready")

    def _on_ended(self, child: Child, code: int, now: float) -> None:
        """Plan the next start of a process that has ended by itself."""
        ready_s = child.ready_s(now)
        self._reap(child, code)
        child.become(State.WAITING)
        if code == 0:  # it drained, as SIGTERM asks of it: no death
            child.start_at = now + FIRST_S
            log.info("broker=%d state=waiting starts_again_in=%.1fs", child.broker_id, FIRST_S)
            return
        wait_s = child.back_off.ended(ready_s)
        child.start_at = now + wait_s
        log.error(
            "broker=%d state=waiting deaths_in_a_row=%d starts_again_in=%.1fs",
            child.broker_id, child.back_off.deaths, wait_s,
        )  # fmt: skip

    def _reap(self, child: Child, code: int) -> None:
        """Forget a process that has ended, and close its pipes."""
        assert child.process is not None, f"no process: {child}"
        assert child.reports is not None, f"no pipe: {child}"
        asyncio.get_running_loop().remove_reader(child.reports)
        os.close(child.reports)
        if child.process.stdin is not None:
            with contextlib.suppress(OSError):
                child.process.stdin.close()
        log.info(
            "broker=%d pid=%d ended=%s", child.broker_id, child.process.pid, _describe_exit(code)
        )
        child.process = child.reports = child.ready_at = child.metrics_port = None

    async def _stop(self) -> None:
        """Stop all processes at once, and kill those that do not end in time."""
        loop = asyncio.get_running_loop()
        for child in self.children:
            if child.process is None:
                child.become(State.STOPPED)
            else:
                child.become(State.STOPPING)
                child.process.terminate()
        deadline = loop.time() + self._stop_s
        killed = []
        while running := [child for child in self.children if child.process is not None]:
            for child in running:
                assert child.process is not None
                code = child.process.poll()
                if code is None and loop.time() > deadline:
                    child.process.kill()
                    code = child.process.wait()
                    killed.append(child.broker_id)
                if code is not None:
                    self._reap(child, code)
                    child.become(State.STOPPED)
            await asyncio.sleep(TICK_S / 2)
        if killed:
            raise HostError(f"brokers {killed} did not stop within {self._stop_s:.0f} s: killed")


def _tell(
    on_change: Callable[[Mapping[int, BrokerProcess]], None], processes: Mapping[int, BrokerProcess]
) -> None:
    """Tell of the processes; a full disk must not end them, so its error is logged."""
    try:
        on_change(processes)
    except OSError as error:
        log.warning("status=unwritten error=%r", str(error))


def _describe_exit(code: int) -> str:
    return f"signal_{-code}" if code < 0 else f"exit_code_{code}"


# --- directories and ports ----------------------------------------------------------------------


def _is_locked(number: int) -> bool:
    """Lock an open file; return False if another process has it."""
    try:
        fcntl.flock(number, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


async def _check_segments(settings: NodeSettings, cluster_id: str) -> None:
    """Refuse a directory of local segments that would end the broker at each of its starts.

    A directory that cannot be read, or not in `BEGIN_S`, is not refused: the broker starts
    without it.

    Raises:  HostError.
    """
    if not settings.values[SETTING]:
        return
    threads = DiskThreads("segments-check", 1)
    check = partial(
        check_directory,
        Path(settings.values[SETTING]),
        cluster_id=cluster_id,
        node_id=settings.node_id,
        others=other_directories(settings.values),
    )
    try:
        with contextlib.suppress(OSError):  # TimeoutError, too
            async with asyncio.timeout(BEGIN_S):
                await asyncio.get_running_loop().run_in_executor(threads, check)
    except CacheDirectoryError as error:
        raise HostError(str(error)) from None
    finally:
        threads.shutdown()


async def _wait_for_leftovers(brokers: Iterable[NodeSettings]) -> None:
    """Wait until the directories are free of the processes of a supervisor that was killed.

    Raises:  HostError if they are not free in time.
    """
    deadline = asyncio.get_running_loop().time() + LEFTOVERS_S
    for settings in brokers:
        was_logged = False
        with (settings.log_dir / LOCK_FILE).open("a") as lock:
            while not _is_locked(lock.fileno()):
                if asyncio.get_running_loop().time() > deadline:
                    raise HostError(f"{settings.log_dir} is in use: end the process that has it")
                if not was_logged:
                    log.info("broker=%d waits_for=%r", settings.node_id, f"{settings.log_dir}")
                was_logged = True
                await asyncio.sleep(TICK_S)


def _listen(host: HostSettings) -> dict[str, tuple[socket.socket, ...]]:
    """Listen at the bootstrap ports, and see that the brokers' own ports are free.

    Raises:  HostError.
    """
    for settings in host.brokers:
        for place in settings.addresses.clients:
            for probe in _bind(place.bind, f"broker {settings.node_id}"):
                probe.close()
    sockets = {
        name: _bind(place, f"the bootstrap port of {name}") for name, place in host.shared.items()
    }
    for listening in (one for each in sockets.values() for one in each):
        listening.listen(BACKLOG)
        listening.setblocking(False)
    return sockets


def _bind(place: Endpoint, what: str) -> tuple[socket.socket, ...]:
    """Bind an address, or all addresses of a host name. Raises HostError.

    Without SO_REUSEPORT, by which another cluster of this user could bind the port, too.
    """
    bound: list[socket.socket] = []
    try:
        flags = socket.AI_PASSIVE
        found = socket.getaddrinfo(
            place.host or None, place.port, type=socket.SOCK_STREAM, flags=flags
        )
        for family, kind, protocol, _, address in dict.fromkeys(found):
            one = socket.socket(family, kind, protocol)
            bound.append(one)
            one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                one.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            one.bind(address)
    except OSError as error:
        for one in bound:
            one.close()
        advice = ": end what listens there, or choose another port"
        raise HostError(
            f"{what} cannot listen at {place}: {error.strerror}"
            f"{advice if error.errno == errno.EADDRINUSE else ''}"
        ) from None
    return tuple(bound)
