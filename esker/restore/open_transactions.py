"""Ends the transactions that were open when a cluster was lost.

The logs of a restored cluster do not end at one moment. So a transaction can be open in a batch
coordinator or in the group log though the transaction log has completed it, has begun the next one,
or does not know it. Nobody sends its markers again: readers of committed records would stop there
for ever.

- A transaction that is Ongoing in the transaction log is aborted there under the next epoch, as by
  a new producer. Its producer may live, and have acknowledged batches that no source has: to commit
  the rest would show a part.
- A transaction in a Prepare state is left to the log's leader, which sends its markers again.
- Any other one is ended here: committed if the log has committed that number, otherwise aborted.

Source: docs/design/restore.md#open-transactions.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final
from uuid import UUID

from coordinator.batch.cluster_view import StaticView
from coordinator.batch.decide.base import Context
from coordinator.batch.decide.markers import MAX_MARKERS, decide_markers
from coordinator.batch.settings import CoordinatorSettings
from coordinator.batch.sqlite.store import Store
from coordinator.batch.transactions import ABORTED, COMMITTED, TRANSACTIONS_LEVEL
from coordinator.features import Features
from coordinator.groups.state import GroupsEdit, GroupsImage
from coordinator.persistent_map import Map
from coordinator.transactions.checkpoint import state_record
from coordinator.transactions.decide import fenced
from coordinator.transactions.state import (
    OPEN,
    State,
    TopicPartition,
    Transaction,
    TransactionsEdit,
    TransactionsImage,
)
from records.features import ESKER_VERSION
from records.groups import GroupMarkersRecord
from records.internal_topics import CONSUMER_OFFSETS
from records.object_keys import ObjectKeys
from records.rpc.transaction_markers import TransactionMarker, WriteTransactionMarkersRequest

_NO_COORDINATOR_EPOCH: Final = -1  # these markers come from no leader of the transaction log


class Outcomes:
    """The transaction log's word about transactions, after its Ongoing ones were aborted."""

    def __init__(self, lost: TransactionsImage) -> None:
        edit = TransactionsEdit(lost)
        for name in lost.ongoing:
            before = lost.ids[name]
            edit.apply(state_record(name, fenced(before, before.updated_at_ms)))
        self.image = edit.publish()
        self._by_producer: dict[int, Transaction] = {}
        for _, found in self.image.ids.items():
            self._by_producer.setdefault(found.previous_producer_id, found)
        for producer_id, name in self.image.by_producer.items():
            self._by_producer[producer_id] = self.image.ids[name]

    def is_committed(
        self, producer_id: int, number: int, partition: TopicPartition | None
    ) -> bool | None:
        """Return the outcome of a transaction that is open, or None if the log's leader ends it.

        Args:  partition: in which it is open; None: the group log.
        """
        found = self._by_producer.get(producer_id)
        if found is None or found.number != number:
            return False
        if found.state in OPEN:
            names = found.partitions
            if CONSUMER_OFFSETS in names.values() if partition is None else partition in names:
                return None
        return found.state is State.COMPLETE_COMMIT


def end_in_coordinator(store: Store, outcomes: Outcomes, at_ms: int) -> None:
    """End transactions of a batch coordinator whose markers no broker would send.

    Args:    at_ms: the time of the markers.
    Raises:  sqlite3.Error.
    """
    keys = ObjectKeys(prefix="", cluster_id="none", coordinator_partition=0)
    context = Context(
        now_ms=at_ms,
        steady_ms=at_ms,
        leader_since_ms=at_ms,
        shared_ms=None,
        view=StaticView(finalized=Features(Map[str, int]().set(ESKER_VERSION, TRANSACTIONS_LEVEL))),
        settings=CoordinatorSettings(keys=keys),
    )
    found = list(_markers(store, outcomes))
    for at in range(0, len(found), MAX_MARKERS):
        rows = found[at : at + MAX_MARKERS]
        topics = {topic_id: index for index, topic_id in enumerate(dict(rows))}
        request = WriteTransactionMarkersRequest(
            coordinator_partition=0,
            topic_ids=tuple(topics),
            markers=tuple(row._replace(topic_index=topics[topic_id]) for topic_id, row in rows),
        )
        decision = decide_markers(request, store, context)
        assert not any(decision.response.marker_error_codes), f"{decision.response}"
        for record in decision.records:
            store.apply(record)


def _markers(store: Store, outcomes: Outcomes) -> Iterator[tuple[UUID, TransactionMarker]]:
    """Yield the markers to write, each with the id of its topic."""
    for topic_id, topic in store.topics.items():
        if topic.deleted_at_ms >= 0:
            continue
        for index, log_id in enumerate(topic.log_ids):
            for _, producer_id in store.open_transactions.get(log_id) or ():
                producer = store.producers.get((log_id, producer_id))
                row = None if producer is None else producer[3]
                assert producer is not None, f"open without a producer: {producer_id}"
                assert row is not None, f"open without a transaction: {producer_id}"
                is_committed = outcomes.is_committed(
                    producer_id, row.open_number, (topic_id, index)
                )
                if is_committed is not None:
                    yield (
                        topic_id,
                        TransactionMarker(
                            topic_index=-1,
                            partition_index=index,
                            producer_id=producer_id,
                            producer_epoch=producer[0],
                            transaction_number=row.open_number,
                            outcome=COMMITTED if is_committed else ABORTED,
                            coordinator_epoch=_NO_COORDINATOR_EPOCH,
                        ),
                    )


def end_in_groups(image: GroupsImage, outcomes: Outcomes, at_ms: int) -> GroupsImage:
    """Return the groups' image without pending offsets that no marker would end."""
    edit = GroupsEdit(image)
    for producer_id, producer in sorted(image.producers.items()):
        for number in sorted(producer.open):
            outcome = outcomes.is_committed(producer_id, number, None)
            if outcome is not None:
                edit.apply(
                    GroupMarkersRecord(
                        producer_ids=(producer_id,),
                        transaction_numbers=(number,),
                        committed=(outcome,),
                        ended_at_ms=at_ms,
                    )
                )
    return edit.publish()
