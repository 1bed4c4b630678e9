"""The interface through which jobs read logs, whatever stores them.

    logs: Logs = ReplicaLogs(Path("/var/lib/esker"), {"__cluster_metadata-0": 812, ...})
    log = logs.log("__diskless-metadata-0")
    for span in log.spans(log.end_offset()):
        for position, value in span.values(): ...

A job needs three things of a log: how far it is committed, in which pieces it can be read, and the
pieces' records. Pieces are planned in one process and read in others, so a `Span` is a small value
that can be pickled and knows by itself how to be read: from a file, from a running quorum, or from
an archive.

Source: docs/design/pipeline.md#one-input.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final, Protocol, runtime_checkable

from raft.segments.files import RealFileSystem
from raft.segments.high_watermarks import read_high_watermarks
from raft.segments.properties import read_meta_properties
from records.batch import Batch
from records.compression import Buffer
from spark_jobs.readers.log_files import SPLIT_BYTES, FileSpan, LogFiles, LostRangeError
from spark_jobs.readers.log_position import LogPosition

CLUSTER_METADATA: Final = "__cluster_metadata-0"
DISKLESS_METADATA: Final = "__diskless-metadata-"
_CLUSTER_ID: Final = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9_.-]{0,199}", re.ASCII)


class LogsError(Exception):
    """Logs cannot be read. One sentence naming the source and the remedy."""


class Span(Protocol):
    """A piece of a log that one task reads. Can be pickled.

    Records with offsets in [start_offset, end_offset); of a checkpoint all of it, and `end_offset`
    is the offset it stands for.
    """

    @property
    def is_checkpoint(self) -> bool:
        """Return whether the span is a checkpoint, which replaces records before `end_offset`."""
        ...

    @property
    def start_offset(self) -> int:
        """Return the first offset of the span, inclusive."""
        ...

    @property
    def end_offset(self) -> int:
        """Return the end offset of the span, exclusive."""
        ...

    def within(self, lowest: int, highest: int) -> Span | None:
        """Narrow the span to these offsets, both inclusive, or return None if no offset is left."""
        ...

    def values(self) -> Iterator[tuple[LogPosition, Buffer]]:
        """Yield the position and framed value of each metadata record in the span, in order.

        Raises:  LostRangeError if it is gone meanwhile; DamagedFileError, RecordError; OSError.
        """
        ...

    def batches(self) -> Iterator[Batch]:
        """Yield the whole batches that hold any of the span's offsets, control batches included.

        Of a checkpoint all there are, header and footer too. Raises as `values`.
        """
        ...


class Log(Protocol):
    """A replicated log, such as `__diskless-metadata-0`."""

    def end_offset(self) -> int:
        """Return the exclusive end offset of the committed records that this reader can read.

        Raises:  OSError.
        """
        ...

    def spans(
        self,
        end_offset: int,
        *,
        start_offset: int | None = None,
        split_bytes: int = SPLIT_BYTES,
    ) -> Sequence[Span]:
        """Split the offsets below `end_offset` into spans, in order.

        Args:    end_offset: exclusive; at or below this log's own.
                 start_offset: where the reader continues; None: from the beginning, that is from
                 the newest checkpoint that is needed for it.
                 split_bytes: of log that one task reads, about.
        Raises:  LostRangeError; OSError.
        """
        ...


@runtime_checkable
class HasCheckpoints(Protocol):
    """A log whose checkpoints can be read by themselves; an archive has none."""

    def checkpoints(self) -> Sequence[Span]:
        """List the readable checkpoints, oldest first.

        Raises:  OSError; LogsError.
        """
        ...


class Logs(Protocol):
    """The logs of one cluster."""

    @property
    def cluster_id(self) -> str:
        """Return the id of the cluster that the logs belong to."""
        ...

    def names(self) -> list[str]:
        """List the logs by name: the cluster's first, then each coordinator's by number."""
        ...

    def log(self, name: str) -> Log:
        """Return the cluster's or a coordinator's log by its name.

        Raises:  LogsError if there is no log of this name.
        """
        ...


def coordinators_of(logs: Logs) -> list[int]:
    """Return the partitions of `__diskless-metadata` that have logs, in rising order."""
    names = (name for name in logs.names() if name.startswith(DISKLESS_METADATA))
    return sorted(int(name.removeprefix(DISKLESS_METADATA)) for name in names)


class CommittedFiles:
    """A replica's log up to a high watermark that another source gives."""

    def __init__(self, files: LogFiles, high_watermark: Callable[[], int]) -> None:
        self.files = files
        self._high_watermark = high_watermark

    def end_offset(self) -> int:
        """Return the high watermark, or the replica's end offset if the replica lags behind.

        Raises:  LogsError; DamagedFileError; OSError.
        """
        committed = self._high_watermark()
        return min(committed, self.files.end_offset(committed))

    def checkpoints(self) -> Sequence[FileSpan]:
        """List the readable checkpoints, oldest first.

        Raises:  OSError.
        """
        end_offset = self.end_offset()
        return [
            checkpoint
            for checkpoint in self.files.checkpoint_spans()
            if checkpoint.end_offset <= end_offset
        ]

    def spans(
        self,
        end_offset: int,
        *,
        start_offset: int | None = None,
        split_bytes: int = SPLIT_BYTES,
    ) -> Sequence[FileSpan]:
        """Split the offsets below `end_offset`, which must be committed, into spans.

        Raises:  as `Log.spans`; LogsError; CorruptFileError.
        """
        committed = self._high_watermark()
        if end_offset > committed:
            raise LostRangeError(
                self.files.directory, committed, min(self.files.segments(), default=None),
                f"only offsets below {committed} are committed",
            )  # fmt: skip
        return self.files.spans(end_offset, start_offset=start_offset, split_bytes=split_bytes)


class ReplicaLogs:
    """The logs in a node's log directory, whether the node runs or not."""

    def __init__(self, log_dir: Path, high_watermarks: Mapping[str, int] | None = None) -> None:
        """Open the logs of a node's log directory for reading.

        Args:    high_watermarks: of each log, from its leader; exclusive. None: what the node
                 has written down, as of whenever that is needed.
        Raises:  LogsError if it is no log directory; CorruptFileError; OSError.
        """
        try:
            meta = read_meta_properties(RealFileSystem(), log_dir)
        except FileNotFoundError:
            nodes = sorted(mark.parent for mark in log_dir.glob("*/meta.properties"))
            inside = f"; it contains: {', '.join(map(str, nodes))}" if nodes else ""
            raise LogsError(
                f"{log_dir} is not a node's log directory: no meta.properties{inside}"
            ) from None
        self.cluster_id = checked_cluster_id(meta.cluster_id, str(log_dir))
        self._log_dir = log_dir.absolute()  # a Spark worker has a working directory of its own
        self._high_watermarks = high_watermarks

    def names(self) -> list[str]:
        """List the names of the logs in the log directory.

        Raises:  OSError.
        """
        return logs_in(self._log_dir)

    def log(self, name: str) -> CommittedFiles:
        """Return the named log of the log directory, readable up to its high watermark.

        Raises:  as `Logs.log`; CorruptFileError; OSError.
        """
        self._high_watermark(name)
        return CommittedFiles(LogFiles(self._log_dir / name), lambda: self._high_watermark(name))

    def _high_watermark(self, name: str) -> int:
        known = self._high_watermarks
        if known is None:
            known = _written_down(self._log_dir)
        if name not in known:
            raise LogsError(
                f"{self._log_dir}: the high watermark of {name} is not known here; "
                "let the node run for some seconds, or name its quorum too"
            )
        return known[name]


def _written_down(log_dir: Path) -> dict[str, int]:
    """Return the last high watermark that the node wrote to disk for each log."""
    try:
        found = read_high_watermarks(RealFileSystem(), log_dir)
    except FileNotFoundError:
        return {}
    return {f"{topic}-{partition}": offset for (topic, partition), offset in found.items()}


def checked_cluster_id(cluster_id: str, source: str) -> str:
    """Return a cluster id that is safe as a directory name; raise LogsError for any other id.

    Raises:  LogsError.

    >>> checked_cluster_id("../..", "127.0.0.1:9093")
    Traceback (most recent call last):
    spark_jobs.readers.logs.LogsError: '../..', of 127.0.0.1:9093, is not a cluster id
    """
    if _CLUSTER_ID.fullmatch(cluster_id) is None:
        raise LogsError(f"{cluster_id[:40]!r}, of {source}, is not a cluster id")
    return cluster_id


def logs_in(log_dir: Path) -> list[str]:
    """List the names of the logs in a node's log directory that jobs read.

    Raises:  OSError.
    """
    return names_in_order(path.name for path in log_dir.iterdir() if path.is_dir())


def names_in_order(names: Iterable[str]) -> list[str]:
    """Return the names of logs that jobs read: the cluster's, then coordinators' by number.

    >>> names_in_order(["__consumer_offsets-0", "__diskless-metadata-10", "__diskless-metadata-9"])
    ['__cluster_metadata-0', '__diskless-metadata-9', '__diskless-metadata-10']
    """
    numbers = (
        name.removeprefix(DISKLESS_METADATA) for name in names if name.startswith(DISKLESS_METADATA)
    )
    coordinators = sorted(int(number) for number in numbers if number.isdecimal())
    return [CLUSTER_METADATA, *(f"{DISKLESS_METADATA}{n}" for n in coordinators)]
