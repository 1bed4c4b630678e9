"""An answer with only a new high watermark is held briefly for records, unless a read waits."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from uuid import UUID

import pytest

from raft.core.effects import RespondFetch
from raft.core.messages import FetchResponse
from raft.driver.inbound_request import InboundRequest
from raft.driver.pending_requests import HOLD_S, VOTER_HOLD_S, PendingRequests
from raft.driver.snapshot_hosting import NoSnapshots
from raft.net import RequestHeader
from raft.wire.fetch import FetchForm, read_fetch_response
from raft.wire.responses import Group
from records.batch_writer import build_value_batch
from records.codec import decode_message
from records.rpc import fetch
from records.types import Epoch, NodeId, Offset
from tests.waiting import wait_until_async

GROUP = Group("t", 0, UUID(int=3))
VERSION = 17


class Story:
    """One replica's Fetch at offset 5, in a log that ends there."""

    def __init__(self) -> None:
        self.end_offset = 5
        self.high_watermark = 5
        self.sent: list[FetchResponse] = []
        storage = SimpleNamespace(log=self, read_bytes=self.read_bytes)
        self.pending = PendingRequests(
            node_id=NodeId(1), group=GROUP, quorum=SimpleNamespace(log=self),  # type: ignore[arg-type]
            storage=storage, snapshots=NoSnapshots(),  # type: ignore[arg-type]
            endpoints=lambda _: None,
        )  # fmt: skip

    @property
    def log_end_offset(self) -> int:
        return self.end_offset

    def read_bytes(self, from_offset: int, end_offset: int, max_bytes: int) -> bytes:  # noqa: ARG002
        return b"".join(
            build_value_batch([b"v"], base_offset=offset, leader_epoch=2, timestamp=0)
            for offset in range(from_offset, end_offset)
        )

    def send(self, payload: tuple[bytes, ...]) -> None:
        """Stand in for `Reply.send`: decode the answer as a replica would."""
        body = b"".join(payload)[5:]
        self.sent.append(read_fetch_response(decode_message(fetch.FetchResponse, body, VERSION)))

    def fetch_and_respond(self, *, from_voter: bool = False) -> None:
        header = RequestHeader(1, VERSION, 7, "c", True, 0)
        form = FetchForm("", GROUP.topic_id)
        inbound = InboundRequest(header, self, form, from_voter=from_voter)  # type: ignore[arg-type]
        correlation = self.pending.add(1, inbound)
        response = FetchResponse(leader_id=NodeId(1), epoch=Epoch(2), high_watermark=Offset(5))
        end = Offset(self.end_offset)
        self.pending.respond_fetch(RespondFetch(1, correlation, response, Offset(5), end, 10_000))

    def append(self) -> None:
        self.end_offset += 1
        self.pending.release_held()  # what `DiskWork` does after every append


def test_a_leader_delays_a_fetch_response_without_records_until_the_next_append() -> None:
    async def story() -> None:
        one = Story()
        one.fetch_and_respond(from_voter=True)
        assert one.sent == []
        one.append()
        (answer,) = one.sent
        assert answer.high_watermark == 5
        assert [batch.end_offset for batch in answer.batches] == [6]

    asyncio.run(story())


def test_a_delayed_fetch_response_to_an_observer_has_committed_records_only() -> None:
    async def story() -> None:
        one = Story()
        one.fetch_and_respond()
        one.append()
        assert one.sent[0].batches == ()
        one = Story()
        one.fetch_and_respond()
        one.end_offset, one.high_watermark = 9, 8
        one.append()
        assert one.sent[0].batches[-1].end_offset == 8

    asyncio.run(story())


def test_a_leader_sends_a_delayed_fetch_response_without_records_after_the_maximum_delay() -> None:
    async def story() -> None:
        one = Story()
        one.fetch_and_respond()
        await wait_until_async(lambda: one.sent)
        (answer,) = one.sent
        assert (answer.high_watermark, answer.batches) == (5, ())

    asyncio.run(story())


class HandLoop:
    """A loop with a fixed clock, which keeps its only timer."""

    def __init__(self) -> None:
        self.now = 10.0
        self.due: tuple[float, Callable[[], None]] | None = None

    def time(self) -> float:
        return self.now

    def call_at(self, when: float, callback: Callable[[], None]) -> HandLoop:
        assert self.due is None, "two timers"
        self.due = (when, callback)
        return self

    def cancel(self) -> None:
        self.due = None

    def ring(self) -> float:
        """Advance the clock to the timer and fire it; return the time since the beginning."""
        assert self.due is not None, "nothing waits"
        (self.now, callback), self.due = self.due, None
        callback()
        return self.now - 10.0


def test_a_leader_delays_a_fetch_response_to_an_observer_less_than_to_a_voter() -> None:
    """Clients of an observer wait for its high watermark; a voter serves none."""

    async def story() -> None:
        one, loop = Story(), HandLoop()
        one.pending._loop = loop  # type: ignore[assignment]
        one.fetch_and_respond(from_voter=True)
        one.fetch_and_respond()
        assert loop.ring() == pytest.approx(HOLD_S)
        assert (len(one.sent), len(one.pending.held)) == (1, 1)
        assert loop.ring() == pytest.approx(VOTER_HOLD_S)
        assert (len(one.sent), one.pending.held, loop.due) == (2, [], None)
        one.fetch_and_respond(from_voter=True)
        one.append()
        assert len(one.sent) == 3, "with records it leaves at once, whoever it is for"
        assert one.sent[2].batches[-1].end_offset == 6
        assert loop.due is None

    asyncio.run(story())


def test_a_leader_delays_no_fetch_response_while_a_linearizable_read_waits() -> None:
    async def story() -> None:
        one = Story()
        one.pending.reads_waiting = 1
        one.fetch_and_respond()
        assert len(one.sent) == 1

    asyncio.run(story())


def test_a_leader_sends_a_fetch_response_with_records_at_once() -> None:
    async def story() -> None:
        one = Story()
        one.end_offset = 8
        one.fetch_and_respond()
        assert one.sent[0].batches[-1].end_offset == 8

    asyncio.run(story())


def test_the_node_drops_the_waiting_requests_of_a_closed_connection() -> None:
    async def story() -> None:
        one = Story()
        one.end_offset = 8
        assert not one.pending.forget(1)
        inbound = InboundRequest(RequestHeader(1, VERSION, 7, "c", True, 0), one)  # type: ignore[arg-type]
        correlation = one.pending.add(1, inbound)
        assert one.pending.forget(1)
        response = FetchResponse(leader_id=NodeId(1), epoch=Epoch(2))
        effect = RespondFetch(1, correlation, response, Offset(5), Offset(8), 10_000)
        one.pending.respond_fetch(effect)
        assert one.sent == []

    asyncio.run(story())
