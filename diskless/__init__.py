"""The Kafka-protocol broker over object storage.

A record's way in, and out again (docs/architecture.md tells it in prose):

- `dispatch`: what is announced, and who answers a request; `apis` has the answers, one module for
  each family; `services` puts them together.
- `produce`, with `produce_request` (one until it is answered), `in_flight` (memory), `validation`,
  `produce_bounds` and `old_produce`: what a producer may send. `buffer`: batches until they are one
  object. `object_writer`, `writers`, `object_ids`: its name, its upload, its commit.
- `fetch`, with `staleness`, `runs_reader`, `object_cache`, `timestamps`, `news`: where the batches
  are, by this broker's own replica, and their bytes.
- `stores`: where objects are. `cleaning`: those that nothing needs any more are deleted.
- `metadata`, `placement`, `partitions_described`, `auto_creation`: the cluster as a client sees it.
- `cluster`: all that a broker has of its cluster, as one seam; `latest_image`. `broker`: its life.
  `metrics`, `broker_metrics`, `durations`: what is counted.

It imports `coordinator` and `records`, never the quorum's core: what a node
of the quorum gives it comes through `cluster` (`esker.server.replica_set`).
"""
