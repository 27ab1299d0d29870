"""Maintenance: retention, vacuum, statistics, verification, repair, backup, diagnosis."""
