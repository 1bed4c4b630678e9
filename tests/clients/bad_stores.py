"""An object store that a test spoils while brokers use it: `diskless.storage.class.name` names it.

It is a directory, seen through the rules (`diskless.stores.faults`) of a file beside the directory.
Brokers look at the file before each operation, so a test writes it and the store is bad from then
on, in every process.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import Any, Final

from diskless.stores.directory import DirectoryStorage
from diskless.stores.faults import Fault, FaultRule, FaultyStore

CLASS_NAME: Final = "tests.clients.bad_stores.SpoiledDirectory"
DIRECTORY: Final = "esker.storage.directory.path"
DELAYED: Final = "delayed.txt"  # the ids of processes, beside the directory


def rules_file(directory: Path) -> Path:
    return directory.with_name("faults.json")


class SpoiledDirectory(FaultyStore):
    """A directory that obeys the file."""

    def __init__(self, directory: Path) -> None:
        super().__init__(DirectoryStorage(directory), Random(os.getpid()), self._delay)
        self._file = rules_file(directory)
        self._read = ""

    @classmethod
    def configured(cls, values: Mapping[str, Any]) -> SpoiledDirectory:
        return cls(Path(values[DIRECTORY]))

    async def _delay(self, seconds: float) -> None:
        with self._file.with_name(DELAYED).open("a") as delayed:
            delayed.write(f"{os.getpid()}\n")
        await asyncio.sleep(seconds)

    async def _before(self, operation: str, key: str) -> Fault | None:
        text = self._file.read_text() if self._file.exists() else ""
        if text != self._read:
            self._read = text
            self.rules = tuple(_rule(row) for row in json.loads(text or "[]"))
        return await super()._before(operation, key)


def delayed(directory: Path) -> set[int]:
    """The processes that a rule with a delay has held up."""
    file = directory.with_name(DELAYED)
    return set(map(int, file.read_text().split())) if file.exists() else set()


def _rule(row: Mapping[str, Any]) -> FaultRule:
    return FaultRule(
        fault=Fault(row["fault"]),
        operations=frozenset(row["operations"]),
        probability=row["probability"],
        delay_s=row["delay_s"],
    )


@contextmanager
def spoiled(
    directory: Path, fault: Fault, *operations: str, probability: float = 1.0, delay_s: float = 0.0
) -> Iterator[None]:
    """The store of this directory is bad in one way while the block lasts."""
    rule = FaultRule(
        fault=fault, operations=frozenset(operations), probability=probability, delay_s=delay_s
    )
    with spoiled_by(directory, rule):
        yield


@contextmanager
def spoiled_by(directory: Path, *rules: FaultRule) -> Iterator[None]:
    """The same in several ways; of those that strike, the first does."""
    rows = [
        {
            "fault": rule.fault.value, "operations": sorted(rule.operations),
            "probability": rule.probability, "delay_s": rule.delay_s,
        }
        for rule in rules
    ]  # fmt: skip
    file = rules_file(directory)
    partial = file.with_suffix(".partial")
    partial.write_text(json.dumps(rows))
    partial.rename(file)
    try:
        yield
    finally:
        file.unlink()
