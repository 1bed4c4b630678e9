"""Reduces a request to the part that its client may ask for, and completes the response.

    guarded = guard(request, Asked(access, version, image))
    if guarded is None: ...              # everything is allowed
    elif guarded.request is None: ...    # nothing is: guarded.finish(None) is the response
    else: ...                            # handle guarded.request, then guarded.finish(response)

So a handler knows nothing of access control, and a guard nothing of the work: it is a function of
the request, the client's access and the image. Which operations an API needs stands in one table
(`coordinator.controller.api_operations`); guards take them from there.

Source: upstream's KafkaApis, ControllerApis and AuthHelper.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Final, NamedTuple, TypeVar

import msgspec

from coordinator.controller.access import Access
from coordinator.controller.api_operations import CHECKS, Check
from coordinator.controller.authorizer import ResourceType
from coordinator.controller.image import MetadataImage
from records.kafka_errors import ErrorCode
from records.rpc.base import Request, Response

T = TypeVar("T")

AUTHORIZATION_FAILED: Final = {
    ResourceType.TOPIC: ErrorCode.TOPIC_AUTHORIZATION_FAILED,
    ResourceType.GROUP: ErrorCode.GROUP_AUTHORIZATION_FAILED,
    ResourceType.CLUSTER: ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
    ResourceType.TRANSACTIONAL_ID: ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
}
"""The error of a resource on which an operation is denied."""

DENIED_TOPIC: Final = "Topic authorization failed."
DENIED_GROUP: Final = "Group authorization failed."
DENIED_CLUSTER: Final = "Cluster authorization failed."


class Asked(NamedTuple):
    """The client of a request, the request's version, and the image that names its topics."""

    access: Access
    version: int
    image: MetadataImage


class Guarded(NamedTuple):
    """The allowed part of a request."""

    request: Request | None
    """What is handled for the client; None: nothing is."""

    finish: Callable[[Any], Response]
    """Makes the client's response of the handler's, or of None if nothing is handled."""


Guard = Callable[[Any, Asked], Guarded | None]
"""Returns the allowed part of a request, or None if the whole request is allowed as it is."""


def refused(response: Response) -> Guarded:
    """Return that nothing of a request is allowed, with its response."""
    return Guarded(None, lambda _: response)


def needs(api_key: int, kind: ResourceType, number: int = 0) -> Check:
    """Return an API's check of a type of resource from the table of operations.

    Args:  number: which one, if the API has several checks of the type.
    """
    return [check for check in CHECKS[api_key] if check.kind is kind][number]


def is_allowed(check: Check, access: Access, name: str) -> bool:
    """Return whether a check passes for a resource, or the check that also grants it."""
    other = check.unless
    if (
        other is not None
        and other.kind is ResourceType.CLUSTER
        and access.allows_cluster(other.operation, logs=False)
    ):
        return True
    return access.allows(check.operation, check.kind, name)


def denied_names(check: Check, access: Access, names: Iterable[str | None]) -> list[int]:
    """Return the indexes of the names for which a check fails that no other one grants.

    None, a resource without a name, passes.
    """
    assert check.unless is None, f"{check} has another check that grants it"
    return access.denied(check.operation, check.kind, names)


def is_allowed_on_cluster(check: Check, access: Access) -> bool:
    """Return whether a check of the cluster passes, or the check that also grants it."""
    other = check.unless
    if other is not None and access.allows_cluster(other.operation, logs=False):
        return True
    return access.allows_cluster(check.operation)


def split(items: Iterable[T], is_item_allowed: Callable[[T], bool]) -> tuple[list[T], list[T]]:
    """Split items into those that are allowed and those that are denied."""
    allowed: list[T] = []
    denied: list[T] = []
    for item in items:
        (allowed if is_item_allowed(item) else denied).append(item)
    return allowed, denied


def replace(message: Any, **changes: Any) -> Any:
    """Return a copy of a message with other values of some fields."""
    return msgspec.structs.replace(message, **changes)


def without_denied(
    request: Any,
    field: str,
    response_field: str,
    is_item_allowed: Callable[[Any], bool],
    deny: Callable[[Any], Any],
) -> Guarded | None:
    """Return a request without its denied items, which the response gets back with an error.

    Args:  field: the items of the request; response_field: those of the response.
           deny: makes the response's item of a denied item of the request.
    """
    allowed, denied = split(getattr(request, field), is_item_allowed)
    if not denied:
        return None

    def finish(response: Any) -> Response:
        if getattr(response, "error_code", 0):
            return response  # type: ignore[no-any-return]  # a Response
        items = (*getattr(response, response_field), *map(deny, denied))
        return replace(response, **{response_field: items})  # type: ignore[no-any-return]

    return Guarded(replace(request, **{field: tuple(allowed)}), finish)


def needs_one_cluster_operation(api_key: int) -> bool:
    """Return whether an API needs one operation on the cluster and nothing else."""
    row = CHECKS.get(api_key, ())
    return len(row) == 1 and row[0].kind is ResourceType.CLUSTER and not row[0].when
