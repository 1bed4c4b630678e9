"""This process's settings as text, for DescribeConfigs of a broker.

Source: KIP-133 (DescribeConfigs of a broker).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from coordinator.controller.config_defs import ConfigType
from diskless.apis.configs import OwnSetting
from esker.settings import SETTINGS
from esker.settings.security import is_secret

SECRET_WORDS: Final = ("password", "secret")
"""A key that has one in its name is told without its value."""


def own_settings(given: Mapping[str, str]) -> tuple[OwnSetting, ...]:
    """Return all settings of this process, given or default, sorted by key.

    Args:  given: what stood in the node's file.
    """
    return tuple(
        OwnSetting(
            key,
            given.get(key, SETTINGS[key].default_text),
            SETTINGS[key].default_text,
            _type(SETTINGS[key].default),
            SETTINGS[key].help,
            is_secret(key) or any(word in key for word in SECRET_WORDS),
        )
        for key in sorted(SETTINGS)
    )


def _type(default: Any) -> ConfigType:
    match default:
        case bool():
            return ConfigType.BOOLEAN
        case int():
            return ConfigType.LONG
        case float():
            return ConfigType.DOUBLE
        case Mapping() | tuple():
            return ConfigType.LIST
        case _:
            return ConfigType.STRING
