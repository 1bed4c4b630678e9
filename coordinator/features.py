"""The levels that a cluster runs at, as one copy of its log has them; and the rule of new formats.

The leader of any log may write a new format only behind this rule. It asks its own copy of the
cluster log, which may be behind. That is safe, because a level with new formats is never lowered
again: a copy that is behind shows a lower level, and the leader writes an older format, which every
node reads. So each writer must be able to write the older format at any time, even after newer
records of its own.

Source: docs/design/features.md#a-new-format-is-written-only-behind-its-level.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from coordinator.persistent_map import Map
from records.features import ESKER_VERSION, IMPLIED, SUPPORTED, TRANSACTION_VERSION


class UnsupportedLevelError(Exception):
    """The cluster runs at a level that this code does not support; the message has the remedy."""


@dataclass(frozen=True, slots=True)
class Features:
    """The finalized levels of the features, from one image of the cluster log."""

    recorded: Map[str, int] = field(default_factory=Map)  # levels that the log names, none at 0

    def level(self, name: str) -> int:
        """Return a feature's finalized level: 0 if off or unknown, at least 1 for esker.version.

        >>> Features().level("esker.version"), Features().level("group.version")
        (1, 0)
        """
        found: int = self.recorded.get(name, IMPLIED.get(name, 0))
        return found

    @property
    def finalized(self) -> Mapping[str, int]:
        """Return all levels above 0 by feature name, in alphabetical order.

        Implied levels are included.
        """
        return dict(sorted((dict(IMPLIED) | dict(self.recorded)).items()))

    def check_supported(self) -> None:
        """Check that this code reads and writes the formats of the finalized esker.version.

        Raises:  UnsupportedLevelError.
        """
        level, levels = self.level(ESKER_VERSION), SUPPORTED[ESKER_VERSION]
        if level not in levels:
            raise UnsupportedLevelError(
                f"the cluster runs at {ESKER_VERSION} {level}, and this version of Esker supports "
                f"{levels.lowest} to {levels.highest}: start this node with the version of Esker "
                "that the others have"
            )


def may_write_format(features: Features, level: int) -> bool:
    """Return whether a node may write the formats that a level of esker.version introduced.

    Every new record, checkpoint field, request field or object format is written only behind this.

    Args:  features: of the node's own copy of the cluster log.

    >>> raised = Features(Map().set("esker.version", 2))
    >>> may_write_format(Features(), 2), may_write_format(raised, 2)
    (False, True)
    """
    return features.level(ESKER_VERSION) >= level


TRANSACTION_FORMATS: Final = 4
"""The level of esker.version that introduced the formats of transactions."""


def has_transactions(features: Features) -> bool:
    """Return whether the finalized features allow transactions in this cluster.

    Args:  features: of the node's own copy of the cluster log.
    """
    is_on = features.level(TRANSACTION_VERSION) >= 1
    return is_on and may_write_format(features, TRANSACTION_FORMATS)
