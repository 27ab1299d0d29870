"""What a repair knows of a partition and plans for it, as plain values."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from tailrace.disk.journal import EntryPart
from tailrace.disk.salvage.scan import FrameRun, Hole

if TYPE_CHECKING:
    from tailrace.disk.catalog import SlotPlace
    from tailrace.disk.tails import State


class Facts(NamedTuple):
    """What is known of a slot: offsets below `end` were promised or published, those below `start` were trimmed.

    `state` is None if no state block is valid. `suspect` says why the newest segment is not reliable as it is, whatever
    its bytes look like; it is empty if it is reliable.
    """

    end: int
    start: int
    state: State | None
    suspect: str = ""
    # The log was not recovered yet: the tails say nothing about the newest segment, which is not an error.
    recovering: bool = False
    # A sync was interrupted: the page cache may be all there is, and has precedence over the disk.
    cached: bool = False
    # The state may name a position up to which the segment was not whole, so it counts only if its last frame is there.
    doubtful: bool = False
    # The tails were lost or damaged, not only of another boot: whole frames after damage count as records.
    blind: bool = False
    # `end` is a word without a checksum: it counts as far as the segments have room for it.
    bounded: bool = False


class LostRange(NamedTuple):
    """Offsets (`first` to `last`, inclusive) that cannot be read any more, and where their bytes were."""

    first: int
    last: int
    file: str
    position: int
    reason: str


class SegmentPlan(NamedTuple):
    """A segment to rewrite: the offsets from `base` up to `after`, out of the pieces of a file."""

    base: int
    after: int
    # The file to read; None if nothing is left of the segment.
    path: str | None
    writes: tuple[EntryPart, ...]
    pieces: tuple[FrameRun | Hole, ...]
    why: str
    created: int = 0
    cached: bool = False
    # How often it was rewritten: readers refuse one that is older than the marks of its topic say.
    rewrites: int = 0
    # The largest time before it and the smallest after it, if there are records.
    time_before: int | None = None
    time_after: int | None = None
    # The producer table of its footer, as stored.
    producers: bytes = b""

    @property
    def lost(self) -> list[LostRange]:
        """The ranges that its placeholders will name."""
        return [
            LostRange(self.base + hole.first, self.base + hole.after - 1, self.path or "", hole.position, hole.reason)
            for hole in self.pieces
            if isinstance(hole, Hole) and hole.after > hole.first
        ]


class PartitionPlan(NamedTuple):
    """What is to be done to one partition; nothing if it is sound."""

    place: SlotPlace
    end: int
    start: int
    segments: tuple[SegmentPlan, ...] = ()
    # Whether its slot gets a new state, because its newest segment is replaced.
    reset: bool = False
    # Files to move into quarantine as they are, and leftovers to remove.
    aside: tuple[str, ...] = ()
    leftovers: tuple[str, ...] = ()
    why: tuple[str, ...] = ()
    # Files under the name of another segment, each with the base in its header.
    misnamed: tuple[tuple[str, int], ...] = ()
    # Whether its directory is to be created: without it nothing can be appended.
    homeless: bool = False

    @property
    def sound(self) -> bool:
        """Whether there is nothing to do."""
        return not (self.segments or self.reset or self.aside or self.leftovers or self.misnamed or self.homeless)

    @property
    def lost(self) -> list[LostRange]:
        """Everything that will be lost; what was trimmed is not."""
        found = [lost for segment in self.segments for lost in segment.lost]
        return [lost._replace(first=max(lost.first, self.start)) for lost in found if lost.last >= self.start]
