"""The contents of any file of a log's directory, read for `esker dump-log` without a change.

- `kinds`: which kind of file a name means.
- `items`: what readers hand to printers.
- `batches`, `small`: the readers, for files of record batches and for all others.
- `checks`: `--verify`.
- `fields`: a typed record's fields, as JSON values or as text.
- `human`, `lines`: the printers, a table and JSON lines.
"""
