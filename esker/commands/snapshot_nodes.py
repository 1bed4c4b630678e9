"""`esker snapshot list|take --bootstrap-controller`: what running nodes have, and take one now."""

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
from esker.commands.text_tables import table
from esker.dump.human import on_one_line
from esker.settings.values import Endpoint, parse_endpoint
from raft.net.runner import run

DONE = 0
NOT_ALL = 1
FINDING_OUT_MS = 5_000  # to learn which nodes there are, before they are asked to work

_HEADINGS = (
    "Group", "Node", "EndOffset", "Epoch", "Bytes", "LogStart", "LogEnd", "LogBytes", "State",
)  # fmt: skip


def parse_bootstrap(text: str) -> tuple[Endpoint, ...]:
    """HOST:PORT, comma separated. Raises typer.BadParameter."""
    try:
        return tuple(parse_endpoint(part.strip()) for part in text.split(","))
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--bootstrap-controller") from None


def parse_group(text: str) -> tuple[str, int]:
    """TOPIC-N. Raises typer.BadParameter.

    >>> parse_group("__cluster_metadata-0")
    ('__cluster_metadata', 0)
    """
    topic, _, partition = text.rpartition("-")
    if not topic or not (partition.isascii() and partition.isdecimal()) or len(partition) > 9:
        raise typer.BadParameter(f"{text!r} is not TOPIC-N", param_hint="--group")
    return topic, int(partition)


def list_nodes(bootstrap: str, group: str | None, *, as_json: bool, timeout_ms: int) -> int:
    """Print what every node has. Returns the exit code."""
    chosen = None if group is None else parse_group(group)
    try:
        nodes = run(describe_snapshots(parse_bootstrap(bootstrap), chosen, timeout_ms=timeout_ms))
    except AdminError as error:
        return _complain(str(error))
    if as_json:
        for line in _lines(nodes):
            typer.echo(json.dumps(line, separators=(",", ":")))
    else:
        typer.echo(_table(nodes))
    code = DONE
    for said in nodes:
        if said.failure is not None:
            code = _complain(f"{said.endpoint}: {said.failure}")
    for name, node, number in _refusals(nodes):
        code = _complain(f"{name}: node {node} answers error {number}: is it a group there?")
    return code


def _refusals(nodes: Sequence[NodeSnapshots]) -> list[tuple[str, int, int]]:
    return [
        (_name(group), said.node_id, group.error_code)
        for said in nodes
        for group in said.groups
        if group.error_code
    ]


def _name(group: Group) -> str:
    return f"{group.topic_name}-{group.partition_index}"


def _by_group(nodes: Sequence[NodeSnapshots]) -> list[tuple[Group, int]]:
    """The groups that answered without an error, each node's after the other."""
    found = [(group, said.node_id) for said in nodes for group in said.groups]
    sound = [one for one in found if not one[0].error_code]
    return sorted(sound, key=lambda one: (_name(one[0]), one[1]))


def _lines(nodes: Sequence[NodeSnapshots]) -> list[dict[str, Any]]:
    return [
        {
            "group": _name(group),
            "nodeId": node,
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
                {"endOffset": one.end_offset, "epoch": one.epoch, "sizeBytes": one.size}
                for one in group.snapshots
            ],
        }
        for group, node in _by_group(nodes)
    ]


def _table(nodes: Sequence[NodeSnapshots]) -> str:
    """A line for each checkpoint; one with dashes for a log that has none."""
    rows = []
    for group, node in _by_group(nodes):
        log = [str(group.log_start_offset), str(group.log_end_offset), str(group.log_size)]
        files = [
            [str(one.end_offset), str(one.epoch), str(one.size)] for one in group.snapshots
        ] or [["-", "-", "-"]]
        for number, file in enumerate(files):
            newest = number == len(files) - 1
            rows.append(
                [on_one_line(_name(group)), str(node), *file, *log, _state(group) if newest else ""]
            )
    return table(_HEADINGS, rows)


def _state(group: Group) -> str:
    """What goes on there now."""
    words = ["writing one"] * group.generating + ["fetching one"] * group.receiving
    return ", ".join(words) or "idle"


# --- take ----------------------------------------------------------------------------------------


def take_on_nodes(
    bootstrap: str, group: str, nodes: Sequence[int] | None, *, as_json: bool, timeout_ms: int
) -> int:
    """Have nodes take a checkpoint, and print what came of it. Returns the exit code."""
    chosen = frozenset(nodes) if nodes else None
    try:
        taken = run(
            take_snapshots(
                parse_bootstrap(bootstrap),
                parse_group(group),
                chosen,
                timeout_ms=FINDING_OUT_MS,
                take_timeout_ms=timeout_ms,
            )
        )
    except AdminError as error:
        return _complain(str(error))
    code = DONE
    for one in taken:
        if one.failure is not None:
            who = f"node {one.node_id}" if one.node_id >= 0 else str(one.endpoint)
            code = _complain(f"{group}: {who}: {one.failure}")
        else:
            typer.echo(_taken(group, one, as_json=as_json))
    return code


def _taken(group: str, one: Taken, *, as_json: bool) -> str:
    answer = one.answer
    assert answer is not None, f"neither an answer nor a failure: {one}"
    if as_json:
        line = {"group": group, "nodeId": one.node_id, "endOffset": answer.end_offset}
        return json.dumps({**line, "epoch": answer.epoch, "sizeBytes": answer.size})
    return (
        f"{group}: node {one.node_id} has a checkpoint up to offset {answer.end_offset}, "
        f"epoch {answer.epoch}, {answer.size} bytes"
    )


def _complain(reason: str) -> int:
    typer.echo(f"esker: {on_one_line(reason)}", err=True)
    return NOT_ALL
