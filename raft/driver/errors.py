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


class MissingSnapshotError(NodeError):
    """A log begins past 0, and no checkpoint here holds what came before: state is missing."""

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
    """The log directory is not this node's."""


class DirectoryInUseError(NodeError):
    """Another process has the log directory locked."""

    def __init__(self, log_dir: Path) -> None:
        super().__init__(f"{log_dir} is in use by another process (its .lock is held)")
        self.log_dir = log_dir
