"""The table of operations covers each API of a broker, and names fields that requests have."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, get_args, get_type_hints

import pytest

from coordinator.controller.api_operations import CHECKS, IN_ANSWER, Check
from coordinator.controller.authorizer import ResourceType
from diskless.access.gate import ASK_THEMSELVES, GUARDS, REFUSED_TO_ALL
from records.rpc import API
from tests.diskless.test_served_table import served


def checks() -> Iterator[tuple[int, Check]]:
    for key, row in CHECKS.items():
        for check in row:
            yield key, check
            if check.unless is not None:
                yield key, check.unless


def structure_in(hint: Any) -> Any:
    """Return the structure that a field is, or is an array of; None if there is none."""
    if hasattr(hint, "__struct_fields__"):
        return hint
    return next((found for one in get_args(hint) if (found := structure_in(one))), None)


def has_field(message: Any, path: str) -> bool:
    for name in path.split("."):
        if name not in getattr(message, "__struct_fields__", ()):
            return False
        message = structure_in(get_type_hints(message)[name])
    return True


def test_the_table_of_operations_has_one_row_for_each_api_that_a_broker_serves() -> None:
    assert set(CHECKS) == set(served())


def test_each_name_in_the_table_of_operations_is_a_field_of_its_request() -> None:
    for key, check in checks():
        for path in check.names:
            request = API[key].request
            assert path == IN_ANSWER or has_field(request, path), f"{request.__name__}: {path}"


def test_only_checks_of_the_cluster_and_of_any_topic_name_no_resource() -> None:
    for key, check in checks():
        unnamed = check.kind == ResourceType.CLUSTER or check.when == "of any topic"
        assert bool(check.names) != unnamed, f"{key}: {check}"


@pytest.mark.parametrize("path", ["topic", "topics.nam", "topics.name.more"])
def test_a_field_that_list_offsets_lacks_is_found_missing(path: str) -> None:
    assert not has_field(API[2].request, path)


def test_each_row_of_the_table_has_a_guard_or_a_handler_that_asks_for_itself() -> None:
    needed = {key for key, row in CHECKS.items() if row}
    assert needed == GUARDS.keys() | ASK_THEMSELVES | REFUSED_TO_ALL
    assert not GUARDS.keys() & ASK_THEMSELVES
