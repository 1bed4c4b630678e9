"""Matches access control entries with the filters of DescribeAcls and DeleteAcls.

    filter = AclFilter.of(request)   # or of one filter of a DeleteAclsRequest
    found = [acl for acl in image.security.acls.values() if filter.matches(acl)]

A field that a filter leaves open (null or ANY) matches everything. The pattern type MATCH finds
the entries that apply to a resource of the name: by the name, by `*`, and by a prefix of it.

Source: KIP-140, KIP-290; upstream's AccessControlEntryFilter and ResourcePatternFilter.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from coordinator.controller.authorizer import (
    ALLOW,
    DENY,
    WILDCARD,
    Operation,
    PatternType,
    ResourceType,
)
from records.metadata import AccessControlEntryRecord

ANY: Final = 1
"""The code, in each field of a filter, that leaves the field open."""

MATCH: Final = 2
"""The pattern type that finds all patterns of a resource."""

PERMISSIONS: Final = frozenset({DENY, ALLOW})
_TYPES: Final = frozenset({ANY, *ResourceType})
_PATTERNS: Final = frozenset({ANY, MATCH, *PatternType})
_OPERATIONS: Final = frozenset({ANY, *Operation})


class AclFilter(NamedTuple):
    """A filter of access control entries."""

    resource_type: int
    resource_name: str | None
    pattern_type: int
    principal: str | None
    host: str | None
    operation: int
    permission_type: int

    @classmethod
    def of(cls, request: Any) -> AclFilter:
        """Read the filter of a DescribeAclsRequest, or one of a DeleteAclsRequest."""
        return cls(
            request.resource_type_filter,
            request.resource_name_filter,
            request.pattern_type_filter,
            request.principal_filter,
            request.host_filter,
            request.operation,
            request.permission_type,
        )

    def unknown_field(self) -> str | None:
        """Return the name of a field with a code that no entry can have, or None."""
        for name, code, known in (
            ("resource type", self.resource_type, _TYPES),
            ("pattern type", self.pattern_type, _PATTERNS),
            ("operation", self.operation, _OPERATIONS),
            ("permission type", self.permission_type, PERMISSIONS | {ANY}),
        ):
            if code not in known:
                return f"{name} {code}"
        return None

    @property
    def is_exact(self) -> bool:
        """Return whether the filter leaves no field open, and so finds one entry at most."""
        return (
            None not in self
            and self.pattern_type not in (ANY, MATCH)
            and ANY not in (self.resource_type, self.operation, self.permission_type)
        )

    def matches(self, acl: AccessControlEntryRecord) -> bool:
        """Return whether the filter finds this access control entry."""
        return (
            self.resource_type in (ANY, acl.resource_type)
            and self.operation in (ANY, acl.operation)
            and self.permission_type in (ANY, acl.permission_type)
            and self.principal in (None, acl.principal)
            and self.host in (None, acl.host)
            and self._matches_pattern(acl)
        )

    def _matches_pattern(self, acl: AccessControlEntryRecord) -> bool:
        if self.pattern_type not in (ANY, MATCH, acl.pattern_type):
            return False
        if self.resource_name in (None, acl.resource_name):
            return True
        if self.pattern_type != MATCH or self.resource_name is None:
            return False
        if acl.pattern_type == PatternType.PREFIXED:
            return self.resource_name.startswith(acl.resource_name)
        return acl.resource_name == WILDCARD
