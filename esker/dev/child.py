"""One process of `esker dev`: runs `esker start` until a signal, or until its parent ends.

Standard input is a pipe that the parent holds and never writes to. Its end means that the parent
has died, however it did: nobody would stop this process any more, so it stops itself. All the
others do so at the same moment, and a broker whose quorum is gone waits in vain for outcomes: so
there is an end to it, well before the next `esker dev` loses patience.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from typing import Final

from esker import cli

ALONE_S: Final = 10.0  # to end in good order, once the parent is gone


def watch_parent(alone_s: float = ALONE_S) -> None:
    """Wait until standard input ends, and then end this process."""
    while os.read(0, 1):
        pass
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(alone_s)
    os.kill(os.getpid(), signal.SIGKILL)


def main() -> None:
    """Run the node whose properties file is the first command line argument."""
    threading.Thread(target=watch_parent, name="parent", daemon=True).start()
    sys.argv[1:1] = ["start"]
    cli.main()


if __name__ == "__main__":
    main()
