"""Unmodified Kafka clients against a cluster: one table of what they do, and what must come of it.

- `client`: what a scenario may ask of a client; an adapter for each: `confluent`, `aio`,
  `kafka_python`, `kcat`.
- `scenarios_*`: what is done with them, each a function of one client and a `world.World`.
- `table`: the rows, and which client cannot do which, with the reason.
- `cluster`: an Esker cluster of real processes; `apache_kafka`: a real Kafka, on which the same
  table must pass. That is what makes the table right, and not only Esker in step with it.
"""
