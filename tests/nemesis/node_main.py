"""A node for the nemesis: the one of `tests.driver`, spoiled if it is told so.

A test that says "nothing is lost" is worth something only if it finds the loss of a node that does
not flush; one that says "no read is stale", if it finds the node that answers without asking. These
are those nodes; production code knows nothing of them.
"""

from __future__ import annotations

import json
import sys

from raft.core.serving import Serving
from raft.segments.files import RealFile
from tests.driver.node_main import entry


def spoil(what: str | None) -> None:
    """Take one rule away."""
    match what:
        case "flush":
            RealFile.fdatasync = lambda self: None  # type: ignore[method-assign]  # noqa: ARG005
        case "reads":  # every round counts as confirmed when it begins
            Serving._confirmed_round = lambda self, book: book.read_round  # type: ignore[method-assign]  # noqa: ARG005
        case _:
            assert what is None, what


if __name__ == "__main__":
    spoil(json.loads(sys.argv[1])["spoiled"])
    sys.exit(entry())
