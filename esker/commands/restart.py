"""`esker restart`: end broker processes of one properties file in good order, one after the other.

Source: docs/design/processes.md#one-child-restarts.
"""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Annotated, Final

import typer

from esker.commands.cluster_access import fail
from esker.commands.storage import load_host_or_exit
from esker.server.host_status import BrokerProcess, read_status
from esker.settings.config import HostSettings

app = typer.Typer(add_completion=False)

EXAMPLE: Final = "Example: esker restart brokers.properties --id 101 --id 102"
POLL_S: Final = 0.1


@app.command(name="restart", epilog=EXAMPLE, no_args_is_help=True)
def restart(
    file: Annotated[
        Path,
        typer.Argument(
            metavar="FILE", help="Path of a properties file with esker.broker.processes."
        ),
    ],
    ids: Annotated[
        list[int],
        typer.Option("--id", metavar="ID", help="Id of a broker to restart; may be repeated."),
    ],
    timeout_s: Annotated[
        int,
        typer.Option(
            "--timeout",
            min=1,
            help="Seconds to wait for each broker to be ready again; default: 300.",
        ),
    ] = 300,
) -> None:
    """Restart broker processes of a running `esker start`, each after the one before is ready.

    A broker writes what it has taken and sends its clients to others before it ends. Its settings
    stay those that its supervisor read: restart `esker start` itself to change them. Run it on the
    brokers' host, as their user.
    """
    host = load_host_or_exit(file)
    if not isinstance(host, HostSettings):
        fail(f"{file} describes one node: restart its `esker start` (SIGTERM, and start it again)")
    known = [settings.node_id for settings in host.brokers]
    for broker in ids:
        if broker not in known:
            raise typer.BadParameter(
                f"{broker} is none of the brokers of {file}: {', '.join(map(str, known))}",
                param_hint="--id",
            )
    for broker in ids:
        began = time.monotonic()
        _restart(host.log_dir, broker, timeout_s)
        typer.echo(f"Broker {broker} is ready again after {time.monotonic() - began:.1f} s.")


def _restart(log_dir: Path, broker: int, timeout_s: float) -> None:
    """Send SIGTERM to a broker process, and wait until its successor is ready."""
    before = _status(log_dir, broker)
    if before.state != "ready" or before.pid is None:
        fail(f"broker {broker} is {before.state}: wait until it is ready")
    try:
        os.kill(before.pid, signal.SIGTERM)
    except ProcessLookupError:  # it has just died: its supervisor starts it again all the same
        pass
    except PermissionError:
        fail(f"broker {broker} is process {before.pid} of another user: run this as that user")
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        now = _status(log_dir, broker)
        if now.starts > before.starts and now.state == "ready":
            return
        time.sleep(POLL_S)
    fail(
        f"broker {broker} was not ready again within {timeout_s:.0f} s, it is {now.state}: "
        "see the output of `esker start`"
    )


def _status(log_dir: Path, broker: int) -> BrokerProcess:
    """Return what the supervisor tells of a broker; exit if no supervisor runs."""
    try:
        found = read_status(log_dir)
    except (OSError, ValueError) as error:
        fail(f"{log_dir}: {error}")
    if found is None:
        fail(f"no `esker start` of these brokers runs here: {log_dir} is not in use")
    return found.get(broker, BrokerProcess("starting", 0, None))
