"""Reads the prices of an object store: five numbers, in a file that users can edit.

    prices = read_prices(Path("prices.toml"))
    prices.month(12 * 10**9)  # of keeping 12 GB

Without a file these are the list prices of S3 Standard. Actual prices differ, so every page
and table that prints money prints where its prices come from.

Source: the price list of Amazon S3 Standard, us-east-1.
"""

from __future__ import annotations

import math
import tomllib
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Final

GIGABYTE: Final = 10**9


class PricesError(Exception):
    """A price file is invalid. One sentence names the file and the fault."""


@dataclass(frozen=True, slots=True)
class Prices:
    """Prices of a thousand requests, and of a GB (10^9 bytes) for a month. Deleting is free."""

    source: str = "S3 Standard list prices"
    currency: str = "USD"
    put_per_1000: float = 0.005
    get_per_1000: float = 0.0004
    list_per_1000: float = 0.005
    gb_month: float = 0.023

    def month(self, size_bytes: int) -> float:
        """Return the cost of storing `size_bytes` bytes in the object store for a month.

        >>> Prices().month(1_000 * 10**9)
        23.0
        """
        return size_bytes / GIGABYTE * self.gb_month

    def text(self, amount: float) -> str:
        """Format an amount of money, with more decimals for a smaller amount.

        >>> Prices().text(1234.5), Prices().text(0.00123), Prices().text(0)
        ('1234.50 USD', '0.0012 USD', '0.00 USD')
        """
        places = 2
        if amount and abs(amount) < 1:
            places = min(12, 1 - math.floor(math.log10(abs(amount))))
        return f"{amount:.{max(2, places)}f} {self.currency}"


def read_prices(path: Path | None) -> Prices:
    """Read prices from a TOML file; S3's prices stand in for prices that the file lacks.

    Raises:  PricesError.
    """
    if path is None:
        return Prices()
    try:
        given = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise PricesError(f"{path} is not a price file: {error}") from None
    numbers = {field.name for field in fields(Prices) if field.type == "float"}
    for name, value in given.items():
        if name in numbers:
            if type(value) not in (int, float) or not 0 <= value < math.inf:
                raise PricesError(
                    f"{path}: {name} = {value!r} is not a price: give a number from 0 on"
                )
        elif name not in ("source", "currency"):
            raise PricesError(
                f"{path}: unknown price {name}; the prices are {', '.join(sorted(numbers))}"
            )
        elif not isinstance(value, str):
            raise PricesError(f"{path}: {name} must be a string, not {value!r}")
    return Prices(**{"source": str(path)} | given)
