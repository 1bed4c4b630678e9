"""The Spark pipeline over the metadata log.

- `session`: finds Java, starts Spark, ships the code to workers, turns failures into sentences.
- `readers`: reads logs from a directory, a running quorum or an archive; lists object stores.
- `tables`: decodes records into rows and columns; folds the coordinator's log into state.
- `source`: offers the log to Spark as a data source, a stream and a sink (`notebook` shortens it).
- `plans`: writes plan files and applies them row by row, with a journal.
- `retention`, `orphans`: plan what may be deleted. `archive`: keeps logs as Avro files. `audit`:
  checks invariants. `report`: writes the analytics page, with the costs of `prices`.

tests/test_layers.py says which folder may import which.

On a cluster's workers this package lies in a zip file that is named by its content's hash
(spark_jobs/session/shipping.py); what does not have that hash is not imported.
"""

import hashlib as _hashlib
import pathlib as _pathlib
import re as _re

_shipped = _re.match(r"(.*[/\\\\]esker-([0-9a-f]{32})\.zip)[/\\\\]", __file__)
if _shipped:
    _found = _hashlib.sha256(_pathlib.Path(_shipped[1]).read_bytes()).hexdigest()
    if not _found.startswith(_shipped[2]):
        raise ImportError(f"{_shipped[1]} is damaged: its content's hash is {_found}")
