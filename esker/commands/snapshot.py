"""`esker snapshot`: list, inspect and take checkpoints, in a node's directory or on running nodes.

The command never changes a directory. Damage is reported with the byte where it begins and exit
code 1; the other files are still listed. A node that does not respond does not stop the listing of
the others either.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer

from esker.commands.snapshot_nodes import list_nodes, take_on_nodes
from esker.commands.text_tables import table
from esker.dump.batches import origin_remark
from esker.dump.checkpoints import (
    DAMAGED_CHECKPOINT,
    Found,
    GroupFiles,
    Inspection,
    NoGroupError,
    State,
    inspect,
    survey,
)
from esker.dump.human import on_one_line, printable, time_text
from snapshot.errors import DamagedFileError

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    help="List, inspect and take the checkpoints of the quorum's logs (KIP-630).",
)

LIST_EXAMPLE = "Example: esker snapshot list --bootstrap-controller 127.0.0.1:9102"
TAKE_EXAMPLE = "Example: esker snapshot take --bootstrap-controller 127.0.0.1:9102 --node 2"
INSPECT_EXAMPLE = (
    "Example: esker snapshot inspect "
    "/var/lib/esker/__cluster_metadata-0/00000000000000001280-0000000002.checkpoint"
)

JsonLines = Annotated[
    bool,
    typer.Option(
        "--json", help="Print the result as JSON, one object per line; default: print text."
    ),
]

OK = 0
DAMAGED = 1
UNREADABLE = 2  # also what a wrong command line gives


@app.callback(epilog=LIST_EXAMPLE)
def snapshot() -> None:
    """List, inspect and take the checkpoints of the quorum's logs (KIP-630)."""


# --- list ----------------------------------------------------------------------------------------


Directories = Annotated[
    list[Path] | None,
    typer.Argument(
        metavar="DIRECTORY",
        help="Log directory of a node (log.dirs), or the directory of one partition's log.",
    ),
]
BootstrapController = Annotated[
    str | None,
    typer.Option(
        metavar="HOST:PORT[,...]",
        help="Addresses (host:port,...) of controllers of a running cluster; default: the "
        "given directories are listed.",
    ),
]
Group = Annotated[
    str | None,
    typer.Option(
        metavar="TOPIC-N",
        help="Partition (TOPIC-N) whose checkpoints to list with --bootstrap-controller; "
        "default: all partitions.",
    ),
]
Verify = Annotated[
    bool,
    typer.Option(
        "--verify",
        help="Check each checkpoint by reading the whole file; default: read the first batch only.",
    ),
]
TimeoutMs = Annotated[
    int,
    typer.Option(help="Maximum time to wait for each response, in milliseconds; default: 5000."),
]


@app.command("list", epilog=LIST_EXAMPLE)
def list_command(
    directories: Directories = None,
    bootstrap_controller: BootstrapController = None,
    group: Group = None,
    verify: Verify = False,
    as_json: JsonLines = False,
    timeout_ms: TimeoutMs = 5000,
) -> None:
    """Print every checkpoint, the log start offset, and the bytes of log and checkpoints.

    Lists directories (a node may be running there) or, with --bootstrap-controller, every node of
    a quorum. Exit code 0: no damage was found. 1: a checkpoint is damaged, or a node does not
    respond. 2: a directory could not be read.
    """
    if bootstrap_controller is not None:
        if directories or verify:
            raise typer.BadParameter(
                "not allowed with --bootstrap-controller", param_hint="--verify, DIRECTORY"
            )
        code = list_nodes(bootstrap_controller, group, as_json=as_json, timeout_ms=timeout_ms)
        raise typer.Exit(code)
    if not directories:
        raise typer.BadParameter("nothing to list: give a DIRECTORY or --bootstrap-controller")
    try:
        groups = survey(directories, verify=verify)
    except NoGroupError as error:
        _fail(str(error))
    except OSError as error:
        _fail(f"{error.filename}: {error.strerror}: name a node's log directory (log.dirs)")
    if as_json:
        for line in _group_lines(groups):
            typer.echo(json.dumps(line, separators=(",", ":")))
    else:
        typer.echo(_group_table(groups))
    damaged = any(file.state is State.DAMAGED for found in groups for file in found.checkpoints)
    raise typer.Exit(DAMAGED if damaged else OK)


def _group_lines(groups: Sequence[GroupFiles]) -> list[dict[str, Any]]:
    """Return JSON lines, one for each partition's log and one for each of its checkpoints."""
    lines: list[dict[str, Any]] = []
    for group in groups:
        lines.append(
            {
                "type": "group",
                "group": group.name,
                "directory": str(group.path),
                "logStartOffset": group.log_start_offset,
                "segments": group.segment_count,
                "segmentBytes": group.segment_bytes,
                "checkpointBytes": sum(file.size_bytes for file in group.checkpoints),
            }
        )
        for file in group.checkpoints:
            lines.append(
                {
                    "type": "checkpoint",
                    "group": group.name,
                    "file": str(file.path),
                    "endOffset": file.snapshot_id.offset,
                    "epoch": file.snapshot_id.epoch,
                    "state": file.state.value,
                    "sizeBytes": file.size_bytes,
                    "lastContainedLogTimestamp": file.last_timestamp,
                    "writtenTimestamp": file.written_ms,
                    "records": file.record_count,
                    "damage": file.damage,
                }
            )
    return lines


def _group_table(groups: Sequence[GroupFiles]) -> str:
    headings = ("Group", "EndOffset", "Epoch", "Bytes", "CoversTo (UTC)", "Written (UTC)", "State")
    rows = [
        (
            on_one_line(group.name),
            str(file.snapshot_id.offset),
            str(file.snapshot_id.epoch),
            str(file.size_bytes),
            "-" if file.last_timestamp is None else time_text(file.last_timestamp),
            time_text(file.written_ms),
            _state(file),
        )
        for group in groups
        for file in group.checkpoints
    ]
    text = [table(headings, rows), ""] if rows else []
    return "\n".join([*text, *(_summary(group) for group in groups)])


def _state(file: Found) -> str:
    if file.damage is not None:
        return f"DAMAGED, {on_one_line(file.damage)}"
    if file.record_count is not None:
        return f"sound, {file.record_count} records"
    return file.state.value


def _summary(group: GroupFiles) -> str:
    start = "" if group.log_start_offset is None else f" from offset {group.log_start_offset}"
    size = sum(file.size_bytes for file in group.checkpoints)
    return (
        f"{printable(group.path)}: log{start}, {group.segment_bytes} bytes in "
        f"{group.segment_count} segment{'s' * (group.segment_count != 1)}; "
        f"checkpoints, {size} bytes"
    )


# --- inspect -------------------------------------------------------------------------------------


@app.command("inspect", epilog=INSPECT_EXAMPLE)
def inspect_command(
    paths: Annotated[
        list[Path], typer.Argument(metavar="FILE", help="Paths of the checkpoint files to read.")
    ],
    as_json: JsonLines = False,
) -> None:
    """Read whole checkpoints, and print their end offset, epoch and records by type.

    `esker dump-log` prints the records. Exit code 0: all are sound. 1: a file is damaged.
    2: a file could not be read.
    """
    code = OK
    for path in paths:
        try:
            found = inspect(path)
        except DamagedFileError as error:
            code = max(code, DAMAGED)
            _report(path, "damaged", error.reason, as_json, error.position, error.offset)
        except OSError as error:
            code = UNREADABLE
            _report(path, "unreadable", error.strerror or str(error), as_json)
        else:
            typer.echo(json.dumps(_as_json(found)) if as_json else _text(found))
    raise typer.Exit(code)


def _report(
    path: Path,
    kind: str,
    reason: str,
    as_json: bool,
    position: int | None = None,
    offset: int | None = None,
) -> None:
    if as_json:
        line = {"type": kind, "file": str(path), "position": position, "offset": offset}
        typer.echo(json.dumps({**line, "reason": reason}))
        return
    if kind == "unreadable":
        typer.echo(f"esker: {printable(path)}: {reason}: name a .checkpoint file", err=True)
        return
    typer.echo(
        f"esker: {printable(path)}: DAMAGED at byte {position}: {on_one_line(reason)}; "
        f"{DAMAGED_CHECKPOINT}",
        err=True,
    )


def _as_json(found: Inspection) -> dict[str, Any]:
    checkpoint, preamble = found.checkpoint, found.checkpoint.preamble
    voters = preamble.voters
    return {
        "type": "checkpoint",
        "file": str(checkpoint.path),
        "endOffset": found.snapshot_id.offset if found.snapshot_id else None,
        "epoch": checkpoint.epoch,
        "sizeBytes": checkpoint.size_bytes,
        "batches": checkpoint.batch_count,
        "records": checkpoint.record_count,
        "lastContainedLogTimestamp": preamble.last_timestamp,
        "kraftVersion": preamble.kraft_version,
        "voters": None if voters is None else [voter.voter_id for voter in voters.voters],
        "origin": checkpoint.origin.value,
        "types": {name: asdict(tally) for name, tally in found.by_type.items()},
    }


def _text(found: Inspection) -> str:
    checkpoint, preamble = found.checkpoint, found.checkpoint.preamble
    end = "not in its name" if found.snapshot_id is None else str(found.snapshot_id.offset)
    voters = "none recorded: they are in the nodes' settings"
    if preamble.voters is not None:
        voters = ", ".join(str(voter.voter_id) for voter in preamble.voters.voters)
    rows = {
        "end offset": f"{end} (exclusive), epoch {checkpoint.epoch}",
        "covers to": f"{time_text(preamble.last_timestamp)} UTC",
        "size": f"{checkpoint.size_bytes} bytes, {checkpoint.batch_count} batches",
        "kraft.version": str(preamble.kraft_version),
        "voters": voters,
        "records": str(checkpoint.record_count),
        "sound": origin_remark(checkpoint),
    }
    lines = [printable(checkpoint.path)]
    lines += [f"  {name:<16}{value}" for name, value in rows.items()]
    if found.by_type:
        types = [
            (on_one_line(name), str(tally.records), str(tally.value_bytes))
            for name, tally in found.by_type.items()
        ]
        shown = table(("Type", "Records", "ValueBytes"), types)
        lines += ["", *(f"  {line}" for line in shown.splitlines())]
    return "\n".join(lines)


def _fail(reason: str) -> NoReturn:
    typer.echo(f"esker: {on_one_line(reason)}", err=True)
    raise typer.Exit(UNREADABLE)


# --- take ----------------------------------------------------------------------------------------


@app.command("take", epilog=TAKE_EXAMPLE)
def take_command(
    bootstrap_controller: Annotated[
        str,
        typer.Option(
            metavar="HOST:PORT[,...]",
            help="Addresses (host:port,...) of controllers of the running cluster.",
        ),
    ],
    group: Annotated[
        str,
        typer.Option(
            metavar="TOPIC-N",
            help="Partition (TOPIC-N) whose log to take a checkpoint of; default: "
            "__cluster_metadata-0.",
        ),
    ] = "__cluster_metadata-0",
    node: Annotated[
        list[int] | None,
        typer.Option(
            metavar="ID",
            help="Id of a node that takes a checkpoint; may be repeated; default: all nodes.",
        ),
    ] = None,
    as_json: JsonLines = False,
    timeout_ms: Annotated[
        int,
        typer.Option(
            help="Maximum time to wait for each node's checkpoint, in milliseconds; default: 60000."
        ),
    ] = 60_000,
) -> None:
    """Take a checkpoint on each node, one node after the other, and wait until each is durable.

    A log is truncated only once every live replica has a checkpoint, so the default is all nodes.
    Exit code 0: each node took one. 1: a node failed or does not respond.
    """
    raise typer.Exit(
        take_on_nodes(bootstrap_controller, group, node, as_json=as_json, timeout_ms=timeout_ms)
    )
