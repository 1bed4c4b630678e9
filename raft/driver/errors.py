"""Errors that keep a node from starting, or end it."""

from __future__ import annotations

from pathlib import Path


class NodeError(Exception):
    """The node cannot run; the message names the remedy."""


class LostDiskError(NodeError):
    """A group that the node durably lists has no directory: its disk was lost or swapped.

    Starting it with an empty log could lose committed records, and let the node vote twice.
    """

    def __init__(self, directory: Path, reason: str = "is gone") -> None:
        super().__init__(
            f"{directory} {reason}, but this node had that group: a lost disk. Bring the directory "
            "back, or empty the log directory and run `esker storage format --rejoin`"
        )
        self.directory = directory


class LostRecordsError(NodeError):
    """This node leads a log that lacks committed records, as their backup proves."""


class DirectoryGoneError(NodeError):
    """A directory or file that the node writes was removed, or hidden by a mount, while it ran."""

    def __init__(self, missing: Path) -> None:
        super().__init__(
            f"{missing} went away while the node ran: is its disk mounted? Bring it back and start "
            "the node again; or, if it is lost, empty the log directory and run "
            "`esker storage format --rejoin`"
        )
        self.missing = missing


class MissingSnapshotError(NodeError):
    """A log begins past offset 0 and no local checkpoint covers its start: state is missing."""

    def __init__(self, directory: Path, start_offset: int, newest: tuple[int, int] | None) -> None:
        found = "there is none" if newest is None else f"the newest ends at {newest[0]}"
        super().__init__(
            f"{directory}: the log starts at {start_offset}, so a checkpoint must end there or "
            f"later, but {found}. Bring the checkpoint back (its copy on another replica of this "
            "cluster is as good), or empty the log directory and run "
            "`esker storage format --rejoin`"
        )
        self.directory = directory


class NotFormattedError(NodeError):
    """The log directory is not formatted, or belongs to another node or cluster."""


class DirectoryInUseError(NodeError):
    """Another process has the log directory locked."""

    def __init__(self, log_dir: Path) -> None:
        super().__init__(f"{log_dir} is in use by another process (its .lock is held)")
        self.log_dir = log_dir
