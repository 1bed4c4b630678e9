"""`--seed 0x...`: run one schedule instead of all."""

from __future__ import annotations

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--seed",
        type=lambda text: int(text, 0),
        default=None,
        help="the one schedule to simulate, e.g. --seed 0x2f1c",
    )
