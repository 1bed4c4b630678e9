"""Apache Iceberg's own REST catalogue, as a process on the loopback address."""

from __future__ import annotations

import contextlib
import subprocess
import urllib.request
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

import pyspark

from tests.interop.kafka_release import fetch
from tests.ports import free_port
from tests.waiting import wait_until

MAIN: Final = Path(__file__).with_name("IcebergRest.java")
POM: Final = Path(__file__).with_name("iceberg_rest.xml")


@contextlib.contextmanager
def iceberg_rest(home: Path, properties: Mapping[str, str]) -> Iterator[str]:
    """Run a catalogue whose database lies in a directory; yield its URL.

    Args:    properties: of Iceberg, such as warehouse and io-impl.
    Raises:  KafkaMissingError, KafkaSetupError if its jars cannot be fetched.
    """
    jars = fetch("iceberg-rest", POM)
    hadoop = sorted((Path(pyspark.__path__[0]) / "jars").glob("hadoop-client-*.jar"))
    port = free_port()
    given = {
        "uri": f"jdbc:sqlite:{home / 'rest.db'}",
        "jdbc.schema-version": "V1",
        "clients": "1",  # SQLite refuses a second writer
        **properties,
    }
    command = [
        "java", "-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1",
        "-cp", ":".join((f"{jars}/*", *map(str, hadoop))), str(MAIN), str(port),
        *(f"{name}={value}" for name, value in given.items()),
    ]  # fmt: skip
    output = home / "rest.log"
    with output.open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
    url = f"http://127.0.0.1:{port}"

    def answers() -> bool:
        assert process.poll() is None, output.read_text()[-3000:]
        with urllib.request.urlopen(f"{url}/v1/config", timeout=10):
            return True

    try:
        wait_until(answers, "the catalogue answers", retry_on=(OSError,))
        yield url
    finally:
        process.kill()
        process.wait()
