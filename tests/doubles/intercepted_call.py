"""Calls of one kind that a test answers or decides itself."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any
from unittest.mock import patch

from coordinator.batch.calls import BY_REQUEST, Write

Answer = Callable[[Any], Awaitable[Any]]


def intercept(coordinator: Any, request_type: type[Any], answer: Answer) -> Answer:
    """Have `answer` called with the requests of one class; gives the real `call`."""
    real: Answer = coordinator.call

    async def call(request: Any) -> Any:
        return await (answer if isinstance(request, request_type) else real)(request)

    coordinator.call = call
    return real


def decide_with(
    request_type: type[Any], decision: Callable[..., Any]
) -> AbstractContextManager[Any]:
    """Have every coordinator decide requests of one class by another decision."""
    call = BY_REQUEST[request_type]
    assert isinstance(call.kind, Write), f"{request_type} is not decided"
    kind = replace(call.kind, decide=decision)
    return patch.dict(BY_REQUEST, {request_type: replace(call, kind=kind)})
