"""Kafka Connect in distributed mode: its three topics are compacted, and hold all that it knows."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.clients.cluster import EskerCluster
from tests.clients.world import World, values
from tests.ecosystem.connect import Worker
from tests.interop.kafka_run import Kafka
from tests.waiting import wait_until

pytestmark = pytest.mark.java

LINES = 100


def lines(first: int) -> list[str]:
    return [f"line {number}" for number in range(first, first + LINES)]


def lines_in(path: Path) -> list[str]:
    """The lines of a file, or none before it exists."""
    return path.read_text().splitlines() if path.exists() else []


def append(path: Path, more: list[str]) -> None:
    with path.open("a") as file:
        file.writelines(f"{line}\n" for line in more)


def test_a_kafka_connect_task_resumes_at_its_offset_on_another_worker_after_a_kill(
    programs: Kafka, cluster: EskerCluster, world: World, tmp_path: Path
) -> None:
    """A lost or doubled line would show an offset that Connect read wrongly, or not to its end."""
    topic, group = world.topic(), world.name("connect")
    source, sink = tmp_path / "in.txt", tmp_path / "out.txt"
    append(source, lines(0))

    with Worker(programs, tmp_path, "first", cluster.bootstrap, group) as first:
        package = "org.apache.kafka.connect.file.FileStream"
        first.configure(
            "source",
            {"connector.class": f"{package}SourceConnector", "file": str(source), "topic": topic},
        )
        first.configure(
            "sink",
            {"connector.class": f"{package}SinkConnector", "file": str(sink), "topics": topic},
        )
        wait_until(lambda: lines_in(sink) == lines(0), "the sink has written all lines")
        size = source.stat().st_size
        wait_until(
            lambda: first.source_offsets("source") == [{"position": size}],
            "the source's offset is committed",
            state=lambda: first.source_offsets("source"),
        )
        first.kill()

        append(source, lines(LINES))
        with Worker(programs, tmp_path, "second", cluster.bootstrap, group) as second:
            wait_until(lambda: second.has_running_task("source"), "the source runs again")
            stored = lines(0) + lines(LINES)
            read = world.other.read(topic, len(stored))
            assert values(read) == [line.encode() for line in stored]
