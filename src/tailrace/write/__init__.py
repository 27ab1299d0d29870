"""Writing: records as frames, partitions chosen, producers, transactions."""
