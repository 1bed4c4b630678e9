"""Transactions on a broker: the ids that it owns, and proofs for batches of transactions."""
