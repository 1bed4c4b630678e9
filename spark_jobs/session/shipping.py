"""Ships our modules to a cluster's workers.

Workers need Python, PySpark and the packages that `esker[spark]` names; our own code travels with
each session, so that what runs there is what was started here. It is one zip file that Python
imports from, named by the hash of its content. Each worker compares the two when it first imports
from it (spark_jobs/__init__.py): code that was cut off on its way does not run.

The trap: a zip file's bytes depend on the clock and on the order of a directory's listing; both
are fixed here, so that the same code has the same name.

Source: PySpark's page on package management.
"""

from __future__ import annotations

import hashlib
import zipfile
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Final

PACKAGES: Final = (
    "coordinator", "diskless.compaction", "diskless.fetch", "diskless.stores", "raft", "records",
    "snapshot", "spark_jobs",
)  # fmt: skip
"""Packages that a job may need on a worker; a part of a package comes with the package's
`__init__.py`."""

EPOCH: Final = (1980, 1, 1, 0, 0, 0)  # the first moment that a zip file knows


def sources() -> Iterator[tuple[str, bytes]]:
    """Yield name and content of each module that a job may need on a worker."""
    initialized = set()
    for package in PACKAGES:
        folder, _, part = package.partition(".")
        for root in import_module(folder).__path__:
            base = Path(root)
            paths = sorted((base / part.replace(".", "/")).rglob("*.py"))
            if part and folder not in initialized:
                paths.insert(0, base / "__init__.py")
            initialized.add(folder)
            for path in paths:
                yield f"{folder}/{path.relative_to(base).as_posix()}", path.read_bytes()


def code_zip(directory: Path) -> Path:
    """Write a zip file of our modules into a directory, named by its SHA-256."""
    making = directory / "esker.zip"
    with zipfile.ZipFile(making, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in sources():
            archive.writestr(zipfile.ZipInfo(name, EPOCH), content, zipfile.ZIP_DEFLATED)
    digest = hashlib.sha256(making.read_bytes()).hexdigest()
    return making.rename(making.with_name(f"esker-{digest[:32]}.zip"))
