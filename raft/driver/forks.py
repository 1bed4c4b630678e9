"""Sentences on forks: both ends, and what an operator can do.

Source: docs/design/forks.md#a-group-in-doubt; docs/operations.md has the same at length.
"""

from __future__ import annotations

from pathlib import Path

from raft.core.effects import ForkReported
from raft.core.fork import Fork, Witness
from raft.core.quorum import Quorum


def describe_doubt(fork: Fork, directory: Path, quorum: Quorum) -> str:
    """Describe a fork of a group's log in one line, with the commands that remedy the fork.

    Args:    directory: of the group, in the node's log directory.
    """
    node_id, log_dir = quorum.node_id, directory.parent
    rejoin = " --rejoin" if quorum.is_voter else ""
    to_take = (
        f"to take the other history, empty {log_dir} and run "
        f"`esker storage format -c FILE -t CLUSTER_ID{rejoin}`"
    )
    files = [directory / "in-doubt"]
    if fork.witness is Witness.STATE:
        to_keep = "if this log was restored on purpose, run"
        files.append(directory / "coordinator.db*")
    else:
        to_keep = "to keep this one, restore the newest disks of the other nodes and run"
    command = "rm " + " ".join(str(path) for path in files)
    return (
        f"{directory.name} has stopped on node {node_id}, since there is a fork: {fork}. "
        f"Stop the node; {to_take}; {to_keep} `{command}` "
        f"(docs/operations.md#a-fork)"
    )


def describe_report(report: ForkReported, quorum: Quorum) -> str:
    """Describe in one line a replica's report that this leader lacks committed records."""
    kind = "voter" if quorum.voters.is_voter(report.replica) else "observer"
    return (
        f"{kind} {report.replica.id} knew the records below offset {report.floor} to be committed, "
        f"but this node, leader of epoch {quorum.epoch}, has other records from offset "
        f"{report.parts_at} on, or before: {kind} {report.replica.id} says what can be done, and "
        "docs/operations.md#a-fork"
    )
