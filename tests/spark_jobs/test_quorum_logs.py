"""A running quorum is read from outside: committed records, across leaders and deleted heads."""

from __future__ import annotations

import pickle
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="PySpark is not installed: pip install 'esker[spark]'")

from pyspark.sql.streaming.datasource import ReadAllAvailable

from records.batch_writer import build_value_batch
from records.errors import CorruptBatchError
from records.types import Epoch, Offset, OffsetAndEpoch
from spark_jobs.readers import quorum_logs
from spark_jobs.readers.checkpoint_copy import copies_of, copy_checkpoint
from spark_jobs.readers.log_files import LostRangeError
from spark_jobs.readers.logs import LogsError
from spark_jobs.readers.quorum_link import Described, Fetched, GoneError, Quorum, QuorumLink
from spark_jobs.readers.quorum_logs import QuorumLog, QuorumLogs, QuorumSpan
from spark_jobs.source.log_source import LogReader
from spark_jobs.source.options import parse_options
from spark_jobs.source.stream import LogStreamReader
from tests.raft.driver.cluster import CLUSTER_ID, Cluster
from tests.raft.driver.test_cluster import QUICK
from tests.raft.driver.test_snapshots import AT_ONCE, fill, taken
from tests.waiting import wait_until

BENCH = "esker-bench-log-0"


def values(spans: list[QuorumSpan]) -> list[tuple[int, bytes]]:
    """Return the values of spans, each pickled as for a task."""
    return [
        (place.offset, bytes(value))
        for span in spans
        for place, value in pickle.loads(pickle.dumps(span)).values()
    ]


def topics_by_spark(port: int) -> list[str]:
    """Return the topics that the data source finds in the cluster's log."""
    given = {"bootstrapController": f"127.0.0.1:{port}", "table": "topics", "columns": "name"}
    reader = LogReader(parse_options(given))
    return [
        name
        for partition in pickle.loads(pickle.dumps(reader.partitions()))
        for batch in reader.read(partition)
        for name in batch.column("name").to_pylist()
    ]


def streamed(port: int, start: dict[str, Any] | None) -> tuple[dict[str, Any], list[int]]:
    """Read one batch of a stream of the cluster's log; return its end and its offsets."""
    given = {"bootstrapController": f"127.0.0.1:{port}", "columns": "log_offset"}
    reader = LogStreamReader(parse_options(given))
    start = reader.initialOffset() if start is None else start
    end = reader.latestOffset(start, ReadAllAvailable())
    return end, [
        offset
        for partition in pickle.loads(pickle.dumps(reader.partitions(start, end)))
        for batch in reader.read(partition)
        for offset in batch.column("log_offset").to_pylist()
    ]


def test_a_job_reads_every_record_while_leaders_fail_and_first_segments_are_deleted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "tmp"))
    (tmp_path / "tmp").mkdir()
    with Cluster(tmp_path, quorum=QUICK, state="kv", log_starts=AT_ONCE) as cluster:
        cluster.start()
        leader = cluster.wait_for_leader()
        with cluster.client(leader) as client:
            fill(client, 40)
            written = client.read(0)
        # One address is enough, and need not be the leader's.
        follower = next(node for node in cluster.ids if node != leader)
        logs = QuorumLogs([("127.0.0.1", cluster.ports[follower])])
        assert (logs.cluster_id, logs.names()) == (CLUSTER_ID, ["__cluster_metadata-0"])
        log = QuorumLog(logs.quorum, BENCH)
        described = log.describe()
        assert log.contains(described.high_watermark, described.epoch)
        assert not log.contains(described.high_watermark, described.epoch - 1)
        with pytest.raises(LogsError, match="the cluster has no log nobody-0"):
            logs.log("nobody-0")
        assert topics_by_spark(cluster.ports[follower]) == ["esker-bench-log"]
        place, offsets = streamed(cluster.ports[follower], None)
        end = log.end_offset()
        assert end == written[-1][0] + 1

        spans = list(log.spans(end, split_bytes=50_000))
        assert len(spans) > 3
        assert values(spans) == written
        assert values(list(log.spans(end, start_offset=1234, split_bytes=50_000))) == [
            row for row in written if row[0] >= 1234
        ]
        narrowed = [span.within(777, 1777) for span in spans]
        assert values([span for span in narrowed if span is not None]) == [
            row for row in written if 777 <= row[0] <= 1777
        ]

        # The leader dies while a task reads.
        monkeypatch.setattr(QuorumLink.begin_fetch, "__kwdefaults__", {"max_bytes": 1})
        (span,) = log.spans(end)
        rows = span.values()
        got = [next(rows) for _ in range(150)]
        cluster.kill(leader)
        got += list(rows)
        assert [(place.offset, bytes(value)) for place, value in got] == written
        cluster.start(leader)

        # A stream goes on where it was, whoever leads: the history is the same.
        port = cluster.ports[follower]
        wait_until(lambda: bool(streamed(port, place)[1]), "records, not only a LeaderChange")
        later, more = streamed(port, place)
        assert later["epoch"] >= place["epoch"] > 0
        assert offsets + more == sorted({*offsets, *more})
        assert offsets[-1] < place["offset"] <= more[0] < later["offset"]

        # The head is cut: a checkpoint stands for it.
        leader = cluster.wait_for_leader()
        with cluster.client(leader) as client:
            snapshot_id = taken(client)
            wait_until(
                lambda: client.snapshots().log_start_offset == snapshot_id.offset, "the log is cut"
            )
            fill(client, 3, first=40)
            tail = client.read(snapshot_id.offset)
        end = log.end_offset()
        first, *rest = log.spans(end)
        assert (first.is_checkpoint, first.end_offset) == (True, snapshot_id.offset)
        kept = dict(values([first]))
        assert set(kept) == {snapshot_id.offset - 1}
        assert sum(1 for _ in first.values()) == 700
        assert values(list(rest)) == tail
        copies = copies_of(CLUSTER_ID, BENCH)
        assert len(list(copies.glob("*.checkpoint"))) == 1
        with pytest.raises(LostRangeError, match=f"first offset is {snapshot_id.offset}"):
            log.spans(end, start_offset=5)
        with pytest.raises(LostRangeError, match="offsets from 0 on are gone"):
            values(spans)  # planned before
        with pytest.raises(LostRangeError, match=f"only offsets below {end} are committed"):
            log.spans(end + 100)

        # A download that stopped goes on; one of a checkpoint that is gone says so.
        (whole,) = copies.glob("*.checkpoint")
        data = whole.read_bytes()
        half = copies / f"{whole.name.removesuffix('.checkpoint')}-0.checkpoint.part"
        half.write_bytes(data[: len(data) // 2])
        whole.unlink()
        with QuorumLink(logs.quorum, BENCH) as link:
            assert copy_checkpoint(link, copies, snapshot_id).read_bytes() == data
            with pytest.raises(GoneError):
                copy_checkpoint(link, copies, OffsetAndEpoch(Offset(3), Epoch(1)))
            # A log that was made anew can have another checkpoint of this id.
            for other in (data[:-1] + bytes([data[-1] ^ 1]), data[:-1], data + b"x"):
                whole.write_bytes(other)
                assert copy_checkpoint(link, copies, snapshot_id).read_bytes() == data
        assert not half.exists()


def test_a_job_splits_a_growing_log_into_offset_ranges_of_a_constant_size() -> None:
    sizes = {
        quorum_logs._step(Described(1, 0, records, records, 97 * records, ()), 50_000)
        for records in range(3_000, 30_000, 100)
    }
    assert sizes == {512}
    assert quorum_logs._step(Described(1, 0, 0, 0, 0, ()), 50_000) == 32_768  # nothing to cut


def test_spark_commands_report_an_unreachable_quorum_in_one_sentence() -> None:
    with pytest.raises(LogsError, match="are a majority of the voters running"):
        QuorumLogs([("127.0.0.1", 1)], timeout_ms=1)


class Leader:
    """Answers Fetches from a script."""

    def __init__(self, *answers: Fetched) -> None:
        self.answers = list(answers)
        self.asked: list[tuple[int, int | None]] = []

    def begin_fetch(self, offset: int, last_epoch: int | None = None) -> Future[Fetched]:
        self.asked.append((offset, last_epoch))
        answer: Future[Fetched] = Future()
        answer.set_result(self.answers.pop(0))
        return answer


def batch(base: int, *values: bytes, epoch: int = 3) -> bytes:
    return bytes(build_value_batch(values, base_offset=base, leader_epoch=epoch, timestamp=9))


def read(leader: Leader, start: int, end: int, epoch: int | None = None) -> list[int]:
    span = QuorumSpan(Quorum((), "", 1, timeout_ms=200), "a-0", False, start, end, epoch)
    return [one.header.base_offset for one in quorum_logs._committed_batches(leader, span)]  # type: ignore[arg-type]


def test_spark_reads_no_uncommitted_record_from_a_leader() -> None:
    sent = batch(10, b"a", b"b") + batch(12, b"c")
    leader = Leader(Fetched(12, 0, sent), Fetched(13, 0, batch(12, b"d", epoch=4)))
    assert read(leader, 10, 13, 2) == [10, 12]
    assert leader.asked == [(10, 2), (12, 3)]  # asked again, naming what came before


def test_a_job_repeats_a_fetch_until_a_new_leader_has_a_high_watermark() -> None:
    sent = batch(10, b"a")
    leader = Leader(Fetched(-1, 0, sent), Fetched(11, 0, sent))
    assert read(leader, 10, 11) == [10]


def test_a_job_raises_an_error_if_the_leader_never_commits_the_requested_offsets() -> None:
    leader = Leader(*[Fetched(10, 0, b"")] * 20)
    with pytest.raises(LostRangeError, match="has not committed more yet"):
        read(leader, 10, 11)


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (Fetched(90, 0, b"", diverging=(3, 40)), "epoch 3 ends at 40"),
        (Fetched(90, 60, b"", snapshot_id=OffsetAndEpoch(Offset(60), Epoch(2))), "offset is 60"),
    ],
)
def test_a_job_raises_an_error_if_the_leader_answers_with_a_diverging_epoch_or_a_snapshot(
    answer: Fetched, said: str
) -> None:
    with pytest.raises(LostRangeError, match=said):
        read(Leader(answer), 50, 90)


def test_spark_raises_an_error_for_damaged_or_misplaced_batches_fetched_from_a_leader() -> None:
    damaged = bytearray(batch(10, b"a"))
    damaged[-1] ^= 1
    for records in (bytes(damaged), batch(11, b"a"), batch(10, b"a") + batch(12, b"b")):
        with pytest.raises(CorruptBatchError):
            read(Leader(Fetched(90, 0, records)), 10, 12)
