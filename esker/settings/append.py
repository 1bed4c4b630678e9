"""Settings of a broker's writes and reads of batches.

Source: KIP-1163; docs/design/broker.md#produce.
"""

from __future__ import annotations

from typing import Final

from coordinator.controller.config_defs import PROCESS_CONFIGS
from esker.settings.base import Setting
from esker.settings.values import MEBIBYTE, MILLISECONDS, checked, integer
from records.compression import MAX_DECOMPRESSED_BYTES

CHANGEABLE: Final = "Can be changed while the broker runs."

SETTINGS: Final = (
    *(
        Setting(
            key,
            checked(definition, int),
            int(definition.default) if definition.default else None,
            f"{definition.about} {CHANGEABLE}",
        )
        for key, definition in PROCESS_CONFIGS.items()
    ),
    Setting(
        "esker.append.max.in.flight.bytes",
        integer(MEBIBYTE, 2**40),
        128 * MEBIBYTE,
        "Bytes of Produce requests that are not written yet; past it, producers' sockets are not "
        "read until there is room.",
    ),
    Setting(
        "esker.produce.max.decompressed.bytes",
        integer(MEBIBYTE, MAX_DECOMPRESSED_BYTES),
        MAX_DECOMPRESSED_BYTES,
        "Bytes that the compressed batches of one Produce request may expand to, all together; "
        "beyond it a batch is refused with MESSAGE_TOO_LARGE.",
    ),
    Setting(
        "esker.append.max.uploads",
        integer(1, 256),
        8,
        "Maximum number of parallel uploads for each coordinator partition.",
    ),
    Setting(
        "esker.append.upload.timeout.ms",
        MILLISECONDS,
        60_000,
        "Milliseconds for one object's upload with its retries; at most half of "
        "esker.object.lease.timeout.ms.",
    ),
    Setting(
        "esker.file.delete.interval.ms",
        MILLISECONDS,
        10_000,
        "Milliseconds between two requests for the objects to delete from the store.",
    ),
    Setting(
        "esker.fetch.cache.max.bytes",
        integer(0, 2**40),
        256 * MEBIBYTE,
        "Bytes of objects that a broker keeps in memory for its consumers.",
    ),
    Setting(
        "esker.fetch.read.ahead.max.bytes",
        integer(0, 2**40),
        64 * MEBIBYTE,
        "Bytes that a broker reads from the store before its sequential consumers ask for them, in "
        "all, and at most half of esker.fetch.cache.max.bytes; 0: none.",
    ),
    Setting(
        "esker.cache.dir",
        str,
        "",
        "Directory of this broker's own for local segments: batches that it wrote or that its "
        "consumers read. It may be lost at any time. Default: none, nothing is kept on the disk.",
    ),
    Setting(
        "esker.cache.max.bytes",
        integer(64 * MEBIBYTE, 2**50),
        10 * 1024 * MEBIBYTE,
        "Bytes of local segments; past it the longest unused ones are deleted.",
    ),
    Setting(
        "esker.cache.fill.max.bytes.per.second",
        integer(1024, 2**40),
        64 * MEBIBYTE,
        "Maximum bytes a second that a broker writes to local segments.",
    ),
)
