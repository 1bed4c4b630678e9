"""Tests price files that users edit: errors are reported, not guessed around."""

from __future__ import annotations

from pathlib import Path

import pytest

from spark_jobs.prices import Prices, PricesError, read_prices


def test_the_default_prices_of_the_report_are_those_of_s3_standard() -> None:
    prices = read_prices(None)
    assert (prices.put_per_1000, prices.get_per_1000, prices.gb_month) == (0.005, 0.0004, 0.023)
    assert prices.source == "S3 Standard list prices"


def test_a_price_file_overrides_only_the_prices_it_names(tmp_path: Path) -> None:
    path = tmp_path / "prices.toml"
    path.write_text('currency = "EUR"\ngb_month = 0.01\nput_per_1000 = 0\n')
    prices = read_prices(path)
    assert prices == Prices(source=str(path), currency="EUR", gb_month=0.01, put_per_1000=0)
    assert prices.text(prices.month(5 * 10**9)) == "0.050 EUR"


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("gb_month = -1", "is not a price"),
        ("gb_month = inf", "is not a price"),
        ("gb_month = true", "is not a price"),
        ('gb_month = "a lot"', "is not a price"),
        ("gb_moth = 1", "unknown price gb_moth"),
        ("currency = 7", "must be a string"),
        ("gb_month 1", "is not a price file"),
    ],
)
def test_reading_an_invalid_price_file_raises_an_error(tmp_path: Path, text: str, why: str) -> None:
    path = tmp_path / "prices.toml"
    path.write_text(text)
    with pytest.raises(PricesError, match=why):
        read_prices(path)
    with pytest.raises(PricesError, match="is not a price file"):
        read_prices(tmp_path / "there-is-none")
