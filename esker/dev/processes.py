"""Starts, watches, restarts and stops the processes of `esker dev`.

A process that dies is said so and started again: that is what a supervisor does where Esker runs
in earnest, and whoever kills one on purpose wants to see what the others make of it. One that dies
three times in half a minute would do so for ever, and so would one that dies before all are up:
then everything stops, with its last words.

They are stopped in order: brokers first, which hand over while there is a quorum to tell. A kill at
any moment loses nothing that was acknowledged; it only makes the next start a little slower.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Iterable
from typing import Final

from esker.client.client import ClientError, KafkaClient
from esker.dev.cluster import DevError, Plan, Process
from raft.net.runner import run

DEATHS: Final = 3
DEATHS_WITHIN_S: Final = 30.0
BROKER_STOP_S: Final = 15.0
QUORUM_STOP_S: Final = 10.0
POLL_S: Final = 0.05
LAST_OUTPUT: Final = 3  # lines
ASK_MS: Final = 1_000


class Processes:
    """The running processes; `say` is called with one line for each that ends."""

    def __init__(self, plan: Plan, say: Callable[[str], None]) -> None:
        self.plan = plan
        self._say = say
        self._running: dict[Process, subprocess.Popen[bytes]] = {}
        self._deaths: dict[Process, deque[float]] = {}

    def start(self) -> None:
        """Start the dev cluster's quorum nodes, and then its brokers."""
        for process in (*self.plan.quorum, *self.plan.brokers):
            self._start(process)

    def ready(self) -> bool:
        """Return whether any broker of the dev cluster reports all brokers as unfenced."""

        async def asked() -> int:
            endpoints = [broker.endpoint for broker in self.plan.brokers]
            async with KafkaClient(endpoints, timeout_ms=ASK_MS) as client:
                return len(await client.brokers())

        try:
            return run(asked()) >= self.plan.broker_count
        except ClientError:
            return False

    def watch(self, *, restart: bool = True) -> None:
        """Restart each process of the dev cluster that has ended.

        Args:    restart: false while all is being started: what dies then would die again.
        Raises:  DevError for that, and for what dies again and again.
        """
        now = time.monotonic()
        for process, child in list(self._running.items()):
            code = child.poll()
            if code is None:
                continue
            _close(child)
            why = f"signal {-code}" if code < 0 else f"exit code {code}"
            deaths = self._deaths.setdefault(process, deque(maxlen=DEATHS))
            deaths.append(now)
            again = len(deaths) == DEATHS and now - deaths[0] < DEATHS_WITHIN_S
            if again or not restart:
                del self._running[process]
                when = "again and again" if again else "at its start"
                raise DevError(f"{process.name} dies {when} ({why}); {last_output_lines(process)}")
            self._say(f"{process.name} died ({why}); it is started again, see {process.output}")
            self._start(process)

    def stop(self) -> None:
        """Stop the brokers, then the quorum's nodes; kill processes that do not end in time."""
        self._stop(self.plan.brokers, BROKER_STOP_S)
        self._stop(self.plan.quorum, QUORUM_STOP_S)

    def kill(self) -> None:
        """Kill all processes of the dev cluster without waiting for a clean end."""
        for child in self._running.values():
            child.kill()
            child.wait()
            _close(child)
        self._running.clear()

    def _start(self, process: Process) -> None:
        with process.output.open("ab") as output:
            self._running[process] = subprocess.Popen(
                [sys.executable, "-m", "esker.dev.child", str(process.properties)],
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=output,
                process_group=0,  # a terminal's Ctrl-C is ours alone: there is an order
            )
        process.output.with_suffix(".pid").write_text(f"{self._running[process].pid}\n")

    def _stop(self, processes: Iterable[Process], patience_s: float) -> None:
        going = [self._running.pop(one) for one in processes if one in self._running]
        for child in going:
            child.terminate()
        deadline = time.monotonic() + patience_s
        try:
            for child in going:
                try:
                    child.wait(max(0.0, deadline - time.monotonic()))
                except subprocess.TimeoutExpired:
                    child.kill()
                    child.wait()
        finally:
            for child in going:
                if child.poll() is None:  # a second Ctrl-C while we waited
                    child.kill()
                    child.wait()
                _close(child)


def _close(child: subprocess.Popen[bytes]) -> None:
    if child.stdin is not None:
        child.stdin.close()


def last_output_lines(process: Process) -> str:
    """Return the last lines of a process's output file."""
    try:
        lines = process.output.read_text(errors="replace").splitlines()[-LAST_OUTPUT:]
    except OSError:
        lines = []
    return f"its last words in {process.output}: " + " | ".join(lines)
