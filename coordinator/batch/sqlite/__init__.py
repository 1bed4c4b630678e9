"""The quorum's batch coordinator state in SQLite: one file per group and replica.

`machine` is the state machine that a log feeds, `store` its state: records in, `tables`, `runs` and
`objects` out, as `schema` and `rows` lay them out; `database` opens the file, `graves` empties it a
few rows at a time. A checkpoint is written from a copy (`frozen`), walked by a process of its own
(`scan`, `source`), and read into an empty database (`loading`). `described` answers people.

docs/coordinator-state.md tells why.
"""
