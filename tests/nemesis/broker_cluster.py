"""A cluster of quorum nodes and brokers whose network, disks and clocks a nemesis can spoil.

Nodes and clients reach each node through a proxy (`links`, where clients are node 0). With disks,
each voter's log lies on an ext4 image of its own, which can be filled or lose its unflushed bytes,
and the object store lies on a small disk in memory.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Final

from tests.clients.cluster import SHOWN_BYTES, EskerCluster
from tests.clients.skewed_main import MINUTES
from tests.nemesis.disks import Disks
from tests.nemesis.linked_main import LINKS
from tests.nemesis.proxy import Links
from tests.waiting import wait_until

CLIENTS: Final = 0  # a node id that no node has
STORE_BYTES: Final = 256 * 1024 * 1024
LAST_BYTES: Final = 32 * 1024  # left on a disk that is to fill up
LINKED_PROGRAM: Final = ("tests.nemesis.linked_main",)


class BrokerCluster(EskerCluster):
    """Processes by node id, their links, and their disks if there are any."""

    def __init__(self, home: Path, *, disks: Disks | None = None, **options: Any) -> None:
        self.disks = disks
        self._links: Links | None = None
        super().__init__(home, program=LINKED_PROGRAM, **options)
        if disks is not None:
            disks.make_small(self.store, STORE_BYTES)

    @property
    def links(self) -> Links:
        if self._links is None:
            self._links = Links({CLIENTS: 0, **self.ports})
        return self._links

    @property
    def client_addresses(self) -> list[tuple[str, int]]:
        """The brokers, through the links of clients."""
        return [("127.0.0.1", self.links.ports[CLIENTS, one]) for one in self.broker_ids]

    @property
    def bootstrap(self) -> str:
        return ",".join(f"{host}:{port}" for host, port in self.client_addresses)

    def log_dir(self, node: int) -> Path:
        return self._mount_point(node) / "log"

    def _mount_point(self, node: int) -> Path:
        return self.home / f"disk-{node}"

    def _configure(self, node: int, settings: Mapping[str, str]) -> None:
        if self.disks is not None and node in self.quorum_ids:
            self.disks.make_image(self._mount_point(node))
        lines = {}
        if node in self.broker_ids:
            port = self.links.ports[CLIENTS, node]
            lines["advertised.listeners"] = f"PLAINTEXT://127.0.0.1:{port}"
        super()._configure(node, {**lines, **settings})

    def launch(
        self,
        *nodes: int,
        environment: Mapping[str, str] | None = None,
        fresh: bool | None = False,
    ) -> None:
        for node in nodes:
            links = {
                self.ports[other]: self.links.ports[node, other]
                for other in self.ports
                if other != node
            }
            more = {LINKS: json.dumps(links), **(environment or {})}
            super().launch(node, environment=more, fresh=fresh)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        super().__exit__(kind, error, traceback)
        self.links.close()

    # --- faults of nodes ----------------------------------------------------------------------

    def launch_skewed(self, minutes: float, *nodes: int) -> None:
        """Begin processes whose wall clocks are off by so many minutes."""
        self.launch(*nodes, environment={MINUTES: str(minutes)}, fresh=True)

    def fill_disk(self, node: int) -> Path:
        """Leave a voter's disk hardly any room; return the file that takes it."""
        ballast = self._mount_point(node) / "ballast"
        stat = os.statvfs(ballast.parent)
        size = stat.f_bfree * stat.f_frsize
        with ballast.open("wb") as file:
            while True:
                size -= LAST_BYTES
                try:
                    os.posix_fallocate(file.fileno(), 0, size)
                    break
                except OSError:  # the file system needs some blocks for the ballast itself
                    file.truncate(0)
        return ballast

    def wait_for_end(self, node: int, reason: str) -> None:
        """Wait until a node ends by itself, and names this reason."""
        process = self.processes[node]
        wait_until(lambda: process.poll() is not None, f"node {node} ends: {reason}")
        del self.processes[node]
        said = self.output(node)[-SHOWN_BYTES:]
        assert reason in said, f"node {node} ended with {process.returncode}: {said}"

    def lose_power(self, nodes: Sequence[int]) -> None:
        """Stop voters at one moment, and put what their disks had flushed in place of the disks."""
        assert self.disks is not None
        copies = {node: self.disks.copy_image(self._mount_point(node)) for node in nodes}
        self.kill(*nodes)
        for node, copy in copies.items():
            self.disks.replace(self._mount_point(node), copy)
