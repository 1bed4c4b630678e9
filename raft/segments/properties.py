"""The small files beside a log: the disk's owner, the topic id, the election state.

- `meta.properties`, in the root of a log directory: cluster, node, and the directory's own id.
- `partition.metadata`, in a partition's directory: its topic id.
- `quorum-state`, there too: one line of JSON, the election state. Losing it after having voted
  would let a node vote twice in one epoch, so it is replaced durably.

Readers take what Kafka writes; writers write what Kafka reads. Sentinels (-1) stop here.

Source: KIP-595, Quorum State; KIP-853 (version 1); KIP-858 (directory ids); upstream's
PropertiesUtils and PartitionMetadataFile.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from uuid import UUID

from raft.segments.errors import CorruptFileError
from raft.segments.files import FileSystem, read_small_file, replace_file
from records.types import ZERO_UUID, Epoch, NodeId
from records.uuids import decode_uuid, encode_uuid

META_PROPERTIES_FILE: Final = "meta.properties"
PARTITION_METADATA_FILE: Final = "partition.metadata"
QUORUM_STATE_FILE: Final = "quorum-state"

_LIMIT_BYTES: Final = 1024 * 1024
_INT32: Final = range(-(1 << 31), 1 << 31)
_EPOCHS: Final = range(1 << 31)


# --- meta.properties -----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class MetaProperties:
    """`meta.properties`, version 1. `directory_id` is None in directories of an older Kafka."""

    cluster_id: str
    node_id: NodeId
    directory_id: UUID | None = None


def write_meta_properties(files: FileSystem, directory: Path, meta: MetaProperties) -> None:
    """Replace the file `meta.properties` durably."""
    lines = ["#", "version=1", f"cluster.id={meta.cluster_id}", f"node.id={meta.node_id}"]
    if meta.directory_id is not None:
        lines.append(f"directory.id={encode_uuid(meta.directory_id)}")
    replace_file(files, directory / META_PROPERTIES_FILE, "\n".join([*lines, ""]).encode())


def read_meta_properties(files: FileSystem, directory: Path) -> MetaProperties:
    """Return the properties of a formatted log directory.

    Raises:  FileNotFoundError if it is not formatted; CorruptFileError.
    """
    path = directory / META_PROPERTIES_FILE
    properties = _read_properties(files, path)
    version = properties.get("version")
    if version not in ("0", "1"):
        raise CorruptFileError(path=path, reason=f"version {version!r}, known are 0 and 1")
    node_id = properties.get("node.id" if version == "1" else "broker.id", "")
    if not node_id.isdecimal() or len(node_id) > 10 or int(node_id) not in _INT32:
        raise CorruptFileError(path=path, reason=f"node id {node_id!r} is not a number")
    if not properties.get("cluster.id"):
        raise CorruptFileError(path=path, reason="cluster.id is missing")
    directory_id = properties.get("directory.id")
    try:
        return MetaProperties(
            cluster_id=properties["cluster.id"],
            node_id=NodeId(int(node_id)),
            directory_id=None if directory_id is None else decode_uuid(directory_id),
        )
    except ValueError as error:
        raise CorruptFileError(path=path, reason=str(error)) from None


def _read_properties(files: FileSystem, path: Path) -> dict[str, str]:
    """Parse the `key=value` lines of a Java properties file, with escaped punctuation."""
    properties: dict[str, str] = {}
    for line in _read_text(files, path).splitlines():
        text = line.strip()
        if not text or text[0] in "#!":
            continue
        key, found, value = text.partition("=")
        if not found:
            raise CorruptFileError(path=path, reason=f"not key=value: {text[:80]!r}")
        properties[key.strip()] = value.strip().replace("\\", "")
    return properties


# --- partition.metadata --------------------------------------------------------------------------


def write_partition_metadata(files: FileSystem, directory: Path, topic_id: UUID) -> None:
    """Replace the file `partition.metadata` durably."""
    text = f"version: 0\ntopic_id: {encode_uuid(topic_id)}"
    replace_file(files, directory / PARTITION_METADATA_FILE, text.encode())


def read_partition_metadata(files: FileSystem, directory: Path) -> UUID:
    """Return the topic id in the file `partition.metadata`.

    Raises:  FileNotFoundError, CorruptFileError.
    """
    path = directory / PARTITION_METADATA_FILE
    lines = _read_text(files, path).splitlines()
    fields = dict(line.split(": ", 1) for line in lines if ": " in line)
    if fields.get("version") != "0":
        raise CorruptFileError(path=path, reason=f"version {fields.get('version')!r}, not 0")
    try:
        return decode_uuid(fields.get("topic_id", ""))
    except ValueError as error:
        raise CorruptFileError(path=path, reason=str(error)) from None


# --- quorum-state --------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class QuorumState:
    """The election state of a node. Only version 0 of the file stores `voters`."""

    epoch: Epoch
    leader_id: NodeId | None = None
    voted_id: NodeId | None = None
    voted_directory_id: UUID | None = None
    voters: tuple[NodeId, ...] = ()


def write_quorum_state(
    files: FileSystem, directory: Path, state: QuorumState, *, version: int = 0
) -> None:
    """Replace the file `quorum-state` durably.

    It has version 0 for static voters, 1 from kraft.version 1 on.
    """
    assert version in (0, 1), f"quorum-state version {version}"
    assert state.epoch in _EPOCHS, f"no node could start again with {state}"
    fields: dict[str, Any] = {
        "leaderId": _or_minus_one(state.leader_id),
        "leaderEpoch": state.epoch,
        "votedId": _or_minus_one(state.voted_id),
    }
    if version == 0:
        voters = [{"voterId": voter} for voter in state.voters]
        fields = {"clusterId": "", **fields, "appliedOffset": 0, "currentVoters": voters}
    else:
        fields["votedDirectoryId"] = encode_uuid(state.voted_directory_id or ZERO_UUID)
    fields["data_version"] = version
    text = json.dumps(fields, separators=(",", ":"))
    replace_file(files, directory / QUORUM_STATE_FILE, text.encode())


def read_quorum_state(files: FileSystem, directory: Path) -> QuorumState | None:
    """Return the stored quorum state, of either version, or None if no state was stored.

    Raises:  CorruptFileError, also for an unknown version or an epoch that cannot be: a node that
             cannot tell whether it has voted must not start.
    """
    path = directory / QUORUM_STATE_FILE
    try:
        text = _read_text(files, path)
    except FileNotFoundError:
        return None
    try:
        fields = json.loads(text)
    except (ValueError, RecursionError):
        raise CorruptFileError(path=path, reason="not JSON") from None
    if not isinstance(fields, dict) or fields.get("data_version") not in (0, 1):
        raise CorruptFileError(path=path, reason="unknown data_version")
    try:
        return _quorum_state(fields)
    except (ValueError, KeyError, TypeError) as error:
        raise CorruptFileError(path=path, reason=f"{type(error).__name__}: {error}") from None


def _quorum_state(fields: dict[str, Any]) -> QuorumState:
    epoch = fields["leaderEpoch"]
    if type(epoch) is not int or epoch not in _EPOCHS:
        raise ValueError(f"leaderEpoch {epoch!r} is outside 0..{_EPOCHS[-1]}")
    directory_id = decode_uuid(fields.get("votedDirectoryId", encode_uuid(ZERO_UUID)))
    return QuorumState(
        epoch=Epoch(epoch),
        leader_id=_or_none(fields["leaderId"]),
        voted_id=_or_none(fields["votedId"]),
        voted_directory_id=None if directory_id == ZERO_UUID else directory_id,
        voters=tuple(
            NodeId(_int32(voter["voterId"])) for voter in fields.get("currentVoters") or ()
        ),
    )


def _int32(value: object) -> int:
    if type(value) is not int or value not in _INT32 or value < -1:
        raise ValueError(f"not an id: {value!r}")
    return value


def _or_none(value: object) -> NodeId | None:
    number = _int32(value)
    return None if number == -1 else NodeId(number)


def _or_minus_one(value: int | None) -> int:
    return -1 if value is None else value


def _read_text(files: FileSystem, path: Path) -> str:
    data = read_small_file(files, path, limit_bytes=_LIMIT_BYTES)
    if len(data) > _LIMIT_BYTES:
        raise CorruptFileError(path=path, reason=f"larger than {_LIMIT_BYTES} bytes")
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise CorruptFileError(path=path, reason="not UTF-8") from None
