"""Reads a cut's bytes again, and compares them with the manifest and with themselves.

Source: docs/design/backup.md#format-of-a-manifest.
"""

from __future__ import annotations

from diskless.backup.bucket import Bucket
from diskless.backup.manifest import BackedUpRange, BackupError, Manifest
from records.batch import iter_batches
from records.compression import Buffer
from records.errors import RecordError


async def verify_cut(bucket: Bucket, manifest: Manifest, verified: set[str]) -> list[str]:
    """Return a sentence for each part of a cut that a restore could not use.

    Args:    verified: checksums of sound parts, which are not read again; grows.
    Raises:  StorageError.
    """
    faults = []
    for log in manifest.logs:
        ranges = {one.data: one for one in log.ranges}
        for part in log.parts():
            if part.sha256 in verified:
                continue
            try:
                data = await bucket.read_data(part)
                found = ranges.get(part)
                if found is not None:
                    _check_range(data, found)
            except (BackupError, RecordError) as error:
                faults.append(f"{log.name}: {error}")
            else:
                verified.add(part.sha256)
    return faults


def _check_range(data: Buffer, of: BackedUpRange) -> None:
    """Check that bytes are sound batches with the offsets of a range.

    Raises:  BackupError, RecordError.
    """
    at = of.start
    for batch in iter_batches(data):
        if batch.header.base_offset != at:
            raise BackupError(
                f"{of.data.object}: offset {batch.header.base_offset} stands where {at} is due"
            )
        at = batch.header.end_offset
    if at != of.end:
        raise BackupError(f"{of.data.object}: the batches end at {at}, the range at {of.end}")
