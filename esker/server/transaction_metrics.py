"""Prometheus metrics of the transaction log, from the node that leads it; others report zeros.

Source: docs/design/transactions.md.
"""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric

from coordinator.transactions.leader import TransactionLog

PREFIX = "esker_transactions_"


def transaction_metrics(transactions: TransactionLog | None) -> Iterator[Metric]:
    """Yield the metrics of a node's transaction log; nothing if the node has no such log."""
    if transactions is None:
        return
    leads = transactions.proposer.epoch is not None
    image, delivery = transactions.machine.image, transactions.delivery
    started = [image.ids[name].started_at_ms for name in image.ongoing] if leads else []
    age_ms = transactions.wall_ms() - min(started) if started else 0
    gauges = {
        "ids": (len(image.ids) if leads else 0, "Transactional ids in the log"),
        "open": (len(started), "Transactions in the state Ongoing"),
        "oldest_open_seconds": (
            max(0, age_ms) / 1_000,
            "Seconds since the oldest Ongoing transaction began",
        ),
        "ending": (delivery.transactions, "Transactions whose markers are not all written"),
    }
    for name, (value, text) in gauges.items():
        yield GaugeMetricFamily(PREFIX + name, text, value=value)
    counters = {
        "timed_out": (transactions.timed_out, "Transactions that this node aborted by timeout"),
        "markers_sent": (delivery.counters.sent, "Markers that this node has sent"),
        "markers_repeated": (
            delivery.counters.repeated,
            "Markers that this node had to send again",
        ),
        "markers_refused": (
            delivery.counters.refused,
            "Refusals of markers that a repetition does not change",
        ),
    }
    for name, (value, text) in counters.items():
        yield CounterMetricFamily(PREFIX + name, text, value=value)
