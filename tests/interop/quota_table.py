"""Requests about client quotas in one order, and the answers that Apache Kafka 4.3.1 gave to them.

A step alters quotas or describes them; each sees what the steps before it did. Answers are compared
without the order of entities, values and entity parts, which Kafka leaves to its hash maps.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

from records.kafka_errors import ErrorCode
from records.rpc.base import Request
from records.rpc.security import AlterClientQuotasRequest, DescribeClientQuotasRequest

RECORDED: Final = Path(__file__).parents[1] / "data" / "quotas_of_kafka.json"

EXACT, DEFAULT, SPECIFIED = range(3)

_Entry = AlterClientQuotasRequest.EntryData
_Component = DescribeClientQuotasRequest.ComponentData
Entity = tuple[tuple[str, str | None], ...]
Operation = tuple[str, float | None]
"""Key and value; None removes it."""

ANN: Final[Entity] = (("user", "ann"),)
ANYBODY: Final[Entity] = (("user", None),)
APP: Final[Entity] = (("client-id", "app"),)
ANN_APP: Final[Entity] = (("user", "ann"), ("client-id", "app"))
HOST: Final[Entity] = (("ip", "10.0.0.7"),)


def alter(
    *entries: tuple[Entity, tuple[Operation, ...]], validate_only: bool = False
) -> AlterClientQuotasRequest:
    """Build a request that alters quotas."""
    return AlterClientQuotasRequest(
        entries=tuple(
            _Entry(
                entity=tuple(
                    _Entry.EntityData(entity_type=kind, entity_name=name) for kind, name in entity
                ),
                ops=tuple(
                    _Entry.OpData(key=key, value=value or 0.0, remove=value is None)
                    for key, value in operations
                ),
            )
            for entity, operations in entries
        ),
        validate_only=validate_only,
    )


def describe(
    *components: tuple[str, int, str | None], strict: bool = False
) -> DescribeClientQuotasRequest:
    """Build a request that describes quotas."""
    return DescribeClientQuotasRequest(
        components=tuple(
            _Component(entity_type=kind, match_type=how, match=match)
            for kind, how, match in components
        ),
        strict=strict,
    )


def _of(entity: Entity, *operations: Operation) -> AlterClientQuotasRequest:
    return alter((entity, operations))


BAD_VALUES: Final = (0.0, -1.0, -0.0, math.nan, math.inf, -math.inf, 1e300, 2.0**63, 0.5, 1e-7)

STEPS: Final[tuple[tuple[str, Request], ...]] = (
    ("nothing", describe()),
    ("a user", _of(ANN, ("producer_byte_rate", 1024.0), ("consumer_byte_rate", 2048.0))),
    ("any user", _of(ANYBODY, ("request_percentage", 12.5))),
    ("a client id", _of(APP, ("controller_mutation_rate", 0.5))),
    ("any client id", _of((("client-id", None),), ("producer_byte_rate", 10.0))),
    ("a user's client id", _of(ANN_APP, ("consumer_byte_rate", 77.0))),
    (
        "any user's client id",
        _of((("user", None), ("client-id", "app")), ("request_percentage", 3.0)),
    ),
    (
        "a user's any client id",
        _of((("client-id", None), ("user", "ann")), ("request_percentage", 4.0)),
    ),
    ("both defaults", _of((("user", None), ("client-id", None)), ("request_percentage", 5.0))),
    ("an address", _of(HOST, ("connection_creation_rate", 20.0))),
    ("any address", _of((("ip", None),), ("connection_creation_rate", 100.0))),
    ("an address of 16 bytes", _of((("ip", "::1"),), ("connection_creation_rate", 5.0))),
    ("everything", describe()),
    ("everything, strict", describe(strict=True)),
    ("users", describe(("user", SPECIFIED, None))),
    ("users alone", describe(("user", SPECIFIED, None), strict=True)),
    ("ann", describe(("user", EXACT, "ann"))),
    ("ann alone", describe(("user", EXACT, "ann"), strict=True)),
    ("the default of users", describe(("user", DEFAULT, None), strict=True)),
    ("the default of client ids", describe(("client-id", DEFAULT, None))),
    ("ann's client ids", describe(("user", EXACT, "ann"), ("client-id", SPECIFIED, None))),
    ("ann and app", describe(("user", EXACT, "ann"), ("client-id", EXACT, "app"), strict=True)),
    ("addresses", describe(("ip", SPECIFIED, None))),
    ("an unknown user", describe(("user", EXACT, "nobody"))),
    ("filter: empty type", describe(("", EXACT, "a"))),
    ("filter: unknown type", describe(("group", EXACT, "a"))),
    ("filter: twice", describe(("user", EXACT, "a"), ("user", SPECIFIED, None))),
    ("filter: exact null", describe(("user", EXACT, None))),
    ("filter: default with match", describe(("user", DEFAULT, "a"))),
    ("filter: specified with match", describe(("user", SPECIFIED, "a"))),
    ("filter: match type 7", describe(("user", 7, None))),
    ("filter: ip and user", describe(("ip", EXACT, "10.0.0.7"), ("user", EXACT, "a"))),
    ("validated only", alter((ANN, (("producer_byte_rate", 9.0),)), validate_only=True)),
    ("still 1024", describe(("user", EXACT, "ann"), strict=True)),
    *((f"bytes {value}", _of(ANN, ("producer_byte_rate", value))) for value in BAD_VALUES),
    *((f"percentage {value}", _of(ANN, ("request_percentage", value))) for value in BAD_VALUES),
    *(
        (f"mutations {value}", _of(APP, ("controller_mutation_rate", value)))
        for value in BAD_VALUES
    ),
    *(
        (f"connections {value}", _of(HOST, ("connection_creation_rate", value)))
        for value in (*BAD_VALUES, 2.0**31, 2.0**31 - 1)
    ),
    ("after bad values", describe()),
    ("unknown key", _of(ANN, ("bytes", 1.0))),
    ("empty key", _of(ANN, ("", 1.0))),
    ("remove an unknown key", _of(ANN, ("bytes", None))),
    ("key of addresses for a user", _of(ANN, ("connection_creation_rate", 1.0))),
    ("key of users for an address", _of(HOST, ("producer_byte_rate", 1.0))),
    ("SCRAM as a key", _of(ANN, ("SCRAM-SHA-256", 1.0))),
    ("a good and a bad key", _of(ANN, ("consumer_byte_rate", 3.0), ("bytes", 1.0))),
    ("key twice", _of(ANN, ("producer_byte_rate", 1.0), ("producer_byte_rate", 2.0))),
    ("empty entity", _of((), ("producer_byte_rate", 1.0))),
    ("unknown type", _of((("group", "g"),), ("producer_byte_rate", 1.0))),
    ("empty type", _of((("", "g"),), ("producer_byte_rate", 1.0))),
    ("empty user", _of((("user", ""),), ("producer_byte_rate", 1.0))),
    ("empty client id", _of((("client-id", ""),), ("producer_byte_rate", 1.0))),
    ("user and address", _of((("user", "ann"), ("ip", "10.0.0.7")), ("producer_byte_rate", 1.0))),
    ("type twice", _of((("user", "ann"), ("user", "bob")), ("producer_byte_rate", 6.0))),
    ("no address", _of((("ip", "no address!"),), ("connection_creation_rate", 1.0))),
    ("empty address", _of((("ip", ""),), ("connection_creation_rate", 1.0))),
    ("no operation", _of((("user", "empty"),))),
    ("no entry", alter()),
    (
        "entity twice",
        alter(
            (ANN, (("producer_byte_rate", 11.0),)),
            (ANN, (("producer_byte_rate", 12.0),)),
        ),
    ),
    (
        "entity twice, in another order",
        alter(
            (ANN_APP, (("producer_byte_rate", 11.0),)),
            (ANN_APP[::-1], (("producer_byte_rate", 12.0),)),
        ),
    ),
    # Kafka has set the first quota of an entity that is named twice, Esker none.
    ("a known state", _of(ANN, ("producer_byte_rate", 1.0))),
    ("a known state of both", _of(ANN_APP, ("producer_byte_rate", None))),
    (
        "one of two entities is bad",
        alter(
            ((("user", "good"),), (("producer_byte_rate", 8.0),)),
            ((("user", "bad"),), (("producer_byte_rate", -8.0),)),
        ),
    ),
    ("after bad entities", describe()),
    ("remove a key", _of(ANN, ("producer_byte_rate", None))),
    ("remove it again", _of(ANN, ("producer_byte_rate", None))),
    ("remove and set", _of(ANN, ("consumer_byte_rate", None), ("request_percentage", 50.0))),
    ("the same value", _of(ANN, ("request_percentage", 50.0))),
    ("remove of an unknown entity", _of((("user", "nobody"),), ("producer_byte_rate", None))),
    ("at last", describe()),
)


def answers(ask: Callable[[Request, int], Any]) -> dict[str, Any]:
    """Send the requests of all steps, and return what is compared of the answers."""
    return dict(_answers(ask))


def _answers(ask: Callable[[Request, int], Any]) -> Iterator[tuple[str, Any]]:
    for label, request in STEPS:
        answer = ask(request, 1)
        if isinstance(request, AlterClientQuotasRequest):
            yield (
                label,
                sorted(
                    [
                        _entity(entry),
                        ErrorCode(entry.error_code).name,
                        entry.error_message,
                    ]
                    for entry in answer.entries
                ),
            )
        elif answer.error_code:
            yield label, [ErrorCode(answer.error_code).name, answer.error_message]
        else:
            yield (
                label,
                sorted(
                    [_entity(entry), sorted([value.key, value.value] for value in entry.values)]
                    for entry in answer.entries
                ),
            )


def _entity(entry: Any) -> str:
    parts = (f"{part.entity_type}={part.entity_name}" for part in entry.entity)
    return " ".join(sorted(parts))
