"""`esker compaction describe`: what is left to merge and to compact, for people and programs."""

from __future__ import annotations

import json
from typing import Any
from uuid import UUID

import pytest
from typer.testing import CliRunner

from esker.cli import app
from esker.commands import compaction
from records.rpc.objects import DescribeDisklessTopicsRequest, DescribeDisklessTopicsResponse
from records.rpc.rewriting import DescribeCleaningRequest, DescribeCleaningResponse

TOPIC = UUID(int=7)
MIB = 1 << 20


class Cluster:
    """Two partitions of one topic: one with many small runs, one with rows that await deletion."""

    def ask(self, _cluster: object, _coordinator: int, request: Any, _timeout_ms: int) -> Any:
        if isinstance(request, DescribeDisklessTopicsRequest):
            return self._topics()
        assert isinstance(request, DescribeCleaningRequest), request
        cleaned = DescribeCleaningResponse.Topic
        rows = {0: (64, 8 * MIB), 1: (-1, -1)}
        return DescribeCleaningResponse(
            responses=tuple(
                cleaned(
                    topic_id=topic.topic_id,
                    partitions=(
                        cleaned.Partition(
                            partition_index=index,
                            log_start_offset=20,
                            high_watermark=100,
                            last_stable_offset=100,
                            cleaned_until=40,
                            run_count=rows[index][0],
                            stored_bytes=rows[index][1],
                        ),
                    ),
                )
                for topic in request.topics
                for index in topic.partitions
            )
        )

    def _topics(self) -> DescribeDisklessTopicsResponse:
        topic = DescribeDisklessTopicsResponse.Topic
        partitions = tuple(
            topic.Partition(
                partition_index=index,
                log_start_offset=20,
                high_watermark=100,
                run_count=1,
                stored_bytes=1,
            )
            for index in range(2)
        )
        return DescribeDisklessTopicsResponse(
            topics=(
                topic(
                    topic_id=TOPIC,
                    topic_name="orders",
                    object_bytes=1,
                    past_object_bytes=0,
                    dead_bytes=0,
                    partitions=partitions,
                ),
            )
        )


@pytest.fixture(autouse=True)
def _cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compaction, "ask_coordinator", Cluster().ask)
    monkeypatch.setattr(compaction, "coordinators", lambda *_: range(1))


def invoke(*words: str) -> Any:
    server = ("--bootstrap-server", "127.0.0.1:9")
    return CliRunner().invoke(app, ["compaction", "describe", *words, *server])


def test_compaction_describe_prints_gets_now_and_after_a_merge_and_the_dirty_ratio() -> None:
    result = invoke("orders", "--json")
    assert result.exit_code == 0, result.output
    first, second = json.loads(result.output)["partitions"]
    assert (first["topic"], first["partition"], first["runs"], first["mergedRuns"]) == (
        "orders", 0, 64, 2,
    )  # fmt: skip
    assert (first["getsPerMiB"], first["mergedGetsPerMiB"]) == (8.0, 0.25)
    assert first["dirtyRatio"] == 0.75
    assert (second["runs"], second["getsPerMiB"]) == (None, None)
    text = invoke().output.splitlines()
    assert "GetsPerMiB: 8.00  MergedGetsPerMiB: 0.25  DirtyRatio: 0.75" in text[0]
    assert "Runs: unknown" in text[1]


def test_compaction_describe_exits_with_status_1_for_an_unknown_topic() -> None:
    result = invoke("orders", "nowhere")
    assert result.exit_code == 1
    assert "no such diskless topic: nowhere" in result.output
