"""One process of `esker dev`: `esker start`, until it is told to stop or its parent is gone.

Standard input is a pipe that the parent holds and never writes to. Its end means that the parent
has died, however it did: nobody would stop this process any more, so it stops itself.
"""

from __future__ import annotations

import os
import signal
import sys
import threading

from esker.cli import app


def _watch_parent() -> None:
    while os.read(0, 1):
        pass
    os.kill(os.getpid(), signal.SIGTERM)


def main() -> None:
    """Run the node of the properties file named by the first argument."""
    threading.Thread(target=_watch_parent, name="parent", daemon=True).start()
    app(["start", sys.argv[1]])


if __name__ == "__main__":
    main()
