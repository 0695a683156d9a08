"""A Spark session with quiet, local-only settings; everything can be overridden.

Spark's own defaults listen on every address, print a progress bar over the terminal and take the
first ``python3`` of the PATH for workers, which may be another Python than this one.
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

LOCAL: Final = {
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
    """What a session on this machine is made with."""
    scratch = tempfile.gettempdir()
    folder = warehouse or Path(scratch) / f"goddard-spark-{os.getuid()}"
    return LOCAL | {"spark.local.dir": scratch, "spark.sql.warehouse.dir": str(folder)}


def spark_session(
    master: str = "local[*]",
    *,
    name: str = "goddard",
    settings: Mapping[str, str] | None = None,
    log: Path | None = None,
) -> SparkSession:
    """The session of this process, made if there is none yet.

    ``settings`` go before ours; ours are for a driver on this machine, and those that bind it to
    the loopback address are left out for any other ``master`` than ``local``. What Java prints
    goes to ``log``, by default nowhere.
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
        # It has no types of its own.
        gateways: Any = importlib.import_module("pyspark.java_gateway")
        gateway = gateways.launch_gateway(conf, {"stdout": output, "stderr": output})
    return SparkSession(SparkContext(conf=conf, gateway=gateway))
