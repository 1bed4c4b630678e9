"""An issuer of tokens: its key, its JWKS, and what it signs."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any, Final

import jwt
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa

ISSUER: Final = "https://id.example"
AUDIENCE: Final = "esker"
DAY_S: Final = 86_400  # tokens are signed when tests are collected, and used when they run
RSA_KEY: Final = rsa.generate_private_key(65537, 2048)
EC_KEY: Final = ec.generate_private_key(ec.SECP256R1())
ED_KEY: Final = ed25519.Ed25519PrivateKey.generate()
FOREIGN_KEY: Final = rsa.generate_private_key(65537, 2048)


def public(key: Any, **more: Any) -> dict[str, Any]:
    """The JWK of a private key's public half; a member that is None is left out."""
    kind = {rsa.RSAPrivateKey: "RSA", ec.EllipticCurvePrivateKey: "EC"}
    name = next((name for base, name in kind.items() if isinstance(key, base)), "OKP")
    algorithm = {"RSA": "RS256", "EC": "ES256", "OKP": "EdDSA"}[name]
    made = jwt.get_algorithm_by_name(algorithm).to_jwk(key.public_key(), as_dict=True)
    return {k: v for k, v in (made | {"use": "sig"} | more).items() if v is not None}


def jwks(*keys: dict[str, Any]) -> bytes:
    return json.dumps({"keys": keys}).encode()


KEYS: Final = jwks(public(RSA_KEY, kid="r"), public(EC_KEY, kid="e"), public(ED_KEY, kid="d"))


def claims(**changes: Any) -> dict[str, Any]:
    """The claims of a good token; a claim that is None is left out."""
    now = int(time.time())
    good = {"sub": "alice", "iss": ISSUER, "aud": AUDIENCE, "iat": now, "exp": now + DAY_S}
    return {key: value for key, value in (good | changes).items() if value is not None}


def token(key: Any = RSA_KEY, algorithm: str = "RS256", kid: str | None = "r", **changes: Any):
    headers = {"kid": kid} if kid is not None else {}
    return jwt.encode(claims(**changes), key, algorithm, headers=headers)


def first_message(text: str, authorization_id: str = "") -> bytes:
    name = f"a={authorization_id}" if authorization_id else ""
    return f"n,{name},\x01auth=Bearer {text}\x01\x01".encode()


def write_jwks(path: Path, data: bytes = KEYS) -> str:
    """Write a JWKS; return its URL."""
    path.write_bytes(data)
    return path.as_uri()
