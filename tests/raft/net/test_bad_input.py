"""What strangers send to a secured listener is refused, and the others are served meanwhile."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pytest

from raft.net.authentication import State
from raft.net.certificates import TlsContexts, TlsSettingError, TlsSettings
from raft.net.errors import ConnectError, ConnectionLostError, NetError, Reason
from raft.net.header import API_VERSIONS_KEY
from raft.net.limits import Limits
from raft.net.principal import ANONYMOUS
from raft.net.security import ListenerSecurity, OutgoingSecurity
from records.errors import RecordError
from records.rpc.security import SaslAuthenticateRequest, SaslHandshakeRequest
from tests.pki import Authority
from tests.raft.net.sasl_world import PASSWORD, USER, World, frame_of, scram_first
from tests.raft.net.test_security import Echo, ask, ca, client_tls, closed_lines, pki, server_tls
from tests.waiting import wait_until_async

__all__ = ["ca", "pki"]

HALF_HANDSHAKES = 1_000
CLIENT_HELLO = b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"  # of a record of 512 bytes
FRAMES = 1_000


def required(pki: Path) -> TlsContexts:
    trusted = str(pki / "ca.pem")
    return server_tls(pki, **{"ssl.client.auth": "required", "ssl.truststore.location": trusted})


def test_a_thousand_half_handshakes_keep_no_other_client_out(
    on_loop: Any, pki: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "raft.net")

    async def main() -> None:
        limits = replace(
            Limits(), max_handshakes=HALF_HANDSHAKES + 10, max_handshakes_per_second=100_000
        )
        async with Echo(ListenerSecurity(tls=server_tls(pki)), limits) as server:
            listener = server.listener
            writers = []
            for _ in range(HALF_HANDSHAKES):
                _, writer = await asyncio.open_connection("127.0.0.1", listener.port)
                writer.write(CLIENT_HELLO)
                writers.append(writer)
            await wait_until_async(lambda: len(listener.handshakes.begun) == HALF_HANDSHAKES)
            answer = await ask(server, OutgoingSecurity(tls=client_tls(pki)))
            assert answer.endswith(b"hello")
            listener.sweep(asyncio.get_running_loop().time() + 11)
            assert listener.ended[Reason.HANDSHAKE_STALLED] == HALF_HANDSHAKES
            assert not listener.handshakes.begun
            for writer in writers:
                writer.close()

    on_loop(main())
    assert len(caplog.messages) < HALF_HANDSHAKES / 5  # the lines of a listener are bounded


@pytest.mark.parametrize("names", [1_000, 20_000])
def test_a_client_with_a_huge_certificate_keeps_no_other_client_out(
    on_loop: Any,
    ca: Authority,
    pki: Path,
    tmp_path: Path,
    names: int,
    caplog: pytest.LogCaptureFixture,
) -> None:
    hosts = tuple(f"host-{number}.example" for number in range(names))
    ca.issue("huge", hosts=hosts).write(tmp_path / "huge.pem")
    huge = TlsContexts(
        TlsSettings.of(
            {
                "ssl.truststore.location": str(pki / "ca.pem"),
                "ssl.keystore.location": str(tmp_path / "huge.pem"),
            }
        ),
        server=False,
    )

    async def main() -> None:
        async with Echo(ListenerSecurity(tls=required(pki))) as server:
            try:
                await ask(server, OutgoingSecurity(tls=huge))
            except (ConnectError, ConnectionLostError):
                assert names > 1_000, "a certificate of ordinary size is refused"
            good = OutgoingSecurity(tls=client_tls(pki, "client.pem"))
            assert (await ask(server, good)).endswith(b"hello")

    on_loop(main())
    assert closed_lines(caplog) == (["tls_handshake_failed"] if names > 1_000 else [])


@pytest.mark.parametrize(
    ("kind", "words"), [(None, "is not a PEM or PKCS12 file"), ("PKCS12", "is not a PKCS12 file")]
)
def test_a_store_of_no_known_form_is_refused_with_the_forms_that_were_tried(
    tmp_path: Path, kind: str | None, words: str
) -> None:
    (tmp_path / "store.pem").write_bytes(b"\xff" * 1_000)
    values = {"ssl.truststore.location": str(tmp_path / "store.pem")}
    if kind is not None:
        values["ssl.truststore.type"] = kind
    with pytest.raises(TlsSettingError, match=words):
        TlsContexts(TlsSettings.of(values), server=False)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"-----BEGIN CERTIFICATE-----\n",
        b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n",
        b"\xff" * 1_000,
        b"-----BEGIN CERTIFICATE-----\n" + b"A" * (1 << 21) + b"\n-----END CERTIFICATE-----\n",
    ],
    ids=["empty", "cut", "no DER", "noise", "huge"],
)
def test_a_broken_store_is_refused_with_the_property_that_names_it(
    tmp_path: Path, data: bytes
) -> None:
    (tmp_path / "store.pem").write_bytes(data)
    for key in ("ssl.keystore.location", "ssl.truststore.location"):
        with pytest.raises(TlsSettingError) as refused:
            TlsContexts(TlsSettings.of({key: str(tmp_path / "store.pem")}), server=False)
        assert refused.value.key == key


def in_state(state: State) -> World:
    """Return a connection of a SASL listener in a state."""
    world = World()
    if state is State.NEW:
        return world
    version = 0 if state is State.BARE else 1
    world.send(frame_of(SaslHandshakeRequest(mechanism="PLAIN"), version))
    if state in (State.DONE, State.FAILED):
        password = PASSWORD if state is State.DONE else "wrong"
        proof = f"\0{USER}\0{password}".encode()
        world.send(frame_of(SaslAuthenticateRequest(auth_bytes=proof), 2))
    assert world.connection.authentication.state is state
    return world


def bad_frames(random: Random) -> list[bytes]:
    """Return frames that are noise, cut or changed requests, or requests out of order."""
    _, first = scram_first()
    good = [
        frame_of(SaslHandshakeRequest(mechanism="PLAIN"), 1),
        frame_of(SaslHandshakeRequest(mechanism="SCRAM-SHA-256"), 0),
        frame_of(SaslHandshakeRequest(mechanism="x" * 32_000), 1),
        frame_of(SaslAuthenticateRequest(auth_bytes=first), 2),
        frame_of(SaslAuthenticateRequest(auth_bytes=b"\0" + b"u" * 32_000 + b"\0p"), 2),
        frame_of(SaslAuthenticateRequest(auth_bytes=b""), 0),
    ]
    frame = bytearray(random.choice(good))
    match random.randrange(4):
        case 0:
            frame = bytearray(random.randbytes(random.randrange(64)))
        case 1:
            del frame[random.randrange(len(frame)) :]
        case 2:
            frame[random.randrange(len(frame))] ^= 1 << random.randrange(8)
    return [bytes(frame), random.choice(good)]


@pytest.mark.parametrize("state", State)
def test_wrong_sasl_frames_in_any_state_reach_no_handler_without_a_user(state: State) -> None:
    random = Random(state.value)
    for _ in range(FRAMES):
        world = in_state(state)
        for frame in bad_frames(random):
            try:
                world.send(frame)
            except (NetError, RecordError):
                break  # the connection is closed
            if world.connection.closed:
                break
        if state is State.DONE:
            assert world.connection.principal.name == USER
        else:
            assert set(world.handled) <= {API_VERSIONS_KEY}
            assert world.connection.principal == ANONYMOUS
