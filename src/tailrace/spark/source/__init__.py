"""The Spark source: what a query reads, planned in the driver and read in the executors."""
