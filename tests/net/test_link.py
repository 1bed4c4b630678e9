"""Staying connected: at once after a loss, later after failures. Source: KIP-580."""

from __future__ import annotations

import asyncio
from random import Random

import pytest

from raft.net import (
    Backoff,
    ConnectError,
    Link,
    Listener,
    NetError,
    Reason,
    RequestKind,
    loop_factory,
    parse_request_header,
    response_header,
    run,
)

from .conftest import until

KIND = RequestKind.of(1100, 0, first_flexible=0)


def echo(_, frame):
    header = parse_request_header(frame, {1100: 0})
    return response_header(header.correlation_id, flexible=True) + bytes(frame[header.body_at :])


def test_back_off_doubles_within_its_bounds_and_starts_again():
    backoff = Backoff(Random(7), base_ms=10, most_ms=70)
    for full in (10, 20, 40, 70, 70):
        assert full / 2 <= backoff.next_ms() <= full
    backoff.reset()
    assert backoff.next_ms() <= 10


def test_a_link_comes_back_after_its_server_did(on_loop):
    async def main():
        told: list[str] = []
        link = Link(
            "127.0.0.1",
            0,
            random=Random(1),
            on_up=lambda connection: told.append("up"),  # noqa: ARG005
            on_down=lambda error: told.append(error.reason),
        )
        listener = Listener(echo)
        await listener.start("127.0.0.1", 0)
        link.port = listener.port
        link.start()
        await until(lambda: link.connection is not None)
        first = link.connection
        assert await link.connection.request(KIND, b"a") == b"a"
        await listener.close()
        await until(lambda: Reason.REFUSED in told)
        assert told[0] == "up"
        assert told[1] in (Reason.RESET, Reason.PEER_CLOSED)
        assert link.connection is None
        listener = Listener(echo)
        await listener.start("127.0.0.1", link.port)
        link.retry_now()
        await until(lambda: link.connection is not None)
        assert link.connection.id > first.id
        assert await link.connection.request(KIND, b"b") == b"b"
        await link.close()
        count = len(told)
        await listener.close()
        assert len(told) == count, "a callback after close"

    on_loop(main())


def test_a_server_that_accepts_and_closes_is_not_called_in_a_circle(on_loop):
    async def main():
        downs: list[NetError] = []
        waits: list[float] = []
        listener = Listener(lambda connection, _: connection.close())
        await listener.start("127.0.0.1", 0)
        link = Link(
            "127.0.0.1",
            listener.port,
            random=Random(1),
            on_up=lambda connection: connection.send(KIND, b"", lambda _: None),
            on_down=downs.append,
        )
        next_ms = link.backoff.next_ms

        def counted() -> float:
            waits.append(next_ms())
            return 0.01  # the tests do not wait; the waits are what is looked at

        link.backoff.next_ms = counted
        link.start()
        await until(lambda: len(downs) >= 6)
        await link.close()
        await listener.close()
        assert waits[:5] == sorted(waits[:5])
        assert waits[4] > 100

    on_loop(main())


def test_an_error_in_a_callback_of_the_owner_is_not_lost(unused_port):
    reached: list[BaseException] = []

    def on_down(error: NetError) -> None:
        assert not isinstance(error, ConnectError), "bug in the owner"

    async def main() -> None:
        asyncio.get_running_loop().set_exception_handler(
            lambda _, context: reached.append(context["exception"])
        )
        link = Link(
            "127.0.0.1", unused_port, random=Random(1), on_up=lambda _: None, on_down=on_down
        )
        link.start()
        await until(lambda: bool(reached))
        await link.close()

    asyncio.run(main())
    assert isinstance(reached[0], AssertionError)


def test_a_broken_invariant_in_a_callback_ends_the_program():
    async def main() -> None:
        def broken() -> None:
            raise AssertionError("log start past watermark")

        asyncio.get_running_loop().call_soon(broken)
        await asyncio.Event().wait()

    with pytest.raises(AssertionError, match="log start past watermark"):
        run(main())


def test_run_returns_what_main_returns_on_uvloop_if_it_is_there():
    async def main() -> str:
        return type(asyncio.get_running_loop()).__module__

    assert run(main()).startswith("uvloop" if loop_factory() else "asyncio")
