"""What the commands that ask the active controller share: options, the question, failures."""

from __future__ import annotations

from typing import Annotated, NoReturn, TypeVar

import typer

from coordinator.controller.client import ControllerClient
from coordinator.interface import CoordinatorError
from esker.commands.snapshot_nodes import parse_bootstrap
from raft.net.runner import run
from records.rpc.base import Request, Response

R = TypeVar("R", bound=Response)

Bootstrap = Annotated[
    str, typer.Option(metavar="HOST:PORT[,...]", help="Controllers to ask; any of them will do.")
]
AsJson = Annotated[bool, typer.Option("--json", help="One JSON object, for programs.")]
TimeoutMs = Annotated[int, typer.Option(min=1, help="Milliseconds to wait for an answer.")]


def ask(bootstrap_controller: str, request: Request, response: type[R], timeout_ms: int) -> R:
    """The active controller's answer; ends the command if there is none."""
    addresses = [(at.host, at.port) for at in parse_bootstrap(bootstrap_controller)]

    async def asked() -> R:
        client = ControllerClient(addresses, timeout_ms=timeout_ms)
        try:
            return await client.call(request, response)
        finally:
            await client.close()

    try:
        return run(asked())
    except CoordinatorError as error:
        fail(f"{error.message}: are a majority of the voters running?")


def fail(message: str) -> NoReturn:
    """One line, and exit code 1."""
    typer.echo(f"esker: {message}", err=True)
    raise typer.Exit(1)


def stop_on(name: str, error_code: int, message: str | None) -> None:
    """Ends the command if `name` was refused; messages of ours name it themselves."""
    if error_code:
        fail(message or f"{name}: error code {error_code}")


def pairs(text: list[str], option: str) -> dict[str, str]:
    """`key=value` options as a dictionary.

    >>> pairs(["retention.ms=1000", "a=b=c"], "--config")
    {'retention.ms': '1000', 'a': 'b=c'}
    """
    found: dict[str, str] = {}
    for part in text:
        key, equals, value = part.partition("=")
        if not equals or not key.strip():
            raise typer.BadParameter(f"{part!r} is not KEY=VALUE", param_hint=option)
        if key.strip() in found:
            raise typer.BadParameter(f"{key.strip()} is given twice", param_hint=option)
        found[key.strip()] = value.strip()
    return found
