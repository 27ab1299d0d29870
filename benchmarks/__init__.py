"""Benchmarks: Tailrace beside other Python libraries, in one run, with the durability level beside every number."""
