"""The security of outgoing connections, from Kafka's client properties.

    security_of({"security.protocol": "SASL_SSL", "sasl.mechanism": "PLAIN", ...})

Source: Apache Kafka 4.3, Configuration of clients; docs/design/security.md#transport.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from raft.net.certificates import TlsContexts, TlsSettingError, TlsSettings
from raft.net.jaas import parse_jaas
from raft.net.sasl import MECHANISMS, PLAIN, Credentials
from raft.net.security import (
    PLAINTEXT,
    PROTOCOLS,
    SASL_PLAINTEXT,
    SASL_SSL,
    SSL,
    OutgoingSecurity,
)

PROTOCOL: Final = "security.protocol"
MECHANISM: Final = "sasl.mechanism"
JAAS: Final = "sasl.jaas.config"
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
        if key not in TLS and key not in (PROTOCOL, MECHANISM, JAAS):
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
        if (key in TLS and tls is None) or (key in (MECHANISM, JAAS) and sasl is None)
    ]
    if unused:
        raise TlsSettingError(unused[0], f"has no effect with {PROTOCOL}={protocol}")
    return None if tls is None and sasl is None else OutgoingSecurity(tls=tls, sasl=sasl)


def _credentials(properties: Mapping[str, str]) -> Credentials:
    mechanism = properties.get(MECHANISM, "")
    if mechanism not in MECHANISMS:
        raise TlsSettingError(MECHANISM, f"{mechanism[:40]!r} is none of {', '.join(MECHANISMS)}")
    module = PLAIN if mechanism == PLAIN else "SCRAM"
    try:
        options = parse_jaas(properties.get(JAAS, ""), modules=(module,))
    except ValueError as error:
        raise TlsSettingError(JAAS, str(error)) from None
    for option in ("username", "password"):
        if not options.get(option):
            raise TlsSettingError(JAAS, f"has no {option}")
    return Credentials(mechanism, options["username"], options["password"])
