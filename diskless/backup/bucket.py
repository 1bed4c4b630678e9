"""The backup of one cluster in the object store: its manifests, data objects and requests.

Source: docs/design/backup.md#the-pieces.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from typing import Final, NamedTuple

from diskless.backup.manifest import DATA_HEADER, BackupError, DataPart, Manifest
from diskless.stores.interface import (
    ByteRange,
    ObjectExistsError,
    ObjectNotFoundError,
    ObjectStorage,
    RangeError,
)
from records.compression import Buffer

MAX_MANIFEST_BYTES: Final = 64 * 1024 * 1024
DELETED_AT_ONCE: Final = 1_000  # keys of one deletion: S3's limit

_REQUEST: Final = b"now\n"
_NUMBER: Final = re.compile(r"(\d{20})(?:-[0-9a-f]{32})?", re.ASCII)


class ListedManifest(NamedTuple):
    """A manifest in a listing of the store."""

    number: int
    size_bytes: int
    modified_ms: int  # ms since 1970, by the store's clock


class TakenError(Exception):
    """Another broker has written the manifest of this number."""


class Bucket:
    """The objects of one cluster's backup. All calls raise StorageError."""

    def __init__(self, store: ObjectStorage, prefix: str, cluster_id: str) -> None:
        """Prepare to read and write below a key prefix.

        Args:    prefix: esker.backup.key.prefix.
        """
        self._store = store
        self.root = f"{prefix}/{cluster_id}"
        self.cluster_id = cluster_id

    # --- manifests ----------------------------------------------------------------------------

    def manifest_key(self, number: int) -> str:
        """Return the key of a manifest."""
        return f"{self.root}/manifest/{number:020d}"

    async def list_manifests(self) -> list[ListedManifest]:
        """Return all manifests, the oldest first."""
        found = []
        prefix = f"{self.root}/manifest/"
        async for stored in self._store.list_objects(prefix):
            number = number_of(stored.key.removeprefix(prefix))
            if number is not None:
                found.append(ListedManifest(number, stored.size_bytes, stored.modified_ms))
        return found

    async def read_manifest(self, listed: ListedManifest) -> Manifest:
        """Read one manifest.

        Raises:  BackupError if it is damaged, or not this cluster's.
        """
        key = self.manifest_key(listed.number)
        if listed.size_bytes > MAX_MANIFEST_BYTES:
            raise BackupError(f"{key} has {listed.size_bytes} bytes, too many for a manifest")
        data = bytes(await self._store.fetch(key, ByteRange(0, listed.size_bytes)))
        manifest = Manifest.from_bytes(data, key)
        if (manifest.cluster_id, manifest.number) != (self.cluster_id, listed.number):
            raise BackupError(
                f"{key} is manifest {manifest.number} of cluster {manifest.cluster_id}: it was "
                "copied from elsewhere; restore another cut by --at"
            )
        return manifest

    async def write_manifest(self, manifest: Manifest) -> None:
        """Write a manifest.

        Raises:  TakenError if another one has this number.
        """
        data = manifest.to_bytes()
        try:
            await self._store.upload(self.manifest_key(manifest.number), [data], len(data))
        except ObjectExistsError:
            raise TakenError from None

    # --- data ---------------------------------------------------------------------------------

    def data_key(self, name: str) -> str:
        """Return the key of a data object."""
        return f"{self.root}/data/{name}"

    async def write_data(self, number: int, parts: Sequence[Buffer]) -> str:
        """Write a data object, which manifest `number` names first; return its name.

        The name has a digest of the content, so that two brokers never write one key differently.
        """
        content = hashlib.sha256()
        for part in parts:
            content.update(part)
        name = f"{number:020d}-{content.hexdigest()[:32]}"
        size_bytes = len(DATA_HEADER) + sum(map(len, parts))
        await self._store.upload(self.data_key(name), [DATA_HEADER, *parts], size_bytes)
        return name

    async def read_data(self, part: DataPart) -> Buffer:
        """Read bytes of a data object, and compare them with their checksum.

        Raises:  BackupError if they are not what was written, or are gone.
        """
        key = self.data_key(part.object)
        try:
            data = await self._store.fetch(key, ByteRange(part.position, part.size_bytes))
        except (ObjectNotFoundError, RangeError, ValueError) as error:
            raise BackupError(f"{error}; restore an older cut by --at") from None
        if hashlib.sha256(data).hexdigest() != part.sha256:
            raise BackupError(
                f"{key} is damaged: the {part.size_bytes} bytes from {part.position} have another "
                "checksum; restore an older cut by --at"
            )
        return data

    async def list_data(self) -> list[str]:
        """Return the names of all data objects."""
        prefix = f"{self.root}/data/"
        listing = self._store.list_objects(prefix)
        return [stored.key.removeprefix(prefix) async for stored in listing]

    # --- requests -----------------------------------------------------------------------------

    async def request(self, number: int) -> None:
        """Ask the shipping broker for a cut as manifest `number`."""
        await self._store.upload(f"{self.root}/request/{number:020d}", [_REQUEST], len(_REQUEST))

    async def is_requested(self, number: int) -> bool:
        """Return whether a cut was asked for as manifest `number`."""
        key = f"{self.root}/request/{number:020d}"
        try:
            await self._store.fetch(key, ByteRange(0, len(_REQUEST)))
        except ObjectNotFoundError:
            return False
        return True

    # --- deletion -----------------------------------------------------------------------------

    async def sweep(self, oldest: Manifest) -> int:
        """Delete all that no restore needs from `oldest` on; return the number of objects.

        Manifests go before data, so that none ever names what is gone. Data objects of later
        numbers stay: a manifest that is being written may name them.
        """
        gone = [
            self.manifest_key(listed.number)
            for listed in await self.list_manifests()
            if listed.number < oldest.number
        ]
        await self._delete(gone)
        named = oldest.objects
        unused = [
            self.data_key(name)
            for name in await self.list_data()
            if (number := number_of(name)) is not None
            and number <= oldest.number
            and name not in named
        ]
        prefix = f"{self.root}/request/"
        unused += [
            stored.key
            async for stored in self._store.list_objects(prefix)
            if (number := number_of(stored.key.removeprefix(prefix))) is not None
            and number <= oldest.number
        ]
        await self._delete(unused)
        return len(gone) + len(unused)

    async def _delete(self, keys: list[str]) -> None:
        for at in range(0, len(keys), DELETED_AT_ONCE):
            await self._store.delete(keys[at : at + DELETED_AT_ONCE])


def number_of(name: str) -> int | None:
    """Return the number that a name begins with, or None for a name of something else.

    >>> number_of("00000000000000000007-" + "ab" * 16)
    7
    """
    match = _NUMBER.fullmatch(name)
    return None if match is None else int(match[1])


async def backed_up_clusters(store: ObjectStorage, prefix: str) -> list[str]:
    """Return the ids of the clusters that have a backup below a key prefix.

    Raises:  StorageError.
    """
    found = set()
    async for stored in store.list_objects(f"{prefix}/"):
        cluster_id, _, rest = stored.key.removeprefix(f"{prefix}/").partition("/")
        if rest.startswith("manifest/"):
            found.add(cluster_id)
    return sorted(found)
