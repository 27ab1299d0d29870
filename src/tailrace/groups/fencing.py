"""Fencing errors: for a member that does not own its partitions any more."""

from __future__ import annotations

from tailrace.arguments import format_duration
from tailrace.errors import PartitionLostError

NAMED_MAX = 4


def evicted(group: str, member: str) -> PartitionLostError:
    """Return the error for a member that was evicted and owned nothing."""
    return PartitionLostError(f"The member {member} was evicted from the group {group!r}.", group=group)


def lost_partitions(group: str, member: str, partitions: tuple[tuple[str, int], ...]) -> PartitionLostError:
    """Return the error for partitions that another member owns, or may own, by now."""
    listed = _listed(partitions) or "partitions of a dropped topic"
    return PartitionLostError(
        f"The member {member} of the group {group!r} no longer owns {listed}.", group=group, partitions=partitions
    )


def too_slow(
    group: str, member: str, partitions: tuple[tuple[str, int], ...], since: float, limit: float
) -> PartitionLostError:
    """Return the error for a member that has not polled for `since` seconds, longer than its limit."""
    return PartitionLostError(
        f"The member {member} of the group {group!r} lost {_listed(partitions) or 'its partitions'}: it has not polled "
        f"for {format_duration(since)}, longer than max_processing={format_duration(limit)!r}.",
        group=group,
        partitions=partitions,
        hint="Nothing of this call was stored, and what was not committed comes again to the new owner; poll "
        "again to join the group again, and make batches smaller or max_processing longer.",
    )


def _listed(partitions: tuple[tuple[str, int], ...]) -> str:
    more = f" and {len(partitions) - NAMED_MAX} more" if len(partitions) > NAMED_MAX else ""
    return ", ".join(f"{topic}[{index}]" for topic, index in partitions[:NAMED_MAX]) + more
