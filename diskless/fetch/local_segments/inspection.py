"""Reads a directory of local segments as it lies there, of a running broker or a stopped one.

Nothing is locked or changed. A segment that the broker deletes meanwhile is left out.

Source: docs/design/local-segments.md#files.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from crc32c import crc32c

from diskless.fetch.local_segments.format import (
    LOG_SUFFIX,
    RUNS_SUFFIX,
    TopicPartition,
    parse_directory_name,
    parse_segment_name,
)
from diskless.fetch.local_segments.segment import Segment, load, open_file
from raft.segments.errors import CorruptFileError
from raft.segments.files import RealFileSystem
from raft.segments.properties import (
    META_PROPERTIES_FILE,
    MetaProperties,
    read_meta_properties,
)


class DescribedSegment(NamedTuple):
    """A segment on the disk."""

    partition: TopicPartition
    base_offset: int
    kind: int | None  # None: it is not sound, and a broker would delete it
    end_offset: int = -1  # exclusive
    missing_offsets: int = 0  # between its ranges
    ranges: int = 0
    size_bytes: int = 0
    damaged_ranges: int = 0  # whose bytes were changed; 0 without a check

    @property
    def is_damaged(self) -> bool:
        """Return whether the segment, or a range of it, would be read from the store instead."""
        return self.kind is None or bool(self.damaged_ranges)


class NoCacheDirectoryError(Exception):
    """The directory is none of local segments; the message is a sentence."""


def read_owner(directory: Path) -> MetaProperties:
    """Return the cluster and the node that a directory belongs to.

    Raises:  NoCacheDirectoryError; OSError.
    """
    try:
        return read_meta_properties(RealFileSystem(), directory)
    except FileNotFoundError:
        raise NoCacheDirectoryError(_not_of_a_broker(directory)) from None
    except CorruptFileError as error:
        raise NoCacheDirectoryError(str(error)) from None


def _not_of_a_broker(directory: Path) -> str:
    """Return the error message for a directory without `meta.properties`."""
    found = [path.parent for path in directory.glob(f"*/{META_PROPERTIES_FILE}")]
    ids = sorted(int(path.name) for path in found if path.name.isdecimal())
    if ids:
        names = ", ".join(f"{directory / str(node_id)}" for node_id in ids)
        return f"{directory} has the directories of several brokers: name one of {names}"
    return f"{directory} has no meta.properties: name a broker's esker.cache.dir"


def read_segments(
    directory: Path, cluster_id: str, *, verify: bool = False
) -> Iterator[DescribedSegment]:
    """Yield the segments by partition and base offset.

    Args:    verify: also compare the bytes of each range with its checksum.
    Raises:  OSError if the directory cannot be read.
    """
    for child in sorted(directory.iterdir()):
        partition = parse_directory_name(child.name)
        if partition is None or child.is_symlink() or not child.is_dir():
            continue
        names = [path.name for path in child.iterdir()]
        offsets = {parse_segment_name(name) for name in names if name.endswith(RUNS_SUFFIX)}
        for base_offset in sorted(offset for offset in offsets if offset is not None):
            loaded = load(child, partition, base_offset, cluster_id)
            if loaded is not None:
                try:
                    described = _describe(loaded[0], verify=verify)
                except FileNotFoundError:  # deleted meanwhile
                    continue
                yield described
            elif (child / f"{base_offset:020d}{RUNS_SUFFIX}").exists():
                yield DescribedSegment(partition, base_offset, None)


def _describe(segment: Segment, *, verify: bool) -> DescribedSegment:
    ranges = list(segment.ranges())
    missing = sum(later.first_offset - entry.last_offset - 1 for entry, later in pairwise(ranges))
    damaged = 0
    if verify:
        with os.fdopen(open_file(segment.file(LOG_SUFFIX)), "rb") as log:
            for entry in ranges:
                log.seek(entry.position)
                damaged += crc32c(log.read(entry.size_bytes)) != entry.crc
    return DescribedSegment(
        segment.partition,
        segment.base_offset,
        segment.header.kind,
        segment.end_offset,
        missing,
        len(ranges),
        segment.size_bytes,
        damaged,
    )
