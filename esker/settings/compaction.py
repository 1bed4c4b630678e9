"""Settings of merging and compaction, which brokers do in the background."""

from __future__ import annotations

from typing import Final

from esker.settings.base import Setting
from esker.settings.values import MILLISECONDS, boolean, integer

SETTINGS: Final = (
    Setting(
        "esker.compaction.enable",
        boolean,
        True,
        "Merge small objects and compact topics on this broker, in a child process. If no broker "
        "does, objects and compacted topics only grow.",
    ),
    Setting(
        "esker.compaction.interval.ms",
        MILLISECONDS,
        60_000,
        "Milliseconds between two searches for objects to merge and partitions to compact.",
    ),
    Setting(
        "esker.compaction.max.bytes.per.second",
        integer(0, 1 << 40),
        32 * 1024 * 1024,
        "Bytes per second that merging and compaction read and write on this broker; 0: no limit.",
    ),
    Setting(
        "esker.compaction.object.bytes",
        integer(1024, 256 * 1024 * 1024),
        64 * 1024 * 1024,
        "Bytes of a merged object; the child process holds twice as many in memory.",
    ),
    Setting(
        "esker.compaction.min.age.ms",
        MILLISECONDS,
        60_000,
        "Milliseconds from the append of a batch to its first merge; consumers at the end of the "
        "log find younger batches in their brokers' memory.",
    ),
    Setting(
        "esker.compaction.max.wait.ms",
        MILLISECONDS,
        600_000,
        "Milliseconds that small objects wait for others, before they are merged into an object "
        "below esker.compaction.object.bytes.",
    ),
    Setting(
        "esker.compaction.min.saved.runs",
        integer(1, 1_000_000),
        16,
        "Number of runs of batches that a merged object below esker.compaction.object.bytes saves "
        "at least, and number of small runs of a partition that are merged again.",
    ),
    Setting(
        "log.cleaner.dedupe.buffer.size",
        integer(1024, 1 << 40),
        128 * 1024 * 1024,
        "Bytes of memory for the newest offsets of a partition's keys, 24 a key; a partition with "
        "more keys is compacted in several rounds.",
    ),
    Setting(
        "esker.delete.physical.max.ms",
        integer(-1, (1 << 63) - 1),
        -1,
        "Milliseconds after which the bytes of deleted records are gone from the object store, "
        "also where records in the same object live on; at least four times "
        "diskless.file.delete.delay.ms and esker.compaction.interval.ms together; -1: no deadline.",
    ),
)
