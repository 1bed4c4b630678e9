"""The settings of a node's batch coordinators, and the choice of their class.

Source: KIP-1163, diskless.batch.coordinator.class.name.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from coordinator.batch.settings import CoordinatorSettings
from records.object_keys import Ancestors, ObjectKeys

QUORUM: Final = "coordinator.batch.leader.QuorumCoordinator"
IN_MEMORY: Final = "coordinator.batch.memory.InMemoryCoordinator"
EMBEDDED: Final = "coordinator.embedded.EmbeddedCoordinator"

FORMER_NAMES: Final[Mapping[str, str]] = {
    "coordinator.leader.QuorumCoordinator": QUORUM,
    "coordinator.memory.InMemoryCoordinator": IN_MEMORY,
}
"""Names that properties files of version 0.1 may have for the same classes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CoordinatorOptions:
    """The settings of a node's batch coordinators."""

    class_name: str = QUORUM
    key_prefix: str = ""
    file_delete_delay_ms: int = 60_000
    lease_timeout_ms: int = 15 * 60_000
    producer_expiration_ms: int = 24 * 3600 * 1000
    retention_check_interval_ms: int = 5 * 60_000
    max_producers: int = 1_000_000

    def settings(
        self, cluster_id: str, partition: int, ancestors: Ancestors | None = None
    ) -> CoordinatorSettings:
        """Return the settings of one batch coordinator, by cluster and partition.

        Args:  ancestors: of the cluster; may be filled later.
        """
        return CoordinatorSettings(
            keys=ObjectKeys(
                prefix=self.key_prefix,
                cluster_id=cluster_id,
                coordinator_partition=partition,
                ancestors=ancestors or Ancestors(),
            ),
            file_delete_delay_ms=self.file_delete_delay_ms,
            lease_timeout_ms=self.lease_timeout_ms,
            producer_expiration_ms=self.producer_expiration_ms,
            retention_check_interval_ms=self.retention_check_interval_ms,
            max_producers=self.max_producers,
        )


def find_for_group(class_name: str, *, voters: int) -> Callable[[Any], Any] | None:
    """Return a custom coordinator class's `for_group` method, or None for a built-in class.

    Raises:  ValueError saying why the class cannot be used in a quorum of so many voters.
    """
    class_name = FORMER_NAMES.get(class_name, class_name)
    if class_name == IN_MEMORY and voters > 1:
        raise ValueError(f"{class_name} is not replicated: for a quorum of one node only")
    if class_name == EMBEDDED:
        raise ValueError(f"{class_name} is run by an application itself, not by a node")
    if class_name in (QUORUM, IN_MEMORY):
        return None
    module, dot, name = class_name.rpartition(".")
    try:
        found = getattr(importlib.import_module(module), name) if dot else None
    except (ImportError, AttributeError) as error:
        raise ValueError(f"{class_name} cannot be imported: {error}") from error
    make = getattr(found, "for_group", None)
    if make is None:
        raise ValueError(f"{class_name} has no for_group(Group)")
    return make  # type: ignore[no-any-return]
