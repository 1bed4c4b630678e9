"""The three nodes whose coordinator is measured, what they say of themselves, and a state to begin
from: as many runs as wanted, of partitions that no measurement commits to.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Final

from bench.commits import Load, as_json
from esker.client.quorum_admin import describe_quorum
from esker.settings.values import Endpoint
from raft.net.rpc import open_rpc
from raft.net.runner import run
from records.rpc.snapshots import (
    DescribeSnapshotsRequest,
    DescribeSnapshotsResponse,
    TakeSnapshotRequest,
    TakeSnapshotResponse,
)
from tests.quorum_processes import NODES, Quorum

GROUP: Final = "__diskless-metadata"
FILL_PARTITIONS: Final = 10_000  # as many runs in one commit
FILL_TOPIC: Final = 1


def say(text: str) -> None:
    print(text, flush=True)


class Cluster(Quorum):
    """Three nodes, and what a benchmark asks of them."""

    @property
    def addresses(self) -> list[list[Any]]:
        return [["127.0.0.1", self.ports[node]] for node in NODES]

    def load(self, **shape: Any) -> subprocess.Popen[str]:
        """Start a process that runs uploaders, and return the process."""
        return subprocess.Popen(
            [sys.executable, "-m", "bench.commits",
             as_json(Load(addresses=self.addresses, **shape))],
            stdout=subprocess.PIPE, text=True,
        )  # fmt: skip

    def stop(self, node: int) -> None:
        """Stop a node cleanly with SIGTERM, so that its file has all that it applied."""
        process = self.processes.pop(node)
        process.terminate()
        process.wait(60)

    def coordinator_leader(self) -> int:
        bootstrap = tuple(Endpoint("127.0.0.1", self.ports[node]) for node in NODES)
        found = run(describe_quorum(bootstrap, GROUP, 0, timeout_ms=5_000))
        return found.partition.leader_id

    def group(self, node: int) -> DescribeSnapshotsResponse.Group:
        """Return a node's description of its replica of the coordinator partition."""
        topic = DescribeSnapshotsRequest.Topic(topic_name=GROUP, partitions=(0,))

        async def ask() -> DescribeSnapshotsResponse:
            async with await open_rpc("127.0.0.1", self.ports[node]) as rpc:
                request = DescribeSnapshotsRequest(topics=(topic,))
                return await rpc.call(request, DescribeSnapshotsResponse)

        return run(ask()).groups[0]

    def wait_until_it_answers(self, node: int, *, timeout_s: float = 60) -> None:
        """Wait until a started node describes its replica of the coordinator partition."""
        deadline = time.perf_counter() + timeout_s
        while True:
            try:
                self.group(node)
                return
            except Exception:  # it starts
                if time.perf_counter() > deadline:
                    raise
                time.sleep(0.05)

    def wait_until_applied(self, *, timeout_s: float = 300) -> float:
        """Wait until all replicas have applied the committed records, and return the seconds."""
        began = time.perf_counter()
        committed = max(self.group(node).high_watermark for node in NODES)
        for node in NODES:
            while self.group(node).applied_offset < committed:
                assert time.perf_counter() - began < timeout_s, f"node {node} does not catch up"
                time.sleep(0.005)
        return time.perf_counter() - began

    def take_snapshot(self, node: int) -> tuple[float, int]:
        """Take a checkpoint on a node, and return the seconds taken and the checkpoint's bytes."""

        async def ask() -> TakeSnapshotResponse:
            async with await open_rpc("127.0.0.1", self.ports[node], timeout_ms=120_000) as rpc:
                request = TakeSnapshotRequest(
                    topic_name=GROUP, partition_index=0, timeout_ms=120_000
                )
                return await rpc.call(request, TakeSnapshotResponse)

        began = time.perf_counter()
        answer = run(ask())
        assert not answer.error_code, answer
        return time.perf_counter() - began, answer.size

    def cpu_s(self) -> dict[int, float]:
        """Return the CPU seconds that each node has used so far, by node id."""
        ticks = {}
        for node in NODES:
            fields = Path(f"/proc/{self.processes[node].pid}/stat").read_text().split()
            ticks[node] = (int(fields[13]) + int(fields[14])) / os.sysconf("SC_CLK_TCK")
        return ticks

    def memory_mb(self, node: int, kind: str = "VmRSS") -> float:
        """Return a node's resident memory in MiB, or its peak if `kind` is `VmHWM`."""
        status = Path(f"/proc/{self.processes[node].pid}/status").read_text()
        return next(int(line.split()[1]) for line in status.splitlines() if kind in line) / 1024


def result(process: subprocess.Popen[str]) -> Any:
    """Wait for a load's process to end, and return the JSON document that it printed."""
    out, _ = process.communicate()
    if process.returncode:
        raise SystemExit("the load failed")
    return json.loads(out)


def fill(cluster: Cluster, runs: int) -> None:
    """Commit `runs` runs to a topic of its own, in objects of up to 10,000 runs each."""
    partitions = min(FILL_PARTITIONS, runs)
    objects = -(-runs // partitions)
    began = time.perf_counter()
    result(
        cluster.load(
            topic=FILL_TOPIC, uploaders=1, partitions=partitions, batches_each=1, seconds=0,
            idempotent=False, objects=objects,
        )
    )  # fmt: skip
    applied = cluster.wait_until_applied()
    say(f"{objects * partitions:,} runs in {time.perf_counter() - began:.1f} s "
        f"(the last {applied:.1f} s of them applying)")  # fmt: skip
