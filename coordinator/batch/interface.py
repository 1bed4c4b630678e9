"""What a batch coordinator is: KIP-1164's pluggable interface.

It chooses the total order of batches. Brokers upload objects first and commit them here; a commit
assigns offsets without gaps, and from then on the coordinator is the only one who knows which bytes
of which object are which offsets.

The values are the messages of the wire (`records.rpc.batch_coordinator`, `records.rpc.objects`):
frozen,
documented, and the same whether the coordinator is in this process or behind a socket, so that ten
thousand batches of an object are never converted from one form to another.

An answer says what was decided, in Kafka's error codes: those are values. `CoordinatorError` is
raised where nothing was, or where nobody can say: not the leader, no leader, stopped, timed out.

Differences from the KIP, decided in docs/design/numbers.md#differences-from-kip-1164: objects are
named by ids out of leases, and commits carry the broker's epoch; a commit is one object.
`deleteFiles` answers for each key.

Source: KIP-1164, Public Interfaces.
"""

from __future__ import annotations

from enum import IntEnum, unique
from typing import Protocol

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


@unique
class ErrorCode(IntEnum):
    """What a batch coordinator answers with. The numbers are Kafka's; the meanings are here."""

    NONE = 0
    OFFSET_OUT_OF_RANGE = 1  # below the log start or above the high watermark
    UNKNOWN_TOPIC_OR_PARTITION = 3  # the topic is here, the partition is not
    NOT_LEADER_OR_FOLLOWER = 6  # raised; of something that was decided: the outcome is unknown
    REQUEST_TIMED_OUT = 7  # raised: the outcome is unknown
    MESSAGE_TOO_LARGE = 10  # more than 10,000 batches, or 1 MiB of record
    STALE_CONTROLLER_EPOCH = 11  # a newer controller has called
    COORDINATOR_NOT_AVAILABLE = 15  # raised: nothing was decided; ask again
    INVALID_TIMESTAMP = 32  # of a batch: below -1; of a plan: it has expired
    UNSUPPORTED_VERSION = 35  # of ListOffsets: a negative timestamp that means nothing here
    INVALID_PARTITIONS = 37  # none, or too many
    INVALID_REQUEST = 42  # contradicts itself, or what is known; nothing was changed
    POLICY_VIOLATION = 44  # of a plan: the topic's settings, or runs, or an open lease keep this
    OUT_OF_ORDER_SEQUENCE_NUMBER = 45  # of a batch: not the one after its predecessor
    DUPLICATE_SEQUENCE_NUMBER = 46  # the object is committed, its answer is no longer kept
    INVALID_PRODUCER_EPOCH = 47  # of a batch: a newer epoch of this producer has written
    OPERATION_NOT_ATTEMPTED = 55  # the object is not committed, and never will be
    STALE_BROKER_EPOCH = 77  # the same, because a newer epoch of the broker holds a lease
    INVALID_RECORD = 87  # of a batch: an idempotent one without epoch or sequence
    UNKNOWN_TOPIC_ID = 100  # never heard of, or deleted
    INCONSISTENT_CLUSTER_ID = 104  # of a plan: another cluster's


NEVER_COMMITTED = frozenset({ErrorCode.OPERATION_NOT_ATTEMPTED, ErrorCode.STALE_BROKER_EPOCH})
"""A commit's answers that say: the object is not committed, and cannot be any more."""


class CoordinatorError(Exception):
    """No answer: `code` says why, and whether anything may have happened."""

    def __init__(self, code: ErrorCode, message: str) -> None:
        super().__init__(f"{code.name}: {message}")
        self.code = code
        self.message = message


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
