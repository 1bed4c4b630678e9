"""Prometheus metrics of certificates, handshakes and authentications, by listener.

Source: docs/design/security.md#transport.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric

from raft.net import Listener


def security_metrics(listeners: Mapping[str, Listener]) -> Iterator[Metric]:
    """Yield the metrics of the listeners that have TLS or SASL."""
    expiry = GaugeMetricFamily(
        "esker_certificate_expiry_timestamp_seconds",
        "When the listener's own certificate expires, in Unix seconds",
        labels=("listener",),
    )
    stale = GaugeMetricFamily(
        "esker_certificate_reload_failed",
        "1 while changed key or trust files cannot be used and the former ones go on, else 0",
        labels=("listener",),
    )
    handshakes = CounterMetricFamily(
        "esker_tls_handshakes", "TLS handshakes that were completed", labels=("listener",)
    )
    authentications = CounterMetricFamily(
        "esker_sasl_authentications",
        "SASL authentications, by mechanism and outcome: passed or failed",
        labels=("listener", "mechanism", "outcome"),
    )
    for name, listener in listeners.items():
        tls, gate = listener.security.tls, listener.gate
        if tls is not None:
            if tls.expires_at is not None:
                expiry.add_metric((name,), tls.expires_at)
            stale.add_metric((name,), float(tls.failure is not None))
            handshakes.add_metric((name,), listener.handshakes.completed)
        if gate is not None:
            for (mechanism, passed), count in gate.outcomes.items():
                outcome = "passed" if passed else "failed"
                authentications.add_metric((name, mechanism, outcome), count)
    yield from (expiry, stale, handshakes, authentications)
