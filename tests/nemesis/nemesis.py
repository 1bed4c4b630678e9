"""What the nemesis does, one fault at a time, while clients work.

A fault lasts until it has had its effect (another node leads, say), then everything is healed and
the next begins once a client has been told again that something is committed. Nothing waits for a
time and hopes. The order, the victims and the lengths come from a seed; what the processes make of
them does not, so a seed repeats the plan, not the run.
"""

from __future__ import annotations

import contextlib
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from random import Random

from tests.nemesis.cluster import NemesisCluster
from tests.nemesis.proxy import Links
from tests.nemesis.workload import PATIENCE_S, LogClient, Workload
from tests.raft.driver.client import ClientError
from tests.waiting import wait_until

SLOW_BYTES_PER_S = 4_000
CALM = 100  # commits between two faults, and under those that must not stop them


class Nemesis:
    """Faults against one cluster under one workload."""

    def __init__(
        self, cluster: NemesisCluster, links: Links, workload: Workload, random: Random
    ) -> None:
        self.stale_reads_tried = 0
        self._appended = 0
        self._cluster = cluster
        self._links = links
        self._workload = workload
        self._random = random
        self._began = time.monotonic()

    def run(self, faults: Sequence[str]) -> None:
        """Each of these faults, healed before the next begins."""
        for name in faults:
            self.wait_for_progress(CALM)
            began = time.monotonic()
            fault: Callable[[], None] = getattr(self, name)
            self._say(f"{name}, leader is {self._leader}")
            try:
                fault()
            finally:
                self._links.heal()
            ended = time.monotonic()
            self.wait_for_progress()
            healed = time.monotonic()
            self._say(f"    lasted {ended - began:.2f} s, a commit {healed - ended:.2f} s after")

    def wait_for_progress(self, commits: int = 1) -> None:
        """Until clients have been told of so many commits that they asked for by now."""
        before = self._workload.acknowledged + 3 + commits  # three more may have been on their way
        wait_until(
            lambda: self._workload.acknowledged > before,
            "commits go on after a fault",
        )  # fmt: skip

    # --- processes ----------------------------------------------------------------------------

    def kill_leader(self) -> None:
        self._kill_and_restart(self._leader)

    def kill_any(self) -> None:
        self._kill_and_restart(self._random.choice(self._cluster.ids))

    def kill_all(self) -> None:
        self._cluster.kill()
        self._cluster.start()

    def pause_leader(self) -> None:
        """SIGSTOP. Asked for the end just before it wakes, it must not answer with what it knew."""
        victim = self._leader
        self._cluster.signal(victim, signal.SIGSTOP)
        try:
            self._wait_for_other_leader(victim)
            with self._stale_read(victim):
                self._cluster.signal(victim, signal.SIGCONT)
        finally:
            self._cluster.signal(victim, signal.SIGCONT)

    def pause_any(self) -> None:
        """SIGSTOP for one to five seconds, whoever it is."""
        victim = self._random.choice(self._cluster.ids)
        self._cluster.signal(victim, signal.SIGSTOP)
        try:
            self._last(self._random.uniform(1, 5))
        finally:
            self._cluster.signal(victim, signal.SIGCONT)

    def pause_all(self) -> None:
        """Nobody's clock may be trusted afterwards: each finds its timers long expired."""
        for node in self._cluster.ids:
            self._cluster.signal(node, signal.SIGSTOP)
        self._last(self._random.uniform(1, 3))
        for node in self._random.sample(self._cluster.ids, 3):
            self._cluster.signal(node, signal.SIGCONT)

    # --- the network --------------------------------------------------------------------------

    def cut_leader_off(self) -> None:
        """Connections reset, both ways. Clients still reach it: it must not answer their reads."""
        victim = self._leader
        for other in self._cluster.others(victim):
            self._links.cut(victim, other)
        self._wait_for_other_leader(victim)
        with self._stale_read(victim):
            pass

    def black_hole_leader(self) -> None:
        """The same in silence."""
        victim = self._leader
        for other in self._cluster.others(victim):
            self._links.hold(victim, other)
            self._links.hold(other, victim)
        self._wait_for_other_leader(victim)
        with self._stale_read(victim):
            pass

    def mute_leader(self) -> None:
        """It hears everyone, nobody hears it."""
        victim = self._leader
        for other in self._cluster.others(victim):
            self._links.hold(victim, other)
        self._wait_for_other_leader(victim)

    def deafen_leader(self) -> None:
        """Everyone hears it, it hears nobody."""
        victim = self._leader
        for other in self._cluster.others(victim):
            self._links.hold(other, victim)
        self._wait_for_other_leader(victim)

    def cut_one_link(self) -> None:
        """Two nodes do not reach each other; the third reaches both. Commits go on."""
        self._links.cut(*self._random.sample(self._cluster.ids, 2))
        self.wait_for_progress(CALM)

    def slow_follower(self) -> None:
        """One follower's network drips. Commits go on without it."""
        leader = self._leader
        victim = self._random.choice(self._cluster.others(leader))
        self._links.drip(leader, victim, SLOW_BYTES_PER_S)
        self._links.drip(victim, leader, SLOW_BYTES_PER_S)
        self.wait_for_progress(CALM)

    def flap(self) -> None:
        """The leader's connections break and come back, again and again, at odd moments."""
        victim = self._leader
        for _ in range(5):
            for other in self._cluster.others(victim):
                self._links.cut(victim, other)
            self._last(self._random.uniform(0, 0.3))
            self._links.heal()
            self._last(self._random.uniform(0, 0.3))

    def kill_all_in_a_split(self) -> None:
        """Everybody dies while one is cut off; the two others go on without it."""
        victim = self._random.choice(self._cluster.ids)
        for other in self._cluster.others(victim):
            self._links.hold(victim, other)
            self._links.hold(other, victim)
        self.kill_all()
        self.wait_for_progress(CALM)

    # --- disks --------------------------------------------------------------------------------

    def lose_disk(self) -> None:
        """A node dies, its disk is replaced by an empty one, and it catches up."""
        victim = self._random.choice(self._cluster.ids)
        self._cluster.kill(victim)
        self._cluster.lose_disk(victim)
        self.wait_for_progress()  # by the two others
        self._cluster.start(victim)
        wait_until(lambda: not self._cluster.recovering(victim), f"node {victim} is whole again")

    # --- helpers ------------------------------------------------------------------------------

    @property
    def _leader(self) -> int:
        """The node that acknowledged last."""
        assert self._workload.leader is not None, "nothing was acknowledged yet"
        return self._workload.leader

    def _say(self, what: str) -> None:
        print(f"{time.monotonic() - self._began:6.2f} {what}", flush=True)

    def _last(self, seconds: float) -> None:
        """A fault's length, where that is part of the plan."""
        time.sleep(seconds)

    def _kill_and_restart(self, victim: int) -> None:
        self._cluster.kill(victim)
        self.wait_for_progress()  # by the two others
        self._cluster.start(victim)

    def _wait_for_other_leader(self, victim: int) -> None:
        """Until one of the others has acknowledged something."""
        others = self._cluster.others(victim)
        wait_until(
            lambda: any(self._commits_at(node) for node in others),
            f"another node than {victim} leads",
        )  # fmt: skip

    def _commits_at(self, node: int) -> bool:
        """Append one value there, if that node leads."""
        try:
            with LogClient("127.0.0.1", self._cluster.ports[node], timeout_s=PATIENCE_S) as client:
                self._workload.ask_end(client)
                self._appended += 1
                return self._workload.append(client, node, b"nemesis-%d" % self._appended)
        except (ClientError, OSError):
            return False

    @contextlib.contextmanager
    def _stale_read(self, victim: int) -> Iterator[None]:
        """Ask a deposed leader for the end; its answer, if any, joins the history.

        The question is on its way when the block begins, and answered or not when it is left.
        """
        asked = threading.Event()

        def ask() -> None:
            try:
                with LogClient("127.0.0.1", self._cluster.ports[victim], timeout_s=2) as client:
                    asked.set()
                    self._workload.ask_end(client)
            except (ClientError, OSError):
                pass  # it knows that it is deposed, or does not know yet: no answer is right
            finally:
                asked.set()

        thread = threading.Thread(target=ask)
        thread.start()
        asked.wait()
        try:
            yield
        finally:
            thread.join()
            self.stale_reads_tried += 1
