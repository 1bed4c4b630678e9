"""Settings of TLS and SASL: which are accepted, for which listener, and how refusals read."""

from __future__ import annotations

import time

import pytest

from esker.client.security import CommandConfigError, read_command_config
from esker.server.security import listener_security, node_outgoing_security
from esker.settings.config import ConfigError, load_config, parse_config
from esker.settings.security import is_secret, properties_of, protocol_of
from raft.net.certificates import TlsSettingError
from raft.net.client_properties import KAFKAS_HANDLER, security_of
from raft.net.jaas import parse_jaas
from raft.net.oauthbearer import TokenError
from raft.net.sasl import TokenCredentials
from tests.esker.test_config import BROKER, GOOD, INSECURE
from tests.pki import Authority
from tests.raft.net.oauth_world import token, write_jwks

PLAIN = "org.apache.kafka.common.security.plain.PlainLoginModule required "
OAUTH = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule required "
TOKEN_URL = "sasl.oauthbearer.token.endpoint.url"
TOKEN = {
    "security.protocol": "SASL_PLAINTEXT",
    "sasl.mechanism": "OAUTHBEARER",
    TOKEN_URL: "file:///etc/token",
}
SASL = {
    "listeners": "SASL_SSL://127.0.0.1:9092",
    "ssl.keystore.location": "/etc/server.pem",
    "sasl.enabled.mechanisms": "PLAIN",
    "listener.name.sasl_ssl.plain.sasl.jaas.config": PLAIN + 'user_alice="a b;=,";',
}


def test_a_listeners_own_security_setting_overrides_the_setting_for_all_listeners():
    given = {
        **BROKER,
        **SASL,
        "listener.name.sasl_ssl.ssl.client.auth": "required",
        "ssl.client.auth": "none",
        "connections.max.reauth.ms": "60000",
    }
    config = parse_config(given)
    properties = properties_of(config.given, "SASL_SSL")
    assert properties["ssl.client.auth"] == "required"
    assert properties["connections.max.reauth.ms"] == "60000"
    assert parse_jaas(properties["plain.sasl.jaas.config"]) == {"user_alice": "a b;=,"}
    assert config.addresses.clients[0].protocol == "SASL_SSL"


@pytest.mark.parametrize(
    ("listener", "protocols", "protocol"),
    [
        ("SSL", "", "SSL"),
        ("SSL", "SSL:PLAINTEXT", "PLAINTEXT"),
        ("CLIENTS", "CLIENTS:SASL_SSL", "SASL_SSL"),
        ("CLIENTS", "", "PLAINTEXT"),
    ],
)
def test_the_protocol_map_or_the_name_of_a_listener_determines_its_security_protocol(
    listener, protocols, protocol
):
    pairs = dict(part.split(":") for part in protocols.split(",") if part)
    assert protocol_of({"listener.security.protocol.map": pairs}, listener) == protocol


@pytest.mark.parametrize(
    ("changes", "key"),
    [
        ({"ssl.keystore.location": ""}, "listener.name.sasl_ssl.ssl.keystore.location"),
        ({"sasl.enabled.mechanisms": ""}, "listener.name.sasl_ssl.sasl.enabled.mechanisms"),
        ({"sasl.enabled.mechanisms": "GSSAPI"}, "sasl.enabled.mechanisms"),
        (
            {"listener.name.sasl_ssl.plain.sasl.jaas.config": "nonsense"},
            "listener.name.sasl_ssl.plain.sasl.jaas.config",
        ),
        ({"listener.name.sasl_ssl.num.threads": "1"}, "listener.name.sasl_ssl.num.threads"),
        ({"ssl.client.auth": "maybe"}, "listener.name.sasl_ssl.ssl.client.auth"),
        ({"sasl.mechanism.controller.protocol": "SCRAM-SHA-256"}, None),
        (
            {"listener.name.sasl_ssl.scram-sha-256.sasl.jaas.config": "x"},
            "listener.name.sasl_ssl.scram-sha-256.sasl.jaas.config",
        ),
        (
            {"sasl.enabled.mechanisms": "OAUTHBEARER"},
            "listener.name.sasl_ssl.sasl.oauthbearer.jwks.endpoint.url",
        ),
        ({"sasl.oauthbearer.jwks.endpoint.url": "http://id.example/keys"}, None),
        ({"sasl.oauthbearer.jwks.endpoint.url": "https://u:p@id.example/keys"}, None),
        ({"sasl.oauthbearer.jwks.endpoint.url": "https:///keys"}, None),
        ({"sasl.oauthbearer.jwks.endpoint.url": "file://host/keys"}, None),
        ({"sasl.oauthbearer.jwks.endpoint.url": "https://[/keys"}, None),
        ({"sasl.oauthbearer.clock.skew.seconds": "-1"}, None),
        ({"sasl.oauthbearer.sub.claim.name": ""}, None),
        ({"listener.name.sasl_ssl.sasl.oauthbearer.jwks.endpoint.url": "ftp://x"}, None),
        ({"sasl.oauthbearer.jwt.validator.class": "x.Y"}, None),
        ({"sasl.server.callback.handler.class": "x.Y"}, None),
    ],
)
def test_the_error_for_a_security_setting_names_the_setting(changes, key):
    with pytest.raises(ConfigError) as refused:
        parse_config({**BROKER, **SASL, **changes})
    assert refused.value.key == (key or next(iter(changes)))


def test_the_error_for_an_invalid_jaas_line_shows_no_password():
    line = PLAIN + 'user_alice="hidden" user_alice="hidden";'
    with pytest.raises(ConfigError) as refused:
        parse_config({**BROKER, **SASL, "listener.name.sasl_ssl.plain.sasl.jaas.config": line})
    assert "hidden" not in str(refused.value)


@pytest.mark.parametrize(
    ("more", "starts"),
    [
        ({}, False),
        ({"listener.security.protocol.map": "CONTROLLER:SSL"}, False),
        (
            {
                "listener.security.protocol.map": "CONTROLLER:SSL",
                "ssl.client.auth": "required",
            },
            True,
        ),
        (
            {
                "listener.security.protocol.map": "CONTROLLER:SASL_SSL",
                "sasl.enabled.mechanisms": "PLAIN",
                "listener.name.controller.plain.sasl.jaas.config": PLAIN + 'user_n="x";',
            },
            True,
        ),
    ],
)
def test_a_controller_listens_beyond_loopback_only_with_authentication(more, starts):
    settings = {
        **GOOD,
        "listeners": "CONTROLLER://10.0.0.1:9094",
        "advertised.listeners": "CONTROLLER://127.0.0.1:9094",
        "ssl.keystore.location": "/etc/server.pem",
        "ssl.truststore.location": "/etc/ca.pem",
        **more,
    }
    if starts:
        assert parse_config(settings).addresses.is_secured
        return
    with pytest.raises(ConfigError, match=INSECURE):
        parse_config(settings)


@pytest.mark.parametrize("mechanism", ["SCRAM-SHA-256", "PLAIN,SCRAM-SHA-512"])
def test_a_controller_listener_refuses_mechanisms_that_need_the_cluster_log(mechanism):
    settings = {
        **GOOD,
        "listener.security.protocol.map": "CONTROLLER:SASL_PLAINTEXT",
        "sasl.enabled.mechanisms": mechanism,
        "listener.name.controller.plain.sasl.jaas.config": PLAIN + 'user_n="x";',
    }
    with pytest.raises(ConfigError, match="take PLAIN"):
        parse_config(settings)


def oauth_settings(url, **more):
    return {
        **BROKER,
        "listeners": "SASL_PLAINTEXT://127.0.0.1:9092",
        "sasl.enabled.mechanisms": "OAUTHBEARER",
        "sasl.oauthbearer.jwks.endpoint.url": url,
        **more,
    }


CONTROLLER = {
    **GOOD,
    "controller.listener.names": "CONTROLLER",
    "listener.security.protocol.map": "CONTROLLER:SASL_PLAINTEXT",
    "listener.name.controller.sasl.enabled.mechanisms": "OAUTHBEARER",
    "sasl.oauthbearer.jwks.endpoint.url": "file:///etc/jwks.json",
    "sasl.mechanism.controller.protocol": "OAUTHBEARER",
    "sasl.oauthbearer.token.endpoint.url": "https://id.example/token",
    "sasl.oauthbearer.client.credentials.client.id": "node-1",
    "sasl.oauthbearer.client.credentials.client.secret": "very-secret",
}


def test_a_node_connects_to_controllers_by_tokens_of_an_identity_provider():
    security = node_outgoing_security(parse_config(CONTROLLER))
    assert isinstance(security.sasl, TokenCredentials)
    assert "very-secret" not in repr(security)
    assert is_secret("sasl.oauthbearer.client.credentials.client.secret")


@pytest.mark.parametrize(
    ("changes", "key"),
    [
        ({"sasl.oauthbearer.token.endpoint.url": ""}, "token.endpoint.url"),
        ({"sasl.oauthbearer.token.endpoint.url": "http://id.example/"}, "token.endpoint.url"),
        ({"sasl.oauthbearer.token.endpoint.url": "https://a@id.example/"}, "token.endpoint.url"),
        ({"sasl.oauthbearer.token.endpoint.url": "file:///t"}, "credentials.client.id"),
        ({"sasl.oauthbearer.client.credentials.client.id": ""}, "credentials.client.id"),
        ({"sasl.oauthbearer.client.credentials.client.secret": ""}, "credentials.client.secret"),
        ({"sasl.mechanism.controller.protocol": "PLAIN"}, "sasl.mechanism.controller.protocol"),
        ({"sasl.mechanism.controller.protocol": "SCRAM-SHA-256"}, "controller.protocol"),
    ],
)
def test_a_nodes_error_of_its_own_tokens_names_the_setting_and_no_secret(changes, key):
    with pytest.raises(ConfigError, match=key) as refused:
        node_outgoing_security(parse_config({**CONTROLLER, **changes}))
    assert "very-secret" not in str(refused.value)


def test_a_listeners_settings_of_tokens_reach_the_check_of_its_tokens(tmp_path):
    own = "listener.name.sasl_plaintext.sasl.oauthbearer."
    settings = oauth_settings(
        write_jwks(tmp_path / "jwks.json"),
        **{
            "sasl.oauthbearer.expected.audience": "a, b",
            own + "expected.issuer": "me",
            own + "sub.claim.name": "client",
            own + "scope.claim.name": "rights",
            own + "clock.skew.seconds": "5",
        },
    )
    check = listener_security(parse_config(settings), "SASL_PLAINTEXT").sasl.check_token
    good = {"aud": "b", "iss": "me", "client": "carol"}
    assert check(token(**good)).user == "carol"
    wrong = (
        {"aud": "c"},
        {"iss": "you"},
        {"client": None},
        {"rights": 1},
        {"exp": time.time() - 6},
    )
    for change in wrong:
        with pytest.raises(TokenError):
            check(token(**good | change))


def test_a_node_without_a_readable_file_of_keys_does_not_start(tmp_path):
    config = parse_config(oauth_settings((tmp_path / "none.json").as_uri()))
    with pytest.raises(ConfigError, match="No such file") as refused:
        listener_security(config, "SASL_PLAINTEXT")
    assert refused.value.key.endswith("sasl.oauthbearer.jwks.endpoint.url")


def test_a_node_warns_of_tls_settings_that_no_listener_uses():
    config = parse_config({**BROKER, "ssl.keystore.location": "/etc/server.pem"})
    assert any("ssl.keystore.location" in warning for warning in config.warnings)


def test_a_node_refuses_a_properties_file_with_secrets_that_every_user_can_read(tmp_path):
    path = tmp_path / "broker.properties"
    given = {**BROKER, **SASL}
    path.write_text("".join(f"{key}={value}\n" for key, value in given.items()))
    path.chmod(0o644)
    with pytest.raises(ConfigError, match="chmod o-r"):
        load_config(path)
    path.chmod(0o640)
    assert load_config(path)


@pytest.mark.parametrize(
    ("properties", "key"),
    [
        ({"security.protocol": "TLS"}, "security.protocol"),
        ({"acks": "all"}, "acks"),
        ({"sasl.mechanism": "PLAIN"}, "sasl.mechanism"),
        (
            {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "OAUTHBEARER"},
            TOKEN_URL,
        ),
        (TOKEN | {TOKEN_URL: "http://id.example/token"}, TOKEN_URL),
        (TOKEN | {TOKEN_URL: "https://id.example/token"}, "sasl.oauthbearer.client.credentials"),
        (TOKEN | {"sasl.oauthbearer.scope": "x"}, "sasl.oauthbearer.scope"),
        (TOKEN | {"sasl.login.callback.handler.class": "x.Y"}, "sasl.login.callback"),
        (TOKEN | {"sasl.jaas.config": OAUTH + 'clientId="a";'}, "sasl.oauthbearer.client"),
        (TOKEN | {"sasl.jaas.config": OAUTH + 'extension_a="b";'}, "sasl.jaas.config"),
        (TOKEN | {"sasl.jaas.config": PLAIN + 'username="a";'}, "sasl.jaas.config"),
        (TOKEN | {"security.protocol": "SSL"}, "sasl.mechanism"),
        (
            TOKEN
            | {"sasl.mechanism": "PLAIN", "sasl.jaas.config": PLAIN + "username=a password=b"},
            TOKEN_URL,
        ),
        ({"security.protocol": "SASL_PLAINTEXT"}, "sasl.mechanism"),
        (
            {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "PLAIN"},
            "sasl.jaas.config",
        ),
        (
            {
                "security.protocol": "SASL_PLAINTEXT",
                "sasl.mechanism": "PLAIN",
                "sasl.jaas.config": PLAIN + "username=a;",
            },
            "sasl.jaas.config",
        ),
        ({"security.protocol": "SSL", "ssl.truststore.location": "/none"}, "ssl.truststore"),
    ],
)
def test_the_error_for_a_client_property_of_a_command_names_the_property(properties, key):
    with pytest.raises(TlsSettingError) as refused:
        security_of(properties)
    assert refused.value.key.startswith(key)


def test_a_command_reads_tokens_and_a_clients_secret_from_the_properties_of_kafkas_tools(tmp_path):
    file = tmp_path / "token"
    file.write_text(token())
    security = security_of(TOKEN | {TOKEN_URL: file.as_uri(), "sasl.jaas.config": OAUTH})
    assert security.sasl.get_token() == file.read_text()
    properties = TOKEN | {
        TOKEN_URL: "https://id.example/token",
        "sasl.login.callback.handler.class": KAFKAS_HANDLER,
        "sasl.jaas.config": OAUTH + 'clientId="a" clientSecret="very-secret" scope="s";',
    }
    security = security_of(properties)
    assert security.sasl.mechanism == "OAUTHBEARER"
    assert "very-secret" not in repr(security)
    both = properties | {"sasl.oauthbearer.client.credentials.client.id": "a"}
    with pytest.raises(TlsSettingError, match="both given"):
        security_of(both)


def test_a_command_reads_user_and_trust_store_from_a_file_of_client_properties(tmp_path):
    Authority().write(tmp_path / "ca.pem")
    file = tmp_path / "client.properties"
    file.write_text(
        "security.protocol=SASL_SSL\n"
        f"ssl.truststore.location={tmp_path / 'ca.pem'}\n"
        "sasl.mechanism=SCRAM-SHA-512\n"
        "sasl.jaas.config=org.apache.kafka.common.security.scram.ScramLoginModule required \\\n"
        '    username="alice" password="x y";\n'
    )
    security = read_command_config(file)
    assert security.sasl.user == "alice"
    assert "x y" not in repr(security)
    with pytest.raises(CommandConfigError, match="nowhere"):
        read_command_config(tmp_path / "nowhere")


def test_a_controller_serves_every_listener_of_controller_listener_names():
    config = parse_config(
        {
            **GOOD,
            "controller.listener.names": "CONTROLLER,SECURE",
            "listeners": "CONTROLLER://127.0.0.1:9094,SECURE://127.0.0.1:9194",
            "listener.security.protocol.map": "SECURE:SASL_SSL",
            "sasl.enabled.mechanisms": "PLAIN",
            "listener.name.secure.plain.sasl.jaas.config": PLAIN + 'user_n="x";',
            "ssl.keystore.location": "/etc/server.pem",
        }
    )
    assert config.addresses.controller.name == "CONTROLLER"
    (further,) = config.addresses.further_controllers
    assert (further.name, further.protocol, further.bind.port) == ("SECURE", "SASL_SSL", 9194)
    assert config.addresses.controller_protocol == "PLAINTEXT"


def test_a_second_controller_listener_beyond_loopback_requires_authentication_too():
    with pytest.raises(ConfigError, match=INSECURE):
        parse_config(
            {
                **GOOD,
                "controller.listener.names": "CONTROLLER,OTHER",
                "listeners": "CONTROLLER://127.0.0.1:9094,OTHER://10.0.0.1:9194",
            }
        )
