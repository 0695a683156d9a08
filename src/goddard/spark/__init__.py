"""RocketMQ for Spark: the sources and the sink behind ``format("rocketmq")`` and ``rocketmq-log``.

Executors import this package without the broker and the command line, and mostly without pyspark,
so each name below is loaded on first use.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from goddard.extras import require

if TYPE_CHECKING:
    from goddard.spark.archive import history
    from goddard.spark.progress import Lag, lag
    from goddard.spark.session import spark_session
    from goddard.spark.source import register
    from goddard.spark.views import create_views
    from goddard.spark.writing.dedup import drop_duplicate_writes

__all__ = [
    "Lag",
    "create_views",
    "drop_duplicate_writes",
    "history",
    "lag",
    "register",
    "spark_session",
]

_MODULES: Final = {
    "Lag": "progress",
    "create_views": "views",
    "drop_duplicate_writes": "writing.dedup",
    "history": "archive",
    "lag": "progress",
    "register": "source",
    "spark_session": "session",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)


require("spark", "numpy", "pyarrow", "pyspark")
