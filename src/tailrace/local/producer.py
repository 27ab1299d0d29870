"""Sending the batches of a producer into a topic of a log in a directory."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from tailrace.disk import RecipeChanged
from tailrace.engine.engine import name_damage
from tailrace.engine.reentrancy import refuse_handler
from tailrace.errors import ClosedError, CorruptionError, TopicNotFoundError
from tailrace.limits import PARTICIPANTS_MAX
from tailrace.write.futures import PartitionBatch

if TYPE_CHECKING:
    from collections.abc import Callable

    from tailrace.local.topic import LocalTopic
    from tailrace.write.futures import PendingBatch
    from tailrace.write.producer import Producer
    from tailrace.write.recipe import Recipe
    from tailrace.write.route import Route


class LocalProducer:
    """Where a producer sends its batches; it belongs to the process that made it."""

    def __init__(self, topic: LocalTopic) -> None:
        self.topic = topic
        self.engine = topic.log.writing()
        self.generation = self.engine.generation

    def add(self, producer: Producer) -> None:
        """Register a producer, so that a close of the log closes it; raise ClosedError if the log is closed."""
        self.engine.producers.add(producer)
        if self.topic.log.closed:
            # The log was closed after its engine was fetched: the close may have collected its producers already.
            self.engine.producers.discard(producer)
            raise ClosedError("The log is closed.")

    def discard(self, producer: Producer) -> None:
        """Remove a producer that has sent everything."""
        self.engine.producers.discard(producer)

    def clock_ns(self) -> Callable[[], int]:
        """Return the clock that gives records their time, in nanoseconds."""
        return self.engine.files.clock_ns()

    def check_same(self) -> None:
        """Raise ForkedError in a child of the process that made the producer."""
        self.engine.check_same(self.generation)

    def is_forked(self) -> bool:
        """Return whether this is a child of the process that made the producer."""
        return self.generation != self.engine.generation

    def refuse_handler(self, what: str) -> None:
        """Raise BusyError in a signal handler that interrupted a write of its own thread."""
        refuse_handler(self.engine, what)

    def prepare(self, value: bytes | None, key_bytes: int) -> Recipe:
        """Create the topic for a first record, and return what the topic takes."""
        shape = self.topic.shape(self.engine)
        shape.check_first(value, key_bytes, None, None)
        recipe = self.topic.route(self.engine).recipe
        if recipe.schema is not None and recipe.schema != shape.recipe.schema:
            recipe.schema.check_one(value, self.topic.name)
        return recipe

    def send(self, batch: PendingBatch) -> tuple[Recipe | None, BaseException | None]:
        """Write a batch and settle its futures; return what the topic takes (None: unknown) and the first error."""
        failed: BaseException | None = None
        engine = self.engine
        route: Route | None = None
        recipe: Recipe | None = None
        checked = batch.schema
        parts = [PartitionBatch(0, range(len(batch)))] if len(batch) else []
        batch.seal()
        engine.enter()
        try:
            while parts:
                size = len(parts)
                try:
                    if route is None:
                        route = self.topic.route(engine, expiring=batch.expiries is not None)
                        parts = batch.place(parts, route, partial(self.topic.sticky.next, route.count))
                    recipe = route.recipe
                    if recipe.schema is not None and recipe.schema != checked:
                        # The topic got this schema after the records were taken.
                        failed = failed or batch.refuse(parts, recipe.schema, self.topic.name)
                        checked = recipe.schema
                        parts = [part for part in parts if part.places]
                        if not parts:
                            break
                    # Durable writes share one commit. Others are written partition by partition.
                    size = PARTICIPANTS_MAX if route.durable == 0.0 else 1
                    now = engine.files.now_us()
                    writes = [batch.write(part, route, now) for part in parts[:size]]
                    firsts = route.store.extend(writes, route.durable)
                except RecipeChanged:
                    # Settings were altered after the frames were built, and nothing was written.
                    route = None
                    continue
                except TopicNotFoundError:
                    # The topic was dropped after the route was taken: its successor takes the rest, with its own
                    # partitions.
                    route = None
                    continue
                except Exception as error:  # noqa: BLE001  # any error must reach the threads that wait for the futures
                    failed = failed or error
                    if isinstance(error, CorruptionError):
                        name_damage(error, self.topic.name)
                    for part in parts[:size]:
                        part.error = error
                        batch.settle(part)
                else:
                    for part, first in zip(parts, firsts, strict=False):
                        part.first = first
                        batch.settle(part)
                del parts[:size]
        finally:
            engine.leave()
        return recipe, failed
