"""News of the high watermark waits for records to go with it, but never for long, nor for reads."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from uuid import UUID

import pytest

from raft.core.effects import RespondFetch
from raft.core.messages import FetchResponse
from raft.driver.inbound_request import Asked
from raft.driver.pending_requests import HOLD_S, VOTER_HOLD_S, Answers
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
        self.sent: list[FetchResponse] = []
        storage = SimpleNamespace(log=self, read_bytes=self.read_bytes)
        self.answers = Answers(
            node_id=NodeId(1), group=GROUP, quorum=SimpleNamespace(),  # type: ignore[arg-type]
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
        """As a reply: what a replica would read."""
        body = b"".join(payload)[5:]
        self.sent.append(read_fetch_response(decode_message(fetch.FetchResponse, body, VERSION)))

    def ask_and_answer(self, *, from_voter: bool = False) -> None:
        header = RequestHeader(1, VERSION, 7, "c", True, 0)
        form = FetchForm("", GROUP.topic_id)
        asked = Asked(header, self, form, from_voter=from_voter)  # type: ignore[arg-type]
        correlation = self.answers.take_in(1, asked)
        response = FetchResponse(leader_id=NodeId(1), epoch=Epoch(2), high_watermark=Offset(5))
        end = Offset(self.end_offset)
        self.answers.respond_fetch(RespondFetch(1, correlation, response, Offset(5), end, 10_000))

    def append(self) -> None:
        self.end_offset += 1
        self.answers.release_held()  # what `DiskWork` does after every append


def test_news_alone_is_held_and_leaves_with_the_next_append() -> None:
    async def story() -> None:
        one = Story()
        one.ask_and_answer()
        assert one.sent == []
        one.append()
        (answer,) = one.sent
        assert answer.high_watermark == 5
        assert [batch.end_offset for batch in answer.batches] == [6]

    asyncio.run(story())


def test_news_alone_leaves_by_itself_soon() -> None:
    async def story() -> None:
        one = Story()
        one.ask_and_answer()
        await wait_until_async(lambda: one.sent)
        (answer,) = one.sent
        assert (answer.high_watermark, answer.batches) == (5, ())

    asyncio.run(story())


class HandLoop:
    """A loop whose clock stands; it remembers the one timer there is."""

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
        """Go to where the timer is due; how late it is then, since the beginning."""
        assert self.due is not None, "nothing waits"
        (self.now, callback), self.due = self.due, None
        callback()
        return self.now - 10.0


def test_an_observer_s_news_does_not_wait_as_long_as_a_voter_s() -> None:
    """Its clients wait for it; a voter's state is asked by nobody. Each leaves in its own time."""

    async def story() -> None:
        one, loop = Story(), HandLoop()
        one.answers._loop = loop  # type: ignore[assignment]
        one.ask_and_answer(from_voter=True)
        one.ask_and_answer()
        assert loop.ring() == pytest.approx(HOLD_S)
        assert (len(one.sent), len(one.answers.held)) == (1, 1)
        assert loop.ring() == pytest.approx(VOTER_HOLD_S)
        assert (len(one.sent), one.answers.held, loop.due) == (2, [], None)
        one.ask_and_answer(from_voter=True)
        one.append()
        assert len(one.sent) == 3, "with records it leaves at once, whoever it is for"
        assert one.sent[2].batches[-1].end_offset == 6
        assert loop.due is None

    asyncio.run(story())


def test_nothing_is_held_while_a_read_waits_for_its_round() -> None:
    async def story() -> None:
        one = Story()
        one.answers.reads_waiting = 1
        one.ask_and_answer()
        assert len(one.sent) == 1

    asyncio.run(story())


def test_records_are_never_held() -> None:
    async def story() -> None:
        one = Story()
        one.end_offset = 8
        one.ask_and_answer()
        assert one.sent[0].batches[-1].end_offset == 8

    asyncio.run(story())


def test_a_connection_that_is_gone_is_not_answered() -> None:
    async def story() -> None:
        one = Story()
        one.end_offset = 8
        assert not one.answers.forget(1)
        asked = Asked(RequestHeader(1, VERSION, 7, "c", True, 0), one)  # type: ignore[arg-type]
        correlation = one.answers.take_in(1, asked)
        assert one.answers.forget(1)
        response = FetchResponse(leader_id=NodeId(1), epoch=Epoch(2))
        effect = RespondFetch(1, correlation, response, Offset(5), Offset(8), 10_000)
        one.answers.respond_fetch(effect)
        assert one.sent == []

    asyncio.run(story())
