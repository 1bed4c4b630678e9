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

Rules are found by user and resource: a decision reads none of another user or another resource.
`change` adds and removes single rules, because a new index of 10,000 takes 50 ms.

`coordinator.controller.access` keeps its decisions.

Source: KIP-11, KIP-290 (patterns), KIP-801; upstream's StandardAuthorizerData.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
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

_ALLOWED_BY: Final = {
    operation: frozenset({operation, Operation.ALL}) | _IMPLIED_BY.get(operation, frozenset())
    for operation in Operation
}
"""The operations of which an ALLOW allows an operation."""


class Rule(NamedTuple):
    """The part of an access control entry that is asked once its user and resource match."""

    host: str
    operation: int
    permission: int

    def is_at(self, host: str) -> bool:
        """Return whether the rule concerns clients at this address."""
        return self.host in (host, WILDCARD)

    def denies(self, operation: Operation) -> bool:
        """Return whether the rule denies this operation."""
        return self.permission == DENY and self.operation in (operation, Operation.ALL)

    def allows(self, operation: Operation) -> bool:
        """Return whether the rule allows this operation, or another one that implies it."""
        return self.permission == ALLOW and self.operation in _ALLOWED_BY[operation]


class RuleIndex:
    """The rules of one user, or of all, for one type of resource, found by a resource's name."""

    __slots__ = ("lengths", "literal", "prefixed")

    def __init__(self) -> None:
        self.literal: dict[str, dict[Rule, int]] = {}  # with the number of equal entries
        self.prefixed: dict[str, dict[Rule, int]] = {}
        self.lengths: Counter[int] = Counter()  # of the prefixes

    def add(self, pattern: int, name: str, rule: Rule) -> None:
        """Add a rule for the resources that a pattern matches."""
        table = self.literal if pattern == PatternType.LITERAL else self.prefixed
        rules = table.get(name)
        if rules is None:
            rules = table[name] = {}
            if table is self.prefixed:
                self.lengths[len(name)] += 1
        rules[rule] = rules.get(rule, 0) + 1

    def remove(self, pattern: int, name: str, rule: Rule) -> None:
        """Remove a rule that was added."""
        table = self.literal if pattern == PatternType.LITERAL else self.prefixed
        rules = table[name]
        rules[rule] -= 1
        if rules[rule]:
            return
        del rules[rule]
        if not rules:
            del table[name]
            if table is self.prefixed:
                self.lengths[len(name)] -= 1
                if not self.lengths[len(name)]:
                    del self.lengths[len(name)]

    def matching(self, name: str) -> list[dict[Rule, int]]:
        """Return the rules whose pattern matches a resource, by pattern."""
        found = []
        for literal in (name, WILDCARD):
            if (rules := self.literal.get(literal)) is not None:
                found.append(rules)
        for length in self.lengths:
            if length <= len(name) and (rules := self.prefixed.get(name[:length])) is not None:
                found.append(rules)
        return found


_NO_USERS: Final[Mapping[str, RuleIndex]] = {}


class Authorizer:
    """The rules of one image, found by user and resource."""

    def __init__(
        self,
        records: Iterable[AccessControlEntryRecord] = (),
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
        self._of_users: dict[int, dict[str, RuleIndex]] = {}  # by type of resource
        self._of_all: dict[int, RuleIndex] = {}  # all users' rules; only with `allow_everyone`
        for record in records:
            self.add(record)

    def add(self, record: AccessControlEntryRecord) -> None:
        """Add the rule of an access control entry."""
        rule = Rule(record.host, record.operation, record.permission_type)
        kind = record.resource_type
        users = self._of_users.setdefault(kind, {})
        index = users.get(record.principal)
        if index is None:
            index = users[record.principal] = RuleIndex()
        index.add(record.pattern_type, record.resource_name, rule)
        if self._allow_everyone:
            of_all = self._of_all.setdefault(kind, RuleIndex())
            of_all.add(record.pattern_type, record.resource_name, rule)

    def remove(self, record: AccessControlEntryRecord) -> None:
        """Remove the rule of an access control entry that was added."""
        rule = Rule(record.host, record.operation, record.permission_type)
        kind = record.resource_type
        index = self._of_users[kind][record.principal]
        index.remove(record.pattern_type, record.resource_name, rule)
        if not index.literal and not index.prefixed:
            del self._of_users[kind][record.principal]
        if self._allow_everyone:
            self._of_all[kind].remove(record.pattern_type, record.resource_name, rule)

    def is_allowed(
        self, principal: str, host: str, operation: Operation, kind: ResourceType, name: str
    ) -> bool:
        """Return whether a principal, at an address, may do an operation on a resource."""
        if principal in self._super_users:
            return True
        allowed = False
        for index in self._indexes(principal, kind):
            for rules in index.matching(name):
                for rule in rules:
                    if rule.is_at(host):
                        if rule.denies(operation):
                            return False
                        allowed = allowed or rule.allows(operation)
        return allowed or (self._allow_everyone and not self._has_rules(kind, name))

    def is_allowed_on_any(
        self, principal: str, host: str, operation: Operation, kind: ResourceType
    ) -> bool:
        """Return whether a principal may do an operation on at least one resource of a type.

        An ALLOW counts unless a DENY covers its pattern. Operations that imply this one do not.
        Source: KIP-679; upstream's Authorizer.authorizeByResourceType.
        """
        if self.is_allowed(principal, host, operation, kind, ANY_NAME):
            return True
        indexes = self._indexes(principal, kind)

        def patterns(tables: list[dict[str, dict[Rule, int]]], permission: int) -> set[str]:
            return {
                name
                for table in tables
                for name, rules in table.items()
                if any(
                    rule.permission == permission
                    and rule.operation in (operation, Operation.ALL)
                    and rule.is_at(host)
                    for rule in rules
                )
            }

        literals = [index.literal for index in indexes]
        prefixes = [index.prefixed for index in indexes]
        denied, denied_prefixes = (patterns(tables, DENY) for tables in (literals, prefixes))
        if WILDCARD in denied:
            return False
        literal = patterns(literals, ALLOW)
        if WILDCARD in literal:
            return True
        return any(
            not any(name[:end] in denied_prefixes for end in range(1, len(name) + 1))
            for name in (*(literal - denied), *patterns(prefixes, ALLOW))
        )

    def _indexes(self, principal: str, kind: ResourceType) -> list[RuleIndex]:
        """Return the rules of a user and of every user for a type of resource."""
        users, found = self._of_users.get(kind, _NO_USERS), []
        for user in (principal, ANY_USER):
            if (index := users.get(user)) is not None:
                found.append(index)
        return found

    def _has_rules(self, kind: ResourceType, name: str) -> bool:
        """Return whether any user has a rule for a resource."""
        index = self._of_all.get(kind)
        return index is not None and bool(index.matching(name))
