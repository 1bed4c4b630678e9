"""Quotas, access control entries, credentials and tokens, as the image has them.

Esker writes quotas, credentials and access control entries. A log that began under upstream's
controller may hold tokens too, and a checkpoint of Esker's must not lose them.

Source: KIP-546, KIP-801, KIP-900, KIP-866.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import Any, cast
from uuid import UUID

from coordinator.controller.quotas import Entity, entity_of
from coordinator.persistent_map import Map
from records.metadata import (
    AccessControlEntryRecord,
    ClientQuotaRecord,
    DelegationTokenRecord,
    RemoveAccessControlEntryRecord,
    RemoveDelegationTokenRecord,
    RemoveUserScramCredentialRecord,
    UserScramCredentialRecord,
    ZkMigrationStateRecord,
)
from records.schema import MetadataRecord

AclKey = tuple[int, str, int, str, str, int, int]
"""An access control entry without its id: the order of fields is that of the record."""


def acl_key(record: AccessControlEntryRecord) -> AclKey:
    """Return the fields of an access control entry that no two entries have in common."""
    return (
        record.resource_type,
        record.resource_name,
        record.pattern_type,
        record.principal,
        record.host,
        record.operation,
        record.permission_type,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Security:
    """Quotas, SCRAM verifiers, access control entries, and records kept for checkpoints only."""

    quotas: Map[tuple[Entity, str], ClientQuotaRecord] = field(default_factory=Map)
    acls: Map[UUID, AccessControlEntryRecord] = field(default_factory=Map)
    acl_ids: Map[AclKey, UUID] = field(default_factory=Map)
    scrams: Map[tuple[str, int], UserScramCredentialRecord] = field(default_factory=Map)
    tokens: Map[str, DelegationTokenRecord] = field(default_factory=Map)
    zk_migration: ZkMigrationStateRecord | None = None


class SecurityEdit:
    """A mutable copy of `Security`."""

    def __init__(self, security: Security) -> None:
        self._security = security

    def freeze(self) -> Security:
        return self._security

    def apply(self, record: MetadataRecord) -> tuple[object | None, object | None]:
        """Apply a security record; return the replaced record and the new record.

        A missing record is None.
        """
        was = self._security
        match record:
            case ClientQuotaRecord():
                entity = entity_of((part.entity_type, part.entity_name) for part in record.entity)
                return self._put("quotas", (entity, record.key), None if record.remove else record)
            case AccessControlEntryRecord():
                self._drop_acl_key(record.id)
                self._put("acl_ids", acl_key(record), record.id)
                return self._put("acls", record.id, record)
            case RemoveAccessControlEntryRecord():
                self._drop_acl_key(record.id)
                return self._put("acls", record.id, None)
            case UserScramCredentialRecord():
                return self._put("scrams", (record.name, record.mechanism), record)
            case RemoveUserScramCredentialRecord():
                return self._put("scrams", (record.name, record.mechanism), None)
            case DelegationTokenRecord():
                return self._put("tokens", record.token_id, record)
            case RemoveDelegationTokenRecord():
                return self._put("tokens", record.token_id, None)
            case ZkMigrationStateRecord():
                self._security = dataclasses.replace(was, zk_migration=record)
                return was.zk_migration, record
            case _:
                raise AssertionError(f"not a security record: {record}")

    def _drop_acl_key(self, acl_id: UUID) -> None:
        known = self._security.acls.get(acl_id)
        if known is not None:
            self._put("acl_ids", acl_key(known), None)

    def _put(self, field: str, key: Any, value: Any) -> tuple[object | None, object | None]:
        held: Map[Any, Any] = getattr(self._security, field)
        before = held.get(key)
        after = held.remove(key) if value is None else held.set(key, value)
        self._security = dataclasses.replace(self._security, **cast(Any, {field: after}))
        return before, value
