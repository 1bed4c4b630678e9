"""Objects that may go: marked when nothing refers to them, deleted after a delay, then forgotten.

Orphans, which were uploaded and never committed, go the same way once their lease is over. Those
that cannot be known without looking into the store, because the upload ended after its key had been
cleaned, are found by a Spark job that lists the store, and reported by MarkOrphans:
`decide_found_orphans`.

The trap is in `decide_safe_to_delete`. A broker whose commit failed asks whether it may delete what
it uploaded, while the commit may still be on its way on a dead connection. So "yes" is a record, a
fence: the late commit is refused.

Source: docs/design/batch-coordinator.md#deletion; KIP-1164, getFilesToDelete, deleteFiles,
isSafeToDeleteFile.
"""

from __future__ import annotations

from enum import Enum, auto
from typing import Final

from coordinator.batch.decide.base import Context, Decision
from coordinator.batch.id_ranges import contains, numbers
from coordinator.batch.reads import Candidates
from coordinator.batch.state import LeaseFinder, Tables
from records.diskless import (
    DeleteFenceRecord,
    ObjectsMarkedRecord,
    ObjectsRemovedRecord,
    OrphansFoundRecord,
)
from records.kafka_errors import ErrorCode
from records.object_keys import ForeignKeyError
from records.rpc.objects import (
    DeleteFilesRequest,
    DeleteFilesResponse,
    GetFilesToDeleteRequest,
    GetFilesToDeleteResponse,
    IsSafeToDeleteFileRequest,
    IsSafeToDeleteFileResponse,
    MarkOrphansRequest,
    MarkOrphansResponse,
)

MAX_FILES: Final = 10_000
"""Keys in one request or answer."""

MAX_FOUND: Final = 1_000
"""Keys of orphans in one request: each is looked for, and others wait meanwhile."""

_FOREVER_MS: Final = 2**63 - 1


def decide_marks(candidates: Candidates, context: Context) -> Decision[None]:
    """Mark for deletion the objects that contain no undeleted run of batches."""
    unused = candidates.unused_objects(context.settings.maintenance_limit)
    if not unused:
        return Decision((), None)
    record = ObjectsMarkedRecord(object_ids=tuple(unused), marked_at_ms=context.steady_ms)
    return Decision((record,), None)


def files_to_delete(
    request: GetFilesToDeleteRequest, tables: Tables, candidates: Candidates, context: Context
) -> GetFilesToDeleteResponse:
    """List the objects that a broker may delete from the object store now.

    Marked objects come first, the oldest before the others, then orphans, unless the clock is held.

    Args:  tables: *applied* state, as are the candidates: what is pending may be lost.
    """
    if not 1 <= request.max_files <= MAX_FILES:
        message = f"{request.max_files} files, ask for 1 to {MAX_FILES}"
        return GetFilesToDeleteResponse(error_code=ErrorCode.INVALID_REQUEST, error_message=message)
    delay_ms = context.settings.file_delete_delay_ms
    if context.steady_ms - context.leader_since_ms < delay_ms:
        return GetFilesToDeleteResponse()  # an earlier leader's marks say nothing about time
    due_ms = context.steady_ms - delay_ms
    due = candidates.marked_objects(-1, due_ms, request.max_files)
    if len(due) < request.max_files:  # marks that lie in our future are an earlier leader's
        left = request.max_files - len(due)
        due = due + candidates.marked_objects(context.steady_ms + 1, _FOREVER_MS, left)
    for _, lease in sorted(tables.leases.items()):
        if len(due) >= request.max_files or context.shared_ms is None:
            break
        if not lease.is_open and context.age_ms(lease.closed_at_ms) >= delay_ms:
            left = request.max_files - len(due)
            orphans = zip(range(left), numbers(lease.orphans), strict=False)
            due = due + [(lease.closed_at_ms, object_id) for _, object_id in orphans]
    key = context.settings.keys.key
    file = GetFilesToDeleteResponse.File
    return GetFilesToDeleteResponse(
        files=tuple(file(object_key=key(i), marked_for_deletion_at=at) for at, i in due)
    )


def decide_removals(
    request: DeleteFilesRequest, tables: Tables, candidates: Candidates, context: Context
) -> Decision[DeleteFilesResponse]:
    """Delete the metadata of objects that brokers have deleted from the object store."""
    if len(request.object_keys) > MAX_FILES:
        message = f"{len(request.object_keys)} keys, at most {MAX_FILES}"
        code = ErrorCode.MESSAGE_TOO_LARGE
        return Decision((), DeleteFilesResponse(error_code=code, error_message=message))
    gone: set[int] = set()
    codes = []
    leases = LeaseFinder(tables)
    for key in request.object_keys:
        try:
            object_id = context.settings.keys.object_id(key)
        except ForeignKeyError:
            codes.append(int(ErrorCode.INVALID_REQUEST))
            continue
        may_go = _may_go(object_id, leases, tables, candidates, context)
        codes.append(int(ErrorCode.INVALID_REQUEST if may_go is None else ErrorCode.NONE))
        if may_go:
            gone.add(object_id)
    response = DeleteFilesResponse(key_error_codes=tuple(codes))
    if not gone:
        return Decision((), response)
    return Decision((ObjectsRemovedRecord(object_ids=tuple(sorted(gone))),), response)


def _may_go(
    object_id: int,
    leases: LeaseFinder,
    tables: Tables,
    candidates: Candidates,
    context: Context,
) -> bool | None:
    """Return whether a deletable object has metadata to delete; None if it must not be deleted."""
    stored = candidates.stored_object(object_id)
    if stored is not None:
        marked = stored.marked_at_ms
        due = marked >= 0 and context.age_ms(marked) >= context.settings.file_delete_delay_ms
        return True if due else None
    lease_id = leases.find(object_id)
    lease = None if lease_id is None else tables.leases.get(lease_id)
    if lease is None:
        return False if object_id < tables.counters.next_object_id else None
    if lease.committed(object_id):
        return False
    if not lease.is_open:
        return contains(lease.orphans, object_id)
    dead = object_id <= lease.last_committed_id or object_id in lease.fenced
    return False if dead else None


def decide_safe_to_delete(
    request: IsSafeToDeleteFileRequest, tables: Tables, candidates: Candidates, context: Context
) -> Decision[IsSafeToDeleteFileResponse]:
    """Return whether an object is uncommitted; if so, forbid a later commit of the object."""
    try:
        object_id = context.settings.keys.object_id(request.object_key)
    except ForeignKeyError as error:
        return _bad_key(str(error))
    lease_id = LeaseFinder(tables).find(object_id)
    lease = None if lease_id is None else tables.leases.get(lease_id)
    if lease is None:
        if object_id >= tables.counters.next_object_id:
            return _bad_key(f"object {object_id} was in no lease yet")
        stored = candidates.stored_object(object_id)
        safe = stored is None or stored.committed_at_ms < 0
        return Decision((), IsSafeToDeleteFileResponse(is_safe=safe))
    if lease.committed(object_id):
        return Decision((), IsSafeToDeleteFileResponse(is_safe=False))
    dead = object_id <= lease.last_committed_id or object_id in lease.fenced
    if dead or not lease.is_open:
        return Decision((), IsSafeToDeleteFileResponse(is_safe=True))
    record = DeleteFenceRecord(object_ids=(object_id,), fenced_at_ms=context.steady_ms)
    return Decision((record,), IsSafeToDeleteFileResponse(is_safe=True))


def decide_found_orphans(
    request: MarkOrphansRequest, tables: Tables, candidates: Candidates, context: Context
) -> Decision[MarkOrphansResponse]:
    """Mark for deletion the uncommitted objects that a listing of the object store has found.

    There is no race to lose. An object can be committed only while its lease is open, and here only
    ids of leases that are over are taken; and where a commit was appended that is not applied yet,
    it is applied before this record is, which then leaves the object alone.
    """
    refusal = _refused_sweep(request, context)
    if refusal is not None:
        code, message = refusal
        return Decision((), MarkOrphansResponse(error_code=code, error_message=message))
    leases = LeaseFinder(tables)
    found: set[int] = set()
    codes = []
    for key in request.object_keys:
        code = ErrorCode.INVALID_REQUEST
        try:
            object_id = context.settings.keys.object_id(key)
        except ForeignKeyError:
            codes.append(int(code))
            continue
        if 0 <= object_id < tables.counters.next_object_id:
            code = ErrorCode.NONE
            match _what_keeps(object_id, leases, tables, candidates):
                case None:
                    found.add(object_id)
                case Kept.IN_USE:
                    code = ErrorCode.POLICY_VIOLATION
                case Kept.GOES_ALREADY:
                    pass
        codes.append(int(code))
    response = MarkOrphansResponse(key_error_codes=tuple(codes))
    if not found:
        return Decision((), response)
    record = OrphansFoundRecord(object_ids=tuple(sorted(found)), marked_at_ms=context.steady_ms)
    return Decision((record,), response)


def _refused_sweep(request: MarkOrphansRequest, context: Context) -> tuple[ErrorCode, str] | None:
    """Return the error that refuses a whole MarkOrphans request; None if the request is valid."""
    ours = context.settings.keys.cluster_id
    if request.cluster_id != ours:
        message = f"a sweep of cluster {request.cluster_id!r}, this is {ours!r}"
        return ErrorCode.INCONSISTENT_CLUSTER_ID, message
    if context.now_ms > request.expires_at_ms:
        return ErrorCode.INVALID_TIMESTAMP, "the sweep's plan has expired"
    if context.shared_ms is None:
        message = "the coordinator's clock is held: see `esker quorum accept-clock --help`"
        return ErrorCode.INVALID_TIMESTAMP, message
    if len(request.object_keys) > MAX_FOUND:
        message = f"{len(request.object_keys)} keys, at most {MAX_FOUND}"
        return ErrorCode.MESSAGE_TOO_LARGE, message
    return None


class Kept(Enum):
    """The reason why an object that a listing found is not marked as an orphan."""

    IN_USE = auto()  # runs refer to it, or may yet
    GOES_ALREADY = auto()  # it is marked, or is an orphan of its lease


def _what_keeps(
    object_id: int, leases: LeaseFinder, tables: Tables, candidates: Candidates
) -> Kept | None:
    stored = candidates.stored_object(object_id)
    if stored is not None:
        return Kept.GOES_ALREADY if stored.marked_at_ms >= 0 else Kept.IN_USE
    lease_id = leases.find(object_id)
    lease = None if lease_id is None else tables.leases.get(lease_id)
    if lease is None:
        return None  # long over: what is not there now will never be
    if lease.committed(object_id):
        return Kept.IN_USE  # or it was removed: that is known once the lease is forgotten
    if lease.is_open:
        dead = object_id <= lease.last_committed_id or object_id in lease.fenced
        return Kept.GOES_ALREADY if dead else Kept.IN_USE
    return Kept.GOES_ALREADY if contains(lease.orphans, object_id) else None


def _bad_key(message: str) -> Decision[IsSafeToDeleteFileResponse]:
    code = ErrorCode.INVALID_REQUEST
    return Decision((), IsSafeToDeleteFileResponse(error_code=code, error_message=message))
