"""`esker cluster`: one page on a running cluster: id, controller, brokers, features, quorum."""

from __future__ import annotations

from typing import Any, Final

from esker.client.quorum_admin import (
    AdminError,
    QuorumDescription,
    describe_quorum,
    describe_quorum_by_broker,
)
from esker.commands.base import CommandGroup
from esker.commands.brokers import broker_json, broker_table, describe_brokers
from esker.commands.cluster_access import AsJson, Controller, Server, TimeoutMs, fail, target
from esker.commands.features import describe_features, feature_table
from esker.commands.text_tables import show
from raft.net.runner import run
from records.internal_topics import CLUSTER_METADATA

app = CommandGroup("Describe a running cluster.")

DESCRIBE_EXAMPLE = "Example: esker cluster describe --json"
TIMEOUT_MS: Final = 30_000


@app.callback(epilog=DESCRIBE_EXAMPLE)
def cluster() -> None:
    """Describe a running cluster as a whole."""


@app.command(epilog=DESCRIBE_EXAMPLE)
def describe(
    bootstrap_controller: Controller = None,
    bootstrap_server: Server = None,
    as_json: AsJson = False,
    timeout_ms: TimeoutMs = TIMEOUT_MS,
) -> None:
    """Print a cluster's id, active controller, quorum, brokers and feature levels."""
    nodes = target(bootstrap_controller, bootstrap_server)
    ask = describe_quorum_by_broker if nodes.brokers else describe_quorum
    try:
        quorum = run(ask(nodes.addresses, CLUSTER_METADATA, 0, timeout_ms=timeout_ms))
    except AdminError as error:
        fail(str(error))
    brokers = describe_brokers(nodes, timeout_ms)
    epoch, features = describe_features(nodes, timeout_ms)
    text = "\n\n".join([_quorum_text(quorum), broker_table(brokers), feature_table(features)])
    result = {
        "clusterId": quorum.cluster_id,
        "controllerId": quorum.partition.leader_id,
        "quorum": _quorum_json(quorum),
        "brokers": [broker_json(broker) for broker in brokers],
        "featuresEpoch": epoch,
        "features": features,
    }
    show(result, text, as_json=as_json)


def _quorum_json(quorum: QuorumDescription) -> dict[str, Any]:
    partition = quorum.partition
    return {
        "leaderId": partition.leader_id,
        "leaderEpoch": partition.leader_epoch,
        "highWatermark": partition.high_watermark,
        "voters": [
            {
                "id": voter.replica_id,
                "logEndOffset": voter.log_end_offset,
                "endpoints": [
                    {"host": endpoint.host, "port": endpoint.port}
                    for endpoint in quorum.nodes.get(voter.replica_id, ())
                ],
            }
            for voter in partition.current_voters
        ],
    }


def _quorum_text(quorum: QuorumDescription) -> str:
    partition = quorum.partition
    voters = []
    for voter in partition.current_voters:
        addresses = ",".join(map(str, quorum.nodes.get(voter.replica_id, ())))
        voters.append(f"{voter.replica_id}@{addresses}" if addresses else str(voter.replica_id))
    rows = {
        "ClusterId": quorum.cluster_id,
        "Controller": f"{partition.leader_id} (epoch {partition.leader_epoch})",
        "Voters": ", ".join(voters),
        "HighWatermark": partition.high_watermark,
    }
    return "\n".join(f"{name + ':':<15}{value}" for name, value in rows.items())
