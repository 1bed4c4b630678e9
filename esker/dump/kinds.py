"""Which kind of file a name means.

Kafka tells the files of a log's directory apart by name alone, and so do we: the bytes of a segment
and of a checkpoint begin alike.
"""

from __future__ import annotations

import re
from enum import Enum
from pathlib import Path
from typing import Final

from raft.segments.epochs import EPOCHS_FILE
from raft.segments.properties import (
    META_PROPERTIES_FILE,
    PARTITION_METADATA_FILE,
    QUORUM_STATE_FILE,
)
from raft.segments.recovery_point import RECOVERY_POINT_FILE


class Kind(Enum):
    """A kind of file, by the words a reader sees."""

    SEGMENT = "segment"
    CHECKPOINT = "checkpoint"
    OFFSET_INDEX = "offset index"
    TIME_INDEX = "time index"
    EPOCHS = "leader epochs"
    QUORUM_STATE = "quorum state"
    PARTITION_METADATA = "partition metadata"
    META_PROPERTIES = "directory properties"
    RECOVERY_POINT = "recovery point"


class UnknownKindError(Exception):
    """A file that this command cannot read. The message says what it can."""


_BY_NAME: Final = {
    EPOCHS_FILE: Kind.EPOCHS,
    QUORUM_STATE_FILE: Kind.QUORUM_STATE,
    PARTITION_METADATA_FILE: Kind.PARTITION_METADATA,
    META_PROPERTIES_FILE: Kind.META_PROPERTIES,
    RECOVERY_POINT_FILE: Kind.RECOVERY_POINT,
}
_BY_SUFFIX: Final = {
    ".log": Kind.SEGMENT,
    ".checkpoint": Kind.CHECKPOINT,
    ".index": Kind.OFFSET_INDEX,
    ".timeindex": Kind.TIME_INDEX,
}
_UNFINISHED: Final = (".deleted", ".part", ".tmp")
_BASE_OFFSET: Final = re.compile(r"(\d{20})\.(?:log|index|timeindex)(?:\.deleted)?", re.ASCII)
READABLE: Final = "segments (.log), checkpoints (.checkpoint), .index, .timeindex, " + ", ".join(
    _BY_NAME
)


def kind_of(path: Path) -> Kind:
    """The kind of a file.

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
    if name.endswith(".snapshot"):
        raise UnknownKindError(
            f"{path}: the producer state of a Kafka broker, which Esker neither reads nor writes"
        )
    raise UnknownKindError(f"{path}: not a file that dump-log can read; it reads {READABLE}")


def base_offset_of(path: Path) -> int | None:
    """The base offset in the name of a segment or index; None where there is none."""
    match = _BASE_OFFSET.fullmatch(path.name)
    return int(match[1]) if match else None
