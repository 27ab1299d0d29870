"""Backups: a consistent copy of a log that is written to, and a log made of one."""
