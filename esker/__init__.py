"""The front door: command line, configuration, and the wiring of processes.

- `cli`, `commands`: `esker COMMAND`. `dump`: what is in a file. `admin`, `client` and
  `snapshot_admin`: asking a running cluster. `producing`, `consuming`, `member`: records by our own
  commands.
- `config`, `settings`, `properties`, `values`, `addresses`, `own_settings`: from a file's text to
  what a node is told.
- `storage`, `bootstrap`: a log directory is formatted. `checkpoints`: what it holds of them.
- `node`: a node by its roles; `running`, `open_files`, `last_words`: its process, bounds and end.
- What stands on its groups: `rooms` joins `controllers` (with `controller_joining` and
  `controller_metrics`), `coordinators`, `groups`, and on a broker `observing`. `keeping` brings the
  snapshot room to the driver, for the two do not import each other.
- `dev`, with `dev_processes`, `dev_child`, `dev_store`: a whole cluster below one directory.
- `doctor`: what a machine lacks. `error_names`: Kafka's codes as words.

It is the only room that imports all others: where a lower one needs a higher one, they meet here.
"""
