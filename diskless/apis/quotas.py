"""Answers requests about quotas of clients: described from the image, altered by the controller.

Source: KIP-546; upstream's ClientQuotasImage, whose codes and texts these are.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from coordinator.controller.access import Client
from coordinator.controller.image import MetadataImage
from coordinator.controller.quotas import CLIENT_ID, IP, USER, Entity, entity_of
from coordinator.controller.refusals import refuse
from coordinator.errors import CoordinatorError
from diskless.apis.handler import make_handler
from diskless.cluster import Cluster
from diskless.request_time import in_thread
from raft.net.handlers import Served
from records.kafka_errors import ErrorCode
from records.rpc import security as rpc

EXACT, DEFAULT, SPECIFIED = range(3)
MATCH_TYPES: Final = ("MATCH_TYPE_EXACT", "MATCH_TYPE_DEFAULT", "MATCH_TYPE_SPECIFIED")

SEEN_HERE_S: Final = 1.0
"""The longest that the answer to a change waits for this broker's own image."""

MANY_QUOTAS: Final = 500
"""Quotas of a cluster past which they are described in a thread: some 2 ms of work."""

_Entry = rpc.DescribeClientQuotasResponse.EntryData


async def describe(
    request: rpc.DescribeClientQuotasRequest, image: MetadataImage
) -> rpc.DescribeClientQuotasResponse:
    """Describe quotas, in a thread if there are many."""
    if len(image.security.quotas) <= MANY_QUOTAS:
        return describe_quotas(request, image)
    return await in_thread(describe_quotas, request, image)


def describe_quotas(
    request: rpc.DescribeClientQuotasRequest, image: MetadataImage
) -> rpc.DescribeClientQuotasResponse:
    """Describe the quotas that a filter finds, or return an error for an invalid filter."""
    refusal = _refuse_filter(request)
    if refusal is not None:
        code, text = refusal
        return rpc.DescribeClientQuotasResponse(error_code=code, error_message=text, entries=None)
    matches = _filter(request)
    found: dict[Entity, dict[str, float]] = {}
    for (entity, key), record in image.security.quotas.items():
        if matches(entity):
            found.setdefault(entity, {})[key] = record.value
    return rpc.DescribeClientQuotasResponse(
        error_message="",
        entries=tuple(_entry(entity, values) for entity, values in found.items()),
    )


def _filter(request: rpc.DescribeClientQuotasRequest) -> Callable[[Entity], bool]:
    """Return a function that says whether a valid filter finds an entity."""
    parts = {one.entity_type: one.match for one in request.components}
    any_name = {one.entity_type for one in request.components if one.match_type == SPECIFIED}

    def matches(entity: Entity) -> bool:
        names = dict(entity)
        if request.strict and len(names) != len(parts):
            return False
        return all(
            kind in names and (kind in any_name or names[kind] == name)
            for kind, name in parts.items()
        )

    return matches


def _entry(entity: Entity, values: Mapping[str, float]) -> _Entry:
    return _Entry(
        entity=tuple(
            _Entry.EntityData(entity_type=kind, entity_name=name) for kind, name in entity
        ),
        values=tuple(_Entry.ValueData(key=key, value=values[key]) for key in sorted(values)),
    )


def _refuse_filter(request: rpc.DescribeClientQuotasRequest) -> tuple[ErrorCode, str] | None:
    """Return the error code and message of an invalid quota filter, or None for a valid filter."""
    invalid = ErrorCode.INVALID_REQUEST
    seen: set[str] = set()
    for component in request.components:
        kind, match_type, match = component.entity_type, component.match_type, component.match
        if not kind:
            return invalid, "Invalid empty entity type."
        if kind in seen:
            return invalid, f"Entity type {kind} cannot appear more than once in the filter."
        if kind not in (USER, CLIENT_ID, IP):
            return ErrorCode.UNSUPPORTED_VERSION, f"Unsupported entity type {kind[:100]}"
        seen.add(kind)
        if match_type not in (EXACT, DEFAULT, SPECIFIED):
            return invalid, f"Unknown match type {match_type}"
        specified = f"Request specified {MATCH_TYPES[match_type]}, but"
        if match_type == EXACT and match is None:
            return invalid, f"{specified} set match string to null."
        if match_type != EXACT and match is not None:
            return invalid, f"{specified} also specified a match string."
    if IP in seen and len(seen) > 1:
        return invalid, (
            "Invalid entity filter component combination. IP filter component should not be used "
            "with user or clientId filter component."
        )
    return None


async def alter_quotas(
    request: rpc.AlterClientQuotasRequest, cluster: Cluster, client: Client | None = None
) -> rpc.AlterClientQuotasResponse:
    """Forward changes of quotas; answer once the cluster image shows the changes."""
    try:
        answer = await cluster.ask_controller(request, rpc.AlterClientQuotasResponse, client)
    except CoordinatorError as error:
        refusal = refuse(request, ErrorCode.REQUEST_TIMED_OUT, error.message)
        assert isinstance(refusal, rpc.AlterClientQuotasResponse), f"{refusal}"
        return refusal
    if not request.validate_only:
        accepted = {_entity(one) for one in answer.entries if not one.error_code}
        expected = {
            (_entity(entry), op.key): None if op.remove else op.value
            for entry in request.entries
            if _entity(entry) in accepted
            for op in entry.ops
        }
        await cluster.image_where(lambda image: _shows(image, expected), SEEN_HERE_S)
    return answer


def _shows(image: MetadataImage, expected: Mapping[tuple[Entity, str], float | None]) -> bool:
    """Return whether the image has each of these quotas, or lacks it where None is expected."""
    quotas = image.security.quotas
    for where, value in expected.items():
        record = quotas.get(where)
        if (None if record is None else record.value) != value:
            return False
    return True


def _entity(
    entry: rpc.AlterClientQuotasRequest.EntryData | rpc.AlterClientQuotasResponse.EntryData,
) -> Entity:
    return entity_of((part.entity_type, part.entity_name) for part in entry.entity)


def handlers(cluster: Cluster) -> dict[int, Served]:
    """Return the handlers of requests about quotas, by api key."""
    return {
        48: make_handler(
            rpc.DescribeClientQuotasRequest,
            lambda request, _: describe(request, cluster.image),
        ),
        49: make_handler(
            rpc.AlterClientQuotasRequest,
            lambda request, context: alter_quotas(request, cluster, context.client),
        ),
    }
