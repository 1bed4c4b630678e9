"""The quorum: KRaft in three processes.

    interfaces   what the rooms above see: one replicated log per group (`ReplicatedLog`)
    core         the sans-I/O protocol: events in, effects out; begin with `events`
    driver       real processes around it: `Node`, `run_node`
    segments     Kafka's log files, with a recovery point
    net          the one transport: frames, listener, connections, typed calls
    wire...      the core's messages as Kafka's RPCs, and back
    memory       a `ReplicatedLog` of one node in memory, for tests of state machines

`interfaces`, `segments` and `net` import only `records` and know nothing of elections, so every
room may use them. docs/quorum.md tells the protocol, docs/architecture.md one record's way through
all of it. Source: KIP-595, KIP-630, KIP-853, KIP-996.
"""
