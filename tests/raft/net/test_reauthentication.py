"""A client authenticates anew before its session ends, without a gap in what it asks."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from raft.net import client_authentication, connect
from raft.net.client import ClientConnection
from raft.net.errors import ConnectError, ConnectionLostError, Reason
from raft.net.oauthbearer import OAUTHBEARER, TokenError, ValidToken
from raft.net.sasl import Credentials, ServerMechanisms, TokenCredentials
from raft.net.security import ListenerSecurity, OutgoingSecurity, outgoing
from raft.net.token_source import TokenUnavailableError
from tests.raft.net.test_security import KIND, SASL, Echo
from tests.waiting import wait_until_async

RENEWALS = 3
ALICE = OutgoingSecurity(sasl=Credentials("SCRAM-SHA-256", "alice", "scram-secret"))


@pytest.fixture
def brief(monkeypatch: pytest.MonkeyPatch) -> int:
    """Return the lifetime of sessions in ms. Clients renew them early: a slow machine has time."""
    monkeypatch.setattr(client_authentication, "RENEW_FROM", 0.02)
    monkeypatch.setattr(client_authentication, "RENEW_TO", 0.03)
    return 8_000


async def ask_until(connection: ClientConnection, condition: Any) -> int:
    """Ask on a connection again and again until a condition holds; return how often."""
    asked = 0

    async def ask() -> bool:
        nonlocal asked
        body = b"%08d" % asked
        asked += 1
        assert bytes(await connection.request(KIND, body, timeout_ms=20_000)).endswith(body)
        return bool(condition())

    while not await ask():
        await asyncio.sleep(0)
    return asked


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-512"])
def test_a_client_authenticates_anew_on_the_same_connection_while_it_asks(
    on_loop: Any, brief: int, mechanism: str
) -> None:
    secret = "plain-secret" if mechanism == "PLAIN" else "scram-secret"

    async def main() -> None:
        security = ListenerSecurity(sasl=SASL, session_lifetime_ms=brief)
        async with Echo(security) as server:
            with outgoing(OutgoingSecurity(sasl=Credentials(mechanism, "alice", secret))):
                connection = await connect("127.0.0.1", server.listener.port, client_id="")
            gate = server.listener.gate
            assert gate is not None
            await ask_until(connection, lambda: gate.outcomes[mechanism, True] > RENEWALS)
            assert not connection.closed
            connection.close()

    on_loop(main())


def tokens(lifetime_ms: int) -> ServerMechanisms:
    """Return mechanisms that take tokens, each for a session of this length."""

    def check(text: str) -> ValidToken:
        if text == "revoked":
            raise TokenError("revoked")
        return ValidToken("alice", lifetime_ms)

    return ServerMechanisms(enabled=(OAUTHBEARER,), check_token=check)


def test_a_client_without_a_new_token_keeps_its_session_to_its_end_and_tries_again(
    on_loop: Any, brief: int
) -> None:
    shown: list[str] = []

    def get_token() -> str:
        shown.append("token")
        if len(shown) == 2:
            raise TokenUnavailableError("the provider is away")
        return "token"

    async def main() -> None:
        async with Echo(ListenerSecurity(sasl=tokens(brief))) as server:
            with outgoing(OutgoingSecurity(sasl=TokenCredentials(get_token))):
                connection = await connect("127.0.0.1", server.listener.port, client_id="")
            await ask_until(connection, lambda: len(shown) > 3)
            assert not connection.closed
            connection.close()

    on_loop(main())


def test_a_refused_reauthentication_ends_the_connection_and_its_requests_with_the_reason(
    on_loop: Any, brief: int, caplog: pytest.LogCaptureFixture
) -> None:
    shown = iter(("good", "revoked"))
    ended: list[ConnectionLostError] = []

    async def main() -> None:
        async with Echo(ListenerSecurity(sasl=tokens(brief))) as server:
            with outgoing(OutgoingSecurity(sasl=TokenCredentials(lambda: next(shown)))):
                connection = await connect(
                    "127.0.0.1",
                    server.listener.port,
                    client_id="",
                    on_close=lambda _, error: ended.append(error),
                )
            with pytest.raises(ConnectionLostError):
                await ask_until(connection, lambda: False)
            await wait_until_async(lambda: ended, "the owner is told")
            assert ended[0].reason is Reason.AUTHENTICATION_FAILED

    on_loop(main())
    assert "re-authentication with" in caplog.text


def test_requests_that_were_held_back_follow_in_order_or_fail_with_the_connection(
    on_loop: Any,
) -> None:
    async def main() -> None:
        async with Echo(ListenerSecurity(sasl=SASL)) as server:
            with outgoing(ALICE):
                connection = await connect("127.0.0.1", server.listener.port, client_id="")
            first = connection.request(KIND, b"first")
            connection.hold()
            later = [connection.request(KIND, b"%d" % n, timeout_ms=9_000) for n in range(3)]
            assert bytes(await first).endswith(b"first")
            assert connection.in_flight == 3
            assert not any(each.done() for each in later)
            connection.release()
            answers = [bytes(each)[-1:] for each in await asyncio.gather(*later)]
            assert answers == [b"0", b"1", b"2"]
            connection.hold()
            lost = connection.request(KIND, b"lost")
            connection.close()
            with pytest.raises(ConnectionLostError):
                await lost

    on_loop(main())


def test_a_held_request_keeps_its_deadline(on_loop: Any) -> None:
    async def main() -> None:
        async with Echo(ListenerSecurity(sasl=SASL)) as server:
            with outgoing(ALICE):
                connection = await connect("127.0.0.1", server.listener.port, client_id="")
            connection.hold()
            with pytest.raises(ConnectionLostError) as lost:
                await connection.request(KIND, b"late", timeout_ms=50)
            assert lost.value.reason is Reason.TIMEOUT

    on_loop(main())


def test_a_client_whose_first_token_is_unavailable_does_not_connect(on_loop: Any) -> None:
    def get_token() -> str:
        raise TokenUnavailableError("no token from here")

    async def main() -> None:
        async with Echo(ListenerSecurity(sasl=tokens(1))) as server:
            with (
                outgoing(OutgoingSecurity(sasl=TokenCredentials(get_token))),
                pytest.raises(ConnectError, match="no token from here"),
            ):
                await connect("127.0.0.1", server.listener.port)

    on_loop(main())
