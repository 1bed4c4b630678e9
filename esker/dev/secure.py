"""The certificates, users and client settings of `esker dev --secure`.

    DIR/security/ca.pem             the CA's certificate; its key is dropped
    DIR/security/node.pem           the nodes' key and certificate, for 127.0.0.1 and localhost
    DIR/security/client.properties  what clients, Kafka's tools and `--command-config` need: the
                                    first user, `admin`, and its password

Made once, and used by every later start. All listeners are SASL_SSL: clients authenticate by PLAIN
as `admin`, or by SCRAM as users that `admin` creates; nodes by PLAIN.

Source: docs/security.md.
"""

from __future__ import annotations

import ipaddress
import os
import secrets
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

from esker.settings.properties import read_properties
from raft.net.jaas import parse_jaas

SECURITY: Final = "security"
LISTENER: Final = "SASL_SSL"
CLIENT: Final = "client.properties"
USER: Final = "admin"
DAYS: Final = 3_650
_MODULE: Final = "org.apache.kafka.common.security.plain.PlainLoginModule required"


@dataclass(frozen=True, slots=True)
class DevSecurity:
    """The secured listeners of a dev cluster."""

    client_file: Path
    settings: dict[str, str]  # of every node


def secure(directory: Path) -> DevSecurity:
    """Return the TLS and SASL files of a dev cluster, creating missing files. Raises OSError."""
    home = directory / SECURITY
    home.mkdir(mode=0o700, exist_ok=True)
    client = home / CLIENT
    if not client.exists():
        _write_certificates(home)
        _write_secret(client, _client_properties(home, secrets.token_urlsafe(18)).encode())
    password = parse_jaas(read_properties(client)["sasl.jaas.config"])["password"]
    node = f'{_MODULE} username="node" password="{password}" user_node="{password}";'
    settings = {
        "listener.security.protocol.map": f"CONTROLLER:SASL_SSL,{LISTENER}:SASL_SSL",
        "ssl.keystore.location": str(home / "node.pem"),
        "ssl.truststore.location": str(home / "ca.pem"),
        "listener.name.controller.sasl.enabled.mechanisms": "PLAIN",
        "listener.name.controller.plain.sasl.jaas.config": node,
        "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512",
        f"listener.name.{LISTENER.lower()}.plain.sasl.jaas.config": (
            f'{_MODULE} user_{USER}="{password}";'
        ),
    }
    return DevSecurity(client, settings)


def _client_properties(home: Path, password: str) -> str:
    return (
        "security.protocol=SASL_SSL\n"
        f"ssl.truststore.location={home / 'ca.pem'}\n"
        "ssl.truststore.type=PEM\n"
        "sasl.mechanism=PLAIN\n"
        f'sasl.jaas.config={_MODULE} username="{USER}" password="{password}";\n'
    )


def _write_secret(path: Path, data: bytes) -> None:
    """Replace a file atomically by one that only its owner can read."""
    temporary = path.with_suffix(".tmp")
    temporary.unlink(missing_ok=True)
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(data)
    temporary.rename(path)


def _write_certificates(home: Path) -> None:
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

    def name(text: str) -> x509.Name:
        return x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, text)])

    now, issuer = datetime.now(UTC), name("esker dev CA")
    ca_key, key = (ec.generate_private_key(ec.SECP256R1()) for _ in range(2))

    def builder(subject: x509.Name, own: ec.EllipticCurvePrivateKey) -> x509.CertificateBuilder:
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(issuer)
            .public_key(own.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - timedelta(hours=1))
            .not_valid_after(now + timedelta(days=DAYS))
        )

    ca = builder(issuer, ca_key).add_extension(
        x509.BasicConstraints(ca=True, path_length=0), critical=True
    )
    hosts = x509.SubjectAlternativeName(
        [x509.DNSName("localhost"), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]
    )
    node = builder(name("esker dev node"), key).add_extension(hosts, critical=False)
    private = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    signed = node.sign(ca_key, hashes.SHA256()).public_bytes(Encoding.PEM)
    _write_secret(home / "node.pem", private + signed)
    (home / "ca.pem").write_bytes(ca.sign(ca_key, hashes.SHA256()).public_bytes(Encoding.PEM))
