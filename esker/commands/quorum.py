"""`esker quorum`: what the metadata quorum says of itself.

The columns and words of `describe` are those of Kafka's own `kafka-metadata-quorum`.
"""

from __future__ import annotations

import json
import time
from typing import Annotated, Any

import typer

from esker.admin import AdminError, QuorumDescription, describe_quorum
from esker.config import Endpoint, parse_endpoint
from raft.net.runner import run
from records.rpc.quorum import ReplicaState
from records.uuids import encode_uuid

app = typer.Typer(no_args_is_help=True, help="The metadata quorum: its leader and replicas.")

EXAMPLE = "Example: esker quorum describe --bootstrap-controller 127.0.0.1:9093 --replication"


@app.callback()
def quorum() -> None:
    """The metadata quorum: its leader and replicas."""


@app.command(epilog=EXAMPLE)
def describe(
    bootstrap_controller: Annotated[
        str,
        typer.Option(metavar="HOST:PORT[,...]", help="Controllers to ask; any of them will do."),
    ],
    replication: Annotated[
        bool, typer.Option("--replication", help="A line for each replica: offsets, lag, times.")
    ] = False,
    group: Annotated[
        str, typer.Option(metavar="TOPIC-N", help="Which replicated partition.")
    ] = "__cluster_metadata-0",
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object, for programs.")] = False,
    timeout_ms: Annotated[int, typer.Option(help="Milliseconds to wait for each answer.")] = 5000,
) -> None:
    """Print leader, epoch and high watermark, or with --replication every replica's progress."""
    topic, _, partition = group.rpartition("-")
    if not topic or not partition.isdecimal() or len(partition) > 9:
        raise typer.BadParameter(f"{group!r} is not TOPIC-N", param_hint="--group")
    try:
        found = run(
            describe_quorum(
                _bootstrap(bootstrap_controller), topic, int(partition), timeout_ms=timeout_ms
            )
        )
    except AdminError as error:
        typer.echo(f"esker: {error}", err=True)
        raise typer.Exit(1) from None
    if as_json:
        typer.echo(json.dumps(_as_json(found)))
    elif replication:
        typer.echo(_replication_table(found))
    else:
        typer.echo(_status(found))


def _bootstrap(text: str) -> tuple[Endpoint, ...]:
    try:
        return tuple(parse_endpoint(part.strip()) for part in text.split(","))
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--bootstrap-controller") from None


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
    def one(replica: ReplicaState) -> str:
        at = ",".join(str(endpoint) for endpoint in found.nodes.get(replica.replica_id, ()))
        return f"{replica.replica_id}" + (f"@{at}" if at else "")

    return "[" + ", ".join(one(replica) for replica in replicas) + "]"


def _rows(found: QuorumDescription) -> list[dict[str, Any]]:
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
                }
            )
    return sorted(rows, key=lambda row: row["Status"] != "Leader")


def _replication_table(found: QuorumDescription) -> str:
    now_ms = int(time.time() * 1000)
    rows = [
        {
            name: _ago(value, now_ms) if name.endswith("Timestamp") else str(value)
            for name, value in row.items()
        }
        for row in _rows(found)
    ]
    widths = {name: max(len(name), *(len(row[name]) for row in rows)) for name in rows[0]}
    lines = [list(widths), *(list(row.values()) for row in rows)]
    return "\n".join(_aligned(line, list(widths.values())) for line in lines)


def _aligned(cells: list[str], widths: list[int]) -> str:
    padded = (cell.ljust(width) for cell, width in zip(cells, widths, strict=True))
    return "  ".join(padded).rstrip()


def _ago(timestamp_ms: int, now_ms: int) -> str:
    return "never" if timestamp_ms < 0 else f"{max(0, now_ms - timestamp_ms)} ms ago"


def _as_json(found: QuorumDescription) -> dict[str, Any]:
    partition = found.partition
    return {
        "clusterId": found.cluster_id,
        "leaderId": partition.leader_id,
        "leaderEpoch": partition.leader_epoch,
        "highWatermark": partition.high_watermark,
        "replicas": [
            {name[0].lower() + name[1:]: value for name, value in row.items()}
            for row in _rows(found)
        ],
    }
