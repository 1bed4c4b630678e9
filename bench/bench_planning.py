"""Times the planning of an `esker_records` query of a million runs, on the driver.

    python -m bench.bench_planning [--tiny]

Answers to FindBatches, of 10,000 runs each as coordinators give them, become tasks, and the tasks
become bytes, as Spark sends them. Keys, offsets and sizes are those of 200 partitions with runs of
64 KiB. Beside it the way over objects: the message's own decoder, and a named tuple for each run.

CPU seconds of one process; no coordinator's and no network's time is in it. Must: 5 s.
"""

from __future__ import annotations

import argparse
import os
import pickle
import platform
import subprocess
import time
from collections.abc import Iterator, Sequence
from typing import Any, Final
from uuid import UUID

from records.codec import decode_message, encode_message
from records.object_keys import ObjectKeys
from records.rpc.batch_coordinator import FindBatchesResponse
from spark_jobs.topics.broker_coordinates import found_in
from spark_jobs.topics.coordinates import Found, FoundRun, Runs, TopicPartition, Wanted
from spark_jobs.topics.find_columns import read_answer
from spark_jobs.topics.options import parse_options
from spark_jobs.topics.planning import plan

RUNS: Final = 1_000_000
PARTITIONS: Final = 200
ANSWER_RUNS: Final = 10_000  # find_limit of coordinators
RUN_BYTES: Final = 64 * 1024
RUN_RECORDS: Final = 100
TIME_MS: Final = 1_790_000_000_000
TOPIC_ID: Final = UUID(int=7)
KEYS: Final = ObjectKeys(prefix="", cluster_id="x" * 22, coordinator_partition=0)

Topic = FindBatchesResponse.Topic


def make_answers(runs: int) -> Iterator[tuple[int, bytes]]:
    """Yield answers about some partition each: its index, and the response's bytes."""
    per_partition = runs // PARTITIONS
    at_once = min(per_partition, ANSWER_RUNS)
    for partition in range(PARTITIONS):
        for first in range(0, per_partition, at_once):
            batches = tuple(
                Topic.Partition.Batch(
                    object_key=KEYS.key(number),
                    byte_offset=partition * RUN_BYTES,
                    size=RUN_BYTES,
                    base_offset=number * RUN_RECORDS,
                    last_offset=(number + 1) * RUN_RECORDS - 1,
                    log_append_timestamp=TIME_MS,
                    batch_max_timestamp=TIME_MS,
                    message_timestamp_type=0,
                )
                for number in range(first, min(first + at_once, per_partition))
            )
            told = Topic.Partition(
                partition_index=partition,
                log_start_offset=0,
                high_watermark=per_partition * RUN_RECORDS,
                batches=batches,
            )
            topic = Topic(topic_id=TOPIC_ID, partitions=(told,))
            yield partition, encode_message(FindBatchesResponse(responses=(topic,)), 0)


class Answers:
    """Coordinates that were asked for before: answers as bytes, one for each call and partition."""

    def __init__(self, answers: Sequence[tuple[int, bytes]]) -> None:
        self._left: dict[int, list[bytes]] = {}
        for partition, body in answers:
            self._left.setdefault(partition, []).append(body)

    def find(self, wanted: Sequence[Wanted], **_: Any) -> list[Found]:
        """Return the next runs of each range."""
        found = []
        for one in wanted:
            (answer,) = read_answer(self._left[one.partition.partition].pop(0))
            some = found_in(one, answer)
            assert some is not None
            found.append(some)
        return found


class AnswersAsObjects(Answers):
    """The same, with an object for each run in between."""

    def find(self, wanted: Sequence[Wanted], **_: Any) -> list[Found]:
        """Return the next runs of each range."""
        found = []
        for one in wanted:
            body = self._left[one.partition.partition].pop(0)
            told = decode_message(FindBatchesResponse, body, 0).responses[0].partitions[0]
            rows = [
                FoundRun(
                    batch.object_key,
                    batch.byte_offset,
                    batch.size,
                    batch.base_offset,
                    batch.last_offset + 1,
                    False,
                    None,
                )
                for batch in told.batches
            ]
            found.append(
                Found(one.partition, one.first_offset, rows[-1].end_offset, Runs.of(rows), ())
            )
        return found


def measure(name: str, coordinates: Any, runs: int) -> None:
    """Print the CPU seconds that planning takes."""
    options = parse_options(
        {"kafka.bootstrap.servers": "b:9092", "subscribe": "t", "store": "/objects"}
    )
    end = runs // PARTITIONS * RUN_RECORDS
    wanted = [Wanted(TopicPartition("t", index), 0, end) for index in range(PARTITIONS)]
    begin = time.process_time()
    tasks = plan(coordinates, options, wanted)
    planned = time.process_time()
    size = sum(len(pickle.dumps(task)) for task in tasks)
    done = time.process_time()
    assert sum(len(piece.runs) for task in tasks for piece in task.pieces) == runs
    print(
        f"{name:10}{done - begin:8.2f} s: {planned - begin:.2f} to {len(tasks)} tasks, "
        f"{done - planned:.2f} to {size / 1e6:.0f} MB",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--tiny", action="store_true", help="a few of each, to see that it runs")
    runs = 2_000 if parser.parse_args().tiny else RUNS
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False
    ).stdout.strip()
    print(f"commit {commit or '?'}, Python {platform.python_version()}, {os.cpu_count()} cores")
    answers = list(make_answers(runs))
    print(f"{runs:,} runs, {sum(len(body) for _, body in answers) / 1e6:.0f} MB of answers")
    measure("columns", Answers(answers), runs)
    measure("objects", AnswersAsObjects(answers), runs)


if __name__ == "__main__":
    main()
