"""Scan of a damaged segment: the runs of valid frames in it, and the holes between them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from tailrace.disk.codec import CodecError
from tailrace.disk.columns import columns
from tailrace.disk.frame import HEADER_BYTES as FRAME_HEADER_BYTES
from tailrace.disk.frame import Header, body_fits, crc32c, read_header, salt_chain
from tailrace.disk.segment import HEADER_BYTES, Found, Index, Read, find_magic, walk, whole_groups
from tailrace.limits import OFFSET_MAX

_CRC_AT = FRAME_HEADER_BYTES - 4


class FrameRun(NamedTuple):
    """Consecutive whole frames: where they are, the offsets they hold (relative), and the first one's chain."""

    position: int
    stop: int
    first: int
    after: int
    chain: int
    records: int
    min_time: int
    max_time: int


class Hole(NamedTuple):
    """Bytes that are no frames, and the offsets (relative) that are missing with them, perhaps none."""

    position: int
    stop: int
    first: int
    after: int
    reason: str


class Anchor(NamedTuple):
    """A place confirmed by something other than the frames: a frame there has this offset and this chain."""

    offset: int
    position: int
    chain: int


class ChainReach(NamedTuple):
    """The end of the frames after damage: position, offset (relative), chain, and where the last of them is."""

    position: int
    offset: int
    chain: int
    last: int


def reach_after(read: Read, salt: int, stop: int) -> ChainReach | None:
    """Return where the last whole group of frames after damage in a segment ends; None if there is none."""
    for run in reversed(SegmentScan(read, stop, OFFSET_MAX, (), Index(0)).after_damage(salt_chain(salt))):
        reached = None
        for group in whole_groups(walk(read, run.position, run.first, run.chain, run.stop, bodies=False)):
            last = group[-1]
            header = last.header
            reached = ChainReach(last.position + header.size, header.base + header.span, header.crc, last.position)
        if reached is not None:
            return reached
    return None


def is_decodable(found: Found) -> str | None:
    """Return what is wrong with the columns of a frame whose checksums are right, or None."""
    if found.header.codec or found.header.placeholder:
        # A compressed body is only checked by its checksum: the package for it need not be installed.
        return None
    try:
        columns(found.header, found.body, 0)
    except CodecError as error:
        return f"its records cannot be decoded: {error}"
    return None


class SegmentScan:
    """The scan of one segment: frames up to the position `stop` that hold offsets (relative) below `span`."""

    def __init__(self, read: Read, stop: int, span: int, anchors: Sequence[Anchor], index: Index) -> None:
        self.read = read
        self.stop = stop
        self.span = span
        self.anchors = {anchor.position: anchor for anchor in anchors}
        # Takes in the frames of the first run: for a segment without damage these are all.
        self.index = index
        self.pieces: list[FrameRun | Hole] = []
        self.undecodable: str | None = None
        # Where confirmed frames begin, while frames are taken that only their own checksums confirm.
        self.trusted: Anchor | None = None
        # Whether it is unknown up to where there were records.
        self.endless = False

    @property
    def whole(self) -> bool:
        """Whether there is one run and nothing else."""
        return not any(isinstance(piece, Hole) for piece in self.pieces)

    def run(self, chain: int | None) -> list[FrameRun | Hole]:
        """Return all runs and holes in order; without a chain the first frame's own is used."""
        here = Anchor(0, HEADER_BYTES, self._first_chain() if chain is None else chain)
        while here.offset < self.span:
            here = self._follow(here)
            if here.offset < self.span:
                here = self._skip_hole(here)
        return self.pieces

    def after_damage(self, chain: int) -> list[FrameRun]:
        """Return the runs after the first damage, if it is unknown up to where there were records."""
        self.endless = True
        return [piece for piece in self.run(chain)[1:] if isinstance(piece, FrameRun)]

    def _first_chain(self) -> int:
        header = read_header(self._bytes(FRAME_HEADER_BYTES, HEADER_BYTES))
        return 0 if header is None else header.chain

    def _bytes(self, count: int, position: int) -> memoryview:
        return memoryview(self.read(count, position))[:count]

    # Valid frames.

    def _follow(self, here: Anchor) -> Anchor:
        """Take the consecutive valid frames, and return the place after them."""
        limit, stop = (self.trusted.offset, self.trusted.position) if self.trusted else (self.span, self.stop)
        offset, position, chain = here
        records, low, high = 0, 0, 0
        first_run = not self.pieces
        self.undecodable = None
        for found in walk(self.read, position, offset, chain, stop, bodies=True):
            header = found.header
            if offset + header.span > limit:
                break
            self.undecodable = is_decodable(found)
            if self.undecodable is not None:
                break
            low = header.min_time if position == here.position else min(low, header.min_time)
            high = header.max_time if position == here.position else max(high, header.max_time)
            if first_run:
                self.index.add_frame(header)
            offset, position, chain = offset + header.span, found.position + header.size, header.crc
            records += header.count
        if position > here.position:
            self.pieces.append(FrameRun(here.position, position, here.offset, offset, here.chain, records, low, high))
        return Anchor(offset, position, chain)

    # Holes.

    def _skip_hole(self, here: Anchor) -> Anchor:
        """Record the hole that begins here, and return where frames continue."""
        reason = self._reason(here)
        found = self._damaged_body(here) or self._search(here)  # rule: frames after damage
        if found is None:
            found, self.trusted = self.trusted, None
        if found is None or found.offset > self.span:
            # Nothing, or only an anchor beyond the offsets of this scan.
            found = Anchor(self.span, self.stop, 0)
        # A break in the chain at which no offset is missing is a hole too: no reader can read across it.
        self.pieces.append(Hole(here.position, max(found.position, here.position), here.offset, found.offset, reason))
        if self.trusted is not None and found.offset >= self.trusted.offset:
            self.trusted = None
        return found

    def _reason(self, here: Anchor) -> str:
        if self.undecodable is not None:
            return self.undecodable
        head = self._bytes(FRAME_HEADER_BYTES, here.position)
        if here.position >= self.stop or len(head) < FRAME_HEADER_BYTES:
            return "the file ends here"
        header = read_header(head)
        if header is None:
            return "the checksum of a frame's header does not fit"
        if (header.base, header.chain) != (here.offset, here.chain):
            return "a frame does not follow from the one before it"
        if here.position + header.length > self.stop:
            return "the file ends in the middle of a frame"
        return "the checksum of a frame's body does not fit"

    def _damaged_body(self, here: Anchor) -> Anchor | None:
        """Return the place after a frame with a valid header and a damaged body: its header says where it ends."""
        header = read_header(self._bytes(FRAME_HEADER_BYTES, here.position))
        if header is None or (header.base, header.chain) != (here.offset, here.chain):
            return None
        after = Anchor(here.offset + header.span, here.position + header.size, header.crc)
        limit = self.trusted.offset if self.trusted else self.span
        return after if after.offset <= limit and here.position + header.length <= self.stop else None

    def _search(self, here: Anchor) -> Anchor | None:
        """Return the next frame that may be taken; `trusted` is set if a later one is known to be better."""
        links = self._links(here)
        stop = self.trusted.position if self.trusted else self.stop
        limit = self.trusted.offset if self.trusted else self.span
        loose: Anchor | None = None
        leftover = False
        position = find_magic(self._bytes, here.position, stop)
        while position >= 0:
            header = self._candidate(position, limit, stop)
            if header is None:
                position = find_magic(self._bytes, position + 8, stop)
                continue
            found = Anchor(header.base, position, header.chain)
            confirmed = found.offset >= here.offset and self._is_confirmed(found, stop)
            # The frame of the first missing offset is here or nowhere. A later frame that claims this offset is either
            # bytes of a value, such as a segment file, in the damaged frame here, or a leftover of a dead writer. Only
            # if something else confirms it is it the record, and the frames before it are not what was written.
            nearest = here.offset + (not confirmed and (self.endless or position > here.position))
            if found.offset < nearest:
                leftover = leftover or (found.offset == here.offset and loose is None)
                position = find_magic(self._bytes, position + header.size, stop)
                continue
            if self.trusted is None and found.chain in links:
                # Its chain follows from the damaged frame itself, so everything before it is bytes of that frame.
                return found
            if self.trusted is not None or confirmed:
                return self._prefer(loose, found)
            loose = loose or found
            position = find_magic(self._bytes, self._end_of(found, stop), stop)
        if self.trusted is not None or (self.endless and leftover):
            # A frame that breaks the chain without a missing offset is no sign of missing records: leftovers of a dead
            # writer look like that where others have written since.
            return None
        anchor = self._anchor_after(here)
        return self._prefer(loose, anchor) if anchor is not None else loose

    def _prefer(self, loose: Anchor | None, better: Anchor) -> Anchor:
        """Return the frames that only confirm themselves, if they end before the better ones begin."""
        if loose is None or self.trusted is not None or loose.offset >= better.offset:
            return better
        self.trusted = better
        return loose

    def _links(self, here: Anchor) -> set[int]:
        """Return the possible chains of the frame after a damaged one: the checksum in it or of it, if one is valid."""
        head = bytes(self._bytes(FRAME_HEADER_BYTES, here.position))
        if len(head) < FRAME_HEADER_BYTES or not any(head) or read_header(head) is not None:
            # There is no damaged frame: a successor of a whole frame that does not fit belongs to the log as little as
            # that.
            return set()
        return {int.from_bytes(head[_CRC_AT:], "little"), crc32c(head[:_CRC_AT])}

    def _candidate(self, position: int, limit: int, stop: int) -> Header | None:
        """Return the header at a position, if its frame is whole and ends before the known place."""
        header = read_header(self._bytes(FRAME_HEADER_BYTES, position))
        if header is None or header.base + header.span > limit or position + header.length > stop:
            return None
        whole = self._bytes(header.size, position)
        return header if body_fits(whole, 0, header) else None

    def _is_confirmed(self, first: Anchor, stop: int) -> bool:
        """Return whether anything confirms one of the consecutive frames from here."""
        end, chain = first.position, first.chain
        for found in walk(self.read, first.position, first.offset, first.chain, stop, bodies=False):
            if self._confirms(found.position, found.header.chain):
                return True
            end, chain = found.position + found.header.size, found.header.crc
        return self._confirms(end, chain)

    def _end_of(self, first: Anchor, stop: int) -> int:
        """Return where the consecutive whole frames from here end; a damaged one may claim to extend over others."""
        end = first.position + 8
        for found in walk(self.read, first.position, first.offset, first.chain, stop, bodies=True):
            end = found.position + found.header.size
        return end

    def _confirms(self, position: int, chain: int) -> bool:
        anchor = self.anchors.get(position)
        return anchor is not None and anchor.chain == chain

    def _anchor_after(self, here: Anchor) -> Anchor | None:
        """Return the first known place after this one."""
        later = [each for each in self.anchors.values() if each.position > here.position and each.offset > here.offset]
        return min(later, key=lambda each: each.position, default=None)
