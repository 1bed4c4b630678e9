"""Settings of a broker, and of topics that it or a controller creates."""

from __future__ import annotations

from typing import Final

from esker.settings.base import Setting
from esker.values import integer

SETTINGS: Final = (
    Setting(
        "num.partitions",
        integer(1, 100_000),
        1,
        "Partitions of a topic whose creator names no number.",
    ),
    Setting(
        "default.replication.factor",
        integer(1, 32_767),
        1,
        "Replicas of a topic whose creator names no number.",
    ),
)
