"""PostgreSQL as a peer: the batch coordinator that a competent engineer writes in a day.

Own schema, one transaction an object, fsync on, one node. The rows of the partitions are locked in
order, producers read, the outcome decided in the client, and everything written back in sets
(`unnest`), pipelined: five statements an object, however many batches it has. Sequences, duplicates
and epochs as in Kafka's table; leases, orphans, kept answers and replication are not there.

    python -m bench.peers.postgres_coordinator '<json>'     one uploader (`Uploader`)

Needs Debian's postgresql and psycopg; `available` says what is missing.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple

import psycopg

from tests.raft.driver.cluster import free_ports

SCHEMA: Final = """
CREATE TABLE partitions (partition int PRIMARY KEY, log_start bigint NOT NULL DEFAULT 0,
    high_watermark bigint NOT NULL DEFAULT 0, byte_size bigint NOT NULL DEFAULT 0)
    WITH (fillfactor = 50);
CREATE TABLE objects (object_id bigint PRIMARY KEY, size bigint NOT NULL, used bigint NOT NULL,
    broker_id int NOT NULL, committed_at bigint NOT NULL, marked_at bigint);
CREATE TABLE runs (partition int NOT NULL, last_offset bigint NOT NULL, base_offset bigint NOT NULL,
    object_id bigint NOT NULL, byte_offset bigint NOT NULL, byte_size bigint NOT NULL,
    max_timestamp bigint NOT NULL, appended_at bigint NOT NULL,
    PRIMARY KEY (partition, last_offset));
CREATE TABLE producers (
    partition int NOT NULL, producer_id bigint NOT NULL, epoch smallint NOT NULL,
    base_sequences int[] NOT NULL, last_sequences int[] NOT NULL, base_offsets bigint[] NOT NULL,
    PRIMARY KEY (partition, producer_id)) WITH (fillfactor = 50);
"""

KEPT: Final = 5  # batches of a producer and partition
OUT_OF_ORDER_SEQUENCE_NUMBER: Final = 45
INVALID_PRODUCER_EPOCH: Final = 47


class PeerBatch(NamedTuple):
    """One batch of an object; -1 as a producer: not idempotent."""

    partition: int
    byte_offset: int
    size: int
    records: int
    max_timestamp: int
    producer_id: int
    epoch: int
    base_sequence: int


class Producer(NamedTuple):
    """The last batches of a producer in a partition, oldest first."""

    epoch: int
    base_sequences: list[int]
    last_sequences: list[int]
    base_offsets: list[int]


def commit(
    connection: psycopg.Connection[Any],
    object_id: int,
    size: int,
    broker_id: int,
    batches: list[PeerBatch],
) -> list[tuple[int, int]]:
    """Commit one object, and return the error code and base offset of each batch."""
    now_ms = time.time_ns() // 1_000_000
    named = sorted({batch.partition for batch in batches})
    pairs = sorted({(b.partition, b.producer_id) for b in batches if b.producer_id >= 0})
    with connection.transaction(), connection.cursor() as cursor:
        with connection.pipeline():
            locked = connection.execute(
                "SELECT partition, high_watermark FROM partitions WHERE partition = ANY(%s)"
                " ORDER BY partition FOR UPDATE",
                (named,), binary=True,
            )  # fmt: skip
            known = connection.execute(
                "SELECT partition, producer_id, epoch, base_sequences, last_sequences,"
                " base_offsets FROM producers JOIN unnest(%s::int[], %s::bigint[])"
                " AS wanted (partition, producer_id) USING (partition, producer_id)",
                ([pair[0] for pair in pairs], [pair[1] for pair in pairs]), binary=True,
            )  # fmt: skip
            watermarks = dict(locked.fetchall())
            producers = {(p, i): Producer(*rest) for p, i, *rest in known.fetchall()}
        before = dict(watermarks)
        outcomes, runs = decide(batches, watermarks, producers)
        used = sum(run[5] for run in runs)
        with connection.pipeline():
            cursor.execute(
                "INSERT INTO objects VALUES (%s, %s, %s, %s, %s, NULL)",
                (object_id, size, used, broker_id, now_ms),
            )
            cursor.execute(
                "INSERT INTO runs SELECT partition, last_offset, base_offset, %s, byte_offset,"
                " byte_size, max_timestamp, %s FROM unnest(%s::int[], %s::bigint[], %s::bigint[],"
                " %s::bigint[], %s::bigint[], %s::bigint[]) AS new (partition, base_offset,"
                " last_offset, byte_offset, max_timestamp, byte_size)",
                (object_id, now_ms, *([run[i] for run in runs] for i in range(6))),
            )
            grown = [p for p in named if watermarks[p] != before[p]]
            cursor.execute(
                "UPDATE partitions SET high_watermark = new.mark, byte_size = byte_size + new.bytes"
                " FROM unnest(%s::int[], %s::bigint[], %s::bigint[]) AS new (partition, mark,"
                " bytes) WHERE partitions.partition = new.partition",
                (
                    grown,
                    [watermarks[p] for p in grown],
                    [sum(run[5] for run in runs if run[0] == p) for p in grown],
                ),
            )
            cursor.executemany(
                "INSERT INTO producers VALUES (%s, %s, %s, %s, %s, %s)"
                " ON CONFLICT (partition, producer_id) DO UPDATE SET epoch = EXCLUDED.epoch,"
                " base_sequences = EXCLUDED.base_sequences, last_sequences ="
                " EXCLUDED.last_sequences, base_offsets = EXCLUDED.base_offsets",
                [(*pair, *producers[pair]) for pair in pairs if pair in producers],
            )
    return outcomes


Run = tuple[int, int, int, int, int, int]
"""Partition, base offset, last offset, byte offset, max timestamp, bytes."""


def decide(
    batches: list[PeerBatch],
    watermarks: dict[int, int],
    producers: dict[tuple[int, int], Producer],
) -> tuple[list[tuple[int, int]], list[Run]]:
    """Return each batch's outcome, and the accepted batches as runs; update both dictionaries."""
    outcomes: list[tuple[int, int]] = []
    runs: list[Run] = []
    for batch in batches:
        key = (batch.partition, batch.producer_id)
        last = (batch.base_sequence + batch.records - 1) % 2**31
        if batch.producer_id >= 0:
            state = producers.get(key)
            if state is not None and batch.epoch < state.epoch:
                outcomes.append((INVALID_PRODUCER_EPOCH, -1))
                continue
            if state is None or batch.epoch > state.epoch:
                state, expected = Producer(batch.epoch, [], [], []), 0
            else:
                kept = zip(state.base_sequences, state.last_sequences, strict=True)
                if (batch.base_sequence, last) in (pairs := list(kept)):
                    first = state.base_offsets[pairs.index((batch.base_sequence, last))]
                    outcomes.append((0, first))
                    continue
                expected = (state.last_sequences[-1] + 1) % 2**31
            if batch.base_sequence != expected:
                outcomes.append((OUT_OF_ORDER_SEQUENCE_NUMBER, -1))
                continue
        base = watermarks[batch.partition]
        watermarks[batch.partition] = end = base + batch.records
        outcomes.append((0, base))
        if batch.producer_id >= 0:
            producers[key] = Producer(
                batch.epoch,
                [*state.base_sequences, batch.base_sequence][-KEPT:],
                [*state.last_sequences, last][-KEPT:],
                [*state.base_offsets, base][-KEPT:],
            )
        before = runs[-1] if runs else None
        adjacent = before is not None and before[3] + before[5] == batch.byte_offset
        if before is not None and adjacent and before[0] == batch.partition:
            stamp = max(before[4], batch.max_timestamp)
            runs[-1] = (
                batch.partition,
                before[1],
                end - 1,
                before[3],
                stamp,
                before[5] + batch.size,
            )
        else:
            run = (
                batch.partition,
                base,
                end - 1,
                batch.byte_offset,
                batch.max_timestamp,
                batch.size,
            )
            runs.append(run)
    return outcomes, runs


# --- the server ---------------------------------------------------------------------------------


def binaries() -> Path | None:
    """Return the directory of programs of Debian's newest PostgreSQL, or None without one."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/pg_ctl"))
    return found[-1].parent if found else None


def available() -> str | None:
    """Return None if PostgreSQL can be run, else a message that names what is missing."""
    if binaries() is None:
        return "postgresql not installed"
    if os.geteuid() == 0 and shutil.which("runuser") is None:
        return "PostgreSQL does not run as root, and runuser is missing"
    return None


class Postgres:
    """One server on loopback, in a directory of its own, with fsync and default durability."""

    def __init__(self, directory: Path) -> None:
        self._home = directory
        (self.port,) = free_ports(1)
        programs = binaries()
        assert programs is not None, available()
        self._programs = programs

    def _run(self, *command: str) -> None:
        as_root = os.geteuid() == 0
        prefix = ["runuser", "-u", "postgres", "--"] if as_root else []
        with (self._home / "setup.log").open("ab") as log:
            subprocess.run([*prefix, *command], check=True, stdout=log, stderr=log, cwd="/")

    def __enter__(self) -> Postgres:
        self._home.mkdir(parents=True, exist_ok=True)
        data, sockets = self._home / "data", self._home / "sockets"
        for directory in (data, sockets):
            directory.mkdir()
        if os.geteuid() == 0:
            for above in self._home.parents:  # the server's user must be able to come here
                if above.owner() == "root" and above.stat().st_mode & 0o001 == 0:
                    above.chmod(above.stat().st_mode | 0o011)
            self._home.chmod(0o755)
            for directory in (data, sockets):
                shutil.chown(directory, "postgres")
        self._run(
            str(self._programs / "initdb"), "-D", str(data), "-U", "postgres", "-A", "trust",
            "--no-instructions",
        )  # fmt: skip
        options = (
            f"-c listen_addresses=127.0.0.1 -c port={self.port} -c fsync=on"
            f" -c unix_socket_directories={sockets} -c shared_buffers=512MB"
            " -c max_wal_size=4GB -c checkpoint_completion_target=0.9"
        )
        self._run(
            str(self._programs / "pg_ctl"), "-D", str(data), "-w", "-o", options,
            "-l", str(data / "server.log"), "start",
        )  # fmt: skip
        with self.connect() as connection:
            connection.execute(SCHEMA)
        return self

    def __exit__(self, *_: object) -> None:
        self._run(
            str(self._programs / "pg_ctl"),
            "-D",
            str(self._home / "data"),
            "-m",
            "immediate",
            "stop",
        )

    @property
    def where(self) -> str:
        """Return the server's address as a PostgreSQL connection string."""
        return f"host=127.0.0.1 port={self.port} user=postgres dbname=postgres"

    def connect(self) -> psycopg.Connection[Any]:
        """Open a connection to the server, on which every committed transaction is durable."""
        return psycopg.connect(self.where, autocommit=True)

    def create_partitions(self, count: int) -> None:
        """Create empty partitions with the numbers 0 to `count` - 1."""
        with self.connect() as connection:
            connection.execute(
                "INSERT INTO partitions (partition) SELECT generate_series(0, %s)", (count - 1,)
            )

    def fill(self, runs: int, partitions: int) -> None:
        """Insert committed runs of 40 offsets each, with 50 runs in each object."""
        with self.connect() as connection:
            connection.execute(
                "INSERT INTO runs SELECT n %% %s, n / %s * 40 + 39, n / %s * 40, n / 50, 0, 4000,"
                " 0, 0 FROM generate_series(0, %s) AS n",
                (partitions, partitions, partitions, runs - 1),
            )
            connection.execute(
                "INSERT INTO objects SELECT n, 200000, 200000, 0, 0, NULL"
                " FROM generate_series(0, %s) AS n",
                ((runs - 1) // 50,),
            )
            connection.execute(
                "UPDATE partitions SET high_watermark = %s, byte_size = %s",
                (-(-runs // partitions) * 40, -(-runs // partitions) * 4000),
            )
            connection.execute("VACUUM ANALYZE")

    def load(self, uploaders: list[Uploader]) -> list[dict[str, Any]]:
        """Run each uploader in a process of its own, and return the results that they print."""
        started = [
            subprocess.Popen(
                [sys.executable, "-m", "bench.peers.postgres_coordinator",
                 json.dumps(asdict(uploader) | {"where": self.where})],
                stdout=subprocess.PIPE, text=True,
            )
            for uploader in uploaders
        ]  # fmt: skip
        return [json.loads(process.communicate()[0]) for process in started]


@dataclass(frozen=True, slots=True)
class Uploader:
    """One closed loop of commits to partitions of its own."""

    run: int  # no other uploader of this server has it: object and producer ids begin with it
    first_partition: int
    partitions: int
    batches_each: int  # of a partition in an object
    seconds: float
    idempotent: bool = True
    warm_up_s: float = 1.0


def upload(uploader: Uploader, where: str) -> dict[str, Any]:
    """Commit objects until the uploader's time ends, and return the latencies in milliseconds."""
    first = uploader.first_partition
    per_object = uploader.partitions * uploader.batches_each
    times: list[float] = []
    with psycopg.connect(where, autocommit=True) as connection:
        began = time.perf_counter()
        warm, end = began + uploader.warm_up_s, began + uploader.warm_up_s + uploader.seconds
        count = 0
        while (started := time.perf_counter()) < end:
            batches = [
                PeerBatch(
                    first + partition,
                    (partition * uploader.batches_each + nth) * 1000, 1000, 10, 0,
                    uploader.run * 1_000_000 + partition if uploader.idempotent else -1, 0,
                    (count * uploader.batches_each + nth) * 10,
                )
                for partition in range(uploader.partitions)
                for nth in range(uploader.batches_each)
            ]  # fmt: skip
            object_id = 1_000_000_000 * uploader.run + count
            outcomes = commit(connection, object_id, per_object * 1000, uploader.run, batches)
            assert all(error == 0 for error, _ in outcomes), outcomes
            if started >= warm:
                times.append(time.perf_counter() - started)
            count += 1
    times.sort()
    return {
        "commits": len(times),
        "batches": len(times) * per_object,
        "times_ms": [round(one * 1e3, 3) for one in times],
    }


def main() -> None:
    settings = json.loads(sys.argv[1])
    where = settings.pop("where")
    print(json.dumps(upload(Uploader(**settings), where)))


if __name__ == "__main__":
    main()
