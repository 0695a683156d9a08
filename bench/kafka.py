"""Kafka 4.1.0 and Spark with its Kafka source, downloaded once into the folder of the peers.

Spark's Kafka source is published for pyspark 4.2.0, which is installed in its own environment.
Requires Java 17, Maven and about 1 GB of disk.
"""

import shutil
import socket
import subprocess
import sys
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bench.loadgen import BenchError
from goddard.config import format_properties
from goddard.testing.ports import lease_port
from goddard.testing.process import Process, wait_until
from tests.support.peers import POM_DIR, exclusive, missing_tools, peers_dir

VERSION = "4.1.0"
SPARK_VERSION = "4.2.0"
_FETCH_SECONDS = 1800
_START_SECONDS = 120


def _run(command: list[str], what: str) -> None:
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=_FETCH_SECONDS, check=False
    )
    if done.returncode != 0:
        raise BenchError(f"{what}: {(done.stdout + done.stderr)[-2000:]}")


def _jars(pom: str, home: Path) -> Path:
    """The folder with the jars of a pom; renamed when complete, so it is never partial."""
    lib = home / "lib"
    with exclusive(home.with_name(home.name + ".lock")):
        if not lib.is_dir():
            if missing_tools():
                raise BenchError(f"comparing with Kafka needs {', '.join(missing_tools())}")
            partial = home / "lib.partial"
            shutil.rmtree(partial, ignore_errors=True)
            sys.stderr.write(f"fetching {home.name} ...\n")
            copy = f"-DoutputDirectory={partial}"
            pom_file = f"--file={POM_DIR / pom / 'pom.xml'}"
            _run(["mvn", "-B", pom_file, copy, "dependency:copy-dependencies"], home.name)
            partial.rename(lib)
    return lib


def spark_python() -> Path:
    """The Python of an environment with the pyspark version of the Kafka source."""
    home = peers_dir() / f"spark-{SPARK_VERSION}"
    python = home / "venv" / "bin" / "python"
    stamp = home / "complete"
    with exclusive(home.with_name(home.name + ".lock")):
        if not stamp.exists():
            sys.stderr.write(f"fetching pyspark {SPARK_VERSION} (450 MB) ...\n")
            _run([sys.executable, "-m", "venv", "--clear", str(home / "venv")], "venv")
            _run([str(python), "-m", "pip", "install", f"pyspark=={SPARK_VERSION}"], "pip")
            stamp.touch()
    return python


def spark_jars() -> str:
    """The jars of the Kafka source, as the value of ``spark.jars``."""
    lib = _jars("spark-kafka", peers_dir() / f"spark-kafka-{SPARK_VERSION}")
    return ",".join(str(path) for path in sorted(lib.glob("*.jar")))


@contextmanager
def broker(folder: Path, partitions: int) -> Iterator[str]:
    """A single-node Kafka broker; yields its address. Topics are created on the first write."""
    lib = _jars("kafka", peers_dir() / f"kafka-{VERSION}")
    port, controller = lease_port(), lease_port()
    folder.mkdir()
    settings = {
        "process.roles": "broker,controller",
        "node.id": "1",
        "controller.quorum.voters": f"1@127.0.0.1:{controller}",
        "listeners": f"PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}",
        "advertised.listeners": f"PLAINTEXT://127.0.0.1:{port}",
        "controller.listener.names": "CONTROLLER",
        "log.dirs": str(folder / "data"),
        "num.partitions": str(partitions),
        "offsets.topic.replication.factor": "1",
        # Long, so that the only broker is not fenced on a busy machine.
        "broker.session.timeout.ms": "120000",
    }
    config = folder / "server.properties"
    config.write_text(format_properties(settings))
    java = ["java", "-Xmx1g", "-cp", f"{lib}/*"]
    cluster = uuid.uuid4().hex[:22]
    format_command = [*java, "kafka.tools.StorageTool", "format", "-t", cluster, "-c", str(config)]
    _run(format_command, "formatting Kafka's storage")
    server = Process(
        "Kafka",
        [*java, "kafka.Kafka", str(config)],
        log=folder / "kafka.log",
        ready="",
        port=port,
    )
    with server:
        # It has no logger, so it prints no line that says it is ready.
        server.launch()
        wait_until(
            lambda: _is_listening(port) or not server.is_running, _START_SECONDS, "Kafka serves"
        )
        if not server.is_running:
            raise BenchError(server.diagnosis())
        yield server.address


def _is_listening(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=1).close()
    except OSError:
        return False
    return True
