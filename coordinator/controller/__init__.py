"""The controller: brokers, topics, settings, chunks, as upstream's records on the cluster log.

Start with `image` (what is agreed on), `apply` (how a record changes it) and `decide` (how a
request becomes records). `machine` is the state machine that every node runs, `leader` what the
active controller does besides, `handover` how partitions reach their batch coordinators, `service`
the requests.

Source: docs/design/controller.md, docs/design/chunks.md; KIP-631, KIP-1114, KIP-1164.
"""
