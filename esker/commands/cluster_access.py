"""Options, requests and error exits shared by the commands that talk to a running cluster.

A command sends its request to controllers (`--bootstrap-controller`) or to brokers
(`--bootstrap-server`), whichever the machine can reach. Without these options the environment or a
profile names them, and else it is the broker that `esker dev` starts. A controller redirects the
client to the active controller; a broker forwards the request to it and returns its response. If
every given address refuses the connection, the command fails at once: it retries only against a
cluster that is known to run.

Source: KIP-919 (controllers as bootstrap servers), KIP-590 (brokers that forward).
"""

from __future__ import annotations

import os
from collections.abc import Coroutine, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Final, NoReturn, TypeVar

import typer

from coordinator.batch.calls import call_of
from coordinator.batch.client import ClientSettings, CoordinatorClient
from coordinator.controller.client import ControllerClient, error_codes
from coordinator.errors import CoordinatorError
from esker.client.client import QUORUM_AWAY_MS, ClientError, KafkaClient
from esker.client.profiles import CONTROLLERS, SERVERS, ProfileError, read_profiles
from esker.commands.progress import still_trying
from esker.settings.values import Endpoint, parse_endpoint
from raft.net.client import connect
from raft.net.errors import NetError, Reason
from raft.net.runner import run
from records.internal_topics import DISKLESS_METADATA
from records.kafka_errors import ErrorCode, error_name
from records.rpc.base import CoordinatorRequest, Request, Response
from records.rpc.descriptions import DescribeTopicsRequest, DescribeTopicsResponse

R = TypeVar("R", bound=Response)
T = TypeVar("T")

SERVERS_VARIABLE: Final = "ESKER_BOOTSTRAP_SERVERS"
"""The environment variable that names the brokers of a command without --bootstrap-server."""

Controller = Annotated[
    str | None,
    typer.Option(
        "--bootstrap-controller",
        metavar="HOST:PORT[,...]",
        help="Addresses (host:port,...) of controllers to send requests to; default: brokers "
        "are used.",
    ),
]
Server = Annotated[
    str | None,
    typer.Option(
        "--bootstrap-server",
        metavar="HOST:PORT[,...]",
        help="Addresses (host:port,...) of brokers to connect to first; default: the environment's "
        f"{SERVERS_VARIABLE}, else those of the profile, else 127.0.0.1:9092.",
    ),
]
AsJson = Annotated[
    bool, typer.Option("--json", help="Print the result as one JSON object; default: print text.")
]
TimeoutMs = Annotated[
    int,
    typer.Option(
        min=1,
        help="Time to wait for a response before the command fails, in milliseconds; default: "
        "5000 to 60000, depending on the command.",
    ),
]

DEFAULT_SERVER: Final = "127.0.0.1:9092"
CONNECT_MS: Final = 5_000
USAGE: Final = 2  # exit code of a wrong command line or configuration


@dataclass(frozen=True, slots=True)
class Target:
    """The nodes that a command sends its requests to: brokers or controllers."""

    addresses: tuple[Endpoint, ...]
    brokers: bool


def target(bootstrap_controller: str | None, bootstrap_server: str | None) -> Target:
    """Return the nodes to send requests to. Raises typer.BadParameter if both options are set."""
    if bootstrap_controller is None and bootstrap_server is None:
        bootstrap_controller, bootstrap_server = _default_addresses()
    if bootstrap_controller is None:
        servers = DEFAULT_SERVER if bootstrap_server is None else bootstrap_server
        return Target(broker_addresses(servers), brokers=True)
    if bootstrap_server is not None:
        raise typer.BadParameter(
            "--bootstrap-controller and --bootstrap-server exclude each other: give one of them"
        )
    return Target(endpoints(bootstrap_controller, "--bootstrap-controller"), brokers=False)


def _default_addresses() -> tuple[str | None, str | None]:
    """Return the controllers or brokers of the environment or the profile; None without either."""
    if servers := os.environ.get(SERVERS_VARIABLE):
        return None, servers
    properties = profile_or_exit()
    if SERVERS in properties:
        return None, properties[SERVERS]
    return properties.get(CONTROLLERS), None


def profile_or_exit(name: str | None = None) -> Mapping[str, str]:
    """Return the properties of the named or the default profile, or end the command with 2.

    There may be no profile at all, unless one is named; then there are no properties.
    """
    try:
        profiles = read_profiles()
        chosen = profiles.chosen(name)
        return {} if chosen is None else profiles[chosen]
    except ProfileError as error:
        stop_for_profile(error)


def stop_for_profile(error: ProfileError) -> NoReturn:
    """Print the file, the line and the fault of a profile, and end the command with 2."""
    typer.echo(f"esker: {error}", err=True)
    raise typer.Exit(USAGE) from None


def no_servers() -> typer.BadParameter:
    """Return the error for a command that needs brokers if its profile names controllers only."""
    return typer.BadParameter(
        f"has no {SERVERS}, and this command asks brokers: give --bootstrap-server",
        param_hint="the profile",
    )


def endpoints(text: str, option: str) -> tuple[Endpoint, ...]:
    """Parse comma-separated HOST:PORT addresses. Raises typer.BadParameter naming the option."""
    try:
        return tuple(parse_endpoint(part.strip()) for part in text.split(","))
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint=option) from None


def broker_addresses(bootstrap_server: str | None) -> tuple[Endpoint, ...]:
    """Parse the addresses of --bootstrap-server, or find defaults. Raises typer.BadParameter."""
    if bootstrap_server is None:
        controllers, servers = _default_addresses()
        if controllers is not None:
            raise no_servers()
        bootstrap_server = servers or DEFAULT_SERVER
    return endpoints(bootstrap_server, "--bootstrap-server")


def broker_client(addresses: Sequence[Endpoint], timeout_ms: int) -> KafkaClient:
    """Return a client of brokers that prints the reason for waits of some seconds."""
    client = KafkaClient(addresses, timeout_ms=timeout_ms)
    client.on_wait = still_trying
    return client


def ask(cluster: Target, request: Request, response: type[R], timeout_ms: int) -> R:
    """Return the active controller's response, or end the command if none arrives."""
    if cluster.brokers:
        return _ask_brokers(cluster, request, response, timeout_ms)

    async def exchange() -> R:
        await _require_listener(cluster.addresses)
        client = ControllerClient(_addresses(cluster), timeout_ms=timeout_ms)
        try:
            return await client.call(request, response)
        finally:
            await client.close()

    return run_or_fail(exchange())


def ask_coordinator(
    cluster: Target,
    coordinator: int,
    request: CoordinatorRequest[R],
    timeout_ms: int,
) -> R:
    """Return the response of the leader of a `__diskless-metadata` partition.

    The request goes to the leader directly, or through a broker. Ends the command if neither
    responds.
    """
    if cluster.brokers:
        return _ask_brokers(cluster, request, call_of(request).response, timeout_ms)
    settings = ClientSettings(timeout_ms=timeout_ms, attempt_timeout_ms=timeout_ms)

    async def exchange() -> R:
        await _require_listener(cluster.addresses)
        client = CoordinatorClient(_addresses(cluster), partition=coordinator, settings=settings)
        try:
            return await client.call(request)
        finally:
            await client.close()

    return run_or_fail(exchange())


def coordinators(cluster: Target, timeout_ms: int) -> range:
    """Return the partition numbers of `__diskless-metadata`, one per batch coordinator."""
    request = DescribeTopicsRequest(topic_names=(DISKLESS_METADATA,))
    (topic,) = ask(cluster, request, DescribeTopicsResponse, timeout_ms).topics
    if topic.error_code:
        fail(f"the cluster has no {DISKLESS_METADATA}")
    return range(len(topic.partitions))


def _ask_brokers(cluster: Target, request: Request, response: type[R], timeout_ms: int) -> R:
    async def exchange() -> R:
        async with broker_client(cluster.addresses, timeout_ms) as client:

            async def attempt() -> R:
                received = await client.ask_any(request, response)
                if ErrorCode.NOT_CONTROLLER in error_codes(received):
                    raise ClientError("the broker found no active controller", passing=True)
                return received

            return await client.patiently(attempt)

    return run_or_fail(exchange())


def run_or_fail(exchange: Coroutine[Any, Any, T]) -> T:
    """Run requests and return their result; on failure print one line and exit with 1."""
    try:
        return run(exchange)
    except (ClientError, NetError) as error:
        fail(str(error))
    except CoordinatorError as error:
        fail(f"{error.message}: are a majority of the voters running?")


async def _require_listener(controllers: Sequence[Endpoint]) -> None:
    """Raise ClientError if every address refuses connections or does not resolve.

    An address that times out counts as a listener, because it may still respond later.
    """
    failures = []
    for endpoint in controllers:
        try:
            connection = await connect(endpoint.host, endpoint.port, timeout_ms=CONNECT_MS)
        except NetError as error:
            if error.reason not in (Reason.REFUSED, Reason.UNRESOLVED):
                return
            failures.append(error.message)
        else:
            connection.close()
            return
    raise ClientError(f"no controller answers ({'; '.join(failures)}): is a node running there?")


def _addresses(cluster: Target) -> list[tuple[str, int]]:
    return [(endpoint.host, endpoint.port) for endpoint in cluster.addresses]


def fail(message: str) -> NoReturn:
    """Print one line on standard error and end the command with exit code 1."""
    typer.echo(f"esker: {message}", err=True)
    raise typer.Exit(1)


def warn_of_age(image_age_ms: int) -> None:
    """Print a warning if the broker's cluster image is old because the quorum has no leader."""
    if image_age_ms >= QUORUM_AWAY_MS:
        typer.echo(
            f"esker: the broker has heard of no leader of the quorum for "
            f"{image_age_ms / 1_000:.0f} s; this may be as old",
            err=True,
        )


def stop_on(name: str, error_code: int, message: str | None) -> None:
    """End the command if the response has an error, printing `name` and the message."""
    if error_code:
        text = message or f"{name}: {error_name(error_code)}"
        if error_code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED:
            text = (
                f"{text.rstrip('.')}; the node's log names the missing operation (decision=denied)"
            )
        fail(text)


def pairs(text: list[str], option: str) -> dict[str, str]:
    """Parse `key=value` options into a dictionary. Raises typer.BadParameter naming the option.

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
