"""Tests that a report's counts equal those made record by record, however the log is split.

The lives are those of `tests.spark_jobs.test_state`: commits, retries, deletions, moves, restarts.
What
is counted of the log each leaves is held against sums over its records and the coordinator's runs.
"""

from __future__ import annotations

import pickle
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from coordinator.batch.memory import InMemoryState
from raft.segments.segment import segment_name
from records.diskless import (
    DisklessPartitionsRemovedRecord,
    LogStartOffsetsRecord,
    ObjectCommitRecord,
)
from records.frame import decode_record
from records.uuids import encode_uuid
from spark_jobs.readers.log_files import LogFiles
from spark_jobs.report.counting import DUPLICATE, FREE, Counting
from spark_jobs.report.cube import (
    OTHERS,
    LocalCube,
    LocalReportEngine,
    Work,
    band_starts,
    merge_rows,
    percentiles,
    rows,
)
from spark_jobs.report.first_pass import GONE, FirstPass, first_pass_result
from spark_jobs.report.job import TOP, Question, make_report
from spark_jobs.report.window import WIDTHS_MS, window
from spark_jobs.tables.log_state import state_at
from tests.coordinator.batch.actors import TOPIC
from tests.examples import seeds
from tests.lives import live_until_seen
from tests.spark_jobs.logs import write_log
from tests.spark_jobs.report_world import LOG, World, build, with_end
from tests.spark_jobs.test_state import Lives

seen: Counter[str] = Counter()
OVER = window(0, 10_000)


def count_directory(directory: Path, end: int, split_bytes: int = 1 << 20) -> dict[str, list[Any]]:
    """Return all rows of both passes, by measure."""
    work = [Work(0, one) for one in LogFiles(directory).spans(end, split_bytes=split_bytes)]
    engine = LocalReportEngine()
    first = engine.count(work, FirstPass(OVER)).fold({})
    job = pickle.loads(pickle.dumps(Counting(OVER, first_pass_result(first), 0)))  # as it travels
    found: dict[str, list[Any]] = defaultdict(list)
    for row in [*first.to_pylist(), *engine.count(work, job).fold({}).to_pylist()]:
        found[row["measure"]].append(row)
    return found


def live_of(state: InMemoryState) -> dict[tuple[str, int], int]:
    """Return the live bytes of each partition."""
    found: dict[tuple[str, int], int] = defaultdict(int)
    for topic_id, topic in state.topics.items():
        for partition, log_id in enumerate(topic.log_ids):
            for run in state.runs.get(log_id, ()) if log_id >= 0 else ():
                found[encode_uuid(topic_id), partition] += run.byte_size
    return dict(found)


def keepers_of(state: InMemoryState) -> dict[int, set[str]]:
    """Return the topics with live runs in each object."""
    found: dict[int, set[str]] = defaultdict(set)
    for topic_id, topic in state.topics.items():
        for log_id in topic.log_ids:
            for run in state.runs.get(log_id, ()) if log_id >= 0 else ():
                found[run.object_id].add(encode_uuid(topic_id))
    return found


def commits_of(directory: Path, end: int) -> list[ObjectCommitRecord]:
    values = (value for span in LogFiles(directory).spans(end) for _, value in span.values())
    records = (decode_record(value) for value in values)
    return [one for one in records if isinstance(one, ObjectCommitRecord)]


class CountedHistories(Lives):
    """Random histories, each followed by a report of the log they leave."""

    def replace_several(self) -> None:  # type: ignore[override]
        """Rewrite nothing: a report does not know replaced runs yet."""

    def look(self, directory: Path) -> None:
        end = self.oracle.applied_offset
        log = self.world.log
        (directory / segment_name(0)).write_bytes(log.read(log.start_offset, 1 << 30))
        state = InMemoryState.load(self.world.values(), end)
        found = count_directory(directory, end)
        check_live(found, state)
        check_written(found, commits_of(directory, end))
        check_dead(found, state, commits_of(directory, end))
        if self.taken is not None and self.taken[0] < end:
            self.from_checkpoint(directory, *self.taken)
            check_live(count_directory(directory, end), state)
            seen["from a checkpoint"] += 1


def check_live(found: dict[str, list[Any]], state: InMemoryState) -> None:
    held = {(row["name"], row["number"]): row["part_bytes"] for row in found["held"]}
    assert {place: n for place, n in held.items() if n} == live_of(state)
    assert sum(row["objects"] for row in found["rot"]) == len(state.objects)
    used = sum(one.used_bytes for one in state.objects.values())
    assert sum(row["part_bytes"] for row in found["rot"]) == used
    free = sum(row["objects"] for row in found["rot"] if row["label"] == FREE)
    assert free == sum(not one.used_bytes for one in state.objects.values())
    seen["live"] += bool(used)
    seen["free"] += free


def check_written(found: dict[str, list[Any]], commits: list[ObjectCommitRecord]) -> None:
    topics: Counter[tuple[str, str]] = Counter()
    producers: Counter[int] = Counter()
    outcomes: Counter[int] = Counter()
    for one in commits:
        at = 0
        for index, _, count in zip(
            one.topic_indexes, one.partitions, one.batch_counts, strict=True
        ):
            for batch in range(at, at + count):
                error = one.error_codes[batch] if one.error_codes else 0
                duplicate = one.duplicates[batch] if one.duplicates else 0
                outcomes[DUPLICATE if duplicate else error] += 1
                if not error and not duplicate:
                    topic = encode_uuid(one.topic_ids[index])
                    topics[topic, "bytes"] += one.byte_sizes[batch]
                    topics[topic, "records"] += one.record_counts[batch]
                    producers[one.producer_ids[batch]] += one.byte_sizes[batch]
            at += count
    told: Counter[tuple[str, str]] = Counter()
    for row in found["topic"]:
        told[row["name"], "bytes"] += row["bytes"]
        told[row["name"], "records"] += row["records"]
    assert told == topics
    assert sum_by(found["producer"], "number", "bytes") == producers
    assert sum_by(found["outcome"], "number", "batches") == outcomes
    assert sum(row["objects"] for row in found["broker"]) == len(commits)
    assert sum(row["objects"] for row in found["fan_in"]) == len(commits)
    seen["duplicates"] += outcomes[DUPLICATE]
    seen["refused"] += sum(n for code, n in outcomes.items() if code > 0)


def check_dead(
    found: dict[str, list[Any]], state: InMemoryState, commits: list[ObjectCommitRecord]
) -> None:
    """Check dead bytes and the topics that pin them."""
    batches = {one.object_id: sum(one.byte_sizes) for one in commits}
    keepers = keepers_of(state)
    pinned: Counter[str] = Counter()
    alone: Counter[str] = Counter()
    for object_id, one in state.objects.items():
        dead = batches[object_id] - one.used_bytes
        if one.used_bytes and dead:
            for topic in keepers[object_id]:
                pinned[topic] += dead
            if len(keepers[object_id]) == 1:
                alone[next(iter(keepers[object_id]))] += dead
    assert sum_by(found["pin"], "name", "bytes") == pinned
    assert +sum_by(found["pin"], "name", "part_bytes") == alone
    framing = sum(one.size_bytes - batches[object_id] for object_id, one in state.objects.items())
    assert sum(row["bytes"] for row in found["framing"]) == framing
    gone = {one.object_id for one in commits} - state.objects.keys()
    assert sum(row["objects"] for row in found["removed_in"]) == len(gone)
    seen["pinned"] += len(pinned)
    seen["pinned with others"] += sum(len(topics) > 1 for topics in keepers.values())
    seen["gone"] += len(gone)


def sum_by(found: list[Any], key: str, value: str) -> Counter[Any]:
    total: Counter[Any] = Counter()
    for row in found:
        total[row[key]] += row[value]
    return total


def test_report_counts_equal_counts_from_the_coordinator_and_its_records() -> None:
    wanted = (
        "live", "free", "pinned", "pinned with others", "duplicates", "refused",
        "from a checkpoint",
    )  # fmt: skip
    live_until_seen(CountedHistories, seen, wanted, lives=14, steps=40)


# --- pieces -------------------------------------------------------------------------------------


def tables(world: World, **options: Any) -> dict[str, list[Any]]:
    report = make_report(world.logs, LocalReportEngine(), Question(now_ms=world.now_ms), **options)
    return {name: table.to_pylist() for name, table in report.tables.items()}


def test_the_size_of_offset_ranges_does_not_change_the_report_counts(harbour: World) -> None:
    whole = tables(harbour)
    for split_bytes in (1 << 12, 1 << 16):
        assert tables(harbour, split_bytes=split_bytes) == whole


def test_deleting_the_logs_first_records_does_not_change_the_reported_state(
    tmp_path: Path, harbour: World
) -> None:
    """After a cut, live bytes and the topics that pin dead ones stay the same."""
    cut = tables(build(tmp_path / "log", step_ms=40_000, segment_batches=150, cut=True))
    whole = tables(harbour)
    of_state = ("topic_id", "topic", "deleted", "partitions", "live_bytes", "retention_ms")
    assert [{key: row[key] for key in of_state} for row in cut["topics"] if row["topic_id"]] == [
        {key: row[key] for key in of_state} for row in whole["topics"]
    ]
    live = [sum(row["live_bytes"] for row in one["object_ages"]) for one in (cut, whole)]
    objects = [sum(row["objects"] for row in one["object_ages"]) for one in (cut, whole)]
    assert live[0] == live[1]
    assert objects[0] == objects[1]
    pinned = [sum(row["pinned_bytes"] for row in one["topics"]) for one in (cut, whole)]
    assert pinned[0] == pytest.approx(pinned[1], rel=1e-3)  # footers are estimated there
    assert cut["objects_kept"][-1]["held"] == whole["objects_kept"][-1]["held"]
    assert sum(row["bytes"] for row in cut["topic_throughput"]) < sum(
        row["bytes"] for row in whole["topic_throughput"]
    )


def test_the_reported_number_of_held_objects_is_committed_minus_removed_objects(
    harbour: World,
) -> None:
    found = tables(harbour)
    kept = found["objects_kept"]
    assert sum(row["removed"] for row in kept) > 50
    assert kept[0]["held"] == kept[0]["committed"] - kept[0]["removed"]  # from nothing on
    assert all(row["held"] >= 0 for row in kept)
    assert kept[-1]["held"] == sum(row["objects"] for row in found["object_ages"])
    assert kept[-1]["held"] == state_at(harbour.logs.log(LOG)).objects.num_rows


def test_the_report_does_not_count_uncommitted_records(harbour: World) -> None:
    half = tables(with_end(harbour, harbour.end_offset // 2))
    assert sum(row["objects"] for row in half["broker_objects"]) > 0
    assert sum(row["objects"] for row in half["broker_objects"]) < sum(
        row["objects"] for row in tables(harbour)["broker_objects"]
    )


def test_the_report_never_restores_a_removed_partition_or_lowers_a_log_start(
    tmp_path: Path,
) -> None:
    def starts(*offsets: int) -> list[LogStartOffsetsRecord]:
        return [
            LogStartOffsetsRecord(
                topic_ids=(TOPIC,), topic_indexes=(0,), partitions=(partition,),
                log_start_offsets=(offset,), reason=1,
            )
            for partition, offset in enumerate(offsets)
        ]  # fmt: skip

    removed = DisklessPartitionsRemovedRecord(topic_id=TOPIC, partitions=(1,))
    end = write_log(tmp_path / "log", [starts(9, 9), [removed], starts(5, 5)])
    work = [Work(0, span) for span in LogFiles(tmp_path / "log").spans(end)]
    first = LocalReportEngine().count(work, FirstPass(OVER)).fold({})
    topic = encode_uuid(TOPIC)
    assert first_pass_result(first).log_starts == {(topic, 0): 9, (topic, 1): GONE}


def test_the_throughput_table_of_the_report_adds_up_small_producers_as_others(
    harbour: World,
) -> None:
    found = tables(harbour)
    names = {row["producer"] for row in found["producer_throughput"]}
    assert len(names) == TOP + 1
    assert OTHERS in names
    everything = sum(row["bytes"] for row in found["topic_throughput"])
    assert sum(row["bytes"] for row in found["producer_throughput"]) == everything
    assert sum(row["bytes"] for row in found["partitions"]) == everything


# --- the cube -----------------------------------------------------------------------------------


def test_the_report_does_not_change_when_it_merges_merged_rows_again() -> None:
    parts = [rows("topic", 2, name=["a", "b"], bytes=[1, 2], lowest=[5, 6], highest=[5, 6]),
             rows("topic", 1, name="a", bytes=[10], lowest=[3], highest=[9])]  # fmt: skip
    once = merge_rows(parts)
    assert merge_rows([once]) == once == merge_rows([merge_rows(parts[:1]), merge_rows(parts[1:])])
    first = once.to_pylist()[0]
    assert (first["name"], first["bytes"], first["lowest"], first["highest"]) == ("a", 11, 3, 9)


def test_the_report_merges_rows_of_keys_with_few_bytes_into_one_row() -> None:
    cube = LocalCube(
        merge_rows(
            [rows("producer", 3, number=[-1, 5, 6], bytes=[7, 9, 7]), rows("log", 1, bytes=1)]
        )
    )
    assert cube.largest({"producer": "number"}, 2) == {
        "producer": [5, -1]
    }  # of equal ones the smaller
    found = cube.fold({"producer": ("number", [5])}).to_pylist()
    assert [(row["measure"], row["number"], row["label"], row["bytes"]) for row in found] == [
        ("log", 0, "", 1), ("producer", 5, "", 9), ("producer", 0, OTHERS, 14),
    ]  # fmt: skip


@pytest.mark.parametrize("seed", seeds(4))
def test_percentiles_computed_from_histogram_bands_are_exact_to_two_per_cent(seed: int) -> None:
    """Repeat one with -k 'two_per_cent and 3'."""
    random = np.random.default_rng(seed)
    values = np.exp(random.normal(6, 2, 4_999)).astype(np.int64)
    lower, counts = np.unique(band_starts(values), return_counts=True)
    wanted = (1, 50, 90, 99, 99.9, 100)
    for found, exact in zip(
        percentiles(lower, counts, wanted),
        np.percentile(values, wanted, method="inverted_cdf"),
        strict=True,
    ):
        assert found == pytest.approx(exact, rel=0.017, abs=0.5)


def test_the_histogram_bands_of_the_report_cover_every_64_bit_number() -> None:
    values = np.array([0, 1, 63, 64, 1 << 20, (1 << 53) + 1, (1 << 62) + 12345], np.int64)
    found = band_starts(values)
    assert (found <= values).all()
    assert (values - found <= values / 32).all()


def test_a_report_window_has_at_most_120_buckets_that_cover_every_time() -> None:
    for length in (0, 1, 999, 3_600_000, 86_400_000, 400 * 86_400_000, 1 << 52):
        over = window(1_700_000_000_123, 1_700_000_000_123 + length)
        assert 1 <= len(over.starts()) <= 120
        assert over.width_ms in WIDTHS_MS or over.width_ms > WIDTHS_MS[-1]
        for time in (-(1 << 62), 0, 1 << 62):  # somebody's clock
            assert over.bucket(time) in (over.starts()[0], over.starts()[-1])
        times = [-(1 << 62), over.start_ms, over.start_ms + length // 3, over.last_ms, 1 << 62]
        assert over.buckets(np.array(times)).tolist() == [over.bucket(time) for time in times]
