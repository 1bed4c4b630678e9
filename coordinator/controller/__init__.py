"""The controller: brokers, topics, settings, chunks, stored as upstream's records in the cluster
log.

Start with `image` (the state), `apply` (how a record changes it) and `decide` (how a request
becomes records). `machine` is the state machine that every node runs, `leader` the tasks of the
active controller, `handover` how partitions reach their batch coordinators, `service` the requests.

Source: docs/design/controller.md, docs/design/chunks.md; KIP-631, KIP-1114, KIP-1164.
"""
