"""Three pipelines to copy from: topics in, topics out, exactly once. docs/pipelines.md explains them."""

import importlib.util

if importlib.util.find_spec("pyspark") is None:
    # Reported here, before a pipeline imports it, instead of as a traceback.
    raise SystemExit('The pipelines need pyspark, which is not installed: pip install "tailrace[spark]"')
