"""From a request to records: pure functions of the request, the pending image and a context.

Each returns a `Decision`: the records to write, perhaps none, and what to answer once they are
committed. Nothing here changes anything, reads a clock or draws a random number; the leader writes
the records, and `coordinator.controller.apply` is what they do. One exception: a heartbeat is noted
in the leader's sessions, which are no part of any state.
"""

from coordinator.controller.decide.context import Context, Decision, Limits

__all__ = ["Context", "Decision", "Limits"]
