"""Where this process gets its own tokens: files, and an identity provider."""

from __future__ import annotations

import base64
import json
import ssl
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

import pytest

from raft.net.oauthbearer import MAX_MESSAGE, TokenError, ValidToken
from raft.net.sasl import Authenticated, Challenge, SaslError, ServerMechanisms, TokenExchange
from raft.net.token_source import TokenSource, TokenUnavailableError
from tests.pki import Authority
from tests.raft.net.oauth_world import token

SECRET = "client-secret"
URL = "https://id.example/token"


def unsigned(claims: Any) -> str:
    """A token as a source sees it: nobody verifies it here."""
    part = base64.urlsafe_b64encode(json.dumps(claims).encode()).rstrip(b"=").decode()
    return f"e30.{part}.c2ln"


class Provider:
    """An identity provider whose tokens are valid for 100 s of a clock that a test sets."""

    def __init__(self) -> None:
        self.now_s = 1_000.0
        self.asked: list[tuple[str, str, dict[str, list[str]]]] = []
        self.body: bytes | None = None

    def post(self, url: str, authorization: str, form: str) -> bytes:
        self.asked.append((url, authorization, parse_qs(form)))
        if self.body is not None:
            return self.body
        number = len(self.asked)
        return json.dumps(
            {"access_token": unsigned({"exp": self.now_s + 100, "n": number})}
        ).encode()

    def source(self, scope: str = "") -> TokenSource:
        return TokenSource(
            URL,
            client_id="node:1",
            client_secret=SECRET,
            scope=scope,
            post=self.post,
            clock=lambda: self.now_s,
        )


def test_a_file_is_read_for_each_token(tmp_path: Path) -> None:
    file = tmp_path / "a token"
    source = TokenSource(file.as_uri())
    for text in (token(), token(sub="bob")):
        file.write_text(text + "\n")
        assert source.token() == text


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (None, "No such file"),
        ("", "not a JWT"),
        ("opaque-secret", "not a JWT"),
        ("a.b.c\x01auth=x", "not a JWT"),
        ("\u00e9.b.c", "not a JWT"),
        ("a." + "b" * MAX_MESSAGE + ".c", "not a JWT"),
        ("a.b.c", "not JSON"),
        (unsigned([]), "without `exp`"),
        (unsigned({"exp": "soon"}), "without `exp`"),
        (unsigned({"exp": 1e300}), "without `exp`"),
        (unsigned({"exp": float("nan")}), "without `exp`"),
        (unsigned({"exp": 1}), "has expired"),
    ],
)
def test_a_file_without_a_usable_token_is_refused_with_its_reason(
    tmp_path: Path, text: str | None, reason: str
) -> None:
    file = tmp_path / "token"
    if text is not None:
        file.write_text(text)
    with pytest.raises(TokenUnavailableError, match=reason) as refused:
        TokenSource(file.as_uri()).token()
    assert not text or len(text) < 6 or text not in str(refused.value)  # a log has this


def test_a_provider_is_asked_with_the_clients_id_and_secret() -> None:
    provider = Provider()
    provider.source("a b").token()
    ((url, authorization, form),) = provider.asked
    assert url == URL
    assert base64.b64decode(authorization.removeprefix("Basic ")) == b"node:1:client-secret"
    assert form == {"grant_type": ["client_credentials"], "scope": ["a b"]}


def test_a_token_is_used_for_most_of_its_lifetime_and_then_a_new_one() -> None:
    provider = Provider()
    source = provider.source()
    first = source.token()
    provider.now_s += 79
    assert source.token() == first
    provider.now_s += 2
    assert source.token() != first
    assert len(provider.asked) == 2


def test_many_connections_at_once_ask_for_one_token() -> None:
    provider = Provider()
    source, tokens = provider.source(), []
    threads = [threading.Thread(target=lambda: tokens.append(source.token())) for _ in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(tokens) == 20
    assert len(set(tokens)) == len(provider.asked) == 1


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b"", "no token from"),
        (b"<html>", "no token from"),
        (b"\xff", "no token from"),
        (b"[" * 100_000, "no token from"),
        (b"[]", "no access_token"),
        (b'{"access_token": 7}', "no access_token"),
        (b'{"access_token": "opaque"}', "not a JWT"),
        (json.dumps({"access_token": unsigned({"exp": 999})}).encode(), "do the clocks differ"),
    ],
)
def test_an_answer_without_a_usable_token_is_refused_and_the_provider_asked_again(
    body: bytes, reason: str
) -> None:
    provider = Provider()
    provider.body = body
    source = provider.source()
    with pytest.raises(TokenUnavailableError, match=reason) as refused:
        source.token()
    assert SECRET not in str(refused.value)
    assert SECRET not in repr(source)
    provider.body = None
    assert source.token()


class Answers(BaseHTTPRequestHandler):
    """Answers with a status and a body that the test sets on the server."""

    server: Any

    def do_POST(self) -> None:
        self.server.seen.append(self.headers["Authorization"])
        status, headers, body = self.server.answer
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Print nothing."""


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """An https server whose CA this process trusts."""
    ca = Authority()
    monkeypatch.setenv("SSL_CERT_FILE", str(ca.write(tmp_path / "ca.pem")))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(ca.issue("id").write(tmp_path / "id.pem"))
    made: Any = HTTPServer(("127.0.0.1", 0), Answers)
    made.socket = context.wrap_socket(made.socket, server_side=True)
    made.seen = []
    thread = threading.Thread(target=made.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield made
    made.shutdown()
    thread.join()
    made.server_close()


def asks(server: Any) -> TokenSource:
    url = f"https://localhost:{server.server_port}/token"
    return TokenSource(url, client_id="c", client_secret=SECRET)


def test_an_https_provider_answers_with_a_token_and_a_redirect_is_not_followed(
    server: Any,
) -> None:
    text = token()
    server.answer = (200, {}, json.dumps({"access_token": text}).encode())
    assert asks(server).token() == text
    place = {"Location": f"https://localhost:{server.server_port}/other"}
    for status, headers in ((302, place), (307, place), (401, {}), (503, {})):
        server.answer = (status, headers, b"{}")
        with pytest.raises(TokenUnavailableError, match=f"HTTP status {status}"):
            asks(server).token()
    assert len(server.seen) == 5  # one request each


def test_a_provider_with_a_foreign_certificate_gets_no_secret(
    server: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(Authority("other").write(tmp_path / "other.pem")))
    server.answer = (200, {}, b"{}")
    with pytest.raises(TokenUnavailableError, match="certificate verify failed"):
        asks(server).token()
    assert server.seen == []


def test_the_servers_exchange_understands_the_clients() -> None:
    def check(text: str) -> ValidToken:
        if text != "good":
            raise TokenError("bad")
        return ValidToken("alice", 1_000)

    mechanisms = ServerMechanisms(enabled=("OAUTHBEARER",), check_token=check)
    client, exchange = TokenExchange("good"), mechanisms.begin("OAUTHBEARER")
    outcome = exchange.step(client.step(None) or b"")
    assert outcome == Authenticated("alice", b"", 1_000)
    assert client.step(outcome.data) is None
    client, exchange = TokenExchange("other"), mechanisms.begin("OAUTHBEARER")
    outcome = exchange.step(client.step(None) or b"")
    assert isinstance(outcome, Challenge)
    with pytest.raises(SaslError, match="invalid_token"):
        exchange.step(client.step(outcome.data) or b"")
