"""Turns requests into records: pure functions of the request, the pending image and a context.

Each returns a `Decision`: the records to write, if any, and the response to send once they are
committed. Nothing here changes state, reads a clock or draws a random number; the leader writes the
records, and `coordinator.controller.apply` carries them out. One exception: a heartbeat is noted in
the leader's sessions, which are not part of the replicated state.
"""

from coordinator.controller.decide.context import Context, Decision, Limits

__all__ = ["Context", "Decision", "Limits"]
