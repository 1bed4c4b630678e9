"""Answers whether a client may do something, from the newest complete table of access control.

    table = AccessTable(settings, lambda: cluster.image, is_complete=...)
    access = table.of("User:ann", "10.0.0.7")
    access.allows(Operation.READ, ResourceType.TOPIC, "orders")

An `Access` is one client's view of the table: its principal and its address. It keeps what was
decided, until the access control entries change. So a decision costs a look into a dictionary.

The trap: an image that is not complete yet has few entries, or none, and with
`allow.everyone.if.no.acl.found` that is an open door. The table is taken from complete images only:
before the first one only super users pass, and a replica that begins anew keeps the table.

A denial is logged at info, once for each client, operation and resource while the entries stay the
same. At most `LINES_PER_S` lines a second are written; the next line says how many were left out.

Source: KIP-11, KIP-430 (authorized operations), KIP-679 (any topic), KIP-801;
docs/design/security.md#authorizer.
"""

from __future__ import annotations

import ipaddress
import logging
import time
from collections.abc import Callable, Iterable
from typing import Final, NamedTuple

from coordinator.controller.authorizer import (
    CLUSTER_NAME,
    Authorizer,
    Decider,
    Operation,
    ResourceType,
)
from coordinator.controller.image import MetadataImage
from coordinator.controller.security import Security
from raft.net.principal import Principal

log = logging.getLogger("esker.audit")

MAX_CLIENTS: Final = 10_000
"""Pairs of principal and address whose decisions are kept."""

MAX_DECISIONS: Final = 200_000
"""Decisions that are kept, of all clients together: some thirty megabytes."""

LINES_PER_S: Final = 100
MAX_LOGGED: Final = 249  # characters of a name in a log line: the longest name of a topic

OPERATIONS: Final = {
    ResourceType.TOPIC: (
        Operation.READ,
        Operation.WRITE,
        Operation.CREATE,
        Operation.DESCRIBE,
        Operation.DELETE,
        Operation.ALTER,
        Operation.DESCRIBE_CONFIGS,
        Operation.ALTER_CONFIGS,
    ),
    ResourceType.GROUP: (
        Operation.READ,
        Operation.DESCRIBE,
        Operation.DELETE,
        Operation.DESCRIBE_CONFIGS,
        Operation.ALTER_CONFIGS,
    ),
    ResourceType.CLUSTER: (
        Operation.CREATE,
        Operation.CLUSTER_ACTION,
        Operation.DESCRIBE_CONFIGS,
        Operation.ALTER_CONFIGS,
        Operation.IDEMPOTENT_WRITE,
        Operation.ALTER,
        Operation.DESCRIBE,
    ),
}
"""The operations that a response can list. Source: upstream's AclEntry.supportedOperations."""


class AccessSettings(NamedTuple):
    """The settings of the authorizer."""

    super_users: frozenset[str]  # as TYPE:NAME
    allow_everyone: bool  # allow.everyone.if.no.acl.found


class Client(NamedTuple):
    """The client of a request: whom it has proved to be, and its address."""

    principal: Principal
    host: str
    client_id: str = ""
    version: int | None = None  # of the request as the client sent it; None: as it is forwarded

    def __str__(self) -> str:
        return f"{self.principal}@{self.host}"


class Access:
    """What one client may do. Valid until its table changes."""

    __slots__ = ("_authorizer", "_decided", "_logged", "_on_any", "_table", "client", "principal")

    def __init__(self, table: AccessTable, authorizer: Authorizer, client: Client) -> None:
        self.client = client
        self.principal = str(client.principal)
        self._table = table
        self._authorizer = authorizer
        self._decided: dict[tuple[int, int], tuple[dict[str, bool], Decider]] = {}
        self._logged: set[tuple[int, int, str]] = set()  # denials in the audit log
        self._on_any: dict[tuple[int, int], bool] = {}

    def allows(
        self, operation: Operation, kind: ResourceType, name: str, *, logs: bool = True
    ) -> bool:
        """Return whether the client may do an operation on a resource.

        Args:  logs: whether a denial is written to the audit log.
        """
        known, decide = self._decisions(operation, kind)
        allowed = known.get(name)
        if allowed is None:
            allowed = known[name] = decide(name)
            self._table.count_decisions(1)
        if not allowed and logs:
            self._log_denial(operation, kind, name)
        return allowed

    def denied(
        self, operation: Operation, kind: ResourceType, names: Iterable[str | None]
    ) -> list[int]:
        """Return the indexes of the resources on which the client may not do an operation.

        It decides as `allows` does, in a third of the time. None stands for no name, and passes.
        """
        known, decide = self._decisions(operation, kind)
        before, denied = len(known), []
        get = known.get
        for index, name in enumerate(names):
            if name is None:
                continue
            allowed = get(name)
            if allowed is None:
                allowed = known[name] = decide(name)
            if not allowed:
                self._log_denial(operation, kind, name)
                denied.append(index)
        self._table.count_decisions(len(known) - before)
        return denied

    def _decisions(
        self, operation: Operation, kind: ResourceType
    ) -> tuple[dict[str, bool], Decider]:
        """Return what was decided about the names of resources, and what decides about others."""
        found = self._decided.get((operation, kind))
        if found is None:
            decide = self._authorizer.decider(self.principal, self.client.host, operation, kind)
            found = self._decided[operation, kind] = ({}, decide)
        return found

    def _log_denial(self, operation: Operation, kind: ResourceType, name: str) -> None:
        """Write a denial to the audit log, unless it is there."""
        key = (operation, kind, name)
        if key not in self._logged:
            self._logged.add(key)
            self._table.log_denial(self.client, key)

    def allows_cluster(self, operation: Operation, *, logs: bool = True) -> bool:
        """Return whether the client may do an operation on the cluster."""
        return self.allows(operation, ResourceType.CLUSTER, CLUSTER_NAME, logs=logs)

    def allows_any(self, operation: Operation, kind: ResourceType) -> bool:
        """Return whether the client may do an operation on at least one resource of a type."""
        known = self._on_any.get((operation, kind))
        if known is None:
            host = self.client.host
            known = self._authorizer.is_allowed_on_any(self.principal, host, operation, kind)
            self._on_any[operation, kind] = known
        return known

    def operations(self, kind: ResourceType, name: str = CLUSTER_NAME) -> int:
        """Return the operations that the client may do on a resource, as a set of bits."""
        return sum(
            1 << operation
            for operation in OPERATIONS[kind]
            if self.allows(operation, kind, name, logs=False)
        )


class AccessTable:
    """The access control entries of the newest complete image, and who asked for what."""

    def __init__(
        self,
        settings: AccessSettings,
        image: Callable[[], MetadataImage],
        is_complete: Callable[[], bool],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Create a table that lets in super users only, until an image is complete.

        Args:  is_complete: whether the image has reached the high watermark of its log.
               clock: seconds, for the number of lines in the audit log.
        """
        self._settings = settings
        self._image = image
        self._is_complete = is_complete
        self._clock = clock
        self._security: Security | None = None  # that the authorizer was made of
        self._authorizer = Authorizer(super_users=settings.super_users)
        self._clients: dict[Client, Access] = {}
        self._decisions = 0
        self._lines_left = LINES_PER_S
        self._lines_since = 0.0
        self._left_out = 0
        self.denials = 0  # written to the audit log, or left out of it

    def of(self, principal: Principal, host: str) -> Access:
        """Return what a client may do, by the newest complete table."""
        security = self._image().security
        known = self._security
        if (known is None or security.acls is not known.acls) and self._is_complete():
            self._take(security)
        client = Client(principal, host)
        access = self._clients.get(client)
        if access is None:
            if len(self._clients) >= MAX_CLIENTS or self._decisions >= MAX_DECISIONS:
                self._forget()
            access = self._clients[client] = Access(self, self._authorizer, client)
        return access

    def _take(self, security: Security) -> None:
        """Use the access control entries of a complete image from now on."""
        if self._security is None:
            self._authorizer = Authorizer(
                security.acls.values(),
                super_users=self._settings.super_users,
                allow_everyone=self._settings.allow_everyone,
            )
        else:
            for before, after in self._security.acls.differences(security.acls):
                if before is not None:
                    self._authorizer.remove(before)
                if after is not None:
                    self._authorizer.add(after)
        self._security = security
        self._forget()

    def _forget(self) -> None:
        self._clients.clear()
        self._decisions = 0

    def count_decisions(self, count: int) -> None:
        """Count decisions that a client's `Access` keeps from now on."""
        self._decisions += count

    def log_denial(self, client: Client, denied: tuple[int, int, str]) -> None:
        """Write one line of the audit log, or count it if there are too many."""
        self.denials += 1
        now = self._clock()
        if now - self._lines_since >= 1.0:
            self._lines_left, self._lines_since = LINES_PER_S, now
        if not self._lines_left:
            self._left_out += 1
            return
        self._lines_left -= 1
        operation, kind, name = denied
        log.info(
            "decision=denied principal=%r host=%s operation=%s resource_type=%s resource=%r "
            "left_out=%d",
            str(client.principal)[:MAX_LOGGED], client.host, Operation(operation).name,
            ResourceType(kind).name, name[:MAX_LOGGED], self._left_out,
        )  # fmt: skip
        self._left_out = 0


def host_of(peer: str) -> str:
    """Return the address of a peer named `host:port`, written as Java does.

    >>> host_of("10.0.0.7:4711"), host_of("::1:4711"), host_of("::ffff:10.0.0.7:1")
    ('10.0.0.7', '0:0:0:0:0:0:0:1', '10.0.0.7')
    """
    host = peer.rpartition(":")[0]
    if ":" not in host:
        return host
    try:
        return java_host(ipaddress.IPv6Address(host.partition("%")[0]).packed)
    except ValueError:
        return host


def java_host(packed: bytes) -> str:
    """Return an address of 4 or 16 bytes as Java writes it.

    >>> java_host(bytes((10, 0, 0, 7))), java_host(bytes(15) + b"\\x01")
    ('10.0.0.7', '0:0:0:0:0:0:0:1')
    """
    if len(packed) == 4:
        return str(ipaddress.IPv4Address(packed))
    mapped = ipaddress.IPv6Address(packed).ipv4_mapped
    if mapped is not None:
        return str(mapped)
    return ":".join(f"{packed[i] << 8 | packed[i + 1]:x}" for i in range(0, 16, 2))
