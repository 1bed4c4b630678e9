"""A cluster that loses its directories and is restored, and the ledger of its records.

The ledger holds each acknowledged record by partition and offset. After a restore every one of them
is at the same offset, or at or above the exact end of its partition, where the new timeline begins.
"""

from __future__ import annotations

import json
import math
import secrets
import shutil
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Final, NamedTuple, Self

from confluent_kafka import Consumer, IsolationLevel, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec

from tests.clients.cluster import EskerCluster
from tests.clients.confluent import QUICK
from tests.processes import run
from tests.waiting import DEADLINE_S, wait_until

PAUSE_S: Final = 0.002
AT_ONCE: Final = 500
TRANSACTION_TIMEOUT_MS: Final = 10_000


class Shown(NamedTuple):
    """A record as a consumer gets it."""

    value: bytes
    leader_epoch: int


class Ledger:
    """The acknowledged records of a topic, by partition and offset.

    A producer that is not idempotent (`plain`) may store a record twice, as it sends anew what had
    no answer. Each copy counts: the record is lost if none is left.
    """

    def __init__(self, *, plain: bool = False) -> None:
        self._plain = plain
        self.acknowledged: dict[tuple[int, int], bytes] = {}
        self.times_ms: dict[tuple[int, int], float] = {}  # when each was acknowledged
        self.doubled: set[tuple[int, bytes]] = set()  # partition and value

    def split(
        self, found: Mapping[tuple[int, int], Shown], exact_ends: Mapping[int, int]
    ) -> tuple[int, list[tuple[int, int]]]:
        """Return the number of records at their offsets, and the places of those that are lost.

        Fails for a record that is lost below its partition's exact end.
        """
        lost = []
        for place, value in self.acknowledged.items():
            shown = found.get(place)
            if shown is None or shown.value != value:
                partition, offset = place
                assert offset >= exact_ends[partition], f"lost at {place}: {value!r}, now {shown}"
                assert shown is None or shown.leader_epoch > 0, f"two contents at {place}: {shown}"
                lost.append(place)
        return len(self.acknowledged) - len(lost), lost

    def settle(
        self, found: Mapping[tuple[int, int], Shown], exact_ends: Mapping[int, int]
    ) -> Settled:
        """Return what became of each acknowledged record, and note new places; forget lost ones.

        Fails for a record that is lost below its partition's exact end, or that is there twice.
        Only the tail may double one of an idempotent producer: it was sent anew under a later
        epoch, because the lost cluster had not committed the object that held it first.
        """
        _, gone = self.split(found, exact_ends)
        places: dict[tuple[int, bytes], int] = {}
        before = len(self.doubled)
        for (partition, offset), shown in sorted(found.items()):
            one = partition, shown.value
            if places.setdefault(one, offset) != offset and one not in self.doubled:
                may_double = self._plain or offset >= exact_ends[partition]
                assert may_double, f"twice: {shown} at {partition}-{offset}"
                self.doubled.add(one)
        moved, lost = [], []
        for place in gone:
            value, time_ms = self.acknowledged.pop(place), self.times_ms.pop(place)
            new = places.get((place[0], value))
            if new is None:
                lost.append(time_ms)
                continue
            may_move = self._plain or new >= exact_ends[place[0]]
            assert may_move, f"{place} has gone back to {new}"
            moved.append(((place[0], new), value, time_ms))
        for new_place, value, time_ms in moved:
            self.acknowledged[new_place], self.times_ms[new_place] = value, time_ms
        tail = [place for place in self.acknowledged if place[1] >= exact_ends[place[0]]]
        return Settled(len(self.acknowledged) - len(tail), tail, lost, len(self.doubled) - before)


class Settled(NamedTuple):
    """What became of the acknowledged records of a ledger after a restore."""

    exact: int  # records below the exact ends, at their offsets
    tail: list[tuple[int, int]]  # the places of records at and above the exact ends
    lost_ms: list[float]  # when each lost record was acknowledged
    doubled: int  # records that are there twice, and were not before

    def __str__(self) -> str:
        whole = self.exact + len(self.tail) + len(self.lost_ms)
        return (
            f"acknowledged {whole} = exact {self.exact} + tail {len(self.tail)} + lost "
            f"{len(self.lost_ms)}; {self.doubled} doubled"
        )


@dataclass(slots=True)
class Transaction:
    """A transaction of `TransactionalLoad`: its value is in every partition, or in none."""

    commits: bool
    answered_ms: float = math.inf  # when its end was acknowledged


class Transactions:
    """The transactions of one producer, by value and in order."""

    def __init__(self) -> None:
        self.sent: dict[bytes, Transaction] = {}

    @property
    def acknowledged(self) -> int:
        """Return the number of transactions whose end was acknowledged."""
        sent = list(self.sent.values())  # the load adds to them meanwhile
        return sum(one.answered_ms < math.inf for one in sent)

    def settle(
        self,
        found: Mapping[tuple[int, int], Shown],
        partitions: int,
        cut_ms: float,
    ) -> SettledTransactions:
        """Return what became of each transaction for a reader of committed records.

        Each log of a restored cluster is a beginning of the lost one, so whole transactions are
        followed by one at most that is there in part, and by none. Fails for any other sight, for
        an aborted record, and for a commit that was acknowledged before the cut and is not whole.
        Forgets those that are not whole.
        """
        visible = Counter(shown.value for shown in found.values())
        whole, halves, lost, aborted = 0, 0, 0, 0
        is_over = False
        for value, one in list(self.sent.items()):
            count = visible[value]
            if not one.commits:
                assert not count, f"aborted, and visible: {value!r}"
                aborted += 1
                continue
            assert not (is_over and count), f"{value!r} is visible, and one before it is not whole"
            if count == partitions:
                whole += 1
                continue
            is_over = True
            assert one.answered_ms >= cut_ms, f"{value!r} is in {count} of {partitions} partitions"
            halves += count > 0
            lost += one.answered_ms < math.inf
            del self.sent[value]
        return SettledTransactions(whole, halves, lost, aborted)


class SettledTransactions(NamedTuple):
    """The numbers of transactions that a restore kept, kept in part, and lost."""

    whole: int
    halves: int  # one at most: committed while the cut was taken
    lost: int  # acknowledged ones that are not whole
    aborted: int

    def __str__(self) -> str:
        return (
            f"transactions: {self.whole} whole, {self.halves} in part, {self.lost} acknowledged "
            f"ones lost, {self.aborted} aborted"
        )


class TransactionalLoad:
    """A transactional producer in a thread: a record in each partition; every fourth one aborts."""

    def __init__(
        self, bootstrap: str, topic: str, partitions: int, transactions: Transactions
    ) -> None:
        self._transactions = transactions
        self._topic, self._partitions = topic, partitions
        self._bootstrap = bootstrap
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.failures: list[str] = []

    def _make(self, transactional_id: str) -> Producer:
        return Producer(
            QUICK
            | {
                "bootstrap.servers": self._bootstrap,
                "transactional.id": transactional_id,
                "transaction.timeout.ms": TRANSACTION_TIMEOUT_MS,
                "linger.ms": 0,
            }
        )

    def leave_one_open(self) -> None:
        """Begin a transaction of another producer, which never ends it."""
        value = f"open-{secrets.token_hex(4)}".encode()
        self._transactions.sent[value] = Transaction(commits=False)
        self._open = self._make("left-open")
        self._open.init_transactions(30)
        self._open.begin_transaction()
        self._produce(self._open, value)
        assert self._open.flush(30) == 0

    def _produce(self, producer: Producer, value: bytes) -> None:
        for partition in range(self._partitions):
            producer.produce(self._topic, value, partition=partition)

    def _run(self) -> None:
        producer = self._make("ledger")
        if not self._until_done(producer.init_transactions):
            return
        number, token = 0, secrets.token_hex(4)
        while not self._stop.is_set():
            value = f"{token}-txn-{number:06d}".encode()
            one = Transaction(commits=number % 4 != 3)
            self._transactions.sent[value] = one
            number += 1
            producer.begin_transaction()
            self._produce(producer, value)
            end = producer.commit_transaction if one.commits else producer.abort_transaction
            if not self._until_done(end):
                return
            one.answered_ms = time.time() * 1_000

    def _until_done(self, call: Callable[[float], None]) -> bool:
        """Call until it succeeds; return False if the load ends before, or the call fails."""
        while not self._stop.is_set():
            try:
                call(1.0)
            except KafkaException as error:
                if not error.args[0].retriable():
                    self.failures.append(str(error))
                    return False
            else:
                return True
        return False

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()


class Load:
    """A producer in a thread, idempotent unless told; each record is unlike any other."""

    def __init__(
        self,
        bootstrap: str,
        topic: str,
        partitions: int,
        ledger: Ledger,
        *,
        idempotent: bool = True,
    ) -> None:
        self.ledger = ledger
        self.failures: list[str] = []
        self._topic, self._partitions = topic, partitions
        self._producer = Producer(
            QUICK
            | {
                "bootstrap.servers": bootstrap,
                "enable.idempotence": idempotent,
                "linger.ms": 5,
                "message.timeout.ms": 60_000,
            }
        )
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def _run(self) -> None:
        number, token = 0, secrets.token_hex(4)
        while not self._stop.is_set():
            if len(self._producer) < AT_ONCE:
                value = f"{token}-{number:08d}".encode()
                self._producer.produce(
                    self._topic,
                    value,
                    partition=number % self._partitions,
                    on_delivery=self._delivered,
                )
                number += 1
            self._producer.poll(0)
            time.sleep(PAUSE_S)

    def _delivered(self, error: Any, message: Any) -> None:
        if error is None:
            place = message.partition(), message.offset()
            self.ledger.acknowledged[place] = message.value()
            self.ledger.times_ms[place] = time.time() * 1_000
        else:
            self.failures.append(str(error))

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._stop.set()
        self._thread.join()
        self._producer.purge()
        self._producer.poll(0)


def esker(*words: str | Path) -> dict[str, Any]:
    """Run a command in a process of its own; return its JSON."""
    ran = run("esker", *map(str, words), "--json")
    assert not ran.returncode, f"esker {' '.join(map(str, words))}: {ran.stderr.strip()}"
    found: dict[str, Any] = json.loads(ran.stdout)
    return found


def set_aside(cluster: EskerCluster, *nodes: int) -> list[Path]:
    """Rename the directories of stopped nodes; return their new paths, for --from."""
    paths = []
    for node in nodes:
        path = cluster.home / f"{node}.before-{len(list(cluster.home.glob(f'{node}.before-*')))}"
        cluster.log_dir(node).rename(path)
        paths.append(path)
    return paths


def delete(cluster: EskerCluster, *nodes: int) -> None:
    """Lose the disks of stopped nodes."""
    for node in nodes:
        shutil.rmtree(cluster.log_dir(node))


def manifests(cluster: EskerCluster) -> list[Path]:
    """Return the manifests of a cluster's backups."""
    return list((cluster.store / "backup" / cluster.cluster_id / "manifest").iterdir())


def newest_cut_ms(cluster: EskerCluster) -> int:
    """Return when the newest backup began: all that was acknowledged before is in it."""
    began_ms: int = json.loads(max(manifests(cluster)).read_text().splitlines()[0])["began_ms"]
    return began_ms


def apply_words(
    cluster: EskerCluster, cluster_id: str, sources: Sequence[Path], backup: Sequence[str] = ()
) -> list[str]:
    """The words of `esker restore apply` for all nodes of a cluster."""
    words = ["restore", "apply", "--cluster-id", cluster_id, *backup]
    for source in sources:
        words += ["--from", str(source)]
    for node in cluster.ports:
        words += ["--config", str(cluster.properties(node))]
    return words


def restore(
    cluster: EskerCluster,
    sources: Sequence[Path],
    *options: str,
    from_backup: bool = False,
    tail: bool = False,
) -> dict[str, Any]:
    """Plan and apply; the cluster has the new id afterwards. Returns what `apply` printed."""
    words = [f"--from={source}" for source in sources]
    backup: list[str] = []
    if from_backup:
        backup = ["--backup", str(cluster.properties(cluster.broker_ids[0]))]
        backup += ["--backup-cluster", cluster.cluster_id]
    broker = cluster.properties(cluster.broker_ids[0])
    with_store = ["--tail", f"--config={broker}"] if tail else []
    planned = esker("restore", "plan", *words, *backup, *with_store)
    if from_backup:
        backup += ["--at", str(planned["backup"])]
    words = apply_words(cluster, planned["clusterId"], sources, backup)
    done = esker(*words, *(["--tail"] if tail else []), *options)
    assert done["clusterId"] == planned["clusterId"]
    for name in ("logs", "records", "uncertainPartitions", "lostGroupOffsets", "tail"):
        assert done[name] == planned[name], name
    cluster.cluster_id = done["clusterId"]
    return done


def read_all(bootstrap: str, topic: str, partitions: int) -> dict[tuple[int, int], Shown]:
    """Read every record of a topic, with its leader epoch."""
    consumer = Consumer(
        QUICK
        | {
            "bootstrap.servers": bootstrap,
            "group.id": "reader",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "auto.offset.reset": "earliest",
        }
    )
    found: dict[tuple[int, int], Shown] = {}
    try:
        consumer.assign([TopicPartition(topic, one, 0) for one in range(partitions)])
        ended: set[int] = set()
        deadline = time.monotonic() + DEADLINE_S
        while len(ended) < partitions:
            assert time.monotonic() < deadline, f"{topic}: only {sorted(ended)} ended"
            message = consumer.poll(0.5)
            if message is None:
                continue
            if message.error():
                ended.add(message.partition())
                continue
            place = message.partition(), message.offset()
            found[place] = Shown(message.value(), message.leader_epoch())
    finally:
        consumer.close()
    return found


def wait_for_open_transactions(bootstrap: str, topic: str, partitions: int) -> None:
    """Wait until no transaction is open in a topic: all end at the high watermark."""
    admin = AdminClient(QUICK | {"bootstrap.servers": bootstrap})
    places = [TopicPartition(topic, one) for one in range(partitions)]

    def ends(isolation: IsolationLevel) -> list[int]:
        asked = dict.fromkeys(places, OffsetSpec.latest())
        found = admin.list_offsets(asked, isolation_level=isolation, request_timeout=10)
        return [found[place].result().offset for place in places]

    def are_ended() -> bool:
        return ends(IsolationLevel.READ_COMMITTED) == ends(IsolationLevel.READ_UNCOMMITTED)

    wait_until(are_ended, f"{topic} has no open transaction")


def commit(bootstrap: str, group: str, offsets: Mapping[tuple[str, int], int]) -> None:
    """Commit a group's offsets, as a consumer without subscription does."""
    consumer = Consumer(QUICK | {"bootstrap.servers": bootstrap, "group.id": group})
    try:
        consumer.commit(
            offsets=[TopicPartition(*place, offset) for place, offset in offsets.items()],
            asynchronous=False,
        )
    finally:
        consumer.close()


def committed(bootstrap: str, group: str, topic: str, partitions: int) -> dict[int, int]:
    """Return the offsets that a group has committed."""
    consumer = Consumer(QUICK | {"bootstrap.servers": bootstrap, "group.id": group})
    try:
        places = [TopicPartition(topic, one) for one in range(partitions)]
        return {one.partition: one.offset for one in consumer.committed(places, DEADLINE_S)}
    finally:
        consumer.close()


def wait_for_records(ledger: Ledger, count: int) -> None:
    wait_until(lambda: len(ledger.acknowledged) >= count, f"{count} records are acknowledged")
