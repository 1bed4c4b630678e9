"""The option that names the object store's prices, the same for every command of `esker spark`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from esker.commands.spark.common import USAGE, stop, stop_for_missing_package

if TYPE_CHECKING:
    from spark_jobs.prices import Prices

PriceFile = Annotated[
    Path | None,
    typer.Option(
        "--prices",
        metavar="FILE",
        help="Path of a TOML file with the object store's prices; default: prices of S3 Standard.",
    ),
]


def prices_of(file: Path | None) -> Prices:
    """Return the prices in a file, or those of S3 Standard; end the command if they are wrong."""
    try:
        from spark_jobs.prices import PricesError, read_prices
    except ModuleNotFoundError as error:
        stop_for_missing_package(error)
    try:
        return read_prices(file)
    except PricesError as error:
        stop(str(error), USAGE)
