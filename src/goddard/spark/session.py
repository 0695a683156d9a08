"""A Spark session with quiet settings for one machine; every setting can be overridden.

Spark's defaults listen on every address, print a progress bar to the terminal and run workers with
the first ``python3`` of the PATH, which may be a different Python.
"""

import importlib
import os
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from pyspark import SparkConf, SparkContext
from pyspark.sql import SparkSession

from goddard.spark.java import provide_java

LOCAL_SETTINGS: Final = {
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.memory": "1g",
    "spark.log.level": "ERROR",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.shuffle.partitions": "2",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
}


def local_settings(warehouse: Path | None = None) -> dict[str, str]:
    """The settings of a session on this machine."""
    temporary = tempfile.gettempdir()
    folder = warehouse or Path(temporary) / f"goddard-spark-{os.getuid()}"
    return LOCAL_SETTINGS | {
        "spark.local.dir": temporary,
        "spark.sql.warehouse.dir": str(folder),
    }


def spark_session(
    master: str = "local[*]",
    *,
    name: str = "goddard",
    settings: Mapping[str, str] | None = None,
    log: Path | None = None,
) -> SparkSession:
    """The active session of this process; a new one if there is none.

    ``settings`` override the defaults (``LOCAL_SETTINGS``). The defaults that bind the driver to
    the loopback address are used only with a ``local`` master. Rows of the ``console`` sink go to
    the standard output of this process. Spark's log (Java's standard error) is appended to the
    file ``log``; without ``log`` it is discarded.
    """
    active = SparkSession.getActiveSession()
    if active is not None:
        return active
    provide_java()
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    values = local_settings()
    if not master.startswith("local"):
        for key in (
            "spark.driver.bindAddress",
            "spark.driver.host",
            "spark.sql.shuffle.partitions",
        ):
            del values[key]
    else:
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    conf = (
        SparkConf()
        .setMaster(master)
        .setAppName(name)
        .setAll(list((values | dict(settings or {})).items()))
    )
    with Path(os.devnull if log is None else log).open("ab") as output:
        # Imported as Any: the module has no type annotations.
        java_gateway: Any = importlib.import_module("pyspark.java_gateway")
        gateway = java_gateway.launch_gateway(conf, {"stderr": output})
    return SparkSession(SparkContext(conf=conf, gateway=gateway))
