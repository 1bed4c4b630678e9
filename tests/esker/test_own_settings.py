"""What a broker says of its own configuration. KIP-133."""

from __future__ import annotations

from coordinator.controller.config_defs import ConfigType
from esker.server.own_settings import own_settings
from esker.settings import SETTINGS


def test_every_setting_of_a_process_is_described_once_with_its_default() -> None:
    own = {setting.name: setting for setting in own_settings({"node.id": "7"})}
    assert set(own) == set(SETTINGS)
    assert (own["node.id"].value, own["node.id"].is_default) == ("7", False)
    unset = own["num.partitions"]
    assert (unset.value, unset.is_default, unset.type) == ("1", True, ConfigType.LONG)
    assert own["auto.create.topics.enable"].value == "true"
    assert all(setting.about for setting in own.values())


def test_a_process_describes_exactly_its_passwords_and_keys_as_sensitive_settings() -> None:
    assert [setting.name for setting in own_settings({}) if setting.is_sensitive] == [
        "sasl.oauthbearer.client.credentials.client.secret",
        "ssl.key.password",
        "ssl.keystore.key",
        "ssl.keystore.password",
        "ssl.truststore.password",
    ]
