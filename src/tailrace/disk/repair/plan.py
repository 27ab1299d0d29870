"""The plan of a repair: what each partition has, what it should have, and which of its files are to be rewritten."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import pairwise
from typing import TYPE_CHECKING

from tailrace.disk.frame import HEADER_BYTES as FRAME_HEADER_BYTES
from tailrace.disk.frame import read_header, salt_chain
from tailrace.disk.journal import ADOPT, WRITE, EntryPart, JournalEntry
from tailrace.disk.repair.facts import Facts, PartitionPlan, SegmentPlan
from tailrace.disk.salvage.scan import Anchor, FrameRun, Hole, SegmentScan, reach_after
from tailrace.disk.salvage.source import READ_BYTES, PatchedFile, ends_in, footer_salt
from tailrace.disk.segment import (
    BASE_UNKNOWN,
    HEADER_BYTES,
    REWRITES_UNKNOWN,
    Index,
    SegmentHeader,
    is_unfinished_rewrite,
    read_footer,
    read_segment_header,
    segment_base,
    segment_name,
    walk,
    whole_groups,
)
from tailrace.limits import FRAME_RECORDS_MAX
from tailrace.names import STAGED_SUFFIX

if TYPE_CHECKING:
    from tailrace.disk.catalog import SlotPlace
    from tailrace.disk.files import Files
    from tailrace.disk.tails import State

NEW_SUFFIX = ".new"
# Suffix of a segment on its way from a wrong name to its own: the file of that name may have to be moved first.
MOVED_SUFFIX = ".moved"
# Staged segments that were not committed for this long are leftovers; younger ones may still be committed.
STAGED_AGE_US = 3_600_000_000


class Planner:
    """Planner of partitions, one by one; it writes nothing."""

    def __init__(
        self,
        files: Files,
        path: str,
        entries: Iterable[JournalEntry],
        report_progress: Callable[[int], None],
        *,
        cached: bool = False,
    ) -> None:
        self.files = files
        self.path = path
        # Whether the page cache is kept: it is what other processes read.
        self.cached = cached
        self.report_progress = report_progress
        self.parts: dict[tuple[int, int], list[EntryPart]] = {}
        for entry in entries:
            for part in entry.parts:
                self.parts.setdefault((part.slot, part.incarnation), []).append(part)

    def plan(self, place: SlotPlace, facts: Facts) -> PartitionPlan:
        """Return what is to be done to the partition of a slot."""
        return _Partition(self, place, facts._replace(cached=facts.cached or self.cached)).plan()


class _Partition:
    def __init__(self, planner: Planner, place: SlotPlace, facts: Facts) -> None:
        self.files = planner.files
        self.report_progress = planner.report_progress
        self.place = place
        self.facts = facts
        self.owner = (place.topic_id, place.partition)
        self.directory = f"{planner.path}/{place.directory}"
        self.parts = planner.parts.get((place.slot, place.incarnation), [])
        self.homeless = self.files.stat(self.directory) is None
        self.names = [] if self.homeless else self.files.list_directory(self.directory)
        # By base the file of the segment: a staged one if an unfinished commit assigned it.
        self.sources: dict[int, str] = {
            base: f"{self.directory}/{name}" for name in self.names if (base := segment_base(name)) is not None
        }
        self.why: list[str] = []
        self.segments: list[SegmentPlan] = []
        # By base the smallest and the largest time of the records in a segment.
        self.times: dict[int, tuple[int, int]] = {}
        self.aside: list[str] = []
        self.misnamed: list[tuple[str, int]] = []
        self.empty: list[str] = []
        self.reset = bool(facts.suspect)
        # Whether the newest segment is an empty one after the end: then no other is the one that the state names.
        self.has_empty = False
        self.end = facts.end

    def plan(self) -> PartitionPlan:
        if self.facts.suspect:
            self.why.append(self.facts.suspect)
        if self.homeless:
            self.why.append("its directory is missing")
        self._name_rightly()
        self._adopt()
        self._find_end()
        bases = self._used_bases()
        first = min(bases, default=self.end)
        expected = self.facts.start
        if first > expected:
            self._miss(expected, first, "its first segments are missing" if bases else "its segments are missing")
        for base, following in pairwise([*bases, self.end]):
            after = self._look_at(base, following)
            if after < following:
                self._miss(after, following, f"a segment is missing: {segment_name(after)}")
        if self.reset and not bases and first == self.end:
            self._keep_end()
        leftovers = tuple(self._leftovers())
        segments = tuple(self._between(each) for each in sorted(self.segments, key=lambda each: each.base))
        return PartitionPlan(
            self.place, self.end, self.facts.start, segments, self.reset, tuple(self.aside), leftovers, tuple(self.why),
            tuple(self.misnamed), self.homeless,
        )  # fmt: skip

    def _between(self, segment: SegmentPlan) -> SegmentPlan:
        """Return the segment with the times of its neighbours, for placeholders at its edges."""
        before = [self.times[base][1] for base in self.times if base < segment.base]
        after = [self.times[base][0] for base in sorted(self.times) if base > segment.base]
        return segment._replace(time_before=max(before, default=None), time_after=after[0] if after else None)

    # The files of the partition.

    def _name_rightly(self) -> None:
        """Assign every segment to the base in its header; one whose place another holds rightfully is put aside."""
        wrong = [
            (path, said)
            for base, path in sorted(self.sources.items())
            if (said := self._said(path)) >= 0 and said != base
        ]
        for path, _ in wrong:
            self.sources = {base: each for base, each in self.sources.items() if each != path}
        # Files that a dead repair had not finished renaming.
        wrong += [
            (f"{self.directory}/{name}", base)
            for name in self.names
            if name.endswith(MOVED_SUFFIX) and (base := segment_base(name.removesuffix(MOVED_SUFFIX))) is not None
        ]
        for path, said in wrong:
            name = path.rpartition("/")[2]
            if said in self.sources:
                self.aside.append(path)
                self.why.append(f"{name} says that its first record is {said}, where another segment stands")
            else:
                self.sources[said] = path
                self.misnamed.append((path, said))
                self.why.append(f"{name} says that its first record is {said}, and gets the name of that")

    def _said(self, path: str) -> int:
        """Return the base in a header, if it is one of this partition."""
        descriptor = self.files.open(path)
        try:
            header = read_segment_header(self.files, descriptor)
        finally:
            self.files.close(descriptor)
        return BASE_UNKNOWN if header is None or (header.topic_id, header.partition) != self.owner else header.base

    def _adopt(self) -> None:
        """Assign staged segments to the base that a commit named, if they were not renamed."""
        for part in self.parts:
            staged = part.data.decode() if part.kind == ADOPT else ""
            if staged and staged in self.names and part.base >= self.facts.start:
                self.sources[part.base] = f"{self.directory}/{staged}"
                self.end = max(self.end, part.end)
                self.reset = True
                self.why.append(f"a commit was not finished here: {segment_name(part.base)}")

    def _find_end(self) -> None:
        """Find where the partition ends: not below what is promised, nor below what its newest segment shows."""
        state = self.facts.state
        if self.facts.bounded:
            self.end = min(self.end, self._end_possible())
        for part in self.parts:
            path = self.sources.get(part.base)
            if path is None:
                # Trimmed, or missing: then what was committed to it is missing too.
                self.end = max(self.end, part.end if part.base >= self.facts.start else 0)
            elif part.kind == WRITE and self._salt_of(path) == part.salt:
                self.end = max(self.end, part.end)
        if state is not None and self._is_named(state):
            return
        bases = sorted(self.sources)
        while bases and bases[-1] >= self.end and self._measure(bases[-1]) == bases[-1]:
            # It is empty: an unfinished creation, or the successor of the last one.
            bases.pop()
        if bases:
            self.end = max(self.end, self._measure(bases[-1]))
        if self.facts.recovering:
            return
        self.reset = True
        if not self.facts.suspect:
            self.why.append("its state in the tails is not that of its newest segment")

    def _end_possible(self) -> int:
        """Return the largest end that the newest segment has room for."""
        if not self.sources:
            return 0
        base = max(self.sources)
        stat = self.files.stat(self.sources[base])
        return base + (0 if stat is None else stat.size // FRAME_HEADER_BYTES * FRAME_RECORDS_MAX)

    def _is_named(self, state: State) -> bool:
        """Return whether the newest segment is the one that the state names."""
        if not state.salt:
            # A file as long as a header was created, and its writer died before it named it in the state.
            return state.end == 0 and not any(self._is_longer(path) for path in self.sources.values())
        path = self.sources.get(state.base)
        return path is not None and self._salt_of(path) == state.salt

    def _salt_of(self, path: str) -> int:
        descriptor = self.files.open(path)
        try:
            header = read_segment_header(self.files, descriptor)
            return header.salt if header is not None else footer_salt(self.files, descriptor) or 0
        finally:
            self.files.close(descriptor)

    def _measure(self, base: int) -> int:
        """Return the end of the consecutive frames of a segment, or of its footer if it has one."""
        source = PatchedFile(self.files, self.sources[base], cached=self.facts.cached)
        try:
            header = read_segment_header(self.files, source.descriptor)
            if header is not None and (header.topic_id, header.partition) != self.owner:
                # The contents of another partition's segment say nothing about the end of this one.
                return base
            salt = header.salt if header is not None else footer_salt(self.files, source.descriptor)
            footer = read_footer(self.files, source.descriptor, salt) if salt else None
            if footer is not None:
                return base + footer.span
            first = read_header(source.read(FRAME_HEADER_BYTES, HEADER_BYTES))
            chain = salt_chain(salt) if salt else (first.chain if first is not None else 0)
            after = 0
            for group in whole_groups(walk(source.read, HEADER_BYTES, 0, chain, source.size, bodies=True)):
                after = group[-1].header.base + group[-1].header.span
            reach = reach_after(source.read, salt, source.size) if salt and self.facts.blind else None
            return base + (after if reach is None else reach.offset)
        finally:
            source.close()

    def _used_bases(self) -> list[int]:
        """Return the segments that hold offsets below the end, oldest first; others are quarantined or left alone."""
        state = self.facts.state
        for base in sorted(self.sources):
            path = self.sources[base]
            if base < self.end:
                continue
            if base == self.end and state is not None and state.base == base and self._salt_of(path) == state.salt:
                # The empty segment for the next append; it is dropped if the state is rewritten.
                if self.reset:
                    self._put_aside(path)
                else:
                    self.has_empty = True
            else:
                self._put_aside(path)
        used = self._joining(sorted(base for base in self.sources if base < self.end))
        # Without those that were trimmed already; a vacuum may not have removed them yet.
        return [
            base
            for base, following in pairwise([*used, self.end])
            if following > self.facts.start or following == self.end
        ]

    def _joining(self, bases: list[int]) -> list[int]:
        """Return the consecutive segments; files put between them, like from a copy in use elsewhere, are put aside.

        A footer tells where the next one begins. If two of them claim the same offsets, the one counts that begins
        where the one before it ends, and ends where another begins; else the one that leads to the newest.
        """
        after = {base: self._sealed_end(base) for base in bases}
        if all(after[base] in (None, following) for base, following in pairwise([*bases, self.end])):
            return bases
        starts = {*bases, self.end}
        leading = {self.end}
        state = self.facts.state
        if state is not None and self._is_named(state):
            leading.add(state.base)
        for base in reversed(bases):
            if after[base] in leading:
                leading.add(base)
        used: list[int] = []
        # Where the next one has to begin; None if the last one has no footer.
        reach: int | None = None
        for base in bases:
            if reach is not None and base < reach:
                self._leave_out(base)
                continue
            stop = after[base]
            within = [each for each in bases if stop is not None and base < each < stop]
            joined = reach is None or base == reach
            if stop is None and state is not None and base == state.base and base in leading:
                # The newest one, which has no footer yet: nothing follows it.
                stop = self.end
            elif within and not (joined and stop in starts):
                better = [each for each in within if each in leading]
                if better and not joined:
                    self._leave_out(base)
                    continue
                stop = better[0] if better else stop
            used.append(base)
            reach = stop
        return used

    def _sealed_end(self, base: int) -> int | None:
        """Return where a segment of this partition ends by its footer."""
        descriptor = self.files.open(self.sources[base])
        try:
            header = read_segment_header(self.files, descriptor)
            if header is not None and (header.topic_id, header.partition) != self.owner:
                return None
            salt = header.salt if header is not None else footer_salt(self.files, descriptor)
            footer = read_footer(self.files, descriptor, salt) if salt else None
            return None if footer is None else base + footer.span
        finally:
            self.files.close(descriptor)

    def _leave_out(self, base: int) -> None:
        path = self.sources.pop(base)
        self.aside.append(path)
        self.why.append(f"{path.rpartition('/')[2]} claims offsets that another segment has")

    def _is_longer(self, path: str) -> bool:
        stat = self.files.stat(path)
        return stat is not None and stat.size > HEADER_BYTES

    def _put_aside(self, path: str) -> None:
        """Quarantine a file after the end; an empty one is a leftover to remove."""
        if not self._is_longer(path):
            return
        if self._has_bytes(path):
            self.aside.append(path)
            self.why.append(f"{path.rpartition('/')[2]} lies after the end of the partition")
        else:
            self.empty.append(path)

    def _has_bytes(self, path: str) -> bool:
        """Return whether anything but zeros follows the header."""
        source = PatchedFile(self.files, path, cached=self.facts.cached)
        try:
            return any(
                any(source.read(READ_BYTES, position)) for position in range(HEADER_BYTES, source.size, READ_BYTES)
            )
        finally:
            source.close()

    def _leftovers(self) -> Iterable[str]:
        yield from self.empty
        adopted = {path.rpartition("/")[2] for path in self.sources.values()}
        for name in self.names:
            path = f"{self.directory}/{name}"
            if name.endswith(f".seg{NEW_SUFFIX}"):
                self.why.append(f"{name} was left by a repair that died")
                yield path
            elif is_unfinished_rewrite(name):
                self.why.append(f"{name} was left by a rewrite that died")
                yield path
            elif name.endswith(STAGED_SUFFIX) and name not in adopted and self._is_old(path):
                self.why.append(f"{name} was staged and never committed")
                yield path

    def _is_old(self, path: str) -> bool:
        descriptor = self.files.open(path)
        try:
            header = read_segment_header(self.files, descriptor)
        finally:
            self.files.close(descriptor)
        return header is not None and header.created < self.files.now_us() - STAGED_AGE_US

    # One segment.

    def _look_at(self, base: int, following: int) -> int:
        """Read a segment, note what is to be done to it, and return where it ends."""
        source = PatchedFile(self.files, self.sources[base], cached=self.facts.cached)
        try:
            header = read_segment_header(self.files, source.descriptor)
            if header is not None and (header.topic_id, header.partition) != self.owner:
                self.aside.append(source.path)
                self._miss(base, following, f"{segment_name(base)} belongs to another partition", path=source.path)
                return following
            return self._scan(source, header, base, following)
        finally:
            self.report_progress(source.size)
            source.close()

    def _scan(self, source: PatchedFile, header: SegmentHeader | None, base: int, following: int) -> int:
        newest = following == self.end and not self.has_empty
        salt = header.salt if header is not None else footer_salt(self.files, source.descriptor)
        footer = read_footer(self.files, source.descriptor, salt) if salt else None
        writes = [part for part in self.parts if part.kind == WRITE and (part.base, part.salt) == (base, salt)]
        source.overlay(writes)
        stop, span, anchors = self._extent(source, footer, base, following, salt, writes)
        index = Index(salt or 0)
        scan = SegmentScan(source.read, stop, span, anchors, index)
        scan.run(salt_chain(salt) if salt else None)
        runs = [piece for piece in scan.pieces if isinstance(piece, FrameRun)]
        if runs:
            self.times[base] = (min(run.min_time for run in runs), max(run.max_time for run in runs))
        wrong = self._wrong(header, footer, index, scan, base, following)
        # Before a recovery this is normal: it writes what the journal holds into the segments.
        if not self.facts.recovering and any(  # rule: journal written over segment
            self.files.read(source.descriptor, len(part.data), part.position) != part.data for part in writes
        ):
            wrong.append("the journal holds bytes of a commit that it does not have, or has otherwise")
        staged = source.path.endswith(STAGED_SUFFIX)
        if wrong or staged or (newest and self.reset):
            why = "; ".join(wrong) or f"{segment_name(base)} is rewritten"
            self.why += [f"{segment_name(base)}: {each}" for each in wrong]
            created = header.created if header is not None else 0
            # Only a rewrite, or an earlier repair, leaves a segment with fewer records than offsets.
            unknown = REWRITES_UNKNOWN if index.records < span else 0
            made = SegmentPlan(
                base, base + span, source.path, tuple(writes), tuple(scan.pieces), why, created, self.facts.cached,
                header.rewrites if header is not None else unknown,
                producers=b"" if footer is None else footer.producers,
            )  # fmt: skip
            self.segments.append(made)
            self.reset = self.reset or newest
        return base + span

    def _extent(
        self,
        source: PatchedFile,
        footer: Index | None,
        base: int,
        following: int,
        salt: int | None,
        writes: list[EntryPart],
    ) -> tuple[int, int, list[Anchor]]:
        """Return where a segment's frames end: position, offsets, and the places in it known from elsewhere."""
        if footer is not None:
            rows = zip(footer.offsets, footer.positions, footer.chains, strict=True)
            anchors = [Anchor(*row) for row in rows]
            anchors.append(Anchor(footer.span, footer.position, footer.chain))
            return footer.position, min(footer.span, following - base), anchors
        state = self.facts.state
        if (
            state is not None
            and (state.base, state.salt) == (base, salt)
            and following == self.end
            and (not self.facts.doubtful or ends_in(source, state))
        ):
            last = max(writes, key=lambda part: part.end, default=None)
            if last is not None and last.end > state.end:
                stop = last.position + len(last.data)
                return stop, last.end - base, [Anchor(last.end - base, stop, last.chain)]
            return state.position, following - base, [Anchor(state.end - base, state.position, state.chain)]
        return source.size, following - base, []

    def _wrong(
        self,
        header: SegmentHeader | None,
        footer: Index | None,
        index: Index,
        scan: SegmentScan,
        base: int,
        following: int,
    ) -> list[str]:
        """Return what is wrong with a segment, as texts."""
        wrong = []
        if header is None:
            wrong.append("its header is damaged")
        wrong += [hole.reason for hole in scan.pieces if isinstance(hole, Hole)]
        state = self.facts.state
        active = state is not None and state.active and state.base == base and following == self.end
        if footer is None:
            if not active and not (self.facts.recovering and following == self.end):
                wrong.append("its footer is damaged or missing")
        elif following > self.facts.start and scan.whole and not index.matches(footer):
            wrong.append("its footer does not fit its frames")
        elif base + footer.span > following:
            wrong.append("it reaches into the next segment")
        return wrong

    # Missing ranges.

    def _miss(self, first: int, after: int, why: str, *, path: str | None = None) -> None:
        """Plan a segment that holds nothing but a placeholder for a range."""
        self.why.append(why)
        hole = Hole(HEADER_BYTES, HEADER_BYTES, 0, after - first, why)
        path = path or f"{self.directory}/{segment_name(first)}"
        self.segments.append(SegmentPlan(first, after, path, (), (hole,), why, rewrites=REWRITES_UNKNOWN))
        self.reset = self.reset or (after == self.end and not self.has_empty)

    def _keep_end(self) -> None:
        """Plan an empty segment, whose name keeps the end of a partition without records."""
        if self.end:
            self.segments.append(SegmentPlan(self.end, self.end, None, (), (), "the partition is empty"))
