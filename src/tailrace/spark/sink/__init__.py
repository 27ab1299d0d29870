"""The Spark sink: tasks turn rows into frames, and the driver commits them."""
