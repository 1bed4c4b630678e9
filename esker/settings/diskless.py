"""Settings of batches in objects: their coordinator, and the deletion of objects.

Source: KIP-1163, KIP-1164.
"""

from __future__ import annotations

from typing import Final

from esker.settings.base import Setting
from esker.settings.coordinator_options import QUORUM, CoordinatorOptions
from esker.settings.values import MILLISECONDS, boolean, integer, key_prefix

SETTINGS: Final = (
    Setting(
        "diskless.system.enable",
        boolean,
        True,
        "Diskless topics; Esker has no others, so a broker refuses `false`.",
    ),
    Setting(
        "diskless.batch.coordinator.class.name",
        str,
        QUORUM,
        "The batch coordinator's class: Esker's own, or another that is imported by this name.",
    ),
    Setting(
        "diskless.file.delete.delay.ms",
        MILLISECONDS,
        60_000,
        "Milliseconds from an object's last reference to its deletion.",
    ),
    Setting(
        "esker.object.key.prefix",
        str,
        "",
        "Prefix of the keys of all objects, without a slash at either end.",
    ),
    Setting(
        "esker.backup.enable",
        boolean,
        False,
        "Whether a broker copies the committed logs of the quorum to the object store, and "
        "deletion waits for that; the same on all brokers.",
    ),
    Setting(
        "esker.backup.key.prefix",
        key_prefix,
        "backup",
        "Prefix of the keys of backups, without a slash at either end; a backup holds SCRAM "
        "verifiers and ACLs, so give this prefix a policy of its own.",
    ),
    Setting(
        "esker.backup.interval.ms",
        integer(1_000, 24 * 3600 * 1000),
        20_000,
        "Milliseconds between two backups of the logs: what is acknowledged in between is lost "
        "with the quorum and all brokers' directories.",
    ),
    Setting(
        "esker.backup.retention.ms",
        MILLISECONDS,
        3600 * 1000,
        "Milliseconds for which a backup can be restored after a newer one was written; so much "
        "longer are deleted objects stored.",
    ),
    Setting(
        "esker.object.lease.timeout.ms",
        MILLISECONDS,
        15 * 60_000,
        "Milliseconds after which a lease of object ids ends; longer than the longest upload.",
    ),
    Setting(
        "log.retention.check.interval.ms",
        MILLISECONDS,
        CoordinatorOptions().retention_check_interval_ms,
        "Milliseconds between two searches for records past retention; a new leader of the batch "
        "coordinator begins after 30 s at the latest.",
    ),
    Setting(
        "esker.max.producers",
        integer(1, 1_000_000_000),
        CoordinatorOptions().max_producers,
        "Maximum number of idempotent producers whose state one batch coordinator keeps, each "
        "counted for every partition that it writes; the first batch of another one is refused "
        "with POLICY_VIOLATION.",
    ),
    Setting(
        "producer.id.expiration.ms",
        MILLISECONDS,
        24 * 3600 * 1000,
        "Milliseconds for which the state of a silent producer is kept.",
    ),
)
