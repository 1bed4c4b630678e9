"""TLS and SASL between our own listener and client, on both event loops."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from dataclasses import replace
from datetime import timedelta

import pytest
from cryptography.hazmat.primitives.serialization import Encoding

from raft.net import Listener, connect
from raft.net.certificates import TlsContexts, TlsSettingError, TlsSettings
from raft.net.errors import ConnectError, ConnectionLostError, Reason
from raft.net.header import RequestKind
from raft.net.limits import Limits
from raft.net.principal import ANONYMOUS, Principal
from raft.net.sasl import Credentials, ServerMechanisms
from raft.net.scram import SCRAM
from raft.net.security import ListenerSecurity, OutgoingSecurity, outgoing
from raft.net.tls import MAX_UNREAD, Handshakes, ServerTls
from tests.pki import Authority
from tests.waiting import wait_until_async

KIND = RequestKind.of(60, 0, 0)
BIG = 3_000_000


@pytest.fixture(scope="module")
def ca():
    return Authority()


@pytest.fixture(scope="module")
def pki(ca, tmp_path_factory):
    """Files of a CA, a server, a client, and an expired, a foreign and a nameless server."""
    root = tmp_path_factory.mktemp("pki")
    ca.write(root / "ca.pem")
    ca.issue("server").write(root / "server.pem")
    ca.issue("server").write_pkcs12(root / "server.p12", "secret", ca.certificate)
    ca.issue("client", hosts=()).write(root / "client.pem")
    node = ca.issue("node", hosts=("localhost", "127.0.0.1", "esker:node:7"))
    node.write(root / "node.pem")
    ca.issue("old", valid=timedelta(minutes=-1)).write(root / "expired.pem")
    broken = ca.issue("broken")
    der = bytearray(broken.certificate.public_bytes(Encoding.DER))
    der[-1] ^= 1  # of the signature
    key = broken.pem.partition(b"-----BEGIN CERTIFICATE")[0]
    (root / "broken.pem").write_bytes(key + ssl.DER_cert_to_PEM_cert(bytes(der)).encode())
    ca.issue("other", hosts=("elsewhere.example",)).write(root / "elsewhere.pem")
    Authority("stranger").issue("server").write(root / "foreign.pem")
    return root


def server_tls(pki, key="server.pem", **more):
    given = {"ssl.keystore.location": str(pki / key), **more}
    return TlsContexts(TlsSettings.of(given), server=True)


def client_tls(pki, key=None, **more):
    given = {"ssl.truststore.location": str(pki / "ca.pem"), **more}
    if key:
        given["ssl.keystore.location"] = str(pki / key)
    return TlsContexts(TlsSettings.of(given), server=False)


def credential(mechanism, password, iterations=4096):
    scram = SCRAM[mechanism]
    salt = b"salt-of-a-user"
    return scram.credential(scram.salt_password(password, salt, iterations), salt, iterations)


SASL = ServerMechanisms(
    enabled=("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"),
    plain_users={"alice": "plain-secret"},
    find_credential=lambda user, mechanism: (
        credential(mechanism, "scram-secret") if user == "alice" else None
    ),
)


class Echo:
    """A listener that answers each request's body, and notes its connection's principal."""

    def __init__(self, security, limits=None, hold_ms=None):
        self.principals = []
        self.names = []  # of the certificates
        self.listener = Listener(self.handle, security=security, limits=limits, hold_ms=hold_ms)

    def handle(self, connection, frame):
        self.principals.append(connection.principal)
        self.names.append(connection.certificate_names)
        return bytes(frame[4:8]) + b"\0" + bytes(frame[11:])

    async def __aenter__(self):
        await self.listener.start("127.0.0.1", 0)
        return self

    async def __aexit__(self, *_):
        await self.listener.close()


async def ask(server, security, body=b"hello", host="127.0.0.1"):
    connection = await connect(host, server.listener.port, client_id="", security=security)
    try:
        return bytes(await connection.request(KIND, body, timeout_ms=20_000))
    finally:
        connection.close()


def test_a_tls_listener_answers_requests_with_small_and_large_bodies(on_loop, pki):
    async def main():
        security = ListenerSecurity(tls=server_tls(pki))
        async with Echo(security) as server:
            outside = OutgoingSecurity(tls=client_tls(pki))
            assert (await ask(server, outside)).endswith(b"hello")
            assert (await ask(server, outside, b"x" * BIG)).endswith(b"x" * BIG)
            assert server.principals == [ANONYMOUS] * 2
            assert server.listener.handshakes.completed == 2
            assert not server.listener.handshakes.begun

    on_loop(main())


def test_a_held_connection_shakes_no_hands_and_is_closed_when_its_time_is_over(on_loop, pki):
    async def main():
        peers = []

        def hold_ms(peer):
            peers.append(peer)
            return 50 if len(peers) == 2 else 0

        async with Echo(ListenerSecurity(tls=server_tls(pki)), hold_ms=hold_ms) as server:
            outside = OutgoingSecurity(tls=client_tls(pki))
            assert (await ask(server, outside)).endswith(b"hello")
            with pytest.raises((ConnectError, ConnectionLostError)):
                await ask(server, outside)
            assert (await ask(server, outside)).endswith(b"hello")
            assert server.listener.handshakes.completed == 2
            assert server.listener.ended[Reason.THROTTLED] == 1
            assert not server.listener.handshakes.begun
            assert len(peers) == 3, "each connection is counted once"

    on_loop(main())


def test_a_listener_that_closes_ends_the_connections_that_it_holds(on_loop, pki):
    async def main():
        for security in (ListenerSecurity(), ListenerSecurity(tls=server_tls(pki))):
            async with Echo(security, hold_ms=lambda _: 60_000) as server:
                reader, writer = await asyncio.open_connection("127.0.0.1", server.listener.port)
                writer.write(b"early")
                await wait_until_async(
                    lambda: server.listener.accepted or (server.listener.handshakes.begun),
                    "the connection is held",
                )
                await server.listener.close()
                with contextlib.suppress(ConnectionError):
                    assert await reader.read() == b""
                writer.close()
                assert not server.listener.connections
                assert not server.listener.handshakes.begun

    on_loop(main())


@pytest.mark.parametrize(
    ("key", "rules", "name"),
    [
        ("client.pem", "DEFAULT", "CN=client,O=Esker"),
        ("client.pem", "RULE:^CN=(.*?),.*$/$1/U,DEFAULT", "CLIENT"),
    ],
)
def test_a_client_certificate_gives_the_connection_its_principal(on_loop, pki, key, rules, name):
    async def main():
        tls = server_tls(
            pki,
            "server.p12",
            **{
                "ssl.keystore.password": "secret",
                "ssl.client.auth": "required",
                "ssl.truststore.location": str(pki / "ca.pem"),
                "ssl.principal.mapping.rules": rules,
            },
        )
        async with Echo(ListenerSecurity(tls=tls)) as server:
            await ask(server, OutgoingSecurity(tls=client_tls(pki, key)))
            assert server.principals == [Principal("User", name)]
            assert server.names == [frozenset()]

    on_loop(main())


@pytest.mark.parametrize("key", [None, "foreign.pem", "expired.pem", "broken.pem"])
def test_a_listener_refuses_a_client_without_a_valid_certificate(on_loop, pki, key, caplog):
    async def main():
        tls = server_tls(
            pki,
            **{"ssl.client.auth": "required", "ssl.truststore.location": str(pki / "ca.pem")},
        )
        async with Echo(ListenerSecurity(tls=tls)) as server:
            with pytest.raises((ConnectError, ConnectionLostError)):
                await ask(server, OutgoingSecurity(tls=client_tls(pki, key)))
            await wait_until_async(lambda: server.listener.ended[Reason.TLS_FAILED] == 1)
            assert server.principals == []
            good = OutgoingSecurity(tls=client_tls(pki, "client.pem"))
            assert (await ask(server, good)).endswith(b"hello")

    on_loop(main())
    assert closed_lines(caplog) == ["tls_handshake_failed"]


def closed_lines(caplog):
    """Return the reasons in the log lines of connections that a listener closed."""
    return [
        line.partition("closed=")[2].split()[0] for line in caplog.messages if "closed=" in line
    ]


@pytest.mark.parametrize("key", ["foreign.pem", "expired.pem", "elsewhere.pem"])
def test_a_client_refuses_a_server_whose_certificate_is_not_valid_for_it(on_loop, pki, key):
    async def main():
        async with Echo(ListenerSecurity(tls=server_tls(pki, key))) as server:
            with pytest.raises(ConnectError, match="certificate refused") as refused:
                await ask(server, OutgoingSecurity(tls=client_tls(pki)))
            assert refused.value.reason is Reason.AUTHENTICATION_FAILED

    on_loop(main())


def test_plaintext_or_http_bytes_to_a_tls_listener_end_only_their_own_connection(on_loop, pki):
    async def main():
        async with Echo(ListenerSecurity(tls=server_tls(pki))) as server:
            for data in (
                b"GET / HTTP/1.1\r\n\r\n",
                b"\0\0\0\x0e" + b"\0" * 14,
                b"\x16\x03\x01\xff",
            ):
                reader, writer = await asyncio.open_connection("127.0.0.1", server.listener.port)
                writer.write(data)
                writer.write_eof()
                await reader.read()
                writer.close()
            assert (await ask(server, OutgoingSecurity(tls=client_tls(pki)))).endswith(b"hello")
            await wait_until_async(lambda: not server.listener.handshakes.begun)

    on_loop(main())


def test_a_listener_limits_the_number_and_duration_of_silent_tls_handshakes(on_loop, pki):
    async def main():
        limits = replace(Limits(), max_handshakes=3)
        async with Echo(ListenerSecurity(tls=server_tls(pki)), limits) as server:
            listener = server.listener
            silent = [await asyncio.open_connection("127.0.0.1", listener.port) for _ in range(3)]
            await wait_until_async(lambda: len(listener.handshakes.begun) == 3)
            with pytest.raises((ConnectError, ConnectionLostError)):
                await ask(server, OutgoingSecurity(tls=client_tls(pki)))
            listener.sweep(asyncio.get_running_loop().time() + 11)
            assert listener.ended[Reason.HANDSHAKE_STALLED] == 3
            assert (await ask(server, OutgoingSecurity(tls=client_tls(pki)))).endswith(b"hello")
            for _, writer in silent:
                writer.close()

    on_loop(main())


def test_a_listener_does_one_step_of_one_tls_handshake_in_a_turn_of_its_loop(
    on_loop, pki, monkeypatch
):
    """Established connections are served between the handshakes of peers that begin together."""

    async def main():
        limits = replace(Limits(), max_handshakes_per_second=1_000)
        async with Echo(ListenerSecurity(tls=server_tls(pki)), limits) as server:
            turn, turns = 0, []
            step = ServerTls.continue_handshake

            def counted(connection):
                turns.append(turn)
                step(connection)

            async def count():
                nonlocal turn
                while True:
                    turn += 1
                    await asyncio.sleep(0)

            counting = asyncio.ensure_future(count())
            monkeypatch.setattr(ServerTls, "continue_handshake", counted)
            security = OutgoingSecurity(tls=client_tls(pki))
            answers = await asyncio.gather(*(ask(server, security) for _ in range(20)))
            assert all(answer.endswith(b"hello") for answer in answers)
            counting.cancel()
            assert len(turns) >= 40
            assert len(set(turns)) == len(turns), "two handshakes in one turn"

    on_loop(main())


def test_a_peer_that_sends_much_is_not_read_until_its_handshake_has_its_turn(
    on_loop, pki, monkeypatch
):
    async def main():
        async with Echo(ListenerSecurity(tls=server_tls(pki))) as server:
            later, steps = Handshakes.continue_later, []
            monkeypatch.setattr(Handshakes, "continue_later", lambda _, each: steps.append(each))
            _, writer = await asyncio.open_connection("127.0.0.1", server.listener.port)
            writer.write(bytes(8_000_000))
            await wait_until_async(lambda: steps and steps[0]._paused)
            assert len(steps) == 1
            assert steps[0]._received.pending <= MAX_UNREAD + 65_536
            later(server.listener.handshakes, steps[0])
            await wait_until_async(lambda: server.listener.ended[Reason.TLS_FAILED])
            writer.close()

    on_loop(main())


def test_an_idle_listener_begins_a_tenth_of_a_seconds_handshakes_at_once(on_loop):
    async def main():
        begun = []

        class Peer:
            def shake_hands(self):
                begun.append(self)

        limits = replace(Limits(), max_handshakes_per_second=50)
        handshakes = Handshakes(limits, lambda *_: None)
        for _ in range(12):
            handshakes.add(Peer())
        assert len(begun) == 5
        handshakes._timer.cancel()

    on_loop(main())


def test_a_listener_uses_a_replaced_certificate_without_a_restart_but_no_invalid_certificate(
    on_loop, ca, tmp_path
):
    async def main():
        ca.write(tmp_path / "ca.pem")
        path = ca.issue("first").write(tmp_path / "server.pem")
        now = [0.0]
        settings = TlsSettings.of({"ssl.keystore.location": str(path)})
        tls = TlsContexts(settings, server=True, monotonic=lambda: now[0])
        async with Echo(ListenerSecurity(tls=tls)) as server:
            outside = OutgoingSecurity(tls=client_tls(tmp_path))
            await ask(server, outside)
            before = tls.expires_at
            path.write_bytes(ca.issue("second", valid=timedelta(days=2)).pem)
            now[0] = 2.0
            await ask(server, outside)
            assert (tls.reloads, tls.failure) == (1, None)
            assert tls.expires_at > before
            path.write_bytes(b"-----BEGIN nothing-----\n")
            now[0] = 4.0
            await ask(server, outside)
            assert tls.reloads == 1
            assert "ssl.keystore.location" in tls.failure

    on_loop(main())


def test_a_connection_ends_when_its_clients_certificate_expires(on_loop, pki):
    async def main():
        tls = server_tls(
            pki,
            **{"ssl.client.auth": "required", "ssl.truststore.location": str(pki / "ca.pem")},
        )
        async with Echo(ListenerSecurity(tls=tls)) as server:
            with outgoing(OutgoingSecurity(tls=client_tls(pki, "client.pem"))):
                connection = await connect("127.0.0.1", server.listener.port)
            await wait_until_async(lambda: server.listener.connections)
            now = asyncio.get_running_loop().time()
            server.listener.sweep(now)
            assert len(server.listener.connections) == 1
            server.listener.sweep(now + timedelta(days=2).total_seconds())
            assert server.listener.ended[Reason.EXPIRED] == 1
            connection.close()

    on_loop(main())


@pytest.mark.parametrize("user", [None, Credentials("PLAIN", "alice", "plain-secret")])
def test_a_connection_has_the_names_of_a_certificate_only_without_sasl(on_loop, pki, user):
    async def main():
        tls = server_tls(
            pki, **{"ssl.client.auth": "required", "ssl.truststore.location": str(pki / "ca.pem")}
        )
        sasl = None if user is None else SASL
        async with Echo(ListenerSecurity(tls=tls, sasl=sasl)) as server:
            await ask(server, OutgoingSecurity(tls=client_tls(pki, "node.pem"), sasl=user))
            names = {"localhost", "127.0.0.1", "esker:node:7"} if user is None else set()
            assert server.names == [names]

    on_loop(main())


@pytest.mark.parametrize("mechanism", SASL.enabled)
@pytest.mark.parametrize("over_tls", [False, True])
def test_a_user_authenticates_by_each_sasl_mechanism(on_loop, pki, mechanism, over_tls):
    async def main():
        password = "plain-secret" if mechanism == "PLAIN" else "scram-secret"
        security = ListenerSecurity(tls=server_tls(pki) if over_tls else None, sasl=SASL)
        async with Echo(security) as server:
            credentials = Credentials(mechanism, "alice", password)
            tls = client_tls(pki) if over_tls else None
            await ask(server, OutgoingSecurity(tls=tls, sasl=credentials), b"y" * BIG)
            assert server.principals == [Principal("User", "alice")]

    on_loop(main())


@pytest.mark.parametrize("mechanism", SASL.enabled)
@pytest.mark.parametrize("user", ["alice", "mallory"])
def test_a_listener_gives_the_same_error_for_a_wrong_password_and_an_unknown_user(
    on_loop, mechanism, user, caplog
):
    async def main():
        async with Echo(ListenerSecurity(sasl=SASL)) as server:
            credentials = Credentials(mechanism, user, "wrong")
            with pytest.raises(ConnectError, match=f"user {user} is refused: .*nvalid") as refused:
                await ask(server, OutgoingSecurity(sasl=credentials))
            assert refused.value.reason is Reason.AUTHENTICATION_FAILED
            assert "wrong" not in str(refused.value)
            assert server.principals == []
            await wait_until_async(lambda: server.listener.ended[Reason.AUTHENTICATION_FAILED] == 1)

    on_loop(main())
    assert closed_lines(caplog) == ["authentication_failed"]


def test_a_listener_refuses_a_disabled_mechanism_and_names_the_enabled_mechanisms(on_loop):
    async def main():
        only_plain = ServerMechanisms(enabled=("PLAIN",))
        async with Echo(ListenerSecurity(sasl=only_plain)) as server:
            with pytest.raises(ConnectError, match="its mechanisms are PLAIN"):
                await ask(server, OutgoingSecurity(sasl=Credentials("SCRAM-SHA-256", "a", "b")))

    on_loop(main())


def test_a_listener_closes_the_connection_of_a_request_before_authentication(on_loop):
    async def main():
        async with Echo(ListenerSecurity(sasl=SASL)) as server:
            with pytest.raises(ConnectionLostError):
                await ask(server, None)
            assert server.principals == []

    on_loop(main())


def test_a_listener_closes_the_connection_of_a_long_frame_before_authentication(on_loop):
    async def main():
        async with Echo(ListenerSecurity(sasl=SASL)) as server:
            with pytest.raises(ConnectionLostError):
                await ask(server, None, b"x" * 600_000)
            assert server.listener.ended[Reason.OVERSIZED] == 1

    on_loop(main())


def test_a_listener_closes_a_connection_that_does_not_authenticate_in_time(on_loop):
    async def main():
        async with Echo(ListenerSecurity(sasl=SASL)) as server:
            _, writer = await asyncio.open_connection("127.0.0.1", server.listener.port)
            await wait_until_async(lambda: server.listener.connections)
            server.listener.sweep(asyncio.get_running_loop().time() + 11)
            assert server.listener.ended[Reason.HANDSHAKE_STALLED] == 1
            writer.close()

    on_loop(main())


def test_the_error_for_unusable_tls_settings_names_the_property(pki, tmp_path):
    jks = tmp_path / "store.jks"
    jks.write_bytes(b"\xfe\xed\xfe\xed" + bytes(20))
    huge = tmp_path / "huge.pem"
    huge.write_bytes(b"x" * 1_048_577)
    server = {"ssl.keystore.location": str(pki / "server.pem")}
    for given, key in [
        ({}, "ssl.keystore.location"),
        ({"ssl.keystore.location": "/nowhere"}, "ssl.keystore.location"),
        ({"ssl.keystore.location": str(jks)}, "ssl.keystore.type"),
        ({"ssl.keystore.location": str(huge)}, "ssl.keystore.location"),
        ({**server, "ssl.keystore.type": "JKS"}, "ssl.keystore.type"),
        ({"ssl.keystore.location": str(pki / "server.p12")}, "ssl.keystore.location"),
        ({"ssl.keystore.location": str(pki / "ca.pem")}, "ssl.keystore.location"),
        ({**server, "ssl.client.auth": "maybe"}, "ssl.client.auth"),
        ({**server, "ssl.client.auth": "required"}, "ssl.truststore.location"),
        ({**server, "ssl.enabled.protocols": "TLSv1"}, "ssl.enabled.protocols"),
        ({**server, "ssl.principal.mapping.rules": "RULE:x"}, "ssl.principal.mapping.rules"),
        ({"ssl.keystore.key": "x"}, "ssl.keystore.key"),
    ]:
        with pytest.raises(TlsSettingError) as refused:
            TlsContexts(TlsSettings.of(given), server=True)
        assert refused.value.key == key, given


def test_a_tls_listener_accepts_only_tls_1_2_and_newer_versions(pki):
    context = server_tls(pki).current()
    assert context.minimum_version is ssl.TLSVersion.TLSv1_2
    only = server_tls(pki, **{"ssl.enabled.protocols": "TLSv1.3"}).current()
    assert only.minimum_version is ssl.TLSVersion.TLSv1_3


def test_unfinished_tls_handshakes_count_as_connections_of_the_listener(on_loop, pki):
    async def main():
        limits = replace(Limits(), max_connections=2)
        async with Echo(ListenerSecurity(tls=server_tls(pki)), limits) as server:
            listener, outside = server.listener, OutgoingSecurity(tls=client_tls(pki))
            with outgoing(outside):
                connection = await connect("127.0.0.1", listener.port)
            await wait_until_async(lambda: listener.connections)
            _, silent = await asyncio.open_connection("127.0.0.1", listener.port)
            await wait_until_async(lambda: len(listener.handshakes.begun) == 1)
            with pytest.raises((ConnectError, ConnectionLostError)):
                await ask(server, outside)
            assert listener.ended[Reason.TOO_MANY_CONNECTIONS] == 1
            connection.close()
            silent.close()

    on_loop(main())


def test_a_listener_refuses_a_certificate_to_which_no_mapping_rule_applies(on_loop, pki):
    async def main():
        tls = server_tls(
            pki,
            **{
                "ssl.client.auth": "required",
                "ssl.truststore.location": str(pki / "ca.pem"),
                "ssl.principal.mapping.rules": "RULE:^CN=(node-[0-9]+),.*$/$1/",
            },
        )
        async with Echo(ListenerSecurity(tls=tls)) as server:
            with pytest.raises((ConnectError, ConnectionLostError)):
                await ask(server, OutgoingSecurity(tls=client_tls(pki, "client.pem")))
            await wait_until_async(lambda: server.listener.ended[Reason.TLS_FAILED] == 1)
            assert server.principals == []

    on_loop(main())
