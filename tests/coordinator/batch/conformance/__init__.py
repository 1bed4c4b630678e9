"""The conformance kit: what every batch coordinator must do, as data, and a runner.

- `steps`: the language of the table. `idempotence`, `offsets`: the table.
- `runner`: runs it against anything that implements `BatchCoordinator`.

    wrong = await run_table(TABLE, subject)

`python -m tests.coordinator.batch.conformance` prints the table; docs/coordinator.md has it too.
"""

from tests.coordinator.batch.conformance import idempotence, offsets
from tests.coordinator.batch.conformance.runner import Nonconformity, Subject, run_row, run_table
from tests.coordinator.batch.conformance.steps import Row, describe

TABLE = (*idempotence.ROWS, *offsets.ROWS)

__all__ = [
    "TABLE",
    "Nonconformity",
    "Row",
    "Subject",
    "describe",
    "run_row",
    "run_table",
]
