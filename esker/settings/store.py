"""Settings of the object store.

Source: KIP-1163, diskless.storage.class.name; docs/design/broker.md#object-stores.
"""

from __future__ import annotations

from typing import Final

from diskless.stores.opening import DIRECTORY
from esker.settings.base import Setting
from esker.settings.values import boolean, integer, one_of

SETTINGS: Final = (
    Setting(
        "diskless.storage.class.name",
        str,
        DIRECTORY,
        "The object store's class: Esker's own, or another that is imported by this name.",
    ),
    Setting(
        "esker.storage.directory.path",
        str,
        "",
        "The directory store's directory; every broker must see the same one.",
    ),
    Setting(
        "esker.lineage.timeout.ms",
        integer(1_000, 600_000),
        30_000,
        "Milliseconds for which a broker acknowledges and deletes after it has read in the store "
        "that its cluster was not restored under another id; the same on every broker.",
    ),
    Setting("esker.storage.s3.bucket", str, "", "The S3 store's bucket; it must exist."),
    Setting(
        "esker.storage.s3.endpoint",
        str,
        "",
        "`http[s]://HOST:PORT` of an S3 that is not Amazon's; default: Amazon's of the region.",
    ),
    Setting(
        "esker.storage.s3.path.style",
        boolean,
        False,
        "`true`: the bucket is part of the path, not of the host name, as servers of one's own "
        "need.",
    ),
    Setting(
        "esker.storage.s3.region",
        str,
        "",
        "The bucket's region; default: as AWS tools find it.",
    ),
    Setting(
        "esker.storage.s3.encryption",
        one_of("AES256", "aws:kms", "aws:kms:dsse"),
        "",
        "Encryption that the S3 server is asked to apply to new objects (SSE): `AES256`, `aws:kms` "
        "or `aws:kms:dsse`; default: the bucket's own.",
    ),
    Setting(
        "esker.storage.s3.encryption.kms.key.id",
        str,
        "",
        "The key in AWS KMS with which the server encrypts; default: the account's own.",
    ),
)
