"""Spark's way into a log: `spark.read.format("tailrace")`, streams, and a session that starts quickly.

Importing this needs pyspark 4.2 or newer; nothing else of Tailrace does.
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

# Sessions that are made from now on start processes of this Python.
use_this_python()


def __getattr__(name: str) -> Any:
    """What only some programs use, and the processes that Spark starts never do."""
    if name in __all__:
        from tailrace.spark.source import progress as monitoring

        return getattr(monitoring, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def register(spark: SparkSession) -> None:
    """Make the format known to a session that does not find it by itself, as with --py-files."""
    spark.dataSource.register(TailraceSource)


def session(*args: Any, **settings: Any) -> SparkSession:
    """A session with the settings that make local mode quick; nothing that you set is changed."""
    from tailrace.spark.sessions import session as make

    made: SparkSession = make(*args, **settings)
    return made


def write_batch(path: str | PathLike[str] | None = None, **options: Any) -> Callable[[DataFrame, int], None]:
    """A function for foreachBatch that appends each batch of a query once, in any output mode, also through Connect.

    The options are those of the sink: write_batch("/data/shop", topic="counts"). It may be called by a function of
    your own as well, with the number of the batch; each write of a batch then needs a topic or a txnAppId of its own.
    """
    from tailrace.spark.sink.foreach import BatchWriter

    return BatchWriter(options if path is None else {**options, "path": path})
