"""The manifest of a backup as items: which cut it is, and where the bytes of each log lie.

Source: docs/design/backup.md#format-of-a-manifest.
"""

from __future__ import annotations

from collections.abc import Iterator

from diskless.backup.bucket import MAX_MANIFEST_BYTES
from diskless.backup.manifest import (
    BackedUpLog,
    BackupError,
    DataPart,
    Manifest,
    NewerFormatError,
)
from esker.dump.items import Entry, FileEnd, FileStart, Item, Tally
from esker.dump.kinds import Kind, UnknownKindError
from esker.dump.wal import ObjectBytes
from records.errors import RecordError


class DamagedManifestError(RecordError):
    """The manifest contradicts its checksum or itself."""

    def __init__(self, name: str, reason: str) -> None:
        super().__init__(f"{name}: {reason}")
        self.reason = reason


def load_manifest(source: ObjectBytes) -> Manifest:
    """Read the manifest of a backup.

    Raises:  DamagedManifestError; UnknownKindError for the format of a newer release; OSError,
             StorageError.
    """
    if source.size_bytes > MAX_MANIFEST_BYTES:
        raise DamagedManifestError(source.name, f"{source.size_bytes} bytes are too many")
    try:
        return Manifest.from_bytes(bytes(source.read(0, source.size_bytes)), "the manifest")
    except NewerFormatError as error:
        raise UnknownKindError(f"{source.name}: {error}") from None
    except BackupError as error:
        raise DamagedManifestError(source.name, str(error).partition(";")[0]) from None


def read_manifest(source: ObjectBytes) -> Iterator[Item]:
    """Yield the cut, then each log with its checkpoint's parts and its ranges.

    Raises:  the errors of `load_manifest`.
    """
    start = FileStart(source.name, Kind.BACKUP_MANIFEST, source.size_bytes)
    manifest = load_manifest(source)
    yield start
    yield Entry(
        "backupManifest",
        {
            "number": manifest.number,
            "clusterId": manifest.cluster_id,
            "brokerId": manifest.broker_id,
            "release": manifest.release,
            "cut": manifest.cut,
            "timestamp": manifest.began_ms,
            "oldestNumber": manifest.oldest.number,
        },
    )
    for log in manifest.logs:
        yield from _entries_of(log)
    yield FileEnd(start, count_manifest(manifest))


def count_manifest(manifest: Manifest) -> Tally:
    """Return the number of logs, and remarks on objects and bytes."""
    tally = Tally(entries=len(manifest.logs))
    tally.remarks.append(f"{len(manifest.objects)} data objects, {manifest.size_bytes} bytes")
    return tally


def _entries_of(log: BackedUpLog) -> Iterator[Entry]:
    yield Entry(
        "backupLog",
        {"log": log.name, "topicId": log.topic_id, "endOffset": log.end, "epoch": log.epoch},
    )
    if log.checkpoint is not None:
        for part in log.checkpoint.parts:
            found = {"endOffset": log.checkpoint.end, "epoch": log.checkpoint.epoch}
            yield Entry("backupCheckpointPart", {"log": log.name, **found, **_place(part)})
    for one in log.ranges:
        found = {"startOffset": one.start, "endOffset": one.end}
        yield Entry("backupRange", {"log": log.name, **found, **_place(one.data)})


def _place(part: DataPart) -> dict[str, object]:
    return {
        "object": part.object,
        "position": part.position,
        "sizeBytes": part.size_bytes,
        "sha256": part.sha256,
    }
