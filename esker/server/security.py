"""Builds the security of a node's listeners, and of the connections that it opens.

Source: docs/design/security.md#transport.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from coordinator.controller.access import AccessSettings
from esker.settings.access import ALLOW_EVERYONE, AUTHORIZER, SUPER_USERS
from esker.settings.config import NodeSettings
from esker.settings.errors import ConfigError
from esker.settings.security import (
    AUDIENCE,
    CLOCK_SKEW,
    ISSUER,
    JAAS,
    JWKS_REFRESH,
    JWKS_URL,
    LIFETIME,
    MECHANISMS_KEY,
    PREFIX,
    SCOPE_CLAIM,
    SUB_CLAIM,
    parsed,
    properties_of,
    protocol_of,
)
from esker.settings.values import words
from raft.net.certificates import TlsContexts, TlsSettingError, TlsSettings
from raft.net.client_properties import token_credentials
from raft.net.jaas import parse_jaas
from raft.net.oauthbearer import OAUTHBEARER, CheckToken
from raft.net.sasl import Credentials, FindCredential, ServerMechanisms, TokenCredentials
from raft.net.security import (
    SASL_PLAINTEXT,
    SASL_SSL,
    SSL,
    ListenerSecurity,
    OutgoingSecurity,
)

USER_OPTION: Final = "user_"  # of PLAIN's JAAS line: user_alice="the password of alice"


def listener_security(
    settings: NodeSettings,
    listener: str,
    find_credential: FindCredential = lambda _user, _mechanism: None,
) -> ListenerSecurity | None:
    """Return the security of one of a node's listeners, or None for PLAINTEXT.

    Args:    find_credential: finds the users of SCRAM.
    Raises:  ConfigError for a file that cannot be used.
    """
    protocol = protocol_of(settings.values, listener)
    properties = properties_of(settings.given, listener)
    tls, sasl = None, None
    if protocol in (SSL, SASL_SSL):
        tls = _contexts(properties, listener, server=True)
    if protocol in (SASL_PLAINTEXT, SASL_SSL):
        options = parse_jaas(properties[JAAS]) if JAAS in properties else {}
        enabled = words(properties[MECHANISMS_KEY])
        sasl = ServerMechanisms(
            enabled=enabled,
            plain_users={
                key.removeprefix(USER_OPTION): password
                for key, password in options.items()
                if key.startswith(USER_OPTION)
            },
            find_credential=find_credential,
        )
        if OAUTHBEARER in enabled:
            sasl = replace(sasl, check_token=_token_check(properties, listener))
    if tls is None and sasl is None:
        return None
    lifetime_ms = int(properties.get(LIFETIME, 0))
    return ListenerSecurity(tls=tls, sasl=sasl, session_lifetime_ms=lifetime_ms)


def access_settings(settings: NodeSettings) -> AccessSettings | None:
    """Return the settings of a node's authorizer, or None if it has no authorizer."""
    values = settings.values
    if not values[AUTHORIZER]:
        return None
    return AccessSettings(frozenset(values[SUPER_USERS]), values[ALLOW_EVERYONE])


def node_outgoing_security(settings: NodeSettings) -> OutgoingSecurity | None:
    """Return the security of a node's connections to controllers, or None for PLAINTEXT.

    Raises:  ConfigError for a file that cannot be used, or if the node has no user of its own.
    """
    listener = settings.addresses.controller_name
    protocol = protocol_of(settings.values, listener)
    properties = properties_of(settings.given, listener)
    tls, sasl = None, None
    if protocol in (SSL, SASL_SSL):
        tls = _contexts(properties, listener, server=False)
    if protocol in (SASL_PLAINTEXT, SASL_SSL):
        sasl = _own_credentials(settings, listener, properties)
    return None if tls is None and sasl is None else OutgoingSecurity(tls=tls, sasl=sasl)


def _own_credentials(
    settings: NodeSettings, listener: str, properties: dict[str, str]
) -> Credentials | TokenCredentials:
    """Return as whom a node connects to controllers. Raises ConfigError."""
    mechanism = settings.values["sasl.mechanism.controller.protocol"]
    enabled = words(properties.get(MECHANISMS_KEY, mechanism))  # a broker need not name them
    if mechanism not in enabled:
        raise ConfigError(
            "sasl.mechanism.controller.protocol",
            f"{mechanism} is none of {PREFIX}{listener.lower()}.{MECHANISMS_KEY}",
        )
    if mechanism == OAUTHBEARER:
        try:
            return token_credentials(properties)
        except TlsSettingError as error:
            raise ConfigError(f"{PREFIX}{listener.lower()}.{error.key}", str(error)) from None
    key = f"{PREFIX}{listener.lower()}.{JAAS}"
    options = parse_jaas(properties[JAAS]) if JAAS in properties else {}
    if "username" not in options or "password" not in options:
        raise ConfigError(key, "has no username and password, as whom this node connects")
    return Credentials(mechanism, options["username"], options["password"])


def _token_check(properties: dict[str, str], listener: str) -> CheckToken:
    """Return the check of a listener's tokens, whose keys are loaded from now on."""
    from raft.net.tokens import KeysError, KeySet, TokenCheck, TokenSettings

    keys = KeySet(properties[JWKS_URL], refresh_s=parsed(properties, JWKS_REFRESH) / 1_000)
    try:
        keys.start()
    except KeysError as error:
        raise ConfigError(f"{PREFIX}{listener.lower()}.{JWKS_URL}", str(error)) from None
    return TokenCheck(
        keys,
        TokenSettings(
            audience=parsed(properties, AUDIENCE),
            issuer=parsed(properties, ISSUER),
            user_claim=parsed(properties, SUB_CLAIM),
            scope_claim=parsed(properties, SCOPE_CLAIM),
            skew_s=parsed(properties, CLOCK_SKEW),
        ),
    )


def _contexts(properties: dict[str, str], listener: str, *, server: bool) -> TlsContexts:
    try:
        return TlsContexts(TlsSettings.of(properties), server=server)
    except TlsSettingError as error:
        raise ConfigError(f"{PREFIX}{listener.lower()}.{error.key}", str(error)) from None
