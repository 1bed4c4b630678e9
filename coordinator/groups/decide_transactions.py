"""Which offsets of transactions may become pending, and which markers end them.

A commit names the number of its transaction, which the group's broker has proved to be ongoing. So
the log refuses by number alone: at or below the highest ended one, or another than the open one.
The code asks the client to try again: the broker may have been some milliseconds behind.

A marker is true, because it is sent after its outcome was decided for good. Only a marker that
changes something is written: one that was written before ends nothing again.

Source: docs/design/transactions-groups.md; upstream's OffsetMetadataManager.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from coordinator.errors import CoordinatorError
from coordinator.features import may_write_format
from coordinator.groups.decide import (
    Context,
    Decision,
    check_owner,
    commit_size,
    is_too_large,
    refuse_deleted_topic,
    refuse_metadata_size,
    to_record_topic,
)
from coordinator.groups.state import Group, GroupsImage, TransactionalProducer
from records.groups import (
    GroupMarkersRecord,
    GroupProducersExpiredRecord,
    PendingGroupOffsetsRecord,
)
from records.kafka_errors import ErrorCode
from records.rpc import group_log as rpc

LEVEL: Final = 4
"""The level of esker.version that allows the records of transactional offsets."""

MAX_MARKERS: Final = 10_000
"""Transactions in one WriteGroupMarkers request."""

MAX_PENDING: Final = 100_000
"""Pending offsets of one group; each may replace a committed one, so no group needs more."""

_UNKNOWN: Final = TransactionalProducer()

_Commit = rpc.CommitTransactionalOffsetsRequest.Commit


def decide_commit_transactional(
    request: rpc.CommitTransactionalOffsetsRequest, context: Context
) -> Decision:
    """Keep offsets of open transactions as pending offsets of a consumer group.

    Raises:  CoordinatorError below the level of these records.
    """
    if not may_write_format(context.features, LEVEL):
        raise CoordinatorError(ErrorCode.COORDINATOR_NOT_AVAILABLE, f"esker.version below {LEVEL}")
    group, code, message = check_owner(
        context, request.group_id, request.ownership_epoch, request.sequence
    )
    if group is not None and request.sequence == group.sequence:  # it is never sent twice
        group, code, message = None, ErrorCode.INVALID_REQUEST, "the sequence number is used"
    if group is not None and is_too_large(commit_size(request.commits)):
        group, code, message = None, ErrorCode.INVALID_COMMIT_OFFSET_SIZE, "too many offsets"
    if group is None:
        return Decision(
            (), rpc.CommitTransactionalOffsetsResponse(error_code=int(code), error_message=message)
        )
    errors = _judge_commits(request.commits, group, context)
    response = rpc.CommitTransactionalOffsetsResponse(commit_errors=errors)
    accepted = tuple(
        PendingGroupOffsetsRecord.Commit(
            producer_id=commit.producer_id,
            producer_epoch=commit.producer_epoch,
            transaction_number=commit.transaction_number,
            topics=tuple(to_record_topic(topic, context.now_ms) for topic in commit.topics),
        )
        for commit, error in zip(request.commits, errors, strict=True)
        if not error and commit.topics
    )
    if not accepted:
        return Decision((), response)
    record = PendingGroupOffsetsRecord(
        group_id=request.group_id,
        ownership_epoch=request.ownership_epoch,
        sequence=request.sequence,
        commits=accepted,
    )
    return Decision((record,), response)


def _judge_commits(commits: Iterable[_Commit], group: Group, context: Context) -> tuple[int, ...]:
    """Return the error of each commit of a request, or 0 where its offsets become pending."""
    opened: dict[int, int] = {}  # numbers by producer id, by commits of this request
    pending, errors = group.pending.total, []
    for commit in commits:
        offsets = sum(len(topic.partitions) for topic in commit.topics)
        error = _refuse(commit, group, opened, context)
        if not error and pending + offsets > MAX_PENDING:  # those that it replaces count, too
            error = int(ErrorCode.POLICY_VIOLATION)
        pending += 0 if error else offsets
        errors.append(error)
    return tuple(errors)


def _refuse(commit: _Commit, group: Group, opened: dict[int, int], context: Context) -> int:
    """Return the error of one commit, or 0 after recording its transaction in `opened`."""
    error = (
        int(_refuse_number(commit, context.image))
        or int(refuse_transactional_commit(group, commit.generation, commit.member_id))
        or refuse_metadata_size(commit, context)
        or refuse_deleted_topic(commit, context)
    )
    number = commit.transaction_number
    if not error and opened.setdefault(commit.producer_id, number) != number:
        return int(ErrorCode.COORDINATOR_NOT_AVAILABLE)
    return error


def _refuse_number(commit: _Commit, image: GroupsImage) -> ErrorCode:
    """Return the error of a commit whose transaction has ended or is not the open one, or NONE."""
    producer = image.producers.get(commit.producer_id, _UNKNOWN)
    number = commit.transaction_number
    if number <= producer.ended_number or any(other != number for other in producer.open):
        return ErrorCode.COORDINATOR_NOT_AVAILABLE
    return ErrorCode.NONE


def refuse_transactional_commit(group: Group, generation: int, member_id: str) -> ErrorCode:
    """Return the error that forbids a transaction's commit by this member, or NONE.

    A producer that names neither generation nor member may commit, also in a group with members.
    Source: upstream's ClassicGroup.validateOffsetCommit.
    """
    if generation < 0 and not member_id:
        return ErrorCode.NONE
    if member_id not in group.member_ids:
        return ErrorCode.UNKNOWN_MEMBER_ID
    return ErrorCode.NONE if generation == group.generation_id else ErrorCode.ILLEGAL_GENERATION


def decide_markers(request: rpc.WriteGroupMarkersRequest, context: Context) -> Decision:
    """End transactions in all groups, and ignore transactions that ended earlier."""
    columns = (request.producer_ids, request.transaction_numbers, request.committed)
    code, message = ErrorCode.NONE, ""
    if (
        len({len(column) for column in columns}) != 1
        or min(request.transaction_numbers, default=0) < 0
    ):
        code, message = (
            ErrorCode.INVALID_REQUEST,
            "columns of different lengths, or a negative number",
        )
    elif len(request.producer_ids) > MAX_MARKERS:
        code, message = ErrorCode.MESSAGE_TOO_LARGE, f"more than {MAX_MARKERS} transactions"
    elif not may_write_format(context.features, LEVEL):
        code, message = ErrorCode.UNSUPPORTED_VERSION, f"esker.version below {LEVEL}"
    if code is not ErrorCode.NONE:
        return Decision((), rpc.WriteGroupMarkersResponse(error_code=code, error_message=message))
    new = [
        marker
        for marker in zip(*columns, strict=True)
        if _ends_anything(marker[0], marker[1], context.image)
    ]
    if not new:
        return Decision((), rpc.WriteGroupMarkersResponse())
    producer_ids, numbers, committed = zip(*new, strict=True)
    record = GroupMarkersRecord(
        producer_ids=producer_ids,
        transaction_numbers=numbers,
        committed=committed,
        ended_at_ms=context.now_ms,
    )
    return Decision((record,), rpc.WriteGroupMarkersResponse())


def _ends_anything(producer_id: int, number: int, image: GroupsImage) -> bool:
    producer = image.producers.get(producer_id, _UNKNOWN)
    return number > producer.ended_number or number in producer.open


def decide_producer_expiry(producer_ids: Iterable[int], context: Context) -> Decision:
    """Remove the records of ended transactions of producer ids without recent transactions."""
    due = tuple(
        producer_id
        for producer_id in producer_ids
        if is_producer_expired(context.image.producers.get(producer_id, _UNKNOWN), context)
    )
    if not due:
        return Decision((), 0)
    return Decision((GroupProducersExpiredRecord(producer_ids=due),), 1)


def is_producer_expired(producer: TransactionalProducer, context: Context) -> bool:
    """Return whether a producer id has no open transaction and ended its last one long ago."""
    if producer.open or producer.ended_number < 0:
        return False
    return context.now_ms - producer.ended_at_ms >= context.settings.producer_expiration_ms
