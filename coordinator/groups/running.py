"""Runs the group coordinator on an event loop.

    groups = RunningGroups(core, client.call, new_id=uuid4)
    groups.brokers_changed({1, 2, 3}, broker_epoch)
    response = await groups.ask(request, version, client_id="app", client_host="/10.0.0.7")

The trap is the clock. After the process was stopped for a while, or its loop was busy, all members
seem to be silent: their heartbeats are in the sockets, which are read a moment later. So the core's
clock does not advance during such a pause.

Source: docs/design/quorum.md#sans-io-core.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, Final
from uuid import UUID

from coordinator.groups.core import GroupBroker
from coordinator.groups.error_responses import error_response
from coordinator.groups.events import (
    BrokersChanged,
    Call,
    Event,
    InboundRequest,
    LogResponse,
    Reply,
    Tick,
)
from records.kafka_errors import ErrorCode
from records.rpc.base import Request, Response
from records.rpc.groups import JoinGroupRequest, OffsetFetchRequest

log = logging.getLogger("coordinator.groups")

AskLog = Callable[[Request], Awaitable[Response | None]]
"""Sends one request to the group log; returns None if the outcome is unknown."""


_CLOCK_INTERVAL_S: Final = 0.25
"""The clock is read at least this often while any deadline is set."""

_STALL_S: Final = 0.5
"""A tick that is later than this means that the process itself was paused."""


class RunningGroups:
    """Drives a `GroupBroker`: timers, calls of the log, replies. Belongs to the loop it was made
    on.
    """

    def __init__(self, core: GroupBroker, ask_log: AskLog, *, new_id: Callable[[], UUID]) -> None:
        self.core = core
        self._ask_log = ask_log
        self._new_id = new_id
        self._loop = asyncio.get_running_loop()
        self._waiting: dict[int, asyncio.Future[Response]] = {}
        self._next_ticket = 0
        self._calls: set[asyncio.Task[None]] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._timer_s = 0.0
        self._is_closed = False
        self._last_seen_s = self._loop.time()  # when the clock was last read
        self._paused_s = 0.0  # sum of all pauses

    def ask(
        self,
        request: Request,
        version: int,
        *,
        client_id: str,
        client_host: str,
        transaction_number: int = -1,
        is_connected: Callable[[], bool] = lambda: True,
    ) -> asyncio.Future[Response]:
        """Return a future of the response; requests are processed in the order of calls.

        Cancelling the future discards the response; the request is carried out all the same.

        Args:  transaction_number: of the ongoing transaction of a TxnOffsetCommit.
               is_connected: returns whether the client still waits; only TxnOffsetCommit asks.
        """
        self._next_ticket += 1
        ticket = self._next_ticket
        unique = str(self._new_id()) if isinstance(request, JoinGroupRequest) else ""
        inbound = InboundRequest(
            ticket,
            request,
            version,
            client_id,
            client_host,
            unique,
            transaction_number,
            is_connected,
        )
        future = self._loop.create_future()
        if self._is_closed:
            future.set_result(error_response(inbound, _closed_code(request)))
        else:
            self._waiting[ticket] = future
            self._step(inbound)
        return future

    def brokers_changed(self, broker_ids: Iterable[int], broker_epoch: int) -> None:
        """Pass the unfenced brokers and this broker's epoch to the group coordinator."""
        self._step(BrokersChanged(frozenset(broker_ids), broker_epoch))

    async def close(self) -> None:
        """Stop coordinating: answer every waiting request, and end the calls in flight.

        The answers are as if no broker were left.
        """
        self._step(BrokersChanged(frozenset(), -1))
        self._is_closed = True
        if self._timer is not None:
            self._timer.cancel()
        for task in list(self._calls):
            task.cancel()
        await asyncio.gather(*self._calls, return_exceptions=True)
        waiting, self._waiting = self._waiting, {}
        for future in waiting.values():
            future.cancel()

    def _step(self, event: Event) -> None:
        if self._is_closed:
            return
        for effect in self.core.step(event, self._now_ms()):
            match effect:
                case Reply(ticket, response):
                    assert isinstance(ticket, int), f"unknown ticket: {effect}"
                    future = self._waiting.pop(ticket)
                    if not future.done():
                        future.set_result(response)
                case Call():
                    task = self._loop.create_task(self._call(effect))
                    self._calls.add(task)
                    task.add_done_callback(self._calls.discard)
        self._set_timer()

    async def _call(self, call: Call) -> None:
        answer: Any = None
        try:
            answer = await self._ask_log(call.request)
        except Exception:  # the core repeats the call
            log.exception("request=%s", call.request.schema().name)
        self._step(LogResponse(call.call_id, answer))

    def _now_ms(self) -> int:
        """Return the group coordinator's time in ms, which leaves out pauses of this process."""
        now_s = self._loop.time()
        away_s = now_s - self._last_seen_s - _CLOCK_INTERVAL_S
        self._last_seen_s = now_s
        if away_s > _STALL_S:
            self._paused_s += away_s
        return int((now_s - self._paused_s) * 1000)

    def _set_timer(self) -> None:
        """Set a timer for the next deadline, unless an earlier timer is set.

        A timer that is too early stays, as heartbeats move deadlines.
        """
        deadline_ms = self.core.deadline_ms
        if deadline_ms is None:
            return
        due_s = (deadline_ms + 1) / 1000 + self._paused_s  # the core counts whole milliseconds
        timer_s = min(due_s, self._last_seen_s + _CLOCK_INTERVAL_S)
        if self._timer is not None:
            if self._timer_s <= timer_s:
                return
            self._timer.cancel()
        self._timer = self._loop.call_at(timer_s, self._tick)
        self._timer_s = timer_s  # uvloop's handle of an overdue timer has no time

    def _tick(self) -> None:
        self._timer = None
        self._step(Tick())


def _closed_code(request: Request) -> ErrorCode:
    """Return the error code for a request after `close`.

    For offsets, see `reads`.
    """
    if isinstance(request, OffsetFetchRequest):
        return ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    return ErrorCode.NOT_COORDINATOR
