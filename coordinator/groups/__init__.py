"""Consumer groups: the log that stores them, and the broker that coordinates each group.

Two halves. On the quorum: `state` and `decide` define what the records of `__consumer_offsets-0`
mean and which may be written, `machine` and `leader` run that on a node, `service` answers brokers.
On a broker: `core` speaks Kafka's classic group protocol with clients, from memory, and calls the
group log for whatever must not be lost.
"""
