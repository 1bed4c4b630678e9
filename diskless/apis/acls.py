"""Describes access control entries from the image, and forwards changes of them to the controller.

Without an authorizer (`authorizer.class.name`) each of these requests is SECURITY_DISABLED. The
answer to a change waits briefly until this broker decides by it: a client that is given a right
often uses it at once.

Source: KIP-140, KIP-290; upstream's AclApis.
"""

from __future__ import annotations

import asyncio
from typing import Final

from coordinator.controller.access import Client
from coordinator.controller.acl_filters import AclFilter
from coordinator.controller.decide.acls import describe_acls
from coordinator.controller.image import MetadataImage
from coordinator.controller.refusals import refuse
from coordinator.errors import CoordinatorError
from diskless.apis.handler import RequestContext, make_handler
from diskless.cluster import Cluster
from raft.net.handlers import Served
from records.kafka_errors import ErrorCode
from records.metadata import AccessControlEntryRecord
from records.rpc import security as rpc

NO_AUTHORIZER: Final = "No Authorizer is configured."
MAX_ITEMS: Final = 10_000
"""Entries or filters of one request; of more, so many are answered with POLICY_VIOLATION."""

SLICE_ACLS: Final = 1_000  # compared before the loop runs other tasks: 1 ms
SEEN_HERE_S: Final = 1.0
"""The longest that the answer to a change waits for this broker's own image."""


async def describe(
    request: rpc.DescribeAclsRequest, image: MetadataImage
) -> rpc.DescribeAclsResponse:
    """Describe the access control entries that a filter finds."""
    wanted = AclFilter.of(request)
    unknown = wanted.unknown_field()
    if unknown is not None:
        return rpc.DescribeAclsResponse(
            error_code=ErrorCode.INVALID_REQUEST,
            error_message=f"The filter has an unknown {unknown}.",
            resources=(),
        )
    found: list[AccessControlEntryRecord] = []
    for number, acl in enumerate(image.security.acls.values()):
        if number % SLICE_ACLS == SLICE_ACLS - 1:
            await asyncio.sleep(0)
        if wanted.matches(acl):
            found.append(acl)
    return rpc.DescribeAclsResponse(error_message="", resources=describe_acls(found))


async def create(
    request: rpc.CreateAclsRequest, cluster: Cluster, client: Client | None
) -> rpc.CreateAclsResponse:
    """Forward new access control entries to the controller."""
    keys = [
        (
            one.resource_type,
            one.resource_name,
            one.resource_pattern_type,
            one.principal,
            one.host,
            one.operation,
            one.permission_type,
        )
        for one in request.creations
    ]
    try:
        answer = await cluster.ask_controller(request, rpc.CreateAclsResponse, client)
    except CoordinatorError as error:
        refusal = refuse(request, ErrorCode.REQUEST_TIMED_OUT, error.message)
        assert isinstance(refusal, rpc.CreateAclsResponse), f"{refusal}"
        return refusal
    results = zip(keys, answer.results, strict=False)
    made = {key for key, result in results if not result.error_code}
    await cluster.image_where(
        lambda image: all(key in image.security.acl_ids for key in made), SEEN_HERE_S
    )
    return answer


async def delete(
    request: rpc.DeleteAclsRequest, cluster: Cluster, client: Client | None
) -> rpc.DeleteAclsResponse:
    """Forward filters of access control entries to remove to the controller."""
    try:
        answer = await cluster.ask_controller(request, rpc.DeleteAclsResponse, client)
    except CoordinatorError as error:
        refusal = refuse(request, ErrorCode.REQUEST_TIMED_OUT, error.message)
        assert isinstance(refusal, rpc.DeleteAclsResponse), f"{refusal}"
        return refusal
    gone = {
        (
            acl.resource_type,
            acl.resource_name,
            acl.pattern_type,
            acl.principal,
            acl.host,
            acl.operation,
            acl.permission_type,
        )
        for result in answer.filter_results
        for acl in result.matching_acls
    }
    await cluster.image_where(
        lambda image: not any(key in image.security.acl_ids for key in gone), SEEN_HERE_S
    )
    return answer


# --- without an authorizer ----------------------------------------------------------------------


def refuse_description() -> rpc.DescribeAclsResponse:
    """Refuse DescribeAcls, because no authorizer is configured."""
    return rpc.DescribeAclsResponse(
        error_code=ErrorCode.SECURITY_DISABLED,
        error_message="No Authorizer is configured on the broker",
        resources=(),
    )


def refuse_creations(request: rpc.CreateAclsRequest) -> rpc.CreateAclsResponse:
    """Refuse each new entry of the request, because no authorizer is configured."""
    code, text = _refusal(len(request.creations))
    result = rpc.CreateAclsResponse.AclCreationResult(error_code=code, error_message=text)
    return rpc.CreateAclsResponse(results=(result,) * min(len(request.creations), MAX_ITEMS))


def refuse_deletions(request: rpc.DeleteAclsRequest) -> rpc.DeleteAclsResponse:
    """Refuse each filter of the request, because no authorizer is configured."""
    code, text = _refusal(len(request.filters))
    result = rpc.DeleteAclsResponse.DeleteAclsFilterResult(
        error_code=code, error_message=text, matching_acls=()
    )
    return rpc.DeleteAclsResponse(filter_results=(result,) * min(len(request.filters), MAX_ITEMS))


def _refusal(count: int) -> tuple[ErrorCode, str]:
    if count > MAX_ITEMS:
        text = f"A request may name at most {MAX_ITEMS} of them."
        return ErrorCode.POLICY_VIOLATION, text
    return ErrorCode.SECURITY_DISABLED, NO_AUTHORIZER


def handlers(cluster: Cluster, *, has_authorizer: bool) -> dict[int, Served]:
    """Return the handlers of requests about access control entries, by api key."""
    if not has_authorizer:
        return {
            29: make_handler(rpc.DescribeAclsRequest, lambda *_: refuse_description()),
            30: make_handler(rpc.CreateAclsRequest, lambda request, _: refuse_creations(request)),
            31: make_handler(rpc.DeleteAclsRequest, lambda request, _: refuse_deletions(request)),
        }

    async def on_create(
        request: rpc.CreateAclsRequest, context: RequestContext
    ) -> rpc.CreateAclsResponse:
        return await create(request, cluster, context.client)

    async def on_delete(
        request: rpc.DeleteAclsRequest, context: RequestContext
    ) -> rpc.DeleteAclsResponse:
        return await delete(request, cluster, context.client)

    return {
        29: make_handler(
            rpc.DescribeAclsRequest,
            lambda request, _: describe(request, cluster.image),
            in_line=True,
        ),
        30: make_handler(rpc.CreateAclsRequest, on_create),
        31: make_handler(rpc.DeleteAclsRequest, on_delete),
    }
