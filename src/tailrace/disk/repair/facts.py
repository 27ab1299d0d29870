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

    `state` is None when no state block can be believed. `suspect` says in words why the newest segment is not to be
    relied on as it is, whatever its bytes look like; it is empty when it is.
    """

    end: int
    start: int
    state: State | None
    suspect: str = ""
    # The log was not recovered yet: the tails say nothing of the newest segment, and nothing is wrong with that.
    recovering: bool = False
    # A sync was interrupted: what the cache shows may be all there is, and is worth more than what the disk has.
    cached: bool = False
    # The state may speak of a place at which the segment was not whole, so it counts if its last frame is there.
    doubtful: bool = False
    # The tails were lost or damaged, not only of another boot: whole frames behind damage count as records.
    blind: bool = False
    # `end` is a word that nothing checks: it counts as far as the segments can hold so much.
    bounded: bool = False


class LostRange(NamedTuple):
    """Offsets (`first` to `last`, inclusive) that cannot be read any more, and where their bytes lay."""

    first: int
    last: int
    file: str
    position: int
    reason: str


class SegmentPlan(NamedTuple):
    """A segment that is written anew: the offsets from `base` up to `after`, out of the pieces of a file."""

    base: int
    after: int
    # The file that is read; None when nothing is left of the segment.
    path: str | None
    writes: tuple[EntryPart, ...]
    pieces: tuple[FrameRun | Hole, ...]
    why: str
    created: int = 0
    cached: bool = False
    # The largest time before it and the smallest behind it, where there are records.
    before: int | None = None
    behind: int | None = None

    @property
    def lost(self) -> list[LostRange]:
        """What the placeholders in it will stand for."""
        return [
            LostRange(self.base + hole.first, self.base + hole.after - 1, self.path or "", hole.position, hole.reason)
            for hole in self.pieces
            if isinstance(hole, Hole) and hole.after > hole.first
        ]


class PartitionPlan(NamedTuple):
    """What is to be done to one partition; nothing, when it is sound."""

    place: SlotPlace
    end: int
    start: int
    segments: tuple[SegmentPlan, ...] = ()
    # Whether its slot gets a new state, because its newest segment is another one then.
    reset: bool = False
    # Files to be moved into quarantine as they are, and leftovers to be removed.
    aside: tuple[str, ...] = ()
    leftovers: tuple[str, ...] = ()
    why: tuple[str, ...] = ()
    # Files under the name of another segment, each with the base that its header says.
    misnamed: tuple[tuple[str, int], ...] = ()
    # Whether its directory is to be made: without it nothing can be appended.
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
