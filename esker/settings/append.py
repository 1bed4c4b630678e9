"""Settings of a broker's writes and reads of batches.

Source: KIP-1163; docs/design/broker.md#produce.
"""

from __future__ import annotations

from typing import Final

from esker.settings.base import Setting
from esker.settings.values import MEBIBYTE, MILLISECONDS, integer

SETTINGS: Final = (
    Setting(
        "diskless.append.commit.interval.ms",
        MILLISECONDS,
        250,
        "Milliseconds for which a broker collects batches before it writes them as one object: "
        "longer is cheaper, shorter answers producers sooner.",
    ),
    Setting(
        "diskless.append.buffer.max.bytes",
        integer(1, 1024 * MEBIBYTE),
        8 * MEBIBYTE,
        "Bytes of buffered batches that close an object; a larger batch is an object alone.",
    ),
    Setting(
        "esker.append.max.in.flight.bytes",
        integer(MEBIBYTE, 2**40),
        128 * MEBIBYTE,
        "Bytes of Produce requests that are not written yet; past it, producers' sockets are not "
        "read until there is room.",
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
)
