"""A cluster under load is lost at random moments, again and again, and each time restored.

The restored cluster is lost in turn, so its timelines add up. Backups fail for a random time before
a loss. Their interval is 1 s here and 20 s by default, so times are a twentieth: 1.5 s stands for
30 s, and 30 s for ten minutes.

Source: docs/design/restore.md, docs/design/backup.md.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
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

TOPIC, PLAIN_TOPIC, PARTITIONS = "ledger", "plain", 3
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
    ledgers: Mapping[str, Ledger],
    transactions: Transactions,
    lose: Loss,
    random: Random,
    timeline: int,
) -> None:
    """Lose a cluster under load at a random moment, restore it, and settle the ledgers.

    `ledgers` has that of the idempotent producer, by topic, and that of the plain one.
    """
    ledger, plain = ledgers[TOPIC], ledgers[PLAIN_TOPIC]
    from_backup = lose is _lose_every_directory
    outage_s, tail = random.choice(OUTAGES_S), random.random() < 0.7
    words = (cluster.bootstrap, TOPIC, PARTITIONS)
    with (
        Load(*words, ledger),
        Load(cluster.bootstrap, PLAIN_TOPIC, PARTITIONS, plain, idempotent=False),
        TransactionalLoad(*words, transactions) as in_transactions,
    ):
        wait_for_records(ledger, len(ledger.acknowledged) + 100)
        wait_for_records(plain, len(plain.acknowledged) + 100)
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
    print(
        f"timeline {timeline}, backups failed for {outage_s} s, newest cut "
        f"{(lost_ms - cut_ms) / 1_000:.1f} s before the loss, restored in {took_s:.1f} s"
    )
    for topic, its_ledger in ledgers.items():
        found = read_all(cluster.bootstrap, topic, PARTITIONS)  # of committed records
        exact_ends = exact_ends_of(done, topic, found)
        settled = its_ledger.settle(found, exact_ends)
        left_out = left_out_of(done, topic) if tail else None
        print(f"{topic}: {settled} (left out of the tail: {left_out})")
        check(settled, left_out, cut_ms if from_backup else 0)
        for (partition, offset), shown in found.items():
            is_new = offset >= exact_ends[partition]
            assert (shown.leader_epoch == timeline) == is_new, (partition, offset, shown)
        if topic == TOPIC:
            print(transactions.settle(found, PARTITIONS, cut_ms if from_backup else 0))


def left_out_of(done: dict[str, Any], topic: str) -> int:
    """Count records that `apply` printed as left out of the tail; not transactional ones."""
    return sum(
        one["records"]
        for one in done["tail"]["leftOut"]
        if one["topic"] == topic and one["reason"] != "transactional"
    )


def exact_ends_of(
    done: dict[str, Any], topic: str, found: dict[tuple[int, int], Any]
) -> dict[int, int]:
    """Return where each partition's new timeline begins, as `apply` printed it."""
    ends = {p: max(o for q, o in found if q == p) + 1 for p in range(PARTITIONS)}
    added = done["tail"]["partitions"] if done["tail"] else []
    return (
        ends
        | {one["partition"]: one["firstOffset"] for one in added if one["topic"] == topic}
        | {
            one["partition"]: one["exactEnd"]
            for one in done["uncertainPartitions"]
            if one["topic"] == topic
        }
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
    random, transactions = Random(seed), Transactions()
    ledgers = {TOPIC: Ledger(), PLAIN_TOPIC: Ledger(plain=True)}
    print(f"reproduce: ESKER_FIRST_SEED={seed}")
    with EskerCluster(directory, settings=SETTINGS) as cluster:
        cluster.start()
        for topic in ledgers:
            Confluent(cluster.bootstrap).create_topic(topic, PARTITIONS, {})
        manifest = cluster.store / "backup" / cluster.cluster_id / "manifest"
        wait_until(lambda: manifest.is_dir() and list(manifest.iterdir()), "the first backup")
        for timeline in range(1, moments + 1):
            lose_and_restore(cluster, ledgers, transactions, lose, random, timeline)


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
