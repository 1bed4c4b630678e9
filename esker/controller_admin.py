"""Asking the active controller of a running quorum, as the command line does.

Only the active controller answers what changes the cluster; the others say that it is not they.
An answer of "not I", or none at all, is asked again for a few seconds, which is longer than an
election. A change whose connection breaks before its answer comes may have happened; asked again,
it then says that it has (a topic exists already), and the command says so.

Source: KIP-919 (controllers as bootstrap servers).
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any, Final, TypeVar

from esker.admin import AdminError, ask_first, controllers
from esker.values import Endpoint
from raft.net.errors import NetError
from raft.net.rpc import open_rpc
from records.rpc.base import Request, Response

R = TypeVar("R", bound=Response)

NOT_CONTROLLER: Final = 41
_ATTEMPTS: Final = 20
_PAUSE_S: Final = 0.25


async def ask_controller(
    bootstrap: tuple[Endpoint, ...], request: Request, response: type[R], *, timeout_ms: int
) -> R:
    """The active controller's answer.

    Raises:  AdminError if nobody who is it answers in time.
    """
    loop = asyncio.get_running_loop()
    deadline = loop.time() + timeout_ms / 1_000
    unheard = "nobody is the active controller"
    for attempt in range(_ATTEMPTS):
        if attempt:
            await asyncio.sleep(_PAUSE_S)
        left_ms = int((deadline - loop.time()) * 1_000)
        if attempt and left_ms <= 0:
            break
        cluster = await ask_first(bootstrap, timeout_ms)
        for endpoint in controllers(cluster):
            try:
                async with await open_rpc(
                    endpoint.host, endpoint.port, timeout_ms=max(1, left_ms)
                ) as rpc:
                    answer = await rpc.call(request, response)
            except NetError as error:
                unheard = str(error)
                continue
            if NOT_CONTROLLER not in error_codes(answer):
                return answer
    raise AdminError(
        f"no controller took the request ({unheard}): are a majority of the voters running?"
    )


def error_codes(answer: Response) -> set[int]:
    """The error codes of an answer: its own, and those of the items it lists."""
    return set(_codes(answer))


def _codes(value: Any) -> Iterable[int]:
    if hasattr(value, "error_code"):
        yield value.error_code
    for field in value.schema().fields:
        items = getattr(value, field.name)
        if isinstance(items, tuple) and items and hasattr(items[0], "schema"):
            for item in items:
                yield from _codes(item)
