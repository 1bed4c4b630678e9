"""Ends a process whose parent has died.

Standard input is a pipe that the parent holds and writes nothing to any more. Its end means that
the parent has died, however it did: nobody would stop this process any more, so it stops itself. It
stops as after SIGTERM, and is killed after a while: a broker whose quorum is gone, too, waits in
vain for outcomes.
"""

from __future__ import annotations

import os
import signal
import threading
import time


def watch_parent(alone_s: float) -> None:
    """Wait until standard input ends, and then end this process, at the latest in `alone_s`."""
    while os.read(0, 1):
        pass
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(alone_s)
    os.kill(os.getpid(), signal.SIGKILL)


def begin_watching_parent(alone_s: float) -> None:
    """Watch the parent in a thread of its own."""
    threading.Thread(target=watch_parent, args=(alone_s,), name="parent", daemon=True).start()
