"""Backups: a consistent copy of a log in use, and the restore of one."""
