"""Dead records: what a rewrite would take out of a segment, and from when on it is worth one."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

from tailrace.disk.frame import EXPIRY_OPEN
from tailrace.disk.removal import Removal, Removed
from tailrace.disk.segment import HEADER_BYTES, Index
from tailrace.disk.segment_source import SegmentSource
from tailrace.limits import REWRITE_BYTES_MIN

if TYPE_CHECKING:
    from tailrace.disk.partition import Partition


class Dead(NamedTuple):
    """The records of a segment that a rewrite would take out, and about how many bytes it would free."""

    records: int
    # How many of them have expired; the others were deleted.
    expired: int
    bytes: int


def half_expired_us(index: Index, bytes_min: int = REWRITE_BYTES_MIN) -> int | None:
    """Return from when on a rewrite is worth it, by the index of a sealed segment: half of it has expired then.

    Return None if that never happens.
    """
    if index.expiries is None:
        return None
    positions = [*index.positions, index.position]
    sizes = [stop - first for first, stop in pairwise(positions)]
    dead = 0
    for expiry, size in sorted(zip(index.expiries, sizes, strict=True)):
        if 0 < expiry < EXPIRY_OPEN:
            dead += size
            if dead >= bytes_min and 2 * dead >= index.position - HEADER_BYTES:
                return expiry * 1_000_000
    return None


def find_dead(
    partition: Partition,
    base: int,
    now_us: int,
    removed: Removed = (),
    *,
    index: Index | None = None,
    brief: bool = False,
) -> Dead | None:
    """Return what a rewrite would take out of a sealed segment; None if that is nothing, or the segment is gone.

    Only frames of which a part may go are decoded. With `brief` nothing is read after the first dead record. `index` is
    that of an active segment, as far as it is published.
    """
    removal = Removal.within(base, now_us, removed)
    files = partition.files
    try:
        source = SegmentSource(partition, base, index)
    except FileNotFoundError:
        return None
    try:
        records = expired = size = 0
        for part in source.parts():
            header = part.header
            if header is not None and header.placeholder:
                continue
            dead = None if header is None else removal.takes(header)
            gone, old = (part.count, part.count if removal.is_over(header) else 0) if header and dead else (0, 0)
            if dead is None:
                column = part.run or source.columns(part)
                kept, old = removal.kept(column)
                gone = column.count - kept.count(1)
            records += gone
            expired += old
            size += part.size * gone // part.count
            if brief and records:
                break
    finally:
        files.close(source.descriptor)
    return Dead(records, expired, size) if records else None
