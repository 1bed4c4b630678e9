"""State machines over the replicated logs: the batch coordinator, the controller, consumer groups.

- `batch`: KIP-1164's batch coordinator, on `__diskless-metadata`.
- `controller`: KIP-631's controller, on `__cluster_metadata`, with KIP-1114's chunks.
- `groups`: consumer groups, on `__consumer_offsets`.
- `transactions`: transactions, on `__transaction_state`.
- `embedded`: the batch coordinator inside an application's own processes, on PySyncObj.

What they share stands here: `proposer` (from a decision to its answer), `leader_client` (finds a
log's leader), `clocks`, `rendezvous` (which broker does what, without a table), `image_machine` and
`persistent_map` (state as one immutable image after another).
"""
