"""The quorum's batch coordinator state in SQLite: one file per group and replica.

`machine` is the state machine that a log feeds, `store` its state: records in, `tables`, `runs` and
`objects` out, as `schema` and `rows` lay them out; `database` opens the file, `deferred_deletes`
removes dead runs a few at a time. A checkpoint is written from a copy (`frozen`), walked by a
separate process (`scan`, `source`), and read into an empty database (`loading`). `described` serves
the overviews.

docs/coordinator-state.md tells why.
"""
