"""Settings of consumer groups. Source: Apache Kafka 4.x (Configuration), `group.*`, `offsets.*`."""

from __future__ import annotations

from typing import Final

from esker.settings.base import Setting

SETTINGS: Final[tuple[Setting, ...]] = ()
