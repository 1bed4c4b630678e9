"""The security of a command's connections, from a file with Kafka's client properties.

    security.protocol=SASL_SSL
    ssl.truststore.location=/etc/esker/ca.pem
    sasl.mechanism=SCRAM-SHA-512
    sasl.jaas.config=org.apache.kafka.common.security.scram.ScramLoginModule required \\
        username="alice" password="...";

Source: Apache Kafka 4.3, Configuration of clients; docs/design/security.md#transport.
"""

from __future__ import annotations

from pathlib import Path

from esker.settings.properties import PropertiesError, read_properties
from raft.net.certificates import TlsSettingError
from raft.net.client_properties import security_of
from raft.net.security import OutgoingSecurity


class CommandConfigError(Exception):
    """A file of client properties cannot be used; the message names the file and the property."""


def read_command_config(path: Path) -> OutgoingSecurity | None:
    """Read the security of a command's connections. Raises CommandConfigError."""
    try:
        return security_of(read_properties(path))
    except PropertiesError as error:
        raise CommandConfigError(str(error)) from None
    except OSError as error:
        raise CommandConfigError(f"{path}: {error.strerror}") from None
    except TlsSettingError as error:
        raise CommandConfigError(f"{path}: {error.key}: {error}") from None
