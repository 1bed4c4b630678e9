"""Files that Kafka wrote, kept where tests of every machine find them.

`dynamic-voters/` and `static-voters/` are the directories of two nodes, with only what belongs to
the metadata log; `dump.json` is what Kafka's own DumpLogSegments says is in them.
"""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from tests.interop.dump_output import DumpedBatch, DumpedRecord, dump
from tests.interop.kafka_run import Kafka

DIRECTORY: Final = Path(__file__).parents[1] / "data" / "kafka"
DYNAMIC: Final = "dynamic-voters"
STATIC: Final = "static-voters"
METADATA: Final = "__cluster_metadata-0"
MAX_BYTES: Final = 300_000
_DUMP: Final = "dump.json"


@dataclass(frozen=True, slots=True)
class Recording:
    """A directory that `keep` and `describe` filled."""

    directory: Path

    def logs(self) -> list[Path]:
        """Every log segment, in the order of base offsets within a node."""
        return sorted(self.directory.glob(f"*/{METADATA}/*.log"))

    def checkpoints(self) -> list[Path]:
        """Every checkpoint, and the bootstrap checkpoints, which have the same form."""
        return sorted(self.directory.glob("**/*.checkpoint"))

    def checkpoints_of(self, node: str) -> list[Path]:
        """The checkpoints of one node's metadata log, by end offset."""
        return sorted((self.directory / node / METADATA).glob("*.checkpoint"))

    def dumped(self) -> dict[Path, list[DumpedBatch]]:
        """What DumpLogSegments said of each file."""
        said: dict[str, Any] = json.loads((self.directory / _DUMP).read_text())
        return {
            self.directory / name: [
                DumpedBatch(batch["fields"], [DumpedRecord(**r) for r in batch["records"]])
                for batch in batches
            ]
            for name, batches in said.items()
        }


def keep(node: Path, target: Path) -> None:
    """Copy what belongs to the metadata log out of a stopped node's directory."""
    (target / METADATA).mkdir(parents=True)
    wanted = [node / "meta.properties", node / "bootstrap.checkpoint"]
    wanted += sorted((node / METADATA).iterdir())
    for file in wanted:
        if file.exists() and file.name != ".lock":
            copy = target / file.relative_to(node)
            shutil.copyfile(file, copy)


def describe(kafka: Kafka, directory: Path) -> None:
    """Write down what DumpLogSegments says of the logs and checkpoints below `directory`."""
    recording = Recording(directory)
    said = {
        str(file.relative_to(directory)): [
            {
                "fields": batch.fields,
                "records": [
                    {"offset": r.offset, "kind": r.kind, "version": r.version, "data": r.data}
                    for r in batch.records
                ],
            }
            for batch in batches
        ]
        for file, batches in dump(kafka, recording.logs() + recording.checkpoints()).items()
    }
    (directory / _DUMP).write_text(json.dumps(said, indent=None, separators=(",", ":")))


def replace(fresh: Path) -> None:
    """Put a fresh recording in the place of the one in tests/data/kafka/; its README stays."""
    size = sum(file.stat().st_size for file in fresh.rglob("*") if file.is_file())
    assert size < MAX_BYTES, f"a recording of {size} bytes is too large for a repository"
    for name in (DYNAMIC, STATIC):
        shutil.rmtree(DIRECTORY / name, ignore_errors=True)
        shutil.copytree(fresh / name, DIRECTORY / name)
    shutil.copyfile(fresh / _DUMP, DIRECTORY / _DUMP)
