"""Bounds the number of connections, so that logs, states and objects can open files too.

A process begins with the soft limit, which is often 1024; it may raise that itself, up to the hard
one. What is then left for connections is counted beforehand: a node that cannot open a file of its
own log has to stop, and no number of idle clients may bring that about.
"""

from __future__ import annotations

import logging
import resource
from typing import Final

from raft.driver.errors import NodeError

log = logging.getLogger("esker")

RESERVED: Final = 256
"""Open files kept for the node itself: segments, states, connections to its peers, objects being
read."""

LEAST: Final = 64
"""Connections of a listener below which a node is of no use: the quorum's other nodes and the
brokers take some each, and what is refused comes again at once, for ever."""


def connections_allowed(wanted: int, listeners: int) -> int:
    """Return the number of connections per listener that the limit of open files allows.

    Raises the process's soft limit of open files if that is needed and allowed.

    Raises:  NodeError if that leaves too few to be of use.
    """
    needed = wanted * listeners + RESERVED
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < needed:
        soft = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    if soft == resource.RLIM_INFINITY or soft >= needed:
        return wanted
    allowed = (soft - RESERVED) // listeners
    least = min(wanted, LEAST)
    if allowed < least:
        raise NodeError(
            f"{soft} files may be open, and a node needs {RESERVED + least * listeners} at least: "
            "raise the hard limit of open files (ulimit -Hn)"
        )
    log.warning(
        "open_files=%d connections=%d reason='max.connections is %d: raise the hard limit of open "
        "files (ulimit -Hn) for more'",
        soft, allowed, wanted,
    )  # fmt: skip
    return allowed
