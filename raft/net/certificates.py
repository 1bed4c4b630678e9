"""Keys, certificates and trust of TLS, from Kafka's `ssl.*` properties.

    tls = TlsContexts(TlsSettings.of(properties), server=True)
    tls.current()          # an SSLContext; a new one once a file has changed
    tls.identify(ssl_object)   # the peer's principal, and when its certificate expires

PEM, as files or as text in the properties, and PKCS12 are read; JKS is not, because it is Java's
alone: `keytool -importkeystore -deststoretype pkcs12` converts it.

A file that was replaced is read again before the next handshake, at most once a second. If the new
files cannot be used, the old context goes on and `failure` says why: a renewal that went wrong must
not shut out everybody at once.

Source: KIP-651 (PEM), KIP-371 (principal mapping rules); upstream's SslConfigs, SslPrincipalMapper.
"""

from __future__ import annotations

import logging
import os
import re
import ssl
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Final

from raft.net.identity import NODE_URI, normal_host
from raft.net.principal import ANONYMOUS, USER, Principal

if TYPE_CHECKING:
    from cryptography.x509 import Certificate

log = logging.getLogger("raft.net")

MAX_FILE_BYTES: Final = 1024 * 1024
CHECK_S: Final = 1.0  # between two looks at the files

PROTOCOLS: Final = {
    "TLSv1.2": ssl.TLSVersion.TLSv1_2,
    "TLSv1.3": ssl.TLSVersion.TLSv1_3,
}
CLIENT_AUTH: Final = {
    "none": ssl.CERT_NONE,
    "requested": ssl.CERT_OPTIONAL,
    "required": ssl.CERT_REQUIRED,
}
NO_JKS: Final = (
    "JKS is not supported: convert it with `keytool -importkeystore -deststoretype pkcs12`, or use "
    "PEM"
)
_JKS_MAGIC: Final = b"\xfe\xed\xfe\xed"


class TlsSettingError(ValueError):
    """A property of TLS that cannot be used; names the property."""

    def __init__(self, key: str, message: str) -> None:
        super().__init__(message)
        self.key = key


@dataclass(frozen=True, slots=True)
class Store:
    """A key store or trust store: a file of one type, or PEM text."""

    purpose: str  # "keystore" or "truststore"
    kind: str = ""  # PEM, PKCS12, or empty: found out from the file's first bytes
    path: Path | None = None
    password: str | None = field(default=None, repr=False)
    pem: str = field(default="", repr=False)  # instead of a file

    def key(self, name: str) -> str:
        """Return the property of this store that ends with `name`, as `ssl.keystore.password`."""
        return f"ssl.{self.purpose}.{name}"

    def read(self) -> bytes:
        """Return the bytes of the key store or trust store. Raises TlsSettingError."""
        if self.path is None:
            return self.pem.encode()
        try:
            with self.path.open("rb") as file:
                data = file.read(MAX_FILE_BYTES + 1)
        except OSError as error:
            reason = f"{self.path}: {error.strerror}"
            raise TlsSettingError(self.key("location"), reason) from None
        if len(data) > MAX_FILE_BYTES:
            raise TlsSettingError(
                self.key("location"), f"{self.path}: is longer than {MAX_FILE_BYTES} bytes"
            )
        return data

    def as_pem(self, data: bytes) -> bytes:
        """Return a store's bytes as PEM text, converted from PKCS12 if necessary.

        Raises:  TlsSettingError.
        """
        where = str(self.path) if self.path is not None else "the text"
        kind = self.kind.upper() or ("PEM" if b"-----BEGIN" in data else "PKCS12")
        if data.startswith(_JKS_MAGIC) or kind == "JKS":
            raise TlsSettingError(self.key("type"), f"{where}: {NO_JKS}")
        if kind == "PEM":
            if b"-----BEGIN" not in data:
                raise TlsSettingError(self.key("location"), f"{where}: is no PEM file")
            return data
        from cryptography.hazmat.primitives.serialization import (
            Encoding,
            NoEncryption,
            PrivateFormat,
            pkcs12,
        )

        password = None if self.password is None else self.password.encode()
        try:
            found = pkcs12.load_pkcs12(data, password)
        except ValueError:
            expected = "a PKCS12 file" if self.kind else "a PEM or PKCS12 file"
            raise TlsSettingError(
                self.key("location"), f"{where}: is not {expected}, or the password is wrong"
            ) from None
        parts = []
        if found.key is not None and self.purpose == "keystore":
            parts.append(found.key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
        certificates = [found.cert] if found.cert is not None else []
        certificates += found.additional_certs
        parts += [one.certificate.public_bytes(Encoding.PEM) for one in certificates]
        return b"".join(parts)


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsSettings:
    """The properties of one side's TLS, by Kafka's names."""

    keystore: Store | None
    truststore: Store | None
    key_password: str | None = field(default=None, repr=False)
    protocols: tuple[str, ...] = ("TLSv1.2", "TLSv1.3")
    client_auth: str = "none"
    mapping_rules: str = "DEFAULT"
    check_hostname: bool = True

    @classmethod
    def of(cls, properties: Mapping[str, str]) -> TlsSettings:
        """Read TLS settings from properties. Raises TlsSettingError."""
        enabled = properties.get("ssl.enabled.protocols", "") or "TLSv1.2,TLSv1.3"
        protocols = tuple(part.strip() for part in enabled.split(",") if part.strip())
        for protocol in protocols:
            if protocol not in PROTOCOLS:
                raise TlsSettingError(
                    "ssl.enabled.protocols", f"{protocol[:40]!r} is none of {', '.join(PROTOCOLS)}"
                )
        client_auth = properties.get("ssl.client.auth", "") or "none"
        if client_auth not in CLIENT_AUTH:
            raise TlsSettingError(
                "ssl.client.auth", f"{client_auth[:40]!r} is none of {', '.join(CLIENT_AUTH)}"
            )
        algorithm = properties.get("ssl.endpoint.identification.algorithm", "https")
        if algorithm.lower() not in ("https", ""):
            raise TlsSettingError(
                "ssl.endpoint.identification.algorithm", f"{algorithm[:40]!r} is not https or empty"
            )
        rules = properties.get("ssl.principal.mapping.rules", "") or "DEFAULT"
        PrincipalMapper(rules)
        return cls(
            keystore=_store(properties, "keystore"),
            truststore=_store(properties, "truststore"),
            key_password=properties.get("ssl.key.password") or None,
            protocols=protocols,
            client_auth=client_auth,
            mapping_rules=rules,
            check_hostname=algorithm.lower() == "https",
        )

    def context(self, *, server: bool) -> ssl.SSLContext:
        """Read all certificate files and return a new TLS context. Raises TlsSettingError."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER if server else ssl.PROTOCOL_TLS_CLIENT)
        versions = [PROTOCOLS[protocol] for protocol in self.protocols]
        context.minimum_version, context.maximum_version = min(versions), max(versions)
        context.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_NO_TICKET | ssl.OP_NO_COMPRESSION
        if server:
            context.num_tickets = 0  # connections live long: none is resumed
            context.verify_mode = CLIENT_AUTH[self.client_auth]
            if self.keystore is None:
                raise TlsSettingError("ssl.keystore.location", "must be set for TLS")
            if self.truststore is None and context.verify_mode != ssl.CERT_NONE:
                raise TlsSettingError(
                    "ssl.truststore.location", "must be set: it says whose certificates are valid"
                )
        else:
            context.check_hostname = self.check_hostname
        if self.keystore is not None:
            self._load_key(context, self.keystore)
        if self.truststore is not None:
            self._load_trust(context, self.truststore)
        elif not server:
            context.load_default_certs()
        return context

    def _load_key(self, context: ssl.SSLContext, store: Store) -> None:
        pem = store.as_pem(store.read())
        password = self.key_password or store.password or ""
        descriptor, name = tempfile.mkstemp(suffix=".pem")  # OpenSSL reads keys from files alone
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(pem)
            context.load_cert_chain(name, password=lambda: password)
        except (ssl.SSLError, ValueError) as error:
            reason = getattr(error, "reason", None) or str(error)
            raise TlsSettingError(
                store.key("location"),
                f"{store.path or 'the text'}: holds no usable key with its certificate, or "
                f"ssl.key.password is wrong ({reason})",
            ) from None
        finally:
            Path(name).unlink()

    def _load_trust(self, context: ssl.SSLContext, store: Store) -> None:
        pem = store.as_pem(store.read())
        try:
            context.load_verify_locations(cadata=pem.decode())
        except (ssl.SSLError, ValueError) as error:
            raise TlsSettingError(
                store.key("location"),
                f"{store.path or 'the text'}: holds no certificates ({error})",
            ) from None
        context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN  # a trusted certificate, as in Java

    @property
    def files(self) -> tuple[Path, ...]:
        """Return the paths of the files from which the TLS context is made."""
        stores = (self.keystore, self.truststore)
        return tuple(store.path for store in stores if store is not None and store.path is not None)


def _store(properties: Mapping[str, str], purpose: str) -> Store | None:
    location = properties.get(f"ssl.{purpose}.location", "")
    kind = properties.get(f"ssl.{purpose}.type", "")
    if kind.upper() not in ("", "PEM", "PKCS12", "JKS"):
        raise TlsSettingError(f"ssl.{purpose}.type", f"{kind[:40]!r} is neither PEM nor PKCS12")
    if kind.upper() == "JKS":
        raise TlsSettingError(f"ssl.{purpose}.type", NO_JKS)
    if purpose == "keystore":
        chain = properties.get("ssl.keystore.certificate.chain", "")
        key = properties.get("ssl.keystore.key", "")
        if bool(chain) != bool(key):
            raise TlsSettingError(
                "ssl.keystore.key", "and ssl.keystore.certificate.chain are given together"
            )
        pem = f"{key}\n{chain}\n" if key else ""
    else:
        pem = properties.get("ssl.truststore.certificates", "")
    if location and pem:
        raise TlsSettingError(f"ssl.{purpose}.location", "is given, and PEM text besides: give one")
    if not location and not pem:
        return None
    return Store(
        purpose=purpose,
        kind=kind,
        path=Path(location) if location else None,
        password=properties.get(f"ssl.{purpose}.password") or None,
        pem=pem,
    )


class TlsContexts:
    """The newest SSL context of one listener, or of one process's outgoing connections."""

    def __init__(
        self,
        settings: TlsSettings,
        *,
        server: bool,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """Read the certificate files and build the first TLS context. Raises TlsSettingError."""
        self.settings = settings
        self.failure: str | None = None  # of the last attempt to read changed files
        self.reloads = 0
        self._server = server
        self._monotonic = monotonic
        self._mapper = PrincipalMapper(settings.mapping_rules)
        self._seen = self._look()
        self._looked_at = monotonic()
        self._context = settings.context(server=server)
        self.expires_at = self._expiry()

    def current(self) -> ssl.SSLContext:
        """Return the newest TLS context, rebuilt if its files have changed and are usable."""
        now = self._monotonic()
        if now - self._looked_at < CHECK_S:
            return self._context
        self._looked_at = now
        seen = self._look()
        if seen == self._seen:
            return self._context
        self._seen = seen
        try:
            self._context = self.settings.context(server=self._server)
            self.expires_at, self.failure = self._expiry(), None
            self.reloads += 1
            log.info("tls=reloaded expires_at=%s", self.expires_at)
        except TlsSettingError as error:
            self.failure = f"{error.key}: {error}"
            log.warning("tls=kept reason=%r", self.failure)
        return self._context

    def identify(self, tls: ssl.SSLObject) -> tuple[Principal, frozenset[str], float | None]:
        """Return a peer's principal, and its certificate's names and expiry.

        The expiry is in Unix seconds, or None without a certificate.

        Raises:  ValueError if no mapping rule applies to the certificate's subject.
        """
        der = tls.getpeercert(binary_form=True)
        if der is None:
            return ANONYMOUS, frozenset(), None
        from cryptography import x509

        certificate = x509.load_der_x509_certificate(der)
        name = self._mapper.name(subject(certificate))
        expires_at = certificate.not_valid_after_utc.timestamp()
        return Principal(USER, name), names_of(certificate), expires_at

    def _look(self) -> tuple[tuple[int, int, int] | None, ...]:
        """Return each TLS file's modification time, size and inode, to detect a new file."""
        seen: list[tuple[int, int, int] | None] = []
        for path in self.settings.files:
            try:
                found = path.stat()
                seen.append((found.st_mtime_ns, found.st_size, found.st_ino))
            except OSError:
                seen.append(None)
        return tuple(seen)

    def _expiry(self) -> float | None:
        """Return when this node's certificate expires, in Unix seconds, or None without one."""
        store = self.settings.keystore
        if store is None:
            return None
        from cryptography import x509

        try:
            certificates = x509.load_pem_x509_certificates(store.as_pem(store.read()))
        except ValueError:
            return None
        return certificates[0].not_valid_after_utc.timestamp()


def subject(certificate: Certificate) -> str:
    """Return a certificate's subject as Java writes it: most specific part first."""
    return certificate.subject.rfc4514_string()


def names_of(certificate: Certificate) -> frozenset[str]:
    """Return the hosts and the `esker:node:` URIs of a certificate; a wildcard names no host."""
    from cryptography import x509

    try:
        extension = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName)
    except (x509.ExtensionNotFound, ValueError):
        return frozenset()
    names = extension.value
    hosts = names.get_values_for_type(x509.DNSName)
    addresses = map(str, names.get_values_for_type(x509.IPAddress))
    uris = names.get_values_for_type(x509.UniformResourceIdentifier)
    return frozenset(
        {normal_host(host) for host in (*hosts, *addresses) if "*" not in host}
        | {uri for uri in uris if uri.startswith(NODE_URI)}
    )


_RULE: Final = re.compile(r"\s*(?:(DEFAULT)|RULE:((?:\\.|[^\\/])*)/((?:\\.|[^\\/])*)/([LU]?))\s*")


class PrincipalMapper:
    """Maps a certificate's subject to a name by `ssl.principal.mapping.rules`."""

    def __init__(self, rules: str) -> None:
        """Parse the rules that map certificate subjects to names. Raises TlsSettingError.

        >>> PrincipalMapper("RULE:^CN=([^,]*),.*$/$1/L,DEFAULT").name("CN=Alice,O=x")
        'alice'
        """
        self._rules: list[tuple[re.Pattern[str], str, str] | None] = []
        key, at = "ssl.principal.mapping.rules", 0
        while at < len(rules):
            found = _RULE.match(rules, at)
            if found is None:
                raise TlsSettingError(key, f"Invalid rule: {rules[at : at + 80]!r}")
            if found[1]:
                self._rules.append(None)
            else:
                replacement = re.sub(r"\$(\d+)", r"\\g<\1>", found[3])
                try:
                    self._rules.append((re.compile(found[2]), replacement, found[4]))
                except re.error as error:
                    raise TlsSettingError(key, f"Invalid rule: {error}") from None
            at = found.end()
            if at < len(rules):
                if rules[at] != ",":
                    raise TlsSettingError(key, f"Invalid rule: {rules[at : at + 80]!r}")
                at += 1

    def name(self, subject: str) -> str:
        """Return the name that the first rule matching a subject gives. Raises ValueError."""
        for rule in self._rules:
            if rule is None:
                return subject
            pattern, replacement, case = rule
            found = pattern.fullmatch(subject)
            if found is not None:
                try:
                    name = found.expand(replacement)
                except (re.error, IndexError) as error:
                    raise ValueError(f"a mapping rule cannot be applied: {error}") from None
                return name.lower() if case == "L" else name.upper() if case == "U" else name
        raise ValueError(f"no rule of ssl.principal.mapping.rules applies to {subject[:200]!r}")


def utc(seconds: float) -> str:
    """Return a time in Unix seconds as text in UTC."""
    return datetime.fromtimestamp(seconds, UTC).isoformat()
