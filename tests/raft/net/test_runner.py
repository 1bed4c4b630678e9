"""`run` uses uvloop if installed, and a broken invariant ends it."""

from __future__ import annotations

import asyncio

import pytest

from raft.net import loop_factory, run


def test_a_failed_assertion_in_an_event_loop_callback_ends_the_program():
    async def main() -> None:
        def broken() -> None:
            raise AssertionError("log start past watermark")

        asyncio.get_running_loop().call_soon(broken)
        await asyncio.Event().wait()

    with pytest.raises(AssertionError, match="log start past watermark"):
        run(main())


def test_the_event_loop_runner_returns_mains_result_and_uses_uvloop_if_installed():
    async def main() -> str:
        return type(asyncio.get_running_loop()).__module__

    assert run(main()).startswith("uvloop" if loop_factory() else "asyncio")
