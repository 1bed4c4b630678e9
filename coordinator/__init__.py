"""State machines over the replicated logs: who has which offsets, and what the cluster consists of.

The batch coordinator, from the outside in:

- `interface`: KIP-1164's `BatchCoordinator`. `client` speaks to one, `service` serves one.
- `leader`, `replica`, `proposing`, `pending`: it on the quorum. `memory`, `embedded`: without one.
- `decide`: what is answered and recorded. `state`: what a record changes. Neither waits.
- `runs`, `reads`, `retention`, `planner`, `describe`: what is found, and what may go.
- `checkpoint`, `sqlite`: the state as records, and on disk.
- `conformance`: what every implementation must do, as data.

`controller` is the other state machine, of `__cluster_metadata`.
"""
