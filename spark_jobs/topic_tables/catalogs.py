"""Catalogues of Iceberg tables: a database, a REST service, or what PyIceberg's settings name.

    open_catalog("s3://lake", "http://127.0.0.1:8181", {})

Without a catalogue of its own a warehouse that is a directory gets one: a SQLite file in it.

Source: PyIceberg's page on configuration.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final

from pyiceberg.catalog import Catalog, load_catalog

NAME: Final = "esker"
EMBEDDED: Final = "catalog.db"


class CatalogError(Exception):
    """A catalogue cannot be opened as it is named."""


def open_catalog(
    warehouse: str | None, catalog: str | None, properties: Mapping[str, str]
) -> Catalog:
    """Open a catalogue.

    Args:    warehouse: a directory or s3://BUCKET/PREFIX where tables are made; None: the catalogue
             knows.
             catalog: a URI (sqlite:///FILE, postgresql+psycopg://..., http://...), or a name in
             PyIceberg's settings; None: a SQLite file in the warehouse.
             properties: of PyIceberg, such as s3.endpoint; they outrank all others.
    Raises:  CatalogError; what PyIceberg raises.
    """
    given: dict[str, str] = {}
    if warehouse is not None:
        given["warehouse"] = warehouse_uri(warehouse)
    if catalog is None:
        if warehouse is None:
            raise CatalogError("name a warehouse or a catalogue")
        if "://" in warehouse:
            raise CatalogError(
                f"{warehouse} holds no database: name a catalogue, such as sqlite:////var/lib/"
                "tables.db or http://HOST:8181"
            )
        directory = Path(warehouse).absolute()
        directory.mkdir(parents=True, exist_ok=True)
        catalog = f"sqlite:///{directory / EMBEDDED}"
    if "://" not in catalog:
        return load_catalog(catalog, **{**given, **properties})
    kind = "rest" if catalog.startswith(("http://", "https://")) else "sql"
    return load_catalog(NAME, **{"type": kind, "uri": catalog, **given, **properties})


def warehouse_uri(text: str) -> str:
    """Return the address of a warehouse; that of a directory is absolute."""
    return text.rstrip("/") if "://" in text else Path(text).absolute().as_uri()
