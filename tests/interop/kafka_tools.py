"""Invocations of Apache Kafka's command line tools, as a table, and what they answered.

All of them run one after the other in one Java process, on one cluster of one broker: first those
that fill it, then those that look at it or change it, at last those that delete. `answers` returns
exit code and output of each, without what differs from run to run: addresses, ids, times.

`tests/data/kafka_tools.txt` is the table, and `tests/data/kafka_tools.json` has the answers of
Apache Kafka 4.3.1. Where Esker answers otherwise, its own answer and the reason stand beside them.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any, Final, NamedTuple

from tests.interop.kafka_run import Kafka
from tests.waiting import DEADLINE_S

RUN_TOOLS: Final = Path(__file__).with_name("RunTools.java")
DATA: Final = Path(__file__).parents[1] / "data"
RECORDED: Final = DATA / "kafka_tools.json"

CLASSES: Final = {
    "acls": "org.apache.kafka.tools.AclCommand",
    "broker-api-versions": "org.apache.kafka.tools.BrokerApiVersionsCommand",
    "client-metrics": "org.apache.kafka.tools.ClientMetricsCommand",
    "cluster": "org.apache.kafka.tools.ClusterTool",
    "configs": "kafka.admin.ConfigCommand",
    "console-consumer": "org.apache.kafka.tools.consumer.ConsoleConsumer",
    "console-producer": "org.apache.kafka.tools.ConsoleProducer",
    "consumer-groups": "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand",
    "consumer-perf-test": "org.apache.kafka.tools.ConsumerPerformance",
    "delegation-tokens": "org.apache.kafka.tools.DelegationTokenCommand",
    "delete-records": "org.apache.kafka.tools.DeleteRecordsCommand",
    "e2e-latency": "org.apache.kafka.tools.EndToEndLatency",
    "features": "org.apache.kafka.tools.FeatureCommand",
    "get-offsets": "org.apache.kafka.tools.GetOffsetShell",
    "groups": "org.apache.kafka.tools.GroupsCommand",
    "leader-election": "org.apache.kafka.tools.LeaderElectionCommand",
    "log-dirs": "org.apache.kafka.tools.LogDirsCommand",
    "metadata-quorum": "org.apache.kafka.tools.MetadataQuorumCommand",
    "producer-perf-test": "org.apache.kafka.tools.ProducerPerformance",
    "reassign-partitions": "org.apache.kafka.tools.reassign.ReassignPartitionsCommand",
    "replica-verification": "org.apache.kafka.tools.ReplicaVerificationTool",
    "share-groups": "org.apache.kafka.tools.consumer.group.ShareGroupCommand",
    "streams-application-reset": "org.apache.kafka.tools.StreamsResetter",
    "streams-groups": "org.apache.kafka.tools.streams.StreamsGroupCommand",
    "topics": "org.apache.kafka.tools.TopicCommand",
    "transactions": "org.apache.kafka.tools.TransactionsCommand",
    "verifiable-consumer": "org.apache.kafka.tools.VerifiableConsumer",
    "verifiable-producer": "org.apache.kafka.tools.VerifiableProducer",
}
"""Main classes by the names of the scripts."""

INVOCATIONS: Final = (DATA / "kafka_tools.txt").read_text().splitlines()
"""Script and arguments. `<` names a file for standard input. At the end: `~`, where the order of
lines differs from run to run; `#`, where numbers do, and so how many lines of a kind there are."""

LINES: Final = "".join(f"key-{number % 5}:line {number}\n" for number in range(30))

_VOLATILE: Final = (
    (r"\b\d\d:\d\d:\d\d\.\d{3} (?=ERROR|WARN)", ""),
    (r"(?<=\b127\.0\.0\.1[: ])\s*\d+", "PORT"),
    (r"\btest-group-\d+", "test-group"),
    (r"\bconsole-consumer-\d+\b", "console-consumer"),
    (r"(?<![\w-])[\w-]{22}(?![\w-])", "ID"),
    (r"\b1[5-9]\d{11}\b", "TIME"),
    (r"\b20\d\d-\d\d-\d\d[T ][\d:.,]+\w*", "TIME"),
    (r'"/[^"]*/log"', '"LOGS"'),
    (r"\bat [\w.$]+(?:/[\w.$]+)?\([\w.:]+( [\w]+)?\)", ""),
    (r"\.\.\. \d+ more", ""),
)
_OTHERS: Final = (
    r"\Anull\Z|RunTools\$Ended"  # of the exception that ends a tool here
    r"|\btopic-[0-9a-f]{8}-0\b"  # a topic of the fixture
    r"|^(?!root\b)[\w.$]+=(?:ERROR|WARN|INFO|DEBUG) sensitive"  # loggers
    r'|"name": "producer_send_success"'  # may still arrive when the next tool runs
)


class Answer(NamedTuple):
    """A tool's exit code, and its output without the words that differ from run to run."""

    code: int
    lines: list[str]


def answers(kafka: Kafka, bootstrap: str, broker: int, home: Path) -> list[Answer]:
    """Run all invocations of the table on a cluster, in one Java process; return each answer.

    Args:  broker: the id of the cluster's only broker.
           home: an empty directory for their files.
    """
    names = {"at": f"--bootstrap-server {bootstrap}", "broker": str(broker)}
    moves = {"topic": "given", "partition": 0}
    files = {
        "lines": LINES,
        "empty": "",
        "deleted": json.dumps(_positions("late", 12)),
        "beyond": json.dumps(_positions("late", 99)),
        "topics": json.dumps({"topics": [{"topic": "given"}], "version": 1}),
        "moves": json.dumps({"partitions": [{**moves, "replicas": [broker]}], "version": 1}),
        "away": json.dumps({"partitions": [{**moves, "replicas": [77]}], "version": 1}),
    }
    for name, text in files.items():
        (home / name).write_text(text)
        names[name] = str(home / name)
    lines = []
    for invocation in INVOCATIONS:
        script, *words = invocation.rstrip(" #~").split()
        if "{at}" not in words:
            words.insert(0, "{at}")
        whole = " ".join(words).format(**names)
        lines.append("\t".join((CLASSES[script], *whole.split())) + "\n")
    said = kafka.run(str(RUN_TOOLS), stdin="".join(lines), timeout_s=DEADLINE_S).out
    outputs = re.split(r"^### (?=\d+$)", said, flags=re.MULTILINE)[1:]
    assert len(outputs) == len(INVOCATIONS), said[-2_000:]
    found = []
    for invocation, output in zip(INVOCATIONS, outputs, strict=True):
        code, _, written = output.partition("\n")
        written = re.sub(rf"\b{broker}\b", "1", written).replace(str(home), "HOME")
        found.append(Answer(int(code), _steady(written, invocation[-1])))
    return found


def _positions(topic: str, offset: int) -> dict[str, object]:
    return {"partitions": [{"topic": topic, "partition": 0, "offset": offset}], "version": 1}


def _steady(text: str, flag: str) -> list[str]:
    """Return the lines of an output without what differs from run to run."""
    text = "\n".join(_sort_keys(line) for line in text.splitlines())
    for pattern, instead in _VOLATILE:
        text = re.sub(pattern, instead, text)
    lines = [" ".join(line.split()) for line in text.splitlines()]
    lines = [line for line in lines if line and not re.search(_OTHERS, line)]
    if flag == "#":
        lines = sorted({re.sub(r"-?\d+(?:[.,]\d+)*(?:E-?\d+)?", "N", line) for line in lines})
    return sorted(lines) if flag == "~" else lines


def _sort_keys(line: str) -> str:
    """Return a line of JSON with its keys in order; Java prints some in an order of the moment."""
    try:
        return json.dumps(json.loads(line), sort_keys=True) if line.startswith("{") else line
    except ValueError:
        return line


def recorded() -> dict[str, dict[str, Any]]:
    """Return the recorded answers by invocation: `kafka`, and `esker` and `why` if it differs."""
    rows: dict[str, dict[str, Any]] = json.loads(RECORDED.read_text())
    return rows


def expected(rows: dict[str, dict[str, Any]], system: str) -> list[Answer]:
    """Return the recorded answers of `kafka` or `esker`."""
    found = [rows[invocation].get(system, rows[invocation]["kafka"]) for invocation in INVOCATIONS]
    return [Answer(answer["code"], answer["lines"]) for answer in found]


def rewrite(found: list[Answer], system: str) -> None:
    """Record the answers of `kafka` or `esker`; reasons stay, and new ones are to be written."""
    rows = recorded() if RECORDED.exists() else {}
    new: dict[str, dict[str, Any]] = {}
    for invocation, answer in zip(INVOCATIONS, found, strict=True):
        row = rows.get(invocation, {}) | {system: answer._asdict()}
        if row.get("esker") == row["kafka"]:
            row = {"kafka": row["kafka"]}
        elif "esker" in row:
            row.setdefault("why", "")
        new[invocation] = row
    RECORDED.write_text(json.dumps(new, indent=1) + "\n")
