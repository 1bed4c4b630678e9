"""Stamps of steady time, and setting it by an operator's word.

Source: docs/design/clocks.md#steady-time.
"""

from __future__ import annotations

from coordinator.batch.decide.base import Context, Decision
from coordinator.batch.state import Tables
from coordinator.batch.steady_clock import AGREEMENT_MS, NO_STAMP, STAMP_INTERVAL_MS
from coordinator.features import may_write_format
from records.diskless import SteadyTimeRecord
from records.kafka_errors import ErrorCode
from records.rpc.objects import AcceptClockRequest, AcceptClockResponse


def decide_stamp(tables: Tables, context: Context) -> Decision[None]:
    """Write a record of the steady time if the last such record is old or the clock went back."""
    steady_ms, stamp_ms = context.shared_ms, tables.counters.steady_ms
    if steady_ms is None or not may_write_format(context.view.features(), 2):
        return Decision((), None)
    was_set_back = steady_ms < stamp_ms - AGREEMENT_MS
    if stamp_ms != NO_STAMP and not was_set_back and steady_ms - stamp_ms < STAMP_INTERVAL_MS:
        return Decision((), None)
    record = SteadyTimeRecord(steady_ms=steady_ms, replaces=int(was_set_back))
    return Decision((record,), None)


def decide_accept_clock(
    _: AcceptClockRequest, tables: Tables, context: Context
) -> Decision[AcceptClockResponse]:
    """Set steady time to the leader's wall clock, forward or back."""
    if not may_write_format(context.view.features(), 2):
        message = "steady time needs esker.version 2: finalize it first (esker features upgrade)"
        code = ErrorCode.UNSUPPORTED_VERSION
        return Decision((), AcceptClockResponse(error_code=code, error_message=message))
    before_ms = tables.counters.steady_ms if context.shared_ms is None else context.shared_ms
    response = AcceptClockResponse(
        was_held=context.shared_ms is None, before_ms=before_ms, steady_ms=context.now_ms
    )
    return Decision((SteadyTimeRecord(steady_ms=context.now_ms, replaces=1),), response)
