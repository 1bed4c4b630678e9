"""Checks that the broker that acquires a group or a transactional id is the registered one.

Source: docs/design/groups.md#group-ownership.
"""

from __future__ import annotations

from collections.abc import Mapping

from coordinator.errors import CoordinatorError
from records.kafka_errors import ErrorCode


def refuse_broker_epoch(
    broker_id: int,
    broker_epoch: int,
    *,
    owner: tuple[int, int] | None,
    broker_epochs: Mapping[int, int] | None,
) -> tuple[ErrorCode, str] | None:
    """Return an error if a broker claims an ownership with an outdated broker epoch, else None.

    Args:    owner: broker id and epoch of the present owner, or None without one.
             broker_epochs: of the registered brokers in this node's image; None: any epoch.
    Raises:  CoordinatorError if the broker epoch is newer than this node's image.
    """
    known = owner[1] if owner is not None and owner[0] == broker_id else -1
    if broker_epochs is None:
        is_stale = known > broker_epoch >= 0
    else:
        known = max(known, broker_epochs.get(broker_id, -1))
        is_stale = broker_epoch < known
        if broker_epoch > known:
            message = f"broker {broker_id} is not registered here: {broker_epoch}"
            raise CoordinatorError(ErrorCode.COORDINATOR_NOT_AVAILABLE, message)
    return (ErrorCode.STALE_BROKER_EPOCH, f"broker epoch {known} is known") if is_stale else None
