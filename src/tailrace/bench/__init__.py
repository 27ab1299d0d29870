"""Benchmarks: Tailrace on a disk, beside bare system calls and SQLite on the same disk, in interleaved rounds."""
