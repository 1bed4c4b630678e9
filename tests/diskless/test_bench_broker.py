"""The broker's benchmarks run at their tiny sizes."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.client_settings import librdkafka_settings
from esker.client.security import CommandConfigError
from tests.benches import printed
from tests.pki import Authority


def test_the_in_process_broker_benchmark_runs_without_errors() -> None:
    lines = printed("bench_produce", "--tiny")
    assert lines.count("produce / floor") == 3


@pytest.mark.soak
@pytest.mark.java
def test_the_benchmark_of_esker_with_default_settings_runs_without_errors() -> None:
    lines = printed("bench_defaults", "java", "consume", "idle", "--rounds", "1", "--tiny")
    for row in ("java", "consume", "idle"):
        assert f"\n{row}" in lines


@pytest.mark.soak
def test_the_benchmark_of_local_segments_runs_without_errors() -> None:
    lines = printed("bench_local_segments", "--tiny")
    assert lines.count("CPU s/GB") == 6


@pytest.mark.soak
def test_the_broker_benchmark_with_real_processes_runs_without_errors() -> None:
    lines = printed("bench_broker", "latency", "lowest", "throughput", "--tiny")
    for words in ("slow store", "end to end / floor", "1 MiB    batches"):
        assert words in lines


def test_client_properties_become_settings_of_librdkafka(tmp_path: Path) -> None:
    ca = Authority()
    ca.issue("client").write_pkcs12(tmp_path / "client.p12", "secret", ca.certificate)
    file = tmp_path / "client.properties"
    file.write_text(
        "security.protocol=SSL\n"
        f"ssl.truststore.location={ca.write(tmp_path / 'ca.pem')}\n"
        f"ssl.keystore.location={tmp_path / 'client.p12'}\n"
        "ssl.keystore.password=secret\n"
        "ssl.endpoint.identification.algorithm=\n"
    )
    settings = librdkafka_settings(file)
    assert settings["security.protocol"] == "SSL"
    assert settings["ssl.ca.pem"] == (tmp_path / "ca.pem").read_text()
    assert "BEGIN PRIVATE KEY" in settings["ssl.key.pem"]
    assert settings["ssl.endpoint.identification.algorithm"] == "none"
    file.write_text("security.protocol=PLAINTEXT\n")
    assert librdkafka_settings(file) == {}
    file.write_text("security.protocol=TLS\n")
    with pytest.raises(CommandConfigError, match=r"security\.protocol"):
        librdkafka_settings(file)
