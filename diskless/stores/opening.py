"""A store by the import path of its class: ours, or anybody's.

`diskless.storage.class.name` names a class; its `configured(values)` makes a store from the node's
settings, parsed, by their keys. A class of one's own takes what it needs from there (its region and
bucket may have the names ours have), or from the environment.

Source: KIP-1163, diskless.storage.class.name (there a Configurable, given all properties).
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Any, Final, Protocol

from diskless.stores.interface import ObjectStorage, StoreSettingError

CLASS_NAME: Final = "diskless.storage.class.name"


class ConfigurableStorage(Protocol):
    """A class that stores objects."""

    def configured(self, values: Mapping[str, Any]) -> ObjectStorage:
        """A store as these settings say. Raises StoreSettingError."""


def find_class(name: str) -> ConfigurableStorage:
    """The class of this import path. Raises StoreSettingError.

    >>> find_class("diskless.stores.directory.DirectoryStorage").__name__
    'DirectoryStorage'
    >>> find_class("nowhere.Store")
    Traceback (most recent call last):
    diskless.stores.interface.StoreSettingError: diskless.storage.class.name: no module nowhere
    """
    module_name, _, class_name = name.rpartition(".")
    try:
        module = import_module(module_name)
    except (ImportError, ValueError) as error:
        missing = getattr(error, "name", None) or module_name
        raise StoreSettingError(CLASS_NAME, f"no module {missing}") from error
    found = getattr(module, class_name, None)
    if found is None or not callable(getattr(found, "configured", None)):
        reason = f"{module_name} has no class {class_name} with a method `configured`"
        raise StoreSettingError(CLASS_NAME, reason)
    return found  # type: ignore[no-any-return]


def open_store(values: Mapping[str, Any]) -> ObjectStorage:
    """The store that these settings name.

    Args:    values: parsed settings by key, at least `diskless.storage.class.name`.
    Raises:  StoreSettingError naming the key.
    """
    return find_class(values[CLASS_NAME]).configured(values)
