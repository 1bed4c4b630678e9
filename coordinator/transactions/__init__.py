"""Transactions: the log that decides about them, and the broker that owns a transactional id.

`state` and `decide` define what the records of `__transaction_state-0` mean and which may be
written; `machine` and `leader` run that on a node; `markers` delivers the ends of transactions;
`service` answers brokers. On a broker, `owner` forwards the calls of producers.

Source: docs/design/transactions.md.
"""
