"""Rates over sliding windows, and the time by which their exceeding is paid for."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from coordinator.controller.quotas import PRODUCER_BYTE_RATE
from diskless.quotas.clients import ClientQuotas
from diskless.quotas.rates import MAX_THROTTLE_MS, Rate, Windows
from tests.coordinator.controller.test_quotas import by_entity, record

START = 1_000_000


def test_a_first_request_is_measured_over_all_full_samples() -> None:
    rate = Rate(Windows(samples=11, size_ms=1_000))
    rate.record(20_000, START)
    assert rate.per_second(START) == 2_000
    assert rate.throttle_ms(2_000, START) == 0
    assert rate.throttle_ms(1_000, START) == 10_000  # Kafka: (2000 - 1000) / 1000 * 10 s


def test_a_rate_counts_what_was_recorded_in_its_samples_and_nothing_older() -> None:
    rate = Rate(Windows(samples=3, size_ms=1_000))
    for second in range(5):
        rate.record(10, START + 1_000 * second)
    assert rate.per_second(START + 4_000) == 30 * 1_000 / 2_000
    assert rate.per_second(START + 6_999) == 10 * 1_000 / 2_999, "the newest is left"
    assert rate.per_second(START + 7_000) == 0
    assert rate.is_idle(START + 7_000)


def test_a_throttle_time_has_the_most_that_the_protocol_can_carry() -> None:
    rate = Rate(Windows())
    rate.record(1e9, START)
    assert rate.throttle_ms(1e-300, START) == MAX_THROTTLE_MS
    assert rate.throttle_ms(float("inf"), START) == 0


@given(st.lists(st.tuples(st.integers(0, 400), st.integers(0, 5_000)), max_size=60))
def test_a_client_that_waits_as_told_gets_no_more_than_twice_its_limit(
    requests: list[tuple[int, int]],
) -> None:
    """Kafka's windows are that coarse: a burst is forgotten as a whole when its sample is old."""
    windows, limit = Windows(5, 1_000), 1_000.0
    rate, now_ms, sent, largest = Rate(windows), START, 0, 0
    for pause_ms, size in requests:
        now_ms += pause_ms
        sent += size
        largest = max(largest, size)
        rate.record(size, now_ms)
        now_ms += rate.throttle_ms(limit, now_ms)
        burst = limit * windows.span_ms / 1_000
        assert sent <= 2 * limit * (now_ms - START) / 1_000 + burst + largest


# --- clients ------------------------------------------------------------------------------------


def test_client_ids_share_a_users_quota_and_have_their_own_of_any_client_id() -> None:
    clients = ClientQuotas(Windows())
    clients.take(by_entity(record((("user", "ann"),), 100.0)))
    one, two = clients.of("ann", "a", START), clients.of("ann", "b", START)
    assert one is not None
    assert two is not None
    assert one.produce is not None
    assert two.produce is not None
    assert one.produce.rate is two.produce.rate
    assert clients.of("bob", "a", START) is None
    clients.take(by_entity(record((("client-id", None),), 100.0)))
    one, two = clients.of("ann", "a", START), clients.of("bob", "b", START)
    assert one is not None
    assert two is not None
    assert one.produce is not None
    assert two.produce is not None
    assert one.produce.rate is not two.produce.rate
    assert one.fetch is None


def test_a_rate_outlives_a_change_of_its_limit() -> None:
    clients = ClientQuotas(Windows())
    clients.take(by_entity(record((("user", "ann"),), 100.0)))
    before = clients.of("ann", "a", START)
    assert before is not None
    assert before.produce is not None
    assert before.produce.take(2_000, START) == 10_000
    clients.take(by_entity(record((("user", "ann"),), 150.0)))
    after = clients.of("ann", "a", START)
    assert after is not None
    assert after.produce is not None
    assert after.produce.rate is before.produce.rate
    assert after.produce.limit == 150.0


def test_what_is_kept_of_clients_that_invent_client_ids_is_bounded() -> None:
    clients = ClientQuotas(Windows(), max_clients=20, max_rates=30)
    clients.take(
        by_entity(record((("client-id", None),), 100.0), record((("client-id", "kept"),), 1.0))
    )
    for number in range(500):
        client = clients.of("ann", f"id-{number}", START + number)
        assert client is not None
        assert client.produce is not None
        client.produce.take(10, START + number)
        assert len(clients) <= 30
        assert len(clients._clients) <= 20
        assert {key for key, _ in clients._rates} == {PRODUCER_BYTE_RATE}
