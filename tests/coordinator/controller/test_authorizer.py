"""The authorizer against a naive model that reads every rule, and its rules as mutants."""

from __future__ import annotations

from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coordinator.controller import authorizer as rules_of
from coordinator.controller.authorizer import (
    ALLOW,
    DENY,
    Authorizer,
    Operation,
    PatternType,
    ResourceType,
)
from records.metadata import AccessControlEntryRecord

NAMES = ("", "a", "ab", "abc", "abd", "b", "*", "ac\u00e9")
PRINCIPALS = ("User:ann", "User:bob", "User:*", "Group:ann")
HOSTS = ("10.0.0.1", "10.0.0.2", "*")
KINDS = (ResourceType.TOPIC, ResourceType.GROUP)

records = st.builds(
    AccessControlEntryRecord,
    id=st.just(UUID(int=0)),
    resource_type=st.sampled_from(KINDS),
    resource_name=st.sampled_from(NAMES[1:]),
    pattern_type=st.sampled_from(PatternType),
    principal=st.sampled_from(PRINCIPALS),
    host=st.sampled_from(HOSTS),
    operation=st.sampled_from(Operation),
    permission_type=st.sampled_from((ALLOW, DENY)),
)
requests = st.tuples(
    st.sampled_from(PRINCIPALS[:2]),
    st.sampled_from(HOSTS[:2]),
    st.sampled_from([one for one in Operation if one is not Operation.ALL]),
    st.sampled_from(KINDS),
    st.sampled_from(NAMES),
)

IMPLIES = {
    "READ": "DESCRIBE",
    "WRITE": "DESCRIBE",
    "DELETE": "DESCRIBE",
    "ALTER": "DESCRIBE",
    "ALTER_CONFIGS": "DESCRIBE_CONFIGS",
}


def naive(rules, request, super_users, allow_everyone):
    """Kafka's documentation, read rule by rule."""
    principal, host, operation, kind, name = request
    if principal in super_users:
        return True
    of_resource = [
        rule
        for rule in rules
        if rule.resource_type == kind
        and (
            name.startswith(rule.resource_name)
            if rule.pattern_type == PatternType.PREFIXED
            else rule.resource_name in (name, "*")
        )
    ]
    if not of_resource:
        return allow_everyone
    of_peer = [
        rule
        for rule in of_resource
        if (rule.principal == principal or rule.principal == "User:*")
        and (rule.host == host or rule.host == "*")
    ]
    allowed = False
    for rule in of_peer:
        named = Operation(rule.operation).name
        same = named in (operation.name, "ALL")
        if rule.permission_type == DENY and same:
            return False
        if rule.permission_type == ALLOW and (same or IMPLIES.get(named) == operation.name):
            allowed = True
    return allowed


def check(rules, request, super_users, allow_everyone):
    authorizer = Authorizer(rules, super_users=super_users, allow_everyone=allow_everyone)
    expected = naive(rules, request, super_users, allow_everyone)
    assert authorizer.is_allowed(*request) == expected


@settings(max_examples=400, deadline=None)
@given(
    st.lists(records, max_size=12),
    requests,
    st.sampled_from((frozenset(), frozenset({"User:bob"}))),
    st.booleans(),
)
def test_the_authorizer_decides_as_a_model_that_reads_every_rule(
    rules, request, super_users, allow_everyone
):
    check(rules, request, super_users, allow_everyone)


@settings(max_examples=200, deadline=None)
@given(
    st.lists(records, max_size=8),
    st.lists(records, max_size=8),
    st.randoms(use_true_random=False),
    requests,
    st.booleans(),
)
def test_an_authorizer_whose_rules_were_changed_decides_as_a_new_one(
    kept, removed, random, request, allow_everyone
):
    authorizer = Authorizer(allow_everyone=allow_everyone)
    both = [*kept, *removed]
    random.shuffle(both)
    for record in both:
        authorizer.add(record)
    for record in removed:
        authorizer.remove(record)
    new = Authorizer(kept, allow_everyone=allow_everyone)
    assert authorizer.is_allowed(*request) == new.is_allowed(*request)
    on_any = request[:4]
    assert authorizer.is_allowed_on_any(*on_any) == new.is_allowed_on_any(*on_any)
    assert sum(map(sum, _counts(authorizer))) == sum(map(sum, _counts(new)))  # none is left over


def _counts(authorizer):
    """The number of equal rules of each user and resource, and of prefixes of each length."""
    for users in authorizer._of_users.values():
        for index in users.values():
            for table in (index.literal, index.prefixed):
                yield from (rules.values() for rules in table.values())
            yield index.lengths.values()


def rule(operation=Operation.READ, permission=ALLOW, **changes):
    given_ = {
        "id": UUID(int=0),
        "resource_type": ResourceType.TOPIC,
        "resource_name": "orders",
        "pattern_type": PatternType.LITERAL,
        "principal": "User:ann",
        "host": "*",
        "operation": operation,
        "permission_type": permission,
    }
    return AccessControlEntryRecord(**{**given_, **changes})


def allowed(*rules, operation=Operation.READ, name="orders", **settings_):
    authorizer = Authorizer(rules, **settings_)
    return authorizer.is_allowed("User:ann", "10.0.0.1", operation, ResourceType.TOPIC, name)


def prefixed(name, permission=ALLOW):
    return rule(resource_name=name, pattern_type=PatternType.PREFIXED, permission=permission)


def test_a_deny_rule_overrides_every_allow_rule_of_any_pattern():
    assert allowed(rule())
    assert not allowed(rule(), prefixed("or", DENY))
    assert not allowed(prefixed("orders"), rule(permission=DENY, resource_name="*"))
    assert not allowed(rule(), rule(Operation.ALL, DENY))


def test_an_allow_rule_implies_describe_and_a_deny_rule_does_not():
    for operation in (Operation.READ, Operation.WRITE, Operation.DELETE, Operation.ALTER):
        assert allowed(rule(operation), operation=Operation.DESCRIBE)
    assert allowed(rule(Operation.ALTER_CONFIGS), operation=Operation.DESCRIBE_CONFIGS)
    assert not allowed(rule(Operation.CREATE), operation=Operation.DESCRIBE)
    describe = rule(Operation.DESCRIBE)
    assert allowed(describe, rule(permission=DENY), operation=Operation.DESCRIBE)


def test_a_rule_for_another_user_ends_the_default_access_of_everybody_to_a_resource():
    assert allowed(allow_everyone=True)
    assert not allowed(rule(principal="User:bob"), allow_everyone=True)
    assert allowed(rule(principal="User:bob"), name="other", allow_everyone=True)


def test_the_authorizer_finds_the_rules_of_every_prefix_of_a_name():
    others = [prefixed(f"order{number}") for number in range(50)]
    others += [prefixed(f"orders-{number}") for number in range(50)]
    assert not allowed(*others)
    for name in ("o", "or", "orders"):
        assert allowed(*others, prefixed(name))


def test_a_decision_among_ten_thousand_patterns_reads_those_that_match():
    matching = [prefixed("a" * length) for length in range(1, 1_001)]
    others = [prefixed(f"b-{number}") for number in range(9_000)]
    authorizer = Authorizer([*matching, *others])
    (index,) = authorizer._indexes("User:ann", ResourceType.TOPIC)
    assert len(index.matching("a" * 32_000)) == len(matching)
    assert len(index.matching("b-77")) == 2  # b-7, too
    assert authorizer.is_allowed("User:ann", "h", Operation.READ, ResourceType.TOPIC, "a" * 32_000)
    assert not authorizer.is_allowed("User:ann", "h", Operation.READ, ResourceType.TOPIC, "c")


@pytest.mark.parametrize(
    "mutant",
    [
        ("denied_by", lambda _: frozenset()),
        ("denied_by", lambda operation: frozenset({operation})),
        ("allowed_by", lambda _: frozenset(Operation)),
        ("allowed_by", lambda operation: frozenset({operation, Operation.ALL})),
        ("hosts_of", lambda _: frozenset(HOSTS)),
    ],
)
def test_the_authorizer_model_catches_each_authorizer_mutant(monkeypatch, mutant):
    name, changed = mutant
    monkeypatch.setattr(rules_of, name, changed)
    stories = [
        ([rule(), rule(permission=DENY)], Operation.READ),
        ([rule(), rule(Operation.ALL, DENY)], Operation.READ),
        ([rule(Operation.WRITE)], Operation.READ),
        ([rule()], Operation.DESCRIBE),
        ([rule(host="10.0.0.2")], Operation.READ),
    ]
    with pytest.raises(AssertionError):
        _check_all(stories)


def _check_all(stories):
    for rules, operation in stories:
        request = ("User:ann", "10.0.0.1", operation, ResourceType.TOPIC, "orders")
        check(rules, request, frozenset(), False)
