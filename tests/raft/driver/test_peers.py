"""One connection to one peer, whatever becomes of it. `raft.core.events`, rules 5 and 7."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

import pytest

from raft.core.events import Event, PeerLost, RequestFailed
from raft.core.messages import VoteRequest
from raft.core.voters import Endpoint, ReplicaKey
from raft.driver import peers
from raft.driver.config import METADATA_GROUP
from raft.driver.peers import (
    CONNECT_TIMEOUT_MS,
    MAX_UNANSWERED,
    SECURE_CONNECT_TIMEOUT_MS,
    DialSettings,
    PeerLink,
)
from raft.net import Arena, ClientConnection, ConnectError, Listener, Reason, connect
from raft.net.security import OutgoingSecurity, outgoing
from records.types import Epoch, NodeId, Offset
from tests.waiting import wait_until_async

PEER = NodeId(2)
QUESTION = VoteRequest(
    cluster_id=None,
    voter=None,
    candidate=ReplicaKey(NodeId(1)),
    epoch=Epoch(1),
    last_epoch=Epoch(0),
    end_offset=Offset(0),
    pre_vote=True,
)


def link_to(port: int, events: list[Event]) -> PeerLink:
    dialling = DialSettings(
        client_id="test",
        arena=Arena(),
        own_endpoints=(),
        on_bad_answer=lambda *_: None,
    )
    endpoint = Endpoint("CONTROLLER", "127.0.0.1", port)
    return PeerLink(
        group=METADATA_GROUP,
        peer=PEER,
        endpoint=endpoint,
        dial_settings=dialling,
        post=events.append,
    )


async def silent_listener() -> Listener:
    """A listener that accepts connections, reads, and never answers."""
    forever = asyncio.get_running_loop().create_future()
    listener = Listener(lambda *_: asyncio.shield(forever))
    await listener.start("127.0.0.1", 0)
    return listener


def test_requests_on_a_connection_that_was_lost_before_its_first_request_fail(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The connection ends after it was made, before `_open` continues: the link may redial."""

    async def story() -> None:
        listener, events = await silent_listener(), list[Event]()
        dials = 0

        async def connect_and_lose(*args: Any, **kwargs: Any) -> ClientConnection:
            nonlocal dials
            dials += 1
            connection = await connect(*args, **kwargs)
            connection.connection_lost(ConnectionResetError())
            return connection

        monkeypatch.setattr(peers, "connect", connect_and_lose)
        link = link_to(listener.port, events)
        link.send(1, QUESTION)
        await wait_until_async(lambda: RequestFailed(1) in events)
        assert events == [PeerLost(PEER), RequestFailed(1)]
        link.send(2, QUESTION)
        await wait_until_async(lambda: RequestFailed(2) in events)
        assert dials == 2
        link.close()
        await listener.close()

    asyncio.run(story())


def test_a_node_limits_the_number_of_requests_to_another_node_that_does_not_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Pre-votes are sent twenty times a second; they must not pile up behind a stalled peer."""

    async def story() -> None:
        listener, events = await silent_listener(), list[Event]()
        dials = list[ClientConnection]()

        async def connect_and_note(*args: Any, **kwargs: Any) -> ClientConnection:
            dials.append(await connect(*args, **kwargs))
            return dials[-1]

        monkeypatch.setattr(peers, "connect", connect_and_note)
        monkeypatch.setattr(PeerLink, "_request_versions", lambda *_: None)
        link = link_to(listener.port, events)
        link.send(0, QUESTION)
        await wait_until_async(lambda: dials)
        link._versions = {52: 2}
        for request_id in range(1, MAX_UNANSWERED + 1):
            link.send(request_id, QUESTION)
        assert dials[0].in_flight == MAX_UNANSWERED
        link.send(MAX_UNANSWERED + 1, QUESTION)
        assert dials[0].closed
        await wait_until_async(lambda: len(dials) == 2)
        link.close()
        await listener.close()

    asyncio.run(story())


def test_a_dial_in_progress_goes_on_when_the_core_reconnects(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A handshake that takes longer than a request would otherwise begin anew each time."""

    async def story() -> None:
        listener, events = await silent_listener(), list[Event]()
        dials, sent = list[int](), list[int]()
        is_open = asyncio.Event()

        async def connect_slowly(*args: Any, timeout_ms: int, **kwargs: Any) -> ClientConnection:
            dials.append(timeout_ms)
            await is_open.wait()
            return await connect(*args, **kwargs)

        monkeypatch.setattr(peers, "connect", connect_slowly)
        monkeypatch.setattr(peers, "read_versions", lambda _: {52: 2})
        monkeypatch.setattr(PeerLink, "_transmit", lambda _, number, __: sent.append(number))
        monkeypatch.setattr(
            ClientConnection, "send", lambda _, __, ___, on_answer, **____: on_answer(b"")
        )
        link = link_to(listener.port, events)
        link.send(1, QUESTION)
        await wait_until_async(lambda: dials)
        link.reconnect()
        link.send(2, QUESTION)
        is_open.set()
        await wait_until_async(lambda: sent)
        assert len(dials) == 1
        assert sent == [2], "the request that was given up is sent on the new connection"
        link.reconnect()
        await wait_until_async(lambda: len(dials) == 2)
        link.close()
        await listener.close()

    asyncio.run(story())


@pytest.mark.parametrize(
    ("security", "timeout_ms"),
    [(None, CONNECT_TIMEOUT_MS), (OutgoingSecurity(), SECURE_CONNECT_TIMEOUT_MS)],
)
def test_a_dial_with_handshakes_has_more_time(
    monkeypatch: pytest.MonkeyPatch, security: OutgoingSecurity | None, timeout_ms: int
) -> None:
    async def story() -> None:
        asked = list[int]()

        async def refuse(*_: Any, timeout_ms: int, **__: Any) -> ClientConnection:
            asked.append(timeout_ms)
            raise ConnectError(Reason.TIMEOUT, host="h", port=1, message="")

        monkeypatch.setattr(peers, "connect", refuse)
        link_to(1, []).send(1, QUESTION)
        await wait_until_async(lambda: asked)
        assert asked == [timeout_ms]

    with contextlib.nullcontext() if security is None else outgoing(security):
        asyncio.run(story())
