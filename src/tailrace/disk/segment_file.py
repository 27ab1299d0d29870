"""An open segment: a file of frames with a place in it; and the indexes of segments that readers share."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from tailrace.disk.frame import salt_chain
from tailrace.disk.segment import HEADER_BYTES, Index, Read, read_segment_header, reading
from tailrace.limits import SEGMENT_INDEXES_MAX

if TYPE_CHECKING:
    from tailrace.disk.files import Files

# The partitions whose listing is remembered.
LISTINGS_MAX = 256


class Indexes:
    """Indexes that the readers of a process share: of sealed segments, and of active ones as far as they were seen."""

    def __init__(self) -> None:
        # Reentrant, as a signal handler may read while its own thread is in here.
        self.mutex = threading.RLock()
        self.sealed: dict[tuple[str, int, int], Index] = {}
        self.active: dict[str, Index] = {}
        # The bases of a partition's segments as somebody listed them last: none is missing between the first and the
        # last, though older ones may be gone and newer ones made since.
        self.bases: dict[str, list[int]] = {}

    def keep_bases(self, path: str, bases: list[int]) -> None:
        """Remember a listing, forgetting the oldest when there are too many."""
        with self.mutex:
            self.bases.pop(path, None)
            self.bases[path] = bases
            while len(self.bases) > LISTINGS_MAX:
                del self.bases[next(iter(self.bases))]

    def keep(self, key: tuple[str, int, int], index: Index) -> None:
        """Remember a sealed segment's index, forgetting the oldest when there are too many."""
        with self.mutex:
            self.sealed[key] = index
            while len(self.sealed) > SEGMENT_INDEXES_MAX:
                del self.sealed[next(iter(self.sealed))]

    def forget(self, key: tuple[str, int, int]) -> None:
        """Drop a sealed index that turned out not to be the last word."""
        with self.mutex:
            self.sealed.pop(key, None)


class SegmentFile:
    """One open segment file, and a place in it: the next frame lies at `position` and must carry `chain`."""

    descriptor = -1

    def __init__(self, files: Files, path: str, base: int, owner: tuple[int, int], *, mapped: bool) -> None:
        self.files = files
        self.path = path
        self.base = base
        self.descriptor = files.open(path)
        try:
            header = read_segment_header(files, self.descriptor)
        except BaseException:
            self.close()
            raise
        if header is not None and not header.belongs(*owner, base):
            # A file that got here by hand: its frames would fit, and are another partition's, or of other offsets.
            header = None
        self.salt = header.salt if header else 0
        self.created = header.created if header else 0
        self.index: Index | None = None
        self.mapped = mapped
        self.read: Read = reading(files, self.descriptor)
        self.position = HEADER_BYTES
        self.offset = base
        self.chain = salt_chain(self.salt)

    def use_mapping(self) -> None:
        """Read a sealed segment through memory; an active one may be cut at its seal, which a mapping cannot bear."""
        size = self.files.stat_open(self.descriptor).size
        view = self.files.map_read(self.descriptor, size)
        self.read = lambda count, position: view[position : position + count]

    def seek(self, index: Index, entry: int) -> None:
        """Go to the start of an index entry's stretch."""
        self.position = index.positions[entry]
        self.offset = self.base + index.offsets[entry]
        self.chain = index.chains[entry]

    def close(self) -> None:
        """Give the descriptor back; a mapping lives on with its views."""
        if self.descriptor >= 0:
            descriptor, self.descriptor = self.descriptor, -1
            self.files.close(descriptor)
