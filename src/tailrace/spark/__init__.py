"""Spark's way into a log: `spark.read.format("tailrace")`, streams, and a session that starts quickly.

Importing this needs pyspark 4.2 or newer; nothing else of Tailrace does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tailrace.errors import MissingExtraError

try:
    from tailrace.spark.source import TailraceSource
except ModuleNotFoundError as error:
    if error.name is None or error.name.partition(".")[0] != "pyspark":
        raise
    raise MissingExtraError('This needs pyspark: pip install "tailrace[spark]"', extra="spark") from None

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["TailraceSource", "register", "session"]


def register(spark: SparkSession) -> None:
    """Make the format known to a session that does not find it by itself, as with --py-files."""
    spark.dataSource.register(TailraceSource)


def session(*args: Any, **settings: Any) -> SparkSession:
    """A session with the settings that make local mode quick; nothing that you set is changed."""
    from tailrace.spark.sessions import session as make

    made: SparkSession = make(*args, **settings)
    return made
