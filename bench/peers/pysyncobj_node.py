"""PySyncObj as a peer: one of three nodes, and the load from inside the leader's process.

    python -m bench.peers.pysyncobj_node '<json>'

Settings: self, others, directory, tuned. The node that leads prints one JSON line for each line
`{"records": R, "in_flight": N, "seconds": S}` that it reads. PySyncObj has no client outside and no
fsync: both flatter it.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from typing import Any

from pysyncobj import SyncObj, SyncObjConf, replicated


class Log(SyncObj):  # type: ignore[misc]
    """A log that only counts."""

    def __init__(self, settings: dict[str, Any]) -> None:
        tuned = (
            {"autoTickPeriod": 0.001, "appendEntriesPeriod": 0.005,
             "appendEntriesBatchSizeBytes": 4 * 1024 * 1024}
            if settings["tuned"]
            else {}
        )  # fmt: skip
        host = settings["self"]
        self.length = 0
        super().__init__(
            host,
            settings["others"],
            SyncObjConf(
                journalFile=f"{settings['directory']}/{host.rpartition(':')[2]}.journal",
                fullDumpFile=f"{settings['directory']}/{host.rpartition(':')[2]}.dump",
                bindAddress=host,
                commandsQueueSize=1_000_000,
                **tuned,
            ),
        )

    @replicated  # type: ignore[untyped-decorator]
    def append(self, data: bytes) -> int:  # noqa: ARG002 (it is what travels)
        self.length += 1
        return self.length


def load(log: Log, *, records: int, in_flight: int, seconds: float) -> dict[str, float]:
    """Keep `in_flight` commands of `records` x 100 B in flight, and measure after one second."""
    data = os.urandom(100 * records)
    times: list[float] = []
    free = threading.Semaphore(in_flight)

    def done(_: object, __: object, began: float) -> None:
        times.append(time.perf_counter() - began)
        free.release()

    start = time.perf_counter()
    warm, end = start + 1, start + 1 + seconds
    measured_from: int | None = None
    while (now := time.perf_counter()) < end:
        if measured_from is None and now >= warm:
            measured_from = len(times)
        if free.acquire(timeout=0.05):
            began = time.perf_counter()
            log.append(data, callback=lambda r, e, began=began: done(r, e, began))
    found = sorted(times[measured_from or 0 :]) or [float("nan")]
    return {
        "per_s": len(found) / seconds,
        "p50_ms": found[len(found) // 2] * 1e3,
        "p99_ms": found[int(len(found) * 0.99)] * 1e3,
    }


def main() -> None:
    log = Log(json.loads(sys.argv[1]))
    while not log.isReady():
        time.sleep(0.01)
    print("ready", flush=True)
    for line in sys.stdin:
        leads = str(log._getLeader()) == json.loads(sys.argv[1])["self"]
        work = json.loads(line)
        print(json.dumps(load(log, **work) if leads else None), flush=True)


if __name__ == "__main__":
    main()
