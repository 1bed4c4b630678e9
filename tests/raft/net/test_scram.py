"""SCRAM and SASL exchanges without a connection: the RFC's example, refusals, hostile bytes."""

from __future__ import annotations

import base64
import random

import pytest

from raft.net.sasl import MECHANISMS, SaslError, ServerMechanisms
from raft.net.scram import SCRAM, SHA_256, ScramClient, ScramError, ScramServer

SALT = base64.b64decode("W22ZaJ0SNY7soEsUEjb6gQ==")
SERVER_NONCE = "%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0"


def rfc_server():
    salted = SHA_256.salt_password("pencil", SALT, 4096)
    verifier = SHA_256.credential(salted, SALT, 4096)
    return ScramServer(
        SHA_256,
        {"user": verifier}.get,
        unknown_salt_key=b"k",
        nonce=lambda: SERVER_NONCE,
    )


def test_both_sides_of_scram_write_the_messages_of_rfc_7677():
    client = ScramClient(SHA_256, "user", "pencil", nonce=lambda: "rOprNGfwEbeRWgbNEkqO")
    server = rfc_server()
    first = client.first()
    assert first == b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO"
    challenge = server.first(first)
    assert challenge == (
        b"r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096"
    )
    final = client.final(challenge)
    assert final.endswith(b",p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ=")
    signature = server.final(final)
    assert signature == b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="
    client.verify(signature)


def test_a_scram_server_gives_an_unknown_user_the_same_invented_salt_and_then_fails():
    challenges = []
    for _ in range(2):
        client = ScramClient(SHA_256, "nobody", "x", nonce=lambda: "abc")
        server = rfc_server()
        challenges.append(server.first(client.first()))
        with pytest.raises(ScramError, match="invalid credentials"):
            server.final(client.final(challenges[-1]))
    assert challenges[0] == challenges[1]


@pytest.mark.parametrize(
    "message",
    [
        b"",
        b"p=tls-unique,,n=user,r=a",
        b"n,a=other,n=user,r=a",
        b"n,,n=,r=a",
        b"n,,n=user",
        b"n,,r=a,n=user",
        b"n,,n=us=er,r=a",
        b"n,,n=\xff,r=a",
        b"n,,n=user,n=user,r=a",
        b"n,,n=user,r=" + b"a" * 5_000,
    ],
)
def test_a_scram_server_refuses_a_malformed_first_message(message):
    with pytest.raises(ScramError):
        rfc_server().first(message)


@pytest.mark.parametrize(
    "spoil",
    [
        lambda final: final.replace(b"c=biws", b"c=eSws"),
        lambda final: final.replace(b"r=", b"r=x"),
        lambda final: final[:-4] + b"AAA=",
        lambda final: final.rpartition(b",p=")[0] + b",p=AAAA",
        lambda final: final.rpartition(b",p=")[0] + b",p=?",
        lambda final: b"x" + final,
        lambda _: b",p=",
    ],
)
def test_a_scram_server_refuses_a_final_message_that_was_changed(spoil):
    client, server = ScramClient(SHA_256, "user", "pencil"), rfc_server()
    final = client.final(server.first(client.first()))
    with pytest.raises(ScramError):
        server.final(spoil(final))


@pytest.mark.parametrize(
    "message",
    [
        b"r=other,s=AAAA,i=4096",
        b"r=abc,s=AAAA,i=4096",
        b"r=abcd,s=AAAA,i=1",
        b"r=abcd,s=AAAA,i=2000000",
        b"r=abcd,s=?,i=4096",
        b"m=x,r=abcd,s=AAAA,i=4096",
    ],
)
def test_a_scram_client_refuses_an_invalid_server_message(message):
    with pytest.raises(ScramError):
        ScramClient(SHA_256, "user", "pencil", nonce=lambda: "abc").final(message)


def test_a_user_whose_name_has_a_comma_and_an_equals_sign_authenticates_by_scram():
    scram = SCRAM["SCRAM-SHA-512"]
    verifier = scram.credential(scram.salt_password("p", SALT, 4096), SALT, 4096)
    server = ScramServer(scram, {"a,b=c": verifier}.get, unknown_salt_key=b"k")
    client = ScramClient(scram, "a,b=c", "p")
    client.verify(server.final(client.final(server.first(client.first()))))
    assert server.user == "a,b=c"


def test_random_bytes_end_each_server_exchange_with_a_sasl_error():
    seed = random.randrange(2**32)
    draw = random.Random(seed)
    mechanisms = ServerMechanisms(enabled=MECHANISMS, plain_users={"u": "p"})
    seeds = [b"n,,n=user,r=abc", b"\0u\0p", b"c=biws,r=abc,p=AAAA", b"", b"\0\0"]
    for _ in range(2_000):
        data = bytearray(draw.choice(seeds))
        for _ in range(draw.randrange(1, 4)):
            at = draw.randrange(len(data) + 1)
            data[at : at + draw.randrange(3)] = draw.randbytes(draw.randrange(4))
        exchange = mechanisms.begin(draw.choice(MECHANISMS))
        try:
            for _ in range(3):
                exchange.step(bytes(data))
        except SaslError:
            continue
        valid = (b"\0u\0p", b"u\0u\0p")  # without and with an authorization identity
        assert bytes(data) in valid, f"seed {seed}: {bytes(data)!r}"
