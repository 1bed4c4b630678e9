"""Decides about brokers: registration, heartbeats, fencing, unregistration.

A broker registers fenced. It reads the cluster log, and once its heartbeat shows that it has read
its own registration it is unfenced: only then can clients be sent to it. It is fenced again on
request, when its session expires, or at shutdown: there it waits until every other broker has read
that it leaves, so that no client is sent to it any more. Fencing rewrites no partition
(docs/design/broker.md#any-broker-leads: the leaders that clients see are computed), so a fenced
broker costs one record, however many partitions it has.

Source: KIP-631; KIP-841 (controlled shutdown); upstream's ClusterControlManager and
BrokerHeartbeatManager.
"""

from __future__ import annotations

from typing import Final

from coordinator.controller.decide.context import Context, Decision
from coordinator.controller.decide.features import check_registration
from coordinator.controller.errors import RefusedError
from coordinator.controller.image import MetadataImage
from coordinator.controller.sessions import BrokerSessions
from records.kafka_errors import ErrorCode
from records.metadata import (
    BrokerRegistrationChangeRecord,
    RegisterBrokerRecord,
    RegisterControllerRecord,
    UnregisterBrokerRecord,
)
from records.rpc import brokers as rpc
from records.schema import MetadataRecord
from records.types import Offset

FENCE: Final = 1
UNFENCE: Final = -1
MAX_LISTENERS: Final = 32
MAX_FEATURES: Final = 128
MAX_LOG_DIRS: Final = 256
FIRST_FREE_DIRECTORY: Final = 100  # ids below are reserved by upstream (DirectoryId)


def register_broker(request: rpc.BrokerRegistrationRequest, context: Context) -> Decision:
    """Register a broker; its epoch is the offset of the registration's record.

    A repeated registration of the same process changes nothing. Another process with the same id is
    refused while the first one's session lasts.
    """
    try:
        _check_registration(request, context)
    except RefusedError as refused:
        return Decision((), rpc.BrokerRegistrationResponse(error_code=refused.code))
    former = existing = context.image.brokers.get(request.broker_id)
    if existing is not None and existing.incarnation_id != request.incarnation_id:
        alive = context.sessions.is_alive(
            request.broker_id, existing.broker_epoch, fenced=existing.fenced
        )
        if alive and not existing.in_controlled_shutdown:
            code = ErrorCode.DUPLICATE_BROKER_REGISTRATION
            return Decision((), rpc.BrokerRegistrationResponse(error_code=code))
        existing = None
    record = RegisterBrokerRecord(
        broker_id=request.broker_id,
        is_migrating_zk_broker=False,
        incarnation_id=request.incarnation_id,
        broker_epoch=context.next_offset,
        end_points=tuple(
            RegisterBrokerRecord.BrokerEndpoint(
                name=listener.name,
                host=listener.host,
                port=listener.port,
                security_protocol=listener.security_protocol,
            )
            for listener in request.listeners
        ),
        features=tuple(
            RegisterBrokerRecord.BrokerFeature(
                name=feature.name,
                min_supported_version=feature.min_supported_version,
                max_supported_version=feature.max_supported_version,
            )
            for feature in request.features
        ),
        rack=request.rack,
        fenced=True if existing is None else existing.fenced,
        in_controlled_shutdown=False if existing is None else existing.in_controlled_shutdown,
        log_dirs=request.log_dirs,
        # A restart repairs neither disk nor store: a new process keeps what the former one had.
        unpreferred_reason="" if former is None else former.unpreferred_reason,
    )
    if existing is not None and _same_but_epoch(existing, record):
        return Decision((), rpc.BrokerRegistrationResponse(broker_epoch=existing.broker_epoch))
    return Decision((record,), rpc.BrokerRegistrationResponse(broker_epoch=context.next_offset))


def _same_but_epoch(before: RegisterBrokerRecord, after: RegisterBrokerRecord) -> bool:
    return (before.end_points, before.features, before.rack, before.log_dirs) == (
        after.end_points,
        after.features,
        after.rack,
        after.log_dirs,
    )


def _check_registration(request: rpc.BrokerRegistrationRequest, context: Context) -> None:
    if request.cluster_id != context.cluster_id:
        raise RefusedError(
            ErrorCode.INCONSISTENT_CLUSTER_ID,
            f"Broker {request.broker_id} is of cluster {request.cluster_id!r}.",
        )
    if request.broker_id < 0:
        raise RefusedError(
            ErrorCode.INVALID_REGISTRATION, f"Broker id {request.broker_id} is negative."
        )
    if request.is_migrating_zk_broker:
        raise RefusedError(ErrorCode.INVALID_REGISTRATION, "There is no ZooKeeper to migrate from.")
    names = [listener.name for listener in request.listeners]
    check_endpoints(names, [listener.host for listener in request.listeners])
    directories = set(request.log_dirs)
    if len(directories) != len(request.log_dirs) or len(directories) > MAX_LOG_DIRS:
        raise RefusedError(
            ErrorCode.INVALID_REGISTRATION, f"Log directories repeat, or exceed {MAX_LOG_DIRS}."
        )
    if any(directory.int < FIRST_FREE_DIRECTORY for directory in directories):
        raise RefusedError(ErrorCode.INVALID_REGISTRATION, "A log directory has a reserved id.")
    if len(request.features) > MAX_FEATURES:
        raise RefusedError(ErrorCode.INVALID_REGISTRATION, f"{len(request.features)} features.")
    check_registration("broker", request.features, context.image)


def check_endpoints(names: list[str], hosts: list[str]) -> None:
    """Check the number, names and hosts of a broker's listeners.

    Raises RefusedError (INVALID_REGISTRATION).
    """
    if not names or len(names) > MAX_LISTENERS:
        raise RefusedError(
            ErrorCode.INVALID_REGISTRATION, f"{len(names)} listeners, not 1 to {MAX_LISTENERS}."
        )
    if len(set(names)) != len(names) or "" in names:
        raise RefusedError(ErrorCode.INVALID_REGISTRATION, f"Listener names {names} repeat.")
    for host in hosts:
        if host in ("", "0.0.0.0", "::"):
            raise RefusedError(
                ErrorCode.INVALID_REGISTRATION, f"Clients cannot connect to the address {host!r}."
            )


def heartbeat(
    request: rpc.BrokerHeartbeatRequest, context: Context, sessions: BrokerSessions
) -> Decision:
    """Record a broker's heartbeat; fence, unfence or shut down the broker on request."""
    broker = context.image.brokers.get(request.broker_id)
    if broker is None:
        return _no_heartbeat(ErrorCode.BROKER_ID_NOT_REGISTERED)
    if broker.broker_epoch != request.broker_epoch:
        return _no_heartbeat(ErrorCode.STALE_BROKER_EPOCH)
    read = Offset(request.current_metadata_offset)
    session = sessions.record_heartbeat(request.broker_id, request.broker_epoch, read)
    caught_up = read >= broker.broker_epoch
    fenced, leaving = broker.fenced, broker.in_controlled_shutdown
    shut_down = False
    if fenced:
        shut_down = request.want_shut_down
        # As in upstream, only a new registration ends a controlled shutdown.
        fenced = shut_down or leaving or request.want_fence or not caught_up
    elif request.want_fence:
        fenced, shut_down = True, request.want_shut_down
    elif request.want_shut_down or leaving:
        if not leaving:
            session.shutting_down_at = context.next_offset  # of the record below
        elif session.shutting_down_at is None:  # an earlier leader wrote it
            session.shutting_down_at = Offset(context.next_offset - 1)
        elif sessions.all_have_read(
            session.shutting_down_at,
            _serving_brokers(context.image, sessions, but=request.broker_id),
        ):
            fenced = shut_down = True
        leaving = True
    response = rpc.BrokerHeartbeatResponse(
        is_caught_up=caught_up,
        is_fenced=fenced,
        should_shut_down=shut_down,
        wall_clock_ms=context.now_ms,
    )
    if (fenced, leaving) == (broker.fenced, broker.in_controlled_shutdown):
        return Decision((), response)
    return Decision((_change(broker, fenced=fenced, leaving=leaving),), response)


def _no_heartbeat(code: ErrorCode) -> Decision:
    return Decision((), rpc.BrokerHeartbeatResponse(error_code=code, should_shut_down=False))


def _change(
    broker: RegisterBrokerRecord, *, fenced: bool, leaving: bool
) -> BrokerRegistrationChangeRecord:
    """Build the record that sets whether a broker is fenced and in controlled shutdown."""
    mark = 0 if fenced == broker.fenced else FENCE if fenced else UNFENCE
    return BrokerRegistrationChangeRecord(
        broker_id=broker.broker_id,
        broker_epoch=broker.broker_epoch,
        fenced=mark,
        in_controlled_shutdown=1 if leaving and not broker.in_controlled_shutdown else 0,
    )


def _serving_brokers(
    image: MetadataImage, sessions: BrokerSessions, *, but: int
) -> list[tuple[int, int]]:
    """Return (id, epoch) of all active brokers except the broker `but`.

    Clients are sent to these: unfenced, not shutting down, with a session.
    """
    return [
        (broker_id, broker.broker_epoch)
        for broker_id, broker in image.brokers.items()
        if broker_id != but
        and not broker.fenced
        and not broker.in_controlled_shutdown
        and sessions.is_alive(broker_id, broker.broker_epoch, fenced=False)
    ]


def fence_silent(context: Context) -> Decision:
    """Fence every broker whose session has expired."""
    records = [
        _change(broker, fenced=True, leaving=broker.in_controlled_shutdown)
        for broker_id, broker in sorted(context.image.brokers.items())
        if not broker.fenced
        and not context.sessions.is_alive(broker_id, broker.broker_epoch, fenced=False)
    ]
    return Decision(tuple(records), tuple(record.broker_id for record in records))


def unregister_broker(request: rpc.UnregisterBrokerRequest, context: Context) -> Decision:
    """Remove a broker's registration; the broker may register again.

    A broker that runs is refused, because it would register again with its next heartbeat. One that
    was allowed to shut down runs no longer.
    """
    broker = context.image.brokers.get(request.broker_id)
    if broker is None:
        return _no_unregistration(
            ErrorCode.BROKER_ID_NOT_REGISTERED,
            f"Broker ID {request.broker_id} is not currently registered",
        )
    has_left = broker.fenced and broker.in_controlled_shutdown
    if not has_left and context.sessions.is_alive(
        broker.broker_id, broker.broker_epoch, fenced=broker.fenced
    ):
        return _no_unregistration(
            ErrorCode.INVALID_REQUEST,
            f"Broker {broker.broker_id} runs, and would register again: stop it first. If it was "
            "killed, repeat this when its session has ended, after broker.session.timeout.ms.",
        )
    record = UnregisterBrokerRecord(broker_id=broker.broker_id, broker_epoch=broker.broker_epoch)
    return Decision((record,), rpc.UnregisterBrokerResponse(error_message=None))


def _no_unregistration(code: ErrorCode, message: str) -> Decision:
    return Decision((), rpc.UnregisterBrokerResponse(error_code=code, error_message=message))


def register_controller(request: rpc.ControllerRegistrationRequest, context: Context) -> Decision:
    """Register a controller's endpoints; write nothing if they are unchanged."""
    try:
        if request.controller_id < 0:
            raise RefusedError(
                ErrorCode.INVALID_REGISTRATION,
                f"Controller id {request.controller_id} is negative.",
            )
        if len(request.features) > MAX_FEATURES:
            raise RefusedError(ErrorCode.INVALID_REGISTRATION, f"{len(request.features)} features.")
        names = [listener.name for listener in request.listeners]
        check_endpoints(names, [listener.host for listener in request.listeners])
        check_registration("controller", request.features, context.image)
    except RefusedError as refused:
        return Decision(
            (),
            rpc.ControllerRegistrationResponse(
                error_code=refused.code, error_message=refused.message
            ),
        )
    record = RegisterControllerRecord(
        controller_id=request.controller_id,
        incarnation_id=request.incarnation_id,
        zk_migration_ready=request.zk_migration_ready,
        end_points=tuple(
            RegisterControllerRecord.ControllerEndpoint(
                name=listener.name,
                host=listener.host,
                port=listener.port,
                security_protocol=listener.security_protocol,
            )
            for listener in request.listeners
        ),
        features=tuple(
            RegisterControllerRecord.ControllerFeature(
                name=feature.name,
                min_supported_version=feature.min_supported_version,
                max_supported_version=feature.max_supported_version,
            )
            for feature in request.features
        ),
    )
    known = context.image.controllers.get(request.controller_id) == record
    records: tuple[MetadataRecord, ...] = () if known else (record,)
    return Decision(records, rpc.ControllerRegistrationResponse(error_message=None))
