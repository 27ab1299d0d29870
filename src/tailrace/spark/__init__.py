"""Spark integration: `spark.read.format("tailrace")`, streams, and a session with quick settings.

Importing this needs pyspark 4.2 or newer; nothing else in Tailrace does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tailrace.errors import MissingExtraError
from tailrace.spark.sessions import use_this_python

try:
    from tailrace.spark.format import TailraceSource
except ModuleNotFoundError as error:
    if error.name is None or error.name.partition(".")[0] != "pyspark":
        raise
    raise MissingExtraError('This needs pyspark: pip install "tailrace[spark]"', extra="spark") from None

if TYPE_CHECKING:
    from collections.abc import Callable
    from os import PathLike

    from pyspark.sql import DataFrame, SparkSession

    from tailrace.spark.source.progress import ProgressListener, lag, progress

__all__ = ["ProgressListener", "TailraceSource", "lag", "progress", "register", "session", "write_batch"]

# Sessions created from here on start their worker processes with this Python.
use_this_python()


def __getattr__(name: str) -> Any:
    """Import lazily the names that only some programs use, and the processes that Spark starts never do."""
    if name in __all__:
        from tailrace.spark.source import progress as monitoring

        return getattr(monitoring, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def register(spark: SparkSession) -> None:
    """Register the format with a session that does not discover it by itself, as with --py-files."""
    spark.dataSource.register(TailraceSource)


def session(*args: Any, **settings: Any) -> SparkSession:
    """Return a session with settings that make local mode quick; settings of the caller are not changed."""
    from tailrace.spark.sessions import session as make

    made: SparkSession = make(*args, **settings)
    return made


def write_batch(path: str | PathLike[str] | None = None, **options: Any) -> Callable[[DataFrame, int], None]:
    """Return a function for foreachBatch that appends each batch of a query once, also through Spark Connect.

    Any output mode will do. The options are those of the sink: write_batch("/data/shop", topic="counts"). A function of
    your own may call it as well, with the number of the batch; each write of a batch then needs its own topic or
    txnAppId.
    """
    from tailrace.spark.sink.foreach import BatchWriter

    return BatchWriter(options if path is None else {**options, "path": path})
