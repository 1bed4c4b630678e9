"""Validates the tokens of OAUTHBEARER: JWTs, signed by a key of a JWKS file or URL.

    keys = KeySet(url, refresh_s=3_600)
    keys.start()                                        # KeysError for a file that cannot be used
    check = TokenCheck(keys, TokenSettings(audience=("esker",), issuer="https://id.example"))
    check(token)                                        # ValidToken, or TokenError

A token names its key (`kid`); it is checked with this one key, by the algorithms of the key's own
type. So the header of a token cannot choose `none`, or an HMAC whose secret is a public key.

Keys are loaded in a thread: every `refresh_s`, and after a token has named an unknown key, but not
more often than `MIN_INTERVAL_S`. The token itself is refused meanwhile; its client tries again. If
keys cannot be loaded, those loaded before stay.

This module imports PyJWT: only a listener that has OAUTHBEARER imports it.

Source: RFC 7515, RFC 7517, RFC 7519; RFC 8725 (best practices); KIP-768 (Kafka's settings).
"""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote, urlsplit

import jwt
import urllib3
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey

from raft.net.oauthbearer import TokenError, ValidToken
from raft.net.sasl import MAX_NAME

log = logging.getLogger("raft.net")

MIN_INTERVAL_S: Final = 10.0  # between two loads of the keys
LOAD_TIMEOUT_S: Final = 10.0
MAX_BYTES: Final = 1 << 20  # of a JWKS
MAX_KEYS: Final = 1_000
MIN_RSA_BITS: Final = 2_048
MAX_EXPIRY: Final = 1 << 40  # seconds since 1970; a later one is as good as this

_RSA: Final = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512")
_OF_CURVE: Final = {"P-256": "ES256", "P-384": "ES384", "P-521": "ES512", "Ed25519": "EdDSA"}
ALGORITHMS: Final = (*_RSA, *_OF_CURVE.values())


class KeysError(Exception):
    """A JWKS cannot be loaded, or has no key that can be used."""


@dataclass(frozen=True, slots=True)
class Key:
    """A public key, and the algorithms that it may verify."""

    public: Any
    algorithms: tuple[str, ...]


def parse_keys(data: bytes) -> dict[str, Key]:
    """Return the keys in a JWKS by their ids; keys of other kinds and uses are left out.

    Raises:  KeysError if it is malformed, or if none is left.
    """
    if len(data) > MAX_BYTES:
        raise KeysError(f"a JWKS of more than {MAX_BYTES} bytes")
    try:
        document = json.loads(data)
    except (ValueError, RecursionError):
        raise KeysError("not JSON") from None
    listed = document.get("keys") if isinstance(document, dict) else None
    if not isinstance(listed, list) or len(listed) > MAX_KEYS:
        raise KeysError(f"not a JWKS: it has no list `keys` of at most {MAX_KEYS}")
    keys: dict[str, Key] = {}
    for jwk in listed:
        key = _key_of(jwk) if isinstance(jwk, dict) else None
        if key is not None:
            if jwk["kid"] in keys:
                raise KeysError(f"two keys have the id {jwk['kid'][:80]!r}")
            keys[jwk["kid"]] = key
    if not keys:
        raise KeysError("no key with a `kid` that verifies RS, PS, ES or EdDSA signatures")
    return keys


def _key_of(jwk: Mapping[str, Any]) -> Key | None:
    kid, kind, curve = jwk.get("kid"), jwk.get("kty"), jwk.get("crv")
    algorithms: tuple[str, ...]
    if not isinstance(kid, str) or jwk.get("use", "sig") != "sig" or "d" in jwk:
        return None
    if kind == "RSA":
        algorithms = _RSA
    elif kind in ("EC", "OKP") and isinstance(curve, str) and curve in _OF_CURVE:
        algorithms = (_OF_CURVE[curve],)
    else:
        return None
    if jwk.get("alg") is not None:
        algorithms = tuple(name for name in algorithms if name == jwk["alg"])
    if not algorithms:
        return None
    try:
        public = jwt.PyJWK(dict(jwk), algorithm=algorithms[0]).key
    except (jwt.PyJWTError, UnsupportedAlgorithm, ValueError, TypeError, KeyError, AttributeError):
        return None
    if isinstance(public, RSAPublicKey) and public.key_size < MIN_RSA_BITS:
        return None
    return Key(public, algorithms)


def load(url: str) -> bytes:
    """Read a JWKS from a `file:` or `https:` URL. Raises KeysError."""
    parts = urlsplit(url)
    try:
        if parts.scheme == "file":
            with Path(unquote(parts.path)).open("rb") as file:
                return file.read(MAX_BYTES + 1)
        assert parts.scheme == "https", f"keys from {parts.scheme}"
        with urllib3.PoolManager(retries=False) as pool:
            # No redirect is followed: it could lead to plaintext.
            response = pool.request(
                "GET",
                url,
                redirect=False,
                preload_content=False,
                timeout=urllib3.Timeout(total=LOAD_TIMEOUT_S),
            )
            data: bytes = response.read(MAX_BYTES + 1, decode_content=True)
            response.release_conn()
    except OSError as error:
        raise KeysError(error.strerror or str(error)) from None
    except urllib3.exceptions.HTTPError as error:
        raise KeysError(str(error)) from None
    if response.status != 200:
        raise KeysError(f"HTTP status {response.status}")
    return data


class KeySet:
    """The keys of one JWKS, loaded anew by a thread."""

    def __init__(
        self,
        url: str,
        *,
        refresh_s: float,
        min_interval_s: float = MIN_INTERVAL_S,
        load: Callable[[str], bytes] = load,
    ) -> None:
        """Create a key set that is empty until it is started."""
        self._url = url
        self._refresh_s = refresh_s
        self._min_interval_s = min_interval_s
        self._load = load
        self._keys: Mapping[str, Key] = {}
        self._wanted = threading.Event()
        self._failure = ""

    def start(self) -> None:
        """Load the keys now (a file's) or soon (a URL's), and then again and again.

        Raises:  KeysError for a file that cannot be used.
        """
        if urlsplit(self._url).scheme == "file":
            self._keys = parse_keys(self._load(self._url))
        else:
            self._wanted.set()
        threading.Thread(target=self._run, name="jwks", daemon=True).start()

    def find(self, kid: str) -> Key | None:
        """Return a key; an unknown one is looked for in the JWKS soon."""
        key = self._keys.get(kid)
        if key is None:
            self._wanted.set()
        return key

    def _run(self) -> None:
        while True:
            self._wanted.wait(self._refresh_s)
            self._wanted.clear()
            self._refresh()
            time.sleep(self._min_interval_s)

    def _refresh(self) -> None:
        try:
            self._keys = parse_keys(self._load(self._url))
        except KeysError as error:
            self._wanted.set()
            if str(error) != self._failure:
                log.warning("the keys of OAUTHBEARER, %s, cannot be loaded: %s", self._url, error)
            self._failure = str(error)
            return
        if self._failure:
            log.info("the keys of OAUTHBEARER, %s, are loaded", self._url)
        self._failure = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenSettings:
    """What a token must say; the settings `sasl.oauthbearer.*` of a listener."""

    audience: tuple[str, ...] = ()  # one of these; without any a token that has one is refused
    issuer: str = ""  # empty: any
    user_claim: str = "sub"
    scope_claim: str = "scope"
    skew_s: int = 30


_REASONS: Final = (
    (jwt.ExpiredSignatureError, "it has expired"),
    (jwt.ImmatureSignatureError, "it is not valid yet"),
    (jwt.InvalidAudienceError, "it is for another audience"),
    (jwt.InvalidIssuerError, "it has another issuer"),
    (jwt.InvalidSignatureError, "its signature is wrong"),
    (jwt.InvalidAlgorithmError, "its key is not for its algorithm"),
    (jwt.MissingRequiredClaimError, "a claim is missing"),
)


class TokenCheck:
    """Decides which tokens are valid; a `CheckToken`."""

    def __init__(self, keys: KeySet, settings: TokenSettings) -> None:
        """Create the check of one listener."""
        self._keys = keys
        self._settings = settings

    def __call__(self, token: str) -> ValidToken:
        """Return the user of a valid token, and how long it stays valid. Raises TokenError."""
        settings = self._settings
        try:
            header = jwt.get_unverified_header(token)
            if header.get("alg") not in ALGORITHMS:
                raise TokenError("its algorithm is not accepted")
            key = self._keys.find(header["kid"]) if "kid" in header else None
            if key is None:
                raise TokenError("its key is not known")
            claims: dict[str, Any] = jwt.decode(
                token,
                key.public,
                algorithms=list(key.algorithms),
                audience=settings.audience or None,
                issuer=settings.issuer or None,
                leeway=settings.skew_s,
                options={"require": ["exp", "iat", settings.user_claim]},
            )
            expires_at = min(int(claims["exp"]), MAX_EXPIRY) + settings.skew_s
        except (jwt.PyJWTError, ValueError, TypeError, RecursionError) as error:
            said = (reason for kind, reason in _REASONS if isinstance(error, kind))
            raise TokenError(next(said, "it is malformed")) from None
        _check_scope(claims.get(settings.scope_claim))
        user = claims[settings.user_claim]
        if not isinstance(user, str) or not 0 < len(user) <= MAX_NAME or not user.isprintable():
            raise TokenError(f"its user is not a printable name of at most {MAX_NAME} characters")
        return ValidToken(user, max(1, int((expires_at - time.time()) * 1_000)))


def _check_scope(scope: object) -> None:
    """Check the form of a scope, as Kafka does; nothing depends on its value. Raises TokenError."""
    scopes = [scope] if isinstance(scope, str) else scope
    if scopes is None:
        return
    if not isinstance(scopes, list) or any(
        not isinstance(one, str) or not one.strip() for one in scopes
    ):
        raise TokenError("its scope is neither a text nor a list of texts")
    if len(set(scopes)) < len(scopes):
        raise TokenError("its scope names one twice")
