"""State machines over the replicated logs: who has which offsets, and what the cluster consists of.

The batch coordinator, from the outside in:

- `interface`: KIP-1164's `BatchCoordinator`. `client` speaks to one (`commits` in their order,
  `finding` who leads), `service` serves one; `calls` is the table of what may be asked.
- `leader`, `replica`, `proposing`, `pending`, `clocks`: it on the quorum. `memory`, and `embedded`
  with `commanded`: without one.
- `decide`: what is answered and recorded. `state`, `applying`: what a record changes. None waits.
- `runs`, `ranges`, `reads`, `freshness`, `retention`, `planner`, `describe`: what is found, how new
  it is, and what may go.
- `log_records`, `checkpoint`, `sqlite`: the log's records, the state as records, and on disk.
- `settings`, `view`: what an operator sets, and what the cluster says. `rendezvous`: which broker
  does what, without a table.
- `conformance`: what every implementation must do, as data.

Two more state machines: `controller`, of `__cluster_metadata`, and `groups`, of
`__consumer_offsets`; `image_machine` is what they have in common.
"""
