"""The calls of transactional producers: their ids and epochs, partitions, offsets, and endings.

    calls = TransactionCalls(cluster, owner, ids, max_timeout_ms=...)
    handlers |= calls.handlers

The broker that owns a transactional id forwards them to the transaction log. Codes are translated
for the request's version: old clients end at a code that they do not know.

Source: KIP-98, KIP-360, KIP-890; docs/design/transactions.md#error-words.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from coordinator.controller.image import MetadataImage
from coordinator.features import has_transactions
from coordinator.transactions.settings import MAX_ID_BYTES, MAX_PARTITIONS
from coordinator.transactions.state import LAST_EPOCH
from diskless.apis.handler import RequestContext, make_handler
from diskless.apis.offset_proofs import group_log_topic
from diskless.cluster import Cluster
from diskless.transactions.owner import TransactionOwner
from raft.net.handlers import Served
from records.kafka_errors import ErrorCode
from records.rpc import transaction_log as log_rpc
from records.rpc import transactions as rpc
from records.rpc.partitions import InitProducerIdRequest, InitProducerIdResponse

NO_TRANSACTIONS: Final = ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
"""The answer while the cluster's features do not allow transactions: clients end at once."""

FIRST_FENCED_VERSIONS: Final = {22: 4, 24: 2, 25: 2, 26: 2}
"""The first versions, by api key, that have PRODUCER_FENCED."""

TV1: Final = 1
TV2: Final = 2
FIRST_RAISING_VERSION: Final = 5  # of EndTxn: it raises the epoch (TV2)
LAST_ADD_VERSION: Final = 3  # later ones are sent between Kafka's brokers only

_Topic = rpc.AddPartitionsToTxnTopic
_TopicResult = rpc.AddPartitionsToTxnTopicResult


class SpareIds:
    """Producer ids that were taken from the broker's block, and given to no producer yet."""

    def __init__(self, ids: Any) -> None:
        self._ids = ids
        self._spare: list[int] = []

    async def take(self) -> int | None:
        """Return an unused producer id, or None if no block of ids arrives in time."""
        return self._spare.pop() if self._spare else await self._ids.take()

    def give_back(self, producer_id: int) -> None:
        """Return a producer id that the transaction log has certainly not used."""
        self._spare.append(producer_id)


class TransactionCalls:
    """Answers the calls of transactional producers for all listeners of one broker."""

    def __init__(
        self, cluster: Cluster, owner: TransactionOwner, ids: Any, *, max_timeout_ms: int
    ) -> None:
        """Create a broker's handlers of transaction requests, such as EndTxn.

        Args:  owner: of this broker's transactional ids.
               ids: gives unused producer ids (`diskless.apis.producers.ProducerIds`).
               max_timeout_ms: the setting transaction.max.timeout.ms.
        """
        self._cluster = cluster
        self._owner = owner
        self._spares = SpareIds(ids)
        self._max_timeout_ms = max_timeout_ms
        self.handlers: dict[int, Served] = {
            24: make_handler(
                rpc.AddPartitionsToTxnRequest, self.add_partitions, highest=LAST_ADD_VERSION
            ),
            25: make_handler(rpc.AddOffsetsToTxnRequest, self.add_offsets),
            26: make_handler(rpc.EndTxnRequest, self.end),
        }

    async def init(
        self, request: InitProducerIdRequest, context: RequestContext
    ) -> InitProducerIdResponse:
        """Answer InitProducerId of a transactional producer."""
        transactional_id = request.transactional_id or ""
        code = self._refuse_id(transactional_id)
        has_id, has_epoch = request.producer_id >= 0, request.producer_epoch >= 0
        if code is ErrorCode.NONE and has_id != has_epoch:
            code = ErrorCode.INVALID_REQUEST
        if code is ErrorCode.NONE and not (
            0 < request.transaction_timeout_ms <= self._max_timeout_ms
        ):
            code = ErrorCode.INVALID_TRANSACTION_TIMEOUT
        spare = None
        if code is ErrorCode.NONE:
            spare = await self._spares.take()
            code = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS if spare is None else code
        if spare is None:
            return InitProducerIdResponse(error_code=int(code), producer_epoch=-1)
        answer = await self._owner.call(
            transactional_id,
            lambda epoch: log_rpc.InitTransactionalIdRequest(
                transactional_id=transactional_id,
                ownership_epoch=epoch,
                timeout_ms=request.transaction_timeout_ms,
                producer_id=request.producer_id,
                producer_epoch=request.producer_epoch,
                spare_producer_id=spare,
            ),
            create=True,
            is_connected=context.is_connected,
        )
        self._settle_spare(spare, answer)
        code = _code(answer, 22, context.version)
        if code is not ErrorCode.NONE:
            return InitProducerIdResponse(error_code=int(code), producer_epoch=-1)
        return InitProducerIdResponse(
            error_code=0, producer_id=answer.producer_id, producer_epoch=answer.producer_epoch
        )

    def _settle_spare(self, spare: int, answer: Any) -> None:
        """Keep a spare producer id that the log's response shows to be unused."""
        if not isinstance(answer, ErrorCode) and answer.producer_id != spare:
            self._spares.give_back(spare)

    def _refuse_id(self, transactional_id: str) -> ErrorCode:
        """Return the error of a transactional id that no call may name, or NONE."""
        if not has_transactions(self._cluster.image.features):
            return NO_TRANSACTIONS if transactional_id else ErrorCode.INVALID_REQUEST
        if not 0 < len(transactional_id.encode()) <= MAX_ID_BYTES:
            return ErrorCode.INVALID_REQUEST
        return ErrorCode.NONE

    # --- partitions -----------------------------------------------------------------------------

    async def add_partitions(
        self, request: rpc.AddPartitionsToTxnRequest, context: RequestContext
    ) -> rpc.AddPartitionsToTxnResponse:
        """Answer AddPartitionsToTxn: all partitions are added, or none."""
        transactional_id = request.v3_and_below_transactional_id
        image, topics = self._cluster.image, request.v3_and_below_topics
        code = self._refuse_id(transactional_id)
        unknown: set[tuple[str, int]] = set()
        if sum(len(topic.partitions) for topic in topics) > MAX_PARTITIONS:
            code = code or ErrorCode.POLICY_VIOLATION
        else:
            unknown = _unknown(image, topics)
        if code is ErrorCode.NONE and not unknown:
            answer = await self._owner.call(
                transactional_id,
                lambda epoch: log_rpc.AddTransactionPartitionsRequest(
                    transactional_id=transactional_id,
                    ownership_epoch=epoch,
                    producer_id=request.v3_and_below_producer_id,
                    producer_epoch=request.v3_and_below_producer_epoch,
                    topics=_named(image, topics),
                    metadata_offset=image.offset,
                ),
                create=False,
                is_connected=context.is_connected,
                begins=True,
            )
            code = _code(answer, 24, context.version)
        if code is ErrorCode.NONE and unknown:
            code = ErrorCode.OPERATION_NOT_ATTEMPTED
        result = _TopicResult.AddPartitionsToTxnPartitionResult
        missing = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        return rpc.AddPartitionsToTxnResponse(
            results_by_topic_v3_and_below=tuple(
                _TopicResult(
                    name=topic.name,
                    results_by_partition=tuple(
                        result(
                            partition_index=index,
                            partition_error_code=int(
                                missing if (topic.name, index) in unknown else code
                            ),
                        )
                        for index in topic.partitions
                    ),
                )
                for topic in topics
            )
        )

    async def add_offsets(
        self, request: rpc.AddOffsetsToTxnRequest, context: RequestContext
    ) -> rpc.AddOffsetsToTxnResponse:
        """Answer AddOffsetsToTxn: the log of groups takes part in the transaction."""
        image = self._cluster.image
        code = self._refuse_id(request.transactional_id)
        topic = group_log_topic(image)
        if code is ErrorCode.NONE and not request.group_id:
            code = ErrorCode.INVALID_GROUP_ID
        if code is ErrorCode.NONE and topic is None:
            code = ErrorCode.COORDINATOR_NOT_AVAILABLE
        if code is ErrorCode.NONE and topic is not None:
            answer = await self._owner.call(
                request.transactional_id,
                lambda epoch: log_rpc.AddTransactionPartitionsRequest(
                    transactional_id=request.transactional_id,
                    ownership_epoch=epoch,
                    producer_id=request.producer_id,
                    producer_epoch=request.producer_epoch,
                    topics=(topic,),
                    metadata_offset=image.offset,
                ),
                create=False,
                is_connected=context.is_connected,
                begins=True,
            )
            code = _code(answer, 25, context.version)
        return rpc.AddOffsetsToTxnResponse(error_code=int(code))

    # --- endings --------------------------------------------------------------------------------

    async def end(self, request: rpc.EndTxnRequest, context: RequestContext) -> rpc.EndTxnResponse:
        """Answer EndTxn once the outcome is decided; markers are written afterwards."""
        code = self._refuse_id(request.transactional_id)
        if code is not ErrorCode.NONE:
            return rpc.EndTxnResponse(error_code=int(code))
        raises = context.version >= FIRST_RAISING_VERSION
        spare = -1
        if raises and request.producer_epoch >= LAST_EPOCH:
            taken = await self._spares.take()
            spare = -1 if taken is None else taken
        answer = await self._owner.call(
            request.transactional_id,
            lambda epoch: log_rpc.EndTransactionRequest(
                transactional_id=request.transactional_id,
                ownership_epoch=epoch,
                producer_id=request.producer_id,
                producer_epoch=request.producer_epoch,
                committed=request.committed,
                client_version=TV2 if raises else TV1,
                spare_producer_id=spare,
            ),
            create=False,
            is_connected=context.is_connected,
        )
        if spare >= 0:
            self._settle_spare(spare, answer)
        code = _code(answer, 26, context.version)
        if code is not ErrorCode.NONE:
            return rpc.EndTxnResponse(error_code=int(code))
        return rpc.EndTxnResponse(
            error_code=0, producer_id=answer.producer_id, producer_epoch=answer.producer_epoch
        )


def _code(answer: Any, api_key: int, version: int) -> ErrorCode:
    """Return the client's error code for an answer of the transaction log, by request version."""
    code = answer if isinstance(answer, ErrorCode) else ErrorCode(answer.error_code)
    if code is ErrorCode.PRODUCER_FENCED and version < FIRST_FENCED_VERSIONS[api_key]:
        return ErrorCode.INVALID_PRODUCER_EPOCH
    return code


def _unknown(image: MetadataImage, topics: Iterable[_Topic]) -> set[tuple[str, int]]:
    """Return the partitions, with topic names, that clients may not write to or do not exist."""
    return {
        (topic.name, index)
        for topic in topics
        for index in topic.partitions
        if not _is_known(image, topic.name, index)
    }


def _is_known(image: MetadataImage, name: str, index: int) -> bool:
    """Return whether clients may write to this partition, as far as the image knows."""
    topic = image.topic(name)
    return topic is not None and not topic.is_internal and index in topic.partitions


def _named(image: MetadataImage, topics: Iterable[_Topic]) -> tuple[log_rpc.TransactionTopic, ...]:
    """Return the topics, which the image has, by id and name."""
    return tuple(
        log_rpc.TransactionTopic(
            topic_id=image.topic_ids[topic.name],
            topic_name=topic.name,
            partitions=tuple(topic.partitions),
        )
        for topic in topics
    )
