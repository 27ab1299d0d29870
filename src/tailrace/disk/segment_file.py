"""An open segment: a file of frames and a position in it; and the indexes that readers share."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from tailrace.disk.frame import salt_chain
from tailrace.disk.segment import HEADER_BYTES, Index, Read, read_segment_header, reading
from tailrace.disk.segment_facts import FactsCache
from tailrace.limits import SEGMENT_INDEXES_MAX

if TYPE_CHECKING:
    from tailrace.disk.files import Files
    from tailrace.settings import Tuning


class Indexes:
    """What the readers of a store share: the facts, the indexes of sealed segments, and those of active ones so far."""

    def __init__(self, tuning: Tuning | None = None) -> None:
        # Reentrant, because a signal handler may read while its thread holds the mutex.
        self.mutex = threading.RLock()
        self.sealed: dict[tuple[str, int, int], Index] = {}
        self.active: dict[str, Index] = {}
        self.facts = FactsCache(tuning)

    def keep(self, key: tuple[str, int, int], index: Index) -> None:
        """Cache the index of a sealed segment, and evict the oldest above SEGMENT_INDEXES_MAX."""
        with self.mutex:
            self.sealed[key] = index
            while len(self.sealed) > SEGMENT_INDEXES_MAX:
                del self.sealed[next(iter(self.sealed))]

    def forget(self, key: tuple[str, int, int]) -> None:
        """Remove an index that turned out to be outdated."""
        with self.mutex:
            self.sealed.pop(key, None)


class SegmentFile:
    """One open segment file, and a position in it: the next frame is at `position` and must carry `chain`."""

    descriptor = -1

    def __init__(self, files: Files, path: str, base: int, owner: tuple[int, int], *, mapped: bool) -> None:
        self.files = files
        self.path = path
        self.base = base
        self.descriptor = files.open(path)
        try:
            header = read_segment_header(files, self.descriptor)
            if header is not None and not header.belongs(*owner, base):
                # A file that was copied or renamed by hand: its frames are valid, but of another partition or of other
                # offsets.
                header = None
            self.salt = header.salt if header else 0
            self.created = header.created if header else 0
            self.origin = header.origin if header else 0
            self.rewrites = header.rewrites if header else 0
            self.index: Index | None = None
            self.mapped = mapped
            self.read: Read = reading(files, self.descriptor)
            self.position = HEADER_BYTES
            self.offset = base
            self.chain = salt_chain(self.salt)
        except BaseException:
            self.close()
            raise

    def use_mapping(self) -> None:
        """Map a sealed segment; an active one may be truncated when it is sealed, which would break a mapping."""
        size = self.files.stat_open(self.descriptor).size
        view = self.files.map_read(self.descriptor, size)
        self.read = lambda count, position: view[position : position + count]

    def seek(self, index: Index, entry: int) -> None:
        """Move to the first frame of an index entry."""
        self.position = index.positions[entry]
        self.offset = self.base + index.offsets[entry]
        self.chain = index.chains[entry]

    def close(self) -> None:
        """Close the descriptor; a mapping stays valid for its views."""
        if self.descriptor >= 0:
            descriptor, self.descriptor = self.descriptor, -1
            self.files.close(descriptor)
