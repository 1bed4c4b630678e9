"""Proves that batches belong to an ongoing transaction, and learns the transaction's number.

A proof comes from the broker's replica of the transaction log, or from the log's leader where the
replica does not have the partition. Which of the two, decides `TransactionProofs.find`:

- The leader's proof says at which offset it is true, and serves until the replica has that offset.
- After a batch coordinator has refused a number, the replica is not believed for that id until the
  leader has answered: the replica may be some milliseconds behind, and name the last transaction.

In TV2 (Produce 12 and later) the same question adds the partitions, and is repeated for a short
time while the former transaction of the producer is ending.

Source: docs/design/transactions.md#the-transaction-number; KIP-890.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple
from uuid import UUID

from coordinator.transactions.state import State
from diskless.cluster import Cluster
from diskless.transactions.ending import ask_until_ended, is_ending
from records.kafka_errors import ErrorCode
from records.rpc import transaction_log as rpc

FIRST_ADDING_VERSION: Final = 12  # of Produce: it adds partitions to transactions
FIRST_ABORTABLE_VERSION: Final = 11  # of Produce: it knows TRANSACTION_ABORTABLE

MAX_REMEMBERED: Final = 20_000
"""Transactional ids with a proof of the leader or a refused number; the oldest are forgotten."""

TopicPartition = tuple[UUID, int]


class Producer(NamedTuple):
    """The producer of a transactional batch."""

    transactional_id: str
    producer_id: int
    epoch: int


@dataclass(frozen=True, slots=True)
class Proof:
    """A partition is in the ongoing transaction of a producer."""

    producer: Producer
    number: int
    version: int  # 1 or 2: the protocol of the request
    epoch_began_at_ms: int  # ms since 1970
    refused: Callable[[Producer], None]  # to be called if a coordinator refuses the number


@dataclass(slots=True)
class _Told:
    """What the leader of the transaction log has answered about an id."""

    producer: Producer | None = None  # None: only the offset counts
    number: int = -1
    epoch_began_at_ms: int = -1
    partitions: set[TopicPartition] = field(default_factory=set)
    log_offset: int = 2**63 - 1  # from which the replica may be believed


class TransactionProofs:
    """Proves batches for one broker. Belongs to the event loop."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._told: dict[str, _Told] = {}  # the oldest first
        self.asked = 0  # questions to the leader

    def find(self, producer: Producer, partition: TopicPartition, version: int) -> Proof | None:
        """Return a proof that is known on this broker, or None."""
        image, offset = self._cluster.transactions()
        told = self._told.get(producer.transactional_id)
        if told is not None and offset >= told.log_offset:
            del self._told[producer.transactional_id]
            told = None
        if told is not None:
            if told.producer != producer or partition not in told.partitions:
                return None
            return self._proof(producer, told.number, told.epoch_began_at_ms, version)
        known = image.ids.get(producer.transactional_id)
        if (
            known is None
            or (known.producer_id, known.producer_epoch) != (producer.producer_id, producer.epoch)
            or known.state is not State.ONGOING
            or partition not in known.partitions
        ):
            return None
        return self._proof(producer, known.number, known.epoch_began_at_ms, version)

    def _proof(self, producer: Producer, number: int, began_at_ms: int, version: int) -> Proof:
        is_v2 = version >= FIRST_ADDING_VERSION
        return Proof(producer, number, 2 if is_v2 else 1, began_at_ms, self._refused)

    def _refused(self, producer: Producer) -> None:
        """Forget a transactional id's proofs, because a coordinator refused their number."""
        self._told.pop(producer.transactional_id, None)
        self._remember(producer.transactional_id, _Told())

    def _remember(self, transactional_id: str, told: _Told) -> None:
        self._told[transactional_id] = told
        while len(self._told) > MAX_REMEMBERED:
            del self._told[next(iter(self._told))]

    async def prove(
        self, producer: Producer, partitions: Mapping[TopicPartition, str], version: int
    ) -> dict[TopicPartition, Proof | ErrorCode]:
        """Ask the leader for proofs of these partitions; return a proof or an error for each.

        Args:  partitions: with the names of their topics.
               version: of the Produce request.
        """
        adds = version >= FIRST_ADDING_VERSION
        question = rpc.ProveTransactionRequest(
            transactional_id=producer.transactional_id,
            producer_id=producer.producer_id,
            producer_epoch=producer.epoch,
            topics=tuple(
                rpc.TransactionTopic(topic_id=topic_id, topic_name=name, partitions=(index,))
                for (topic_id, index), name in partitions.items()
            ),
            adds=adds,
            metadata_offset=self._cluster.image.offset,
        )

        async def ask() -> Any:
            self.asked += 1
            return await self._cluster.ask_transactions(question)

        if adds:
            answer = await ask_until_ended(
                ask,
                lambda: is_ending(self._cluster.transactions()[0], producer.transactional_id),
            )
        else:
            answer = await ask()
        if not isinstance(answer, rpc.ProveTransactionResponse):
            return dict.fromkeys(partitions, ErrorCode.NOT_ENOUGH_REPLICAS)
        return self._take(producer, partitions, version, answer)

    def _take(
        self,
        producer: Producer,
        partitions: Mapping[TopicPartition, str],
        version: int,
        answer: rpc.ProveTransactionResponse,
    ) -> dict[TopicPartition, Proof | ErrorCode]:
        """Keep the leader's answer, and return a proof or an error for each partition."""
        code = ErrorCode(answer.error_code)
        missing = {(topic.topic_id, p) for topic in answer.missing for p in topic.partitions}
        if code is ErrorCode.NONE or (code is ErrorCode.TRANSACTION_ABORTABLE and missing):
            told = self._told.pop(producer.transactional_id, None)
            present = set(partitions) - missing
            if told is not None and (told.producer, told.number) == (
                producer,
                answer.transaction_number,
            ):
                present |= told.partitions
            self._remember(
                producer.transactional_id,
                _Told(
                    producer,
                    answer.transaction_number,
                    answer.epoch_began_at_ms,
                    present,
                    answer.log_offset,
                ),
            )
        error = client_error(code, version)
        proof = self._proof(producer, answer.transaction_number, answer.epoch_began_at_ms, version)
        is_partial = code is ErrorCode.TRANSACTION_ABORTABLE and answer.transaction_number >= 0
        return {
            key: proof if code is ErrorCode.NONE or (is_partial and key not in missing) else error
            for key in partitions
        }


def client_error(code: ErrorCode, version: int) -> ErrorCode:
    """Translate an error of the transaction log for a Produce request of this version.

    Source: docs/design/transactions.md#error-words.
    """
    match code:
        case ErrorCode.PRODUCER_FENCED:
            return ErrorCode.INVALID_PRODUCER_EPOCH
        case ErrorCode.TRANSACTION_ABORTABLE if version < FIRST_ABORTABLE_VERSION:
            return ErrorCode.INVALID_TXN_STATE
        case ErrorCode.CONCURRENT_TRANSACTIONS if version < FIRST_ADDING_VERSION:
            return ErrorCode.NOT_ENOUGH_REPLICAS
        case (
            ErrorCode.COORDINATOR_NOT_AVAILABLE
            | ErrorCode.NOT_COORDINATOR
            | ErrorCode.NOT_LEADER_OR_FOLLOWER
            | ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        ):
            return ErrorCode.NOT_ENOUGH_REPLICAS
        case _:
            return code
