"""A random history of a coordinator whose objects are files and whose log jobs can read.

The life is `tests.coordinator.batch.test_model`'s: brokers that upload and commit, late, twice or
never,
leaders that change, topics that go, and after every step a look at the invariants. Here its store
is a directory, so a sweep can list it; and a sweep can be held up anywhere, to let life go on.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Coroutine, Iterable, Iterator, MutableSet, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from diskless.stores.interface import StorageError, StoredObject
from records.compression import Buffer
from records.frame import encode_record
from spark_jobs.orphans.listing import Naming
from spark_jobs.readers.log_position import LogPosition
from spark_jobs.readers.object_store import DirectoryStore
from tests.coordinator.batch.subjects import KEYS
from tests.coordinator.batch.test_model import Life

NAMING = Naming(KEYS.prefix, KEYS.cluster_id)


@dataclass(frozen=True)
class Values:
    """A span of records in memory."""

    records: Sequence[bytes]
    is_checkpoint: bool = False
    start_offset: int = 0
    end_offset: int = 0

    def values(self) -> Iterator[tuple[LogPosition, Buffer]]:
        for at, value in enumerate(self.records):
            yield LogPosition(self.is_checkpoint, self.start_offset + at, 1, 0), value


@dataclass
class MemoryLogs:
    """The logs of one coordinator (`spark_jobs.readers.logs.Logs`), with records in a list."""

    records: Sequence[bytes]
    cluster_id: str = KEYS.cluster_id
    before_reading: Callable[[], None] = lambda: None

    def names(self) -> list[str]:
        return ["__cluster_metadata-0", "__diskless-metadata-0"]

    def log(self, name: str) -> MemoryLogs:
        if name == "__cluster_metadata-0":
            return MemoryLogs(())  # a cluster that was never restored
        assert name == "__diskless-metadata-0"
        return self

    def end_offset(self) -> int:
        self.before_reading()
        return len(self.records)

    def spans(self, end_offset: int, **_: Any) -> list[Any]:
        return [Values(self.records[:end_offset], end_offset=end_offset)]


class FileSet(MutableSet[int]):
    """Ids of objects that are one-byte files, with the time of the world's clock."""

    def __init__(self, root: Path, now_ms: Callable[[], int]) -> None:
        root.mkdir()
        self.root = root
        self._now_ms = now_ms

    @classmethod
    def _from_iterable(cls, found: Iterable[int]) -> set[int]:  # type: ignore[override]
        return set(found)

    def _path(self, object_id: int) -> Path:
        return self.root / KEYS.key(object_id)

    def add(self, value: int) -> None:
        path = self._path(value)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"x")
        os.utime(path, ns=(0, self._now_ms() * 1_000_000))

    def discard(self, value: int) -> None:
        self._path(value).unlink(missing_ok=True)

    def __contains__(self, value: object) -> bool:
        assert isinstance(value, int)
        return self._path(value).exists()

    def __iter__(self) -> Iterator[int]:
        found = (path.relative_to(self.root) for path in self.root.rglob("*") if path.is_file())
        return iter([KEYS.object_id(str(path)) for path in found])

    def __len__(self) -> int:
        return len(list(iter(self)))


@dataclass
class HeldUpStore(DirectoryStore):
    """A store that lets the history go on before each part of a listing."""

    root: Path
    before_listing: Callable[[], None] = lambda: None
    fails_at: str | None = None  # a prefix

    def __post_init__(self) -> None:
        super().__init__(self.root)

    def list(self, prefix: str = "") -> Iterator[StoredObject]:
        self.before_listing()
        for found in super().list(prefix):
            yield found
            if prefix == self.fails_at:
                raise StorageError(prefix, "the disk is gone")


def now(waiting: Coroutine[Any, Any, Any]) -> Any:
    """Return the result of a coroutine that never waits, as those of an in-memory coordinator."""
    try:
        waiting.send(None)
    except StopIteration as done:
        return done.value
    raise AssertionError("it waits")


class RecordedLife(Life):
    """A random history whose records are kept, those from before a restart included."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.records: list[bytes] = []

    async def check(self) -> None:
        await super().check()
        self.gather()

    async def lead_anew(self) -> None:
        self.gather()
        await super().lead_anew()

    def gather(self) -> None:
        log = self.world.coordinator.log
        self.records += [encode_record(record) for _, record in log]
        log.clear()
