"""A node for the nemesis: the one of `tests.raft.driver`, spoiled if it is told so.

A test that says "nothing is lost" is worth something only if it finds the loss of a node that does
not flush; one that says "no read is stale", if it finds the node that answers without asking. These
are those nodes; production code knows nothing of them.
"""

from __future__ import annotations

import errno
import json
import os
import sys
from pathlib import Path

from raft.core.reads import Reads
from raft.segments.files import RealFile, RealFileSystem
from snapshot.partfile import PartFile
from tests.raft.driver.node_main import entry

FAIL = "flushes-fail"


def _fail_if_told(file: RealFile) -> None:
    """As a disk that reports an error, once the file FAIL exists beside the log directory."""
    if (Path(settings["log_dir"]).parent / FAIL).exists():
        raise OSError(errno.EIO, "Input/output error")
    os.fdatasync(file._fd)


def _publish_unflushed(part: PartFile) -> Path:
    part.keep()
    part.path.rename(part.final_path)
    RealFileSystem().fsync_directory(part.final_path.parent)
    return part.final_path


def spoil(what: str | None) -> None:
    """Take one rule away."""
    match what:
        case "flush":
            RealFile.fdatasync = lambda self: None  # type: ignore[method-assign]  # noqa: ARG005
        case "reads":  # every round counts as confirmed when it begins
            Reads._confirmed_round = lambda self, leader: leader.read_round  # type: ignore[method-assign]  # noqa: ARG005
        case "flushes fail":
            RealFile.fdatasync = _fail_if_told  # type: ignore[method-assign]
        case "checkpoint flush":  # it gets its name before its bytes are on the disk
            PartFile.flush = lambda self: None  # type: ignore[method-assign]  # noqa: ARG005
            PartFile.publish = _publish_unflushed  # type: ignore[method-assign]
        case _:
            assert what is None, what


if __name__ == "__main__":
    settings = json.loads(sys.argv[1])
    spoil(settings["spoiled"])
    sys.exit(entry())
