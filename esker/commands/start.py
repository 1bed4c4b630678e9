"""`esker start`: run one node, or several broker processes, until SIGTERM or Ctrl-C."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Annotated

import typer

from esker.commands.storage import load_host_or_exit
from esker.server.ending import run_to_end
from esker.server.process import run_until_signalled
from esker.server.supervisor import supervise_until_signalled
from esker.settings.addresses import CONTROLLER
from esker.settings.config import HostSettings
from raft.net.logs import begin_logging

app = typer.Typer(add_completion=False)

EXAMPLE = "Example: esker start node1.properties"


@app.command(name="start", epilog=EXAMPLE, no_args_is_help=True)
def start(
    file: Annotated[
        Path, typer.Argument(metavar="FILE", help="Path of the node's properties file.")
    ],
) -> None:
    """Run one node in the foreground until SIGTERM or Ctrl-C.

    The file's process.roles are the node's roles. A broker prints one line with its address as soon
    as the cluster sends clients to it. The log, one `key=value` line for each change of state, is
    written to standard error; esker.log.format=json makes each line an object. With
    esker.broker.processes, that many brokers run, each in a process of its own; those that die are
    started again.
    """
    config = load_host_or_exit(file)
    nodes = config.brokers if isinstance(config, HostSettings) else (config,)
    values = nodes[0].values
    begin_logging(values["esker.log.format"], values["esker.log.level"])
    for warning in dict.fromkeys(warning for node in nodes for warning in node.warnings):
        logging.getLogger("esker").warning("%s", warning)
    if isinstance(config, HostSettings):
        words = run_to_end(supervise_until_signalled(config), config.log_dir, votes=False)
    else:
        votes = CONTROLLER in config.roles
        words = run_to_end(run_until_signalled(config), config.log_dir, votes=votes)
    if words is not None:
        typer.echo(f"esker: {words}", err=True)
        raise typer.Exit(1)
