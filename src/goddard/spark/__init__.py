"""RocketMQ for Spark: the sources and the sink behind ``format("rocketmq")`` and ``rocketmq-log``.

What runs on executors imports no broker, no command line and, but for ``source``, no pyspark: the
names below are loaded when they are first used.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from goddard.extras import require

if TYPE_CHECKING:
    from goddard.spark.progress import Lag, lag
    from goddard.spark.repeats import without_repeats
    from goddard.spark.session import spark_session
    from goddard.spark.source import register

__all__ = ["Lag", "lag", "register", "spark_session", "without_repeats"]

_MODULES: Final = {
    "Lag": "progress",
    "lag": "progress",
    "register": "source",
    "spark_session": "session",
    "without_repeats": "repeats",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)


require("spark", "numpy", "pyarrow", "pyspark")
