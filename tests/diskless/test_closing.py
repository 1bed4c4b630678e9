"""Buffers are closed early once producers are quiet, and within the budgets."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

import pytest

from diskless.produce.closing import (
    LARGE_BYTES,
    BufferClosing,
    ClosingSettings,
    Reason,
)
from tests.diskless.virtual_time import run

QUIET_MS = 5


@dataclass
class Buffer:
    """An open buffer that notes when and why it was closed."""

    open_bytes: int = 0
    open_runs: int = 1
    can_upload: bool = True
    is_writing: bool = False
    closed: list[tuple[int, Reason]] = field(default_factory=list)  # ms, reason

    @property
    def has_batches(self) -> bool:
        return self.open_bytes > 0

    def close_buffer(self, reason: Reason) -> None:
        """Note the reason and the time; the buffer is empty then."""
        self.closed.append((now_ms(), reason))
        self.open_bytes = 0


class Broker:
    """A closing with two buffers."""

    def __init__(self, settings: ClosingSettings) -> None:
        self.buffers = [Buffer(), Buffer()]
        self.received_at = 0.0
        self.closing = BufferClosing(
            settings, buffers=lambda: self.buffers, received_at=lambda: self.received_at
        )

    def append(self, index: int = 0, size: int = 100) -> None:
        """Append a batch to a buffer."""
        self.buffers[index].open_bytes += size
        self.closing.note_append()

    def close_full(self, size: int = 100, runs: int = 1) -> None:
        """Count an object that its interval closed."""
        self.closing.note_closed(Reason.INTERVAL, size, runs)

    def times(self, index: int = 0) -> list[int]:
        """Return when a buffer was closed, in ms."""
        return [time_ms for time_ms, _ in self.buffers[index].closed]


def now_ms() -> int:
    return round(asyncio.get_running_loop().time() * 1_000)


def story(
    told: Callable[[Broker], Awaitable[None]], settings: ClosingSettings | None = None
) -> None:
    async def main() -> None:
        await told(Broker(settings or ClosingSettings(quiet_ms=QUIET_MS)))

    run(main)


async def wait_ms(ms: int) -> None:
    await asyncio.sleep(ms / 1_000)


def test_produce_buffers_are_closed_together_once_no_batch_arrived_for_the_quiet_time() -> None:
    async def told(broker: Broker) -> None:
        start = now_ms()
        for index in (0, 1, 0, 0):
            broker.append(index)
            await wait_ms(3)
        await wait_ms(50)
        last = start + 9
        assert broker.times(0) == broker.times(1) == [last + QUIET_MS]
        assert broker.buffers[0].closed[0][1] is Reason.QUIET

    story(told)


def test_produce_buffers_stay_open_while_a_large_request_arrives() -> None:
    async def told(broker: Broker) -> None:
        broker.append()
        for _ in range(10):
            await wait_ms(4)
            broker.received_at = asyncio.get_running_loop().time()
        assert broker.times() == []
        at = now_ms()
        await wait_ms(50)  # the rest of that request never arrives
        assert broker.times() == [at + QUIET_MS]

    story(told)


def test_produce_buffers_stay_open_while_batches_are_validated() -> None:
    async def told(broker: Broker) -> None:
        broker.closing.validating = 1
        broker.append()
        await wait_ms(50)
        assert broker.times() == []
        broker.closing.validating = 0
        await wait_ms(2 * QUIET_MS)
        assert len(broker.times()) == 1

    story(told)


def answered(broker: Broker, *connections: int) -> None:
    """Close what is open, and answer a request of each of these connections."""
    broker.close_full()
    for connection in connections:
        broker.closing.awaited.note_answer(connection)


def request(broker: Broker, connection: int) -> None:
    """Receive a request of a connection with a batch for each buffer."""
    broker.closing.awaited.note_request(connection)
    broker.append(0)
    broker.append(1)


def test_produce_buffers_close_at_once_when_each_answered_connection_has_sent_a_new_request() -> (
    None
):
    async def told(broker: Broker) -> None:
        answered(broker, 7, 7, 8)
        for connection in (7, 8, 7):
            assert broker.times() == []
            await wait_ms(3)
            request(broker, connection)
        last = now_ms()
        await wait_ms(50)
        assert broker.times(0) == broker.times(1) == [last]

    story(told)


@pytest.mark.parametrize(
    ("answers", "requests", "under_way"),
    [((7, 7), (7,), False), ((7, 8), (7, 9), False), ((7,), (7,), True), ((), (7,), False)],
)
def test_produce_buffers_stay_open_while_further_requests_are_expected_or_an_upload_runs(
    answers: tuple[int, ...], requests: tuple[int, ...], under_way: bool
) -> None:
    async def told(broker: Broker) -> None:
        answered(broker, *answers)
        broker.buffers[1].is_writing = under_way
        for connection in requests:
            request(broker, connection)
        last = now_ms()
        await wait_ms(50)
        assert broker.times(0) == broker.times(1) == [last + QUIET_MS]

    story(told)


def test_produce_buffers_wait_for_a_silent_producer_only_until_they_are_next_closed() -> None:
    async def told(broker: Broker) -> None:
        answered(broker, 7, 8)
        request(broker, 7)
        await wait_ms(50)
        answered(broker, 7)
        await wait_ms(20)
        request(broker, 7)
        last = now_ms()
        await wait_ms(50)
        assert broker.times()[-1] == last

    story(told)


def test_a_broker_closes_no_produce_buffer_above_its_objects_budget_if_producers_are_quiet() -> (
    None
):
    async def told(broker: Broker) -> None:
        for _ in range(20):
            broker.close_full()
        start = now_ms()
        answered(broker, 7)
        request(broker, 7)
        await wait_ms(600)
        assert broker.times(0) == broker.times(1) == [pytest.approx(start + 500, abs=2)]

    story(told, ClosingSettings(quiet_ms=QUIET_MS, objects_per_second=4))


def test_produce_buffers_stay_open_until_an_upload_slot_is_free() -> None:
    async def told(broker: Broker) -> None:
        broker.append(0)
        broker.append(1)
        broker.buffers[1].can_upload = False
        await wait_ms(50)
        assert broker.times(0) == []
        broker.buffers[1].can_upload = True
        broker.closing.note_upload_end()
        await wait_ms(1)
        assert len(broker.times(0)) == len(broker.times(1)) == 1

    story(told)


@pytest.mark.parametrize("size", [100, LARGE_BYTES])
def test_the_objects_budget_of_a_broker_limits_how_many_small_objects_it_uploads_per_second(
    size: int,
) -> None:
    """Large objects are not; a budget of 4 a second allows 4 at once and then one each 250 ms."""

    async def told(broker: Broker) -> None:
        start = now_ms()
        while now_ms() < start + 3_000:
            if not broker.buffers[0].has_batches:
                if broker.buffers[0].closed:
                    broker.closing.note_closed(Reason.QUIET, size, 1)
                broker.append(0, size)
            await wait_ms(1)
        early = len(broker.times())
        if size == LARGE_BYTES:
            assert early > 300
        else:
            assert 4 + 3 * 4 - 1 <= early <= 4 + 3 * 4 + 1

    story(told, ClosingSettings(quiet_ms=QUIET_MS, objects_per_second=4))


def test_the_runs_budget_of_a_broker_limits_how_many_batch_runs_it_uploads_per_second() -> None:
    async def told(broker: Broker) -> None:
        start = now_ms()
        broker.buffers[0].open_runs = 500
        while now_ms() < start + 3_000:
            if not broker.buffers[0].has_batches:
                if broker.buffers[0].closed:
                    broker.close_full(LARGE_BYTES, 500)
                broker.append(0, LARGE_BYTES)
            await wait_ms(1)
        assert 2 + 3 * 2 - 1 <= len(broker.times()) <= 2 + 3 * 2 + 1

    story(told, ClosingSettings(quiet_ms=QUIET_MS, runs_per_second=1_000))


def test_produce_buffers_closed_because_they_are_full_also_use_up_the_objects_budget() -> None:
    async def told(broker: Broker) -> None:
        for _ in range(20):
            broker.close_full()
        start = now_ms()
        broker.append()
        await wait_ms(400)
        (closed_ms,) = broker.times()
        assert closed_ms - start == pytest.approx(250, abs=2)

    story(told, ClosingSettings(quiet_ms=QUIET_MS, objects_per_second=4))


@pytest.mark.parametrize("settings", [{"quiet_ms": 0}, {"objects_per_second": 0}])
def test_a_quiet_time_or_objects_budget_of_zero_disables_the_early_close_of_produce_buffers(
    settings: dict[str, int],
) -> None:
    async def told(broker: Broker) -> None:
        broker.append()
        await wait_ms(1_000)
        assert broker.times() == []
        broker.append(0, LARGE_BYTES)
        await wait_ms(50)
        assert len(broker.times()) == ("quiet_ms" not in settings)

    story(told, ClosingSettings(**settings))


def test_a_broker_closes_its_produce_buffers_at_once_when_their_memory_limit_is_reached() -> None:
    async def told(broker: Broker) -> None:
        broker.append()
        broker.closing.close_for_memory()
        assert [reason for _, reason in broker.buffers[0].closed] == [Reason.MEMORY]
        assert broker.times(1) == []

    story(told)
