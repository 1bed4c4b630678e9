"""The checker of transactional histories finds each kind of anomaly, and nothing in a good one."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Final

import pytest

from tests.examples import seeds
from tests.nemesis import transaction_history
from tests.nemesis.transaction_history import (
    AnomaliesError,
    Kind,
    Outcome,
    Read,
    Transaction,
    TransactionHistory,
    Value,
    check,
    find_anomalies,
)

PARTITIONS: Final = 2


def good_history(seed: int = 0) -> TransactionHistory:
    """Return a history of three producers in which everything is as it should be."""
    chance = random.Random(seed)
    history, logs, time = TransactionHistory(), {p: [] for p in range(PARTITIONS)}, 0
    offsets = dict.fromkeys(range(PARTITIONS), 0)
    sent = {"a": 0, "b": 0, "c": 0}
    for number in range(30):
        producer = chance.choice("abc")
        outcome = chance.choice((Outcome.COMMITTED, Outcome.COMMITTED, Outcome.ABORTED))
        is_unknown, time = chance.random() < 0.2, time + 10
        values = []
        for index in range(3):
            made_of = history.inputs if outcome is Outcome.COMMITTED and index == 0 else -1
            history.inputs += made_of >= 0
            values.append((index % PARTITIONS, Value(producer, number, sent[producer], made_of)))
            sent[producer] += 1
        for partition, value in values:
            if outcome is Outcome.COMMITTED:
                logs[partition].append((offsets[partition], value))
                read = Read(time + 1, partition, offsets[partition], value)
                history.reads["reader"].append(read)
            offsets[partition] += 1
        history.transactions[producer, number] = Transaction(
            values,
            time if outcome is Outcome.COMMITTED else transaction_history.NEVER,
            Outcome.UNKNOWN if is_unknown else outcome,
        )
    history.logs = logs
    return history


def known(history: TransactionHistory, outcome: Outcome) -> Transaction:
    """Return a transaction with this outcome."""
    return next(one for one in history.transactions.values() if one.outcome is outcome)


def drop(history: TransactionHistory, count: int) -> None:
    """Remove so many records of a committed transaction from the logs, and all reads."""
    gone = {value for _, value in known(history, Outcome.COMMITTED).values[:count]}
    history.logs = {
        partition: [row for row in log if row[1] not in gone]
        for partition, log in history.logs.items()
    }
    history.reads.clear()


def lose(history: TransactionHistory) -> None:
    """Remove a committed transaction."""
    drop(history, 3)


def tear(history: TransactionHistory) -> None:
    """Remove a part of a committed transaction."""
    drop(history, 1)


def keep_aborted(history: TransactionHistory) -> None:
    """Store a record of an aborted transaction."""
    partition, value = known(history, Outcome.ABORTED).values[0]
    history.logs[partition].append((10_000, value))  # type: ignore[attr-defined]


def read_aborted(history: TransactionHistory) -> None:
    """Let a reader get a record of an aborted transaction that the log does not show later."""
    partition, value = known(history, Outcome.ABORTED).values[0]
    history.reads["other"].append(Read(10_000, partition, 10_000, value))


def double(history: TransactionHistory) -> None:
    """Store a record twice."""
    history.logs[1].append((10_000, history.logs[1][-1][1]))  # type: ignore[attr-defined]


def read_early(history: TransactionHistory) -> None:
    """Let a reader get a record before the commit was asked for."""
    read = history.reads["reader"][0]
    history.reads["reader"][0] = read._replace(returned=0)


def reorder(history: TransactionHistory) -> None:
    """Exchange two records of one producer."""
    log = history.logs[0]
    first = log[0][1]
    other = next(i for i in range(1, len(log)) if log[i][1].producer == first.producer)
    log[0], log[other] = (log[0][0], log[other][1]), (log[other][0], first)  # type: ignore[index]
    history.reads.clear()


def skip(history: TransactionHistory) -> None:
    """Let a reader pass a record by."""
    places = [i for i, read in enumerate(history.reads["reader"]) if read.partition == 0]
    del history.reads["reader"][places[2]]


def alter(history: TransactionHistory) -> None:
    """Give a reader another record than the log has."""
    read = history.reads["reader"][0]
    other = history.reads["reader"][3].value
    history.reads["reader"][0] = read._replace(value=other, returned=10_000)


def transform_twice(history: TransactionHistory) -> None:
    """Make a second output of an input record."""
    transaction = known(history, Outcome.COMMITTED)
    partition, value = transaction.values[2]
    again = value._replace(input=0)
    transaction.values[2] = (partition, again)
    history.logs = {
        p: [(offset, again if row == value else row) for offset, row in log]
        for p, log in history.logs.items()
    }
    history.reads.clear()


def forget_an_input(history: TransactionHistory) -> None:
    """Have one more input record, and no output of it."""
    history.inputs += 1


PLANTED: dict[Kind, list[Callable[[TransactionHistory], None]]] = {
    Kind.LOST: [lose],
    Kind.TORN: [tear],
    Kind.ABORTED: [keep_aborted, read_aborted],
    Kind.DUPLICATED: [double],
    Kind.EARLY: [read_early],
    Kind.REORDERED: [reorder],
    Kind.SKIPPED: [skip],
    Kind.ALTERED: [alter],
    Kind.INPUT_LOST: [forget_an_input],
    Kind.INPUT_TWICE: [transform_twice],
}


@pytest.mark.parametrize("seed", seeds(20))
def test_the_transaction_checker_accepts_a_history_of_atomic_and_isolated_transactions(
    seed: int,
) -> None:
    check(good_history(seed))


@pytest.mark.parametrize("kind", Kind)
def test_the_transaction_checker_finds_each_kind_of_planted_anomaly(kind: Kind) -> None:
    for plant in PLANTED[kind]:
        history = good_history()
        plant(history)
        assert kind in {one.kind for one in find_anomalies(history)}, plant
        with pytest.raises(AnomaliesError, match=kind):
            check(history)


FINDERS: Final = {
    "_find_broken_transactions": (Kind.LOST, Kind.TORN),
    "_find_broken_logs": (Kind.DUPLICATED, Kind.REORDERED),
    "_find_early_reads": (Kind.EARLY,),
    "_find_broken_reads": (Kind.SKIPPED, Kind.ALTERED),
    "_find_broken_inputs": (Kind.INPUT_TWICE,),
}


@pytest.mark.parametrize("finder", FINDERS)
def test_a_transaction_checker_without_one_of_its_rules_misses_planted_anomalies(
    finder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transaction_history, finder, lambda _history: ())
    for kind in FINDERS[finder]:
        history = good_history()
        PLANTED[kind][0](history)
        assert kind not in {one.kind for one in find_anomalies(history)}


def test_the_transaction_checker_accepts_a_transaction_of_unknown_outcome_as_a_whole_or_not() -> (
    None
):
    for count, kinds in ((3, set()), (1, {Kind.TORN})):
        history = good_history()
        known(history, Outcome.COMMITTED).outcome = Outcome.UNKNOWN
        transaction = next(
            one for one in history.transactions.values()
            if one.outcome is Outcome.UNKNOWN
            and one.commit_invoked != transaction_history.NEVER
        )  # fmt: skip
        gone = {value for _, value in transaction.values[:count]}
        history.logs = {
            partition: [row for row in log if row[1] not in gone]
            for partition, log in history.logs.items()
        }
        history.reads.clear()
        history.inputs = 0
        assert {one.kind for one in find_anomalies(history)} == kinds


def test_the_values_of_transactional_test_records_survive_encoding_and_decoding() -> None:
    value = Value("a", 1, 2, 3)
    assert Value.decode(value.encode()) == value
