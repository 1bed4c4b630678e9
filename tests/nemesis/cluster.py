"""Three processes whose disks, network and lives are in the nemesis's hands."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Final

from raft.driver import mark_rejoin
from raft.segments.files import RealFileSystem
from tests.nemesis.proxy import Links
from tests.nemesis.workload import TOPIC, Values, Workload, read_all, read_disk
from tests.raft.driver.client import ClientError
from tests.raft.driver.cluster import Cluster
from tests.waiting import wait_until

QUICK: Final = {"election_timeout_ms": 300, "fetch_timeout_ms": 1_000, "fetch_max_wait_ms": 250}


class NemesisCluster(Cluster):
    """A cluster whose nodes reach each other through `links`, and may be spoiled (`node_main`)."""

    node_main = "tests.nemesis.node_main"

    def __init__(
        self,
        directory: Path,
        *,
        spoiled: str | None = None,
        log: dict | None = None,
        **shared: object,
    ) -> None:
        directory.mkdir(exist_ok=True)
        self.links: Links | None = None
        self.spoiled = spoiled
        super().__init__(directory, quorum=QUICK, log=log, **shared)

    def log_dir(self, node: int) -> Path:
        """One directory down, so that a disk can be mounted above it."""
        return self.directory / str(node) / "log"

    def settings(self, node: int) -> dict:
        settings = super().settings(node)
        settings["spoiled"] = self.spoiled
        if self.links is not None:
            ports = self.links.ports
            settings["voters"] = {
                voter: (host, port if voter == node else ports[node, voter])
                for voter, (host, port) in settings["voters"].items()
            }
        return settings

    def others(self, *nodes: int) -> list[int]:
        return [node for node in self.ids if node not in nodes]

    def lose_disk(self, node: int) -> None:
        """A stopped node gets an empty disk, formatted to rejoin."""
        shutil.rmtree(self.log_dir(node))
        self.format(node)
        mark_rejoin(RealFileSystem(), self.log_dir(node))

    def recovering(self, node: int) -> bool:
        """Has the node not yet caught up since it lost its disk?"""
        return any(self.log_dir(node).glob("esker.rejoin")) or any(
            self.log_dir(node).glob("*/recovering")
        )

    def caught_up(self) -> bool:
        """Do all nodes hold all that is committed?"""
        try:
            with self.client(self.wait_for_leader()) as client:
                end_offset = client.end_offset()
                voters = client.describe(TOPIC).current_voters
        except (OSError, ClientError):
            return False
        return len(voters) == 3 and all(one.log_end_offset >= end_offset for one in voters)

    def audit(self, workload: Workload) -> Values:
        """Check the history against the log as the leader serves it and as every disk has it.

        Everything must be healed, and the workload at its end. Kills the nodes. Returns the log.
        """
        wait_until(self.caught_up, "all nodes hold what is committed")
        final = read_all(self.ports[self.wait_for_leader()])
        workload.check(final)
        self.kill()
        for node in self.ids:
            assert read_disk(self.log_dir(node))[: len(final)] == final, f"node {node} differs"
        return final
