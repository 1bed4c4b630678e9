"""Runs a restore: prepares the new checkpoints, claims the data, writes the directories.

The order makes each step safe to repeat. Everything that can be refused from the directories alone
is refused first. The claim names the new cluster and its plan, so a second run finds its own claim
and goes on, and another restore is refused. A node's directory appears last, by one rename.

Source: docs/design/restore.md#states-of-a-restore.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from diskless.backup.manifest import Manifest
from diskless.lineage import (
    claim_key,
    has_conditional_writes,
    plan_digest,
    read_claim,
    write_claim,
)
from diskless.stores import ObjectExistsError, ObjectStorage
from diskless.stores.opening import open_store
from esker.restore.backups import BackupSource, fetch_cut
from esker.restore.directories import check_same, is_restored, write_directory
from esker.restore.errors import RestoreError
from esker.restore.first_backup import write_first_backup
from esker.restore.objects import missing_objects
from esker.restore.plan import Choices, choose
from esker.restore.restored import Restored
from esker.restore.sources import Sources
from esker.restore.states import restore_states
from esker.restore.tail import Tail, find_tail
from esker.settings.addresses import BROKER, CONTROLLER
from esker.settings.config import NodeSettings
from raft.segments.files import FileSystem, RealFileSystem
from records.uuids import decode_uuid

BACKUP: Final = "backup"
"""The name of the temporary directory that a cut of a backup is written to."""

WAITED_TIMEOUTS: Final = 2
"""Times `esker.lineage.timeout.ms` from the claim: a broker's last proof is over, and so is a
deletion that it sent under it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """The new checkpoints of a restore, and the choices that led to them."""

    sources: Sources
    choices: Choices
    restored: Restored
    scratch: Path
    manifest: Manifest | None = None  # of the backup among the sources
    tail: Tail | None = None  # None: it was not looked for

    def name_of(self, directory: Path) -> str:
        """Return how a source is shown: a backup's directory is a temporary one."""
        below = self.scratch / BACKUP
        if self.manifest is None or not directory.is_relative_to(below):
            return str(directory)
        return f"backup {self.manifest.number}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """The operator's part of a restore."""

    cluster_id: str
    nodes: tuple[NodeSettings, ...]
    old_cluster_is_stopped: bool = False
    accepts_missing_objects: bool = False
    adds_tail: bool = False  # objects that were uploaded after the newest record of the sources


@dataclass(slots=True)
class Done:
    """What a restore found and wrote."""

    prepared: Prepared  # with the state that was written
    missing: dict[int, set[int]]  # object ids by coordinator
    directories: list[Path] = field(default_factory=list)
    is_backed_up: bool = False  # the new cluster has a backup


@contextmanager
def prepare(
    paths: Sequence[Path],
    scratch: Path,
    files: FileSystem | None = None,
    backup: BackupSource | None = None,
) -> Iterator[Prepared]:
    """Choose among the sources and write the new checkpoints below `scratch`.

    The sources are locked inside the `with` block.

    Args:    backup: one more source.
    Raises:  RestoreError; OSError; of a backup also BackupError, StoreSettingError, StorageError.
    """
    files = files or RealFileSystem()
    manifest = None
    if backup is not None:
        manifest = asyncio.run(fetch_cut(backup, scratch / BACKUP, files))
        paths = [*paths, scratch / BACKUP]
    with Sources(paths, files) as sources:
        choices = choose(sources)
        restored = restore_states(choices, scratch, files)
        yield Prepared(
            sources=sources,
            choices=choices,
            restored=restored,
            scratch=scratch,
            manifest=manifest,
        )


async def prepare_tail(
    prepared: Prepared, settings: NodeSettings, files: FileSystem | None = None
) -> Prepared:
    """Return a restore that adds the tail, as the store of a broker has it now.

    Raises:  RestoreError; StoreSettingError, StorageError of the store; OSError.
    """
    store = open_store(settings.values)
    try:
        tail = await _find_tail(prepared, store, settings)
    finally:
        await store.close()
    return _restore_again(prepared, settings, files or RealFileSystem(), {}, tail)


async def _find_tail(prepared: Prepared, store: ObjectStorage, settings: NodeSettings) -> Tail:
    prefix = settings.values["esker.object.key.prefix"]
    cluster_id, uncommitted = prepared.choices.cluster_id, prepared.restored.uncommitted
    return await find_tail(store, prefix, cluster_id, uncommitted)


def _restore_again(
    prepared: Prepared,
    settings: NodeSettings,
    files: FileSystem,
    missing: dict[int, set[int]],
    tail: Tail | None,
) -> Prepared:
    """Return the restore with the state that follows from what the store has and lacks."""
    if not missing and tail is None:
        return prepared
    scratch = prepared.scratch / "as-stored"
    restored = restore_states(
        prepared.choices, scratch, files, missing, tail, settings.topic_defaults
    )
    return replace(prepared, restored=restored, tail=tail)


async def restore_cluster(
    prepared: Prepared,
    options: Options,
    *,
    tell: Callable[[str], None] = lambda _: None,
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    files: FileSystem | None = None,
) -> Done:
    """Claim the data for the new cluster, and write the directories of its nodes.

    Args:    tell: called with a line before each step that takes long.
    Raises:  RestoreError; StorageError of the store; OSError.
    """
    files = files or RealFileSystem()
    broker = _check_nodes(prepared, options)
    written = [is_restored(files, node, options.cluster_id) for node in options.nodes]
    store = open_store(broker.values)
    try:
        await _claim(prepared, options, store, broker.values["esker.object.key.prefix"])
        if not options.old_cluster_is_stopped:
            wait_s = WAITED_TIMEOUTS * broker.values["esker.lineage.timeout.ms"] / 1_000
            tell(
                f"The data is claimed. Waiting {wait_s:.0f} s, until the old brokers have stopped."
            )
            await sleep(wait_s)
        done = await _compare(prepared, options, store, broker, files)
        checkpoints = done.prepared.restored.checkpoints
        for node, is_written in zip(options.nodes, written, strict=True):
            if is_written:
                check_same(files, node, checkpoints)
        for node, is_written in zip(options.nodes, written, strict=True):
            if not is_written:
                write_directory(files, node, options.cluster_id, checkpoints)
            done.directories.append(node.log_dir)
        if broker.values["esker.backup.enable"]:
            prefix: str = broker.values["esker.backup.key.prefix"]
            await write_first_backup(
                store, prefix, options.cluster_id, broker.node_id, checkpoints, files
            )
            done.is_backed_up = True
    finally:
        await store.close()
    return done


async def _compare(
    prepared: Prepared,
    options: Options,
    store: ObjectStorage,
    broker: NodeSettings,
    files: FileSystem,
) -> Done:
    """Compare the state with the store, and return the state that follows from it.

    Raises:  RestoreError if objects are missing; StorageError; OSError.
    """
    tail = await _find_tail(prepared, store, broker) if options.adds_tail else None
    missing = await missing_objects(
        store,
        broker.values["esker.object.key.prefix"],
        prepared.restored.image.ancestors,
        prepared.restored.objects,
    )
    if missing and not options.accepts_missing_objects:
        raise _missing_error(missing)
    return Done(_restore_again(prepared, broker, files, missing, tail), missing)


def _missing_error(missing: Mapping[int, set[int]]) -> RestoreError:
    count = sum(map(len, missing.values()))
    coordinator, object_ids = next(iter(sorted(missing.items())))
    shown = ", ".join(map(str, sorted(object_ids)[:10]))
    return RestoreError(
        f"the store lacks {count} objects that the logs name (of coordinator {coordinator}: "
        f"{shown}): bring them back, or give --accept-missing-objects; then run the same "
        "command again"
    )


def _check_nodes(prepared: Prepared, options: Options) -> NodeSettings:
    """Check that the new nodes make a cluster; return the settings of a broker.

    Raises RestoreError.
    """
    try:
        decode_uuid(options.cluster_id)
    except ValueError as error:
        raise RestoreError(f"--cluster-id: {error}; `esker restore plan` prints one") from None
    lost = prepared.choices.cluster_id
    ancestors = {one.cluster_id for one in prepared.restored.image.ancestors.clusters}
    if options.cluster_id in ancestors:
        raise RestoreError(
            f"--cluster-id {options.cluster_id} is the id of the lost cluster or of one before it: "
            "a restore makes a new cluster; `esker restore plan` prints an id"
        )
    broker = next((node for node in options.nodes if BROKER in node.roles), None)
    if broker is None:
        raise RestoreError(
            f"no --config is a broker's, so the object store of cluster {lost} is unknown: give "
            "the properties file of a broker, too"
        )
    given = {node.node_id for node in options.nodes if CONTROLLER in node.roles}
    for node in options.nodes:
        missing = sorted(set(node.voters) - given)
        if missing:
            raise RestoreError(
                f"controller.quorum.voters of node {node.node_id} names voter {missing[0]}, and no "
                "--config is that voter's: all voters' directories are written together"
            )
    directories = [node.log_dir.absolute() for node in options.nodes]
    for directory in directories:
        if directories.count(directory) > 1:
            raise RestoreError(f"two nodes have the same log.dirs: {directory}")
    return broker


async def _claim(prepared: Prepared, options: Options, store: ObjectStorage, prefix: str) -> None:
    """Claim the next timeline of the lineage for the new cluster.

    Raises:  RestoreError if another restore has it, or the store cannot tell.
    """
    image = prepared.restored.image
    lineage_id = image.ancestors.clusters[0].cluster_id
    key = claim_key(prefix, lineage_id, prepared.restored.timeline)
    if not options.old_cluster_is_stopped and not await has_conditional_writes(
        store, prefix, options.cluster_id
    ):
        raise RestoreError(
            "the object store overwrites objects although it was told not to (If-None-Match), so "
            "it cannot tell two restores apart: stop every node of the old cluster for good, and "
            "give --i-stopped-the-old-cluster"
        )
    digest = plan_digest(
        [
            options.cluster_id,
            *(["tail"] if options.adds_tail else []),
            *(
                f"{group.name} {log.choice.chosen.last_epoch} {log.choice.chosen.end} "
                f"{log.known_committed}"
                for group, log in prepared.choices.logs.items()
            ),
        ]
    )
    found = await read_claim(store, key, len(options.cluster_id))
    if found not in (None, options.cluster_id):
        raise RestoreError(
            f"cluster {prepared.choices.cluster_id} was restored as cluster {found} already: use "
            f"that cluster, or go on with `esker restore apply --cluster-id {found}`"
        )
    try:
        await write_claim(store, key, options.cluster_id, digest)
    except ObjectExistsError:
        found = await read_claim(store, key, len(options.cluster_id))
        if found != options.cluster_id:
            raise RestoreError(
                f"another restore of cluster {prepared.choices.cluster_id} was faster: it makes "
                f"cluster {found}"
            ) from None
        raise RestoreError(
            f"cluster {options.cluster_id} was begun from other sources: give the same --from, "
            "--at and --tail as in the first run"
        ) from None
