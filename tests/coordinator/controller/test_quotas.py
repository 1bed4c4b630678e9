"""Quotas of clients: which one holds for a client, how they are set, kept and refused.

Answers of Apache Kafka to the same requests: tests/interop/test_quota_answers.py.
"""

from __future__ import annotations

from itertools import pairwise, product
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coordinator.controller import quotas
from coordinator.controller.decide import quotas as deciding
from coordinator.controller.quotas import Quota, Quotas, entity_of, find_quota
from records.kafka_errors import ErrorCode
from records.metadata import ClientQuotaRecord
from tests.coordinator.controller.world import World, records_of
from tests.interop.quota_table import ANN, ANN_APP, ANYBODY, alter

KEY = quotas.PRODUCER_BYTE_RATE


def leading() -> World:
    world = World()
    world.elect()
    return world


def record(entity: tuple[tuple[str, str | None], ...], value: float = 1.0) -> ClientQuotaRecord:
    part = ClientQuotaRecord.EntityData
    return ClientQuotaRecord(
        entity=tuple(part(entity_type=kind, entity_name=name) for kind, name in entity),
        key=KEY,
        value=value,
        remove=False,
    )


def by_entity(*records: ClientQuotaRecord) -> Quotas:
    """Return quotas as an image has them."""
    return {
        (entity_of((part.entity_type, part.entity_name) for part in one.entity), one.key): one
        for one in records
    }


# --- precedence ---------------------------------------------------------------------------------

NAMES = ("ann", "bob", None)  # None: the default
CLIENTS = ("app", "job", None)
ENTITIES = (
    *((("user", user),) for user in NAMES),
    *((("client-id", client),) for client in CLIENTS),
    *((("user", user), ("client-id", client)) for user, client in product(NAMES, CLIENTS)),
)
ORDER = (  # of KIP-55: the user and the client id of a quota, and who shares it
    ("name", "name", ("user", "client")),
    ("name", "default", ("user", "client")),
    ("name", "none", ("user", "")),
    ("default", "name", ("user", "client")),
    ("default", "default", ("user", "client")),
    ("default", "none", ("user", "")),
    ("none", "name", ("", "client")),
    ("none", "default", ("", "client")),
)


def naive(limits: dict[Any, float], user: str, client_id: str) -> Quota | None:
    """Read the table of KIP-55 from top to bottom, for each entity that has a quota."""
    for how_user, how_client, shared in ORDER:
        for entity, limit in limits.items():
            parts = dict(entity)
            fits = [
                kind not in parts
                if how == "none"
                else kind in parts and parts[kind] == (None if how == "default" else name)
                for kind, how, name in (
                    ("user", how_user, user),
                    ("client-id", how_client, client_id),
                )
            ]
            if all(fits):
                names = {"user": user, "client": client_id, "": ""}
                return Quota(limit, (names[shared[0]], names[shared[1]]))
    return None


def find(limits: dict[Any, float], user: str, client_id: str) -> Quota | None:
    quotas_of = by_entity(*(record(entity, value) for entity, value in limits.items()))
    return find_quota(quotas_of, KEY, user, client_id)


SOME_LIMITS = st.dictionaries(st.sampled_from(ENTITIES), st.floats(1, 9), max_size=12)


@given(SOME_LIMITS, st.sampled_from(["ann", "eve"]), st.sampled_from(["app", "new"]))
def test_the_quota_of_a_client_is_the_first_in_kafkas_order_of_entities(
    limits: dict[Any, float], user: str, client_id: str
) -> None:
    assert find(limits, user, client_id) == naive(limits, user, client_id)


def test_each_pair_of_neighbours_in_the_order_of_entities_matters() -> None:
    of_ann = [
        entity
        for how_user, how_client, _ in ORDER
        for entity in ENTITIES
        if entity
        == tuple(
            (kind, name if how == "name" else None)
            for kind, how, name in (("user", how_user, "ann"), ("client-id", how_client, "app"))
            if how != "none"
        )
    ]
    assert len(of_ann) == len(ORDER)
    for above, below in pairwise(of_ann):
        found = find({below: 2.0, above: 1.0}, "ann", "app")
        assert found is not None
        assert found.limit == 1.0, (above, below)


def test_a_client_without_a_client_id_has_only_quotas_of_users() -> None:
    limits = dict.fromkeys(ENTITIES, 5.0) | {(("user", "ann"),): 7.0}
    assert find(limits, "ann", "") == Quota(7.0, ("ann", ""))
    assert find({(("client-id", None),): 1.0, (*ANN, ("client-id", None)): 1.0}, "ann", "") is None


def test_a_key_without_quotas_limits_nobody() -> None:
    assert find_quota(by_entity(record(ANN)), "another", "ann", "app") is None


# --- setting them -------------------------------------------------------------------------------


def told(world: World, *entries: Any, **more: Any) -> list[tuple[int, str | None]]:
    answer = world.ask(alter(*entries, **more))
    return [(entry.error_code, entry.error_message) for entry in answer.entries]


def test_quotas_survive_a_checkpoint_and_a_new_controller() -> None:
    world = leading()
    told(world, (ANN, ((KEY, 5.0),)), (ANN_APP, ((KEY, 6.0),)), (ANYBODY, ((KEY, 7.0),)))
    kept = {where: record.value for where, record in world.image.security.quotas.items()}
    assert sorted(kept.values()) == [5.0, 6.0, 7.0]
    before = records_of(world.image)
    world.take_checkpoint()
    world.restart()
    world.elect()
    assert records_of(world.image) == before
    told(world, (ANN_APP[::-1], ((KEY, None),)))
    assert entity_of(ANN_APP) not in {entity for entity, _ in world.image.security.quotas}


def test_an_entity_is_the_same_in_any_order_of_its_parts() -> None:
    """Apache Kafka's controller writes parts in the order of a hash map."""
    world = leading()
    told(world, (ANN_APP, ((KEY, 5.0),)))
    told(world, (ANN_APP[::-1], ((KEY, 6.0),)))
    assert [record.value for record in world.image.security.quotas.values()] == [6.0]


def test_nothing_is_written_for_a_value_that_a_quota_has_already() -> None:
    world = leading()
    told(world, (ANN, ((KEY, 5.0),)))
    end = world.log.end_offset
    assert told(world, (ANN, ((KEY, 5.0), ("consumer_byte_rate", None)))) == [(0, None)]
    assert told(world, (ANN, ((KEY, 6.0),)), validate_only=True) == [(0, None)]
    assert world.log.end_offset == end


@pytest.mark.parametrize("value", [float("nan"), -float("nan")])
def test_a_quota_that_is_not_a_number_is_refused(value: float) -> None:
    """Apache Kafka accepts it, and then limits nothing."""
    assert told(leading(), (ANN, ((KEY, value),))) == [
        (ErrorCode.INVALID_REQUEST, f"Quota {KEY} is not a number")
    ]


def test_the_number_of_quotas_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deciding, "MAX_QUOTAS", 2)
    world = leading()
    full = (ErrorCode.POLICY_VIOLATION, "there are 2 quotas already")
    one, two, three = ((("user", name),) for name in ("a", "b", "c"))
    assert told(world, (one, ((KEY, 1.0),)), (two, ((KEY, 1.0),)), (three, ((KEY, 1.0),))) == [
        (0, None), (0, None), full,
    ]  # fmt: skip
    assert told(world, (three, ((KEY, 1.0),))) == [full]
    assert told(world, (one, ((KEY, 2.0),))) == [(0, None)], "a new value is no new quota"
    assert told(world, (one, ((KEY, None),)), (three, ((KEY, None),))) == [(0, None)] * 2
    assert told(world, (three, ((KEY, 1.0),))) == [(0, None)]


def test_long_names_and_long_requests_are_refused() -> None:
    world = leading()
    ((code, text),) = told(world, ((("user", "n" * 1_025),), ((KEY, 1.0),)))
    assert (code, text) == (ErrorCode.INVALID_REQUEST, "The user is longer than 1024 bytes")
    many = tuple(((("user", str(number)),), ((KEY, 1.0),)) for number in range(4_000))
    assert {code for code, _ in told(world, *many)} == {ErrorCode.POLICY_VIOLATION}
    assert not world.image.security.quotas


def test_the_types_of_values_are_kafkas() -> None:
    refuse = quotas.refuse_value
    assert refuse("k", quotas.LONG, 1e-7) is None
    assert refuse("k", quotas.LONG, 0.5) == "k cannot be a fractional value."
    assert refuse("k", quotas.LONG, 2.0**63) is None
    assert refuse("k", quotas.LONG, 2.0**64) == "Proposed value for k is too large for a LONG."
    assert refuse("k", quotas.INT, 2.0**31 - 1) is None
    assert refuse("k", quotas.INT, 2.0**31) == "Proposed value for k is too large for an INT."
    assert refuse("k", quotas.DOUBLE, float("inf")) is None
    for kind in (quotas.LONG, quotas.INT, quotas.DOUBLE):
        for value in (0.0, -0.0, -1.0, -float("inf")):
            assert refuse("k", kind, value) == "Quota k must be greater than 0"
