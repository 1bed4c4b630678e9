"""Tokens of OAUTHBEARER: which are valid, each refusal, and how keys are loaded."""

from __future__ import annotations

import base64
import json
import ssl
import threading
import time
from http.server import BaseHTTPRequestHandler, HTTPServer

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from raft.net.oauthbearer import TokenError
from raft.net.tokens import (
    MAX_BYTES,
    KeysError,
    KeySet,
    TokenCheck,
    TokenSettings,
    load,
    parse_keys,
)
from tests.pki import Authority
from tests.raft.net.oauth_world import (
    AUDIENCE,
    DAY_S,
    EC_KEY,
    ED_KEY,
    FOREIGN_KEY,
    ISSUER,
    KEYS,
    RSA_KEY,
    claims,
    jwks,
    public,
    token,
    write_jwks,
)
from tests.waiting import wait_until

SETTINGS = TokenSettings(audience=("other", AUDIENCE), issuer=ISSUER)


@pytest.fixture(scope="module")
def keys(tmp_path_factory):
    url = write_jwks(tmp_path_factory.mktemp("keys") / "jwks.json")
    started = KeySet(url, refresh_s=3_600)
    started.start()
    return started


def part(value: object) -> str:
    return base64.urlsafe_b64encode(json.dumps(value).encode()).decode().rstrip("=")


def hmac_with_public_key() -> str:
    """What a verifier accepts that lets the token choose HMAC for an RSA key."""
    pem = RSA_KEY.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    signed = f"{part({'alg': 'HS256', 'kid': 'r'})}.{part(claims())}"
    signature = jwt.get_algorithm_by_name("HS256").sign(signed.encode(), pem)
    return f"{signed}.{base64.urlsafe_b64encode(signature).decode().rstrip('=')}"


@pytest.mark.parametrize(
    "good",
    [
        token(),
        token(algorithm="RS512"),
        token(algorithm="PS256"),
        token(EC_KEY, "ES256", "e"),
        token(ED_KEY, "EdDSA", "d"),
        token(aud=["another", AUDIENCE]),
        token(scope="read write"),
        token(scope=["read", "write"]),
    ],
)
def test_a_valid_token_names_its_user(keys, good):
    assert TokenCheck(keys, SETTINGS)(good).user == "alice"


def test_a_token_is_valid_until_the_clocks_difference_has_passed_after_its_end(keys):
    late = token(exp=int(time.time()) - 5)
    assert TokenCheck(keys, SETTINGS)(late).user == "alice"


NOW = int(time.time())
REFUSED = {
    "none": (f"{part({'alg': 'none', 'kid': 'r'})}.{part(claims())}.", "algorithm"),
    "none in capitals": (f"{part({'alg': 'NONE', 'kid': 'r'})}.{part(claims())}.", "algorithm"),
    "no algorithm": (f"{part({'kid': 'r'})}.{part(claims())}.", "algorithm"),
    "hmac": (hmac_with_public_key(), "algorithm"),
    "algorithm of another key": (token(algorithm="RS256", kid="e"), "not for its algorithm"),
    "expired": (token(exp=NOW - 31), "expired"),
    "expired long ago": (token(exp=0), "expired"),
    "not yet valid": (token(nbf=NOW + DAY_S), "not valid yet"),
    "issued in the future": (token(iat=NOW + DAY_S), "not valid yet"),
    "audience": (token(aud="someone"), "audience"),
    "audiences": (token(aud=["a", "b"]), "audience"),
    "no audience": (token(aud=None), "missing"),
    "issuer": (token(iss="https://evil.example"), "issuer"),
    "no issuer": (token(iss=None), "missing"),
    "no expiry": (token(exp=None), "missing"),
    "no time of issue": (token(iat=None), "missing"),
    "no user": (token(sub=None), "missing"),
    "empty user": (token(sub=""), "printable"),
    "user of two lines": (token(sub="a\nb"), "printable"),
    "half a character": (token(sub="\ud800"), "printable"),
    "long user": (token(sub="x" * 256), "printable"),
    "signature": (token(FOREIGN_KEY), "signature"),
    "changed claims": (
        ".".join((token().split(".")[0], part(claims(sub="root")), token().split(".")[2])),
        "signature",
    ),
    "no signature": (token().rpartition(".")[0] + ".", "signature"),
    "unknown key id": (token(kid="x"), "key is not known"),
    "no key id": (token(kid=None), "key is not known"),
    "scope is a number": (token(scope=1), "scope"),
    "scope twice": (token(scope=["a", "a"]), "scope"),
    "empty scope": (token(scope=" "), "scope"),
    "two parts": ("a.b", "malformed"),
    "not base64": ("*.*.*", "malformed"),
    "not JSON": ("YQ.YQ.YQ", "malformed"),
    "deep": (
        base64.urlsafe_b64encode(b"[" * 30_000).decode().rstrip("=") + ".YQ.YQ",
        "malformed",
    ),
    "endless expiry": (token(exp=float("inf")), "malformed"),
    "critical extension": (
        jwt.encode(claims(), RSA_KEY, "RS256", headers={"kid": "r", "x": 1, "crit": ["x"]}),
        "malformed",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_token_is_refused_for_its_own_reason(keys, name):
    bad, reason = REFUSED[name]
    with pytest.raises(TokenError, match=reason):
        TokenCheck(keys, SETTINGS)(bad)


def test_without_an_expected_audience_a_token_for_somebody_is_refused(keys):
    check = TokenCheck(keys, TokenSettings())
    assert check(token(aud=None, iss=None)).user == "alice"
    with pytest.raises(TokenError, match="audience"):
        check(token())


def test_the_user_is_read_from_the_configured_claim(keys):
    check = TokenCheck(keys, TokenSettings(audience=(AUDIENCE,), user_claim="client"))
    assert check(token(client="bob", sub=None)).user == "bob"
    with pytest.raises(TokenError, match="missing"):
        check(token())


def test_a_token_lives_until_it_would_be_refused(keys):
    check = TokenCheck(keys, TokenSettings(audience=(AUDIENCE,), skew_s=10))
    lifetime_ms = check(token(exp=int(time.time()) + 100)).lifetime_ms
    assert 105_000 < lifetime_ms <= 110_000
    assert check(token(exp=10**30)).lifetime_ms > 10**12


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"[]",
        b"{}",
        b'{"keys": {}}',
        b"[" * 100_000,
        jwks(),
        jwks({"kty": "oct", "k": "c2VjcmV0", "kid": "o", "alg": "HS256"}),
        jwks(public(RSA_KEY)),  # without an id
        jwks(public(RSA_KEY, kid="r", use="enc")),
        jwks(public(RSA_KEY, kid="r", alg="HS256")),
        jwks(public(RSA_KEY, kid="r", alg="none")),
        jwks(public(RSA_KEY, kid="r", n=None)),
        jwks(public(RSA_KEY, kid="r", n="*")),
        jwks(jwt.get_algorithm_by_name("EdDSA").to_jwk(ED_KEY, as_dict=True) | {"kid": "private"}),
        jwks(public(rsa.generate_private_key(65537, 1024), kid="r")),
        jwks(public(EC_KEY, kid="r", crv="P-999")),
        jwks(public(RSA_KEY, kid="r"), public(EC_KEY, kid="r")),
        b" " * (MAX_BYTES + 1),
    ],
)
def test_a_jwks_without_a_usable_key_is_refused(data):
    with pytest.raises(KeysError):
        parse_keys(data)


def test_a_key_that_names_its_algorithm_verifies_no_other():
    (key,) = parse_keys(jwks(public(RSA_KEY, kid="r", alg="RS512"), {"kty": "x"})).values()
    assert key.algorithms == ("RS512",)


def test_unknown_key_ids_load_the_keys_again_at_a_bounded_rate():
    loads = []

    def count(url):
        loads.append(url)
        return KEYS

    keys = KeySet("https://id.example/keys", refresh_s=3_600, min_interval_s=0.2, load=count)
    keys.start()
    wait_until(lambda: keys.find("r"), "the keys are loaded")
    end = time.monotonic() + 0.5
    while time.monotonic() < end:
        assert keys.find("unknown") is None
        time.sleep(0.001)
    assert 2 <= len(loads) <= 4
    assert set(loads) == {"https://id.example/keys"}


def test_a_new_key_in_the_file_is_found_and_a_broken_file_keeps_the_keys(tmp_path, caplog):
    path = tmp_path / "jwks.json"
    keys = KeySet(write_jwks(path), refresh_s=0.05, min_interval_s=0.05)
    keys.start()
    write_jwks(path, jwks(public(FOREIGN_KEY, kid="new")))
    wait_until(lambda: keys.find("new"), "the new key is loaded")
    assert keys.find("r") is None
    path.write_text("broken")
    wait_until(lambda: "cannot be loaded: not JSON" in caplog.text, "the failure is logged")
    time.sleep(0.3)
    assert caplog.text.count("not JSON") == 1
    assert keys.find("new")


def test_a_file_that_cannot_be_read_refuses_the_start(tmp_path):
    with pytest.raises(KeysError, match="No such file"):
        KeySet((tmp_path / "none").as_uri(), refresh_s=1).start()


class Issuer(BaseHTTPRequestHandler):
    def do_GET(self):
        status = {"/keys": 200, "/moved": 302}.get(self.path, 500)
        self.send_response(status)
        self.send_header("Location", "/keys")
        self.end_headers()
        self.wfile.write(KEYS if status == 200 else b"")

    def log_message(self, *_words):
        pass


@pytest.fixture
def issuer(tmp_path, monkeypatch):
    """An HTTPS server whose CA the machine trusts; yields its address."""
    ca = Authority()
    monkeypatch.setenv("SSL_CERT_FILE", str(ca.write(tmp_path / "ca.pem")))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(ca.issue("localhost").write(tmp_path / "server.pem"))
    with HTTPServer(("127.0.0.1", 0), Issuer) as server:
        server.socket = context.wrap_socket(server.socket, server_side=True)
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"https://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def test_keys_come_from_an_https_server_that_proves_its_name(issuer, tmp_path, monkeypatch):
    assert set(parse_keys(load(f"{issuer}/keys"))) == {"r", "e", "d"}
    for path, reason in (("/moved", "302"), ("/other", "500")):
        with pytest.raises(KeysError, match=reason):
            load(issuer + path)
    monkeypatch.setenv("SSL_CERT_FILE", str(Authority().write(tmp_path / "other.pem")))
    with pytest.raises(KeysError, match="certificate"):
        load(f"{issuer}/keys")
