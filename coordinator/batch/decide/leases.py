"""Leases of object ids: granting, giving back, ending, forgetting.

A lease makes two things possible. A commit needs an open one, so ending a lease is a fence, in the
coordinator's own log. And once it has ended, every id of it that was not committed never will be:
orphaned objects are known without listing a bucket, and deleting them races with no commit.

Leases end by a record only. Age makes a leader *propose* the end; no clock is read while a record
is applied, or replicas would differ.

Source: docs/design/batch-coordinator.md#object-leases.
"""

from __future__ import annotations

from typing import Final

from coordinator.batch.decide.base import Context, Decision
from coordinator.batch.settings import MAX_LEASE_IDS
from coordinator.batch.state import Lease, Tables
from coordinator.errors import CoordinatorError
from records.diskless import LeaseClosedRecord, LeaseGrantedRecord, LeasesForgottenRecord
from records.kafka_errors import ErrorCode
from records.rpc.objects import (
    AcquireObjectLeaseRequest,
    AcquireObjectLeaseResponse,
    ReleaseObjectLeaseRequest,
    ReleaseObjectLeaseResponse,
)

MAX_OPEN_LEASES: Final = 64
"""Largest number of open leases of one broker: one in use, the next one, and leases whose grants
were lost on the way."""

GIVEN_BACK: Final = 0
EXPIRED: Final = 1


def decide_acquire(
    request: AcquireObjectLeaseRequest, tables: Tables, context: Context
) -> Decision[AcquireObjectLeaseResponse]:
    """Lease object ids to a broker, and close the leases of the broker's lower epochs.

    Raises:  CoordinatorError for an epoch that neither this log nor the view knows: the view is
             old, or the epoch is made up. Granted, it would shut out the real broker for good.
    """
    broker = tables.brokers.get(request.broker_id)
    registered = context.view.broker_epoch(request.broker_id)
    known = max(-1 if broker is None else broker.epoch, -1 if registered is None else registered)
    error, message = ErrorCode.NONE, ""
    closed: tuple[int, ...] = ()
    if broker is not None and request.broker_epoch > broker.epoch:
        closed = broker.open_leases
    if request.broker_id < 0 or request.broker_epoch < 0:
        error, message = ErrorCode.INVALID_REQUEST, f"broker {request.broker_id}"
    elif not 1 <= request.object_count <= MAX_LEASE_IDS:
        error = ErrorCode.INVALID_REQUEST
        message = f"{request.object_count} ids, a lease has 1 to {MAX_LEASE_IDS}"
    elif request.broker_epoch < known:
        error = ErrorCode.STALE_BROKER_EPOCH
        message = f"broker {request.broker_id} has epoch {known} by now"
    elif broker is not None and not closed and len(broker.open_leases) >= MAX_OPEN_LEASES:
        error, message = ErrorCode.INVALID_REQUEST, f"{MAX_OPEN_LEASES} leases are open"
    if error:
        return Decision((), AcquireObjectLeaseResponse(error_code=error, error_message=message))
    if registered is not None and request.broker_epoch > known:
        message = f"broker {request.broker_id} is not registered here with {request.broker_epoch}"
        raise CoordinatorError(ErrorCode.COORDINATOR_NOT_AVAILABLE, message)
    counters = tables.counters
    record = LeaseGrantedRecord(
        lease_id=counters.next_lease_id,
        broker_id=request.broker_id,
        broker_epoch=request.broker_epoch,
        first_object_id=counters.next_object_id,
        object_count=request.object_count,
        granted_at_ms=context.steady_ms,
        closed_lease_ids=closed,
    )
    response = AcquireObjectLeaseResponse(
        lease_id=record.lease_id,
        first_object_id=record.first_object_id,
        object_count=record.object_count,
    )
    return Decision((record,), response)


def decide_release(
    request: ReleaseObjectLeaseRequest, tables: Tables, context: Context
) -> Decision[ReleaseObjectLeaseResponse]:
    """Close a lease of object ids at the request of the broker that has the lease."""
    lease = tables.leases.get(request.lease_id)
    error, message = ErrorCode.NONE, None
    if lease is None:
        if not 0 <= request.lease_id < tables.counters.next_lease_id:
            error = ErrorCode.INVALID_REQUEST
            message = f"no lease {request.lease_id} was granted"
    elif lease.rewrite is not None:
        error, message = ErrorCode.INVALID_REQUEST, f"lease {request.lease_id} is a rewriter's"
    elif lease.broker_id != request.broker_id or lease.broker_epoch != request.broker_epoch:
        error = ErrorCode.INVALID_REQUEST
        message = f"lease {request.lease_id} is another broker's, or another epoch's"
    elif lease.is_open:
        end = lease.end_object_id if request.end_object_id < 0 else request.end_object_id
        if lease.last_committed_id < end <= lease.end_object_id:
            record = LeaseClosedRecord(
                lease_id=request.lease_id,
                closed_at_ms=context.steady_ms,
                end_object_id=end,
                reason=GIVEN_BACK,
            )
            return Decision((record,), ReleaseObjectLeaseResponse())
        error = ErrorCode.INVALID_REQUEST
        message = f"object {end} is not behind the last committed one, or not in the lease"
    return Decision((), ReleaseObjectLeaseResponse(error_code=error, error_message=message))


def decide_expired_leases(tables: Tables, context: Context) -> Decision[None]:
    """Close the leases of object ids that have been open longer than the lease timeout.

    Their brokers are gone, or have newer leases. Rewriters renew theirs.
    """
    records = [
        LeaseClosedRecord(
            lease_id=lease_id,
            closed_at_ms=context.steady_ms,
            end_object_id=lease.end_object_id,
            reason=EXPIRED,
        )
        for lease_id, lease in sorted(tables.leases.items())
        if lease.is_open
        and context.age_ms(_last_seen_ms(lease)) >= context.settings.lease_timeout_ms
    ]
    return Decision(tuple(records[: context.settings.maintenance_limit]), None)


def _last_seen_ms(lease: Lease) -> int:
    """Return the time in ms when a lease was granted or, for a rewrite lease, last renewed."""
    return lease.granted_at_ms if lease.rewrite is None else lease.rewrite.renewed_at_ms


def decide_forgotten_leases(tables: Tables, context: Context) -> Decision[None]:
    """Delete long-closed leases that have no orphans, and the responses to their commits."""
    lease_ids = [
        lease_id
        for lease_id, lease in sorted(tables.leases.items())
        if not lease.is_open
        and not lease.orphans
        and context.age_ms(lease.closed_at_ms) >= context.settings.answer_retention_ms
    ]
    del lease_ids[context.settings.maintenance_limit :]
    if not lease_ids:
        return Decision((), None)
    return Decision((LeasesForgottenRecord(lease_ids=tuple(lease_ids)),), None)
