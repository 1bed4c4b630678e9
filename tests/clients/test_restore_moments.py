"""A cluster under load is lost at random moments, again and again, and each time restored.

The restored cluster is lost in turn, so its timelines add up. Backups fail for a random time before
a loss. Their interval is 1 s here and 20 s by default, so times are a twentieth: 1.5 s stands for
30 s, and 30 s for ten minutes.

Source: docs/design/restore.md, docs/design/backup.md.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import Any, Final

import pytest

from tests.clients.cluster import EskerCluster
from tests.clients.confluent import Confluent
from tests.clients.restoring import (
    Ledger,
    Load,
    Settled,
    TransactionalLoad,
    Transactions,
    delete,
    manifests,
    newest_cut_ms,
    read_all,
    restore,
    set_aside,
    wait_for_open_transactions,
    wait_for_records,
)
from tests.examples import examples, first_seed
from tests.waiting import wait_until

TOPIC, PARTITIONS = "ledger", 3
SETTINGS: Final = {
    "esker.lineage.timeout.ms": "1000",
    "esker.backup.enable": "true",
    "esker.backup.interval.ms": "1000",
    # Moments take an hour beside other work: at 300 ms a loaded machine elects no leader.
    "controller.quorum.election.timeout.ms": "2000",
    "controller.quorum.fetch.timeout.ms": "4000",
    "initial.broker.registration.timeout.ms": "110000",
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "1000",
}
OUTAGES_S: Final = (0.0, 1.5, 30.0)

Loss = Callable[[EskerCluster], list[Path]]


def _lose_every_directory(cluster: EskerCluster) -> list[Path]:
    delete(cluster, *cluster.quorum_ids, *cluster.broker_ids)
    return []


def _lose_all_but_a_broker(cluster: EskerCluster) -> list[Path]:
    survivor, *others = cluster.broker_ids
    sources = set_aside(cluster, survivor)
    delete(cluster, *cluster.quorum_ids, *others)
    return sources


def _lose_all_but_a_voter(cluster: EskerCluster) -> list[Path]:
    survivor, *others = cluster.quorum_ids
    sources = set_aside(cluster, survivor)
    delete(cluster, *cluster.broker_ids, *others)
    return sources


def _lose_a_majority(cluster: EskerCluster) -> list[Path]:
    survivor, *others = cluster.quorum_ids
    sources = set_aside(cluster, survivor, *cluster.broker_ids)
    delete(cluster, *others)
    return sources


@contextmanager
def failing_backups(cluster: EskerCluster, outage_s: float) -> Iterator[None]:
    """Let the store refuse data of backups for a time, up to the end of the `with` block."""
    data = cluster.store / "backup" / cluster.cluster_id / "data"
    away = data.with_name("away")
    if outage_s:
        data.rename(away)
        data.write_text("a file, so that no object can be stored below it")
        time.sleep(outage_s)
    try:
        yield
    finally:
        if outage_s:
            data.unlink()
            away.rename(data)


def lose_and_restore(
    cluster: EskerCluster,
    ledger: Ledger,
    transactions: Transactions,
    lose: Loss,
    random: Random,
    timeline: int,
) -> None:
    """Lose a cluster under load at a random moment, restore it, and settle the ledgers."""
    from_backup = lose is _lose_every_directory
    outage_s, tail = random.choice(OUTAGES_S), random.random() < 0.7
    words = (cluster.bootstrap, TOPIC, PARTITIONS)
    with Load(*words, ledger), TransactionalLoad(*words, transactions) as in_transactions:
        wait_for_records(ledger, len(ledger.acknowledged) + 100)
        before = transactions.acknowledged
        wait_until(lambda: transactions.acknowledged > before + 20, "transactions are acknowledged")
        time.sleep(random.uniform(0, 6))
        with failing_backups(cluster, outage_s):
            wait_for_records(ledger, len(ledger.acknowledged) + 20)
            in_transactions.leave_one_open()
            cluster.kill()
            lost_ms = time.time() * 1_000
    assert not in_transactions.failures
    began, cut_ms = time.monotonic(), newest_cut_ms(cluster)
    done = restore(cluster, lose(cluster), from_backup=from_backup, tail=tail)
    took_s = time.monotonic() - began
    assert not done["missingObjects"]
    assert manifests(cluster), "the restored cluster begins without a backup"
    cluster.start()
    wait_for_open_transactions(cluster.bootstrap, TOPIC, PARTITIONS)
    found = read_all(cluster.bootstrap, TOPIC, PARTITIONS)  # of committed records
    exact_ends = exact_ends_of(done, found)
    settled = ledger.settle(found, exact_ends)
    left_out = sum(one["records"] for one in left_out_of(done)) if tail else None
    print(
        f"timeline {timeline}, backups failed for {outage_s} s, newest cut "
        f"{(lost_ms - cut_ms) / 1_000:.1f} s before the loss: {settled}"
        f" (left out of the tail: {left_out}); restored in {took_s:.1f} s"
    )
    print(transactions.settle(found, PARTITIONS, cut_ms if from_backup else 0))
    check(settled, left_out, cut_ms if from_backup else 0)
    for (partition, offset), shown in found.items():
        is_new = offset >= exact_ends[partition]
        assert (shown.leader_epoch == timeline) == is_new, (partition, offset, shown)


def left_out_of(done: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield what `apply` printed as left out of the tail, but for transactional batches."""
    for one in done["tail"]["leftOut"]:
        if one["reason"] != "transactional":
            yield one


def exact_ends_of(done: dict[str, Any], found: dict[tuple[int, int], Any]) -> dict[int, int]:
    """Return where each partition's new timeline begins, as `apply` printed it."""
    ends = {p: max(o for q, o in found if q == p) + 1 for p in range(PARTITIONS)}
    added = done["tail"]["partitions"] if done["tail"] else []
    return (
        ends
        | {one["partition"]: one["firstOffset"] for one in added}
        | {one["partition"]: one["exactEnd"] for one in done["uncertainPartitions"]}
    )


def check(settled: Settled, left_out: int | None, cut_ms: float) -> None:
    """Compare what was lost with what was printed.

    With the tail each lost record is one that was left out. Without it, it is younger than the cut.
    """
    if left_out is not None:
        assert len(settled.lost_ms) <= left_out, f"{settled}, and {left_out} were printed"
    assert all(time_ms >= cut_ms for time_ms in settled.lost_ms)


def run_moments(directory: Path, lose: Loss, moments: int) -> None:
    seed = first_seed()
    random, ledger, transactions = Random(seed), Ledger(), Transactions()
    print(f"reproduce: ESKER_FIRST_SEED={seed}")
    with EskerCluster(directory, settings=SETTINGS) as cluster:
        cluster.start()
        Confluent(cluster.bootstrap).create_topic(TOPIC, PARTITIONS, {})
        manifest = cluster.store / "backup" / cluster.cluster_id / "manifest"
        wait_until(lambda: manifest.is_dir() and list(manifest.iterdir()), "the first backup")
        for timeline in range(1, moments + 1):
            lose_and_restore(cluster, ledger, transactions, lose, random, timeline)


@pytest.mark.soak
@pytest.mark.timeout(1_800)
@pytest.mark.parametrize(
    "lose",
    [_lose_all_but_a_broker, _lose_all_but_a_voter, _lose_a_majority, _lose_every_directory],
)
def test_a_cluster_is_restored_again_and_again_at_random_moments(
    tmp_path: Path, lose: Loss
) -> None:
    """`make drill` runs this."""
    run_moments(tmp_path, lose, examples(3))


@pytest.mark.soak
@pytest.mark.timeout(14_400)
@pytest.mark.parametrize(
    "lose", [_lose_every_directory, _lose_all_but_a_broker, _lose_all_but_a_voter]
)
def test_a_hundred_random_moments(tmp_path: Path, lose: Loss) -> None:
    """34 moments of each kind, an hour or two."""
    run_moments(tmp_path, lose, examples(34))
