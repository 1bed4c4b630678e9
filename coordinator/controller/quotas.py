"""Quotas of clients: their keys, their entities, and which one holds for a client.

An entity is a user, a client id, both together, or an address; each may be the default (null),
which holds for every name without a quota of its own. A quota belongs to an entity and a key.

The trap: the entity that a quota was found by also says who shares it. A user's quota is shared by
all of the user's client ids; the quota of any user and client id is one for each pair of them.

Source: KIP-13, KIP-55 (precedence), KIP-124, KIP-219, KIP-546 (the APIs), KIP-599 (mutations),
KIP-612 (connections); upstream's ClientQuotaManager.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

from records.metadata import ClientQuotaRecord

USER, CLIENT_ID, IP = "user", "client-id", "ip"

PRODUCER_BYTE_RATE: Final = "producer_byte_rate"
CONSUMER_BYTE_RATE: Final = "consumer_byte_rate"
REQUEST_PERCENTAGE: Final = "request_percentage"
CONTROLLER_MUTATION_RATE: Final = "controller_mutation_rate"
CONNECTION_CREATION_RATE: Final = "connection_creation_rate"

LONG, INT, DOUBLE = "LONG", "INT", "DOUBLE"
_MOST: Final = {LONG: 2.0**63, INT: 2.0**31 - 1, DOUBLE: math.inf}
_FRACTION: Final = 1e-6  # of a whole number: what is below is taken for an error of rounding

USER_KEYS: Final = {
    PRODUCER_BYTE_RATE: LONG,
    CONSUMER_BYTE_RATE: LONG,
    REQUEST_PERCENTAGE: DOUBLE,
    CONTROLLER_MUTATION_RATE: DOUBLE,
}
"""Keys of users and client ids, with the type of their values."""

IP_KEYS: Final = {CONNECTION_CREATION_RATE: INT}
"""Keys of addresses, with the type of their values."""

Entity = tuple[tuple[str, str | None], ...]
"""Pairs of type and name, by rising type; None is the default."""


def entity_of(parts: Iterable[tuple[str, str | None]]) -> Entity:
    """Return an entity from its parts in any order; of two parts with one type the last holds.

    >>> entity_of([("user", "ann"), ("client-id", None)])
    (('client-id', None), ('user', 'ann'))
    """
    return tuple(sorted(dict(parts).items(), key=lambda part: part[0]))


def refuse_value(key: str, kind: str, value: float) -> str | None:
    """Return the reason why a quota cannot have this value, or None. The sentences are Kafka's.

    >>> refuse_value("producer_byte_rate", LONG, 0.0)
    'Quota producer_byte_rate must be greater than 0'
    """
    if math.isnan(value):
        return f"Quota {key} is not a number"
    if value <= 0:
        return f"Quota {key} must be greater than 0"
    if value > _MOST[kind]:
        return f"Proposed value for {key} is too large for {'an' if kind == INT else 'a'} {kind}."
    if kind != DOUBLE and math.fmod(value, 1.0) > _FRACTION:
        return f"{key} cannot be a fractional value."
    return None


class Quota(NamedTuple):
    """A client's quota of one key, and who shares it."""

    limit: float
    shared_by: tuple[str, str]
    """The user and the client id; empty: all of them."""


Quotas = Mapping[tuple[Entity, str], ClientQuotaRecord]
"""The quotas of one image, by entity and key."""


def find_quota(quotas: Quotas, key: str, user: str, client_id: str) -> Quota | None:
    """Return the quota of one key that holds for a client, or None without a limit.

    >>> bob = ClientQuotaRecord.EntityData(entity_type="user", entity_name="bob")
    >>> record = ClientQuotaRecord(entity=(bob,), key="rate", value=1.0, remove=False)
    >>> find_quota({((("user", "bob"),), "rate"): record}, "rate", "bob", "app")
    Quota(limit=1.0, shared_by=('bob', ''))
    """
    for entity, shared_by in _candidates(user, client_id):
        record = quotas.get((entity, key))
        if record is not None:
            return Quota(record.value, shared_by)
    return None


def _candidates(user: str, client_id: str) -> Iterable[tuple[Entity, tuple[str, str]]]:
    """Yield the entities of a client, the first one that has a quota decides, and who shares it."""
    of_user, any_user = (USER, user), (USER, None)
    of_client, any_client = (CLIENT_ID, client_id), (CLIENT_ID, None)
    pair = (user, client_id)
    if client_id:
        yield (of_client, of_user), pair
        yield (any_client, of_user), pair
    yield (of_user,), (user, "")
    if client_id:
        yield (of_client, any_user), pair
        yield (any_client, any_user), pair
    yield (any_user,), (user, "")
    if client_id:
        yield (of_client,), ("", client_id)
        yield (any_client,), ("", client_id)
