"""Settings of TLS and SASL: for all listeners, and for one by `listener.name.NAME.` before the key.

    listener.name.clients.ssl.keystore.location=/etc/esker/clients.p12

As in Kafka, NAME is the listener's in lower case, and a listener's own value goes before the value
for all. The settings of the listener that `controller.listener.names` begins with are also those of
the connections that this node opens to controllers.

Source: KIP-103 (listener prefixes), KIP-85 (JAAS lines), KIP-368; docs/design/security.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import urlsplit

from esker.settings.base import Setting
from esker.settings.values import integer, words
from raft.net import Limits
from raft.net.certificates import TlsSettingError, TlsSettings
from raft.net.client_properties import (
    CLIENT_ID,
    CLIENT_SECRET,
    SCOPE,
    TOKEN_URL,
    check_token_url,
)
from raft.net.jaas import parse_jaas
from raft.net.oauthbearer import OAUTHBEARER
from raft.net.sasl import MECHANISMS, PLAIN
from raft.net.security import PROTOCOLS, SASL_PLAINTEXT, SASL_SSL, SSL

PREFIX: Final = "listener.name."
JAAS: Final = "plain.sasl.jaas.config"
"""The one setting that only single listeners have: users of PLAIN, and the node's own."""

_TLS_HELP: Final = {
    "ssl.keystore.location": "File with the private key and certificate chain: PEM or PKCS12.",
    "ssl.keystore.type": "`PEM` or `PKCS12`; default: found out from the file.",
    "ssl.keystore.password": "Password of the PKCS12 file in `ssl.keystore.location`.",
    "ssl.keystore.key": "Private key as PEM text, instead of a file.",
    "ssl.keystore.certificate.chain": "Certificate chain as PEM text, with `ssl.keystore.key`.",
    "ssl.key.password": "Password of an encrypted private key.",
    "ssl.truststore.location": "File with the certificates that are trusted: PEM or PKCS12.",
    "ssl.truststore.type": "`PEM` or `PKCS12`; default: found out from the file.",
    "ssl.truststore.password": "Password of the PKCS12 file in `ssl.truststore.location`.",
    "ssl.truststore.certificates": "Trusted certificates as PEM text, instead of a file.",
    "ssl.enabled.protocols": "TLS versions: `TLSv1.2`, `TLSv1.3`; default: both.",
    "ssl.client.auth": "Client certificates: `none`, `requested` or `required`; default: none.",
    "ssl.principal.mapping.rules": "Rules `RULE:PATTERN/REPLACEMENT/[LU]`, comma separated, that "
    "make a name of a certificate's subject; default: `DEFAULT`, the subject itself.",
    "ssl.endpoint.identification.algorithm": "`https`: servers that this node connects to must "
    "have its host name in their certificate; empty: any name; default: https.",
}

RECEIVE: Final = "sasl.server.max.receive.size"
MECHANISMS_KEY: Final = "sasl.enabled.mechanisms"
CONTROLLER_MECHANISM: Final = "sasl.mechanism.controller.protocol"
LIFETIME: Final = "connections.max.reauth.ms"
JWKS_URL: Final = "sasl.oauthbearer.jwks.endpoint.url"
JWKS_REFRESH: Final = "sasl.oauthbearer.jwks.endpoint.refresh.ms"
AUDIENCE: Final = "sasl.oauthbearer.expected.audience"
ISSUER: Final = "sasl.oauthbearer.expected.issuer"
SUB_CLAIM: Final = "sasl.oauthbearer.sub.claim.name"
SCOPE_CLAIM: Final = "sasl.oauthbearer.scope.claim.name"
CLOCK_SKEW: Final = "sasl.oauthbearer.clock.skew.seconds"
OF_CONTROLLERS: Final = frozenset({PLAIN, OAUTHBEARER})
"""The mechanisms of controllers' listeners: those that need no cluster log."""

RATE: Final = "esker.listener.max.handshakes.per.second"


def _mechanisms(text: str) -> tuple[str, ...]:
    found = words(text)
    for mechanism in found:
        if mechanism not in MECHANISMS:
            raise ValueError(f"{mechanism[:40]!r} is none of {', '.join(MECHANISMS)}")
    return found


def _jwks_url(text: str) -> str:
    try:
        parts = urlsplit(text)
        is_file = parts.scheme == "file" and not parts.netloc and parts.path.startswith("/")
        is_https = parts.scheme == "https" and bool(parts.hostname) and "@" not in parts.netloc
    except ValueError:
        is_file = is_https = False
    if text and not is_file and not is_https:
        raise ValueError("is neither file:///PATH nor https://HOST/PATH without a user")
    return text


def _token_url(text: str) -> str:
    check_token_url(text)
    return text


def _claim(text: str) -> str:
    if not text:
        raise ValueError("is empty: name a claim")
    return text


def _controller_mechanism(text: str) -> str:
    if text not in OF_CONTROLLERS:
        raise ValueError(
            f"{text[:40]!r}: nodes authenticate to controllers by {PLAIN}, {OAUTHBEARER} or by "
            "certificates; SCRAM's verifiers lie in the log that controllers serve"
        )
    return text


_OAUTH: Final = (
    Setting(
        JWKS_URL,
        _jwks_url,
        "",
        "OAUTHBEARER: the JWKS whose keys sign tokens, `file:///PATH` or `https://HOST/PATH`.",
    ),
    Setting(
        JWKS_REFRESH,
        integer(10_000, 2**31 - 1),
        3_600_000,
        "OAUTHBEARER: milliseconds after which the JWKS is loaded again.",
    ),
    Setting(
        AUDIENCE,
        words,
        (),
        "OAUTHBEARER: audiences, comma separated, of which a token must have one; default: a "
        "token that has an audience is refused.",
    ),
    Setting(ISSUER, str, "", "OAUTHBEARER: the issuer of tokens; default: any."),
    Setting(SUB_CLAIM, _claim, "sub", "OAUTHBEARER: the claim of a token with the user's name."),
    Setting(
        SCOPE_CLAIM,
        _claim,
        "scope",
        "OAUTHBEARER: the claim of a token with its scope, whose form alone is checked.",
    ),
    Setting(
        CLOCK_SKEW,
        integer(0, 86_400),
        30,
        "OAUTHBEARER: seconds that this node's clock and a token's issuer's may differ.",
    ),
    Setting(
        TOKEN_URL,
        _token_url,
        "",
        f"Where this node gets its own tokens if {CONTROLLER_MECHANISM} is OAUTHBEARER: "
        "`file:///PATH`, or `https://HOST/PATH` of an identity provider.",
    ),
    Setting(CLIENT_ID, str, "", "The client id by which this node asks for its tokens."),
    Setting(CLIENT_SECRET, str, "", "The secret of that client."),
    Setting(SCOPE, str, "", "The scope of the tokens that this node asks for; default: none."),
)

SETTINGS: Final = (
    *(Setting(key, str, "", text) for key, text in _TLS_HELP.items()),
    Setting(
        MECHANISMS_KEY,
        _mechanisms,
        (),
        f"SASL mechanisms of listeners with SASL: {', '.join(MECHANISMS)}; default: "
        "none, and such a listener must name one.",
    ),
    Setting(
        CONTROLLER_MECHANISM,
        _controller_mechanism,
        PLAIN,
        "SASL mechanism of this node's connections to controllers.",
    ),
    *_OAUTH,
    Setting(
        LIFETIME,
        integer(0, 2**31 - 1),
        0,
        "Milliseconds after which a client authenticates anew, or is disconnected; 0: never.",
    ),
    Setting(
        RECEIVE,
        integer(1_024, 2**20),
        Limits().max_unauthenticated_frame_bytes,
        "Maximum bytes of one request before SASL authentication.",
    ),
    Setting(
        RATE,
        integer(1, 100_000),
        Limits().max_handshakes_per_second,
        "TLS handshakes that a listener begins in a second; further ones wait.",
    ),
)

OF_LISTENERS: Final = frozenset(
    {*_TLS_HELP, MECHANISMS_KEY, LIFETIME, *(setting.key for setting in _OAUTH)}
)
"""Settings that a single listener may have for itself."""

SECRETS: Final = frozenset(
    {
        "ssl.keystore.password",
        "ssl.keystore.key",
        "ssl.key.password",
        "ssl.truststore.password",
        CLIENT_SECRET,
        JAAS,
    }
)

_PARSERS: Final = {setting.key: setting.parse for setting in SETTINGS}
_DEFAULTS: Final = {setting.key: setting.default for setting in SETTINGS}


def parsed(properties: Mapping[str, str], key: str) -> Any:
    """Return the value of a setting among a listener's (`properties_of`), or its default."""
    return _PARSERS[key](properties[key]) if key in properties else _DEFAULTS[key]


def is_secret(key: str) -> bool:
    """Return whether the value of a setting, or of one listener's setting, is a secret."""
    return key in SECRETS or (key.startswith(PREFIX) and _of_listener(key)[1] in SECRETS)


def _of_listener(key: str) -> tuple[str, str]:
    """Split `listener.name.NAME.KEY` into NAME and KEY."""
    name, _, rest = key[len(PREFIX) :].partition(".")
    return name, rest


def check_of_listener(key: str, text: str) -> None:
    """Check a security setting of a single listener. Raises ValueError."""
    _, rest = _of_listener(key)
    if rest == JAAS:
        parse_jaas(text)
    elif rest in OF_LISTENERS:
        _PARSERS[rest](text)
    elif rest.endswith("sasl.jaas.config"):
        raise ValueError(f"only {JAAS} is supported: users of SCRAM are kept in the cluster")
    else:
        raise ValueError(f"{rest[:80]!r} cannot be set for one listener: remove the line")


def properties_of(given: Mapping[str, str], listener: str) -> dict[str, str]:
    """Return a listener's security settings as text; its own override those of all listeners."""
    properties = {key: given[key] for key in OF_LISTENERS if key in given}
    for key, text in given.items():
        if key.startswith(PREFIX):
            name, rest = _of_listener(key)
            if name == listener.lower():
                properties[rest] = text
    return properties


def protocol_of(values: Mapping[str, Any], listener: str) -> str:
    """Return the security protocol of a listener.

    The map says it; else a listener that is named like a protocol has that, and any other one
    PLAINTEXT.
    """
    protocols: Mapping[str, str] = values["listener.security.protocol.map"] or {}
    if listener in protocols:
        return protocols[listener]
    return listener if listener in PROTOCOLS else PROTOCOLS[0]


def check_listener(
    given: Mapping[str, str], listener: str, protocol: str, *, of_controller: bool
) -> None:
    """Check that a listener's security settings agree. Raises ValueError naming the setting.

    Files are read when the node starts, not here.
    """
    properties = properties_of(given, listener)
    where = f"{PREFIX}{listener.lower()}."
    if protocol in (SSL, SASL_SSL):
        try:
            tls = TlsSettings.of(properties)
        except TlsSettingError as error:
            raise TlsSettingError(where + error.key, str(error)) from None
        if tls.keystore is None:
            raise TlsSettingError(
                f"{where}ssl.keystore.location", f"must be set: {listener} has protocol {protocol}"
            )
    if protocol in (SASL_PLAINTEXT, SASL_SSL):
        mechanisms = _mechanisms(properties.get(MECHANISMS_KEY, ""))
        if not mechanisms:
            raise TlsSettingError(
                where + MECHANISMS_KEY, f"must be set: {listener} has protocol {protocol}"
            )
        if PLAIN in mechanisms and JAAS not in properties:
            raise TlsSettingError(
                where + JAAS, 'must be set, as `... required user_alice="PASSWORD";`'
            )
        if OAUTHBEARER in mechanisms and not properties.get(JWKS_URL):
            raise TlsSettingError(where + JWKS_URL, f"must be set: {listener} has {OAUTHBEARER}")
        if of_controller and not OF_CONTROLLERS.issuperset(mechanisms):
            raise TlsSettingError(
                where + MECHANISMS_KEY, f"controllers' listeners take {PLAIN} and {OAUTHBEARER}"
            )
