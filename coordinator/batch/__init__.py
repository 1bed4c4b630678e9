"""The batch coordinator (KIP-1164): which batch has which offsets, and in which object it lies.

- `interface`: KIP-1164's `BatchCoordinator`. `client` calls one over a socket (`commit_queue` keeps
  its commits in order), `service` serves one; `calls` is the table of its calls.
- `leader`, `replica`, `pending`, `maintenance`, `slices`: the coordinator on the quorum. `memory`:
  the in-memory oracle.
- `decide`: from a request to records and an answer. `state`, `applying`: how a record changes
state.
- `runs`, `id_ranges`, `reads`, `freshness`, `retention`, `retention_planner`, `describe`: what is
  found, how old a replica's answer may be, and what may be deleted.
- `log_records`, `checkpoint`, `sqlite`: the log's records, the state as records, and on disk.
- `settings`, `cluster_view`: what an operator sets, and what the cluster log says.
"""
