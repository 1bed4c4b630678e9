"""The Kafka-protocol broker over object storage.

docs/architecture.md follows a record from its producer to its consumer. The parts:

- `broker` starts and stops; `services` assembles what it serves; `dispatch` routes requests to
  `apis`, which has one module per family of requests.
- `produce` validates batches (`validation`, `bounds`, `old_versions`), bounds their memory
  (`in_flight`), buffers them (`buffer`), and uploads and commits objects (`object_writer`,
  `writers`, `object_ids`).
- `fetch` finds batches in this broker's own replica (`staleness`) and reads their bytes
  (`runs_reader`, `object_cache`, `timestamps`).
- `stores` has the object stores; `object_deletion` deletes objects that nothing references.
- `placement` chooses a partition's leader; `cluster` and `latest_image` are what a broker knows of
  its cluster; `loop_turns` keeps the event loop responsive.
- `metrics`, `broker_metrics` and `histograms` count.

The broker imports `coordinator` and `records`, never the quorum's core: a node provides its logs
through `cluster` (`esker.server.replica_set`).
"""
