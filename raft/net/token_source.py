"""Gets the tokens with which this process authenticates by OAUTHBEARER.

    source = TokenSource("https://id.example/token", client_id="node-1", client_secret="...")
    source.token()      # in a thread: it may read a file, or ask an identity provider

`file:///PATH` is read for each connection, so that another process may renew it. An `https` URL is
asked by client credentials; its token is used until 80 % of its lifetime are over, as in Kafka.

The trap: a token's own words about its end are not verified here. They only say when to ask again;
the server that the token is for verifies it.

Source: RFC 6749, section 4.4 (client credentials); KIP-768, KIP-1139 (names of settings).
"""

from __future__ import annotations

import base64
import binascii
import json
import re
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote, urlencode, urlsplit

from raft.net.oauthbearer import MAX_MESSAGE

REFRESH_FACTOR: Final = 0.8  # sasl.login.refresh.window.factor
TIMEOUT_S: Final = 10.0
MAX_BYTES: Final = 1 << 20  # of an answer
_TOKEN: Final = re.compile(r"[A-Za-z0-9_-]+\.[A-Za-z0-9_-]+\.[A-Za-z0-9_-]+")


class TokenUnavailableError(Exception):
    """No token could be got; the message has the URL and the reason, and no secret."""


class TokenSource:
    """The tokens of one file or of one client at an identity provider. Safe in threads."""

    def __init__(
        self,
        url: str,
        *,
        client_id: str = "",
        client_secret: str = "",
        scope: str = "",
        post: Callable[[str, str, str], bytes] | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """Create a source; nothing is read or asked yet.

        Args:  post: sends a form (URL, authorization, form); returns the body of the answer.
               clock: seconds since 1970.
        """
        self._url = url
        self._client_id = client_id
        self._client_secret = client_secret
        self._scope = scope
        self._post = post or _post
        self._clock = clock
        self._lock = threading.Lock()
        self._token = ""
        self._use_until = 0.0

    def __repr__(self) -> str:
        return f"TokenSource({self._url})"

    def token(self) -> str:
        """Return a token that is valid now by its own words. Raises TokenUnavailableError."""
        try:
            if urlsplit(self._url).scheme == "file":
                return self._read()
            with self._lock:  # of many connections at once, one asks
                if self._clock() >= self._use_until:
                    self._ask()
                return self._token
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or str(error)
            raise TokenUnavailableError(f"no token from {self._url}: {reason}") from None

    def _read(self) -> str:
        with Path(unquote(urlsplit(self._url).path)).open("rb") as file:
            token = file.read(MAX_MESSAGE).decode("ascii", "replace").strip()
        if _expiry(token) <= self._clock():
            raise ValueError("the token in the file has expired")
        return token

    def _ask(self) -> None:
        """Get a new token from the identity provider."""
        form = {"grant_type": "client_credentials"}
        if self._scope:
            form["scope"] = self._scope
        secret = f"{self._client_id}:{self._client_secret}".encode()
        body = self._post(self._url, "Basic " + base64.b64encode(secret).decode(), urlencode(form))
        try:
            answer = json.loads(body)
        except RecursionError:
            raise ValueError("the answer is nested too deeply") from None
        token = answer.get("access_token") if isinstance(answer, dict) else None
        if not isinstance(token, str):
            raise ValueError("the answer has no access_token")
        now, expiry = self._clock(), _expiry(token)
        if expiry <= now:
            raise ValueError("the answer has an expired token: do the clocks differ?")
        self._token, self._use_until = token, now + REFRESH_FACTOR * (expiry - now)


def _expiry(token: str) -> float:
    """Return the `exp` of a token, unverified, in seconds since 1970. Raises ValueError."""
    if len(token) >= MAX_MESSAGE or _TOKEN.fullmatch(token) is None:
        raise ValueError(f"not a JWT of fewer than {MAX_MESSAGE} characters")
    part = token.split(".")[1]
    try:
        claims: Any = json.loads(base64.urlsafe_b64decode(part + "=" * (-len(part) % 4)))
    except (ValueError, binascii.Error, RecursionError):
        raise ValueError("a JWT whose claims are not JSON") from None
    expiry = claims.get("exp") if isinstance(claims, dict) else None
    if not isinstance(expiry, int | float) or not abs(expiry) < 1 << 53:
        raise ValueError("a JWT without `exp`")
    return float(expiry)


def _post(url: str, authorization: str, form: str) -> bytes:
    """Send a form to an https URL; return the answer's body. Raises OSError and ValueError."""
    import urllib3

    assert urlsplit(url).scheme == "https", f"a secret to {url}"
    try:
        with urllib3.PoolManager(retries=False) as pool:
            # No redirect is followed: it could lead the secret to another host.
            response = pool.request(
                "POST",
                url,
                body=form,
                headers={
                    "Accept": "application/json",
                    "Authorization": authorization,
                    "Content-Type": "application/x-www-form-urlencoded",
                },
                redirect=False,
                preload_content=False,
                timeout=urllib3.Timeout(total=TIMEOUT_S),
            )
            body: bytes = response.read(MAX_BYTES, decode_content=True)
            response.release_conn()
    except urllib3.exceptions.HTTPError as error:
        raise ValueError(str(error)) from None
    if response.status != 200:
        raise ValueError(f"HTTP status {response.status}")
    return body
