"""The examples in docstrings are true: each runs as a test."""

import doctest
import importlib
import pkgutil
from importlib.util import find_spec
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

PACKAGES = ("records", "raft", "snapshot", "coordinator", "diskless", "spark_jobs", "esker")


def modules() -> list[str]:
    names = []
    for package in PACKAGES:
        paths = importlib.import_module(package).__path__
        names += [package, *(m.name for m in pkgutil.walk_packages(paths, f"{package}."))]
    return [name for name in names if not name.endswith("__main__") and has_examples(name)]


def has_examples(name: str) -> bool:
    """Whether a module's source has an interactive example."""
    spec = find_spec(name)
    return spec is not None and spec.origin is not None and ">>>" in Path(spec.origin).read_text()


@pytest.mark.parametrize("name", modules())
def test_the_docstring_examples_of_each_module_pass_as_doctests(name):
    if name == "spark_jobs.source.log_source":
        pytest.importorskip(
            "pyspark", reason="PySpark is not installed: pip install 'esker[spark]'"
        )
    module = importlib.import_module(name)
    result = doctest.testmod(module, extraglobs=vars(module))
    assert result.failed == 0, f"{name}: {result.failed} of {result.attempted} examples fail"
