"""Why a node does not start, or stops."""

from __future__ import annotations

from pathlib import Path


class NodeError(Exception):
    """This node cannot run; the message says what to do."""


class LostDiskError(NodeError):
    """A group that this node durably lists has no directory: its disk was lost or swapped.

    Starting it with an empty log could lose what was committed, and let it vote twice.
    """

    def __init__(self, directory: Path, reason: str = "is gone") -> None:
        super().__init__(
            f"{directory} {reason}, but this node had that group: a lost disk. Bring the directory "
            "back, or empty the log directory and run `esker storage format --rejoin`"
        )
        self.directory = directory


class NotFormattedError(NodeError):
    """The log directory is not this node's."""


class DirectoryInUseError(NodeError):
    """Another process has the log directory locked."""

    def __init__(self, log_dir: Path) -> None:
        super().__init__(f"{log_dir} is in use by another process (its .lock is held)")
        self.log_dir = log_dir
