"""A cluster that has lost every voter is restored from one broker's directory.

Source: docs/design/restore.md.
"""

from __future__ import annotations

import signal
import time
from pathlib import Path
from random import Random

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from tests.clients.cluster import EskerCluster
from tests.clients.confluent import QUICK, Confluent
from tests.clients.restoring import (
    Ledger,
    Load,
    Shown,
    commit,
    committed,
    delete,
    esker,
    manifests,
    newest_cut_ms,
    read_all,
    restore,
    set_aside,
    wait_for_records,
)
from tests.examples import examples, first_seed
from tests.waiting import DEADLINE_S, wait_until

TOPIC, PARTITIONS, GROUP = "ledger", 3, "readers"
FAST = {"esker.lineage.timeout.ms": "1000"}
BACKED_UP = {"esker.backup.enable": "true", "esker.backup.interval.ms": "1000"}


def test_every_acknowledged_record_that_one_broker_knew_is_restored_at_its_offset(
    tmp_path: Path,
) -> None:
    ledger = Ledger()
    with EskerCluster(tmp_path, settings=FAST) as cluster:
        cluster.start()
        Confluent(cluster.bootstrap).create_topic(TOPIC, PARTITIONS, {})
        with Load(cluster.bootstrap, TOPIC, PARTITIONS, ledger):
            wait_for_records(ledger, 1_500)
            commit(cluster.bootstrap, GROUP, {(TOPIC, one): 100 for one in range(PARTITIONS)})
            wait_for_records(ledger, 3_000)
            cluster.kill()
        survivor, other = cluster.broker_ids
        sources = set_aside(cluster, survivor)
        delete(cluster, *cluster.quorum_ids, other)
        done = restore(cluster, sources)
        assert not done["missingObjects"]
        cluster.start()

        exact_ends = dict.fromkeys(range(PARTITIONS), 1 << 62) | {
            one["partition"]: one["exactEnd"] for one in done["uncertainPartitions"]
        }
        found = read_all(cluster.bootstrap, TOPIC, PARTITIONS)
        ends = {p: max(o for q, o in found if q == p) + 1 for p in range(PARTITIONS)}
        exact_ends = {p: min(exact_ends[p], ends[p]) for p in range(PARTITIONS)}
        exact, lost = ledger.split(found, exact_ends)
        print(f"acknowledged {len(ledger.acknowledged)} = exact {exact} + lost {len(lost)}")
        assert exact > 2_500
        for (partition, offset), shown in found.items():
            assert shown.leader_epoch == (offset >= exact_ends[partition])
        assert committed(cluster.bootstrap, GROUP, TOPIC, PARTITIONS) == dict.fromkeys(
            range(PARTITIONS), 100
        )
        producer = Producer(
            QUICK | {"bootstrap.servers": cluster.bootstrap, "enable.idempotence": True}
        )
        placed: list[tuple[int, int]] = []
        for partition in range(PARTITIONS):
            producer.produce(
                TOPIC,
                b"after",
                partition=partition,
                on_delivery=lambda _, m: placed.append((m.partition(), m.offset())),
            )
        assert producer.flush(30) == 0
        assert sorted(placed) == sorted(ends.items())
        after = read_all(cluster.bootstrap, TOPIC, PARTITIONS)
        assert all(after[place].value == b"after" for place in placed)
        assert all(after[place].leader_epoch == 1 for place in placed)
        cluster.stop(*cluster.broker_ids, *cluster.quorum_ids)
        logs = [f"--log-dir={cluster.log_dir(node)}" for node in cluster.quorum_ids]
        audited = esker("spark", "audit", *logs, "--store", cluster.store, "--bytes", "full")
        assert not audited["violations"], audited


def test_everything_but_the_bucket_is_lost_and_what_was_backed_up_is_restored(
    tmp_path: Path,
) -> None:
    settings = FAST | BACKED_UP
    ledger = Ledger()
    with EskerCluster(tmp_path, brokers=1, settings=settings) as cluster:
        cluster.start()
        Confluent(cluster.bootstrap).create_topic(TOPIC, PARTITIONS, {})
        config = f"--config={cluster.properties(cluster.broker_ids[0])}"
        with Load(cluster.bootstrap, TOPIC, PARTITIONS, ledger):
            wait_for_records(ledger, 500)
            commit(cluster.bootstrap, GROUP, {(TOPIC, one): 100 for one in range(PARTITIONS)})
            before = dict(ledger.acknowledged)
            number = esker("backup", "now", config)["number"]
            wait_for_records(ledger, len(ledger.acknowledged) + 200)
            cluster.kill()
        assert number <= int(max(manifests(cluster)).name)
        cut_ms = newest_cut_ms(cluster)
        delete(cluster, *cluster.quorum_ids, *cluster.broker_ids)
        done = restore(cluster, [], from_backup=True, tail=True)
        assert not done["missingObjects"]
        assert not done["uncertainPartitions"]
        assert done["backedUp"]
        assert manifests(cluster)
        cluster.start()

        found = read_all(cluster.bootstrap, TOPIC, PARTITIONS)
        ends = {p: max(o for q, o in found if q == p) + 1 for p in range(PARTITIONS)}
        exact_ends = ends | {
            one["partition"]: one["firstOffset"] for one in done["tail"]["partitions"]
        }
        counts = ledger.settle(found, exact_ends)
        print(f"{counts}; printed: {done['tail']['records']} in the tail")
        assert all(ledger.times_ms[place] >= cut_ms for place in counts.tail)
        assert counts.tail
        assert not counts.lost_ms  # one broker, an idempotent producer: ids are in its order
        assert all(found[place].value == value for place, value in before.items())
        for (partition, offset), shown in found.items():
            assert shown.leader_epoch == (offset >= exact_ends[partition])
        assert committed(cluster.bootstrap, GROUP, TOPIC, PARTITIONS) == dict.fromkeys(
            range(PARTITIONS), 100
        )
        after = Ledger()
        with Load(cluster.bootstrap, TOPIC, PARTITIONS, after):
            wait_for_records(after, 100)
        found = read_all(cluster.bootstrap, TOPIC, PARTITIONS)
        for (partition, offset), value in after.acknowledged.items():
            assert offset >= ends[partition]
            assert found[partition, offset] == Shown(value, 1)


def stored(cluster: EskerCluster) -> set[str]:
    """The keys of all objects of batches in the store."""
    return {
        str(path.relative_to(cluster.store))
        for path in cluster.store.rglob("[0-9]*")
        if path.is_file() and not path.is_relative_to(cluster.store / "backup")
    }


def test_an_old_cluster_that_is_alive_during_a_restore_stops_and_deletes_nothing(
    tmp_path: Path,
) -> None:
    """A broker was forgotten, because its machine slept; its quorum went on and marked objects."""
    settings = FAST | {
        "diskless.file.delete.delay.ms": "4000",
        "esker.file.delete.interval.ms": "300",
    }
    ledger = Ledger()
    with EskerCluster(tmp_path / "old", settings=settings) as old:
        old.start()
        survivor, forgotten = old.broker_ids
        Confluent(old.bootstrap).create_topic(TOPIC, PARTITIONS, {})
        with Load(old.bootstrap, TOPIC, PARTITIONS, ledger):
            wait_for_records(ledger, 300)
        old.stop(survivor)
        sources = set_aside(old, survivor)
        before = stored(old)
        # The first client would wait a minute if its last Metadata response named the stopped
        # broker as the controller: librdkafka does not ask the other broker. A new client does.
        Confluent(old.bootstrap).delete_topic(TOPIC)
        old.signal(forgotten, signal.SIGSTOP)

        new = EskerCluster(tmp_path / "new", brokers=1, settings=settings, store=old.store)
        delete(new, *new.ports)
        with new:
            restore(new, sources)
            new.start()
            old.signal(forgotten, signal.SIGCONT)
            assert old.processes.pop(forgotten).wait(DEADLINE_S) == 1
            assert f"was restored as cluster {new.cluster_id}" in old.output(forgotten)
            assert before <= stored(old)
            found = read_all(new.bootstrap, TOPIC, PARTITIONS)
            exact, lost = ledger.split(found, dict.fromkeys(range(PARTITIONS), 1 << 62))
            assert (exact, lost) == (len(ledger.acknowledged), [])


def test_a_consumer_that_read_beyond_the_exact_end_is_told_by_the_leader_epoch(
    tmp_path: Path,
) -> None:
    """The only survivor was stopped before the last records, which a consumer has read."""
    ledger = Ledger()
    with EskerCluster(tmp_path, settings=FAST) as cluster:
        cluster.start()
        Confluent(cluster.bootstrap).create_topic(TOPIC, 1, {})
        survivor, other = cluster.broker_ids
        with Load(cluster.bootstrap, TOPIC, 1, ledger):
            wait_for_records(ledger, 200)
        cluster.stop(survivor)
        with Load(cluster.bootstrap, TOPIC, 1, ledger):
            wait_for_records(ledger, len(ledger.acknowledged) + 200)
        read = max(offset for _, offset in ledger.acknowledged) + 1
        commit(cluster.bootstrap, GROUP, {(TOPIC, 0): read})
        cluster.kill()
        sources = set_aside(cluster, survivor)
        delete(cluster, *cluster.quorum_ids, other)
        done = restore(cluster, sources)
        cluster.start()
        after = Ledger()
        with Load(cluster.bootstrap, TOPIC, 1, after):
            wait_for_records(after, 300)  # the lost offsets have other records now
        exact_end = min(offset for _, offset in after.acknowledged)
        for one in done["uncertainPartitions"]:
            exact_end = one["exactEnd"]
        assert 0 < exact_end < read

        found = read_all(cluster.bootstrap, TOPIC, 1)
        exact, lost = ledger.split(found, {0: exact_end})
        print(f"acknowledged {len(ledger.acknowledged)} = exact {exact} + lost {len(lost)}")
        assert len(lost) == read - exact_end
        consumer = Consumer(
            QUICK
            | {
                "bootstrap.servers": cluster.bootstrap,
                "group.id": "external",
                "auto.offset.reset": "error",
                "enable.auto.commit": False,
            }
        )
        try:
            consumer.assign([TopicPartition(TOPIC, 0, read - 1, leader_epoch=0)])
            told = wait_until(
                lambda: (message := consumer.poll(0.5)) and message.error(), "an error"
            )
            assert "log truncation detected" in told.str(), told
            assert f"broker end offset is {exact_end} (offset leader epoch 0)" in told.str(), told
            consumer.assign([TopicPartition(TOPIC, 0, exact_end, leader_epoch=0)])
            message = wait_until(lambda: consumer.poll(0.5), "a record")
            assert (message.error(), message.offset()) == (None, exact_end)
            assert message.leader_epoch() == 1
        finally:
            consumer.close()


@pytest.mark.soak
@pytest.mark.timeout(600)
def test_transactions_go_on_after_a_restore(tmp_path: Path) -> None:
    """Each transaction that was acknowledged before the survivor stopped is there, and whole."""
    with EskerCluster(tmp_path, settings=FAST) as cluster:
        cluster.start()
        Confluent(cluster.bootstrap).create_topic(TOPIC, PARTITIONS, {})
        producer = _transactional(cluster.bootstrap)
        for number in range(20):
            _commit_transaction(producer, number)
        survivor, other = cluster.broker_ids
        cluster.stop(survivor)
        for number in range(20, 25):
            _commit_transaction(producer, number)
        producer.begin_transaction()
        producer.produce(TOPIC, b"open", partition=0)
        producer.flush(10)
        cluster.kill()
        sources = set_aside(cluster, survivor)
        delete(cluster, *cluster.quorum_ids, other)
        restore(cluster, sources)
        cluster.start()
        again = _transactional(cluster.bootstrap)
        for number in range(100, 110):
            _commit_transaction(again, number)
        found = read_all(cluster.bootstrap, TOPIC, PARTITIONS)
        numbers = sorted(int(one.value) for one in found.values())
        whole = [*range(20), *range(100, 110)]
        assert numbers == sorted(number for number in whole for _ in range(PARTITIONS))


def _transactional(bootstrap: str) -> Producer:
    producer = Producer(QUICK | {"bootstrap.servers": bootstrap, "transactional.id": "payments"})
    producer.init_transactions(30)
    return producer


def _commit_transaction(producer: Producer, number: int) -> None:
    producer.begin_transaction()
    for partition in range(PARTITIONS):
        producer.produce(TOPIC, str(number).encode(), partition=partition)
    producer.commit_transaction(30)


@pytest.mark.soak
@pytest.mark.timeout(1_800)
@pytest.mark.parametrize("outage_s", [0, 30, 600])
def test_brokers_are_killed_and_backups_fail_before_everything_but_the_bucket_is_lost(
    tmp_path: Path, outage_s: int
) -> None:
    """A broker in two is killed by -9 while it ships; then the store refuses data of backups."""
    seed = first_seed()
    random = Random(seed)
    print(f"reproduce: ESKER_FIRST_SEED={seed}")
    ledger = Ledger()
    with EskerCluster(tmp_path, settings=FAST | BACKED_UP) as cluster:
        cluster.start()
        Confluent(cluster.bootstrap).create_topic(TOPIC, PARTITIONS, {})
        config = f"--config={cluster.properties(cluster.broker_ids[0])}"
        with Load(cluster.bootstrap, TOPIC, PARTITIONS, ledger):
            esker("backup", "now", config)
            for _ in range(examples(6)):
                broker = random.choice(cluster.broker_ids)
                time.sleep(random.uniform(0, 4))
                cluster.kill(broker)
                cluster.launch(broker)
                wait_for_records(ledger, len(ledger.acknowledged) + 200)
            esker("backup", "now", config)
            assert esker("backup", "verify", config, "--all")["faults"] == []
            data = cluster.store / "backup" / cluster.cluster_id / "data"
            away = data.with_name("away")
            if outage_s:
                data.rename(away)
                data.write_text("a file, so that no object can be stored below it")
                time.sleep(outage_s)
                wait_for_records(ledger, len(ledger.acknowledged) + 200)
            cluster.kill()
        if outage_s:
            data.unlink()
            away.rename(data)
        cut_ms = newest_cut_ms(cluster)
        assert esker("backup", "verify", config, "--all")["faults"] == []
        delete(cluster, *cluster.quorum_ids, *cluster.broker_ids)
        done = restore(cluster, [], from_backup=True)
        assert not done["missingObjects"]
        cluster.start()
        found = read_all(cluster.bootstrap, TOPIC, PARTITIONS)
        ends = {p: max(o for q, o in found if q == p) + 1 for p in range(PARTITIONS)}
        exact, lost = ledger.split(found, ends)
        late_s = (max(ledger.times_ms.values()) - cut_ms) / 1_000
        print(
            f"acknowledged {len(ledger.acknowledged)} = exact {exact} + lost {len(lost)}, of the "
            f"last {late_s:.1f} s; backups failed for {outage_s} s"
        )
        assert late_s >= outage_s
        assert all(ledger.times_ms[place] >= cut_ms for place in lost)


@pytest.mark.soak
@pytest.mark.timeout(600)
def test_deleted_objects_stay_in_the_store_while_a_backup_that_can_be_restored_needs_them(
    tmp_path: Path,
) -> None:
    retention_s = 15
    settings = FAST | BACKED_UP
    settings |= {
        "esker.backup.retention.ms": str(retention_s * 1_000),
        "diskless.file.delete.delay.ms": "2000",
        "esker.file.delete.interval.ms": "300",
    }
    ledger = Ledger()
    with EskerCluster(tmp_path, settings=settings) as cluster:
        cluster.start()
        client = Confluent(cluster.bootstrap)
        client.create_topic(TOPIC, PARTITIONS, {})
        config = f"--config={cluster.properties(cluster.broker_ids[0])}"
        with Load(cluster.bootstrap, TOPIC, PARTITIONS, ledger):
            wait_for_records(ledger, 300)
        esker("backup", "now", config)
        before = stored(cluster)
        assert before
        deleted_at = time.monotonic()
        client.delete_topic(TOPIC)
        while time.monotonic() - deleted_at < retention_s:
            assert before <= stored(cluster)
            time.sleep(0.5)
        wait_until(lambda: not before & stored(cluster), "the objects are deleted")
        print(f"gone {time.monotonic() - deleted_at:.0f} s after the topic")
        assert esker("backup", "verify", config, "--all")["faults"] == []
