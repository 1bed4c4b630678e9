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
from collections.abc import Callable, Iterable, Mapping
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
    """The part of an access control entry that is asked once its user and resource match."""

    host: str
    operation: int
    permission: int


def hosts_of(host: str) -> frozenset[str]:
    """Return the hosts of rules that concern clients at an address."""
    return frozenset({host, WILDCARD})


def denied_by(operation: Operation) -> frozenset[int]:
    """Return the operations of which a DENY denies an operation."""
    return frozenset({operation, Operation.ALL})


def allowed_by(operation: Operation) -> frozenset[int]:
    """Return the operations of which an ALLOW allows an operation, itself or by implication."""
    return frozenset({operation, Operation.ALL}) | _IMPLIED_BY.get(operation, frozenset())


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


Decider = Callable[[str], bool]
"""Returns whether something may be done with the resource of a name."""


def _allow(_: str) -> bool:
    return True


def _deny(_: str) -> bool:
    return False


def _verdicts(host: str, operation: Operation) -> dict[Rule, bool]:
    """Return the rules that allow (True) or deny (False) an operation to clients at an address.

    Rules are so few that to find one takes less time than to read its fields.
    """
    return {
        Rule(at_host, of_operation, permission): permission == ALLOW
        for at_host in hosts_of(host)
        for permission, operations in ((ALLOW, allowed_by(operation)), (DENY, denied_by(operation)))
        for of_operation in operations
    }


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

    def decider(
        self, principal: str, host: str, operation: Operation, kind: ResourceType
    ) -> Decider:
        """Return the function that decides about names of resources; valid until a rule changes."""
        if principal in self._super_users:
            return _allow
        return self._decider(self._indexes(principal, kind), host, operation, kind)

    def _decider(
        self, indexes: list[RuleIndex], host: str, operation: Operation, kind: ResourceType
    ) -> Decider:
        verdict_of = _verdicts(host, operation).get
        tables = [(index.literal.get, index.prefixed.get, index.lengths) for index in indexes]
        of_all_names = [
            verdict_of(rule) for index in indexes for rule in index.literal.get(WILDCARD, ())
        ]
        if False in of_all_names:
            return _deny
        is_any_name_allowed, by_default = True in of_all_names, self._allow_everyone

        # A Produce over 1,000 partitions is decided by a thousand calls: no method is called in it.
        def is_allowed(name: str) -> bool:
            allowed = is_any_name_allowed
            for literal, prefixed, lengths in tables:
                for rule in literal(name, ()):
                    if verdict := verdict_of(rule):
                        allowed = True
                    elif verdict is False:
                        return False
                for length in lengths:  # one that is longer than the name gives the name again
                    for rule in prefixed(name[:length], ()):
                        if verdict := verdict_of(rule):
                            allowed = True
                        elif verdict is False:
                            return False
            return allowed or (by_default and not self._has_rules(kind, name))

        return is_allowed

    def is_allowed(
        self, principal: str, host: str, operation: Operation, kind: ResourceType, name: str
    ) -> bool:
        """Return whether a principal, at an address, may do an operation on a resource."""
        return self.decider(principal, host, operation, kind)(name)

    def is_allowed_on_any(
        self, principal: str, host: str, operation: Operation, kind: ResourceType
    ) -> bool:
        """Return whether a principal may do an operation on at least one resource of a type.

        An ALLOW counts unless a DENY covers its pattern. Operations that imply this one do not.
        Source: KIP-679; upstream's Authorizer.authorizeByResourceType.
        """
        if self.is_allowed(principal, host, operation, kind, ANY_NAME):
            return True
        indexes, hosts = self._indexes(principal, kind), hosts_of(host)

        def patterns(tables: list[dict[str, dict[Rule, int]]], permission: int) -> set[str]:
            return {
                name
                for table in tables
                for name, rules in table.items()
                if any(
                    rule.permission == permission
                    and rule.operation in (operation, Operation.ALL)
                    and rule.host in hosts
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
