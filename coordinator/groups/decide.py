"""The decisions of the group log: the owner of a group, and the commits that count.

`decide(request, context) -> Decision` changes nothing. Three questions guard every commit, and each
stops another mistake:

- *Does the broker own the group?* Its ownership epoch must be the group's. So of two brokers that
  both believe they act for a group, one at most succeeds.
- *Is it new?* A broker numbers its commits of a group. The last number again is the same commit,
  and gets the same answer; a lower one is a delayed copy and must not undo what was acknowledged
  since.
- *Is it of the group's generation?* A member of an older one must not commit.

The last is checked here a second time, after the broker: so the log alone shows that the members of
one generation at most can commit.

Source: docs/design/groups.md; KIP-211 (retention); upstream's OffsetMetadataManager.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple
from uuid import UUID

from coordinator.features import Features
from coordinator.groups.pending import CommittedOffset, TopicPartition
from coordinator.groups.settings import (
    MAX_COMMIT_BYTES,
    MAX_GENERATION,
    MAX_GENERATION_BYTES,
    MAX_GROUP_ID_BYTES,
    MAX_OFFSETS,
    LogSettings,
)
from coordinator.groups.state import TOPIC_DELETED, Group, GroupsImage
from coordinator.ownership import refuse_broker_epoch
from coordinator.rendezvous import group_broker
from records.groups import (
    GroupGenerationRecord,
    GroupOffsetsRecord,
    GroupOffsetsRemovedRecord,
    GroupOwnerRecord,
    GroupRemovedRecord,
)
from records.kafka_errors import ErrorCode
from records.rpc import group_log as rpc
from records.schema import MetadataRecord

NOTHING_LEFT: Final = 0  # reasons of a group's removal
REQUESTED: Final = 1

EXPIRED: Final = 0  # reasons of an offset's removal; TOPIC_DELETED is 1
ASKED_FOR: Final = 2

AnyCommit = rpc.CommitGroupOffsetsRequest.Commit | rpc.CommitTransactionalOffsetsRequest.Commit

_OFFSET_BYTES: Final = 32  # of one offset in a record, without names and metadata
_MEMBER_BYTES: Final = 32


class Decision(NamedTuple):
    """Records to write, if any, and the response to send once they can no longer be lost."""

    records: Sequence[MetadataRecord]
    response: Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """The state and the settings that a decision is based on."""

    image: GroupsImage  # the pending one
    now_ms: int  # ms since 1970
    settings: LogSettings
    brokers: Sequence[int] | None = None  # unfenced ones in the leader's image; None: unknown
    broker_epochs: Mapping[int, int] | None = None  # of registered ones in it; None: any epoch
    gone_topics: Collection[UUID] = ()  # recently deleted, in the leader's image
    features: Features = field(default_factory=Features)  # in the leader's image


# --- ownership ---------------------------------------------------------------------------------


def decide_acquire(request: rpc.AcquireGroupOwnershipRequest, context: Context) -> Decision:
    """Make a broker the owner of a consumer group, and return the group's last generation.

    Raises:  CoordinatorError for a broker epoch that neither this log nor the image knows: the
             image is old, or the epoch is made up. Kept, it would shut out the real broker.
    """
    image, group_id = context.image, request.group_id
    refused = _refuse_acquire(request, context)
    if refused is not None:
        code, message = refused
        return Decision(
            (), rpc.AcquireGroupOwnershipResponse(error_code=int(code), error_message=message)
        )
    record = GroupOwnerRecord(
        group_id=group_id,
        ownership_epoch=image.next_ownership_epoch,
        broker_id=request.broker_id,
        broker_epoch=request.broker_epoch,
        acquired_at_ms=context.now_ms,
    )
    group = image.groups.get(group_id)
    generation = None if group is None else group.generation
    if generation is None:
        response = rpc.AcquireGroupOwnershipResponse(ownership_epoch=record.ownership_epoch)
    else:
        response = rpc.AcquireGroupOwnershipResponse(
            ownership_epoch=record.ownership_epoch,
            generation=generation.generation,
            protocol_type=generation.protocol_type,
            protocol_name=generation.protocol_name,
            leader=generation.leader,
            members=generation.members,
        )
    return Decision((record,), response)


def _refuse_acquire(
    request: rpc.AcquireGroupOwnershipRequest, context: Context
) -> tuple[ErrorCode, str] | None:
    group_id, groups = request.group_id, context.image.groups
    if not 0 <= len(group_id.encode()) <= MAX_GROUP_ID_BYTES:
        return ErrorCode.INVALID_GROUP_ID, f"the group id exceeds {MAX_GROUP_ID_BYTES} bytes"
    if context.brokers:
        chosen = group_broker(group_id, context.brokers)
        if chosen != request.broker_id:
            return ErrorCode.NOT_COORDINATOR, f"broker {chosen} coordinates this group"
    group = groups.get(group_id)
    if group is None:
        if not request.create:
            return ErrorCode.GROUP_ID_NOT_FOUND, "no such group"
        if len(groups) >= context.settings.max_groups:
            return ErrorCode.POLICY_VIOLATION, f"there are {len(groups)} groups (esker.max.groups)"
    return refuse_broker_epoch(
        request.broker_id,
        request.broker_epoch,
        owner=None if group is None else (group.broker_id, group.broker_epoch),
        broker_epochs=context.broker_epochs,
    )


def check_owner(
    context: Context, group_id: str, ownership_epoch: int, sequence: int
) -> tuple[Group | None, ErrorCode, str]:
    """Return the group if the ownership epoch and sequence number are valid, else an error."""
    group = context.image.groups.get(group_id)
    if group is None or group.ownership_epoch != ownership_epoch:
        return None, ErrorCode.NOT_COORDINATOR, "another broker owns this group"
    if sequence < group.sequence or sequence < 1:
        return None, ErrorCode.INVALID_REQUEST, f"sequence {sequence} after {group.sequence}"
    return group, ErrorCode.NONE, ""


# --- commits -----------------------------------------------------------------------------------


def decide_commit_offsets(request: rpc.CommitGroupOffsetsRequest, context: Context) -> Decision:
    """Decide offset commits of a consumer group's members, and of clients that are no members."""
    group, code, message = check_owner(
        context, request.group_id, request.ownership_epoch, request.sequence
    )
    if group is not None and is_too_large(commit_size(request.commits)):
        group, code, message = None, ErrorCode.INVALID_COMMIT_OFFSET_SIZE, "too many offsets"
    if group is None:
        return Decision(
            (), rpc.CommitGroupOffsetsResponse(error_code=int(code), error_message=message)
        )
    errors = tuple(
        int(refuse_commit(group, commit.generation, commit.member_id))
        or refuse_metadata_size(commit, context)
        or refuse_deleted_topic(commit, context)
        for commit in request.commits
    )
    response = rpc.CommitGroupOffsetsResponse(commit_errors=errors)
    topics = tuple(
        to_record_topic(topic, context.now_ms)
        for commit, error in zip(request.commits, errors, strict=True)
        if not error
        for topic in commit.topics
    )
    if request.sequence == group.sequence or not topics:
        return Decision((), response)
    record = GroupOffsetsRecord(
        group_id=request.group_id,
        ownership_epoch=request.ownership_epoch,
        sequence=request.sequence,
        topics=topics,
    )
    return Decision((record,), response)


def refuse_commit(group: Group, generation: int, member_id: str) -> ErrorCode:
    """Return the error that forbids a commit by this member in this generation, or NONE.

    Source: upstream's validateOffsetCommit.
    """
    if generation < 0 and not member_id:
        return ErrorCode.UNKNOWN_MEMBER_ID if group.member_ids else ErrorCode.NONE
    if generation != group.generation_id:
        return ErrorCode.ILLEGAL_GENERATION
    return ErrorCode.NONE if member_id in group.member_ids else ErrorCode.UNKNOWN_MEMBER_ID


class Size(NamedTuple):
    """The size of a commit's record."""

    offsets: int
    size_bytes: int  # approximate


def commit_size(commits: Iterable[AnyCommit]) -> Size:
    """Return the number of offsets in the commits and the approximate size of their record."""
    size = count = 0
    for commit in commits:
        for topic in commit.topics:
            size += 3 * len(topic.topic_name) + _OFFSET_BYTES
            count += len(topic.partitions)
            size += sum(_OFFSET_BYTES + 3 * len(p.metadata) for p in topic.partitions)
    return Size(count, size)


def is_too_large(size: Size) -> bool:
    """Return whether a commit of this size is too large for one record."""
    return size.offsets > MAX_OFFSETS or size.size_bytes > MAX_COMMIT_BYTES


def refuse_metadata_size(commit: AnyCommit, context: Context) -> int:
    """Return OFFSET_METADATA_TOO_LARGE if an offset of the commit has too long metadata, else 0."""
    limit = context.settings.offset_metadata_max_bytes
    for topic in commit.topics:
        for partition in topic.partitions:
            if len(partition.metadata) > limit or len(partition.metadata.encode()) > limit:
                return int(ErrorCode.OFFSET_METADATA_TOO_LARGE)
    return 0


def refuse_deleted_topic(commit: AnyCommit, context: Context) -> int:
    """Return COORDINATOR_LOAD_IN_PROGRESS if the commit names a deleted topic, else 0.

    The owner's image is behind, and another topic may have that name now. An offset stored under
    the old id could never be fetched. So the client repeats its commit until the owner's image has
    the new topic, or none.
    """
    gone = any(topic.topic_id in context.gone_topics for topic in commit.topics)
    return int(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS) if gone else 0


def to_record_topic(
    topic: rpc.CommitGroupOffsetsRequest.Commit.Topic, now_ms: int
) -> GroupOffsetsRecord.Topic:
    """Return a record's topic with the offsets of a commit, committed at `now_ms`."""
    partition_type = GroupOffsetsRecord.Topic.Partition
    return GroupOffsetsRecord.Topic(
        topic_name=topic.topic_name,
        topic_id=topic.topic_id,
        partitions=tuple(
            partition_type(
                partition_index=partition.partition_index,
                committed_offset=partition.committed_offset,
                leader_epoch=partition.leader_epoch,
                metadata=partition.metadata,
                committed_at_ms=now_ms,
                expire_at_ms=partition.expire_at_ms,
            )
            for partition in topic.partitions
        ),
    )


def decide_commit_generation(
    request: rpc.CommitGroupGenerationRequest, context: Context
) -> Decision:
    """Commit the result of a completed rebalance as the consumer group's current generation."""
    group, code, message = check_owner(
        context, request.group_id, request.ownership_epoch, request.sequence
    )
    if group is not None and request.sequence > group.sequence:
        is_first_again = group.generation_id == MAX_GENERATION and request.generation > 0
        if request.generation < group.generation_id and not is_first_again:
            group, code = None, ErrorCode.ILLEGAL_GENERATION
            message = "the group is at a later generation"
        elif generation_size(request.members) > MAX_GENERATION_BYTES:
            group, code = None, ErrorCode.MESSAGE_TOO_LARGE
            message = f"members and assignments of more than {MAX_GENERATION_BYTES} bytes"
        elif len({member.member_id for member in request.members}) != len(request.members):
            group, code, message = None, ErrorCode.INVALID_REQUEST, "duplicate member id"
    response = rpc.CommitGroupGenerationResponse(
        error_code=int(code), error_message=message or None
    )
    if group is None or request.sequence == group.sequence:
        return Decision((), response)
    record = GroupGenerationRecord(
        group_id=request.group_id,
        ownership_epoch=request.ownership_epoch,
        sequence=request.sequence,
        generation=request.generation,
        protocol_type=request.protocol_type,
        protocol_name=request.protocol_name,
        leader=request.leader,
        members=request.members,
        completed_at_ms=context.now_ms,
    )
    return Decision((record,), response)


def generation_size(members: Iterable[GroupGenerationRecord.Member]) -> int:
    """Return the approximate size in bytes of a generation's members in a record."""
    return sum(
        _MEMBER_BYTES
        + len(member.member_id)
        + len(member.group_instance_id or "")
        + len(member.client_id)
        + len(member.client_host)
        + len(member.subscription)
        + len(member.assignment)
        for member in members
    )


# --- removal -----------------------------------------------------------------------------------


def decide_remove(request: rpc.RemoveGroupRequest, context: Context) -> Decision:
    """Remove a consumer group that has no members.

    An owner's removal is numbered like its commits: a late copy, which arrives when the group was
    created anew, names another ownership and removes nothing.
    """
    group = context.image.groups.get(request.group_id)
    if group is None:
        return Decision((), rpc.RemoveGroupResponse(error_code=int(ErrorCode.GROUP_ID_NOT_FOUND)))
    if request.ownership_epoch >= 0:
        owned, code, message = check_owner(
            context, request.group_id, request.ownership_epoch, request.sequence
        )
        if owned is None:
            return Decision(
                (), rpc.RemoveGroupResponse(error_code=int(code), error_message=message)
            )
    if group.member_ids or group.pending.total:
        message = "" if group.member_ids else "the group has offsets of an open transaction"
        response = rpc.RemoveGroupResponse(
            error_code=int(ErrorCode.NON_EMPTY_GROUP), error_message=message or None
        )
        return Decision((), response)
    record = GroupRemovedRecord(group_id=request.group_id, reason=REQUESTED)
    return Decision((record,), rpc.RemoveGroupResponse())


def decide_remove_offsets(request: rpc.RemoveGroupOffsetsRequest, context: Context) -> Decision:
    """Remove committed offsets of a consumer group at the request of the group's owner.

    The removal is numbered like the owner's commits, so that a late copy of it does not remove an
    offset that was committed since. Source: KIP-496.
    """
    group, code, message = check_owner(
        context, request.group_id, request.ownership_epoch, request.sequence
    )
    named = {(topic.topic_name, index) for topic in request.topics for index in topic.partitions}
    if group is not None and len(named) > MAX_OFFSETS:
        group, code, message = None, ErrorCode.INVALID_COMMIT_OFFSET_SIZE, "too many offsets"
    response = rpc.RemoveGroupOffsetsResponse(error_code=int(code), error_message=message or None)
    existing = (
        set()
        if group is None
        else {
            place
            for place in named
            if place in group.offsets or place in group.pending.by_partition
        }
    )
    if not existing:
        return Decision((), response)
    return Decision((_offsets_removed_record(request.group_id, existing, ASKED_FOR),), response)


def decide_expiry(
    group_ids: Iterable[str], deleted_topics: frozenset[UUID], context: Context
) -> Decision:
    """Remove expired offsets, offsets of deleted topics, and empty groups without offsets.

    Offsets expire only while their group is empty, from the later of their commit and the moment at
    which it became empty. A new owner may have members that the log does not know yet: so nothing
    expires soon after a group was acquired. Source: KIP-211.
    """
    records: list[MetadataRecord] = []
    for group_id in group_ids:
        group = context.image.groups.get(group_id)
        if group is not None:
            records += _expire_group(group_id, group, deleted_topics, context)
    return Decision(records, len(records))


def is_expiry_due(group: Group, deleted_topics: frozenset[UUID], context: Context) -> bool:
    """Return whether `decide_expiry` would write any record for this group."""
    return bool(_expire_group("", group, deleted_topics, context))


def _expire_group(
    group_id: str, group: Group, deleted_topics: frozenset[UUID], context: Context
) -> list[MetadataRecord]:
    may_expire = (
        not group.member_ids
        and context.now_ms - group.acquired_at_ms >= context.settings.ownership_grace_ms
    )
    expired = set(_expired_partitions(group, context)) if may_expire else set()
    has_offsets = len(expired) < len(group.offsets) or group.pending.total
    if may_expire and not has_offsets and not _was_just_emptied(group, context):
        return [GroupRemovedRecord(group_id=group_id, reason=NOTHING_LEFT)]
    deleted = {
        topic_partition
        for topic_partition, committed in (group.offsets.items() if deleted_topics else ())
        if committed.topic_id in deleted_topics
    }
    return [
        _offsets_removed_record(group_id, topic_partitions, reason)
        for topic_partitions, reason in ((expired, EXPIRED), (deleted - expired, TOPIC_DELETED))
        if topic_partitions
    ]


def _was_just_emptied(group: Group, context: Context) -> bool:
    """Return whether the consumer group may have lost its last member a short time ago.

    Such a member may return, and continue.
    """
    if group.generation is None:
        return False
    age_ms = context.now_ms - group.generation.completed_at_ms
    return age_ms < context.settings.ownership_grace_ms


def _expired_partitions(group: Group, context: Context) -> Iterator[TopicPartition]:
    empty_since_ms = 0
    if group.generation is not None and group.generation.protocol_type:
        empty_since_ms = group.generation.completed_at_ms
    for topic_partition, committed in group.offsets.items():
        if topic_partition in group.pending.by_partition:
            continue
        if _expires_at(committed, empty_since_ms, context) <= context.now_ms:
            yield topic_partition


def _expires_at(committed: CommittedOffset, empty_since_ms: int, context: Context) -> int:
    if committed.expire_at_ms >= 0:
        return committed.expire_at_ms
    since_ms = max(committed.committed_at_ms, empty_since_ms)
    return since_ms + context.settings.offsets_retention_ms


def _offsets_removed_record(
    group_id: str, topic_partitions: set[TopicPartition], reason: int
) -> GroupOffsetsRemovedRecord:
    by_topic: dict[str, list[int]] = {}
    for topic, partition in sorted(topic_partitions):
        by_topic.setdefault(topic, []).append(partition)
    return GroupOffsetsRemovedRecord(
        group_id=group_id,
        topics=tuple(
            GroupOffsetsRemovedRecord.Topic(topic_name=topic, partitions=tuple(partitions))
            for topic, partitions in by_topic.items()
        ),
        reason=reason,
    )
