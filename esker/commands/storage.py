"""`esker storage`: format a node's log directory before its first start, and inspect it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from esker.commands.feature_levels import check_supported, parse_levels
from esker.server.fatal_errors import describe_fatal_error
from esker.server.storage import StorageError, format_storage, open_storage
from esker.settings.addresses import CONTROLLER
from esker.settings.config import ConfigError, NodeSettings, PropertiesError, load_config
from records.errors import RecordError
from records.uuids import encode_uuid, random_uuid

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    help="Format and inspect a node's log directory.",
)

FORMAT_EXAMPLE = (
    "Example: esker storage format --config node1.properties --cluster-id xBIbbGYlSzqHPEyzl9QSWw"
)

ConfigFile = Annotated[
    Path,
    typer.Option("--config", "-c", metavar="FILE", help="Path of the node's properties file."),
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
            help="Replace a voter's lost disk; the voter does not vote until it has caught up.",
        ),
    ] = False,
    feature: Annotated[
        list[str] | None,
        typer.Option(
            "--feature",
            "-f",
            metavar="NAME=LEVEL",
            help="Level of a feature in a new cluster, the same for every node; may be repeated; "
            "default: the highest that this version supports.",
        ),
    ] = None,
) -> None:
    """Format the node's log directory: write meta.properties and bootstrap.checkpoint."""
    levels = parse_levels(feature or [])
    check_supported(levels)
    loaded = load_or_exit(config)
    try:
        made = format_storage(loaded, cluster_id, rejoin=rejoin, features=levels)
    except (StorageError, OSError) as error:
        typer.echo(f"esker: {_words(error, loaded)}", err=True)
        raise typer.Exit(1) from None
    typer.echo(
        f"Formatted {made.log_dir} for node {loaded.node_id} of cluster {made.cluster_id}, "
        f"directory id {encode_uuid(made.directory_id)}"
        + (", to rejoin its quorum." if rejoin else ".")
    )


@app.command(epilog="Example: esker storage info --config node1.properties")
def info(config: ConfigFile) -> None:
    """Print the node and cluster of a log directory; exit code 1 if it is not formatted."""
    loaded = load_or_exit(config)
    try:
        meta, records = open_storage(loaded)
    except (StorageError, RecordError, OSError) as error:
        typer.echo(f"esker: {_words(error, loaded)}", err=True)
        raise typer.Exit(1) from None
    typer.echo(f"log directory   {loaded.log_dir}")
    typer.echo(f"node            {meta.node_id}")
    typer.echo(f"cluster         {meta.cluster_id}")
    if meta.directory_id is not None:
        typer.echo(f"directory id    {encode_uuid(meta.directory_id)}")
    typer.echo(f"bootstrap       {len(records)} records")


@app.command("random-uuid", epilog="Example: esker storage random-uuid")
def random_uuid_command() -> None:
    """Print a new cluster id."""
    typer.echo(encode_uuid(random_uuid()))


def _words(error: Exception, settings: NodeSettings) -> str:
    return describe_fatal_error(error, settings.log_dir, votes=CONTROLLER in settings.roles)


def load_or_exit(path: Path) -> NodeSettings:
    """Load a node's settings; an invalid file prints one line and exits with 2."""
    try:
        return load_config(path)
    except (ConfigError, PropertiesError) as error:
        typer.echo(f"esker: {path}: {error}", err=True)
    except OSError as error:
        typer.echo(f"esker: {path}: {error.strerror}: name the node's properties file", err=True)
    raise typer.Exit(2)
