"""Settings of batches in objects: their coordinator, and the deletion of objects.

Source: KIP-1163, KIP-1164.
"""

from __future__ import annotations

from typing import Final

from esker.settings.base import Setting
from esker.settings.coordinator_options import QUORUM
from esker.settings.values import MILLISECONDS, boolean

SETTINGS: Final = (
    Setting(
        "diskless.system.enable",
        boolean,
        True,
        "Topics without disks; there are no others here, so a broker refuses `false`.",
    ),
    Setting(
        "diskless.batch.coordinator.class.name",
        str,
        QUORUM,
        "The batch coordinator: a class of ours, or one that is imported by this name.",
    ),
    Setting(
        "diskless.file.delete.delay.ms",
        MILLISECONDS,
        60_000,
        "Milliseconds between nothing referring to an object and its deletion.",
    ),
    Setting(
        "esker.object.key.prefix",
        str,
        "",
        "What the keys of all objects begin with, without a slash at either end.",
    ),
    Setting(
        "esker.object.lease.timeout.ms",
        MILLISECONDS,
        15 * 60_000,
        "Milliseconds after which a lease of object ids ends; longer than the longest upload.",
    ),
    Setting(
        "producer.id.expiration.ms",
        MILLISECONDS,
        24 * 3600 * 1000,
        "Milliseconds for which a silent producer is remembered.",
    ),
)
