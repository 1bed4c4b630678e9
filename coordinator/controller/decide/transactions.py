"""Creates the transaction log once the finalized features allow transactions.

Source: docs/design/transactions.md#where-the-log-comes-from.
"""

from __future__ import annotations

from coordinator.controller.decide.context import Context, Decision
from coordinator.controller.image import MetadataImage
from coordinator.features import has_transactions
from records.internal_topics import TRANSACTION_STATE
from records.metadata import PartitionRecord, TopicRecord


def lacks_transaction_log(image: MetadataImage) -> bool:
    """Return whether the cluster may have transactions and has no transaction log yet."""
    return has_transactions(image.features) and TRANSACTION_STATE not in image.topic_ids


def create_transaction_log(context: Context) -> Decision:
    """Create the transaction log, with one partition at every voter, unless it exists."""
    if not lacks_transaction_log(context.image) or not context.voters:
        return Decision((), None)
    topic = TopicRecord(name=TRANSACTION_STATE, topic_id=context.new_id())
    replicas = tuple(sorted(context.voters))
    partition = PartitionRecord(
        partition_id=0,
        topic_id=topic.topic_id,
        replicas=replicas,
        isr=replicas,
        removing_replicas=(),
        adding_replicas=(),
        leader=replicas[0],
        leader_epoch=0,
        partition_epoch=0,
    )
    return Decision((topic, partition), None, one_batch=True)
