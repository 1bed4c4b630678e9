"""Settings of a broker's writes and reads of batches.

Source: KIP-1163; docs/design/broker.md#produce.
"""

from __future__ import annotations

from typing import Final

from diskless.produce.closing import ClosingSettings
from esker.settings.base import Setting
from esker.settings.values import MEBIBYTE, MILLISECONDS, integer
from records.compression import MAX_DECOMPRESSED_BYTES

SETTINGS: Final = (
    Setting(
        "diskless.append.commit.interval.ms",
        MILLISECONDS,
        250,
        "Maximum milliseconds for which a broker collects batches before it writes them as one "
        "object. It writes earlier while producers wait: see esker.append.quiet.ms.",
    ),
    Setting(
        "esker.append.quiet.ms",
        integer(0, 60_000),
        ClosingSettings().quiet_ms,
        "Milliseconds without a new batch after which a broker writes an object before the commit "
        "interval is over; 0: never. Longer than the gap between two requests of one producer.",
    ),
    Setting(
        "esker.append.objects.per.second",
        integer(0, 100_000),
        None,
        "Objects below 768 KiB that a broker may write a second before the commit interval is "
        "over; 0: none. Default: 8 with S3, 64 with a directory.",
    ),
    Setting(
        "esker.append.runs.per.second",
        integer(0, 10_000_000),
        ClosingSettings().runs_per_second,
        "Partitions, summed over the objects of one second, up to which a broker writes objects "
        "before the commit interval is over; each is a row in the batch coordinator's state.",
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
)
