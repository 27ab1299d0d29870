"""Lag of consumer groups, by topic."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tailrace.cli.invocation import Invocation

if TYPE_CHECKING:
    from tailrace import Log

LAG_FIELDS = ("name", "lag_records", "lag_seconds")


def lags_by_topic(invocation: Invocation, log: Log) -> dict[str, list[dict[str, Any]]]:
    """Return, for each topic that groups read, the lag of each of those groups."""
    from tailrace.errors import DataError, VersionError

    try:
        groups = log.groups()
    except (DataError, VersionError) as error:
        # A group that is damaged, or that reads a topic of a newer version, must not hide the topics.
        invocation.note(f"The groups are not shown: {error}")
        return {}
    found: dict[str, dict[str, dict[str, Any]]] = {}
    for group in groups:
        for partition in group.partitions:
            lags = found.setdefault(partition.topic, {})
            lag = lags.setdefault(group.name, dict(zip(LAG_FIELDS, (group.name, 0, 0.0), strict=True)))
            lag["lag_records"] += partition.lag_records
            lag["lag_seconds"] = max(lag["lag_seconds"], partition.lag_seconds)
    return {topic: list(lags.values()) for topic, lags in found.items()}
