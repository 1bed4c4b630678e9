"""The interface of batch coordinators: KIP-1164's, pluggable.

It chooses the total order of batches. Brokers upload objects first and commit them here; a commit
assigns offsets without gaps, and from then on only the coordinator knows which bytes of which
object are which offsets.

Its one method is `call(request) -> response`; `coordinator.batch.calls` is the table of requests.
The values are the messages of the wire (`records.rpc.batch_coordinator`, `records.rpc.objects`),
the same whether the coordinator is in this process or behind a socket: ten thousand batches of an
object are never converted from one form to another.

An answer says what was decided, in Kafka's error codes: those are values. `CoordinatorError` is
raised where nothing was decided, or where the outcome is unknown. What the codes mean here:

- OFFSET_OUT_OF_RANGE: below the log start or above the high watermark.
- UNKNOWN_TOPIC_ID: no such topic, or deleted. UNKNOWN_TOPIC_OR_PARTITION: it lacks the partition.
- MESSAGE_TOO_LARGE: more than 10,000 batches, or 1 MiB of record.
- STALE_CONTROLLER_EPOCH: a newer controller has called.
- INVALID_TIMESTAMP: a batch's is below -1; a plan has expired.
- UNSUPPORTED_VERSION: a negative timestamp without a meaning in ListOffsets.
- INVALID_PARTITIONS: none, or too many.
- INVALID_REQUEST: contradicts itself or the state; nothing was changed.
- POLICY_VIOLATION: the topic's settings, live runs or an open lease forbid what a plan wants.
- OUT_OF_ORDER_SEQUENCE_NUMBER, INVALID_PRODUCER_EPOCH, INVALID_RECORD (an idempotent batch without
  epoch or sequence): of one batch.
- DUPLICATE_SEQUENCE_NUMBER: the object is committed, its answer is no longer kept.
- OPERATION_NOT_ATTEMPTED: the object is not committed and never will be; STALE_BROKER_EPOCH: the
  same, because a newer epoch of the broker holds a lease.
- INCONSISTENT_CLUSTER_ID: a plan was made for another cluster.
- NOT_LEADER_OR_FOLLOWER, REQUEST_TIMED_OUT (outcome unknown) and COORDINATOR_NOT_AVAILABLE (nothing
  was decided) are raised.

Differences from the KIP, decided in docs/design/numbers.md#differences-from-kip-1164: objects are
named by ids out of leases, and commits carry the broker's epoch; a commit is one object.
`deleteFiles` answers for each key.

Source: KIP-1164, Public Interfaces.
"""

from __future__ import annotations

from typing import Protocol, TypeVar

from records.kafka_errors import ErrorCode
from records.rpc.base import CoordinatorRequest, Response

R = TypeVar("R", bound=Response)

NEVER_COMMITTED = frozenset({ErrorCode.OPERATION_NOT_ATTEMPTED, ErrorCode.STALE_BROKER_EPOCH})
"""A commit's answers that say: the object is not committed, and cannot be any more."""


class CallTarget(Protocol):
    """A coordinator, a replica that only reads, or a client of either."""

    async def call(self, request: CoordinatorRequest[R]) -> R:
        """Return the batch coordinator's response to a request of `coordinator.batch.calls`.

        Raises:  CoordinatorError, and no other.
        """


class BatchCoordinator(CallTarget, Protocol):
    """One coordinator: on the quorum, in memory, embedded, or at the other end of a socket."""

    async def close(self) -> None:
        """Stop the coordinator; calls in flight end with CoordinatorError."""
