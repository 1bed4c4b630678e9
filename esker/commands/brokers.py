"""`esker brokers`: list registered brokers with their state, and unregister removed ones."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Any, Final

import typer

from esker.commands.base import CommandGroup
from esker.commands.cluster_access import (
    AsJson,
    Controller,
    Server,
    Target,
    TimeoutMs,
    ask,
    stop_on,
    target,
    warn_of_age,
)
from esker.commands.text_tables import show, table
from records.rpc.brokers import UnregisterBrokerRequest, UnregisterBrokerResponse
from records.rpc.descriptions import DescribeBrokersRequest, DescribeBrokersResponse

app = CommandGroup("List and unregister the brokers of a running cluster.")

LIST_EXAMPLE = "Example: esker brokers list --json"
UNREGISTER_EXAMPLE = "Example: esker brokers unregister 4"
TIMEOUT_MS: Final = 30_000


@app.callback(epilog=LIST_EXAMPLE)
def brokers() -> None:
    """List and unregister the brokers of a running cluster."""


@app.command(name="list", epilog=LIST_EXAMPLE)
def list_(
    bootstrap_controller: Controller = None,
    bootstrap_server: Server = None,
    as_json: AsJson = False,
    timeout_ms: TimeoutMs = TIMEOUT_MS,
) -> None:
    """Print all registered brokers, fenced ones included."""
    cluster = target(bootstrap_controller, bootstrap_server)
    found = describe_brokers(cluster, timeout_ms)
    show({"brokers": [broker_json(one) for one in found]}, broker_table(found), as_json=as_json)


@app.command(epilog=UNREGISTER_EXAMPLE)
def unregister(
    broker_id: Annotated[
        int, typer.Argument(metavar="ID", min=0, help="Id (node.id) of the broker to unregister.")
    ],
    bootstrap_controller: Controller = None,
    bootstrap_server: Server = None,
    as_json: AsJson = False,
    timeout_ms: TimeoutMs = TIMEOUT_MS,
) -> None:
    """Unregister a broker that is removed permanently."""
    cluster = target(bootstrap_controller, bootstrap_server)
    request = UnregisterBrokerRequest(broker_id=broker_id)
    response = ask(cluster, request, UnregisterBrokerResponse, timeout_ms)
    stop_on(f"broker {broker_id}", response.error_code, response.error_message)
    show({"id": broker_id}, f"Broker {broker_id} is no longer registered.", as_json=as_json)


def describe_brokers(
    cluster: Target, timeout_ms: int
) -> tuple[DescribeBrokersResponse.Broker, ...]:
    """Return all registered brokers, or end the command if no node responds."""
    response = ask(cluster, DescribeBrokersRequest(), DescribeBrokersResponse, timeout_ms)
    stop_on("brokers", response.error_code, response.error_message)
    warn_of_age(response.image_age_ms)
    return response.brokers


def broker_table(brokers: Iterable[DescribeBrokersResponse.Broker]) -> str:
    """Format brokers and their states as a table of text."""
    rows = [
        (
            str(broker.broker_id),
            str(broker.broker_epoch),
            state_of(broker),
            broker.rack or "-",
            ",".join(
                f"{listener.name}://{listener.host}:{listener.port}"
                for listener in broker.listeners
            ),
            preference_of(broker),  # the last column, as a reason may be long
        )
        for broker in brokers
    ]
    return table(("Id", "Epoch", "State", "Rack", "Listeners", "Preferred"), rows)


def state_of(broker: DescribeBrokersResponse.Broker) -> str:
    """Return the broker's state as one word or phrase: fenced, shutting down or active."""
    if broker.is_fenced:  # also a broker that has shut down, until it registers again
        return "fenced"
    return "shutting down" if broker.in_controlled_shutdown else "active"


def preference_of(broker: DescribeBrokersResponse.Broker) -> str:
    """Return "yes" if brokers send clients to this broker, else "no" with the reason."""
    reason = broker.unpreferred_reason
    return f"no: {reason}" if reason else "yes"


def broker_json(broker: DescribeBrokersResponse.Broker) -> dict[str, Any]:
    """Return a broker as a JSON object."""
    return {
        "id": broker.broker_id,
        "epoch": broker.broker_epoch,
        "state": state_of(broker),
        "preferred": not broker.unpreferred_reason,
        "unpreferredReason": broker.unpreferred_reason or None,
        "rack": broker.rack,
        "listeners": [
            {"name": listener.name, "host": listener.host, "port": listener.port}
            for listener in broker.listeners
        ],
    }
