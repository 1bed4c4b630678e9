"""Draws docstrings, test names and help strings to be judged by CONTRIBUTING.md, "Words".

The same commit and seed give the same sample, so that two people can judge the same lines.

    python -m tests.wording_sample --seed 1
"""

from __future__ import annotations

import argparse
import ast
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Final

ROOT: Final = Path(__file__).parents[1]
PRODUCT: Final = ("records", "raft", "snapshot", "coordinator", "diskless", "spark_jobs", "esker")
COUNTS: Final = {"docstring": 100, "test": 40, "help": 25}

Line = tuple[str, str]  # which of COUNTS it is, and the text to judge


def lines_of(path: Path) -> Iterator[Line]:
    """Every judged line of one source file."""
    is_product = path.relative_to(ROOT).parts[0] in PRODUCT
    where = path.relative_to(ROOT)
    for node in ast.walk(ast.parse(path.read_text(), str(path))):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            summary = (ast.get_docstring(node) or "").partition("\n")[0]
            if is_product and summary:
                signature = f"{node.name}({ast.unparse(node.args)})"
                yield "docstring", f"{where}:{node.lineno}: {signature}\n    {summary}"
            elif not is_product and node.name.startswith("test_"):
                yield "test", f"{where}:{node.lineno}: {node.name}"
        elif isinstance(node, ast.keyword) and node.arg == "help" and is_product:
            text = node.value.value if isinstance(node.value, ast.Constant) else None
            if isinstance(text, str):
                yield "help", f"{where}:{node.value.lineno}: {text}"


def sample(seed: int) -> list[str]:
    """The lines that a seed stands for, by kind."""
    found: dict[str, list[str]] = {kind: [] for kind in COUNTS}
    for room in (*PRODUCT, "tests"):
        for path in sorted((ROOT / room).rglob("*.py")):
            for kind, text in lines_of(path):
                found[kind].append(text)
    random = Random(seed)
    return [
        line
        for kind, count in COUNTS.items()
        for line in random.sample(found[kind], min(count, len(found[kind])))
    ]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seed", type=int, default=1, help="which sample; default: 1")
    print("\n".join(sample(parser.parse_args().seed)))
