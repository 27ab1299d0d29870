"""Following: what is published after the end was reached, by any process, for as long as the caller wants."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from tailrace.merge import merged
from tailrace.options import StartPoint
from tailrace.spans import Request, Span, dropped, open_span, resolve

if TYPE_CHECKING:
    from tailrace.disk.catalog import TopicEntry
    from tailrace.disk.columns import Part
    from tailrace.engine import Engine

# A store into the tails whose event got lost is noticed after this.
WAIT_SECONDS_MAX = 0.1
# A follower that was woken so often for others in a row rests this long before it looks again.
WAKES_FOR_OTHERS_MAX = 16
REST_SECONDS = 0.001


class Follower:
    """One pass of a following scan; `parts` gives None whenever it is about to wait."""

    def __init__(
        self, engine: Engine, request: Request, timeout: float | None, closed: Callable[[], bool],
        opened: Callable[[Span], None],
    ) -> None:  # fmt: skip
        self.engine = engine
        self.request = request
        self.timeout = timeout
        self.closed = closed
        self.opened = opened
        self.entry: TopicEntry | None = None
        self.spans: list[Span] = []

    def parts(self) -> Iterator[Part | None]:
        """Parts as they are published; ends when every span is full, after `timeout` idle seconds, or at a close."""
        engine = self.engine
        # Armed before the first look at any end: what is published after that look raises an event.
        watch = engine.watch()
        try:
            deadline: float | None = None
            for_others = 0
            while not self.closed():
                progressed = False
                self._look()
                for part in self._round():
                    progressed = True
                    yield part
                if progressed:
                    deadline, for_others = None, 0
                    continue
                if self.entry is not None and all(self._full(span) for span in self.spans):
                    return
                yield None
                now = engine.files.monotonic()
                if deadline is None and self.timeout is not None:
                    deadline = now + self.timeout
                patience = WAIT_SECONDS_MAX if deadline is None else min(WAIT_SECONDS_MAX, deadline - now)
                if patience <= 0:
                    return
                if not watch.wait(patience):
                    for_others = 0
                    continue
                for_others += 1
                if for_others > WAKES_FOR_OTHERS_MAX:
                    engine.files.sleep(REST_SECONDS)
        finally:
            watch.close()

    def _look(self) -> None:
        """Notice a topic that was made or dropped, and partitions that were added."""
        entry = self.engine.find(self.request.topic)
        known = self.entry
        if entry is known:
            if entry is None and self.request.start.kind == "latest":
                # All that comes into a topic made from now on comes after this moment.
                self.request = self.request._replace(start=StartPoint("earliest"))
            return
        if entry is None or (known is not None and known.id != entry.id):
            raise dropped(self.request.topic)
        if known is None:
            added = resolve(self.engine, entry, self.request)
        elif self.request.partitions is None:
            later = self.request._replace(start=StartPoint("earliest"), last=None)
            added = [open_span(self.engine, entry, index, later) for index in range(len(known.slots), len(entry.slots))]
        else:
            added = []
        self.entry = entry
        for span in added:
            self._unbound(span)
            self.opened(span)
        self.spans += added

    def _unbound(self, span: Span) -> None:
        """Let a span go on behind the end, up to its stop if it has one."""
        stop = self.request.stop
        if stop is None or (stop.kind == "offsets" and span.partition.index not in stop.offsets):
            span.stop = -1
        elif stop.kind == "time":
            if span.stop >= span.partition.end:
                span.stop, span.until = -1, stop.value
        elif stop.kind != "latest" and stop.kind != "earliest":
            span.stop = stop.offsets[span.partition.index] if stop.kind == "offsets" else stop.value

    def _round(self) -> Iterator[Part]:
        """What was published since the last round; by time within the round when that was asked for."""
        streams = []
        for span in self.spans:
            end = span.partition.end
            if span.next < end and span.until is not None:
                found = span.reader.offset_at(span.until)
                if found < end:
                    span.stop, span.until = found, None
            if span.stop >= 0:
                end = min(end, span.stop)
            if span.next < end:
                streams.append(span.forward(end))
        if self.request.by_time:
            yield from merged(streams) if streams else ()
        else:
            for stream in streams:
                yield from stream

    def _full(self, span: Span) -> bool:
        if span.until is not None:
            # Records of before the moment may come late, but nobody is promised to see them.
            return self.engine.files.now_us() >= span.until
        return 0 <= span.stop <= span.next
