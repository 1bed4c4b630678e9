"""`esker brokers`: who is registered, who is fenced, and forgetting one that will not come back."""

from __future__ import annotations

import json
from typing import Annotated, Any, Final

import typer

from esker.commands.cluster_access import (
    AsJson,
    Controller,
    Server,
    TimeoutMs,
    ask,
    stop_on,
    target,
)
from esker.commands.text_tables import table
from records.rpc.brokers import UnregisterBrokerRequest, UnregisterBrokerResponse
from records.rpc.descriptions import DescribeBrokersRequest, DescribeBrokersResponse

app = typer.Typer(add_completion=False, no_args_is_help=True, help="Brokers of a running cluster.")

_AT: Final = "--bootstrap-server 127.0.0.1:9092"
LIST_EXAMPLE = f"Example: esker brokers list {_AT} --json"
UNREGISTER_EXAMPLE = f"Example: esker brokers unregister --id 4 {_AT}"
TIMEOUT_MS: Final = 30_000


@app.callback()
def brokers() -> None:
    """Brokers of a running cluster."""


@app.command(name="list", epilog=LIST_EXAMPLE)
def list_(
    bootstrap_controller: Controller = None,
    bootstrap_server: Server = None,
    as_json: AsJson = False,
    timeout_ms: TimeoutMs = TIMEOUT_MS,
) -> None:
    """Print registered brokers, fenced ones included."""
    at = target(bootstrap_controller, bootstrap_server)
    found = ask(at, DescribeBrokersRequest(), DescribeBrokersResponse, timeout_ms)
    stop_on("brokers", found.error_code, found.error_message)
    if as_json:
        typer.echo(json.dumps({"brokers": [_as_json(broker) for broker in found.brokers]}))
        return
    rows = [
        (
            str(broker.broker_id),
            str(broker.broker_epoch),
            state_of(broker),
            broker.rack or "-",
            ",".join(f"{one.name}://{one.host}:{one.port}" for one in broker.listeners),
        )
        for broker in found.brokers
    ]
    typer.echo(table(("Id", "Epoch", "State", "Rack", "Listeners"), rows))


@app.command(epilog=UNREGISTER_EXAMPLE)
def unregister(
    broker_id: Annotated[int, typer.Option("--id", min=0, help="The broker's id.")],
    bootstrap_controller: Controller = None,
    bootstrap_server: Server = None,
    timeout_ms: TimeoutMs = TIMEOUT_MS,
) -> None:
    """Forget a broker that is gone for good."""
    at = target(bootstrap_controller, bootstrap_server)
    request = UnregisterBrokerRequest(broker_id=broker_id)
    answer = ask(at, request, UnregisterBrokerResponse, timeout_ms)
    stop_on(f"broker {broker_id}", answer.error_code, answer.error_message)
    typer.echo(f"Broker {broker_id} is no longer registered.")


def state_of(broker: DescribeBrokersResponse.Broker) -> str:
    """In a word."""
    if broker.is_fenced:  # also one that has shut down, until it comes again
        return "fenced"
    return "shutting down" if broker.in_controlled_shutdown else "active"


def _as_json(broker: DescribeBrokersResponse.Broker) -> dict[str, Any]:
    return {
        "id": broker.broker_id,
        "epoch": broker.broker_epoch,
        "state": state_of(broker),
        "rack": broker.rack,
        "listeners": [
            {"name": one.name, "host": one.host, "port": one.port} for one in broker.listeners
        ],
    }
