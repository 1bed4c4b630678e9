"""The security of outgoing connections, from Kafka's client properties.

    security_of({"security.protocol": "SASL_SSL", "sasl.mechanism": "PLAIN", ...})

Source: Apache Kafka 4.3, Configuration of clients; docs/design/security.md#transport.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from raft.net.certificates import TlsContexts, TlsSettingError, TlsSettings
from raft.net.jaas import parse_jaas
from raft.net.oauthbearer import OAUTHBEARER
from raft.net.sasl import MECHANISMS, PLAIN, Credentials, TokenCredentials
from raft.net.security import (
    PLAINTEXT,
    PROTOCOLS,
    SASL_PLAINTEXT,
    SASL_SSL,
    SSL,
    OutgoingSecurity,
)
from raft.net.token_source import TokenSource

PROTOCOL: Final = "security.protocol"
MECHANISM: Final = "sasl.mechanism"
JAAS: Final = "sasl.jaas.config"
HANDLER: Final = "sasl.login.callback.handler.class"
TOKEN_URL: Final = "sasl.oauthbearer.token.endpoint.url"
CLIENT_ID: Final = "sasl.oauthbearer.client.credentials.client.id"
CLIENT_SECRET: Final = "sasl.oauthbearer.client.credentials.client.secret"
SCOPE: Final = "sasl.oauthbearer.scope"
OAUTH: Final = (TOKEN_URL, CLIENT_ID, CLIENT_SECRET, SCOPE)
KAFKAS_HANDLER: Final = (
    "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginCallbackHandler"
)
"""The one value of HANDLER: Kafka's tools need it in the same file, and it is what is done here."""

_OPTIONS: Final = {"clientId": CLIENT_ID, "clientSecret": CLIENT_SECRET, "scope": SCOPE}
"""The older names of these properties, in the JAAS line."""

TLS: Final = frozenset(
    {
        "ssl.keystore.location",
        "ssl.keystore.type",
        "ssl.keystore.password",
        "ssl.keystore.key",
        "ssl.keystore.certificate.chain",
        "ssl.key.password",
        "ssl.truststore.location",
        "ssl.truststore.type",
        "ssl.truststore.password",
        "ssl.truststore.certificates",
        "ssl.enabled.protocols",
        "ssl.endpoint.identification.algorithm",
    }
)


def security_of(properties: Mapping[str, str]) -> OutgoingSecurity | None:
    """Return the security that client properties name, None for PLAINTEXT.

    Raises:  TlsSettingError.
    """
    for key in properties:
        if key not in TLS and key not in (PROTOCOL, MECHANISM, JAAS, HANDLER, *OAUTH):
            raise TlsSettingError(key, "has no effect here: leave it out")
    protocol = properties.get(PROTOCOL, PLAINTEXT)
    if protocol not in PROTOCOLS:
        raise TlsSettingError(PROTOCOL, f"{protocol[:40]!r} is none of {', '.join(PROTOCOLS)}")
    tls, sasl = None, None
    if protocol in (SSL, SASL_SSL):
        tls = TlsContexts(TlsSettings.of(properties), server=False)
    if protocol in (SASL_PLAINTEXT, SASL_SSL):
        sasl = _credentials(properties)
    unused = [
        key
        for key in properties
        if (key in TLS and tls is None) or (key not in TLS and key != PROTOCOL and sasl is None)
    ]
    if unused:
        raise TlsSettingError(unused[0], f"has no effect with {PROTOCOL}={protocol}")
    if not isinstance(sasl, TokenCredentials):
        unused = [key for key in (HANDLER, *OAUTH) if key in properties]
    if unused:
        raise TlsSettingError(unused[0], f"has no effect without {MECHANISM}={OAUTHBEARER}")
    if tls is None and sasl is None:
        return None
    return OutgoingSecurity(tls=tls, sasl=sasl, properties=_without_directory(properties))


def _without_directory(properties: Mapping[str, str]) -> dict[str, str]:
    """Make paths of files absolute: another process has another working directory."""
    return {
        key: str(Path(text).absolute()) if key.endswith("store.location") else text
        for key, text in properties.items()
    }


def _credentials(properties: Mapping[str, str]) -> Credentials | TokenCredentials:
    mechanism = properties.get(MECHANISM, "")
    if mechanism not in MECHANISMS:
        raise TlsSettingError(MECHANISM, f"{mechanism[:40]!r} is none of {', '.join(MECHANISMS)}")
    if mechanism == OAUTHBEARER:
        return token_credentials(properties)
    module = PLAIN if mechanism == PLAIN else "SCRAM"
    try:
        options = parse_jaas(properties.get(JAAS, ""), modules=(module,))
    except ValueError as error:
        raise TlsSettingError(JAAS, str(error)) from None
    for option in ("username", "password"):
        if not options.get(option):
            raise TlsSettingError(JAAS, f"has no {option}")
    return Credentials(mechanism, options["username"], options["password"])


def token_credentials(properties: Mapping[str, str]) -> TokenCredentials:
    """Return the tokens that properties name, by a file or by a client's id and secret.

    Raises:  TlsSettingError.
    """
    given = {key: properties[key] for key in OAUTH if properties.get(key)}
    if properties.get(HANDLER, KAFKAS_HANDLER) != KAFKAS_HANDLER:
        raise TlsSettingError(HANDLER, f"only {KAFKAS_HANDLER} is supported")
    if JAAS in properties:
        try:
            options = parse_jaas(properties[JAAS], modules=(OAUTHBEARER,))
        except ValueError as error:
            raise TlsSettingError(JAAS, str(error)) from None
        for option, value in options.items():
            key = _OPTIONS.get(option)
            if key is None:
                raise TlsSettingError(JAAS, f"{option[:80]} is not supported")
            if key in given:
                raise TlsSettingError(JAAS, f"{option} and {key} are both given")
            given[key] = value
    url = given.get(TOKEN_URL, "")
    check_token_url(url)
    if not url:
        raise TlsSettingError(TOKEN_URL, f"must be set for {OAUTHBEARER}")
    is_file = url.startswith("file:")
    for key in (CLIENT_ID, CLIENT_SECRET):
        if not is_file and not given.get(key):
            raise TlsSettingError(key, f"must be set: {TOKEN_URL} is asked for tokens")
    for key in (CLIENT_ID, CLIENT_SECRET, SCOPE):
        if is_file and key in given:
            raise TlsSettingError(key, f"has no effect where {TOKEN_URL} is a file")
    source = TokenSource(
        url,
        client_id=given.get(CLIENT_ID, ""),
        client_secret=given.get(CLIENT_SECRET, ""),
        scope=given.get(SCOPE, ""),
    )
    return TokenCredentials(source.token)


def check_token_url(url: str) -> None:
    """Check that a URL is empty, a file's or https. Raises TlsSettingError."""
    try:
        parts = urlsplit(url)
        is_file = parts.scheme == "file" and not parts.netloc and parts.path.startswith("/")
        is_https = parts.scheme == "https" and bool(parts.hostname) and "@" not in parts.netloc
    except ValueError:
        is_file = is_https = False
    if url and not is_file and not is_https:
        raise TlsSettingError(
            TOKEN_URL, "is neither file:///PATH nor https://HOST/PATH without a user"
        )
