"""A Spark standalone cluster: a master, two workers and a driver, each in its own process.

The job is submitted with ``spark-submit``, as the guide says. The package is sent to the executors
as an archive, as by a user who cannot install it there.
"""

import importlib.util
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from goddard.spark.java import provide_java
from goddard.testing.cluster import Cluster
from goddard.testing.ports import lease_port
from goddard.testing.process import Process, wait_until
from goddard.testing.site import Site
from tests.support.java import BRIEF_JVM_FLAGS
from tests.support.numbered_topic import NumberedTopic
from tests.support.spark_job import READY

ROOT = Path(__file__).parents[2]
_SECONDS = 240

pytestmark = pytest.mark.timeout(600)


def environment() -> dict[str, str]:
    return {
        **os.environ,
        "JAVA_HOME": str(provide_java()),
        "PYSPARK_PYTHON": sys.executable,
        "PYTHONPATH": str(ROOT),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_DAEMON_MEMORY": "256m",
    }


def program(name: str) -> str:
    """A command of the installed pyspark package."""
    found = importlib.util.find_spec("pyspark")
    assert found is not None
    assert found.origin is not None
    return str(Path(found.origin).parent / "bin" / name)


def daemon(name: str, folder: Path, ready: str, *arguments: str, port: int = 0) -> Process:
    """A Spark daemon."""
    return Process(
        name,
        [program("spark-class"), *arguments],
        log=folder / f"{name}.log",
        ready=ready,
        port=port,
        env=environment(),
        cwd=folder,
        start_timeout=_SECONDS,
    )


def archive(folder: Path) -> Path:
    """Build the wheel of this tree; with the suffix .zip, Spark adds it to the executors' path.

    Compiled modules cannot be imported from an archive.
    """
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)],
        cwd=ROOT,
        env={**os.environ, "GODDARD_CORE": "0"},
        check=True,
        capture_output=True,
        timeout=_SECONDS,
    )
    (wheel,) = folder.glob("*.whl")
    return Path(shutil.copy(wheel, folder / "goddard.zip"))


def test_source_and_sink_on_a_cluster(tmp_path: Path) -> None:
    job = tmp_path / "job"
    job.mkdir()
    port = lease_port()
    url = f"spark://127.0.0.1:{port}"
    common = ("--host", "127.0.0.1", "--webui-port", "0")
    master = daemon(
        "master",
        tmp_path,
        "New state: ALIVE",
        "org.apache.spark.deploy.master.Master",
        *(*common, "--port", str(port)),
        port=port,
    )
    workers = [
        daemon(
            f"worker-{number}",
            tmp_path,
            "Successfully registered with master",
            "org.apache.spark.deploy.worker.Worker",
            *(*common, "--cores", "1", "--memory", "512m", "--work-dir", str(tmp_path / "work")),
            url,
        )
        for number in range(2)
    ]
    with Cluster(tmp_path / "cluster") as cluster, master, workers[0], workers[1]:
        # Workers retry until the master is up; the other parts start in the meantime.
        for each in (master, *workers):
            each.launch()
        site = Site(cluster.start_name_server())
        site.start_goddard_broker(cluster)
        code = archive(tmp_path)
        source, target = NumberedTopic(site, "from"), NumberedTopic(site, "to")
        source.fill(2_000)
        values = {
            "source": source.options(startingOffsets="earliest"),
            "sink": {"nameServers": site.namesrv, "topic": target.name},
        }
        (job / "job.json").write_text(json.dumps(values))
        settings = {
            "spark.driver.host": "127.0.0.1",
            "spark.executor.cores": "1",
            "spark.executor.memory": "512m",
            "spark.executor.extraJavaOptions": " ".join(BRIEF_JVM_FLAGS),
            "spark.local.dir": str(tmp_path),
            "spark.sql.shuffle.partitions": "2",
            "spark.ui.enabled": "false",
        }
        driver = Process(
            "driver",
            [
                program("spark-submit"),
                *("--master", url, "--py-files", str(code)),
                *(word for name, value in settings.items() for word in ("-c", f"{name}={value}")),
                str(ROOT / "tests" / "support" / "spark_job.py"),
                str(job),
            ],
            log=job / "output.log",
            ready=READY,
            env=environment(),
            cwd=job,
            start_timeout=_SECONDS,
        )
        for each in (master, *workers):
            each.wait_ready()
        with driver:
            driver.start()
            (job / "stop").touch()
            wait_until(lambda: not driver.is_running, _SECONDS, "the job ends")
            assert driver.exit_code == 0, driver.output()[-3000:]
        assert len(set(executor_workers(master))) == 2
    result = json.loads((job / "result.json").read_text())
    assert result["table"] == result["topic"] == list(range(2_000))
    # The executors used the archive and not this tree.
    assert all("goddard.zip" in origin for origin in result["origins"])


def executor_workers(master: Process) -> list[str]:
    """The worker of each executor that the master launched, from its log."""
    return [
        line.split(" on worker ")[1].split()[0]
        for line in master.output().splitlines()
        if "Launching executor" in line and " on worker " in line
    ]


def test_cluster_mode_needs_another_cluster_manager(tmp_path: Path) -> None:
    """If Spark accepts this, the guide has to change."""
    done = subprocess.run(
        [
            program("spark-submit"),
            *("--master", f"spark://127.0.0.1:{lease_port()}", "--deploy-mode", "cluster"),
            str(tmp_path / "job.py"),
        ],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=_SECONDS,
        check=False,
    )
    assert done.returncode == 1
    assert "not supported for python applications on standalone clusters" in done.stderr
