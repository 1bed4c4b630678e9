"""PySyncObj's snapshots as a peer: how long it takes to make one, and to bring up an empty node.

    python -m bench.peers.pysyncobj_snapshots '<json>'     # one node; see `measure`

Settings: self, others, directory. Each line on standard input is a command, `{"fill": N, "bytes":
B}`, `{"dump": true}`, `{"length": true}`, answered by one JSON line. It has no fsync and no
checksum: both flatter it.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from pysyncobj import SyncObj, SyncObjConf, replicated

from tests.raft.driver.cluster import free_ports

COMMAND_BYTES = 100_000  # commands of a megabyte were seen not to be committed at all
PATIENCE_S = 300


class State(SyncObj):  # type: ignore[misc]
    """Values by number."""

    def __init__(self, settings: dict[str, Any]) -> None:
        host = settings["self"]
        name = f"{settings['directory']}/{host.rpartition(':')[2]}"
        super().__init__(
            host,
            settings["others"],
            SyncObjConf(
                journalFile=f"{name}.journal",
                fullDumpFile=f"{name}.dump",
                bindAddress=host,
                logCompactionMinEntries=10**9,
                logCompactionMinTime=10**9,
                commandsQueueSize=1_000_000,
                connectionRetryTime=0.1,
                autoTickPeriod=0.001,
                appendEntriesPeriod=0.005,
                appendEntriesBatchSizeBytes=4 * 1024 * 1024,
            ),
        )
        self.values: dict[int, bytes] = {}  # what was there before is not in its dump

    @replicated  # type: ignore[untyped-decorator]
    def put(self, first: int, values: list[bytes]) -> int:
        self.values.update(zip(range(first, first + len(values)), values, strict=True))
        return len(self.values)


def answer(state: State, work: dict[str, Any], dump: Path) -> Any:
    """Carry out a command that the parent sent by the pipe, and return its result."""
    if "fill" in work:
        each = max(1, COMMAND_BYTES // work["bytes"])
        for first in range(0, work["fill"], each):
            count = min(each, work["fill"] - first)
            state.put(first, [os.urandom(work["bytes"]) for _ in range(count)])
        while len(state.values) < work["fill"]:
            time.sleep(0.01)
        return len(state.values)
    if "dump" in work:
        began = time.perf_counter()
        state.forceLogCompaction()
        while not dump.exists():
            time.sleep(0.005)
        return time.perf_counter() - began
    return len(state.values)


def main() -> None:
    settings = json.loads(sys.argv[1])
    state = State(settings)
    dump = Path(f"{settings['directory']}/{settings['self'].rpartition(':')[2]}.dump")
    print("ready", flush=True)
    for line in sys.stdin:
        print(json.dumps(answer(state, json.loads(line), dump)), flush=True)


# --- from outside --------------------------------------------------------------------------------


class _Node:
    def __init__(self, host: str, hosts: list[str], directory: Path) -> None:
        settings = {
            "self": host,
            "others": [one for one in hosts if one != host],
            "directory": str(directory),
        }
        self.process = subprocess.Popen(
            [sys.executable, "-m", "bench.peers.pysyncobj_snapshots", json.dumps(settings)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
        )  # fmt: skip
        assert self.process.stdout is not None
        assert self.process.stdout.readline().strip() == "ready", "PySyncObj did not start"

    def ask(self, **work: object) -> Any:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps(work) + "\n")
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline())


def measure(entries: int, value_bytes: int) -> dict[str, float]:
    """Measure the seconds to dump the entries, and the MB/s to transfer them to a third node.

    The dumps are made before the third node starts, and its log is gone: it comes by the dump.
    """
    with tempfile.TemporaryDirectory(prefix="esker-bench-") as name:
        directory = Path(name)
        hosts = [f"127.0.0.1:{port}" for port in free_ports(3)]
        nodes = [_Node(host, hosts, directory) for host in hosts[:2]]
        try:
            nodes[0].ask(fill=entries, bytes=value_bytes)
            while nodes[1].ask(length=True) < entries:
                time.sleep(0.05)
            generation_s = max(node.ask(dump=True) for node in nodes)
            time.sleep(0.2)  # a dump counts from the tick after it was written
            began = time.perf_counter()
            nodes.append(_Node(hosts[2], hosts, directory))
            began = max(began, time.perf_counter() - 1.0)  # the interpreter's start is not its own
            while nodes[2].ask(length=True) < entries:
                time.sleep(0.05)
                assert time.perf_counter() - began < PATIENCE_S, "it did not catch up"
            elapsed_s = time.perf_counter() - began
        finally:
            for node in nodes:
                node.process.kill()
                node.process.wait()
    return {
        "generation_s": generation_s,
        "catch_up_s": elapsed_s,
        "mb_per_s": entries * value_bytes / 1e6 / elapsed_s,
    }


if __name__ == "__main__":
    main()
