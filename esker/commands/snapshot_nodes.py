"""`esker snapshot list|take --bootstrap-controller`: list and take checkpoints on running nodes."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import typer

from esker.client.quorum_admin import AdminError
from esker.client.snapshot_admin import (
    Group,
    NodeSnapshots,
    Taken,
    describe_snapshots,
    take_snapshots,
)
from esker.commands.cluster_access import endpoints
from esker.commands.text_tables import table
from esker.dump.human import on_one_line
from esker.settings.values import Endpoint
from raft.net.runner import run
from records.kafka_errors import error_name

DONE = 0
NOT_ALL = 1
DISCOVERY_MS = 5_000  # to find the nodes, before they are asked for checkpoints

_HEADINGS = (
    "Group", "Node", "EndOffset", "Epoch", "Bytes", "LogStart", "LogEnd", "LogBytes", "State",
)  # fmt: skip


def _controllers(bootstrap: str) -> tuple[Endpoint, ...]:
    return endpoints(bootstrap, "--bootstrap-controller")


def parse_group(text: str) -> tuple[str, int]:
    """Parse TOPIC-N into topic and partition. Raises typer.BadParameter for other text.

    >>> parse_group("__cluster_metadata-0")
    ('__cluster_metadata', 0)
    """
    topic, _, partition = text.rpartition("-")
    if not topic or not (partition.isascii() and partition.isdecimal()) or len(partition) > 9:
        raise typer.BadParameter(f"{text!r} is not TOPIC-N", param_hint="--group")
    return topic, int(partition)


def list_nodes(bootstrap: str, group: str | None, *, as_json: bool, timeout_ms: int) -> int:
    """Print the checkpoints and log offsets of every node; return the exit code."""
    chosen = None if group is None else parse_group(group)
    try:
        nodes = run(describe_snapshots(_controllers(bootstrap), chosen, timeout_ms=timeout_ms))
    except AdminError as error:
        return _print_error(str(error))
    if as_json:
        for line in _lines(nodes):
            typer.echo(json.dumps(line, separators=(",", ":")))
    else:
        typer.echo(_table(nodes))
    code = DONE
    for node in nodes:
        if node.failure is not None:
            code = _print_error(f"{node.endpoint}: {node.failure}")
    for name, node_id, error_code in _refusals(nodes):
        reason = f"node {node_id} returned {error_name(error_code)}"
        code = _print_error(f"{name}: {reason}: check the partition's name")
    return code


def _refusals(nodes: Sequence[NodeSnapshots]) -> list[tuple[str, int, int]]:
    return [
        (_name(group), node.node_id, group.error_code)
        for node in nodes
        for group in node.groups
        if group.error_code
    ]


def _name(group: Group) -> str:
    return f"{group.topic_name}-{group.partition_index}"


def _by_group(nodes: Sequence[NodeSnapshots]) -> list[tuple[Group, int]]:
    """Return the replicas that nodes could describe, sorted by partition name and node id."""
    found = [(group, node.node_id) for node in nodes for group in node.groups]
    sound = [(group, node_id) for group, node_id in found if not group.error_code]
    return sorted(sound, key=lambda pair: (_name(pair[0]), pair[1]))


def _lines(nodes: Sequence[NodeSnapshots]) -> list[dict[str, Any]]:
    return [
        {
            "group": _name(group),
            "nodeId": node_id,
            "leaderId": group.leader_id,
            "leaderEpoch": group.leader_epoch,
            "logStartOffset": group.log_start_offset,
            "logEndOffset": group.log_end_offset,
            "highWatermark": group.high_watermark,
            "logBytes": group.log_size,
            "appliedOffset": group.applied_offset,
            "generating": group.generating,
            "receiving": group.receiving,
            "snapshots": [
                {
                    "endOffset": snapshot.end_offset,
                    "epoch": snapshot.epoch,
                    "sizeBytes": snapshot.size,
                }
                for snapshot in group.snapshots
            ],
        }
        for group, node_id in _by_group(nodes)
    ]


def _table(nodes: Sequence[NodeSnapshots]) -> str:
    """Format one line for each checkpoint, or a line of dashes for a log without checkpoints."""
    rows = []
    for group, node_id in _by_group(nodes):
        log = [str(group.log_start_offset), str(group.log_end_offset), str(group.log_size)]
        files = [
            [str(snapshot.end_offset), str(snapshot.epoch), str(snapshot.size)]
            for snapshot in group.snapshots
        ] or [["-", "-", "-"]]
        for number, file in enumerate(files):
            newest = number == len(files) - 1
            rows.append(
                [
                    on_one_line(_name(group)),
                    str(node_id),
                    *file,
                    *log,
                    _state(group) if newest else "",
                ]
            )
    return table(_HEADINGS, rows)


def _state(group: Group) -> str:
    """Describe the replica's current snapshot work: writing, fetching or idle."""
    words = ["writing one"] * group.generating + ["fetching one"] * group.receiving
    return ", ".join(words) or "idle"


# --- take ----------------------------------------------------------------------------------------


def take_on_nodes(
    bootstrap: str, group: str, nodes: Sequence[int] | None, *, as_json: bool, timeout_ms: int
) -> int:
    """Take a checkpoint on each node and print the results; return the exit code."""
    chosen = frozenset(nodes) if nodes else None
    try:
        taken = run(
            take_snapshots(
                _controllers(bootstrap),
                parse_group(group),
                chosen,
                timeout_ms=DISCOVERY_MS,
                take_timeout_ms=timeout_ms,
            )
        )
    except AdminError as error:
        return _print_error(str(error))
    code = DONE
    for result in taken:
        if result.failure is not None:
            node = f"node {result.node_id}" if result.node_id >= 0 else str(result.endpoint)
            code = _print_error(f"{group}: {node}: {result.failure}")
        else:
            typer.echo(_taken_text(group, result, as_json=as_json))
    return code


def _taken_text(group: str, result: Taken, *, as_json: bool) -> str:
    answer = result.answer
    assert answer is not None, f"neither an answer nor a failure: {result}"
    if as_json:
        line = {"group": group, "nodeId": result.node_id, "endOffset": answer.end_offset}
        return json.dumps({**line, "epoch": answer.epoch, "sizeBytes": answer.size})
    return (
        f"{group}: node {result.node_id} has a checkpoint up to offset {answer.end_offset}, "
        f"epoch {answer.epoch}, {answer.size} bytes"
    )


def _print_error(reason: str) -> int:
    typer.echo(f"esker: {on_one_line(reason)}", err=True)
    return NOT_ALL
