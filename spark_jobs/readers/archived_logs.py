"""The logs of a cluster, read from its archive instead of a running cluster.

    logs = ArchivedLogs(open_store("s3://bucket/archive"))
    log = logs.log("__diskless-metadata-0")
    for span in log.spans(log.end_offset()):
        for position, value in span.values(): ...

Only envelopes are read, and only as their manifests say: a file is held in memory whole, and its
checksum is verified before any of it is used. A file without a manifest is no part of the
archive.

The trap is that an archive may have more than one beginning. Where offsets were lost a checkpoint
stands in, and everything after continues from it. So reading from the beginning means the last
beginning before the requested end, and an end within a lost range is an error.

Source: docs/design/pipeline.md#the-archive; `spark_jobs.readers.archive_layout`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

from diskless.stores.interface import StorageError
from records.batch import Batch
from records.compression import Buffer
from spark_jobs.readers.archive_layout import (
    ABOUT_KEY,
    MANIFESTS,
    About,
    ArchiveError,
    DamagedArchiveError,
    Manifest,
    Range,
    Written,
    chain,
    parse_manifest_key,
)
from spark_jobs.readers.avro_files import AvroFileError, read_avro
from spark_jobs.readers.envelope import EnvelopeError, Row, batches_of, value_of
from spark_jobs.readers.log_files import SPLIT_BYTES, LostRangeError
from spark_jobs.readers.log_position import LogPosition
from spark_jobs.readers.logs import CLUSTER_METADATA, LogsError, checked_cluster_id, names_in_order
from spark_jobs.readers.object_store import MAX_READ_BYTES, ObjectStore, describe_failure

MAX_DOCUMENT_BYTES: Final = 64 * 1024 * 1024
"""Largest plan or manifest: a plan has 150 bytes for each 16 MiB of log."""

COMPRESSION: Final = 4
"""Bytes of log that a byte of envelope stands for, about: for sharing out work."""


def read_about(store: ObjectStore) -> About | None:
    """Read the description of the archive in a store; return None if the store has no archive.

    Raises:  ArchiveError.
    """
    data = read_object(store, ABOUT_KEY)
    return None if data is None else About.from_json(data)


def read_object(store: ObjectStore, key: str, max_bytes: int = MAX_DOCUMENT_BYTES) -> bytes | None:
    """Read a whole object, or return None if the object does not exist.

    Raises:  DamagedArchiveError; ArchiveError.
    """
    try:
        found = store.head(key)
        if found is None:
            return None
        if found.size_bytes > max_bytes:
            raise DamagedArchiveError(
                f"{key} has {found.size_bytes} bytes, at most {max_bytes} were written"
            )
        parts = [
            store.read(key, start, min(MAX_READ_BYTES, found.size_bytes - start))
            for start in range(0, found.size_bytes, MAX_READ_BYTES)
        ]
    except StorageError as error:
        raise ArchiveError(describe_failure(store.uri, error)) from None
    return b"".join(parts)


def read_manifest(store: ObjectStore, of: Range) -> Manifest:
    """Read and decode the manifest of a range.

    Raises:  DamagedArchiveError; ArchiveError.
    """
    data = read_object(store, of.manifest_key)
    if data is None:
        raise DamagedArchiveError(f"{of.manifest_key} is gone")
    found = Manifest.from_json(data, of.manifest_key)
    if found.range != of:
        raise DamagedArchiveError(f"{of.manifest_key} is of another range: {found.range}")
    return found


def read_written(store: ObjectStore, file: Written) -> bytes:
    """Read a file of an archive range and verify its size and checksum.

    Raises:  DamagedArchiveError.
    """
    data = read_object(store, file.key, file.bytes)
    if data is None:
        raise DamagedArchiveError(f"{file.key} is gone")
    if hashlib.sha256(data).hexdigest() != file.sha256:
        raise DamagedArchiveError(f"{file.key} is not what was written: its SHA-256 differs")
    return data


def read_rows(store: ObjectStore, of: Range) -> Iterator[Row]:
    """Yield the records of a range from its envelope.

    Raises:  DamagedArchiveError; ArchiveError.
    """
    file = read_manifest(store, of).envelope
    try:
        yield from read_avro(read_written(store, file))
    except AvroFileError as error:
        raise DamagedArchiveError(f"{file.key}: {error}") from None


def list_ranges(store: ObjectStore) -> dict[str, list[Range]]:
    """List all archived ranges of each log, including ranges that follow a gap.

    Raises:  ArchiveError.
    """
    found: dict[str, list[Range]] = {}
    try:
        for listed in store.list(MANIFESTS):
            parsed = parse_manifest_key(listed.key)
            if parsed is not None:
                found.setdefault(parsed.log, []).append(parsed)
    except StorageError as error:
        raise ArchiveError(describe_failure(store.uri, error)) from None
    return found


@dataclass(frozen=True, slots=True)
class ArchivedSpan:
    """The records of archived ranges with offsets in [start, end), read by one task."""

    store: ObjectStore
    ranges: tuple[Range, ...]
    is_checkpoint: bool  # then there is one range
    start_offset: int
    end_offset: int

    def within(self, lowest: int, highest: int) -> ArchivedSpan | None:
        """Narrow the span to these offsets, both inclusive, or return None if no offset is left."""
        if self.is_checkpoint:
            return self if lowest <= self.end_offset - 1 <= highest else None
        start, end = max(self.start_offset, lowest), min(self.end_offset, highest + 1)
        if start >= end:
            return None
        ranges = tuple(
            link for link in self.ranges if link.start_offset < end and link.end_offset > start
        )
        return replace(self, ranges=ranges, start_offset=start, end_offset=end)

    def values(self) -> Iterator[tuple[LogPosition, Buffer]]:
        """Yield the position and framed value of each archived metadata record in the span.

        Raises:  DamagedArchiveError; ArchiveError.
        """
        for row in self._rows():
            value = value_of(row)
            if value is None or row["control"]:
                continue
            if self.is_checkpoint:
                offset = self.end_offset - 1
            elif self.start_offset <= row["offset"] < self.end_offset:
                offset = row["offset"]
            else:
                continue
            yield LogPosition(self.is_checkpoint, offset, row["epoch"], row["timestamp_ms"]), value

    def batches(self) -> Iterator[Batch]:
        """Rebuild and yield the whole batches that hold any of the span's offsets.

        Raises:  DamagedArchiveError; ArchiveError.
        """
        try:
            for batch in batches_of(self._rows()):
                header = batch.header
                if self.is_checkpoint or (
                    header.end_offset > self.start_offset and header.base_offset < self.end_offset
                ):
                    yield batch
        except EnvelopeError as error:
            raise DamagedArchiveError(f"{self.ranges[0].envelope_key}: {error}") from None

    def _rows(self) -> Iterator[Row]:
        for link in self.ranges:
            yield from read_rows(self.store, link)


class ArchivedLog:
    """A log in an archive."""

    def __init__(self, store: ObjectStore, name: str, links: Sequence[Range]) -> None:
        """Open one log of an archive, made of the archived ranges `links`.

        Args:    links: its chain.
        """
        self._store = store
        self._name = name
        self._links = links

    @property
    def links(self) -> Sequence[Range]:
        """Return the archived ranges that follow each other, including ranges that were lost."""
        return self._links

    def end_offset(self) -> int:
        """Return the end offset of the archived log, as of the opening of the archive."""
        return self._links[-1].end_offset if self._links else 0

    def spans(
        self,
        end_offset: int,
        *,
        start_offset: int | None = None,
        split_bytes: int = SPLIT_BYTES,
    ) -> Sequence[ArchivedSpan]:
        """Split the archived offsets below `end_offset` into spans, in order.

        Raises:  LostRangeError; ArchiveError.
        """
        if end_offset > self.end_offset():
            why = f"the archive ends at {self.end_offset()}"
            raise LostRangeError(self._name, self.end_offset(), None, why)
        first = 0
        if start_offset is None:
            first, start = self._find_beginning(end_offset)
        else:
            start = start_offset
        links = [
            link for link in self._links[first:] if link.start_offset < end_offset and
            link.end_offset > start
        ]  # fmt: skip
        for link in links:
            if link.is_checkpoint:
                why = "the log's head was cut off before it was archived"
                raise LostRangeError(self._name, start, link.end_offset, why)
        spans = self._group_links(links, start, end_offset, split_bytes)
        if first:
            begun = self._links[first - 1]
            spans.insert(0, ArchivedSpan(self._store, (begun,), True, 0, begun.end_offset))
        return spans

    def _find_beginning(self, end_offset: int) -> tuple[int, int]:
        """Return the index and start offset of the first range after the newest checkpoint.

        Checkpoints that end above `end_offset` are not used.
        """
        for number in range(len(self._links) - 1, -1, -1):
            link = self._links[number]
            if link.is_checkpoint and link.end_offset <= end_offset:
                return number + 1, link.end_offset
        return 0, 0

    def _group_links(
        self, links: Sequence[Range], start: int, end: int, split_bytes: int
    ) -> list[ArchivedSpan]:
        """Group neighbouring ranges into spans of about `split_bytes` each."""
        sizes = self._sizes() if len(links) > 1 else {}
        groups: list[list[Range]] = []
        room = 0
        for link in links:
            size = sizes.get(link.envelope_key, 0) * COMPRESSION
            if not groups or size > room:
                groups.append([])
                room = split_bytes
            groups[-1].append(link)
            room -= size
        return [
            ArchivedSpan(
                self._store,
                tuple(group),
                False,
                max(start, group[0].start_offset),
                min(end, group[-1].end_offset),
            )
            for group in groups
        ]

    def _sizes(self) -> dict[str, int]:
        prefix = f"data/{self._name}/record/"
        try:
            return {found.key: found.size_bytes for found in self._store.list(prefix)}
        except StorageError as error:
            raise ArchiveError(describe_failure(self._store.uri, error)) from None


class ArchivedLogs:
    """The logs of an archive, as of when it was opened."""

    def __init__(self, store: ObjectStore) -> None:
        """Open the archive in a store, and list its ranges.

        Raises:  LogsError if the store holds no archive, or cannot be read.
        """
        about = read_about(store)
        if about is None:
            raise LogsError(f"{store.uri} is not an archive: it has no {ABOUT_KEY}")
        self.about = about
        self.cluster_id = checked_cluster_id(about.cluster_id, store.uri)
        self._store = store
        self._chains = {log: chain(ranges) for log, ranges in list_ranges(store).items()}

    def names(self) -> list[str]:
        """List the archived logs by name: the cluster's first, then coordinators' by number."""
        names = names_in_order(self._chains)
        return names if CLUSTER_METADATA in self._chains else names[1:]

    def log(self, name: str) -> ArchivedLog:
        """Return an archived log by its name.

        Raises:  LogsError if the archive has no log of that name.
        """
        if name not in self._chains:
            raise LogsError(f"{self._store.uri} has no log {name}")
        return ArchivedLog(self._store, name, self._chains[name])
