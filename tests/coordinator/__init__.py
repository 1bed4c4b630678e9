"""The coordinators under test."""

import pytest

for module in (
    "actors",
    "contract_base",
    "contract_commits",
    "contract_objects",
    "leadership",
    "subjects",
):
    pytest.register_assert_rewrite(f"{__name__}.{module}")
