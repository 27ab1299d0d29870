"""The transaction: appends to several topics that become visible together, or not at all."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn, Self

from tailrace.arguments import parse_count, parse_offsets, parse_once, parse_time, parse_ttl
from tailrace.errors import ClosedError, CommittedNotVisibleError, ThreadError
from tailrace.names import validate_topic_name
from tailrace.records import encode_data, encode_headers
from tailrace.topics import Topic
from tailrace.write.intake import UNSET, Rows, check_sizes, encode_value, take_in

if TYPE_CHECKING:
    from datetime import datetime

    from tailrace.groups.commits import Enlisted
    from tailrace.log import Log
    from tailrace.types import Data, Duration
    from tailrace.write.intake import Intake
    from tailrace.write.recipe import Recipe
    from tailrace.write.schema import Checker


class Call(NamedTuple):
    """One append or extend, with its arguments."""

    topic: Topic
    intake: Intake
    partition: int | None
    expect: int | None
    # When it was called: the time of records without a timestamp, and the start of their life.
    time: int
    # The schema that the values were checked with.
    schema: Checker | None = None


class DeleteCall(NamedTuple):
    """One deletion: sorted ranges of offsets in one partition."""

    topic: Topic
    ranges: Sequence[tuple[int, int]]
    partition: int


class Transaction:
    """Collects appends and commits them when `with` ends without an error; before, it writes nothing and holds no lock.

    One thread at a time. After the commit `positions` has one entry per call: the topic and its offsets by partition.
    With once=(name, number) `repeated` says, inside of `with` already, that this number or a higher one was committed
    before: then nothing is written, and `positions` stays empty.
    """

    def __init__(self, log: Log, once: tuple[str, int] | None = None) -> None:
        self.log = log
        self.once = None if once is None else parse_once(once)
        self.repeated = False
        self.positions: list[tuple[str, dict[int, range]]] = []
        self._calls: list[Call] = []
        # Cursors of consumers that are committed with it.
        self._enlisted: list[Enlisted] = []
        self._removals: list[DeleteCall] = []
        self._topics: dict[str, Topic] = {}
        # What each topic takes, looked up once: the commit checks again.
        self._recipes: dict[str, Recipe] = {}
        self._thread: int | None = None
        self._over = False
        self._backend = log.backend.transaction()
        self._now_us = self._backend.now_us

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
        ttl: Duration | None = None,
        partition: int | None = None,
        expect_offset: int | None = None,
    ) -> None:
        """Add one record; with `expect_offset` the whole commit fails unless the record gets exactly that offset."""
        now = self._now_us()
        target = self._target(topic)
        data = value if type(value) is bytes and json is UNSET else encode_value(value, json, key)
        stored = encode_headers(headers) if headers is not None else b""
        key = None if key is None else encode_data(key, "key")
        recipe = self._recipes.get(target.name) or self._recipe(target)
        check_sizes(len(data or b""), len(key or b""), recipe.value_bytes_max)
        if recipe.schema is not None:
            recipe.schema.check_one(data, target.name)
        times = None if timestamp is None else [parse_time(timestamp, "timestamp", now_us=now)]
        expect = None if expect_offset is None else parse_count(expect_offset, "expect_offset")
        life = None if ttl is None else parse_ttl(ttl)
        rows = Rows([data], None if key is None else [key], [stored] if stored else None, times, ttl=life)
        self._calls.append(Call(target, rows, partition, expect, now, recipe.schema))

    def extend(
        self,
        topic: Topic | str,
        values: Iterable[Data | None] | Any,
        *,
        keys: Iterable[Data | None] | None = None,
        json: bool = False,
        headers: Iterable[Mapping[str, Data] | None] | None = None,
        timestamps: Iterable[datetime | int] | None = None,
        ttl: Duration | None = None,
        partition: int | None = None,
    ) -> None:
        """Add many records, with the arguments of Topic.extend."""
        now = self._now_us()
        target = self._target(topic)
        intake = take_in(values, keys, json=json, headers=headers, timestamps=timestamps, ttl=ttl)
        recipe = self._recipes.get(target.name) or self._recipe(target)
        if recipe.schema is not None:
            intake.check(recipe.schema, target.name)
        self._calls.append(Call(target, intake, partition, None, now, recipe.schema))

    def delete(self, topic: Topic | str, offsets: int | Iterable[int], partition: int = 0) -> None:
        """Remove single records of a mutable topic with this transaction, with the arguments of Topic.delete."""
        self._removals.append(DeleteCall(self._target(topic), parse_offsets(offsets), partition))

    def take(self, topic: Topic | str, intake: Intake, schema: Checker | None = None) -> None:
        """Add records that are already encoded, and checked with a schema."""
        self._calls.append(Call(self._target(topic), intake, None, None, self._now_us(), schema))

    def enlist(self, cursors: Enlisted) -> None:
        """Commit cursors of a consumer with this transaction: called by Consumer.commit(tx)."""
        self._check()
        self._backend.check_cursors(cursors)
        self._enlisted.append(cursors)

    def __enter__(self) -> Self:
        if self._over or self._thread is not None:
            raise ClosedError("A transaction is entered once.", hint="Begin another one with log.transaction().")
        self._backend.check_same()
        if self.once is not None:
            # Told early, so that the caller need not do the work again; the commit decides.
            self.repeated = self._backend.is_repeated(self.once)
        self._thread = threading.get_ident()
        return self

    def __exit__(self, kind: type[BaseException] | None, *exc: object) -> None:
        if kind is None:
            self._check()
        calls, self._calls = self._calls, []
        enlisted, self._enlisted = self._enlisted, []
        removals, self._removals = self._removals, []
        self._over = True
        error: BaseException | None = None
        try:
            if kind is None and (calls or enlisted or removals or self.once is not None):
                positions = self._backend.commit(calls, enlisted, removals, self.once)
                self.repeated = positions is None
                self.positions += positions or ()
        except CommittedNotVisibleError:
            # The transaction is on disk, with its cursors.
            raise
        except BaseException as problem:
            error = problem
            raise
        finally:
            for cursors in enlisted:
                if kind is None and error is None and not self.repeated:
                    cursors.done()
                else:
                    cursors.failed(error)

    # Before the commit.

    def _recipe(self, topic: Topic) -> Recipe:
        recipe = self._recipes[topic.name] = topic.backend.recipe()
        return recipe

    def _check(self) -> None:
        self._backend.check_same()
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
            # A pattern is a handle as well, but cannot be written to.
            validate_topic_name(topic.name, internal=True)
            return self._topics.setdefault(topic.name, topic)
        known = self._topics.get(topic)
        if known is None:
            known = self._topics[topic] = Topic(self.log, validate_topic_name(topic), {})
        return known
