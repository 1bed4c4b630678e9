"""The error of all data sources here for an option that cannot be used."""

from __future__ import annotations

from collections.abc import Mapping


class OptionError(ValueError):
    """An option is missing, unknown or impossible. The message names it."""


def check_security(security: Mapping[str, str]) -> None:
    """Raise OptionError unless connections can be made as the properties say."""
    if not security:
        return
    # Imported here, because it is a third of the time that tasks take to start, and few need it.
    from raft.net.certificates import TlsSettingError
    from raft.net.client_properties import security_of

    try:
        security_of(security)
    except TlsSettingError as error:
        raise OptionError(f"kafka.{error.key}: {error}") from None
