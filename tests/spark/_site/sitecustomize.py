"""Lets Python processes that the JVM starts import pyspark from where it is installed, compiled once.

Spark puts pyspark.zip first on their path, which holds no compiled files: each process would compile it anew, for a
second. Only for tests on this machine: an executor elsewhere may have nothing but the zip.
"""

import sys

sys.path[:] = [place for place in sys.path if not place.endswith("/python/lib/pyspark.zip")]
