"""Placement: all brokers choose the same leaders, and few partitions move.

Source: docs/design/broker.md#any-broker-leads.
"""

from __future__ import annotations

from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coordinator.controller.placement import PlacedBroker, is_known, leader, preferred_brokers
from diskless import placement
from diskless.placement import (
    MAX_REMEMBERED,
    REDIRECT_PAUSE_S,
    SHORT_ID,
    Redirects,
    rack_hint,
)

RACKS = ("a", "b", "c", None)
brokers = st.lists(
    st.builds(PlacedBroker, st.integers(0, 2**31 - 1), st.sampled_from(RACKS)),
    min_size=1,
    max_size=12,
    unique_by=lambda broker: broker.broker_id,
)
racks = st.sampled_from((*RACKS, "misspelt"))
partitions = [(UUID(int=topic), partition) for topic in range(5) for partition in range(20)]


@given(brokers, racks, st.randoms(use_true_random=False))
def test_the_leader_of_a_partition_does_not_depend_on_the_order_of_brokers(
    found, rack, random
) -> None:  # type: ignore[no-untyped-def]
    other = random.sample(found, len(found))
    for topic_id, partition in partitions:
        assert leader(topic_id, partition, rack, found) == leader(topic_id, partition, rack, other)


@given(brokers, racks)
def test_placement_chooses_a_partition_leader_in_the_clients_rack_if_the_rack_has_a_broker(
    found: list[PlacedBroker], rack: str | None
) -> None:
    near = {broker.broker_id for broker in found if rack is not None and broker.rack == rack}
    for topic_id, partition in partitions:
        assert leader(topic_id, partition, rack, found) in (
            near or {broker.broker_id for broker in found}
        )


@given(brokers.filter(lambda found: len(found) > 1), st.data())
def test_when_a_broker_leaves_only_its_own_consumer_groups_move_to_other_brokers(
    found: list[PlacedBroker], data: st.DataObject
) -> None:
    gone = data.draw(st.sampled_from(found))
    left = [broker for broker in found if broker != gone]
    for topic_id, partition in partitions:
        before = leader(topic_id, partition, None, found)
        if before != gone.broker_id:
            assert leader(topic_id, partition, None, left) == before


def test_placement_spreads_the_leaders_of_partitions_evenly_over_brokers() -> None:
    found = [PlacedBroker(number, None) for number in range(5)]
    shares = [0] * 5
    for topic in range(100):
        for partition in range(50):
            chosen = leader(UUID(int=topic), partition, None, found)
            assert chosen is not None
            shares[chosen] += 1
    assert max(shares) < 1.15 * min(shares), shares


def test_placement_chooses_no_partition_leader_in_a_cluster_without_brokers() -> None:
    assert leader(UUID(int=1), 0, None, []) is None


@pytest.mark.parametrize(
    ("client_id", "rack"),
    [
        (None, None),
        ("", None),
        ("app", None),
        ("diskless_az=a", "a"),
        ("app,diskless_az=eu-west-1a", "eu-west-1a"),
        ("app; esker_rack= b ;x=1", "b"),
        ("esker_rack=", None),
        ("notesker_rack=a", None),
    ],
)
def test_the_rack_of_a_client_is_read_from_its_client_id(
    client_id: str | None, rack: str | None
) -> None:
    assert rack_hint(client_id) == rack


def test_the_rack_of_a_long_client_id_is_found_and_not_remembered() -> None:
    placement._remembered_hint.cache_clear()
    for length, remembered in ((SHORT_ID, 1), (SHORT_ID + 1, 1), (32_767, 1)):
        client_id = "esker_rack=eu-1b," + "x" * (length - 17)
        assert len(client_id) == length
        assert rack_hint(client_id) == "eu-1b"
        assert placement._remembered_hint.cache_info().currsize == remembered


def test_leader_placement_distinguishes_an_unknown_client_rack_from_no_rack() -> None:
    found = [PlacedBroker(1, "a")]
    assert is_known(None, found)
    assert is_known("a", found)
    assert not is_known("A", found)


HERE, THERE, LONELY = PlacedBroker(1, "a"), PlacedBroker(2, "b"), PlacedBroker(3, None)
TOPIC = UUID(int=1)


def test_a_consumer_is_redirected_to_a_broker_in_its_own_rack_at_most_once_a_minute() -> None:
    redirects = Redirects()

    def ask(rack: str | None, here: PlacedBroker, now_s: float) -> int | None:
        return redirects.preferred_broker("c", TOPIC, 0, rack, here, [HERE, THERE, LONELY], now_s)

    assert ask("a", HERE, 0) is None  # never from inside
    assert ask(None, HERE, 0) is None
    assert ask("misspelt", HERE, 0) is None
    assert ask("b", HERE, 0) == 2
    assert ask("b", HERE, REDIRECT_PAUSE_S - 1) is None
    assert ask("b", HERE, REDIRECT_PAUSE_S) == 2
    assert ask("b", LONELY, REDIRECT_PAUSE_S * 3) == 2


def test_a_consumer_is_not_redirected_to_a_broker_that_is_not_preferred() -> None:
    unready = THERE._replace(is_preferred=False)
    here = [HERE, unready, LONELY]
    assert Redirects().preferred_broker("c", TOPIC, 0, "b", HERE, here, 0) is None


def test_partition_leaders_are_preferred_brokers_or_any_broker_if_none_is_preferred() -> None:
    unready = THERE._replace(is_preferred=False)
    assert preferred_brokers([HERE, unready]) == [HERE]
    assert preferred_brokers([unready]) == [unready]


def test_a_broker_stores_the_times_of_a_bounded_number_of_consumer_redirects() -> None:
    redirects = Redirects()
    for partition in range(MAX_REMEMBERED + 10):
        redirects.preferred_broker("c", TOPIC, partition, "b", HERE, [HERE, THERE], 0)
    assert len(redirects._sent) == MAX_REMEMBERED


def test_the_hash_that_assigns_partition_leaders_is_the_same_in_all_releases() -> None:
    """Pinned, because another hash would bounce clients during a rolling upgrade."""
    found = [PlacedBroker(number, None) for number in range(5)]
    assert [leader(UUID(int=7), partition, None, found) for partition in range(8)] == [
        2, 2, 1, 0, 0, 3, 0, 3,
    ]  # fmt: skip
