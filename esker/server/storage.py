"""Formats a node's log directory; nothing else creates one.

`start` never formats: a node that found an empty directory and began afresh would forget its votes
and what it acknowledged. A directory that was lost is formatted with `rejoin`, which leaves a
durable mark: such a voter neither votes nor campaigns before it has caught up. A broker's directory
holds copies alone, so it may be formatted again whenever it is empty.

Source: KIP-631, KIP-858 (meta.properties); KIP-778 (bootstrap.checkpoint);
docs/design/quorum.md#lost-disks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from uuid import UUID

from esker.server.bootstrap import bootstrap_records, write_bootstrap
from esker.settings.addresses import CONTROLLER
from esker.settings.config import NodeSettings
from raft.driver.registry import GROUPS_FILE, REJOIN_FILE, mark_rejoin
from raft.segments.errors import CorruptFileError
from raft.segments.files import TEMPORARY_SUFFIX, FileSystem, RealFileSystem
from raft.segments.properties import (
    META_PROPERTIES_FILE,
    MetaProperties,
    read_meta_properties,
    write_meta_properties,
)
from records.metadata import UserScramCredentialRecord
from records.schema import MetadataRecord
from records.uuids import decode_uuid, random_uuid
from snapshot.names import BOOTSTRAP_NAME
from snapshot.reader import CheckpointReader


class StorageError(Exception):
    """The directory cannot be formatted or used; the message names the remedy."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Formatted:
    """A formatted directory."""

    log_dir: Path
    cluster_id: str
    directory_id: UUID


def format_storage(
    config: NodeSettings,
    cluster_id: str,
    *,
    rejoin: bool = False,
    features: Mapping[str, int] | None = None,
    users: Sequence[UserScramCredentialRecord] = (),
    files: FileSystem | None = None,
) -> Formatted:
    """Format this node's log directory, writing `meta.properties` last.

    Args:    rejoin: this node was in the cluster before and its disk is lost.
             features: levels to finalize in a new cluster instead of the newest.
             users: SCRAM credentials of a new cluster, the same on every controller.
    Raises:  StorageError if the directory is formatted or holds anything else, or the cluster id is
             none; OSError.
    """
    files = files or RealFileSystem()
    try:
        decode_uuid(cluster_id)
    except ValueError as error:
        raise StorageError(
            f"cluster id {error}; make one with `esker storage random-uuid`, the same for all nodes"
        ) from None
    if rejoin and CONTROLLER not in config.roles:
        raise StorageError(
            f"node {config.node_id} is only a broker and keeps nothing that could be lost: format "
            "its directory without --rejoin"
        )
    if files.exists(config.log_dir):
        _refuse_used(files, config.log_dir, rejoin=rejoin)
    files.make_directory(config.log_dir)
    if CONTROLLER in config.roles:
        if rejoin:
            mark_rejoin(files, config.log_dir)
        records = bootstrap_records(
            cluster_id, config.voters, bench_log=config.bench_log, features=features, users=users
        )
        write_bootstrap(files, config.log_dir, records)
    meta = MetaProperties(cluster_id=cluster_id, node_id=config.node_id, directory_id=random_uuid())
    write_meta_properties(files, config.log_dir, meta)
    assert meta.directory_id is not None, "just drawn"
    return Formatted(log_dir=config.log_dir, cluster_id=cluster_id, directory_id=meta.directory_id)


def _refuse_used(files: FileSystem, log_dir: Path, *, rejoin: bool) -> None:
    """Raise StorageError if `log_dir` has files that formatting does not write."""
    found = files.listdir(log_dir)
    if META_PROPERTIES_FILE in found:
        raise StorageError(f"{log_dir} is formatted already; nothing was changed")
    ours = (BOOTSTRAP_NAME, META_PROPERTIES_FILE, *([REJOIN_FILE] if rejoin else []))
    expected = {"lost+found", *ours, *(name + TEMPORARY_SUFFIX for name in ours)}
    leftovers = sorted(set(found) - expected)
    if leftovers:
        raise StorageError(
            f"{log_dir} is not empty ({', '.join(leftovers[:3])}): name a directory of "
            "this node's own"
        )


def open_storage(
    config: NodeSettings, files: FileSystem | None = None
) -> tuple[MetaProperties, tuple[MetadataRecord, ...]]:
    """Return a formatted directory's `meta.properties` and the records of its bootstrap file.

    Raises:  StorageError if it is not formatted, or another node's; CorruptFileError, RecordError.
    """
    files = files or RealFileSystem()
    try:
        meta = read_meta_properties(files, config.log_dir)
    except FileNotFoundError:
        raise StorageError(_not_formatted(files, config)) from None
    if meta.node_id != config.node_id:
        raise StorageError(
            f"{config.log_dir} belongs to node {meta.node_id}, but node.id is {config.node_id}"
        )
    if CONTROLLER not in config.roles:
        return meta, ()
    path = config.log_dir / BOOTSTRAP_NAME
    if not files.exists(path):
        raise CorruptFileError(path=path, reason="is missing from a formatted directory")
    with CheckpointReader(files, path) as reader:
        return meta, tuple(record for _, record in reader.records())


def _not_formatted(files: FileSystem, config: NodeSettings) -> str:
    """Return the error message for a directory that is not formatted.

    The trap: mostly its disk is not mounted. Formatting the mount point of a voter's disk would
    start a voter that has forgotten its votes.
    """
    log_dir, votes = config.log_dir, CONTROLLER in config.roles
    if files.exists(log_dir / GROUPS_FILE):
        rejoin = " --rejoin" if votes else ""
        return (
            f"{log_dir / META_PROPERTIES_FILE} is gone, and logs are there: bring it back, or "
            f"empty {log_dir} and run `esker storage format{rejoin}`"
        )
    lost = ", or, if this node's disk was lost, `esker storage format --rejoin`" if votes else ""
    return (
        f"{log_dir} is not formatted. Is its disk mounted? If it is, run `esker storage format` "
        f"first{lost}"
    )
