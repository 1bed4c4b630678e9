"""What the commands that ask a running cluster share: options, the question, failures.

A cluster is asked at its controllers or at its brokers, whichever the machine can reach, and the
command line says which: `--bootstrap-controller` or `--bootstrap-server`; neither means the broker
that `esker dev` starts. A controller leads us to the one that decides; a broker asks it for us and
hands back what it said. Where nobody listens at any address that was typed, the command ends at
once: patience is for a cluster that is known to be there.

Source: KIP-919 (controllers as bootstrap servers), KIP-590 (brokers that forward).
"""

from __future__ import annotations

from collections.abc import Coroutine, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Final, NoReturn, TypeVar

import typer

from coordinator.batch.calls import call_of
from coordinator.batch.client import ClientSettings, CoordinatorClient
from coordinator.controller.client import ControllerClient, error_codes
from coordinator.errors import CoordinatorError
from esker.client.client import ClientError, KafkaClient
from esker.settings.values import Endpoint, parse_endpoint
from raft.net.client import connect
from raft.net.errors import NetError, Reason
from raft.net.runner import run
from records.kafka_errors import ErrorCode, error_name
from records.rpc.base import CoordinatorRequest, Request, Response

R = TypeVar("R", bound=Response)

Controller = Annotated[
    str | None,
    typer.Option(
        "--bootstrap-controller",
        metavar="HOST:PORT[,...]",
        help="Controllers to ask instead of brokers; any of them will do.",
    ),
]
Server = Annotated[
    str | None,
    typer.Option(
        "--bootstrap-server",
        metavar="HOST:PORT[,...]",
        help="Brokers to ask, which ask the controller; default: 127.0.0.1:9092.",
    ),
]
BrokerBootstrap = Annotated[
    str, typer.Option(metavar="HOST:PORT[,...]", help="Brokers to begin with; any will do.")
]
AsJson = Annotated[bool, typer.Option("--json", help="One JSON object, for programs.")]
TimeoutMs = Annotated[int, typer.Option(min=1, help="Milliseconds to wait for an answer.")]

DEFAULT_SERVER: Final = "127.0.0.1:9092"
CONNECT_MS: Final = 5_000


@dataclass(frozen=True, slots=True)
class Target:
    """Whom to ask."""

    addresses: tuple[Endpoint, ...]
    brokers: bool


def target(bootstrap_controller: str | None, bootstrap_server: str | None) -> Target:
    """Whom these two options name. Raises typer.BadParameter if both are given."""
    if bootstrap_controller is None:
        server = DEFAULT_SERVER if bootstrap_server is None else bootstrap_server
        return Target(brokers_at(server), brokers=True)
    if bootstrap_server is not None:
        raise typer.BadParameter("give one of --bootstrap-controller and --bootstrap-server")
    return Target(endpoints(bootstrap_controller, "--bootstrap-controller"), brokers=False)


def endpoints(text: str, option: str) -> tuple[Endpoint, ...]:
    """HOST:PORT, comma separated. Raises typer.BadParameter, which names the option."""
    try:
        return tuple(parse_endpoint(part.strip()) for part in text.split(","))
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint=option) from None


def brokers_at(bootstrap_server: str) -> tuple[Endpoint, ...]:
    """The addresses of --bootstrap-server. Raises typer.BadParameter."""
    return endpoints(bootstrap_server, "--bootstrap-server")


def ask(at: Target, request: Request, response: type[R], timeout_ms: int) -> R:
    """The active controller's answer; ends the command if there is none."""
    if at.brokers:
        return _ask_brokers(at, request, response, timeout_ms)

    async def asked() -> R:
        await _find_somebody(at.addresses)
        client = ControllerClient(_addresses(at), timeout_ms=timeout_ms)
        try:
            return await client.call(request, response)
        finally:
            await client.close()

    return _answer(asked())


def ask_coordinator(
    at: Target,
    coordinator: int,
    request: CoordinatorRequest[R],
    timeout_ms: int,
) -> R:
    """Ask the leader of a partition of `__diskless-metadata`, directly or by way of a broker.

    Ends the command if nobody answers.
    """
    if at.brokers:
        return _ask_brokers(at, request, call_of(request).response, timeout_ms)
    settings = ClientSettings(timeout_ms=timeout_ms, attempt_timeout_ms=timeout_ms)

    async def asked() -> R:
        await _find_somebody(at.addresses)
        client = CoordinatorClient(_addresses(at), partition=coordinator, settings=settings)
        try:
            return await client.call(request)
        finally:
            await client.close()

    return _answer(asked())


def _ask_brokers(at: Target, request: Request, response: type[R], timeout_ms: int) -> R:
    async def asked() -> R:
        async with KafkaClient(at.addresses, timeout_ms=timeout_ms) as client:

            async def attempt() -> R:
                answer = await client.ask_any(request, response)
                if ErrorCode.NOT_CONTROLLER in error_codes(answer):
                    raise ClientError("the broker found no active controller", passing=True)
                return answer

            return await client.patiently(attempt)

    return _answer(asked())


def _answer(asked: Coroutine[Any, Any, R]) -> R:
    """What it comes to; or one line and exit code 1, where nobody could be asked."""
    try:
        return run(asked)
    except ClientError as error:
        fail(str(error))
    except CoordinatorError as error:
        fail(f"{error.message}: are a majority of the voters running?")


async def _find_somebody(controllers: Sequence[Endpoint]) -> None:
    """Raises ClientError if nobody listens at any of these; who is silent may yet answer."""
    failures = []
    for at in controllers:
        try:
            connection = await connect(at.host, at.port, timeout_ms=CONNECT_MS)
        except NetError as error:
            if error.reason not in (Reason.REFUSED, Reason.UNRESOLVED):
                return
            failures.append(error.message)
        else:
            connection.close()
            return
    raise ClientError(f"no controller answers ({'; '.join(failures)}): is a node running there?")


def _addresses(at: Target) -> list[tuple[str, int]]:
    return [(endpoint.host, endpoint.port) for endpoint in at.addresses]


def fail(message: str) -> NoReturn:
    """One line, and exit code 1."""
    typer.echo(f"esker: {message}", err=True)
    raise typer.Exit(1)


def stop_on(name: str, error_code: int, message: str | None) -> None:
    """Ends the command if `name` was refused; messages of ours name it themselves."""
    if error_code:
        fail(message or f"{name}: {error_name(error_code)}")


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
