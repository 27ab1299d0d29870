"""Makes the Python processes that Spark starts import pyspark from its installed directory, compiled once.

Spark puts pyspark.zip first on their path, which holds no compiled files: each process would compile it again, for a
second. For one machine only: an executor elsewhere may have nothing but the zip.
"""

import sys

sys.path[:] = [place for place in sys.path if not place.endswith("/python/lib/pyspark.zip")]
