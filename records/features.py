"""The features of this release: the levels of formats that its nodes read and write.

A *feature* is a named level in the cluster's own log (FeatureLevelRecord). A node supports a range
of levels, from `lowest` to `highest`, both inclusive; the cluster runs at one level, which is
*finalized*. Kafka's features have Kafka's names and levels. `esker.version` is Esker's own: level 1
is every format of Esker 0.1, level 2 allows those of the release line after it, level 3 replaced
runs of batches (docs/design/compaction.md), level 4 the formats of transactions
(docs/design/transactions.md), level 5 those of restored clusters (docs/design/restore.md).

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
        TRANSACTION_VERSION: Levels(0, 2),  # 1: transactions; 2: clients may use KIP-890 part 2
        ESKER_VERSION: Levels(1, 5),
    }
)
"""The features that this release supports. A highest level of 0: known, and not implemented."""

IMPLIED: Final[Mapping[str, int]] = MappingProxyType({ESKER_VERSION: 1})
"""The level of a feature that the log does not name, and the only one that a node supports which
does not name it. Esker 0.1 names no `esker.version`."""

NEW_FORMATS: Final[Mapping[str, frozenset[int]]] = MappingProxyType(
    {METADATA_VERSION: frozenset({17, 23}), ESKER_VERSION: frozenset({2, 3, 4, 5})}
)
"""Levels that brought formats which lower levels cannot read: no downgrade goes below one."""


DEPENDENCIES: Final[Mapping[tuple[str, int], tuple[str, int]]] = MappingProxyType(
    {(TRANSACTION_VERSION, 1): (ESKER_VERSION, 4)}
)
"""A feature level, and the lowest level of another feature without which it is not finalized."""


def new_levels(chosen: Mapping[str, int]) -> dict[str, int]:
    """Return the feature levels of a new cluster: those chosen, else the highest of this release.

    A feature that was not chosen is left out if it depends on a level that the chosen ones lack.

    >>> new_levels({"esker.version": 3})
    {'metadata.version': 27, 'esker.version': 3}
    """
    levels = {name: range_.highest for name, range_ in SUPPORTED.items() if range_.highest}
    levels |= chosen
    return {
        name: level
        for name, level in levels.items()
        if name in chosen or missing_dependency(name, levels) is None
    }


def missing_dependency(name: str, levels: Mapping[str, int]) -> str | None:
    """Return a sentence if a feature's level lacks another level that it depends on, or None.

    Args:  levels: by feature name; features that it does not name are at their implied level.

    >>> missing_dependency("transaction.version", {"transaction.version": 1, "esker.version": 3})
    'transaction.version could not be set to 1 because it depends on esker.version level 4'
    """
    level = levels.get(name, 0)
    for (feature, first), (other, needed) in DEPENDENCIES.items():
        is_met = levels.get(other, IMPLIED.get(other, 0)) >= needed
        if feature == name and level >= first and not is_met:
            return (
                f"{name} could not be set to {level} because it depends on {other} level {needed}"
            )
    return None
