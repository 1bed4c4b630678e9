"""The features of this release: the levels of formats that its nodes read and write.

A *feature* is a named level in the cluster's own log (FeatureLevelRecord). A node supports a range
of levels, from `lowest` to `highest`, both inclusive; the cluster runs at one level, which is
*finalized*. Kafka's features have Kafka's names and levels. `esker.version` is Esker's own: level 1
is every format of Esker 0.1, level 2 allows those of the release line after it, level 3 replaced
runs of batches (docs/design/compaction.md).

Source: KIP-584, KIP-778, KIP-1022; docs/design/features.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final, NamedTuple

METADATA_VERSION: Final = "metadata.version"
ESKER_VERSION: Final = "esker.version"
TRANSACTION_VERSION: Final = "transaction.version"


class Levels(NamedTuple):
    """The levels of one feature that a node supports, both inclusive."""

    lowest: int
    highest: int

    def __contains__(self, level: object) -> bool:
        return isinstance(level, int) and self.lowest <= level <= self.highest


SUPPORTED: Final[Mapping[str, Levels]] = MappingProxyType(
    {
        # 15 (3.7-IV0) has registered controllers, and with them every record of ours;
        # 27 (4.1-IV1): Java 4.1 and all later releases read its records.
        METADATA_VERSION: Levels(15, 27),
        "kraft.version": Levels(0, 0),  # voters stand in the settings, not in the log
        "group.version": Levels(0, 0),  # groups of the classic protocol
        TRANSACTION_VERSION: Levels(0, 0),
        ESKER_VERSION: Levels(1, 3),
    }
)
"""The features that this release supports. A highest level of 0: known, and not implemented."""

IMPLIED: Final[Mapping[str, int]] = MappingProxyType({ESKER_VERSION: 1})
"""The level of a feature that the log does not name, and the only one that a node supports which
does not name it. Esker 0.1 names no `esker.version`."""

NEW_FORMATS: Final[Mapping[str, frozenset[int]]] = MappingProxyType(
    {METADATA_VERSION: frozenset({17, 23}), ESKER_VERSION: frozenset({2, 3})}
)
"""Levels that brought formats which lower levels cannot read: no downgrade goes below one."""


def default_levels() -> dict[str, int]:
    """Return the feature levels of a new cluster, the highest that this version supports."""
    return {name: levels.highest for name, levels in SUPPORTED.items() if levels.highest}
