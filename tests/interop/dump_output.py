"""What DumpLogSegments prints, taken apart.

A file's part starts with `Dumping <path>`. A batch is a line of `name: value` pairs. A record is a
line that starts with `|`; at its end a metadata record is JSON after `payload: `, a control record
its name and then JSON.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.interop.kafka_run import DUMP, Kafka


@dataclass(frozen=True, slots=True)
class DumpedRecord:
    """One record as Kafka's tool understood it. `kind` is as printed: `TOPIC_RECORD`."""

    offset: int
    kind: str
    version: int
    data: dict[str, Any]


@dataclass(frozen=True, slots=True)
class DumpedBatch:
    """One batch: its header's fields as printed, and its records."""

    fields: dict[str, str]
    records: list[DumpedRecord]


def dump(kafka: Kafka, files: Iterable[Path]) -> dict[Path, list[DumpedBatch]]:
    """DumpLogSegments' opinion of segments and checkpoints, in one call.

    Raises:  ToolFailedError; AssertionError if the tool prints what we do not know.
    """
    names = list(files)
    joined = ",".join(str(name) for name in names)
    said = kafka.run(DUMP, "--cluster-metadata-decoder", "--files", joined)
    complaints = _STARTS_ABOVE_0.sub("", said.err)
    assert not complaints, complaints
    found = parse(said.out)
    assert list(found) == names, f"asked for {names}, dumped {list(found)}"
    return found


def parse(text: str) -> dict[Path, list[DumpedBatch]]:
    """The tool's output by file."""
    files: dict[Path, list[DumpedBatch]] = {}
    batches: list[DumpedBatch] = []
    for line in text.rstrip("\n").split("\n"):
        if line.startswith("Dumping "):
            batches = files[Path(line.removeprefix("Dumping "))] = []
        elif line.startswith("baseOffset: "):
            batches.append(DumpedBatch(dict(re.findall(r"(\w+): (\S+)", line)), []))
        elif line.startswith("| offset: "):
            batches[-1].records.append(_parse_record(line))
        else:
            known = line.startswith(_HEADINGS)
            assert known, f"a line of another kind: {line!r}"
    return files


# The tool says so of every segment but the first.
_STARTS_ABOVE_0 = re.compile(r"Non-consecutive offsets in \S+\n  -1 is followed by \d+\n")

_HEADINGS = ("Snapshot end offset: ", "Log starting offset: ", "KRaft bootstrap snapshot")
_RECORD = re.compile(r"\| offset: (\d+) .*? headerKeys: \[\] (?:payload: )?(\w+:? )?(\{.*\})$")


def _parse_record(line: str) -> DumpedRecord:
    match = _RECORD.match(line)
    assert match, f"a record of another form: {line!r}"
    offset, control, content = match.groups()
    data = json.loads(content)
    if control:
        return DumpedRecord(int(offset), control.rstrip(": "), data["version"], data)
    return DumpedRecord(int(offset), data["type"], data["version"], data["data"])
