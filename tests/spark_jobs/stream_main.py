"""A driver that copies a log's table to files and ends: for tests that kill it.

python -m tests.spark_jobs.stream_main LOG_DIR TABLE OUT CHECKPOINT OFFSETS_OF_A_BATCH
"""

from __future__ import annotations

import sys

from spark_jobs.notebook import LogTables
from spark_jobs.session.spark_session import session


def main(log_dir: str, table: str, out: str, checkpoint: str, batch: str) -> None:
    with session(app="stream") as spark:
        query = (
            LogTables(spark, logDir=log_dir, maxOffsetsPerTrigger=batch)
            .stream(table)
            .writeStream.format("esker_files")
            .option("path", out)
            .option("checkpointLocation", checkpoint)
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()


if __name__ == "__main__":
    main(*sys.argv[1:])
