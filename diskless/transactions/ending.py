"""Waits while a producer's former transaction is ending, instead of sending the client away.

The transaction log answers CONCURRENT_TRANSACTIONS from the decision of a transaction until its
markers are written, some milliseconds later. A producer that begins its next transaction at once
meets that answer, and would ask again after 20 ms of its own. So the broker asks again for it: the
answer is definite, nothing was written.

The broker's replica of the log mostly shows that the transaction is ending. Then the log's leader
is not asked before the replica shows the end, or the time is over: a look at the replica costs
nothing, and a question costs the leader a read barrier.

Source: docs/design/transactions.md#ownership; KIP-890, the same wait in Kafka's brokers.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Final

from coordinator.transactions.state import PREPARED, TransactionsImage
from records.kafka_errors import ErrorCode

PAUSES_S: Final = (0.002, 0.002, 0.004, 0.004, 0.008, 0.008, 0.016, 0.016, 0.02, 0.02)
"""Between two looks; 0.1 s in all, as in Kafka."""


async def ask_until_ended(
    ask: Callable[[], Awaitable[Any]], is_ending: Callable[[], bool] = lambda: False
) -> Any:
    """Ask the transaction log, and again while it answers CONCURRENT_TRANSACTIONS.

    Returns the last answer, also if the former transaction has not ended by then.

    Args:  is_ending: whether the broker's replica shows that the transaction is ending; the log is
           not asked meanwhile.
    """
    for pause_s in PAUSES_S:
        if not is_ending():
            answer = await ask()
            if getattr(answer, "error_code", 0) != ErrorCode.CONCURRENT_TRANSACTIONS:
                return answer
        await asyncio.sleep(pause_s)
    return await ask()


def is_ending(image: TransactionsImage, transactional_id: str) -> bool:
    """Return whether markers of the id's newest transaction are being written."""
    found = image.ids.get(transactional_id)
    return found is not None and found.state in PREPARED
