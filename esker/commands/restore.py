"""`esker restore`: make a new cluster of what survived the loss of the old one.

The sources are directories of its nodes, and the backup in its store. `plan` only reads and prints.
`apply` claims the data in the object store for the new cluster, waits until brokers of the old one
have stopped, compares the store with the logs, and writes the new nodes' directories. It can be run
again after it was killed.

Source: docs/design/restore.md.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from esker.commands.base import CommandGroup
from esker.commands.cluster_access import AsJson
from esker.commands.storage import load_nodes_or_exit
from esker.commands.text_tables import show, table

if TYPE_CHECKING:
    from esker.restore.backups import BackupSource
    from esker.restore.run import Done, Options
    from esker.settings.config import NodeSettings

app = CommandGroup("Make a new cluster of what survived a loss.")

PLAN_EXAMPLE = "Example: esker restore plan --from /var/lib/esker"
APPLY_EXAMPLE = (
    "Example: esker restore apply --cluster-id xBIbbGYlSzqHPEyzl9QSWw --from /backup/101 "
    "--config node1.properties --config node2.properties --config node3.properties "
    "--config broker101.properties"
)

BACKED_UP = "The store has a backup of the new cluster; its brokers go on with it."
NOT_BACKED_UP = (
    "The new cluster has no backup: set esker.backup.enable=true on all brokers to have one."
)

From = Annotated[
    list[Path] | None,
    typer.Option(
        "--from",
        metavar="DIR",
        help="Log directory of a voter or broker of the lost cluster; may be repeated; default: "
        "none, which needs --backup.",
    ),
]
Backup = Annotated[
    Path | None,
    typer.Option(
        "--backup",
        metavar="FILE",
        help="Properties file of a broker: restore from the backup in its object store; default: "
        "from directories alone.",
    ),
]
BackupCluster = Annotated[
    str | None,
    typer.Option(
        "--backup-cluster",
        metavar="ID",
        help="Id of the lost cluster, if the store has backups of several; default: the only one.",
    ),
]
At = Annotated[
    str | None,
    typer.Option(
        "--at",
        metavar="NUMBER|TIME",
        help="Number of a backup, or the last one written by this time (ISO 8601), as `esker "
        "backup list` prints them; default: the newest.",
    ),
]
WithTail = Annotated[
    bool,
    typer.Option(
        "--tail",
        help="Append records that were uploaded after the newest record of the sources: plain and "
        "idempotent ones of topics that are not compacted, at new offsets; default: leave them.",
    ),
]


@app.callback(epilog=PLAN_EXAMPLE)
def restore() -> None:
    """Make a new cluster of what survived a loss."""


@app.command(epilog=PLAN_EXAMPLE)
def plan(
    from_: From = None,
    backup: Backup = None,
    backup_cluster: BackupCluster = None,
    at: At = None,
    tail: WithTail = False,
    config: Annotated[
        Path | None,
        typer.Option(
            "--config",
            metavar="FILE",
            help="Properties file of a broker, which names the object store for --tail; default: "
            "that of --backup.",
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Print what a restore would recover and lose; change nothing."""
    from records.uuids import encode_uuid, random_uuid

    broker = _tail_store(tail, config or backup)
    with _refusals():
        from esker.commands.restore_report import describe, report
        from esker.restore.run import prepare, prepare_tail

        source = _backup_source(from_, backup, backup_cluster, at)
        with (
            tempfile.TemporaryDirectory(prefix="esker-restore-") as scratch,
            prepare(from_ or [], Path(scratch), backup=source) as prepared,
        ):
            cluster_id = encode_uuid(random_uuid())
            words = " ".join(f"--from {path}" for path in from_ or [])
            if prepared.manifest is not None:
                words += f" --backup {backup} --backup-cluster {prepared.manifest.cluster_id}"
                words += f" --at {prepared.manifest.number}"
            if broker is not None:
                prepared = asyncio.run(prepare_tail(prepared, broker))
                words += " --tail"
            text = (
                f"{describe(prepared)}\nTo restore: esker restore apply --cluster-id {cluster_id} "
                f"{words.strip()} --config FILE of each new node"
            )
            show({"clusterId": cluster_id, **report(prepared)}, text, as_json=as_json)


@app.command(epilog=APPLY_EXAMPLE)
def apply(
    cluster_id: Annotated[
        str,
        typer.Option(
            "--cluster-id",
            "-t",
            metavar="ID",
            help="Id of the new cluster, as `esker restore plan` prints it; the same in each run "
            "of one restore.",
        ),
    ],
    node: Annotated[
        list[Path],
        typer.Option(
            "--config",
            metavar="FILE",
            help="Path of the properties file of a new node whose directory to write; give those "
            "of all voters and of one broker at least; may be repeated.",
        ),
    ],
    from_: From = None,
    backup: Backup = None,
    backup_cluster: BackupCluster = None,
    at: At = None,
    tail: WithTail = False,
    stopped: Annotated[
        bool,
        typer.Option(
            "--i-stopped-the-old-cluster",
            help="Every node of the old cluster is stopped and stays so: do not wait for its "
            "brokers, and accept a store that overwrites objects; default: wait.",
        ),
    ] = False,
    accept_missing: Annotated[
        bool,
        typer.Option(
            "--accept-missing-objects",
            help="Go on although the store lacks objects of the logs: partitions begin behind "
            "those at their start, and reading other lost records fails; default: stop, and "
            "print them.",
        ),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Claim the data in the store for a new cluster, and write its nodes' directories."""
    settings = [one for path in node for one in load_nodes_or_exit(path)]
    with _refusals():
        from esker.restore.run import Options, prepare, restore_cluster

        options = Options(
            cluster_id=cluster_id,
            nodes=tuple(settings),
            old_cluster_is_stopped=stopped,
            accepts_missing_objects=accept_missing,
            adds_tail=tail,
        )
        source = _backup_source(from_, backup, backup_cluster, at)
        with (
            tempfile.TemporaryDirectory(prefix="esker-restore-") as scratch,
            prepare(from_ or [], Path(scratch), backup=source) as prepared,
        ):
            tell = (lambda _: None) if as_json else typer.echo
            _show_done(asyncio.run(restore_cluster(prepared, options, tell=tell)), options, as_json)


def _show_done(done: Done, options: Options, as_json: bool) -> None:
    """Print what a restore recovered and lost, and the directories that it wrote."""
    from esker.commands.restore_report import describe, report

    cluster_id = options.cluster_id
    result: dict[str, Any] = {
        "clusterId": cluster_id,
        **report(done.prepared),
        "missingObjects": [
            {"coordinator": coordinator, "objectIds": sorted(object_ids)}
            for coordinator, object_ids in sorted(done.missing.items())
        ],
        "directories": [str(path) for path in done.directories],
        "backedUp": done.is_backed_up,
    }
    written = table(
        ("NODE", "DIRECTORY"),
        [(str(one.node_id), str(one.log_dir)) for one in options.nodes],
    )
    text = (
        f"{describe(done.prepared)}\n\n{written}\nCluster {cluster_id} is restored: start "
        "these nodes, and format the directories of all other brokers with this id.\n"
        f"{BACKED_UP if done.is_backed_up else NOT_BACKED_UP}"
    )
    show(result, text, as_json=as_json)


def _tail_store(is_wanted: bool, path: Path | None) -> NodeSettings | None:
    """Return the settings of the broker whose store has the tail, or None without --tail."""
    if not is_wanted:
        return None
    if path is None:
        raise typer.BadParameter(
            "needs a broker's properties file by --config, which names the object store",
            param_hint="--tail",
        )
    return load_nodes_or_exit(path)[0]


def _backup_source(
    from_: Sequence[Path] | None, backup: Path | None, cluster_id: str | None, at: str | None
) -> BackupSource | None:
    """Return the backup that the options name, or None if they name directories alone."""
    from esker.restore.backups import BackupSource

    if backup is None and not from_:
        raise typer.BadParameter(
            "name a directory that survived, or a broker's properties file by --backup",
            param_hint="--from",
        )
    if backup is None:
        if cluster_id is not None or at is not None:
            raise typer.BadParameter(
                "needs --backup with a broker's properties file",
                param_hint="--at" if cluster_id is None else "--backup-cluster",
            )
        return None
    return BackupSource(settings=load_nodes_or_exit(backup)[0], cluster_id=cluster_id, at=at)


class _refusals:  # noqa: N801 (used as a function)
    """Turns the errors of a restore into one line and exit code 1."""

    def __enter__(self) -> None: ...

    def __exit__(self, kind: Any, error: BaseException | None, traceback: Any) -> None:
        from diskless.backup.manifest import BackupError
        from diskless.stores import StorageError as StoreError
        from diskless.stores import StoreSettingError
        from esker.restore.errors import RestoreError
        from esker.server.storage import StorageError
        from records.errors import RecordError
        from snapshot.errors import DamagedFileError

        if isinstance(
            error,
            RestoreError
            | BackupError
            | StoreError
            | StoreSettingError
            | StorageError
            | RecordError
            | DamagedFileError
            | OSError,
        ):
            typer.echo(f"esker: {error}", err=True)
            raise typer.Exit(1) from None


__all__: Sequence[str] = ["app"]
