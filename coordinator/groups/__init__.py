"""Consumer groups: what is true of them in a log, and the broker that acts for each.

Two halves. On the quorum: `state` and `decide` say what the records of `__consumer_offsets-0` mean
and which may be written, `machine` and `leader` run that on a node, `service` answers brokers. On a
broker: `core` speaks Kafka's classic group protocol with clients, from memory, and calls the log
for whatever must not be lost.
"""
