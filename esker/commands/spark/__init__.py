"""`esker spark`: analyses the log, audits it, and plans what may be deleted.

Each job has a module of its own here; what they share is in `esker.commands.spark.common`.

Source: docs/design/pipeline.md.
"""

from __future__ import annotations

from esker.commands.base import CommandGroup
from esker.commands.spark import archive as spark_archive
from esker.commands.spark import audit as spark_audit
from esker.commands.spark import merge as spark_merge
from esker.commands.spark import orphans as spark_orphans
from esker.commands.spark import report as spark_report
from esker.commands.spark import retention as spark_retention
from esker.commands.spark import tables as spark_tables
from esker.commands.spark import what_if as spark_what_if

app = CommandGroup(
    help="Analyse, audit and archive logs; plan retention, merge objects, keep topics as tables.",
    epilog="Example: esker spark report --log-dir esker-data/quorum-1 --out report",
)
app.command(epilog=spark_archive.EXAMPLE)(spark_archive.archive)
app.command(epilog=spark_audit.EXAMPLE)(spark_audit.audit)
app.command(epilog=spark_report.EXAMPLE)(spark_report.report)
app.command("what-if", epilog=spark_what_if.EXAMPLE)(spark_what_if.what_if)
app.add_typer(spark_merge.app, name="merge")
app.add_typer(spark_orphans.app, name="orphans")
app.add_typer(spark_retention.app, name="retention")
app.add_typer(spark_tables.app, name="tables")


@app.callback()
def spark() -> None:
    """Analyse, audit and archive logs; plan retention, merge objects, keep topics as tables."""
