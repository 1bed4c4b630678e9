"""One process of `esker dev`: runs `esker start` until a signal, or until its parent ends.

If `esker dev` was killed, all the others stop at the same moment, and a broker whose quorum is gone
waits in vain for outcomes: so there is an end to it, before the next `esker dev` loses patience.
"""

from __future__ import annotations

import sys
from typing import Final

from esker import cli
from esker.server.parent_watch import begin_watching_parent

ALONE_S: Final = 10.0  # to end in good order, once the parent is gone


def main() -> None:
    """Run the node whose properties file is the first command line argument."""
    begin_watching_parent(ALONE_S)
    sys.argv[1:1] = ["start"]
    cli.main()


if __name__ == "__main__":
    main()
