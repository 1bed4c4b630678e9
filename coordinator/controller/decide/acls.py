"""Decides about access control entries: which are created, and which a filter removes.

Each entry of a request is decided for itself. An entry that exists already is created with success
and without a record. The sentences are Kafka's where Kafka has one: its tools print them.

The trap: an entry whose principal cannot be parsed is accepted by Kafka, and from then on each
request that it concerns fails there. It is refused here.

Source: KIP-140, KIP-290, KIP-801; upstream's AclApis and AclControlManager.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, cast
from uuid import UUID

from coordinator.controller.acl_filters import ANY, MATCH, PERMISSIONS, AclFilter
from coordinator.controller.authorizer import CLUSTER_NAME, Operation, PatternType, ResourceType
from coordinator.controller.decide.context import Context, Decision
from coordinator.controller.errors import RefusedError
from coordinator.controller.image import MetadataImage
from coordinator.controller.security import AclKey, acl_key
from raft.net.principal import parse_principal
from records.kafka_errors import ErrorCode
from records.metadata import AccessControlEntryRecord, RemoveAccessControlEntryRecord
from records.rpc import security as rpc

MAX_ACLS: Final = 100_000
MAX_TEXT_BYTES: Final = 1_024
"""Bytes of a resource's name, a principal or a host: no resource has a longer name."""

MAX_COMPARISONS: Final = 500_000
"""Entries that the filters of one request are compared with: half a second at most."""

_Created = rpc.CreateAclsResponse.AclCreationResult
_Removed = rpc.DeleteAclsResponse.DeleteAclsFilterResult
_Creation = rpc.CreateAclsRequest.AclCreation


def create_acls(request: rpc.CreateAclsRequest, context: Context) -> Decision:
    """Create the access control entries of the request, with an error for each refused entry."""
    limit = context.limits.max_items_of_request
    if len(request.creations) > limit:
        text = f"A request may name at most {limit} of them."
        refused = _Created(error_code=ErrorCode.POLICY_VIOLATION, error_message=text)
        return Decision((), rpc.CreateAclsResponse(results=(refused,) * limit))
    records: dict[AclKey, AccessControlEntryRecord] = {}
    results = []
    for creation in request.creations:
        try:
            record = _record(creation, context.new_id())
            key = acl_key(record)
            if key not in context.image.security.acl_ids and key not in records:
                if len(context.image.security.acls) + len(records) >= MAX_ACLS:
                    text = f"there are {MAX_ACLS} access control entries already"
                    raise RefusedError(ErrorCode.POLICY_VIOLATION, text)
                records[key] = record
            results.append(_Created(error_message=""))
        except RefusedError as error:
            results.append(_Created(error_code=error.code, error_message=error.message))
    return Decision(tuple(records.values()), rpc.CreateAclsResponse(results=tuple(results)))


def _record(creation: _Creation, acl_id: UUID) -> AccessControlEntryRecord:
    """Return the record of one valid entry. Raises RefusedError."""
    kind, name = creation.resource_type, creation.resource_name
    refusal = _refuse(creation)
    if refusal is not None:
        raise RefusedError(ErrorCode.INVALID_REQUEST, refusal)
    return AccessControlEntryRecord(
        id=acl_id,
        resource_type=kind,
        resource_name=name,
        pattern_type=creation.resource_pattern_type,
        principal=creation.principal,
        host=creation.host,
        operation=creation.operation,
        permission_type=creation.permission_type,
    )


def _refuse(creation: _Creation) -> str | None:
    """Return the reason why an access control entry is invalid, or None."""
    if creation.resource_type == ResourceType.CLUSTER and creation.resource_name != CLUSTER_NAME:
        return f"The only valid name for the CLUSTER resource is {CLUSTER_NAME}"
    if not creation.resource_name:
        return "Invalid empty resource name"
    for noun, code, known in (
        ("resourceType", creation.resource_type, ResourceType),
        ("patternType", creation.resource_pattern_type, PatternType),
        ("operation", creation.operation, Operation),
        ("permissionType", creation.permission_type, PERMISSIONS),
    ):
        if code not in set(known):
            return f"Invalid {noun} {_name(code)}"
    for noun, text in (
        ("resource name", creation.resource_name),
        ("principal", creation.principal),
        ("host", creation.host),
    ):
        if len(text.encode()) > MAX_TEXT_BYTES:
            return f"The {noun} is longer than {MAX_TEXT_BYTES} bytes"
    try:
        parse_principal(creation.principal)
    except ValueError as error:
        return str(error)
    return "The host is empty: * is any host" if not creation.host else None


def _name(code: int) -> str:
    return {ANY: "ANY", MATCH: "MATCH"}.get(code, str(code))


def delete_acls(request: rpc.DeleteAclsRequest, context: Context) -> Decision:
    """Remove the access control entries that the filters find; return them by filter."""
    limit = context.limits.max_items_of_request
    filters = [AclFilter.of(requested) for requested in request.filters[:limit]]
    count = len(context.image.security.acls)
    comparisons = sum(1 if one.is_exact else count for one in filters)
    refused = ""
    if len(request.filters) > limit:
        refused = f"A request may name at most {limit} of them."
    elif comparisons > MAX_COMPARISONS and len(filters) > 1:
        refused = (
            f"{len(filters)} filters and {count} entries are too many for one request: send fewer "
            "filters, or name each entry completely."
        )
    if refused:
        result = _refused_filter(ErrorCode.POLICY_VIOLATION, refused)
        return Decision((), rpc.DeleteAclsResponse(filter_results=(result,) * len(filters)))
    removed: dict[UUID, RemoveAccessControlEntryRecord] = {}
    results = []
    for one in filters:
        unknown = one.unknown_field()
        if unknown is not None:
            text = f"The filter has an unknown {unknown}."
            results.append(_refused_filter(ErrorCode.INVALID_REQUEST, text))
            continue
        found = find_acls(one, context.image)
        if len(removed) + len(found) > limit and len(removed | {a.id: None for a in found}) > limit:
            text = f"Cannot remove more than {limit} acls in a single delete operation."
            results.append(_refused_filter(ErrorCode.POLICY_VIOLATION, text))
            continue
        removed |= {acl.id: RemoveAccessControlEntryRecord(id=acl.id) for acl in found}
        results.append(
            _Removed(error_message=None, matching_acls=tuple(_removed(acl) for acl in found))
        )
    return Decision(tuple(removed.values()), rpc.DeleteAclsResponse(filter_results=tuple(results)))


def find_acls(one: AclFilter, image: MetadataImage) -> list[AccessControlEntryRecord]:
    """Return the access control entries that a filter finds, by rising id."""
    security = image.security
    if one.is_exact:
        acl_id = security.acl_ids.get(cast("AclKey", tuple(one)))
        return [] if acl_id is None else [security.acls[acl_id]]
    return sorted(filter(one.matches, security.acls.values()), key=_id)


def _id(acl: AccessControlEntryRecord) -> int:
    return acl.id.int


def _refused_filter(code: ErrorCode, text: str) -> _Removed:
    return _Removed(error_code=code, error_message=text, matching_acls=())


def _removed(acl: AccessControlEntryRecord) -> _Removed.DeleteAclsMatchingAcl:
    return _Removed.DeleteAclsMatchingAcl(
        error_message=None,
        resource_type=acl.resource_type,
        resource_name=acl.resource_name,
        pattern_type=acl.pattern_type,
        principal=acl.principal,
        host=acl.host,
        operation=acl.operation,
        permission_type=acl.permission_type,
    )


def describe_acls(
    acls: Iterable[AccessControlEntryRecord],
) -> tuple[rpc.DescribeAclsResponse.DescribeAclsResource, ...]:
    """Return the descriptions of access control entries, one for each resource pattern."""
    described = rpc.DescribeAclsResponse.DescribeAclsResource
    by_pattern: dict[tuple[int, str, int], list[AccessControlEntryRecord]] = {}
    for acl in acls:
        key = (acl.resource_type, acl.resource_name, acl.pattern_type)
        by_pattern.setdefault(key, []).append(acl)
    return tuple(
        described(
            resource_type=kind,
            resource_name=name,
            pattern_type=pattern,
            acls=tuple(
                described.AclDescription(
                    principal=acl.principal,
                    host=acl.host,
                    operation=acl.operation,
                    permission_type=acl.permission_type,
                )
                for acl in found
            ),
        )
        for (kind, name, pattern), found in by_pattern.items()
    )
