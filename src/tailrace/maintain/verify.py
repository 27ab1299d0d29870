"""Verification: reads every stored byte again and compares it with its checksums, footers and neighbours."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

from tailrace import names
from tailrace.disk.codec import CodecError
from tailrace.disk.columns import columns
from tailrace.disk.frame import Header, salt_chain
from tailrace.disk.journal import SECTOR_BYTES, SECTORS, JournalFile, journal_numbers
from tailrace.disk.opening import broken_links
from tailrace.disk.reader import lost_reason
from tailrace.disk.segment import (
    HEADER_BYTES,
    Index,
    read_footer,
    read_segment_header,
    segment_base,
    segment_name,
    walk,
)
from tailrace.disk.tails import DAMAGED, END, FAILED, word_of
from tailrace.errors import CorruptionError, OffsetOutOfRangeError, TopicNotFoundError, VersionError
from tailrace.maintain.namespaces import nameless_in
from tailrace.marks import find_marks
from tailrace.names import IDENTITY_NAME, is_internal
from tailrace.types import Damage, VerifyReport

if TYPE_CHECKING:
    from tailrace.disk.files import Files
    from tailrace.disk.partition import Partition
    from tailrace.disk.store import Store
    from tailrace.disk.tails import State, Tails
    from tailrace.engine.engine import Engine

READ_BYTES = 4 << 20
LOOK_AGAIN_SECONDS = 0.02

Progress = Callable[[int, int], None]


def verify(engine: Engine, match: str = "...", progress: Progress | None = None) -> VerifyReport:
    """Read every segment of the topics that a pattern matches, the catalog and the journal's headers.

    Reading continues after each damage, and every damaged range is reported. `progress` is called with (bytes done,
    bytes in all). What other processes append meanwhile is left for the next time. Only records of users' topics are
    counted. Raise VersionError if nothing is damaged, and something has a version that only a newer Tailrace can read.
    """
    return _Verifier(engine, progress).run(match)


class _File(NamedTuple):
    """One segment to read: the offsets that it should hold, and where its frames end if it has no footer."""

    topic: str | None
    partition: Partition
    path: str
    base: int
    stop: int
    newest: bool
    state: State | None
    size: int


class _Verifier:
    def __init__(self, engine: Engine, progress: Progress | None) -> None:
        self.engine = engine
        self.store: Store = engine.store
        self.files: Files = engine.files
        self.progress = progress
        self.done = self.total = 0
        self.records = self.segments = 0
        self.damage: list[Damage] = []
        self.lost: list[Damage] = []
        # What only a newer version can read.
        self.newer: list[Damage] = []
        self.looked: list[tuple[str | None, Partition]] = []

    def run(self, match: str) -> VerifyReport:
        began = self.files.monotonic()
        catalog = self.engine.refresh()
        todo = self._files(None, self.store.catalog_partition)
        for entry in sorted(catalog.by_name.values(), key=lambda entry: entry.name):
            # Internal topics are part of everything, and match no pattern.
            if match == "..." or (names.match(match, entry.name) and not is_internal(entry.name)):
                for slot in entry.slots:
                    partition = self.store.locate(slot)
                    if partition is not None and partition.topic_id == entry.id:
                        todo += self._files(entry.name, partition)
        self.total = sum(file.size for file in todo)
        self._report_progress(0)
        for file in todo:
            self._check(file)
        self._check_journal()
        self._check_words()
        self._check_blocks()
        self._check_failed()
        self._check_namespaces()
        if self.newer and not self.damage:
            # No damage was found, but not everything could be checked.
            raise VersionError(f"{self.newer[0].file}: {self.newer[0].reason}")
        self.damage += self.newer
        seconds = self.files.monotonic() - began
        return VerifyReport(
            self.done, self.records, self.segments, tuple(self.damage), seconds, tuple(self.lost)
        )  # fmt: skip

    def _report_progress(self, count: int) -> None:
        self.done += count
        if self.progress is not None:
            self.progress(self.done, max(self.total, self.done))

    def _count(self, file: _File, records: int) -> None:
        if file.topic is not None and not is_internal(file.topic):
            self.records += records

    # The segments of a partition, and whether they join.

    def _files(self, topic: str | None, partition: Partition) -> list[_File]:
        """Return the segments of a partition up to its current end; missing ones are reported."""
        self.looked.append((topic, partition))
        start = partition.start
        block = self.store.tails.read_block(partition.slot)
        state = block[1] if block is not None and block[2] == partition.incarnation else None
        end = partition.end if state is None else state.end
        try:
            found = self.files.list_directory(partition.path)
        except FileNotFoundError:
            found = []
        bases = [base for name in found if (base := segment_base(name)) is not None and base < end]
        if not partition.alive:
            if not self.store.is_dropped(partition.slot, partition.incarnation):
                self._report(topic, partition, None, None, self.store.tails.path, word_of(partition.slot) * 8,
                             "its slot in the tails was cleared")  # fmt: skip
            return []
        files = []
        # Without any segment there is no pair, and everything up to the end is missing.
        for base, following in pairwise([*bases, end]):
            path = f"{partition.path}/{segment_name(base)}"
            stat = self.files.stat(path)
            # Readers start at `start`; a vacuum that removes what is below it may not have run yet.
            if stat is not None and following > start:
                newest = following == end
                size = state.position if newest and state is not None and state.base == base else stat.size
                files.append(_File(topic, partition, path, base, following, newest, state, size))
        first = bases[0] if bases else end
        if first > start and not self._gone(partition, first):
            self._report(topic, partition, start, first - 1, partition.path, 0, "a segment is missing")
        return files

    def _gone(self, partition: Partition, stop: int) -> bool:
        """Return whether the records up to an offset were trimmed or dropped meanwhile."""
        return not partition.alive or partition.start >= stop

    # One segment.

    def _check(self, file: _File) -> None:
        # Before the file is opened: a vacuum may replace it at any time, and tells the marks of it afterwards.
        rewrites = self._rewrites_told(file)
        try:
            descriptor = self.files.open(file.path)
        except FileNotFoundError:
            if not self._gone(file.partition, file.stop):
                self._report_file(file, file.base, 0, "the segment is missing")
            return
        try:
            self._check_open(file, descriptor, rewrites)
        except VersionError as error:
            partition = None if file.topic is None else file.partition.index
            self.newer.append(Damage(file.topic, partition, file.base, file.stop - 1, file.path, 0, error.message))
        finally:
            self.files.close(descriptor)
        self.segments += 1

    def _rewrites_told(self, file: _File) -> int:
        """Return how often a segment was rewritten at least, by the marks of its topic."""
        topic_id, index = file.partition.topic_id, file.partition.index
        try:
            marks = None if file.topic is None else find_marks(self.engine, topic_id, index)
            newest = None if marks is None else marks.follow().table.rewrite_of(file.base)
        except (CorruptionError, TopicNotFoundError):
            # Damaged marks are reported as such.
            return 0
        return 0 if newest is None or newest.base != file.base else newest.rewrites

    def _check_open(self, file: _File, descriptor: int, rewrites: int) -> None:
        partition = file.partition
        header = read_segment_header(self.files, descriptor)
        if header is None or not header.belongs(partition.topic_id, partition.index, file.base):
            whose = "is damaged" if header is None else header.misfit(partition.topic_id, partition.index)
            self._report_file(file, file.base, 0, f"the header {whose}")
            self._report_progress(file.size)
            return
        if header.rewrites < rewrites:
            self._report_file(file, file.base, 0, "the segment is older than the marks of its topic say")
        footer = read_footer(self.files, descriptor, header.salt)
        stop = self._frames_stop(file, footer, header.salt, descriptor)
        index = Index(header.salt)
        source = _Source(self.files, descriptor, stop, self._report_progress)
        undecodable, lost = self._walk(file, source, index)
        source.finish()
        sealed = not file.newest or (
            file.state is not None and file.state.salt == header.salt and not file.state.active
        )
        if footer is None and sealed:
            self._report(file.topic, partition, None, None, file.path, index.position, "the footer is damaged")
        after = file.base + index.span
        whole = footer is not None and index.position == stop
        if (after < file.stop and not whole) or (footer is not None and not whole):
            self._find_damage(file, index)
        else:
            self._count(file, index.records)
            self.lost += lost
            for first, last, position, reason in undecodable:
                self._report(file.topic, partition, first, last, file.path, position, reason)
            if footer is not None:
                self._compare(file, index, footer)
            if after < file.stop and not self._gone(partition, file.stop):
                missing = f"{partition.path}/{segment_name(after)}"
                self._report(file.topic, partition, after, file.stop - 1, missing, 0, "the segment is missing")
        self._report_progress(self.files.stat_open(descriptor).size - stop if footer is not None else 0)

    def _frames_stop(self, file: _File, footer: Index | None, salt: int, descriptor: int) -> int:
        """Return where the published frames of a segment end."""
        if footer is not None:
            return footer.position
        state = file.state
        if file.newest and state is not None and (state.base, state.salt) == (file.base, salt):
            return state.position
        return self.files.stat_open(descriptor).size

    def _walk(self, file: _File, source: _Source, index: Index) -> tuple[list[tuple[int, int, int, str]], list[Damage]]:
        """Add the consecutive valid frames to the index; return those with invalid columns, and the placeholders."""
        wrong, lost = [], []
        for found in walk(source.read, HEADER_BYTES, 0, salt_chain(index.salt), source.stop, bodies=True):
            header = found.header
            if header.lost:
                lost.append(self._lost(file, header, found.body, found.position))
            elif not header.placeholder and not header.codec:
                try:
                    columns(header, found.body, 0)
                except CodecError as error:
                    first = file.base + header.base
                    wrong.append((first, first + header.span - 1, found.position, str(error)))
            index.add_frame(header)
        return wrong, lost

    def _lost(self, file: _File, header: Header, note: memoryview, position: int) -> Damage:
        first = file.base + header.base
        partition = None if file.topic is None else file.partition.index
        return Damage(
            file.topic, partition, first, first + header.span - 1, file.path, position, f"lost: {lost_reason(note)}"
        )

    def _compare(self, file: _File, index: Index, footer: Index) -> None:
        """Compare the footer with the frames, and the segment with its neighbour."""
        after = file.base + index.span
        if not index.matches(footer):
            self._report_file(file, file.base, footer.position, "the footer does not fit the frames", last=after - 1)
        # The newest one may have grown and been sealed since its end was read.
        if after > file.stop and not file.newest and not self._gone(file.partition, file.stop):
            self._report_file(file, file.stop, footer.position, "a segment reaches into the next one", last=after - 1)

    def _find_damage(self, file: _File, index: Index) -> None:
        """Read a segment that does not fit like a user would, past every damage, and report what cannot be read."""
        reader = self.store.reader(file.partition)
        # A trim may have cut into the segment.
        offset, stop = max(file.base, file.partition.start), min(file.stop, file.partition.end)
        try:
            while offset < stop:
                try:
                    for frame in reader.frames(offset, stop, lost=True):
                        offset = frame.offset + frame.header.span
                        self._count(file, frame.header.count)
                        if frame.header.lost:
                            self.lost.append(self._lost(file, frame.header, frame.body, 0))
                        elif not frame.header.placeholder:
                            reader.columns(frame)
                    if offset < stop:
                        self._report_file(file, offset, index.position, "records are missing")
                    return
                except CorruptionError as error:
                    first = offset if error.first is None else error.first
                    last = file.stop - 1 if error.last is None else error.last
                    segment = reader.segment
                    position = segment.position if segment is not None and segment.base == file.base else 0
                    self._report_file(file, first, position, error.message, last=last)
                    offset = max(last, offset) + 1
                except OffsetOutOfRangeError:
                    if file.partition.start <= offset:
                        return
                    # Trimmed meanwhile: continue with what is left.
                    offset = file.partition.start
                except TopicNotFoundError:
                    return
        finally:
            reader.close()

    # The tails.

    def _check_words(self) -> None:
        """Report words that hide what their checksummed blocks say, twice in a row: a writer may be between the two."""
        tails = self.store.tails
        found = {slot for slot, _, _ in tails.mismatches(strict=False)}
        if found:
            self.files.sleep(LOOK_AGAIN_SECONDS)
        for slot, state, _ in tails.mismatches(strict=False) if found else []:
            partition = self.store.locate(slot)
            if slot in found and partition is not None and partition.end < state.end:
                catalog = self.engine.refresh()
                owner = catalog.by_slot.get(slot)
                topic = None if owner is None else catalog.by_id[owner[0]].name
                place = word_of(slot) * 8
                self._report(topic, partition, partition.end, state.end - 1, tails.path, place, "the tails hide them")

    def _check_blocks(self) -> None:
        """Report slots without a valid block for their end: all records can be read, and nothing can be appended."""
        tails = self.store.tails
        for look_again in (True, False):
            blind = [place for place in self.looked if place[1].alive and _is_blind(tails, place[1].slot)]
            if not blind:
                return
            if look_again:
                self.files.sleep(LOOK_AGAIN_SECONDS)
        named = {(each.topic, each.partition) for each in self.damage}
        for topic, partition in blind:
            if (topic, None if topic is None else partition.index) not in named:
                self._report(topic, partition, None, None, tails.path, word_of(partition.slot) * 8,
                             "its newest state block in the tails is damaged")  # fmt: skip

    def _check_failed(self) -> None:
        """Report partitions that recovery marked damaged although all that they show can be read."""
        named = {(each.topic, each.partition) for each in self.damage}
        tails = self.store.tails
        for topic, partition in self.looked:
            place = (topic, None if topic is None else partition.index)
            if tails.words[word_of(partition.slot) + FAILED] == DAMAGED and partition.alive and place not in named:
                self._report(topic, partition, None, None, partition.path, 0, "it was found damaged, and is read-only")

    # The journal.

    def _check_journal(self) -> None:
        """Check the headers: entries end where they no longer fit, so that nothing else can be checked."""
        directory = f"{self.store.path}/journal"
        for number in journal_numbers(self.files, directory):
            file = JournalFile(self.files, directory, number, self.store.context.log_id)
            try:
                file.open()
            except FileNotFoundError:
                # A checkpoint removed it.
                continue
            try:
                if file.read_generation() is None and any(self._sectors(file)):
                    self.damage.append(Damage(None, None, None, None, file.path, 0, "the header is damaged"))
            finally:
                file.close()
            self._report_progress(SECTOR_BYTES * len(SECTORS))

    def _sectors(self, file: JournalFile) -> Iterator[bool]:
        """Yield whether anything was ever written to each header: its creator may have died before."""
        for at in SECTORS:
            yield any(self.files.read(file.descriptor, SECTOR_BYTES, at))

    # The namespaces.

    def _check_namespaces(self) -> None:
        """Report namespaces that cannot be opened any more; the others are logs of their own."""
        for name, location in nameless_in(self.files, self.store.path):
            file = f"{location}/{IDENTITY_NAME}"
            reason = f"the identity of the namespace {name!r} is missing"
            self.damage.append(Damage(None, None, None, None, file, 0, reason))
        for link in broken_links(self.files, self.store.path):
            self.damage.append(Damage(None, None, None, None, link, 0, "a symbolic link to namespaces leads nowhere"))

    # Reports.

    def _report_file(self, file: _File, first: int, position: int, reason: str, *, last: int | None = None) -> None:
        last = file.stop - 1 if last is None else last
        self._report(file.topic, file.partition, first, max(first, last), file.path, position, reason)

    def _report(
        self,
        topic: str | None,
        partition: Partition,
        first: int | None,
        last: int | None,
        path: str,
        position: int,
        reason: str,
    ) -> None:
        index = None if topic is None else partition.index
        self.damage.append(Damage(topic, index, first, last, path, position, reason))


def _is_blind(tails: Tails, slot: int) -> bool:
    """Return whether no block of a slot is as new as its end, which is stored after its block."""
    end = tails.words[word_of(slot) + END]
    block = tails.read_block(slot)
    return tails.is_blind(slot) if block is None else block[1].end < end


class _Source:
    """An open segment that is read in large pieces, however small the reads of a walk are."""

    def __init__(self, files: Files, descriptor: int, stop: int, report_progress: Callable[[int], None]) -> None:
        self.files = files
        self.descriptor = descriptor
        self.stop = stop
        self.report_progress = report_progress
        self.first = self.reported = 0
        self.buffer = memoryview(b"")

    def read(self, count: int, position: int) -> memoryview:
        """Return `count` bytes, fewer only at the end of the file."""
        at = position - self.first
        if at < 0 or at + count > len(self.buffer):
            self._advance(position)
            size = max(count, min(READ_BYTES, self.stop - position))
            self.buffer = memoryview(self.files.read(self.descriptor, size, position))
            self.first, at = position, 0
        return self.buffer[at : at + count]

    def finish(self) -> None:
        """Count the rest as done."""
        self._advance(self.stop)

    def _advance(self, position: int) -> None:
        if position > self.reported:
            self.report_progress(position - self.reported)
            self.reported = position
