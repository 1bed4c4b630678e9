"""Finds the objects that the restored state names and the store lacks.

The store is listed, with one request for a thousand objects, instead of asked for each object.

Source: docs/design/restore.md#states-of-a-restore.
"""

from __future__ import annotations

from collections.abc import Mapping

from diskless.stores import ObjectStorage
from records.object_keys import Ancestors, ObjectKeys

SPREADS = 256  # values of the two hex digits that keys begin with


async def missing_objects(
    store: ObjectStorage, prefix: str, ancestors: Ancestors, wanted: Mapping[int, set[int]]
) -> dict[int, set[int]]:
    """Return the ids of missing objects by batch coordinator.

    Args:    wanted: ids of objects by batch coordinator; all of them are ancestors'.
    Raises:  StorageError of the store.
    """
    missing: dict[int, set[int]] = {}
    for coordinator, object_ids in sorted(wanted.items()):
        keys = ObjectKeys(
            prefix=prefix,
            cluster_id="none",  # no id is of the new cluster
            coordinator_partition=coordinator,
            ancestors=ancestors,
        )
        by_directory: dict[str, set[str]] = {}
        ids = {keys.key(object_id): object_id for object_id in object_ids}
        for key in ids:
            by_directory.setdefault(key.rpartition("/")[0] + "/", set()).add(key)
        for directory, expected in sorted(by_directory.items()):
            async for found in store.list_objects(directory):
                expected.discard(found.key)
            for key in expected:
                missing.setdefault(coordinator, set()).add(ids[key])
    return missing
