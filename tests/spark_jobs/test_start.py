"""A session that cannot start reports why, and leaves nothing behind. No JVM runs here: `java` is a
script that does what a real one was seen to do."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

import pyspark
import pytest

from spark_jobs.session import java
from spark_jobs.session.class_archive import LEAST_BYTES, archive_for
from spark_jobs.session.failures import SessionError
from spark_jobs.session.java import find_java
from spark_jobs.session.jvm import hold_interrupts
from spark_jobs.session.masters import parse_master
from spark_jobs.session.spark_session import start_session
from tests.spark_jobs.fake_java import fake_java

ROOT = Path(__file__).parents[2]
NO_MEMORY = "echo 'Could not reserve enough space for 1048576KB object heap'; exit 1"


@pytest.fixture(autouse=True)
def scratch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Set up a temporary directory for sessions, and no Java but the test's own."""
    (tmp_path / "scratch").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "scratch"))
    monkeypatch.setattr(java, "bundled_runtime", lambda: None)
    monkeypatch.setattr(pyspark.SparkContext, "_active_spark_context", None)  # of other tests
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("SPARK_LOCAL_IP", raising=False)
    return tmp_path / "scratch"


def refused(
    master: str | None = None, *, memory: str = "1g", log: Path | None = None
) -> SessionError:
    with pytest.raises(SessionError) as error:
        start_session(master, app="test", memory=memory, log_file=log)
    return error.value


def test_the_error_for_missing_java_names_the_remedy(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, scratch: Path
) -> None:
    monkeypatch.setenv("JAVA_HOME", "")
    monkeypatch.setenv("PATH", str(tmp_path))
    assert str(refused()).startswith("Spark needs Java 17 or newer; found none; install Java 17")
    assert list(scratch.iterdir()) == []


def test_the_error_for_a_java_that_is_too_old_names_its_version(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, scratch: Path
) -> None:
    monkeypatch.setenv("JAVA_HOME", str(fake_java(tmp_path / "old", "11.0.2")))
    monkeypatch.setenv("PATH", str(tmp_path))
    assert "found only Java 11.0.2" in str(refused())
    assert list(scratch.iterdir()) == []


def test_esker_reports_a_jvm_without_enough_memory_in_a_sentence_with_details_in_the_log(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    scratch: Path,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("JAVA_HOME", str(fake_java(tmp_path / "java", "17.0.1", NO_MEMORY)))
    error = refused(log=tmp_path / "spark.log")
    assert str(error).startswith("the machine has less memory than the JVM requests; ")
    assert error.log_file == tmp_path / "spark.log"
    assert "1048576KB" in (tmp_path / "spark.log").read_text()
    assert capfd.readouterr() == ("", ""), "what Java prints is not the terminal's"
    assert list(scratch.iterdir()) == []


def test_the_error_for_a_jvm_that_did_not_start_quotes_no_older_output_of_the_log_file(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "spark.log").write_text("No space left on device\n")
    monkeypatch.setenv("JAVA_HOME", str(fake_java(tmp_path / "java", "17.0.1", NO_MEMORY)))
    assert "memory" in str(refused(log=tmp_path / "spark.log"))


def test_esker_starts_a_jvm_again_without_the_class_archive_with_which_it_crashed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """This `java` never starts a session: its arguments are recorded."""
    home = fake_java(tmp_path / "java", "17.0.1", f'echo "$@" >>{tmp_path}/started; {NO_MEMORY}')
    (home / "lib" / "server").mkdir(parents=True)
    (home / "lib" / "server" / "libjvm.so").touch()
    (home / "lib" / "server" / "classes.jsa").touch()
    monkeypatch.setenv("JAVA_HOME", str(home))

    def started() -> list[str]:
        """Return the class-archive options of each start."""
        lines = (tmp_path / "started").read_text().splitlines()
        (tmp_path / "started").unlink()
        return [
            "".join(re.findall(r"-XX:\w+Archive\w+=[^ ]+|-XX:Archive\w+=[^ ]+", line))
            for line in lines
        ]

    refused(log=tmp_path / "spark.log")  # none yet: it is to be written
    found = archive_for(find_java(), Path(pyspark.__path__[0]) / "jars")
    assert found is not None
    assert started() == [f"-XX:ArchiveClassesAtExit={found.writing}"]
    found.writing.write_bytes(b"garbage" * LEAST_BYTES)
    found.keep(0)
    refused(log=tmp_path / "spark.log")
    assert started() == [f"-XX:SharedArchiveFile={found.file}", ""]
    assert not found.is_whole()


def test_esker_holds_back_interrupts_until_a_starting_jvm_has_started() -> None:
    before = signal.getsignal(signal.SIGINT)
    with hold_interrupts() as held:
        os.kill(os.getpid(), signal.SIGINT)
    assert held == [signal.SIGINT]
    assert signal.getsignal(signal.SIGINT) is before


def test_a_spark_command_with_an_unreachable_master_reports_an_error(scratch: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        url = f"spark://127.0.0.1:{port}"
        assert parse_master(url).facing_address() == "127.0.0.1", "while somebody is"
    error = refused(url)
    assert str(error) == f"no Spark master answers at {url}; is it running there?"
    assert not error.usage
    assert list(scratch.iterdir()) == []


@pytest.mark.parametrize(
    "url", ["spark://", "spark://host", "mesos://a:1", "local[0]", "", "local[x]"]
)
def test_a_spark_command_with_an_invalid_master_exits_with_a_usage_error(url: str) -> None:
    error = refused(url)
    assert error.usage
    assert "spark://HOST:7077" in str(error)


@pytest.mark.parametrize("memory", ["", "1", "100m", "1t", "much", "-1g", "1 g", "9" * 99 + "g"])
def test_a_spark_command_with_an_invalid_memory_size_exits_with_a_usage_error(memory: str) -> None:
    error = refused(memory=memory)
    assert error.usage
    assert memory in str(error)


def test_a_spark_command_without_pyspark_prints_one_sentence() -> None:
    script = (
        "import sys; sys.modules['pyspark'] = None\n"
        "from esker.commands.spark.session import spark_session\n"
        "with spark_session('x', None, '1g', None) as spark: pass\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, cwd=ROOT, check=False
    )
    said = done.stderr.splitlines()
    assert said[0] == "esker: PySpark is not installed: pip install 'esker[spark]'", done.stderr
