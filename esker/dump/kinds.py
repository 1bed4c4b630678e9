"""Tells the kind of a file by its name.

Kafka tells the files of a log's directory apart by name alone, and so do we: the bytes of a segment
and of a checkpoint begin alike.
"""

from __future__ import annotations

from enum import Enum
from pathlib import Path
from typing import Final

from raft.segments import segment
from raft.segments.epochs import EPOCHS_FILE
from raft.segments.properties import (
    META_PROPERTIES_FILE,
    PARTITION_METADATA_FILE,
    QUORUM_STATE_FILE,
)
from raft.segments.recovery_point import RECOVERY_POINT_FILE
from raft.segments.segment import INDEX_SUFFIX, LOG_SUFFIX, TIME_INDEX_SUFFIX
from records.types import Offset


class Kind(Enum):
    """A kind of file, by its printed name."""

    SEGMENT = "segment"
    CHECKPOINT = "checkpoint"
    OFFSET_INDEX = "offset index"
    TIME_INDEX = "time index"
    EPOCHS = "leader epochs"
    QUORUM_STATE = "quorum state"
    PARTITION_METADATA = "partition metadata"
    META_PROPERTIES = "directory properties"
    RECOVERY_POINT = "recovery point"
    WAL_OBJECT = "WAL segment object"
    BACKUP_MANIFEST = "manifest of a backup"


class UnknownKindError(Exception):
    """The command cannot read such a file; the message lists the kinds that it can."""


_BY_NAME: Final = {
    EPOCHS_FILE: Kind.EPOCHS,
    QUORUM_STATE_FILE: Kind.QUORUM_STATE,
    PARTITION_METADATA_FILE: Kind.PARTITION_METADATA,
    META_PROPERTIES_FILE: Kind.META_PROPERTIES,
    RECOVERY_POINT_FILE: Kind.RECOVERY_POINT,
}
_BY_SUFFIX: Final = {
    LOG_SUFFIX: Kind.SEGMENT,
    ".checkpoint": Kind.CHECKPOINT,
    INDEX_SUFFIX: Kind.OFFSET_INDEX,
    TIME_INDEX_SUFFIX: Kind.TIME_INDEX,
}
_UNFINISHED: Final = (".deleted", ".part", ".tmp")
READABLE: Final = "segments (.log), checkpoints (.checkpoint), .index, .timeindex, " + ", ".join(
    [*_BY_NAME, "WAL objects (a number)", "manifests of backups (a number of 20 digits)"]
)
_MANIFEST_DIGITS: Final = 20  # one more than the largest id of a WAL object has


def kind_of(path: Path) -> Kind:
    """Return the kind of a log file, from the file's name.

    Raises:  UnknownKindError.

    >>> kind_of(Path("00000000000000000007-0000000001.checkpoint.deleted")).value
    'checkpoint'
    """
    if kind := _BY_NAME.get(path.name):
        return kind
    name = path.name
    for suffix in _UNFINISHED:
        name = name.removesuffix(suffix)
    if kind := _BY_SUFFIX.get(Path(name).suffix):
        return kind
    if name.isascii() and name.isdecimal():
        return object_kind_of(name)
    if name.endswith(".snapshot"):
        raise UnknownKindError(
            f"{path}: the producer state of a Kafka broker, which Esker neither reads nor writes"
        )
    raise UnknownKindError(f"{path}: not a file that dump-log can read; it reads {READABLE}")


def object_kind_of(name: str) -> Kind:
    """Return the kind of an object of a store, from its key.

    >>> object_kind_of("s3://b/backup/Ck3xYz/manifest/00000000000000000007").value
    'manifest of a backup'
    """
    digits = name.rpartition("/")[2]
    is_manifest = digits.isdecimal() and len(digits) == _MANIFEST_DIGITS
    return Kind.BACKUP_MANIFEST if is_manifest else Kind.WAL_OBJECT


def base_offset_of(path: Path) -> Offset | None:
    """Return the base offset in the name of a segment or index, or None without one."""
    name = path.name.removesuffix(".deleted")
    for suffix in (LOG_SUFFIX, INDEX_SUFFIX, TIME_INDEX_SUFFIX):
        offset = segment.base_offset_of(name, suffix)
        if offset is not None:
            return offset
    return None
