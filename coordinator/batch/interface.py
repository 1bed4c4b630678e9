"""What a batch coordinator is: KIP-1164's pluggable interface.

It chooses the total order of batches. Brokers upload objects first and commit them here; a commit
assigns offsets without gaps, and from then on the coordinator is the only one who knows which bytes
of which object are which offsets.

The values are the messages of the wire (`records.rpc.batch_coordinator`, `records.rpc.objects`):
frozen,
documented, and the same whether the coordinator is in this process or behind a socket, so that ten
thousand batches of an object are never converted from one form to another.

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

from typing import Protocol

from records.kafka_errors import ErrorCode
from records.rpc.batch_coordinator import (
    ApplyRetentionRequest,
    ApplyRetentionResponse,
    CommitBatchesRequest,
    CommitBatchesResponse,
    DeleteDisklessRecordsRequest,
    DeleteDisklessRecordsResponse,
    DeleteDisklessTopicsRequest,
    DeleteDisklessTopicsResponse,
    FindBatchesRequest,
    FindBatchesResponse,
    InitDisklessTopicsRequest,
    InitDisklessTopicsResponse,
    ListDisklessOffsetsRequest,
    ListDisklessOffsetsResponse,
    ReleaseDisklessPartitionsRequest,
    ReleaseDisklessPartitionsResponse,
)
from records.rpc.objects import (
    AcquireObjectLeaseRequest,
    AcquireObjectLeaseResponse,
    DeleteFilesRequest,
    DeleteFilesResponse,
    DescribeDisklessObjectRequest,
    DescribeDisklessObjectResponse,
    DescribeDisklessTopicsRequest,
    DescribeDisklessTopicsResponse,
    GetFilesToDeleteRequest,
    GetFilesToDeleteResponse,
    IsSafeToDeleteFileRequest,
    IsSafeToDeleteFileResponse,
    MarkOrphansRequest,
    MarkOrphansResponse,
    ReleaseObjectLeaseRequest,
    ReleaseObjectLeaseResponse,
)

NEVER_COMMITTED = frozenset({ErrorCode.OPERATION_NOT_ATTEMPTED, ErrorCode.STALE_BROKER_EPOCH})
"""A commit's answers that say: the object is not committed, and cannot be any more."""


class BatchCoordinator(Protocol):
    """See the module. Every method may raise CoordinatorError, and no other."""

    async def create_topic_and_partitions(
        self, request: InitDisklessTopicsRequest
    ) -> InitDisklessTopicsResponse:
        """Let these topics have at least so many partitions. Idempotent."""

    async def acquire_lease(self, request: AcquireObjectLeaseRequest) -> AcquireObjectLeaseResponse:
        """Hand out object ids; close the leases of the broker's lower epochs."""

    async def release_lease(self, request: ReleaseObjectLeaseRequest) -> ReleaseObjectLeaseResponse:
        """Close a lease: ids of it that were not committed never will be. Idempotent."""

    async def commit_file(self, request: CommitBatchesRequest) -> CommitBatchesResponse:
        """Commit an uploaded object: give each of its batches offsets, or refuse it.

        Idempotent by object id: a retry gets exactly one of the first answer; error 46, committed,
        answer no longer kept; an error of `NEVER_COMMITTED`. Any other error changed nothing.
        """

    async def find_batches(self, request: FindBatchesRequest) -> FindBatchesResponse:
        """Where the batches from an offset on lie, by what is applied here.

        What is found may be old, and costs no call over the network. A no is certain: it is said
        behind the read barrier, or not at all (COORDINATOR_NOT_AVAILABLE).
        """

    async def list_offsets(
        self, request: ListDisklessOffsetsRequest
    ) -> ListDisklessOffsetsResponse:
        """Offsets by timestamp or ListOffsets' sentinels, behind the read barrier."""

    async def delete_records(
        self, request: DeleteDisklessRecordsRequest
    ) -> DeleteDisklessRecordsResponse:
        """Move log starts forward; -1 is the high watermark."""

    async def delete_topics(
        self, request: DeleteDisklessTopicsRequest
    ) -> DeleteDisklessTopicsResponse:
        """Delete topics: nothing of them is found from now on. Idempotent."""

    async def release_partitions(
        self, request: ReleaseDisklessPartitionsRequest
    ) -> ReleaseDisklessPartitionsResponse:
        """Let go of partitions that never had a commit: they take none from now on. Idempotent."""

    async def apply_retention(self, request: ApplyRetentionRequest) -> ApplyRetentionResponse:
        """Take the rows of a plan made elsewhere, those that still hold. Idempotent."""

    async def get_files_to_delete(
        self, request: GetFilesToDeleteRequest
    ) -> GetFilesToDeleteResponse:
        """Objects that nothing refers to and orphans, after the delay."""

    async def delete_files(self, request: DeleteFilesRequest) -> DeleteFilesResponse:
        """These objects are gone from the store: forget them. Idempotent."""

    async def is_safe_to_delete_file(
        self, request: IsSafeToDeleteFileRequest
    ) -> IsSafeToDeleteFileResponse:
        """Is the object not committed? Yes also means: it never will be."""

    async def mark_orphans(self, request: MarkOrphansRequest) -> MarkOrphansResponse:
        """Take over objects that a listing found: those that nothing needs are to be deleted.

        Each key is judged as `is_safe_to_delete_file` would, but nothing is fenced: an object that
        can still be committed is refused, and goes, if it must, when its lease is over. Idempotent.
        """

    async def close(self) -> None:
        """Stop; calls under way end with CoordinatorError."""


class DescribingCoordinator(Protocol):
    """What people ask of a coordinator besides; read from its applied state; topics
    behind the read barrier, if that is asked for.
    """

    async def describe_topics(
        self, request: DescribeDisklessTopicsRequest
    ) -> DescribeDisklessTopicsResponse:
        """Offsets and bytes of topics. Source: KIP-1163, Command line tools."""

    async def describe_object(
        self, request: DescribeDisklessObjectRequest
    ) -> DescribeDisklessObjectResponse:
        """One object, and whose runs are in it. Source: KIP-1163, Command line tools."""
