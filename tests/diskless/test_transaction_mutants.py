"""Brokers without one of their rules of transactions, each with the test that catches it.

Source: docs/design/transactions.md#each-rule-has-a-mutant.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

import pytest

from coordinator.transactions.state import State
from diskless.apis import groups, offsets
from diskless.apis.offset_proofs import Proof as OffsetProof
from diskless.apis.partition_offsets import OffsetQuery
from diskless.fetch import service
from diskless.fetch.service import FetchService
from diskless.transactions.owner import TransactionOwner
from diskless.transactions.proofs import TransactionProofs
from esker.settings import config
from records.kafka_errors import ErrorCode
from tests.coordinator.batch import transactions_mutants as of_batches
from tests.coordinator.groups import test_transactional_mutants as of_groups
from tests.coordinator.transactions import test_schedules as of_log
from tests.diskless import test_fetch as fetches
from tests.diskless import test_transaction_markers as of_markers
from tests.diskless import test_transactional_producers as producers
from tests.diskless import test_txn_offset_commit as commits
from tests.diskless.compaction import test_mutants as of_compaction
from tests.esker import test_config as settings

Patch = pytest.MonkeyPatch
PAGE: Final = Path(__file__).parents[2] / "docs/design/transactions.md"


def a_call_in_doubt_is_sent_again(patch: Patch) -> None:
    """An owner repeats a call whose answer was lost."""
    forward: Any = TransactionOwner._forward

    async def again(self: Any, *given: Any, **more: Any) -> Any:
        answer = await forward(self, *given, **more)
        is_in_doubt = answer is ErrorCode.COORDINATOR_NOT_AVAILABLE
        return await forward(self, *given, **more) if is_in_doubt else answer

    patch.setattr(TransactionOwner, "_forward", again)


def closed_connections_are_not_noticed(patch: Patch) -> None:
    """An owner forwards a call though its client may have asked again elsewhere."""
    call: Any = TransactionOwner.call

    async def blind(self: Any, *given: Any, **more: Any) -> Any:
        return await call(self, *given, **more | {"is_connected": lambda: True})

    patch.setattr(TransactionOwner, "call", blind)


def calls_of_one_id_overlap(patch: Patch) -> None:
    """An owner forwards a call while another one of its id is under way."""

    class Open:
        async def __aenter__(self) -> None: ...

        async def __aexit__(self, *_: object) -> None: ...

    find: Any = TransactionOwner._find

    def unlocked(self: Any, transactional_id: str) -> Any:
        found = find(self, transactional_id)
        found.lock = Open()
        return found

    patch.setattr(TransactionOwner, "_find", unlocked)


def a_replica_proves_by_topic_name(patch: Patch) -> None:
    """A broker proves a batch by the name of its topic, which a new topic may have."""
    find: Any = TransactionProofs.find

    def by_name(self: Any, producer: Any, partition: Any, version: int) -> Any:
        topic = self._cluster.image.topics.get(partition[0])
        image, _ = self._cluster.transactions()
        known = image.ids.get(producer.transactional_id)
        if topic is not None and known is not None and known.state is State.ONGOING:
            for key, name in known.partitions.items():
                if (name, key[1]) == (topic.name, partition[1]):
                    partition = key
        return find(self, producer, partition, version)

    patch.setattr(TransactionProofs, "find", by_name)


def a_refused_number_is_believed_again(patch: Patch) -> None:
    """A broker proves a refused batch by its replica again."""
    patch.setattr(TransactionProofs, "_refused", lambda *_: None)


def offsets_are_not_proved(patch: Patch) -> None:
    """A broker commits offsets of any transaction without a question to its log."""

    async def trusting(*_: object, **__: object) -> OffsetProof:
        return OffsetProof(ErrorCode.NONE, 0)

    patch.setattr(groups, "prove_offsets", trusting)


def readers_of_committed_records_wait_for_the_high_watermark(patch: Patch) -> None:
    """A commit above the last stable offset wakes a Fetch that may not read it."""

    def ends(self: Any, asked: Any) -> Any:
        return self._cluster.replica(asked.coordinator).ends(asked.topic_id, asked.partition)

    patch.setattr(FetchService, "_ends", ends)
    patch.setattr(service, "_end_of", lambda answer: answer.high_watermark)


def aborted_transactions_are_not_named(patch: Patch) -> None:
    """A Fetch of committed records leaves out the aborted transactions of its records."""
    patch.setattr(service, "_aborted_of", lambda _: ())


def list_offsets_ignores_isolation(patch: Patch) -> None:
    """The end of the committed records is the high watermark."""

    def uncommitted(place: Any, timestamp: int, **_: object) -> Any:
        return OffsetQuery(place, timestamp)

    patch.setattr(offsets, "OffsetQuery", uncommitted)


def producers_may_expire_at_any_time(patch: Patch) -> None:
    """A node starts though it may forget a marker before a late batch of its transaction."""
    patch.setattr(config, "_transaction_errors", lambda _: iter(()))


def offsets_are_committed_in_a_transaction() -> None:
    """Run the story of a group's offsets with the feature that its cluster has not finalized."""
    with Patch.context() as patch:
        patch.setattr(groups, "has_transactions", lambda _: True)
        commits.test_transactional_offsets_of_a_group_count_only_after_their_transaction_commits()


MUTANTS: Final[Mapping[Callable[[Patch], None], Callable[[], object]]] = {
    a_call_in_doubt_is_sent_again: (
        producers.test_a_broker_acquires_an_id_anew_after_a_call_in_doubt
    ),
    closed_connections_are_not_noticed: producers.test_a_call_of_a_closed_connection_is_dropped,
    calls_of_one_id_overlap: producers.test_calls_of_one_transactional_id_go_one_at_a_time,
    a_replica_proves_by_topic_name: (
        producers.test_a_batch_of_a_topic_that_was_created_again_is_not_in_the_transaction
    ),
    a_refused_number_is_believed_again: (
        producers.test_a_broker_with_a_lagging_replica_proves_a_refused_batch_at_the_leader
    ),
    offsets_are_not_proved: offsets_are_committed_in_a_transaction,
    readers_of_committed_records_wait_for_the_high_watermark: (
        fetches.test_a_waiting_read_committed_fetch_looks_up_again_only_at_another_stable_offset
    ),
    aborted_transactions_are_not_named: (
        fetches.test_a_read_committed_fetch_ends_before_an_open_transaction_and_waits_for_its_end
    ),
    list_offsets_ignores_isolation: (
        producers.test_list_offsets_of_committed_records_ends_at_the_last_stable_offset
    ),
    producers_may_expire_at_any_time: (
        settings.test_a_node_refuses_to_forget_producers_sooner_than_a_batch_can_be_committed
    ),
}
"""Rules left out, and a test that fails without each."""


@pytest.mark.parametrize("mutate", MUTANTS, ids=lambda mutate: mutate.__name__)
def test_a_broker_without_a_rule_of_transactions_fails_its_test(
    mutate: Callable[[Patch], None], monkeypatch: Patch
) -> None:
    claim = MUTANTS[mutate]
    claim()  # holds without the mutation
    mutate(monkeypatch)
    with pytest.raises((AssertionError, pytest.fail.Exception)):
        claim()


def test_the_table_of_rules_of_transactions_names_existing_mutants() -> None:
    registries: dict[str, set[str]] = {
        "log": set(of_log.MUTANTS),
        "batch": set(of_batches.MUTANTS),
        "groups": set(of_groups.MUTANTS),
        "broker": {mutate.__name__ for mutate in MUTANTS},
        "markers": set(of_markers.MUTANTS),
        "compaction": set(vars(of_compaction)),
    }
    named: dict[str, set[str]] = {room: set() for room in registries}
    _, _, section = PAGE.read_text().partition("## Each rule has a mutant")
    for row in re.findall(r"(?m)^\|.*\| (.*) \|$", section.partition("\n## ")[0])[2:]:
        for room, names in re.findall(r"(\w+) ((?:`[^`]+`(?:, )?)+)", row):
            named[room] |= set(re.findall(r"`([^`]+)`", names))
    for room, names in named.items():
        assert names, room
        assert names <= registries[room], f"{room}: {names - registries[room]}"
    assert named["batch"] == registries["batch"]
    assert named["broker"] == registries["broker"]
    assert named["log"] == registries["log"]
    in_schedules = {name for name in registries["groups"] if name.endswith("in a random schedule")}
    assert named["groups"] == registries["groups"] - in_schedules
