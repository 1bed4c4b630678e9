"""Opens the store whose class `diskless.storage.class.name` names by its import path.

The class's `configured(values)` makes a store from the node's parsed settings by name. A custom
class reads the settings that it needs (its region and bucket may use the names of the built-in
ones), or the environment.

Source: KIP-1163, diskless.storage.class.name (there a Configurable, given all properties).
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Any, Final, Protocol

from diskless.stores.interface import ObjectStorage, StoreSettingError

CLASS_NAME: Final = "diskless.storage.class.name"
DIRECTORY: Final = "diskless.stores.directory.DirectoryStorage"


class ConfigurableStorage(Protocol):
    """A class that makes a store from settings."""

    def configured(self, values: Mapping[str, Any]) -> ObjectStorage:
        """Create an object store from a mapping of setting names to parsed values.

        Raises StoreSettingError.
        """


def find_class(name: str) -> ConfigurableStorage:
    """Import and return the object store class at this import path.

    Raises StoreSettingError.

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
    """Open the object store that these settings name.

    Args:    values: parsed settings by key, at least `diskless.storage.class.name`.
    Raises:  StoreSettingError naming the key.
    """
    return find_class(values[CLASS_NAME]).configured(values)
