"""Settings of transactions: of their log on the voters, and of the brokers that forward to it.

Source: Apache Kafka 4.x (Configuration), `transaction.*`, `transactional.*`;
`coordinator.transactions.settings`.
"""

from __future__ import annotations

from typing import Final

from coordinator.transactions.settings import TransactionSettings
from esker.settings.base import Setting
from esker.settings.values import MILLISECONDS, integer

_DEFAULT: Final = TransactionSettings()

SETTINGS: Final = (
    Setting(
        "transaction.max.timeout.ms",
        MILLISECONDS,
        _DEFAULT.max_timeout_ms,
        "The longest transaction timeout that a producer may ask for, in milliseconds; a longer "
        "one is refused with INVALID_TRANSACTION_TIMEOUT.",
    ),
    Setting(
        "transactional.id.expiration.ms",
        MILLISECONDS,
        _DEFAULT.id_expiration_ms,
        "Milliseconds after its last call at which a transactional id without an open transaction "
        "is removed.",
    ),
    Setting(
        "transaction.abort.timed.out.transaction.cleanup.interval.ms",
        MILLISECONDS,
        _DEFAULT.abort_interval_ms,
        "Milliseconds between two searches for transactions that exceed their timeouts and are "
        "aborted.",
    ),
    Setting(
        "transaction.remove.expired.transaction.cleanup.interval.ms",
        MILLISECONDS,
        _DEFAULT.expiry_interval_ms,
        "Milliseconds between two searches for expired transactional ids.",
    ),
    Setting(
        "esker.max.transactional.ids",
        integer(1, 10_000_000),
        _DEFAULT.max_ids,
        "Maximum number of transactional ids; a request that would create one more is refused with "
        "POLICY_VIOLATION.",
    ),
)
