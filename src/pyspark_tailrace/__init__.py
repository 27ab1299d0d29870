"""Makes `spark.read.format("tailrace")` work without registering anything: Spark looks into packages of such names."""

from tailrace.spark import TailraceSource as DefaultSource

__all__ = ["DefaultSource"]
