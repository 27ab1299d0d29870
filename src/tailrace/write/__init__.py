"""Writing: intake of records, partitioning, producers, transactions."""
