"""Logs for tests of the archive, small and odd, and stores that kill the job during a write."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from uuid import UUID

import pytest

from diskless.stores.interface import StoredObject
from raft.segments.files import RealFileSystem
from raft.segments.log import Log, LogConfig
from records.batch import CONTROL, TRANSACTIONAL
from records.batch_writer import build_batch, build_value_batch
from records.codegen import uvarint
from records.compression import Compression
from records.control import LeaderChangeMessage
from records.frame import encode_control_record, encode_record
from records.metadata import FeatureLevelRecord, NoOpRecord, TopicRecord
from records.types import Epoch, Offset, OffsetAndEpoch
from snapshot.writer import CheckpointWriter
from spark_jobs.archive.engines import LocalArchiveEngine
from spark_jobs.archive.job import LogPass, archive, open_archive
from spark_jobs.readers.archived_logs import ArchivedLogs
from spark_jobs.readers.log_files import LogFiles
from spark_jobs.readers.logs import CommittedFiles
from spark_jobs.readers.logs import Log as CommittedLog
from spark_jobs.readers.object_store import ObjectStore, open_store

LOG = "__cluster_metadata-0"
CLUSTER_ID = "aCLUSTERofTESTSxxxxxxx"

UNKNOWN_TYPE = b"\x01" + uvarint(9_999) + b"\x00" + b"some bytes of tomorrow"
UNKNOWN_VERSION = encode_record(TopicRecord(name="later", topic_id=UUID(int=9)))[:2] + b"\x7fbody"
MALFORMED = encode_record(TopicRecord(name="broken", topic_id=UUID(int=9)))[:-3]
OVERLONG = b"\x01\x94\x00\x00" + encode_record(NoOpRecord())[3:]  # type 20, spelt in two bytes
NO_FRAME = b"\xff\xff\xff\xff\xff\xff"


@dataclass
class FileLogs:
    """One log below a directory, committed as far as its test says."""

    directory: Path
    end_offset: int = 0
    cluster_id: str = CLUSTER_ID
    _names: Sequence[str] = field(default=(LOG,))

    def names(self) -> list[str]:
        return list(self._names)

    def log(self, name: str) -> CommittedFiles:
        return CommittedFiles(LogFiles(self.directory / name), lambda: self.end_offset)

    def append(self, batches: Sequence[bytes | bytearray], *, roll: bool = False) -> None:
        """Append and commit batches."""
        directory = self.directory / LOG
        files, config = RealFileSystem(), LogConfig(index_interval_bytes=200)
        if directory.exists():
            log = Log.open(files, directory, config)
        else:
            directory.mkdir(parents=True)
            log = Log.create(files, directory, config)
        try:
            if roll:
                log._roll()
            for batch in batches:
                log.append(batch)
            log.flush()
            self.end_offset = log.log_end_offset
        finally:
            log.close()

    def checkpoint(self, end_offset: int, epoch: int, names: Sequence[str]) -> OffsetAndEpoch:
        """Write a checkpoint with topics of these names."""
        snapshot_id = OffsetAndEpoch(Offset(end_offset), Epoch(epoch))
        with CheckpointWriter.create(
            RealFileSystem(), self.directory / LOG, snapshot_id, last_timestamp=1
        ) as writer:
            for number, name in enumerate(names):
                writer.append(TopicRecord(name=name, topic_id=UUID(int=number + 1)))
            writer.freeze()
        return snapshot_id

    def cut_to(self, base_offset: int) -> None:
        """Delete the segments before an offset."""
        for path in (self.directory / LOG).iterdir():
            if path.stem.isdecimal() and int(path.stem) < base_offset:
                path.unlink()

    def raw(self) -> bytes:
        """Return all segments' bytes."""
        paths = sorted((self.directory / LOG).glob("*.log"))
        return b"".join(path.read_bytes() for path in paths)


def odd_batches(
    seed: int, count: int, *, first_offset: int = 0, epoch: int = 1, framed: bool = False
) -> list[bytes]:
    """Generate batches of every kind that a log could hold.

    Args:    framed: every record says at least of which type it is.
    """
    dice = random.Random(seed)
    offset, batches = first_offset, []
    for number in range(count):
        if number == 0:
            batch, size = leader_change(offset, epoch), 1
        else:
            size = dice.randint(1, 6)
            values = [_value(dice, framed=framed) for _ in range(size)]
            batch = _batch(dice, values, offset, epoch, 1_700_000_000_000 + number)
        batches.append(bytes(batch))
        offset += size
    return batches


def leader_change(offset: int, epoch: int) -> bytearray:
    """Return the control batch that begins an epoch."""
    record = LeaderChangeMessage(leader_id=1, voters=(), granting_voters=())
    key, value = encode_control_record(record)
    return build_batch(
        [(key, value, 1_700_000_000_000, ())],
        base_offset=offset,
        leader_epoch=epoch,
        attributes=CONTROL,
    )


def _value(dice: random.Random, *, framed: bool) -> bytes:
    odd = (UNKNOWN_TYPE, UNKNOWN_VERSION, MALFORMED, OVERLONG, *(() if framed else (NO_FRAME,)))
    if dice.random() < 0.2:
        return dice.choice(odd)
    name = "".join(dice.choices("abcdef", k=dice.randint(1, 20)))
    if dice.random() < 0.5:
        return encode_record(TopicRecord(name=name, topic_id=UUID(int=dice.getrandbits(128))))
    return encode_record(FeatureLevelRecord(name=name, feature_level=dice.randrange(100)))


def _batch(
    dice: random.Random, values: list[bytes], offset: int, epoch: int, time_ms: int
) -> bytearray:
    if dice.random() < 0.7:
        return build_value_batch(values, base_offset=offset, leader_epoch=epoch, timestamp=time_ms)
    keys = (None, b"", b"a key")
    headers = ((), (("name", b"content"), ("", None)))
    return build_batch(
        [
            (dice.choice(keys), value, time_ms + i * 7, dice.choice(headers))
            for i, value in enumerate(values)
        ],
        base_offset=offset,
        leader_epoch=epoch,
        attributes=dice.choice((0, TRANSACTIONAL)),
        compression=dice.choice((Compression.NONE, Compression.ZSTD, Compression.GZIP)),
        producer_id=dice.choice((-1, 1 << 40)),
        producer_epoch=dice.choice((-1, 3)),
        base_sequence=dice.choice((-1, 77)),
    )


class KilledError(BaseException):
    """Stands for a killed process: no code catches it."""


class DyingStore:
    """A store that kills its user before or after the n-th write."""

    def __init__(self, store: ObjectStore, writes: int, *, after: bool) -> None:
        self._store = store
        self._left = writes
        self._after = after
        self.uri = store.uri
        self.head = store.head
        self.read = store.read
        self.close = store.close

    def list(self, prefix: str = "") -> Iterator[StoredObject]:
        return self._store.list(prefix)

    def write(self, key: str, data: bytes) -> None:
        self._count_down()
        self._store.write(key, data)
        self._die()

    def write_new(self, key: str, data: bytes) -> bool:
        self._count_down()
        done = self._store.write_new(key, data)
        self._die()
        return done

    def _count_down(self) -> None:
        self._left -= 1
        if self._left < 0 and not self._after:
            raise KilledError

    def _die(self) -> None:
        if self._left < 0:
            raise KilledError


# --- what the tests of an archive begin with ------------------------------------------------------


RANGE_BYTES = 1_500  # several batches


@pytest.fixture
def logs(tmp_path: Path) -> FileLogs:
    """Return a log of two segments with batches of every kind."""
    logs = FileLogs(tmp_path / "node")
    batches = odd_batches(seed=5, count=60)
    logs.append(batches[:35])
    logs.append(batches[35:], roll=True)
    return logs


@pytest.fixture
def store(tmp_path: Path) -> ObjectStore:
    (tmp_path / "archive").mkdir()
    return open_store(str(tmp_path / "archive"))


def one_pass(
    logs: FileLogs, store: ObjectStore, tables: str | None = None, range_bytes: int = RANGE_BYTES
) -> LogPass:
    about = open_archive(store, logs.cluster_id, tables)
    (done,) = archive(
        logs, store, about=about, engine=LocalArchiveEngine(), range_bytes=range_bytes
    )
    return done


def values(
    log: CommittedLog, end_offset: int, start_offset: int | None = None
) -> list[tuple[object, bytes]]:
    spans = log.spans(end_offset, start_offset=start_offset)
    return [(place, bytes(value)) for span in spans for place, value in span.values()]


def raw(store: ObjectStore) -> bytes:
    log = ArchivedLogs(store).log(LOG)
    spans = log.spans(log.end_offset())
    return b"".join(bytes(batch.view) for span in spans for batch in span.batches())
