"""What the nemesis does to checkpoints: while one is generated, fetched, renamed, installed.

A moment is chosen by what is seen in a group's directory: a part that has grown to so many bytes, a
checkpoint that has just got its name. Nothing waits for a time and hopes; which node is hit, and at
how many bytes, comes from the seed.

In these clusters a log is cut soon after every checkpoint (a replica counts as live for a second
and a half only), so a node that was away, or has an empty disk, comes up by a checkpoint.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Final

from snapshot import list_checkpoints
from tests.nemesis.cluster import NemesisCluster
from tests.nemesis.keyed import FILES, GROUP, KeyedWorkload
from tests.nemesis.nemesis import Nemesis
from tests.nemesis.proxy import Links
from tests.nemesis.workload import TOPIC
from tests.raft.driver.client import ClientError
from tests.waiting import wait_until

KIB: Final = 1024
SETTINGS: Final = {
    "state": "kv",
    "snapshots": {"min_changed_ratio": 0.0, "max_bytes_between": 512 * KIB},
    "log_starts": {"live_ms": 1_500},
    "log": {"segment_bytes": 256 * KIB},
}
"""A checkpoint after every half MiB, and a log that is cut behind it."""

VALUE_BYTES: Final = 1 * KIB
LINK_BYTES_PER_S: Final = 8 * KIB * KIB  # of the link that a download comes by
_GENERATED: Final = re.compile(r"\d{20}-\d{10}-[1-9]\d*\.checkpoint\.part")
_DOWNLOADED: Final = re.compile(r"\d{20}-\d{10}-0\.checkpoint\.part")


class SnapshotCluster(NemesisCluster):
    """Three nodes whose `esker-bench-log` has a state, many checkpoints and a short log."""

    def __init__(self, directory: Path, **settings: object) -> None:
        super().__init__(directory, **(SETTINGS | settings))  # type: ignore[arg-type]

    def group_directory(self, node: int) -> Path:
        return self.log_dir(node) / GROUP

    def log_start(self, node: int) -> int:
        """Where a running node's log begins; 0 if it does not say."""
        try:
            with self.client(node) as client:
                return client.snapshots(TOPIC).log_start_offset
        except (OSError, ClientError):
            return 0

    def log_end(self, node: int) -> int:
        """Where a running node's log ends; waits until it says so."""
        ends: list[int] = []

        def told() -> bool:
            with contextlib.suppress(OSError, ClientError), self.client(node) as client:
                ends.append(client.snapshots(TOPIC).log_end_offset)
            return bool(ends)

        wait_until(told, f"node {node} says where its log ends")
        return ends[0]

    def take(self, node: int) -> None:
        """Ask for a checkpoint now, instead of waiting for half a MiB more; it may be refused."""
        with contextlib.suppress(OSError, ClientError), self.client(node) as client:
            client.take_snapshot(TOPIC)

    def fetched(self, node: int) -> int:
        """How many checkpoints of the group this node has fetched, over all its lives."""
        return sum(
            f"group={GROUP}" in line and "action=fetched_snapshot" in line
            for line in self.output(node).splitlines()
        )

    def part_bytes(self, node: int, kind: re.Pattern[str]) -> int:
        """The size of the part under way; -1 if there is none."""
        largest = -1
        try:
            for path in self.group_directory(node).iterdir():
                if kind.fullmatch(path.name):
                    largest = max(largest, path.stat().st_size)
        except FileNotFoundError:
            return largest
        return largest

    def newest(self, node: int) -> int:
        """The end offset of the newest checkpoint on a disk; -1 if there is none."""
        try:
            found = list_checkpoints(FILES, self.group_directory(node))
        except FileNotFoundError:
            return -1
        return int(found[-1].offset) if found else -1

    def generating(self, node: int, at_bytes: int) -> bool:
        return self.part_bytes(node, _GENERATED) >= at_bytes

    def downloading(self, node: int, at_bytes: int) -> bool:
        return self.part_bytes(node, _DOWNLOADED) >= at_bytes


def at_once(condition: Callable[[], bool], what: str) -> None:
    """Wait with hardly a pause, so that what follows happens at that very moment."""
    wait_until(condition, what, longest_pause_s=0.0005)


class SnapshotNemesis(Nemesis):
    """Its faults beside the ordinary ones."""

    def __init__(
        self,
        cluster: SnapshotCluster,
        links: Links,
        workload: KeyedWorkload,
        random: Random,
        *,
        state_bytes: int,
    ) -> None:
        super().__init__(cluster, links, workload, random)
        self.by_snapshot = 0  # nodes that came up by one
        self._disks = cluster
        self._state_bytes = state_bytes

    # --- nodes that come too late -------------------------------------------------------------

    def wipe(self) -> None:
        """An empty disk; meanwhile commits go on, and the leader is killed in mid-download.

        It comes back at once: while a voter recovers there is no spare for it.
        """
        victim = self._follower()
        self._cluster.kill(victim)
        self._cluster.lose_disk(victim)
        self.wait_for_progress()
        with self._comes_by_snapshot(victim):
            self._until_downloading(victim)
            leader = self._leader_but(victim)
            self._cluster.kill(leader)
            self._cluster.start(leader)
        wait_until(lambda: not self._cluster.recovering(victim), f"node {victim} is whole again")

    def a_day_behind(self) -> None:
        """A node is away until the log it would need is gone; the leader dies as it comes back."""
        victim = self._follower()
        end_offset = self._disks.log_end(victim)
        self._cluster.kill(victim)
        others = self._cluster.others(victim)
        self.wait_for_progress()
        for node in sorted(others, key=lambda one: one == self._leader):
            self._disks.take(node)  # the leader last: its log's start must pass the other's
        wait_until(
            lambda: min(self._disks.log_start(node) for node in others) > end_offset,
            f"the logs of nodes {others} begin past {end_offset}",
        )
        with self._comes_by_snapshot(victim):
            self._until_downloading(victim)
            self._kill_and_restart(self._leader_but(victim))

    # --- kill -9 at a moment ------------------------------------------------------------------

    def kill_generating(self) -> None:
        """Of whichever node is first at a number of bytes."""
        at_bytes = self._random.randrange(self._state_bytes)
        victims: list[int] = []

        def one_is() -> bool:
            victims[:] = [one for one in self._cluster.ids if self._disks.generating(one, at_bytes)]
            return bool(victims)

        at_once(one_is, f"a node has generated {at_bytes} bytes")
        self._kill_and_restart(victims[0])

    def kill_downloading(self) -> None:
        """An empty node, three times, each time with more of the download behind it."""
        victim = self._follower()
        self._cluster.kill(victim)
        self._cluster.lose_disk(victim)
        with self._comes_by_snapshot(victim):
            for part in (0.2, 0.5, 0.8):
                self._until_downloading(victim, int(part * self._state_bytes))
                self._cluster.kill(victim)
                self._cluster.start(victim)
        wait_until(lambda: not self._cluster.recovering(victim), f"node {victim} is whole again")

    def kill_installing(self) -> None:
        """An empty node, as soon as its checkpoint has its name: the log is yet to be reset."""
        victim = self._follower()
        self._cluster.kill(victim)
        self._cluster.lose_disk(victim)
        self._cluster.start(victim)
        at_once(lambda: self._disks.newest(victim) > 0, f"node {victim} has a checkpoint")
        self._cluster.kill(victim)
        self._cluster.start(victim)
        wait_until(lambda: not self._cluster.recovering(victim), f"node {victim} is whole again")
        self.by_snapshot += 1

    def kill_all_generating(self) -> None:
        """Everybody, while the leader generates."""
        at_bytes = self._random.randrange(self._state_bytes)
        leader = self._leader
        at_once(
            lambda: any(self._disks.generating(one, at_bytes) for one in self._cluster.ids),
            f"somebody (leader {leader}) has generated {at_bytes} bytes",
        )
        self.kill_all()

    # --- helpers ------------------------------------------------------------------------------

    def _follower(self) -> int:
        return self._random.choice(self._cluster.others(self._leader))

    def _leader_but(self, victim: int) -> int:
        """The leader, as known by what was acknowledged last; never the victim."""
        leader = self._leader
        return leader if leader != victim else self._cluster.others(victim)[0]

    def _until_downloading(self, victim: int, at_bytes: int = 1) -> None:
        """Until so much is there, or all of it; an older checkpoint of its own is not meant."""
        fetched = self._disks.fetched(victim)
        at_once(
            lambda: (
                self._disks.downloading(victim, at_bytes) or self._disks.fetched(victim) > fetched
            ),
            f"node {victim} has {at_bytes} bytes of a checkpoint",
        )

    def _comes_by_snapshot(self, victim: int) -> _ComesBySnapshot:
        """Start a node by a slow link, and see it come up by a checkpoint and then by the log."""
        return _ComesBySnapshot(self, victim)


class _ComesBySnapshot:
    """See `SnapshotNemesis._comes_by_snapshot`."""

    def __init__(self, nemesis: SnapshotNemesis, victim: int) -> None:
        self._nemesis = nemesis
        self._victim = victim
        self._before = nemesis._disks.fetched(victim)

    def __enter__(self) -> None:
        nemesis, victim = self._nemesis, self._victim
        for other in nemesis._cluster.others(victim):
            nemesis._links.drip(other, victim, LINK_BYTES_PER_S)
        nemesis._cluster.start(victim)

    def __exit__(self, kind: object, error: object, traceback: object) -> None:
        if error is not None:
            return
        nemesis, victim = self._nemesis, self._victim
        wait_until(
            lambda: nemesis._disks.fetched(victim) > self._before,
            f"node {victim} has fetched a checkpoint",
        )
        nemesis._links.heal()
        wait_until(nemesis._cluster.caught_up, f"node {victim} has caught up")
        nemesis.by_snapshot += 1
