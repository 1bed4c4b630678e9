"""docs/audit.md lists every rule, and every rule has a test that breaks it."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import pytest

from spark_jobs.audit import job as audit
from spark_jobs.audit.rules import RULES
from tests.spark_jobs import (
    audit_plants,
    test_audit_cluster,
    test_audit_rules,
    test_audit_store,
    test_transactions,
)

PAGE: Final = Path(__file__).parents[2] / "docs" / "audit.md"
BEGIN: Final = "<!-- rules: pytest tests/spark_jobs/test_audit_docs.py --rewrite -->\n"
END: Final = "<!-- end of rules -->\n"

ELSEWHERE: Final = {  # in tests of their own
    "log-readable", "one-coordinator", "replicas-agree", "checkpoint-readable",
    "cluster-checkpoint-replay", "checkpoint-cleaning-replay", "open-not-ended",
}  # fmt: skip


def table() -> str:
    rows = ["| rule | invariant | what must be true |", "| --- | --- | --- |"]
    for rule in RULES.values():
        loss = " *Loss.*" if rule.loss else ""
        rows.append(f"| `{rule.name}` | {rule.invariant} | {rule.sentence}{loss} |")
    return "\n".join(rows) + "\n"


def test_the_audit_page_lists_every_rule(request: pytest.FixtureRequest) -> None:
    page = PAGE.read_text()
    before, rest = page.split(BEGIN)
    _, after = rest.split(END)
    wanted = f"{before}{BEGIN}\n{table()}\n{END}{after}"
    if request.config.getoption("--rewrite"):
        PAGE.write_text(wanted)
        page = wanted
    assert page == wanted, "docs/audit.md is behind: run this test with --rewrite"
    assert f"Clean: {len(RULES)} rules" in page


def test_every_audit_rule_has_a_test_that_breaks_the_rule() -> None:
    assert callable(audit.audit), "which imports every module that declares rules"
    planted = {*audit_plants.PLANTS, *audit_plants.REWRITING_PLANTS}
    planted |= {*test_audit_cluster.PLANTS, *test_transactions.PLANTS, *ELSEWHERE}
    for names, *_ in test_transactions.IN_CHECKPOINTS:
        planted.update(names.split())
    for names in test_audit_rules.IN_CHECKPOINTS:
        planted.update(names.split())
    planted.update(rule for rule, _, _ in test_audit_rules.UNSOUND)
    planted.update(rule for _, rule in test_audit_store.WRONG.values())
    assert planted == set(RULES)
