"""Decides about quotas of clients: which are set and removed.

Each entity of a request is decided for itself. A value that a quota has already makes no record.
The codes and sentences are Kafka's, with these differences: an entity that is named twice is not
changed, NaN is no quota, and a host name is no address (a controller asks no name server).

Source: KIP-546; upstream's ClientQuotaControlManager.
"""

from __future__ import annotations

import ipaddress
from collections import Counter
from collections.abc import Mapping
from typing import Final

from coordinator.controller.decide.context import Context, Decision
from coordinator.controller.errors import RefusedError
from coordinator.controller.image import MetadataImage
from coordinator.controller.quotas import (
    CLIENT_ID,
    IP,
    IP_KEYS,
    USER,
    USER_KEYS,
    Entity,
    entity_of,
    refuse_value,
)
from records.kafka_errors import ErrorCode
from records.metadata import ClientQuotaRecord
from records.rpc.security import AlterClientQuotasRequest, AlterClientQuotasResponse

MAX_QUOTAS: Final = 10_000
MAX_NAME_BYTES: Final = 1_024

_Entry = AlterClientQuotasRequest.EntryData
_Result = AlterClientQuotasResponse.EntryData


def alter_quotas(request: AlterClientQuotasRequest, context: Context) -> Decision:
    """Set and remove quotas, with an error for each refused entity."""
    limit = context.limits.max_items_of_request
    if sum(1 + len(entry.ops) + len(entry.entity) for entry in request.entries) > limit:
        text = f"A request may name at most {limit} entities and quotas."
        outcomes = {
            entity_of(_parts(e)): (ErrorCode.POLICY_VIOLATION, text) for e in request.entries
        }
        return Decision((), _answer(dict(list(outcomes.items())[:limit])))
    records: list[ClientQuotaRecord] = []
    results: dict[Entity, tuple[ErrorCode, str] | None] = {}
    times = Counter(entity_of(_parts(entry)) for entry in request.entries)
    quotas = context.image.security.quotas
    count = len(quotas)
    for entry in request.entries:
        entity = entity_of(_parts(entry))
        operations = {op.key: None if op.remove else op.value for op in entry.ops}
        if times[entity] > 1 or len(operations) < len(entry.ops):
            text = f"Ignoring duplicate entity {_shown(entity)}"
            results[entity] = (ErrorCode.INVALID_REQUEST, text)
            continue
        try:
            made = _change(entity, operations, context.image)
            added = sum((entity, one.key) not in quotas for one in made)
            if added and count + added > MAX_QUOTAS:
                text = f"there are {MAX_QUOTAS} quotas already"
                raise RefusedError(ErrorCode.POLICY_VIOLATION, text)
        except RefusedError as refused:
            results[entity] = (refused.code, refused.message)
            continue
        count += added
        records += made
        results[entity] = None
    return Decision(() if request.validate_only else tuple(records), _answer(results))


def _parts(entry: _Entry) -> list[tuple[str, str | None]]:
    return [(part.entity_type, part.entity_name) for part in entry.entity]


def _shown(entity: Entity) -> str:
    """Return an entity as Kafka writes it."""
    parts = ", ".join(f"{kind}={'null' if name is None else name}" for kind, name in entity)
    return f"ClientQuotaEntity(entries={{{parts[:MAX_NAME_BYTES]}}})"


def _change(
    entity: Entity, operations: Mapping[str, float | None], image: MetadataImage
) -> list[ClientQuotaRecord]:
    """Return the records that change one entity's quotas. Raises RefusedError."""
    keys = _keys_of(entity)
    quotas = image.security.quotas
    part = ClientQuotaRecord.EntityData
    parts = tuple(part(entity_type=kind, entity_name=name) for kind, name in entity)
    made = []
    for key, value in operations.items():
        known = quotas.get((entity, key))
        if value is None:
            if known is not None:
                made.append(ClientQuotaRecord(entity=parts, key=key, value=0.0, remove=True))
            continue
        kind = keys.get(key)
        if kind is None:
            raise _invalid(f"Invalid configuration key {key[:MAX_NAME_BYTES]}")
        refusal = refuse_value(key, kind, value)
        if refusal is not None:
            raise _invalid(refusal)
        if known is None or known.value != value:
            made.append(ClientQuotaRecord(entity=parts, key=key, value=value, remove=False))
    return made


def _keys_of(entity: Entity) -> Mapping[str, str]:
    """Return the keys that an entity can have, with the types of values. Raises RefusedError."""
    if not entity:
        raise _invalid("Invalid empty client quota entity")
    kinds = {kind for kind, _ in entity}
    for kind, name in entity:
        if kind not in (USER, CLIENT_ID, IP):
            text = f"Unhandled client quota entity type: {kind[:MAX_NAME_BYTES]}"
            raise _invalid(text)
        if name == "":
            raise _invalid(f"Empty {kind} not supported")
        if name is not None and len(name.encode()) > MAX_NAME_BYTES:
            raise _invalid(f"The {kind} is longer than {MAX_NAME_BYTES} bytes")
    if IP not in kinds:
        return USER_KEYS
    if len(kinds) > 1:
        raise _invalid(
            "Invalid quota entity combination, IP entity shouldnot be combined with User or "
            "ClientId"
        )
    ((_, address),) = entity
    if address is not None and not _is_address(address):
        raise _invalid(f"{address} is not a valid IP or resolvable host.")
    return IP_KEYS


def _is_address(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True


def _invalid(text: str) -> RefusedError:
    return RefusedError(ErrorCode.INVALID_REQUEST, text)


def _answer(
    results: Mapping[Entity, tuple[ErrorCode, str] | None],
) -> AlterClientQuotasResponse:
    return AlterClientQuotasResponse(
        entries=tuple(
            _Result(
                error_code=ErrorCode.NONE if refusal is None else refusal[0],
                error_message=None if refusal is None else refusal[1],
                entity=tuple(
                    _Result.EntityData(entity_type=kind, entity_name=name) for kind, name in entity
                ),
            )
            for entity, refusal in results.items()
        )
    )
