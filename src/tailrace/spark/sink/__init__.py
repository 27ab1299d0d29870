"""The Spark sink: rows as frames in the tasks, committed by the driver."""
