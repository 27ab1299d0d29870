"""The writing of a repair: side files, rewritten segments, placeholders; every step can be repeated."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, NamedTuple

from tailrace.disk.failures import Tolerating, by_system
from tailrace.disk.frame import MORE, Header, Prepared, place_one, prepare_lost, salt_chain
from tailrace.disk.partition import salted
from tailrace.disk.repair.facts import PartitionPlan, SegmentPlan
from tailrace.disk.repair.plan import MOVED_SUFFIX, NEW_SUFFIX
from tailrace.disk.salvage.scan import FrameRun, Hole
from tailrace.disk.salvage.source import PatchedFile
from tailrace.disk.segment import HEADER_BYTES, Found, Index, pack_header, segment_base, segment_name, walk
from tailrace.disk.tails import HAS_SEGMENT, SEALED, State
from tailrace.errors import CorruptionError, DurabilityError
from tailrace.limits import LOST_SPAN_MAX
from tailrace.names import STAGED_SUFFIX

if TYPE_CHECKING:
    from tailrace.disk.catalog import SlotPlace
    from tailrace.disk.files import Files

QUARANTINE = "quarantine"
# Exists in the directory of a log during a repair, with a line for each replaced segment: what a dead repair renamed
# may not be on disk yet, and never will be if the sync of its name failed.
UNFINISHED_NAME = "repair.unfinished"
WRITE_BYTES = 1 << 20
REASON_CHARACTERS_MAX = 500


class RewrittenSegment(NamedTuple):
    """A rewritten segment."""

    base: int
    frames: Index
    last: int
    sealed: bool


class Mender:
    """Writer of one run of a repair, under the log's exclusive lock."""

    def __init__(self, files: Files, path: str, lost_span_max: int = LOST_SPAN_MAX) -> None:
        self.files = files
        self.path = path
        self.lost_span_max = lost_span_max
        self.now_us = files.now_us()
        self.time = datetime.fromtimestamp(self.now_us / 1e6, UTC)
        self.stamp = self.time.strftime("%Y%m%dT%H%M%S.%fZ")
        self.quarantined: list[str] = []
        self.names: set[str] = set()

    # The mark of a running repair.

    def begin(self) -> None:
        """Create the mark before the first change, for the next repair if this one dies or fails."""
        self.files.close(self.files.open(f"{self.path}/{UNFINISHED_NAME}", create=True))

    def _note(self, target: str) -> None:
        """Record a segment in the mark before it is replaced."""
        descriptor = self.files.open(f"{self.path}/{UNFINISHED_NAME}", create=True)
        try:
            line = f"{target.removeprefix(f'{self.path}/')}\n".encode()
            self.files.write(descriptor, line, self.files.stat_open(descriptor).size)  # rule: replacement noted
        finally:
            self.files.close(descriptor)

    def replaced(self) -> list[str]:
        """Return the segments that an earlier repair replaced, and that still exist."""
        descriptor = self.files.open(f"{self.path}/{UNFINISHED_NAME}")
        try:
            noted = self.files.read(descriptor, self.files.stat_open(descriptor).size, 0)
        finally:
            self.files.close(descriptor)
        paths = dict.fromkeys(f"{self.path}/{line}" for line in noted.decode(errors="replace").splitlines())
        return [path for path in paths if segment_base(path[-24:]) is not None and self.files.stat(path) is not None]

    def replace_again(self, target: str) -> None:
        """Replace a segment by a copy: after a failed directory fsync the kernel may consider the old entry clean."""
        source = self.files.open(target)
        try:
            size = self.files.stat_open(source).size
            new = f"{target}{NEW_SUFFIX}"
            if self.files.stat(new) is not None:
                self.files.remove_file(new)
            self._write_file(new, (self.files.read(source, WRITE_BYTES, at) for at in range(0, size, WRITE_BYTES)))
        finally:
            self.files.close(source)
        # Every directory is synced after this.
        self.files.rename(new, target)  # rule: noted replacement repeated

    def finish(self) -> None:
        """Remove the mark."""
        if self.files.stat(f"{self.path}/{UNFINISHED_NAME}") is not None:
            self.files.remove_file(f"{self.path}/{UNFINISHED_NAME}")

    # Quarantine.

    def make_quarantine(self) -> str:
        """Return the directory of the side files, created if missing and synced."""
        directory = f"{self.path}/{QUARANTINE}"
        self.files.make_directory(directory)
        # Also if it existed: its creator may have died before its name was synced.
        self.files.sync_directory(self.path)  # rule: name of the quarantine
        return directory

    def keep_aside(self, path: str) -> str:
        """Move a file or a directory into quarantine as it is."""
        directory = self.make_quarantine()
        relative = path.removeprefix(f"{self.path}/").removeprefix("topics/")
        target = f"{directory}/{self._name(relative.replace('/', '-'))}"
        self.files.rename(path, target)
        # A rename from one directory to another is on disk as a whole.
        self.files.sync_directory(directory)  # rule: file put aside on disk
        self.quarantined.append(target)
        return target

    def copy_aside(self, path: str) -> str:
        """Copy a file into quarantine; it and its name are on disk on return."""
        directory = self.make_quarantine()
        relative = path.removeprefix(f"{self.path}/").removeprefix("topics/")
        target = f"{directory}/{self._name(relative.replace('/', '-'))}"
        source = self.files.open(path)
        try:
            size = self.files.stat_open(source).size
            self._write_file(target, (self.files.read(source, WRITE_BYTES, at) for at in range(0, size, WRITE_BYTES)))
        finally:
            self.files.close(source)
        self.files.sync_directory(directory)  # rule: copy put aside on disk
        self.quarantined.append(target)
        return target

    def _name(self, rest: str) -> str:
        """Return a name that is unused in quarantine."""
        name, number = f"{self.stamp}-{rest}", 1
        while name in self.names or self.files.stat(f"{self.path}/{QUARANTINE}/{name}") is not None:
            number += 1
            name = f"{self.stamp}-{number}-{rest}"
        self.names.add(name)
        return name

    def _write_file(self, path: str, pieces: Iterator[bytes]) -> None:
        descriptor = self.files.open(path, exclusive=True)
        with self._begun(descriptor, path):
            at = 0
            for piece in pieces:
                self.files.write(descriptor, piece, at)
                at += len(piece)
            self.sync(descriptor, path)  # rule: side file on disk

    @contextmanager
    def _begun(self, descriptor: int, path: str) -> Iterator[None]:
        """Write a file in the block; if it cannot be finished, as on a full disk, remove it."""
        try:
            yield
        except by_system():
            with Tolerating():
                self.files.remove_file(path)
            raise
        finally:
            self.files.close(descriptor)

    def sync(self, descriptor: int, path: str) -> None:
        try:
            self.files.sync_data(descriptor)
        except by_system() as error:
            raise DurabilityError(
                f"Syncing {path} failed: {error.strerror}.",
                errno=error.errno,
                path=path,
                hint="Nothing was lost by this; look at the disk, then repair again.",
            ) from error

    def _quarantine(self, place: SlotPlace, topic: str, segment: SegmentPlan, source: PatchedFile | None) -> str | None:
        """Keep the bytes of a segment's holes, and return the side file, or None if there are no such bytes."""
        holes = [hole for hole in segment.pieces if isinstance(hole, Hole)]
        kept = [] if source is None else [hole for hole in holes if min(hole.stop, source.size) > hole.position]
        if source is None or not kept:
            return None
        directory = self.make_quarantine()
        topic_directory = place.directory.removeprefix("topics/").rpartition("/")[0] or place.directory
        stem = self._name(f"{topic_directory}-{place.partition}-{segment.base}")
        at = 0
        lines: list[dict[str, Any]] = []
        for hole in holes:
            length = max(0, min(hole.stop, source.size) - hole.position)
            if not length and hole.after == hole.first:
                continue
            lines.append(
                {
                    "topic": topic, "partition": place.partition, "first": segment.base + hole.first,
                    "last": segment.base + hole.after - 1, "file": source.path.removeprefix(f"{self.path}/"),
                    "position": hole.position, "length": length, "at": at, "reason": hole.reason,
                    "time": self.time.isoformat(),
                }
            )  # fmt: skip
            at += length
        self._write_file(f"{directory}/{stem}.bytes", _bytes_of(source, kept))
        described = "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines).encode()
        self._write_file(f"{directory}/{stem}.json", iter([described]))
        self.files.sync_directory(directory)  # rule: names in the quarantine
        self.quarantined.append(f"{directory}/{stem}.bytes")
        return f"{QUARANTINE}/{stem}.bytes"

    # Segments.

    def mend(self, plan: PartitionPlan, topic: str) -> State | None:
        """Do what is planned for one partition, and return its new state, or None if it keeps the one it has."""
        files = self.files
        directory = f"{self.path}/{plan.place.directory}"
        self._make_directory(directory)
        for path in plan.aside:
            self.keep_aside(path)
        named = self._name_rightly(plan, directory)
        newest: RewrittenSegment | None = None
        written = set()
        segments = []
        for each in plan.segments:
            target = f"{directory}/{segment_name(each.base)}"
            # A missing segment under the name that a misnamed file had is not that file.
            segments.append(each._replace(path=target) if named.get(each.path or "") == target else each)
        for segment in segments:
            newest = self._rewrite(plan.place, topic, segment)
            written.add(f"{directory}/{segment_name(segment.base)}")
        for path in plan.leftovers:
            if path not in written and files.stat(path) is not None:
                files.remove_file(path)
        for segment in segments:
            # A staged file was copied; any other file that was not replaced is the only copy of its contents.
            staged = segment.path is not None and segment.path.endswith(STAGED_SUFFIX)
            if staged and segment.path is not None and files.stat(segment.path) is not None:
                files.remove_file(segment.path)
        if not plan.reset:
            return None
        return self._state(plan, newest)

    def _name_rightly(self, plan: PartitionPlan, directory: str) -> dict[str, str]:
        """Rename misnamed segments, all of them out of the way first, and return the new path of each."""
        if not plan.misnamed:
            return {}
        named = {path: f"{directory}/{segment_name(base)}" for path, base in plan.misnamed}
        for path, target in named.items():
            self._note(target)
            if path != f"{target}{MOVED_SUFFIX}":
                self.files.rename(path, f"{target}{MOVED_SUFFIX}")
        # Before any of them gets a name that another had: a power cut may undo one rename and not the other.
        self.files.sync_directory(directory)  # rule: wrong names away before right ones
        for target in named.values():
            self.files.rename(f"{target}{MOVED_SUFFIX}", target)
        self.files.sync_directory(directory)  # rule: right names on disk
        return named

    def _make_directory(self, directory: str) -> None:
        """Create the directory of a partition if it is missing: it may be lost with its files."""
        path = self.path
        for name in directory.removeprefix(f"{self.path}/").split("/"):
            path = f"{path}/{name}"
            if self.files.stat(path) is None:
                self.files.make_directory(path)
                try:
                    self.files.sync_directory(path.rpartition("/")[0])  # rule: directory made again by a repair
                except by_system():
                    # After a failed directory fsync the kernel may consider the entry clean: the next repair must
                    # create it again.
                    self.files.remove_directory(path)
                    raise

    def _state(self, plan: PartitionPlan, newest: RewrittenSegment | None) -> State:
        """Return the state of a slot whose newest segment was rewritten."""
        if newest is None:
            return State(plan.end, 0, 0, 0, 0, 0, 0, 0, 0, plan.end, plan.start)
        index = newest.frames
        if newest.base + index.span != plan.end:
            raise CorruptionError(
                f"A repair ends at {newest.base + index.span}, not at {plan.end}: this is a fault of Tailrace",
                partition=plan.place.partition,
                path=plan.place.directory,
                hint="No record was removed; the partition stays read-only.",
            )
        flags = HAS_SEGMENT | (SEALED if newest.sealed else 0)
        return State(
            plan.end, newest.base, index.position, index.chain, flags, index.salt, index.position, index.chain,
            newest.last, plan.end, plan.start,
        )  # fmt: skip

    def _rewrite(self, place: SlotPlace, topic: str, segment: SegmentPlan) -> RewrittenSegment:
        """Rewrite a segment beside the old one, and rename it into its place."""
        files = self.files
        runs = any(isinstance(piece, FrameRun) for piece in segment.pieces)
        holes = any(isinstance(piece, Hole) and piece.stop > piece.position for piece in segment.pieces)
        source = None
        if segment.path is not None and (runs or holes):
            source = PatchedFile(files, segment.path, cached=segment.cached)
        target = f"{self.path}/{place.directory}/{segment_name(segment.base)}"
        new = f"{target}{NEW_SUFFIX}"
        try:
            if source is not None:
                source.overlay(segment.writes)
            side = self._quarantine(place, topic, segment, source)
            descriptor = files.open(new, create=True)
            with self._begun(descriptor, new):
                files.truncate(descriptor, 0)
                created = segment.created or self.now_us
                writing = _Segment(files, descriptor, place, segment.base, created, segment.rewrites)
                for number, piece in enumerate(segment.pieces):
                    if isinstance(piece, FrameRun):
                        assert source is not None
                        writing.copy(source, piece)
                    else:
                        low, high = _times_of(segment, number, self.now_us)
                        for note, span in self._notes(segment.base, piece, side):
                            writing.add(prepare_lost(span, note, low, high))
                writing.index.producers = segment.producers
                writing.finish(sealed=bool(segment.pieces))
                self.sync(descriptor, new)  # rule: repaired segment on disk
        finally:
            if source is not None:
                source.close()
        self._note(target)
        files.rename(new, target)
        files.sync_directory(target.rpartition("/")[0])  # rule: name of a repaired segment
        return RewrittenSegment(segment.base, writing.index, writing.last, bool(segment.pieces))

    def _notes(self, base: int, hole: Hole, side: str | None) -> Iterator[tuple[bytes, int]]:
        """Yield the body and the span of each placeholder for a hole."""
        for first in range(hole.first, hole.after, self.lost_span_max):
            after = min(hole.after, first + self.lost_span_max)
            note = {
                "first": base + first,
                "last": base + after - 1,
                "reason": hole.reason[:REASON_CHARACTERS_MAX],
                "time": self.time.isoformat(),
            }
            if side is not None:
                note["quarantine"] = side
            yield json.dumps(note).encode(), after - first


class _Segment:
    """A segment that is written frame by frame."""

    def __init__(self, files: Files, descriptor: int, place: SlotPlace, base: int, created: int, rewrites: int) -> None:
        self.files = files
        self.descriptor = descriptor
        salt = salted(files)
        self.index = Index(salt)
        self.chain = salt_chain(salt)
        self.last = 0
        self.written = HEADER_BYTES
        self.buffers: list[bytes] = []
        self.size = 0
        header = pack_header(place.topic_id, place.partition, salt, created, base, rewrites=rewrites)
        files.write(descriptor, header, 0)

    def copy(self, source: PatchedFile, run: FrameRun) -> None:
        """Copy frames under their own offsets; each becomes a write group of its own."""
        reached = run.position
        for found in walk(source.read, run.position, run.first, run.chain, run.stop, bodies=True):
            self.add(_prepared(found))
            reached = found.position + found.header.size
        if reached != run.stop:
            raise CorruptionError(
                "A file gives other bytes than it gave a moment ago",
                path=source.path,
                hint="Nothing was replaced; look at the disk, then repair again.",
            )

    def add(self, frame: Prepared) -> None:
        """Append one frame."""
        data, self.chain = place_one(frame, self.index.span, self.chain)
        self.last = self.index.position
        self.index.add(
            frame.count, frame.span, frame.min_time, frame.max_time, frame.size, self.chain, frame.attributes
        )
        self.buffers.append(data)
        self.size += len(data)
        if self.size >= WRITE_BYTES:
            self._flush()

    def finish(self, *, sealed: bool) -> None:
        """Write the rest, and the footer."""
        self._flush()
        if sealed:
            self.files.write(self.descriptor, self.index.pack_footer(), self.written)

    def _flush(self) -> None:
        if self.buffers:
            self.files.write(self.descriptor, b"".join(self.buffers), self.written)
            self.written += self.size
            self.buffers, self.size = [], 0


def _prepared(found: Found) -> Prepared:
    header: Header = found.header
    return Prepared(
        header.codec, header.flags & ~MORE, header.count, bytes(found.body), header.raw_length, header.body_crc,
        header.span, header.min_time, header.max_time, header.key_id, header.attributes,
    )  # fmt: skip


def _bytes_of(source: PatchedFile, holes: list[Hole]) -> Iterator[bytes]:
    for hole in holes:
        stop = min(hole.stop, source.size)
        for at in range(hole.position, stop, WRITE_BYTES):
            yield bytes(source.read(min(WRITE_BYTES, stop - at), at))


def _times_of(segment: SegmentPlan, number: int, now_us: int) -> tuple[int, int]:
    """Return the times of a placeholder: those of the records around it, so that a search by time finds both."""
    earlier = [piece.max_time for piece in segment.pieces[:number] if isinstance(piece, FrameRun)]
    later = [piece.min_time for piece in segment.pieces[number + 1 :] if isinstance(piece, FrameRun)]
    before = max(earlier) if earlier else segment.time_before
    after = later[0] if later else segment.time_after
    if before is None:
        before = now_us if after is None else after
    return before, before if after is None else max(before, after)
