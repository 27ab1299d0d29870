"""Following: what is published after the end was reached, by any process, for as long as the caller wants."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

from tailrace.arguments import StartPoint
from tailrace.disk.catalog import CATALOG_SLOT
from tailrace.disk.tails import END, word_of
from tailrace.errors import TopicNotFoundError
from tailrace.names import is_pattern
from tailrace.read.merge import merged
from tailrace.read.request import check_partitions, settled
from tailrace.read.span import READERS_OPEN_MAX, Request, Span, dropped, matching, one_by_one, open_span, resolve_each

if TYPE_CHECKING:
    from tailrace.disk.catalog import TopicEntry
    from tailrace.disk.columns import FramePart
    from tailrace.engine.engine import Engine

# Where the end of the catalog stands among the words of the tails.
CATALOG_END = word_of(CATALOG_SLOT) + END
# A store into the tails whose event got lost is noticed after this.
WAIT_SECONDS_MAX = 0.1
# A follower that was woken so often for others in a row rests this long before it looks again.
WAKES_FOR_OTHERS_MAX = 16
REST_SECONDS = 0.001


class Follower:
    """One pass of a following scan; `parts` gives None whenever it is about to wait."""

    def __init__(
        self, engine: Engine, request: Request, timeout: float | None, closed: Callable[[], bool],
        opened: Callable[[Span], None], left: Callable[[str], None],
    ) -> None:  # fmt: skip
        self.engine = engine
        self.request = request
        self.pattern = is_pattern(request.topic)
        self.timeout = timeout
        self.closed = closed
        self.opened = opened
        self.left = left
        # The topics that are read, by name.
        self.known: dict[str, TopicEntry] = {}
        self.spans: list[Span] = []
        # Of very many spans those that keep their file open, the one that was read last at the end.
        self.recently_open: dict[Span, None] = {}
        # Whether the request was applied; what is made after that is read from its beginning.
        self.begun = False
        # Whether any topic was found that has the partitions which are asked for.
        self.checked = False
        # Up to where the catalog was looked at.
        self.offset = -1

    def parts(self) -> Iterator[FramePart | None]:
        """Parts as they are published; ends when every span is full, after `timeout` idle seconds, or at a close."""
        engine = self.engine
        # Armed before the first look at any end: what is published after that look raises an event.
        watch = engine.watch()
        try:
            deadline: float | None = None
            for_others = 0
            while not self.closed():
                progressed = False
                if engine.store.tails.words[CATALOG_END] != self.offset:
                    yield from self._look()
                for part in self._fresh() or self._round():
                    progressed = True
                    yield part
                if progressed:
                    deadline, for_others = None, 0
                    # What was found is handed out before anybody looks for more.
                    yield None
                    continue
                if watch.clear():
                    # What is published from here on raises a new event; what was before is not to be missed.
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
                    # Of a log that was removed nothing will ever come.
                    engine.store.context.check_here()
                    continue
                for_others += 1
                if for_others > WAKES_FOR_OTHERS_MAX:
                    engine.store.context.check_here()
                    engine.files.sleep(REST_SECONDS)
        finally:
            watch.close()

    def _look(self) -> Iterator[None]:
        """Notice topics that were made or dropped, and partitions that were added."""
        while (offset := self.engine.refresh().offset) != self.offset:
            found = {entry.name: entry for entry in self._found()}
            gone = {name for name, entry in self.known.items() if name not in found or found[name].id != entry.id}
            if gone:
                if not self.pattern:
                    raise dropped(self.request.topic)
                # What was gathered of them is handed out first, and only then is their place forgotten.
                yield None
                self._leave(gone)
            try:
                added = self._added(found)
            except TopicNotFoundError:
                if not self.pattern or self.engine.refresh().offset == offset:
                    raise
                # One was dropped meanwhile, which the next look sees.
                continue
            self.known, self.offset = found, offset
            self._take(added)

    def _found(self) -> list[TopicEntry]:
        if self.pattern:
            return matching(self.engine, [self.request.topic])
        entry = self.engine.find(self.request.topic)
        return [] if entry is None else [entry]

    def _added(self, found: dict[str, TopicEntry]) -> list[Span]:
        """The spans of what is new: by the request at first, from the beginning later."""
        entries = [*found.values()]
        if self.pattern and entries and not self.checked:
            check_partitions(entries, self.request)
            self.checked = True
        if not self.begun:
            return self._first(entries)
        added = []
        for entry in entries:
            known = self.known.get(entry.name)
            if known is not entry:
                asked = self.request.of(entry)
                read = len(known.slots) if known is not None else 0
                indexes = range(len(entry.slots)) if asked.partitions is None else asked.partitions
                added += [open_span(self.engine, entry, index, asked) for index in indexes if index >= read]
        return added

    def _first(self, entries: list[TopicEntry]) -> list[Span]:
        request = settled(entries, self.request) if self.pattern else self.request
        spans = resolve_each(self.engine, entries, request) if entries else []
        if entries or self.pattern:
            self.begun = True
        elif request.start.kind != "latest":
            # One topic that is not there yet is read from where the request says, once it is.
            return spans
        # All that comes into a topic or a partition made from now on comes after this moment.
        self.request = request._replace(start=StartPoint("earliest"), starts=None, last=None)
        return spans

    def _take(self, added: list[Span]) -> None:
        for span in added:
            self._unbound(span)
            self.opened(span)
        if added:
            self.spans = sorted([*self.spans, *added], key=lambda span: (span.topic, span.partition.index))
        if len(self.spans) > READERS_OPEN_MAX:
            for span in self.spans:
                if span not in self.recently_open:
                    span.reader.close()
        else:
            for span in added:
                span.reader.stand(span.next)

    def _leave(self, gone: set[str]) -> None:
        for span in self.spans:
            if span.topic in gone:
                span.reader.close()
                self.recently_open.pop(span, None)
        self.spans = [span for span in self.spans if span.topic not in gone]
        for span in self.spans:
            span.closes_between_reads = False
        for name in gone:
            del self.known[name]
            self.left(name)

    def _unbound(self, span: Span) -> None:
        """Let a span go on behind the end, up to its stop if it has one."""
        stop = self.request.of(self.known[span.topic]).stop
        if stop is None or (stop.kind == "offsets" and span.partition.index not in stop.offsets):
            span.stop = -1
        elif stop.kind == "time":
            if span.stop >= span.partition.end:
                span.stop, span.until = -1, stop.value
        elif stop.kind != "latest" and stop.kind != "earliest":
            span.stop = stop.offsets[span.partition.index] if stop.kind == "offsets" else stop.value

    def _fresh(self) -> Sequence[FramePart]:
        """The newest few records of one partition, when that is all there is and it takes one small read.

        This is what a follower is mostly woken for, and every step less on the way brings the record sooner.
        """
        spans = self.spans
        if len(spans) > READERS_OPEN_MAX:
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
        part = found.newest(words[found.word])
        return () if part is None else (part,)

    def _round(self) -> Iterator[FramePart]:
        """What was published since the last round; by time within the round when that was asked for."""
        words = self.engine.store.tails.words
        spans, streams = [], []
        # A loop of its own, because of many spans few have anything new.
        for span in [span for span in self.spans if span.next < words[span.word]]:
            end = self._end(span, words[span.word])
            if span.next < end:
                spans.append(span)
                streams.append(self._while_there(span, end) if self.pattern else span.forward(end))
        many = len(self.spans) > READERS_OPEN_MAX and self._make_room(spans)
        if not self.request.by_time:
            yield from one_by_one(spans, streams, many=many)
        elif streams:
            yield from merged(streams)

    def _make_room(self, spans: list[Span]) -> bool:
        """Let these spans and the ones before them keep their files, as many as may; whether these alone are too many.

        To open a file again costs a walk to the place in it, which a topic that is busy should not pay for each record.
        """
        many = len(spans) > READERS_OPEN_MAX
        for span in spans:
            span.closes_between_reads = many and self.request.by_time
            self.recently_open.pop(span, None)
        if not many:
            self.recently_open.update(dict.fromkeys(spans))
        for span in [*self.recently_open][: max(0, len(self.recently_open) - (0 if many else READERS_OPEN_MAX))]:
            del self.recently_open[span]
            span.reader.close()
        return many

    def _end(self, span: Span, end: int) -> int:
        """How far a span may be read of what was published up to an end."""
        if span.until is not None:
            try:
                found = span.reader.offset_at(span.until, skip=span.skipped is not None)
            except TopicNotFoundError:
                if not self._is_gone(span):
                    raise dropped(span.topic) from None
                return span.next
            if len(self.spans) > READERS_OPEN_MAX:
                span.reader.close()
            if found < end:
                span.stop, span.until = found, None
        return min(end, span.stop) if span.stop >= 0 else end

    def _while_there(self, span: Span, end: int) -> Iterator[FramePart]:
        """The parts of a topic that may be dropped meanwhile, which ends them and nothing else."""
        try:
            yield from span.forward(end)
        except TopicNotFoundError:
            if not self._is_gone(span):
                raise

    def _is_gone(self, span: Span) -> bool:
        """Whether a pattern lost this topic; what only looks like a drop is not to be passed over."""
        entry = self.engine.find(span.topic)
        return self.pattern and (entry is None or entry.id != span.partition.topic_id)

    def _full(self, span: Span) -> bool:
        if span.until is not None:
            # Records of before the moment may come late, but nobody is promised to see them.
            return self.engine.files.now_us() >= span.until
        return 0 <= span.stop <= span.next
