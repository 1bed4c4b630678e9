"""Object stores: where record bytes live.

- `interface`: what a broker needs of a store, and how stores fail.
- `opening`: a store by the name of its class, as it is configured.
- `directory`: files below a directory, the embedded default; `root` knows whether it is there.
- `s3`: S3 and what speaks its protocol.
- `object_directory`, `s3_client`: the blocking calls below those two, which Spark jobs use as well.
- `memory`: a dictionary, for simulations.
- `faults`: any of them, misbehaving.
"""

from diskless.stores.interface import (
    BeginningStore,
    ByteRange,
    DeletionError,
    ObjectExistsError,
    ObjectNotFoundError,
    ObjectStorage,
    RangeError,
    StorageError,
    StoredObject,
    StoreSettingError,
)

__all__ = [
    "BeginningStore",
    "ByteRange",
    "DeletionError",
    "ObjectExistsError",
    "ObjectNotFoundError",
    "ObjectStorage",
    "RangeError",
    "StorageError",
    "StoreSettingError",
    "StoredObject",
]
