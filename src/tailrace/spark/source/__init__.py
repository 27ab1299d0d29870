"""The Spark source: queries are planned in the driver and read in the executors."""
