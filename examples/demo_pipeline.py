"""The demo's second half: what the pipeline does with a cluster's logs.

A topic leaves its retention to somebody outside. Spark reads a node's log and plans a sweep, which
is looked at and applied; the objects that it frees are *files*, which must be gone from the store
once their delay is over. Meanwhile a report is written. A consumer that was in the middle of what
went goes on, a second plan has nothing to do, and an audit of all logs and objects finds nothing.
"""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer, Producer, TopicPartition

from examples.demo_clients import PATIENCE_S, Lines
from examples.demo_cluster import ROOT, Cluster, DemoFailedError
from examples.demo_saying import claim, command, quiet

TOPIC = "clicks"
GROUP = "watchers"
OLD, NEW = 6, 2  # objects: as of yesterday, as of now
SHARE = 64  # each has this part of the lines
READ = 10  # what the consumer had read before the sweep
DAY_MS = 86_400_000
SETTINGS = {"esker.retention.enforcer": "external", "retention.ms": "3600000"}
REPORT = ROOT / ".cache" / "demo-report"


def sow(cluster: Cluster, lines: Lines) -> list[bytes]:
    """Create a topic, mostly of expired records; return the values that retention is to keep."""
    words = ["topics", "create", "--topic", TOPIC, "--partitions", "1"]
    for name, value in SETTINGS.items():
        words += ["--config", f"{name}={value}"]
    command("esker " + " ".join(words))
    cluster.run(*words)
    clicks = [line for some in lines.values() for line in some]
    each = len(clicks) // SHARE
    parts = [clicks[each * number :][:each] for number in range(OLD + NEW)]
    producer = Producer({"bootstrap.servers": cluster.bootstrap, "compression.type": "zstd"})
    now_ms = time.time_ns() // 1_000_000
    for number, part in enumerate(parts):
        for click in part:
            at_ms = now_ms - DAY_MS if number < OLD else now_ms
            producer.produce(TOPIC, click, partition=0, timestamp=at_ms)
        if producer.flush(PATIENCE_S):
            raise DemoFailedError(f"{len(part)} clicks are written within {PATIENCE_S} s")
    kept = [click for part in parts[OLD:] for click in part]
    claim(
        f"{each * (OLD + NEW):,} clicks written, {each * OLD:,} of them as of yesterday; "
        f"a consumer has read {READ}",
        holds=len(consumed(cluster, READ)) == READ,
    )
    return kept


def consumed(cluster: Cluster, count: int) -> list[bytes]:
    """Consume and commit up to `count` next values of the consumer group; return the values.

    Raises:  DemoFailedError.
    """
    consumer = Consumer(
        {
            "bootstrap.servers": cluster.bootstrap,
            "group.id": GROUP,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "log_level": 3,  # it would tell of its new place
        }
    )
    found: list[bytes] = []
    last = -1
    try:
        consumer.subscribe([TOPIC])
        deadline = time.monotonic() + PATIENCE_S
        while len(found) < count and time.monotonic() < deadline:
            for message in consumer.consume(count - len(found), timeout=0.5):
                if (error := message.error()) is not None and not error.retriable():
                    raise DemoFailedError(f"a consumer goes on without an error: {error}")
                if error is None:
                    found.append(message.value())
                    last = message.offset()
        if found:
            consumer.commit(offsets=[TopicPartition(TOPIC, 0, last + 1)], asynchronous=False)
    finally:
        consumer.close()
    return found


def plan(cluster: Cluster, name: str, *, engine: str) -> dict[str, Any]:
    """Plan the cluster's retention with this engine, and return the plan file's content."""
    path = str(cluster.directory.parent / name)
    said = cluster.local(
        "spark", "retention", "plan", "--engine", engine, "--log-dir", "esker-data/quorum-1",
        "--out", path, "--bootstrap-controller", cluster.controllers,
        *(("--spark-log", f"{path}.log") if engine == "spark" else ()),
    )  # fmt: skip
    command(
        f"esker spark retention plan --engine {engine} --log-dir esker-data/quorum-1 --out {name}"
    )
    wanted = ("Topic ", TOPIC, "Coordinator", "Nothing")
    quiet("\n".join(line for line in said.splitlines() if line.startswith(wanted)))
    found: dict[str, Any] = json.loads(cluster.local("spark", "retention", "show", path, "--json"))
    return found


def sweep(cluster: Cluster, kept: list[bytes]) -> None:
    """Plan and apply retention, then check that the expired objects and records are gone."""
    before = set(cluster.objects())
    planned = plan(cluster, "plan.jsonl", engine="spark")
    freed = sum(one["objects_freed"] for one in planned["effects"].values())
    claim(
        f"Spark read the log: {len(planned['rows'])} partition has records to remove, and "
        f"{freed} objects become free",
        holds=len(planned["rows"]) == 1 and freed >= OLD,
    )
    words = ("spark", "retention", "apply")
    command("esker " + " ".join(words) + " plan.jsonl")
    path = str(cluster.directory.parent / "plan.jsonl")
    quiet(cluster.local(*words, path, "--bootstrap-controller", cluster.controllers))
    applied = time.monotonic()
    report(cluster)
    while len(gone := before - set(cluster.objects())) < freed:
        if time.monotonic() > applied + 2 * PATIENCE_S:
            break
        time.sleep(0.1)
    claim(
        f"{len(gone)} object files are gone from the store, {time.monotonic() - applied:.1f} s "
        "after that",
        holds=len(gone) >= freed > 0,
    )
    found = consumed(cluster, len(kept))
    claim(
        f"the consumer, in the middle of what went, goes on with the {len(kept):,} clicks of today",
        holds=found == kept,
    )
    again = plan(cluster, "next.jsonl", engine="local")
    claim("a second plan is empty", holds=again["rows"] == [])
    audit(cluster)


def audit(cluster: Cluster) -> None:
    """Audit the logs of all quorum nodes and the bytes of all objects, and claim no finding."""
    words = ["spark", "audit"]
    for number in (1, 2, 3):
        words += ["--log-dir", f"esker-data/quorum-{number}"]
    words += ["--store", "esker-data/objects", "--bytes", "full"]
    command("esker " + " ".join(words))
    said = cluster.local(*words, "--bootstrap-controller", cluster.controllers).splitlines()
    quiet("\n".join(line for line in said if line.startswith(("Log ", "__", "Clean"))))
    claim("the audit is clean", holds=any(line.startswith("Clean") for line in said))


def report(cluster: Cluster) -> None:
    """Write the cluster's HTML report to a directory that remains after the demo."""
    words = ("spark", "report", "--log-dir", "esker-data/quorum-1", "--out", str(REPORT))
    said = cluster.local(*words, "--bootstrap-controller", cluster.controllers)
    shown = REPORT.relative_to(ROOT) / "report.html"
    command("esker spark report --log-dir esker-data/quorum-1 --out .cache/demo-report")
    quiet(said.splitlines()[0])
    claim(f"the report is there to open: {shown}", holds=is_page(ROOT / shown))


def is_page(path: Path) -> bool:
    return path.is_file() and "</html>" in path.read_text()[-100:]
