"""Waits while a producer's former transaction is ending, instead of sending the client away.

The transaction log answers CONCURRENT_TRANSACTIONS from the decision of a transaction until its
markers are written, some milliseconds later. A producer that begins its next transaction at once
meets that answer, and would ask again after 20 ms of its own. So the broker asks again for it: the
answer is definite, nothing was written.

Source: docs/design/transactions.md#ownership; KIP-890, the same wait in Kafka's brokers.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Final

from records.kafka_errors import ErrorCode

PAUSES_S: Final = (0.002, 0.004, 0.008, 0.016, 0.032, 0.038)
"""Between two questions; 0.1 s in all, as in Kafka."""


async def ask_until_ended(ask: Callable[[], Awaitable[Any]]) -> Any:
    """Ask the transaction log, and again while it answers CONCURRENT_TRANSACTIONS.

    Returns the last answer, also if the former transaction has not ended by then.
    """
    for pause_s in PAUSES_S:
        answer = await ask()
        if getattr(answer, "error_code", 0) != ErrorCode.CONCURRENT_TRANSACTIONS:
            return answer
        await asyncio.sleep(pause_s)
    return await ask()
