"""The coordinator's benchmarks still run, and their peer orders batches as it claims."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from bench.peers import etcd
from bench.peers import postgres_coordinator as peer
from bench.peers.postgres_coordinator import PeerBatch, Producer, decide
from tests.benches import printed


def test_the_retention_planner_benchmark_runs_without_errors() -> None:
    assert "1,000 runs of 10 partitions" in printed(
        "bench_planner", "--runs", "1000", "--partitions", "10"
    )


@pytest.mark.soak
def test_the_batch_coordinator_benchmark_runs_without_errors() -> None:
    shown = printed("bench_coordinator", "--tiny")
    for words in ("50 x 4, 4 uploaders", "500 x 1", "checkpoint of the leader", "first commit"):
        assert words in shown


def test_the_etcd_client_of_the_benchmark_encodes_a_put_as_protobuf() -> None:
    assert etcd.put_request(7, 200) == bytes.fromhex(
        "0a 05 6b30303037"  # field 1, 5 bytes: k0007
        "12 c8 01" + "00" * 200  # field 2, 200 bytes as a varint
    )


def batch(sequence: int, *, epoch: int = 0, at: int = 0, partition: int = 0) -> PeerBatch:
    return PeerBatch(partition, at, 100, 10, 0, 7, epoch, sequence)


def test_the_postgresql_coordinator_of_the_benchmark_detects_duplicates_and_gaps_like_kafka() -> (
    None
):
    watermarks: dict[int, int] = {0: 0}
    producers: dict[tuple[int, int], Producer] = {}

    def committed(*batches: PeerBatch) -> list[tuple[int, int]]:
        return decide(list(batches), watermarks, producers)[0]

    assert committed(batch(0), batch(10)) == [(0, 0), (0, 10)]
    assert committed(batch(0)) == [(0, 0)], "a duplicate has its first answer"
    assert committed(batch(30)) == [(45, -1)]
    assert committed(batch(0, epoch=1), batch(20)) == [(0, 20), (47, -1)]
    last = 2**31 - 10
    producers[(0, 7)] = Producer(1, [last], [2**31 - 1], [20])
    assert committed(batch(0, epoch=1)) == [(0, 30)], "sequences wrap"
    assert watermarks == {0: 40}


def test_the_postgresql_coordinator_of_the_benchmark_merges_adjacent_batches_into_runs() -> None:
    found = decide(
        [batch(0), batch(10, at=100), batch(20, at=250), batch(0, at=350, partition=1)],
        {0: 0, 1: 0},
        {},
    )[1]
    assert [(run[0], run[1], run[2], run[5]) for run in found] == [
        (0, 0, 19, 200),
        (0, 20, 29, 100),
        (1, 0, 9, 100),
    ]


@pytest.fixture
def open_directory() -> Iterator[Path]:
    """A directory that PostgreSQL's user may enter.

    Why: each start of pytest closes the folder of `tmp_path` to others again. One that began while
    the server ran kept `pg_ctl` from stopping it.
    """
    with tempfile.TemporaryDirectory(prefix="esker-postgres-") as name:
        yield Path(name)


@pytest.mark.skipif(peer.available() is not None, reason=f"left out: {peer.available()}")
def test_the_postgresql_coordinator_of_the_benchmark_commits_batches_to_a_postgresql_server(
    open_directory: Path,
) -> None:
    with peer.Postgres(open_directory / "pg") as server:
        server.create_partitions(4)
        server.fill(20, 4)
        with server.connect() as connection:
            told = peer.commit(connection, 100, 200, 1, [batch(0), batch(10, at=100)])
            assert told == [(0, 200), (0, 210)]
            assert peer.commit(connection, 101, 100, 1, [batch(10)]) == [(0, 210)]
            assert peer.commit(connection, 102, 100, 1, [batch(20)]) == [(0, 220)]
            row = connection.execute(
                "SELECT high_watermark, byte_size FROM partitions WHERE partition = 0"
            ).fetchone()
            assert row == (230, 5 * 4000 + 300)
