"""Measuring: Tailrace on a disk at hand, beside what the disk itself and SQLite do there, in rounds that take turns."""
