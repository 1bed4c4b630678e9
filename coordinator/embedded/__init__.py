"""The batch coordinator inside an application's own processes, replicated by PySyncObj."""

from coordinator.embedded.coordinator import EmbeddedCoordinator, EmbeddedSettings

__all__ = ["EmbeddedCoordinator", "EmbeddedSettings"]
