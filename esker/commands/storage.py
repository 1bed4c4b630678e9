"""`esker storage`: format a node's log directory before its first start, and inspect it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer

from esker.commands.base import CommandGroup
from esker.commands.cluster_access import AsJson
from esker.commands.feature_levels import check_supported, parse_levels
from esker.commands.scram_users import parse_users
from esker.commands.text_tables import show
from esker.server.fatal_errors import describe_fatal_error
from esker.server.storage import Formatted, StorageError, format_storage, open_storage
from esker.settings.addresses import CONTROLLER
from esker.settings.config import (
    ConfigError,
    HostSettings,
    NodeSettings,
    PropertiesError,
    load_config,
    load_host,
)
from raft.segments.properties import META_PROPERTIES_FILE
from records.errors import RecordError
from records.types import NodeId
from records.uuids import encode_uuid, random_uuid

T = TypeVar("T")

app = CommandGroup("Format and inspect a node's log directory.")

FORMAT_EXAMPLE = (
    "Example: esker storage format node1.properties --cluster-id xBIbbGYlSzqHPEyzl9QSWw"
)

ConfigFile = Annotated[
    Path, typer.Argument(metavar="FILE", help="Path of the node's properties file.")
]


@app.callback(epilog=FORMAT_EXAMPLE)
def storage() -> None:
    """Format and inspect a node's log directory."""


@app.command(
    "format",
    epilog=FORMAT_EXAMPLE,
)
def format_command(
    config: ConfigFile,
    cluster_id: Annotated[
        str,
        typer.Option(
            "--cluster-id",
            "-t",
            metavar="ID",
            help="Id of the cluster, the same for every node; `esker storage random-uuid` prints "
            "a new id.",
        ),
    ],
    rejoin: Annotated[
        bool,
        typer.Option(
            "--rejoin",
            help="Replace a voter's lost disk; the voter does not vote until it has caught up; "
            "default: format the disk of a new node.",
        ),
    ] = False,
    feature: Annotated[
        list[str] | None,
        typer.Option(
            "--feature",
            "-f",
            metavar="NAME=LEVEL",
            help="Feature level of a new cluster, as NAME=LEVEL, the same for every node; may "
            "be repeated; default: the highest level that this version supports.",
        ),
    ] = None,
    ignore_formatted: Annotated[
        bool,
        typer.Option(
            "--ignore-formatted",
            "-g",
            help="Leave a directory as it is that is formatted already, and succeed; default: "
            "fail if no directory of FILE is unformatted.",
        ),
    ] = False,
    add_scram: Annotated[
        list[str] | None,
        typer.Option(
            "--add-scram",
            "-S",
            metavar="MECHANISM=[...]",
            help="SCRAM credential of a new cluster, as "
            "SCRAM-SHA-512=[name=alice,password-file=FILE] or Kafka's "
            "[name=alice,password=PASSWORD,iterations=4096], the same for every controller; may "
            "be repeated; default: no users.",
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Format the node's log directory: write meta.properties and bootstrap.checkpoint."""
    levels = parse_levels(feature or [])
    check_supported(levels)
    users = parse_users(add_scram or [], cluster_id)
    nodes = load_nodes_or_exit(config)
    unformatted = [one for one in nodes if not (one.log_dir / META_PROPERTIES_FILE).exists()]
    if ignore_formatted and not unformatted:
        nothing: dict[str, Any] = {"nodes": []}
        show(nothing, "All of the log directories are already formatted.", as_json=as_json)
        return
    made = []
    for loaded in unformatted or nodes[:1]:  # of several brokers, those that were added since
        try:
            _check_siblings(nodes, cluster_id)
            formatted = format_storage(
                loaded, cluster_id, rejoin=rejoin, features=levels, users=users
            )
        except (StorageError, RecordError, OSError) as error:
            typer.echo(f"esker: {_words(error, loaded)}", err=True)
            raise typer.Exit(1) from None
        made.append((loaded.node_id, formatted))
    _show_formatted(made, rejoin=rejoin, as_list=len(nodes) > 1, as_json=as_json)


def _show_formatted(
    made: Sequence[tuple[NodeId, Formatted]], *, rejoin: bool, as_list: bool, as_json: bool
) -> None:
    """Print the formatted directories; JSON has one object, or a list of a file with several."""
    results = [
        {
            "logDir": str(one.log_dir),
            "nodeId": node_id,
            "clusterId": one.cluster_id,
            "directoryId": encode_uuid(one.directory_id),
        }
        for node_id, one in made
    ]
    lines = [
        f"Formatted {one.log_dir} for node {node_id} of cluster {one.cluster_id}, "
        f"directory id {encode_uuid(one.directory_id)}"
        + (", to rejoin its quorum." if rejoin else ".")
        for node_id, one in made
    ]
    result = {"nodes": results} if as_list else results[0]
    show(result, "\n".join(lines), as_json=as_json)


def _check_siblings(nodes: Sequence[NodeSettings], cluster_id: str) -> None:
    """Raise StorageError if a formatted directory of the same file is another cluster's."""
    if len(nodes) == 1:
        return
    for one in nodes:
        if (one.log_dir / META_PROPERTIES_FILE).exists():
            meta, _ = open_storage(one)
            if meta.cluster_id != cluster_id:
                raise StorageError(f"{one.log_dir} is of cluster {meta.cluster_id}: name that one")


@app.command(epilog="Example: esker storage info node1.properties")
def info(config: ConfigFile, as_json: AsJson = False) -> None:
    """Print the node and cluster ids of a log directory; exit with 1 without them."""
    nodes = load_nodes_or_exit(config)
    found = [_describe_directory(loaded) for loaded in nodes]
    texts = [
        "\n".join(f"{name:<16}{value}" for name, value in rows.items() if value is not None)
        for rows, _ in found
    ]
    results = [result for _, result in found]
    shown = results[0] if len(nodes) == 1 else {"nodes": results}
    show(shown, "\n\n".join(texts), as_json=as_json)


def _describe_directory(loaded: NodeSettings) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the rows and the JSON that describe a formatted directory, or exit with 1."""
    try:
        meta, records = open_storage(loaded)
    except (StorageError, RecordError, OSError) as error:
        typer.echo(f"esker: {_words(error, loaded)}", err=True)
        raise typer.Exit(1) from None
    directory_id = None if meta.directory_id is None else encode_uuid(meta.directory_id)
    rows = {
        "log directory": str(loaded.log_dir),
        "node": meta.node_id,
        "cluster": meta.cluster_id,
        "directory id": directory_id,
        "bootstrap": f"{len(records)} records",
    }
    result = {
        "logDir": str(loaded.log_dir),
        "nodeId": meta.node_id,
        "clusterId": meta.cluster_id,
        "directoryId": directory_id,
        "bootstrapRecords": len(records),
    }
    return rows, result


@app.command("random-uuid", epilog="Example: esker storage random-uuid")
def random_uuid_command(as_json: AsJson = False) -> None:
    """Print a random new cluster id."""
    cluster_id = encode_uuid(random_uuid())
    show({"clusterId": cluster_id}, cluster_id, as_json=as_json)


def _words(error: Exception, settings: NodeSettings) -> str:
    return describe_fatal_error(error, settings.log_dir, votes=CONTROLLER in settings.roles)


def load_or_exit(path: Path) -> NodeSettings:
    """Load the settings of one node; an invalid file prints one line and exits with 2."""
    return _load_or_exit(path, load_config)


def load_host_or_exit(path: Path) -> HostSettings | NodeSettings:
    """Load the settings of one node, or of several brokers; an invalid file exits with 2."""
    return _load_or_exit(path, load_host)


def load_nodes_or_exit(path: Path) -> tuple[NodeSettings, ...]:
    """Load the settings of each node of a file; an invalid file exits with 2."""
    loaded = load_host_or_exit(path)
    return loaded.brokers if isinstance(loaded, HostSettings) else (loaded,)


def _load_or_exit(path: Path, load: Callable[[Path], T]) -> T:
    try:
        return load(path)
    except (ConfigError, PropertiesError) as error:
        typer.echo(f"esker: {path}: {error}", err=True)
    except OSError as error:
        typer.echo(f"esker: {path}: {error.strerror}: name the node's properties file", err=True)
    raise typer.Exit(2)
