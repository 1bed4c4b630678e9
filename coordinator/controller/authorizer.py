"""Decides whether a principal may do an operation on a resource, by StandardAuthorizer's rules.

    authorizer = Authorizer(rules, super_users=frozenset({"User:admin"}))
    authorizer.is_allowed("User:ann", "10.0.0.7", Operation.READ, ResourceType.TOPIC, "orders")

- Super users may do everything.
- A DENY that matches goes before every ALLOW, whatever its pattern.
- A rule is of one resource by name (LITERAL), of all by the name `*`, or of all names that begin
  with its name (PREFIXED); it is of one principal or of `User:*`, and of one host or of `*`.
- READ, WRITE, DELETE and ALTER imply DESCRIBE; ALTER_CONFIGS implies DESCRIBE_CONFIGS. An ALLOW of
  ALL is one of each. The trap: only an ALLOW implies: DENY of READ does not deny DESCRIBE.
- If no rule is of this resource, `allow_everyone` decides (allow.everyone.if.no.acl.found).

`coordinator.controller.access` keeps its decisions.

Source: KIP-11, KIP-290 (patterns), KIP-801; upstream's StandardAuthorizerData.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections.abc import Iterable
from enum import IntEnum
from typing import Final, NamedTuple

from records.metadata import AccessControlEntryRecord


class ResourceType(IntEnum):
    """Kafka's types of resources."""

    TOPIC = 2
    GROUP = 3
    CLUSTER = 4
    TRANSACTIONAL_ID = 5
    DELEGATION_TOKEN = 6
    USER = 7


class PatternType(IntEnum):
    """How a rule's resource name is matched."""

    LITERAL = 3
    PREFIXED = 4


class Operation(IntEnum):
    """Kafka's operations."""

    ALL = 2
    READ = 3
    WRITE = 4
    CREATE = 5
    DELETE = 6
    ALTER = 7
    DESCRIBE = 8
    CLUSTER_ACTION = 9
    DESCRIBE_CONFIGS = 10
    ALTER_CONFIGS = 11
    IDEMPOTENT_WRITE = 12
    CREATE_TOKENS = 13
    DESCRIBE_TOKENS = 14
    TWO_PHASE_COMMIT = 15


DENY: Final = 2
ALLOW: Final = 3
WILDCARD: Final = "*"
ANY_USER: Final = "User:*"
CLUSTER_NAME: Final = "kafka-cluster"

ANY_NAME: Final = "hardcode"
"""The name by which upstream asks first whether a principal may do something on any resource."""

_DESCRIBE_BY: Final = frozenset(
    {Operation.READ, Operation.WRITE, Operation.DELETE, Operation.ALTER}
)
_IMPLIED_BY: Final = {
    Operation.DESCRIBE: _DESCRIBE_BY,
    Operation.DESCRIBE_CONFIGS: frozenset({Operation.ALTER_CONFIGS}),
}
"""Operations of which an ALLOW implies another one."""


class Rule(NamedTuple):
    """The part of an access control entry that is asked once its resource matches."""

    principal: str
    host: str
    operation: int
    permission: int

    def is_of(self, principal: str, host: str) -> bool:
        """Return whether the rule concerns this principal at this address."""
        return self.principal in (principal, ANY_USER) and self.host in (host, WILDCARD)

    def denies(self, operation: Operation) -> bool:
        """Return whether the rule denies this operation."""
        return self.permission == DENY and self.operation in (operation, Operation.ALL)

    def allows(self, operation: Operation) -> bool:
        """Return whether the rule allows this operation, or another one that implies it."""
        return self.permission == ALLOW and (
            self.operation in (operation, Operation.ALL)
            or self.operation in _IMPLIED_BY.get(operation, ())
        )


class Authorizer:
    """The rules of one image, found by resource."""

    def __init__(
        self,
        records: Iterable[AccessControlEntryRecord],
        *,
        super_users: frozenset[str] = frozenset(),
        allow_everyone: bool = False,
    ) -> None:
        """Create an authorizer from the access control rules of a cluster image.

        Args:  super_users: principals as TYPE:NAME that may do everything.
               allow_everyone: what is decided for a resource without any rule.
        """
        self._super_users = super_users
        self._allow_everyone = allow_everyone
        self._literal: dict[tuple[int, str], list[Rule]] = {}
        self._prefixed: dict[tuple[int, str], list[Rule]] = {}
        self._prefixes: dict[int, list[str]] = {}  # of each type, in order
        for record in records:
            key = record.resource_type, record.resource_name
            rule = Rule(record.principal, record.host, record.operation, record.permission_type)
            if record.pattern_type == PatternType.LITERAL:
                self._literal.setdefault(key, []).append(rule)
                continue
            if key not in self._prefixed:
                insort(self._prefixes.setdefault(record.resource_type, []), record.resource_name)
            self._prefixed.setdefault(key, []).append(rule)

    def is_allowed(
        self, principal: str, host: str, operation: Operation, kind: ResourceType, name: str
    ) -> bool:
        """Return whether a principal, at an address, may do an operation on a resource."""
        if principal in self._super_users:
            return True
        found, allowed = False, False
        for rules in self._rules_of(kind, name):
            found = True
            for rule in rules:
                if rule.is_of(principal, host):
                    if rule.denies(operation):
                        return False
                    allowed = allowed or rule.allows(operation)
        return allowed if found else self._allow_everyone

    def is_allowed_on_any(
        self, principal: str, host: str, operation: Operation, kind: ResourceType
    ) -> bool:
        """Return whether a principal may do an operation on at least one resource of a type.

        An ALLOW counts unless a DENY covers its pattern. Operations that imply this one do not.
        Source: KIP-679; upstream's Authorizer.authorizeByResourceType.
        """
        if self.is_allowed(principal, host, operation, kind, ANY_NAME):
            return True

        def patterns(table: dict[tuple[int, str], list[Rule]], permission: int) -> set[str]:
            return {
                name
                for (of, name), rules in table.items()
                if of == kind
                and any(
                    rule.permission == permission
                    and rule.operation in (operation, Operation.ALL)
                    and rule.is_of(principal, host)
                    for rule in rules
                )
            }

        denied, denied_prefixes = (patterns(t, DENY) for t in (self._literal, self._prefixed))
        if WILDCARD in denied:
            return False
        literal = patterns(self._literal, ALLOW)
        if WILDCARD in literal:
            return True
        return any(
            not any(name[:end] in denied_prefixes for end in range(1, len(name) + 1))
            for name in (*(literal - denied), *patterns(self._prefixed, ALLOW))
        )

    def _rules_of(self, kind: ResourceType, name: str) -> list[list[Rule]]:
        """Return the rules with a pattern that matches this resource, one list per pattern."""
        found = []
        for literal in dict.fromkeys((name, WILDCARD)):
            if (rules := self._literal.get((kind, literal))) is not None:
                found.append(rules)
        prefixes = self._prefixes.get(kind, [])
        at = bisect_right(prefixes, name)
        while at:
            # Every prefix of the name sorts before it, and one that is none shares a shorter
            # beginning with it: the search goes on at that beginning.
            candidate = prefixes[at - 1]
            if name.startswith(candidate):
                found.append(self._prefixed[kind, candidate])
                at -= 1
                continue
            shared = 0
            while shared < len(candidate) and candidate[shared] == name[shared]:
                shared += 1
            at = bisect_right(prefixes, name[:shared], 0, at - 1)
        return found
