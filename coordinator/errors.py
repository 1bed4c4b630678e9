"""The errors that callers of a state machine catch when a request has no answer.

An answer says what was decided, in Kafka's error codes: those are values. `CoordinatorError` is
raised where nothing was decided, or where the outcome is unknown: not the leader, no leader,
stopped, timed out.

Source: docs/design/state-machines.md#every-answer-waits.
"""

from __future__ import annotations

from records.kafka_errors import ErrorCode


class CoordinatorError(Exception):
    """A request without an answer; `code` says why, and whether anything may have happened.

    COORDINATOR_NOT_AVAILABLE: nothing was decided. NOT_LEADER_OR_FOLLOWER, REQUEST_TIMED_OUT: the
    outcome is unknown.
    """

    def __init__(self, code: ErrorCode, message: str) -> None:
        super().__init__(f"{code.name}: {message}")
        self.code = code
        self.message = message


class OutcomeUnknownError(CoordinatorError):
    """The request may have been carried out, or may yet be; the caller decides whether to repeat
    it.

    A client raises it once it has given up a request whose attempt was sent.
    """
