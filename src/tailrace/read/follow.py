"""Following: records that any process publishes after the end was reached, for as long as the caller reads."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

from tailrace.arguments import StartPoint
from tailrace.disk import CATALOG_END_WORD
from tailrace.errors import TopicNotFoundError
from tailrace.read.merge import merged, one_by_one
from tailrace.read.request import Request, check_partitions, open_span, open_spans, present, resolve_point, settled
from tailrace.read.span import Span, dropped
from tailrace.read.visibility import Visibility

if TYPE_CHECKING:
    from tailrace.disk import TopicEntry
    from tailrace.disk.columns import FramePart
    from tailrace.engine.engine import Engine
    from tailrace.read.iteration import IterationPlaces

# A store to the tails whose file event got lost is noticed after this time.
WAIT_SECONDS_MAX = 0.1
# A follower that was woken this often in a row for other topics sleeps before it checks again.
WAKES_FOR_OTHERS_MAX = 16
REST_SECONDS = 0.001


Hiding = dict[tuple[str, int], Visibility]


def note_hiding(span: Span, hiding: Hiding) -> None:
    """Add what is visible in a span, if records of its topic may be deleted."""
    if span.visibility.marks is not None:
        hiding[span.topic, span.partition.index] = span.visibility


class Follower:
    """One iteration of a following scan; `parts` yields None whenever it is about to wait."""

    def __init__(
        self, engine: Engine, request: Request, timeout: float | None, closed: Callable[[], bool],
        places: IterationPlaces, reading: dict[Span, None], hiding: Hiding,
    ) -> None:  # fmt: skip
        self.engine = engine
        self.open_max = engine.tuning.readers_open_max
        self.request = request
        # Whether topics may appear and disappear while it reads: patterns, or several names.
        self.several = request.single is None
        self.timeout = timeout
        self.closed = closed
        self.places = places
        # The spans that were read since the iteration last recorded their positions.
        self.reading = reading
        # What is visible in mutable topics, by topic and partition.
        self.hiding = hiding
        # The topics that it reads, by name.
        self.known: dict[str, TopicEntry] = {}
        self.spans: list[Span] = []
        # Among very many spans those that keep their file open, the one read last at the end.
        self.recently_open: dict[Span, None] = {}
        # Whether the request was applied; topics and partitions created after that are read from their start.
        self.begun = False
        # Whether a topic was found that has the requested partitions.
        self.checked = False
        # The end of the catalog at the last check.
        self.offset = -1

    def parts(self) -> Iterator[FramePart | None]:
        """Yield published parts; end when all spans are full, after `timeout` idle seconds, or at a close."""
        engine = self.engine
        # Armed before any end is loaded: a record published after the load raises an event.
        watch = engine.watch()
        try:
            deadline: float | None = None
            for_others = 0
            while not self.closed():
                progressed = False
                if engine.store.tails.words[CATALOG_END_WORD] != self.offset:
                    yield from self._look()
                for part in self._fresh() or self._round():
                    progressed = True
                    yield part
                if progressed:
                    deadline, for_others = None, 0
                    # Records are returned to the caller before more are read.
                    yield None
                    continue
                if watch.clear():
                    # Records published before the clear may have raised the cleared event; later ones raise a new one.
                    continue
                if self.spans and all(self._full(span) for span in self.spans):
                    return
                yield None
                now = engine.files.monotonic()
                if deadline is None and self.timeout is not None:
                    deadline = now + self.timeout
                patience = WAIT_SECONDS_MAX if deadline is None else min(WAIT_SECONDS_MAX, deadline - now)
                if patience <= 0:
                    return
                if not engine.rest(watch, patience, clear=False):
                    for_others = 0
                    # A removed log will never have new records.
                    engine.store.context.check_here()
                    continue
                for_others += 1
                if for_others > WAKES_FOR_OTHERS_MAX:
                    engine.store.context.check_here()
                    engine.files.sleep(REST_SECONDS)
        finally:
            watch.close()

    def _look(self) -> Iterator[None]:
        """Find topics that were created or dropped, and partitions that were added."""
        while (offset := self.engine.refresh().offset) != self.offset:
            found = {entry.name: entry for entry in present(self.engine, self.request)}
            gone = {name for name, entry in self.known.items() if name not in found or found[name].id != entry.id}
            if gone:
                if named := gone.intersection(self.request.topics):
                    raise dropped(min(named))
                # Parts gathered from them are returned first, and only then are their positions removed.
                yield None
                self._leave(gone)
            try:
                added = self._added(found)
            except TopicNotFoundError:
                if not self.several or self.engine.refresh().offset == offset:
                    raise
                # One was dropped meanwhile, which the next check finds.
                continue
            self.known, self.offset = found, offset
            self._take(added)

    def _added(self, found: dict[str, TopicEntry]) -> list[Span]:
        """Return the spans of new partitions: by the request at first, from the start later."""
        entries = [*found.values()]
        if self.several and entries and not self.checked:
            check_partitions(entries, self.request)
            self.checked = True
        if not self.begun:
            return self._first(entries)
        added = []
        for entry in entries:
            known = self.known.get(entry.name)
            if known is not entry:
                for_topic = self.request.of(entry)
                read = len(known.slots) if known is not None else 0
                indexes = range(len(entry.slots)) if for_topic.partitions is None else for_topic.partitions
                added += [open_span(self.engine, entry, index, for_topic) for index in indexes if index >= read]
        return added

    def _first(self, entries: list[TopicEntry]) -> list[Span]:
        request = settled(entries, self.request) if self.several else self.request
        spans = open_spans(self.engine, entries, request) if entries else []
        if entries or self.several:
            self.begun = True
        elif request.start.kind != "latest":
            # A single topic that does not exist yet is read from the start of the request, once it exists.
            return spans
        # Records in a topic or partition created from now on are all later than this moment.
        self.request = request._replace(start=StartPoint("earliest"), starts=None, last=None)
        return spans

    def _take(self, added: list[Span]) -> None:
        for span in added:
            self._unbound(span)
            self.places.opened(span)
            note_hiding(span, self.hiding)
        if added:
            self.spans = sorted([*self.spans, *added], key=lambda span: (span.topic, span.partition.index))
        if len(self.spans) > self.open_max:
            for span in self.spans:
                if span not in self.recently_open:
                    span.reader.close()
        else:
            for span in added:
                span.reader.seek_end(span.next)

    def _leave(self, gone: set[str]) -> None:
        for span in self.spans:
            if span.topic in gone:
                span.reader.close()
                self.recently_open.pop(span, None)
                self.reading.pop(span, None)
        self.spans = [span for span in self.spans if span.topic not in gone]
        for span in self.spans:
            span.closes_between_reads = False
        for name in gone:
            del self.known[name]
            self.places.left(name)

    def _unbound(self, span: Span) -> None:
        """Let a span continue after its end, up to its stop if it has one."""
        stop = self.request.of(self.known[span.topic]).stop
        if stop is not None and stop.kind == "time":
            if span.stop >= span.partition.end:
                span.stop, span.until = -1, stop.value
            return
        # A stop that is no offset was resolved when the span was opened; an offset may be beyond the end at that time.
        bound = span.stop
        offset = None if stop is None else resolve_point(stop, span.partition.index, bound, bound, lambda _: bound)
        span.stop = -1 if offset is None else offset

    def _fresh(self) -> Sequence[FramePart]:
        """Return the newest few records of one partition, if they are all there is and take one small read.

        A follower is mostly woken for this case, and every step saved delivers the record sooner.
        """
        spans = self.spans
        if len(spans) > self.open_max:
            return ()
        words = self.engine.store.tails.words
        found = None
        for span in spans:
            if span.next < words[span.word]:
                if found is not None:
                    return ()
                found = span
        if found is None or found.stop >= 0 or found.until is not None:
            return ()
        self.reading[found] = None
        return found.newest(words[found.word])

    def _round(self) -> Iterator[FramePart]:
        """Yield what was published since the last round, merged by time within the round if requested."""
        words = self.engine.store.tails.words
        spans, streams = [], []
        # A separate loop, because few of many spans have new records.
        for span in [span for span in self.spans if span.next < words[span.word]]:
            end = self._end(span, words[span.word])
            if span.next < end:
                spans.append(span)
                streams.append(self._while_there(span, end) if self.several else span.forward(end))
        self.reading.update(dict.fromkeys(spans))
        many = len(self.spans) > self.open_max and self._make_room(spans)
        if not self.request.by_time:
            yield from one_by_one(spans, streams, many=many)
        elif streams:
            yield from merged(streams)

    def _make_room(self, spans: list[Span]) -> bool:
        """Keep the files of these spans and of recent ones open, up to the limit; return whether these are too many.

        Reopening a file costs a walk over its frames to the position, which a busy topic should not pay for each
        record.
        """
        many = len(spans) > self.open_max
        for span in spans:
            span.closes_between_reads = many and self.request.by_time
            self.recently_open.pop(span, None)
        if not many:
            self.recently_open.update(dict.fromkeys(spans))
        for span in [*self.recently_open][: max(0, len(self.recently_open) - (0 if many else self.open_max))]:
            del self.recently_open[span]
            span.reader.close()
        return many

    def _end(self, span: Span, end: int) -> int:
        """Return the offset up to which a span may be read, given the published end."""
        if span.until is not None:
            try:
                found = span.reader.offset_at(span.until, skip=span.skipped is not None)
            except TopicNotFoundError:
                if not self._is_gone(span):
                    raise dropped(span.topic) from None
                return span.next
            if len(self.spans) > self.open_max:
                span.reader.close()
            if found < end:
                span.stop, span.until = found, None
        return min(end, span.stop) if span.stop >= 0 else end

    def _while_there(self, span: Span, end: int) -> Iterator[FramePart]:
        """Yield the parts of a topic; if it is dropped meanwhile, end without an error."""
        try:
            yield from span.forward(end)
        except TopicNotFoundError:
            if not self._is_gone(span):
                raise

    def _is_gone(self, span: Span) -> bool:
        """Return whether this topic was dropped while others are still read; an apparent drop is an error."""
        entry = self.engine.find(span.topic)
        return self.several and (entry is None or entry.id != span.partition.topic_id)

    def _full(self, span: Span) -> bool:
        if span.until is not None:
            # Records with earlier timestamps may arrive later; a follower does not promise to return them.
            return self.engine.files.now_us() >= span.until
        return 0 <= span.stop <= span.next
