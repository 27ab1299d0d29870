"""Three pipelines to copy from: topics in, topics out, exactly once. docs/pipelines.md explains them."""

import importlib.util

if importlib.util.find_spec("pyspark") is None:
    # Said here, before a pipeline imports it, so that nobody has to read a traceback.
    raise SystemExit('The pipelines need pyspark, which is not installed: pip install "tailrace[spark]"')
