"""`esker quorum`: describe the metadata quorum, and accept its clocks.

`describe` prints the columns of Kafka's own `kafka-metadata-quorum`, followed by the log start
offset and the newest snapshot of each replica that reports them. `accept-clock` sets the time by
which records are deleted (docs/design/clocks.md).
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Annotated, Any, Final

import typer

from esker.client.quorum_admin import (
    AdminError,
    QuorumDescription,
    describe_quorum,
    describe_quorum_by_broker,
)
from esker.client.snapshot_admin import NodeSnapshots, describe_snapshots
from esker.commands.base import CommandGroup
from esker.commands.cluster_access import (
    AsJson,
    Controller,
    Server,
    TimeoutMs,
    ask_coordinator,
    coordinators,
    stop_on,
    target,
)
from esker.commands.snapshot_nodes import parse_group
from esker.commands.text_tables import show, table
from raft.net.runner import run
from records.rpc.objects import AcceptClockRequest
from records.rpc.quorum import ReplicaState
from records.rpc.snapshots import DescribeSnapshotsResponse
from records.uuids import encode_uuid

app = CommandGroup("Describe the metadata quorum, or reset the batch coordinators' clocks.")

ACCEPT_EXAMPLE = "Example: esker quorum accept-clock"
EXAMPLE = "Example: esker quorum describe --replication"
METADATA: Final = "__cluster_metadata-0"


@app.callback(epilog=EXAMPLE)
def quorum() -> None:
    """Describe the metadata quorum, or reset the batch coordinators' clocks."""


@app.command(epilog=EXAMPLE)
def describe(
    group: Annotated[
        str | None,
        typer.Argument(
            metavar="TOPIC-N",
            help="Partition (TOPIC-N) whose log and replicas to describe; default: "
            "__cluster_metadata-0.",
        ),
    ] = None,
    bootstrap_controller: Controller = None,
    bootstrap_server: Server = None,
    replication: Annotated[
        bool,
        typer.Option(
            "--replication",
            help="Print one line per replica, with offsets, lag, timestamps and newest "
            "snapshot; default: print the leader's state.",
        ),
    ] = False,
    as_json: AsJson = False,
    timeout_ms: Annotated[
        int,
        typer.Option(
            help="Maximum time to wait for each response, in milliseconds; default: 5000."
        ),
    ] = 5000,
) -> None:
    """Print leader, epoch and high watermark, or with --replication each replica's progress.

    The log start offset, the newest snapshot and the floor of each replica, and the reason if its
    log has stopped because of a fork, are printed with --bootstrap-controller only: a broker
    reports the leader's state alone.
    """
    topic, partition = parse_group(group or METADATA)
    cluster = target(bootstrap_controller, bootstrap_server)
    own: GroupsByNode = {}
    try:
        ask = describe_quorum_by_broker if cluster.brokers else describe_quorum
        found = run(ask(cluster.addresses, topic, partition, timeout_ms=timeout_ms))
        if replication and not cluster.brokers:
            own = _groups_by_node(
                run(
                    describe_snapshots(cluster.addresses, (topic, partition), timeout_ms=timeout_ms)
                )
            )
    except AdminError as error:
        typer.echo(f"esker: {error}", err=True)
        raise typer.Exit(1) from None
    text = _replication_table(found, own) if replication else _status(found)
    show(_as_json(found, own), text, as_json=as_json)


@app.command(epilog=ACCEPT_EXAMPLE)
def accept_clock(
    bootstrap_controller: Controller = None,
    bootstrap_server: Server = None,
    coordinator: Annotated[
        int | None,
        typer.Option(
            min=0,
            help="Number of the __diskless-metadata partition whose coordinator's clock to "
            "reset; default: all partitions.",
        ),
    ] = None,
    as_json: AsJson = False,
    timeout_ms: TimeoutMs = 5000,
) -> None:
    """Set the time by which batch coordinators delete records to their leaders' wall clocks.

    Deletion by time stops when a leader starts with a wall clock that is far from the time in its
    log. Set the clocks right first: records that are too old by the accepted time are deleted.
    """
    cluster = target(bootstrap_controller, bootstrap_server)
    numbers = coordinators(cluster, timeout_ms) if coordinator is None else [coordinator]
    accepted = {}
    for number in numbers:
        request = AcceptClockRequest(coordinator_partition=number)
        response = ask_coordinator(cluster, number, request, timeout_ms)
        stop_on(f"coordinator {number}", response.error_code, response.error_message)
        accepted[number] = response
    clocks = [
        {
            "coordinator": number,
            "wasHeld": response.was_held,
            "beforeMs": response.before_ms,
            "steadyMs": response.steady_ms,
        }
        for number, response in accepted.items()
    ]
    lines = []
    for number, response in accepted.items():
        before = "none" if response.before_ms < 0 else _moment(response.before_ms)
        held = "held" if response.was_held else "not held"
        lines.append(
            f"Coordinator: {number}  Time: {_moment(response.steady_ms)}"
            f"  Before: {before}  Clock: {held}"
        )
    show({"coordinators": clocks}, "\n".join(lines), as_json=as_json)


def _moment(time_ms: int) -> str:
    return datetime.fromtimestamp(time_ms / 1000, UTC).isoformat(sep=" ", timespec="seconds")


GroupsByNode = Mapping[int, DescribeSnapshotsResponse.Group]
"""Each replica's description of its own log and checkpoints, by node id."""


def _groups_by_node(nodes: Iterable[NodeSnapshots]) -> GroupsByNode:
    return {node.node_id: group for node in nodes for group in node.groups if group.error_code == 0}


def _lag(found: QuorumDescription, replica: ReplicaState) -> int:
    return _leader(found).log_end_offset - replica.log_end_offset


def _leader(found: QuorumDescription) -> ReplicaState:
    partition = found.partition
    return next(r for r in partition.current_voters if r.replica_id == partition.leader_id)


def _status(found: QuorumDescription) -> str:
    partition = found.partition
    followers = [r for r in partition.current_voters if r.replica_id != partition.leader_id]
    slowest = max(followers, key=lambda r: _lag(found, r), default=None)
    lag_ms = -1
    if slowest is not None and slowest.last_caught_up_timestamp >= 0:
        leader_ms = _leader(found).last_caught_up_timestamp
        lag_ms = max(0, leader_ms - slowest.last_caught_up_timestamp)
    rows = {
        "ClusterId": found.cluster_id,
        "LeaderId": partition.leader_id,
        "LeaderEpoch": partition.leader_epoch,
        "HighWatermark": partition.high_watermark,
        "MaxFollowerLag": 0 if slowest is None else _lag(found, slowest),
        "MaxFollowerLagTimeMs": lag_ms,
        "CurrentVoters": _names(found, partition.current_voters),
        "CurrentObservers": _names(found, partition.observers),
    }
    return "\n".join(f"{name + ':':<24}{value}" for name, value in rows.items())


def _names(found: QuorumDescription, replicas: tuple[ReplicaState, ...]) -> str:
    def name(replica: ReplicaState) -> str:
        addresses = ",".join(map(str, found.nodes.get(replica.replica_id, ())))
        return f"{replica.replica_id}" + (f"@{addresses}" if addresses else "")

    return "[" + ", ".join(map(name, replicas)) + "]"


def _rows(found: QuorumDescription, own: GroupsByNode) -> list[dict[str, Any]]:
    partition = found.partition
    rows = []
    for status, replicas in (
        ("Follower", partition.current_voters),
        ("Observer", partition.observers),
    ):
        for replica in replicas:
            leads = replica.replica_id == partition.leader_id
            rows.append(
                {
                    "NodeId": replica.replica_id,
                    "DirectoryId": encode_uuid(replica.replica_directory_id),
                    "LogEndOffset": replica.log_end_offset,
                    "Lag": _lag(found, replica),
                    "LastFetchTimestamp": replica.last_fetch_timestamp,
                    "LastCaughtUpTimestamp": replica.last_caught_up_timestamp,
                    "Status": "Leader" if leads else status,
                    **_snapshot_columns(own.get(replica.replica_id)),
                }
            )
    return sorted(rows, key=lambda row: row["Status"] != "Leader")


def _snapshot_columns(group: DescribeSnapshotsResponse.Group | None) -> dict[str, Any]:
    """Return a replica's log start, newest snapshot and floor; unknown values are None."""
    newest = group.snapshots[-1] if group is not None and group.snapshots else None
    return {
        "LogStartOffset": None if group is None else group.log_start_offset,
        "NewestSnapshot": None if newest is None else f"{newest.end_offset}-{newest.epoch}",
        "Floor": None if group is None or group.floor < 0 else group.floor,
    }


def _doubts(own: GroupsByNode) -> dict[int, str]:
    """Return, by node id, the reason for each log that is in doubt because of a fork."""
    return {node: group.doubt for node, group in sorted(own.items()) if group.doubt}


def _replication_table(found: QuorumDescription, own: GroupsByNode) -> str:
    now_ms = int(time.time() * 1000)
    rows = _rows(found, own)
    cells = [[_cell(name, value, now_ms) for name, value in row.items()] for row in rows]
    doubts = [f"node {node}: {doubt}" for node, doubt in _doubts(own).items()]
    return "\n".join([table(list(rows[0]), cells), *doubts])


def _cell(name: str, value: Any, now_ms: int) -> str:
    if value is None:
        return "-"
    return _ago(value, now_ms) if name.endswith("Timestamp") else str(value)


def _ago(timestamp_ms: int, now_ms: int) -> str:
    return "never" if timestamp_ms < 0 else f"{max(0, now_ms - timestamp_ms)} ms ago"


def _as_json(found: QuorumDescription, own: GroupsByNode) -> dict[str, Any]:
    partition = found.partition
    return {
        "clusterId": found.cluster_id,
        "leaderId": partition.leader_id,
        "leaderEpoch": partition.leader_epoch,
        "highWatermark": partition.high_watermark,
        "doubts": {str(node): doubt for node, doubt in _doubts(own).items()},
        "replicas": [
            {name[0].lower() + name[1:]: value for name, value in row.items()}
            for row in _rows(found, own)
        ],
    }
