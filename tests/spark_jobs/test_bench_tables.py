"""The benchmark of tables still runs, and commits stay as short as it measures."""

from __future__ import annotations

from pathlib import Path

from bench.bench_tables import IN_MANIFEST, add_names, new_table, write_file
from spark_jobs.topic_tables.iceberg_table import IcebergTable
from tests.benches import printed


def test_the_tables_benchmark_runs_without_errors() -> None:
    assert "a commit after 3: " in printed("bench_tables", "--tiny")


def manifests(table: IcebergTable) -> dict[str, int]:
    """Return the number of files in each manifest, by its path."""
    snapshot = table.table.current_snapshot()
    assert snapshot is not None
    return {
        one.manifest_path: (one.added_files_count or 0) + (one.existing_files_count or 0)
        for one in snapshot.manifests(table.table.io)
    }


def test_commits_merge_small_manifests_and_leave_full_ones_as_they_are(tmp_path: Path) -> None:
    table = new_table(tmp_path, {"commit.manifest.min-count-to-merge": "2"})
    files = [write_file(table, number) for number in range(3)]
    add_names(table, files[0], IN_MANIFEST)
    (full,) = manifests(table)
    for number, file in enumerate(files):
        table.commit([file], {0: number + 1}, newest_ms=None)
    after = manifests(table)
    assert after.pop(full) == IN_MANIFEST
    assert sorted(after.values()) in ([1, 2], [3])
