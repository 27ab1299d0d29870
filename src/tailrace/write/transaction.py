"""The transaction: appends to several topics that become visible together, or not at all."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from itertools import groupby
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn, Self

from tailrace.arguments import parse_count, parse_time
from tailrace.disk.staging import Write
from tailrace.engine.engine import name_damage
from tailrace.errors import (
    ClosedError,
    CommittedNotVisibleError,
    CorruptionError,
    LimitError,
    OffsetMismatchError,
    ThreadError,
    TopicNotFoundError,
)
from tailrace.limits import PARTICIPANTS_MAX, VALUE_BYTES_MAX
from tailrace.names import validate_topic_name
from tailrace.records import encode_data, encode_headers
from tailrace.topics import Topic
from tailrace.write.intake import UNSET, Rows, check_group, check_sizes, encode_value, take_in
from tailrace.write.route import checked_partition

if TYPE_CHECKING:
    from datetime import datetime

    from tailrace.disk.frame import Prepared
    from tailrace.engine.engine import Engine
    from tailrace.groups.session import Enlisted
    from tailrace.log import Log
    from tailrace.types import Data
    from tailrace.write.intake import Intake
    from tailrace.write.route import Shape


class Call(NamedTuple):
    """One append or extend, as it was asked for."""

    topic: Topic
    intake: Intake
    partition: int | None
    expect: int | None
    time: int


class Share:
    """What a transaction adds to one partition: pieces of its calls, in their order."""

    __slots__ = ("expect", "first", "index", "pieces", "size", "topic")

    def __init__(self, topic: Topic, index: int) -> None:
        self.topic = topic
        self.index = index
        self.pieces: list[tuple[Intake, int]] = []
        self.size = 0
        self.expect: int | None = None
        # The offset of its first record, once it is committed.
        self.first = 0

    def add(self, call: Call, intake: Intake) -> int:
        """Take in a piece; how many records of the share come before it."""
        if call.expect is not None:
            expect = call.expect - self.size
            if self.expect is not None and self.expect != expect:
                raise OffsetMismatchError(
                    f"Two appends of this transaction expect different offsets in {self.topic.name}[{self.index}].",
                    expected=call.expect,
                    actual=self.expect + self.size,
                )
            self.expect = expect
        before = self.size
        self.pieces.append((intake, call.time))
        self.size = before + len(intake)
        return before

    def frames(self, shape: Shape) -> list[Prepared]:
        """The pieces as frames; neighbours that are Python records share them."""
        if len(self.pieces) == 1:
            intake, time = self.pieces[0]
            frames = intake.frames(time, shape.codec, shape.maximum)
            check_group(frames)
            return frames
        frames = []
        for listed, pieces in groupby(self.pieces, lambda piece: isinstance(piece[0], Rows)):
            some = [*pieces]
            for intake, time in [(_joined(some), 0)] if listed and len(some) > 1 else some:
                frames += intake.frames(time, shape.codec, shape.maximum)
        check_group(frames)
        return frames


class Transaction:
    """Collects appends and commits them when `with` ends well; before that nothing is written and no lock is held.

    One thread at a time. After the commit `positions` has one entry a call: the topic and its offsets by partition.
    """

    def __init__(self, log: Log) -> None:
        self.log = log
        self.positions: list[tuple[str, dict[int, range]]] = []
        self._calls: list[Call] = []
        # Cursors of consumers that are stored with it.
        self._enlisted: list[Enlisted] = []
        self._topics: dict[str, Topic] = {}
        # Asked for once each: the commit checks again.
        self._maxima: dict[str, int] = {}
        self._thread: int | None = None
        self._over = False
        self._engine = log.writing()
        self._generation = self._engine.generation

    def __repr__(self) -> str:
        state = "over" if self._over else "open" if self._thread is not None else "not begun"
        return f"<Transaction of {self.log.location!r}: {state}, {len(self._calls)} calls>"

    def __reduce__(self) -> NoReturn:
        raise TypeError("A transaction cannot be pickled: pickle its Log and begin one in the other process.")

    def append(
        self,
        topic: Topic | str,
        value: Data | None = UNSET,
        *,
        json: Any = UNSET,
        key: Data | None = None,
        headers: Mapping[str, Data] | None = None,
        timestamp: datetime | int | None = None,
        partition: int | None = None,
        expect_offset: int | None = None,
    ) -> None:
        """Add one record; with `expect_offset` the whole commit depends on it getting that very offset."""
        now = self._engine.files.now_us()
        target = self._target(topic)
        data = value if type(value) is bytes and json is UNSET else encode_value(value, json, key)
        stored = encode_headers(headers) if headers is not None else b""
        key = None if key is None else encode_data(key, "key")
        maximum = self._maxima.get(target.name) or self._maximum(target)
        check_sizes(len(data or b""), len(key or b""), maximum)
        time = now if timestamp is None else parse_time(timestamp, "timestamp", now_us=now)
        expect = None if expect_offset is None else parse_count(expect_offset, "expect_offset")
        rows = Rows([data], None if key is None else [key], [stored] if stored else None)
        self._calls.append(Call(target, rows, partition, expect, time))

    def extend(
        self,
        topic: Topic | str,
        values: Iterable[Data | None] | Any,
        *,
        keys: Iterable[Data | None] | None = None,
        json: bool = False,
        headers: Iterable[Mapping[str, Data] | None] | None = None,
        timestamps: Iterable[datetime | int] | None = None,
        partition: int | None = None,
    ) -> None:
        """Add many records, from what Topic.extend takes."""
        now = self._engine.files.now_us()
        target = self._target(topic)
        intake = take_in(values, keys, json=json, headers=headers, timestamps=timestamps)
        self._calls.append(Call(target, intake, partition, None, now))

    def take(self, topic: Topic | str, intake: Intake) -> None:
        """Add records that are ready to be stored."""
        self._calls.append(Call(self._target(topic), intake, None, None, self._engine.files.now_us()))

    def enlist(self, cursors: Enlisted) -> None:
        """Store cursors of a consumer with this transaction: called by Consumer.commit(tx)."""
        self._check()
        if cursors.group.engine is not self._engine:
            raise ValueError("The consumer is of another log, and no transaction spans two.")
        self._enlisted.append(cursors)

    def __enter__(self) -> Self:
        if self._over or self._thread is not None:
            raise ClosedError("A transaction is entered once.", hint="Begin another one with log.transaction().")
        self._engine.check_same(self._generation)
        self._thread = threading.get_ident()
        return self

    def __exit__(self, kind: type[BaseException] | None, *exc: object) -> None:
        if kind is None:
            self._check()
        calls, self._calls = self._calls, []
        enlisted, self._enlisted = self._enlisted, []
        self._over = True
        error: BaseException | None = None
        try:
            if kind is None and (calls or enlisted):
                self._commit(calls, enlisted)
        except CommittedNotVisibleError:
            # It is on disk, with its cursors.
            raise
        except BaseException as problem:
            error = problem
            raise
        finally:
            for cursors in enlisted:
                if kind is None and error is None:
                    cursors.done()
                else:
                    cursors.failed(error)

    # Before the commit.

    def _check(self) -> None:
        self._engine.check_same(self._generation)
        if self._over:
            raise ClosedError("The transaction is over.", hint="Begin another one with log.transaction().")
        if self._thread is None:
            raise ClosedError(
                "The transaction has not begun.", hint="Nothing was written; use it as: with log.transaction() as tx"
            )
        if self._thread != threading.get_ident():
            raise ThreadError("A transaction belongs to the thread that began it.")

    def _target(self, topic: Topic | str) -> Topic:
        self._check()
        if isinstance(topic, Topic):
            if self._topics.get(topic.name) is topic:
                return topic
            if topic.log.location != self.log.location:
                raise ValueError(f"{topic!r} is in another log, and no transaction spans two.")
            # A pattern is a handle as well, and cannot be written to.
            validate_topic_name(topic.name, internal=True)
            return self._topics.setdefault(topic.name, topic)
        known = self._topics.get(topic)
        if known is None:
            known = self._topics[topic] = Topic(self.log, validate_topic_name(topic), {})
        return known

    def _maximum(self, topic: Topic) -> int:
        """The largest value of a topic, so that one too large is refused where it is added."""
        entry = self.log.engine.find(topic.name)
        found = VALUE_BYTES_MAX if entry is None else entry.settings.get("max_record_bytes", VALUE_BYTES_MAX)
        maximum = self._maxima[topic.name] = int(found)
        return maximum

    # The commit.

    def _commit(self, calls: list[Call], enlisted: list[Enlisted]) -> None:
        engine = self.log.writing()
        while True:
            engine.enter()
            try:
                topics = {call.topic.name: call.topic for call in calls}
                shapes = {name: topic.shape(engine) for name, topic in topics.items()}
                shares, places = self._share(calls, shapes)
                frames = [share.frames(shapes[share.topic.name]) for share in shares]
                # Only now are topics created, after everything that can be wrong was found.
                if any(engine.find(name) is None for name in shapes):
                    _check_expected(engine, shares)
                    for cursors in enlisted:
                        cursors.check_now()
                routes = {name: self._topics[name].route(engine) for name in shapes}
                if not all(route.has(shapes[name]) for name, route in routes.items()):
                    # A topic is another by now than the one that the records were placed by: they are placed anew.
                    continue
                writes = [
                    Write(routes[share.topic.name].partitions[share.index], each, share.expect)
                    for share, each in zip(shares, frames, strict=True)
                ]
                writes += _cursor_writes(enlisted)  # rule: cursors inside the transaction
                for share, first in zip(shares, self._transact(engine, writes, shares), strict=False):
                    share.first = first
                break
            except TopicNotFoundError:
                for cursors in enlisted:
                    if not cursors.group.partition.alive:
                        raise cursors.group.dropped() from None
                # A topic was dropped in between, and nothing was written: its successor takes the records.
                continue
            finally:
                engine.leave()
        for call, pieces in zip(calls, places, strict=True):
            ranges = {}
            for share, before, count in pieces:
                first = share.first + before
                ranges[share.index] = range(first, first + count)
            self.positions.append((call.topic.name, ranges))

    def _share(
        self, calls: list[Call], shapes: dict[str, Shape]
    ) -> tuple[list[Share], list[list[tuple[Share, int, int]]]]:
        """What goes to which partition; for each call its shares, with what is before it there and its own count."""
        shares: dict[tuple[str, int], Share] = {}
        places = []
        for call in calls:
            topic, shape = call.topic, shapes[call.topic.name]
            parts: dict[int, Intake]
            if call.partition is not None:
                parts = {checked_partition(call.partition, shape.count): call.intake}
            elif call.expect is not None and shape.count > 1:
                raise TypeError(f"expect_offset needs partition= here: {topic.name!r} has {shape.count} partitions.")
            else:
                parts = call.intake.by_partition(shape.count, shape.hash, partial(topic.sticky.next, shape.count))
            pieces = []
            for index, intake in parts.items():
                count = len(intake)
                if count:
                    share = shares.get((topic.name, index))
                    if share is None:
                        share = shares[topic.name, index] = Share(topic, index)
                    pieces.append((share, share.add(call, intake), count))
            places.append(pieces)
        if len(shares) > PARTICIPANTS_MAX:
            raise LimitError(
                f"The transaction writes to {len(shares)} partitions; the maximum is {PARTICIPANTS_MAX}.",
                hint="Nothing of it was written; commit it in smaller parts.",
            )
        return [*shares.values()], places

    def _transact(self, engine: Engine, writes: list[Write], shares: list[Share]) -> list[int]:
        try:
            return engine.store.transact(writes) if writes else []
        except CorruptionError as error:
            for write, share in zip(writes, shares, strict=False):
                if error.path is not None and error.path.startswith(write.partition.path):
                    name_damage(error, share.topic.name)
            raise


def _cursor_writes(enlisted: Iterable[Enlisted]) -> list[Write]:
    """One write for each group, whose check is made under the lock of its partition."""
    groups: dict[int, list[Enlisted]] = {}
    for cursors in enlisted:
        if cursors.moves:
            groups.setdefault(cursors.group.id, []).append(cursors)
    return [some[0].group.write([(each.record(), each.check) for each in some]) for some in groups.values()]


def _check_expected(engine: Engine, shares: list[Share]) -> None:
    """Compare expected offsets with the ends that stand now; under their locks the commit does it again."""
    for share in shares:
        if share.expect is not None:
            entry = engine.find(share.topic.name)
            if entry is not None and share.index >= len(entry.slots):
                # Another topic by now, which the commit finds out when it takes the routes.
                continue
            actual = 0 if entry is None else engine.partition(entry, share.index).end
            if share.expect != actual:
                raise OffsetMismatchError(
                    f"The next offset is {actual}, not {share.expect}.", expected=share.expect, actual=actual
                )


def _joined(pieces: list[tuple[Any, int]]) -> Rows:
    """Pieces of Python records as one."""
    values: list[Any] = []
    keys: list[Any] = []
    headers: list[bytes] = []
    times: list[int] = []
    for rows, time in pieces:
        count = len(rows)
        values += rows.values
        keys += _column(rows.keys, None, count, "keys")
        headers += _column(rows.headers, b"", count, "headers")
        times += _column(rows.times, time, count, "timestamps")
    return Rows(values, keys, headers, times)


def _column(given: Sequence[Any] | None, missing: Any, count: int, what: str) -> Sequence[Any]:
    if given is None:
        return [missing] * count
    if len(given) != count:
        raise ValueError(f"There are {count} values but {len(given)} {what}.")
    return given
