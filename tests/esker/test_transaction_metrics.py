"""The metrics of the transaction log."""

from __future__ import annotations

from esker.server.transaction_metrics import transaction_metrics
from tests.coordinator.transactions.world import OTHER, TIMEOUT_MS, TOPIC, World


def values(world: World) -> dict[str, float]:
    """Return the metrics by name, without their prefix."""
    return {
        sample.name.removeprefix("esker_transactions_"): sample.value
        for family in transaction_metrics(world.transactions)
        for sample in family.samples
    }


def test_the_metrics_count_open_and_ending_transactions_and_their_markers() -> None:
    world = World()
    owner = world.begin(TOPIC, OTHER)
    world.pass_ms(2_000)
    now = values(world)
    assert (now["ids"], now["open"], now["oldest_open_seconds"], now["ending"]) == (1, 1, 2, 0)
    world.code_of = lambda _destination, _row: 3
    world.end(owner)
    world.pass_ms(1_000)
    now = values(world)
    assert (now["open"], now["oldest_open_seconds"], now["ending"]) == (0, 0, 1)
    assert now["markers_sent_total"] >= 4
    assert now["markers_repeated_total"] >= 2


def test_the_metrics_count_transactions_that_a_timeout_aborted() -> None:
    world = World()
    world.begin(TOPIC)
    world.pass_ms(TIMEOUT_MS)
    world.transactions.abort_timed_out()
    world.run()
    assert values(world)["timed_out_total"] == 1


def test_a_node_that_does_not_lead_the_transaction_log_reports_no_open_transactions() -> None:
    world = World()
    world.begin(TOPIC)
    world.log.depose()
    world.run()
    now = values(world)
    assert (now["ids"], now["open"], now["oldest_open_seconds"]) == (0, 0, 0)
    assert not list(transaction_metrics(None))
