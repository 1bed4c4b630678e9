"""Access control entries: created, removed by filters, and refused with Kafka's codes."""

from __future__ import annotations

from typing import Any, Final

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coordinator.controller.acl_filters import ANY, MATCH, AclFilter
from coordinator.controller.authorizer import ALLOW, DENY, Operation, PatternType, ResourceType
from coordinator.controller.decide import acls
from coordinator.controller.security import acl_key
from records.kafka_errors import ErrorCode
from records.rpc import security as rpc
from tests.coordinator.controller.world import World, records_of

ENTRY: Final = {
    "resource_type": 2,
    "resource_name": "orders",
    "resource_pattern_type": 3,
    "principal": "User:ann",
    "host": "*",
    "operation": 3,
    "permission_type": 3,
}
EVERYTHING: Final = {
    "resource_type_filter": ANY,
    "resource_name_filter": None,
    "pattern_type_filter": ANY,
    "principal_filter": None,
    "host_filter": None,
    "operation": ANY,
    "permission_type": ANY,
}


def leading() -> World:
    world = World()
    world.elect()
    return world


def create(world: World, *entries: dict[str, Any]) -> list[int]:
    creation = rpc.CreateAclsRequest.AclCreation
    creations = tuple(creation(**(ENTRY | entry)) for entry in entries)
    return [one.error_code for one in world.ask(rpc.CreateAclsRequest(creations=creations)).results]


def delete(world: World, *filters: dict[str, Any]) -> list[tuple[int, list[str]]]:
    wanted = rpc.DeleteAclsRequest.DeleteAclsFilter
    request = rpc.DeleteAclsRequest(filters=tuple(wanted(**(EVERYTHING | one)) for one in filters))
    return [
        (one.error_code, sorted(acl.resource_name for acl in one.matching_acls))
        for one in world.ask(request).filter_results
    ]


def names(world: World) -> list[str]:
    found = world.image.security
    assert {acl_key(acl): acl.id for acl in found.acls.values()} == dict(found.acl_ids)
    return sorted(acl.resource_name for acl in found.acls.values())


def test_an_entry_that_exists_is_created_again_with_success_and_without_a_record() -> None:
    world = leading()
    assert create(world, {}, {}, {"permission_type": DENY}) == [0, 0, 0]
    before = len(records_of(world.image))
    assert create(world, {}) == [0]
    assert names(world) == ["orders", "orders"]
    assert len(records_of(world.image)) == before


@pytest.mark.parametrize(
    "entry",
    [
        {"resource_name": ""},
        {"resource_type": 4, "resource_name": "orders"},
        {"resource_type": ANY},
        {"resource_type": 99},
        {"resource_pattern_type": MATCH},
        {"resource_pattern_type": ANY},
        {"operation": ANY},
        {"operation": 0},
        {"permission_type": ANY},
        {"principal": "ann"},
        {"host": ""},
        {"resource_name": "n" * 32_767},
        {"principal": "User:" + "n" * 32_000},
    ],
)
def test_an_invalid_entry_is_an_invalid_request_and_the_others_are_created(
    entry: dict[str, Any],
) -> None:
    world = leading()
    assert create(world, {"resource_name": "a"}, entry, {"resource_name": "b"}) == [
        0,
        ErrorCode.INVALID_REQUEST,
        0,
    ]
    assert names(world) == ["a", "b"]


def test_ten_thousand_entries_are_created_at_once_and_one_more_is_refused() -> None:
    world = leading()
    entries = [{"resource_name": f"t-{i}"} for i in range(10_001)]
    assert set(create(world, *entries)) == {ErrorCode.POLICY_VIOLATION}
    assert names(world) == []
    assert set(create(world, *entries[:-1])) == {0}
    assert len(names(world)) == 10_000
    create(world, {"resource_name": "one more"})
    assert delete(world, {}) == [(ErrorCode.POLICY_VIOLATION, [])]
    assert (
        delete(world, *[{"host_filter": str(i)} for i in range(60)])
        == [(ErrorCode.POLICY_VIOLATION, [])] * 60
    )
    assert delete(world, {"resource_name_filter": "one more"}) == [(0, ["one more"])]


def test_a_cluster_has_a_limited_number_of_entries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(acls, "MAX_ACLS", 2)
    world = leading()
    full = ErrorCode.POLICY_VIOLATION
    assert create(world, *({"resource_name": name} for name in "abc")) == [0, 0, full]
    assert create(world, {"resource_name": "c"}, {"resource_name": "a"}) == [full, 0]
    assert delete(world, {"resource_name_filter": "a"}) == [(0, ["a"])]
    assert create(world, {"resource_name": "c"}) == [0]


def test_filters_find_entries_by_name_pattern_principal_and_operation() -> None:
    world = leading()
    prefixed = {"resource_pattern_type": 4}
    create(
        world,
        {"resource_name": "orders"},
        {"resource_name": "*"},
        {"resource_name": "ord"} | prefixed,
        {"resource_name": "x"} | prefixed,
        {"resource_name": "mine", "principal": "User:bob", "host": "10.0.0.1", "operation": 4},
    )
    kept = names(world)
    named = {"resource_type_filter": 2, "resource_name_filter": "orders"}
    for wanted, found in (
        (named | {"pattern_type_filter": MATCH}, ["*", "ord", "orders"]),
        (named | {"pattern_type_filter": ANY}, ["orders"]),
        (named | {"pattern_type_filter": 4}, []),
        ({"principal_filter": "User:bob"}, ["mine"]),
        ({"operation": 4}, ["mine"]),
        ({"host_filter": "10.0.0.1"}, ["mine"]),
        ({"resource_type_filter": 3}, []),
        ({"permission_type": 2}, []),
        ({"pattern_type_filter": 4}, ["ord", "x"]),
    ):
        request = rpc.DescribeAclsRequest(**(EVERYTHING | wanted))
        matching = acls.find_acls(AclFilter.of(request), world.image)
        assert sorted(acl.resource_name for acl in matching) == found, wanted
    assert names(world) == kept
    assert delete(world, named | {"pattern_type_filter": MATCH}, {}) == [
        (0, ["*", "ord", "orders"]),
        (0, kept),
    ]
    assert names(world) == []


@pytest.mark.parametrize("field", ["resource_type_filter", "operation", "permission_type"])
def test_a_filter_with_an_unknown_code_removes_nothing(field: str) -> None:
    world = leading()
    create(world, {})
    assert delete(world, {field: 99}, {"host_filter": "nowhere"}) == [
        (ErrorCode.INVALID_REQUEST, []),
        (0, []),
    ]
    assert names(world) == ["orders"]


entries = st.fixed_dictionaries(
    {
        "resource_type": st.sampled_from([2, 3]),
        "resource_name": st.sampled_from(["a", "ab", "*"]),
        "resource_pattern_type": st.sampled_from(PatternType),
        "principal": st.sampled_from(["User:ann", "User:*"]),
        "permission_type": st.sampled_from([ALLOW, DENY]),
    }
)
filters = st.fixed_dictionaries(
    {
        "resource_type_filter": st.sampled_from([ANY, ResourceType.TOPIC]),
        "resource_name_filter": st.sampled_from([None, "a", "ab", "*"]),
        "pattern_type_filter": st.sampled_from([ANY, MATCH, *PatternType]),
        "principal_filter": st.sampled_from([None, "User:ann"]),
        "host_filter": st.sampled_from([None, "*"]),
        "operation": st.sampled_from([ANY, Operation.READ]),
        "permission_type": st.sampled_from([ANY, ALLOW]),
    }
)


@settings(max_examples=40, deadline=None)
@given(st.lists(entries, max_size=12), filters)
def test_an_exact_filter_finds_what_reading_every_entry_finds(
    made: list[dict[str, Any]], wanted: dict[str, Any]
) -> None:
    world = leading()
    create(world, *made)
    one = AclFilter.of(rpc.DescribeAclsRequest(**(EVERYTHING | wanted)))
    found = acls.find_acls(one, world.image)
    naive = [acl for acl in world.image.security.acls.values() if one.matches(acl)]
    assert {acl.id for acl in found} == {acl.id for acl in naive}
