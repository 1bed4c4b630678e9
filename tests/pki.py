"""A small certificate authority for tests: one CA, and certificates that it signs."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    NoEncryption,
    PrivateFormat,
    pkcs12,
)


@dataclass
class Identity:
    """A key with its certificate."""

    key: ec.EllipticCurvePrivateKey
    certificate: x509.Certificate

    @property
    def pem(self) -> bytes:
        return self.key.private_bytes(
            Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()
        ) + self.certificate.public_bytes(Encoding.PEM)

    def write(self, path: Path) -> Path:
        path.write_bytes(self.pem)
        return path

    def write_pkcs12(self, path: Path, password: str, ca: x509.Certificate) -> Path:
        path.write_bytes(
            pkcs12.serialize_key_and_certificates(
                b"esker",
                self.key,
                self.certificate,
                [ca],
                BestAvailableEncryption(password.encode()),
            )
        )
        return path


def _name(common: str, organisation: str = "Esker") -> x509.Name:
    return x509.Name(
        [
            x509.NameAttribute(x509.NameOID.ORGANIZATION_NAME, organisation),
            x509.NameAttribute(x509.NameOID.COMMON_NAME, common),
        ]
    )


class Authority:
    """A CA whose certificates are valid from an hour ago."""

    def __init__(self, common: str = "test CA") -> None:
        self.key = ec.generate_private_key(ec.SECP256R1())
        self.certificate = (
            self._builder(_name(common), self.key, timedelta(days=30), _name(common))
            .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
            .sign(self.key, hashes.SHA256())
        )

    def _builder(self, subject, key, valid, issuer):
        now = datetime.now(UTC)
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(issuer)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - timedelta(hours=1))
            .not_valid_after(now + valid)
        )

    def issue(
        self,
        common: str,
        *,
        hosts: tuple[str, ...] = ("localhost", "127.0.0.1"),
        valid: timedelta = timedelta(days=1),
    ) -> Identity:
        key = ec.generate_private_key(ec.SECP256R1())
        names: list[x509.GeneralName] = []
        for host in hosts:
            if host.startswith("esker:"):
                names.append(x509.UniformResourceIdentifier(host))
                continue
            try:
                names.append(x509.IPAddress(ipaddress.ip_address(host)))
            except ValueError:
                names.append(x509.DNSName(host))
        builder = self._builder(_name(common), key, valid, self.certificate.subject)
        if names:
            builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
        return Identity(key, builder.sign(self.key, hashes.SHA256()))

    def write(self, path: Path) -> Path:
        path.write_bytes(self.certificate.public_bytes(Encoding.PEM))
        return path
