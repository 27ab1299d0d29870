"""Reading: scans, iteration, batches, Arrow data, following."""
