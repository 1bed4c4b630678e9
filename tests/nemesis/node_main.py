"""A node for the nemesis: the one of `tests.driver`, with its flush taken away if it is told so.

A test that says "nothing is lost" is worth something only if it finds the loss of a node that does
not flush. This is that node; production code knows nothing of it.
"""

from __future__ import annotations

import json
import sys

from raft.segments.files import RealFile
from tests.driver.node_main import entry

if __name__ == "__main__":
    if json.loads(sys.argv[1])["flush"] is False:
        RealFile.fdatasync = lambda self: None  # type: ignore[method-assign]  # noqa: ARG005
    sys.exit(entry())
