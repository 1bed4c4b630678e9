"""The settings of librdkafka that Kafka's client properties in a file mean.

A benchmark of a running cluster takes the same file as Kafka's tools and `esker` commands. Stores
become PEM text, so PKCS12 is understood, too.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any, Final

from esker.client.security import CommandConfigError, read_command_config
from raft.net.certificates import TlsSettingError, TlsSettings
from raft.net.sasl import TokenCredentials

TOKEN_S: Final = 60.0  # how long librdkafka uses a token before it asks for one again


def librdkafka_settings(path: Path) -> dict[str, Any]:
    """Return the settings of a client of librdkafka; none for PLAINTEXT.

    Raises:  CommandConfigError.
    """
    security = read_command_config(path)
    if security is None:
        return {}
    settings: dict[str, Any] = {"security.protocol": security.properties["security.protocol"]}
    if security.tls is not None:
        try:
            settings |= _tls(TlsSettings.of(security.properties))
        except TlsSettingError as error:
            raise CommandConfigError(f"{path}: {error.key}: {error}") from None
    sasl = security.sasl
    if isinstance(sasl, TokenCredentials):
        get_token = sasl.get_token
        settings |= {"oauth_cb": lambda _: (get_token(), time.time() + TOKEN_S)}
    elif sasl is not None:
        settings |= {"sasl.username": sasl.user, "sasl.password": sasl.password}
    if sasl is not None:
        settings["sasl.mechanism"] = sasl.mechanism
    return settings


def _tls(tls: TlsSettings) -> dict[str, str]:
    settings: dict[str, str] = {}
    if tls.truststore is not None:
        settings["ssl.ca.pem"] = tls.truststore.as_pem(tls.truststore.read()).decode()
    if tls.keystore is not None:
        pem = tls.keystore.as_pem(tls.keystore.read()).decode()
        settings |= {"ssl.certificate.pem": pem, "ssl.key.pem": pem}
    if tls.key_password is not None:
        settings["ssl.key.password"] = tls.key_password
    if not tls.check_hostname:
        settings["ssl.endpoint.identification.algorithm"] = "none"
    return settings
