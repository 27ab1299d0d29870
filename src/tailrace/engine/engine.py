"""The engine: the one store of a directory in this process, shared by every handle and carried over forks."""

from __future__ import annotations

import atexit
import os
import threading
import time
import weakref
from collections.abc import Callable
from itertools import count
from typing import TYPE_CHECKING, Any, TypeVar

from tailrace.disk.admin import Admin
from tailrace.disk.failures import by_system
from tailrace.disk.files import Files
from tailrace.disk.store import Store
from tailrace.disk.tails import FrozenTails
from tailrace.engine.background import Background
from tailrace.errors import (
    ClosedError,
    CorruptionError,
    ForkedError,
    LockedError,
    NotALogError,
    OpenError,
    TailraceError,
)
from tailrace.names import IDENTITY_NAME, topic_not_found
from tailrace.settings import TopicSettings

if TYPE_CHECKING:
    from tailrace.disk.catalog import Catalog, TopicEntry
    from tailrace.disk.opening import Mode
    from tailrace.disk.partition import Partition
    from tailrace.disk.watch import Watch
    from tailrace.groups.consumer import Consumer
    from tailrace.settings import Tuning
    from tailrace.write.producer import Producer

Result = TypeVar("Result")

FILES = Files()
# How long a fork waits for a flush, and a close for appends that are under way in other threads.
FORK_WAIT_SECONDS = 2.0
CLOSE_WAIT_SECONDS = 2.0
# How long a process sleeps between two looks when it cannot say that it waits.
REST_SECONDS = 0.001
_CLOSE_STEP_SECONDS = 0.0005


class Engine:
    """Everything that the handles of one directory share.

    Handles come and go by `acquire` and `release`; the last one closes the store. A forked child gets a new store at
    its first use, and a new `generation`, by which iterators, producers and transactions know that they were copied.
    """

    def __init__(self, files: Files, path: str, mode: Mode, exclusive: bool, timeout: float, tuning: Tuning) -> None:
        self.files = files
        self.path = path
        self.exclusive = exclusive
        self.timeout = timeout
        self.tuning = tuning
        self.writable = mode != "r"
        self.generation = 0
        self.closed = False
        # Ids of the open handles: a set, because a finalizer may take its own away between any two steps.
        self.handles: set[int] = set()
        self._renew()
        # The store of this process; None after a fork until somebody needs it, and after the close.
        self.live: Store | None = self._watched(
            Store(files, path, mode, exclusive=exclusive, timeout=timeout, tuning=tuning)
        )
        # The store while it is being closed: after an interrupt the next close goes on with it.
        self.leaving: Store | None = None

    def _renew(self) -> None:
        """What must not be inherited: another thread of the parent may have held or counted it."""
        # Guards the catalog, the reopening and the end.
        self.mutex = threading.RLock()
        self._entered = count()
        self._left = count()
        # Called around every write, so that a close never pulls a descriptor away under one; counting is one step.
        self.enter: Callable[[], int] = self._entered.__next__
        self.leave: Callable[[], int] = self._left.__next__
        self.watches: weakref.WeakSet[Watch] = weakref.WeakSet()
        # Keeps the disk bounded.
        self.worker = Background(self)
        # Those that may still hold records which nobody has written.
        self.producers: set[Producer] = set()
        # Those that may hold partitions of a group.
        self.consumers: weakref.WeakSet[Consumer] = weakref.WeakSet()

    # What the others use.

    @property
    def store(self) -> Store:
        """The live store of this process."""
        return self.live or self._reopen()

    @property
    def frozen(self) -> bool:
        """Whether it shows the log as it was when it was opened, because nobody who writes recovered it."""
        return isinstance(self.store.tails, FrozenTails)

    def refresh(self) -> Catalog:
        """The catalog as it stands now, in every process."""
        store = self.live or self._reopen()
        if store.catalog.offset != store.catalog_partition.end:
            with self.mutex:
                store.refresh()
        return store.catalog

    def find(self, name: str) -> TopicEntry | None:
        """A topic by its name, None when there is none."""
        return self.refresh().by_name.get(name)

    def entry(self, name: str) -> TopicEntry:
        """A topic by its name; TopicNotFoundError with the nearest name when there is none."""
        catalog = self.refresh()
        found = catalog.by_name.get(name)
        if found is None:
            raise topic_not_found(name, list(catalog.by_name))
        return found

    def partition(self, entry: TopicEntry, index: int) -> Partition:
        """One partition of a topic."""
        return self.store.partition(entry.slots[index])

    def change(self, action: Callable[[Admin], Result]) -> Result:
        """Change the catalog."""
        with self.mutex:
            return self.write(lambda: action(Admin(self.store)))

    def write(self, action: Callable[[], Result]) -> Result:
        """Run something that writes, and keep the store open as long."""
        self.enter()
        try:
            if self.closed:
                raise ClosedError("The log is closed.")
            return action()
        finally:
            self.leave()

    def check_same(self, generation: int) -> None:
        """Refuse what was carried over a fork."""
        if generation != self.generation:
            raise ForkedError("This object was made in the parent process, before a fork.")

    def watch(self, closes: str | None = None) -> Watch:
        """Something that wakes when any process publishes, or when a handle closes; the caller closes it."""
        tails = f"{self.path}/tails"
        watch = self.files.watch(tails if self.files.stat(tails) is not None else self.path, closes)
        self.watches.add(watch)
        return watch

    def rest(self, watch: Watch, timeout: float, *, clear: bool = True) -> bool:
        """Wait for an event of a watch of this log; True when something may have happened, so that a look is due."""
        store = self.live
        if store is not None:
            unheard = store.tails.announce()
            if unheard:
                return True
            if unheard is None:
                # Publishers cannot be told that somebody waits, so the ends are looked at as often as is bearable.
                watch.wait(min(timeout, REST_SECONDS))
                return True
        return watch.wait(timeout, clear=clear)

    def wake(self) -> None:
        """End every wait, so that followers of a closed handle notice."""
        for watch in listed(self.watches):
            watch.wake()

    # Life.

    def _watched(self, store: Store) -> Store:
        """The same store, with the worker looking after it."""
        store.on_beat = self.worker.beat
        store.context.on_seal = self.worker.poke
        return store

    def _reopen(self) -> Store:
        """In a forked child: a store of its own, on first use."""
        with self.mutex:
            if self.closed:
                raise ClosedError("The log is closed.")
            if self.live is None:
                if self.files.stat(f"{self.path}/{IDENTITY_NAME}") is None:
                    raise NotALogError(f"There is no longer a log at {self.path}.")
                mode: Mode = "a" if self.writable else "r"
                self.live = self._watched(
                    Store(
                        self.files, self.path, mode, exclusive=self.exclusive, timeout=self.timeout, tuning=self.tuning
                    )
                )
            return self.live

    def release(self, handle: int) -> None:
        """Give a handle back; what was appended is on disk then, and the last one closes the store."""
        with _registry.mutex:
            self.handles.discard(handle)
            if not self.handles:
                _registry.finish(self)
                return
        self.wake()
        store = self.live
        if store is not None and self.writable:
            try:
                self.write(store.flush)
            except ClosedError:
                # Another thread closed the last handle meanwhile, and with it everything is on disk.
                return

    def close(self) -> None:
        """Close the store, after the writes that other threads are inside of; again, to finish what was interrupted."""
        if not self.closed:
            self.worker.finish()
        with self.mutex:
            if self.live is not None:
                self.leaving, self.live = self.live, None
            self.closed = True
            store = self.leaving
        self.wake()
        if store is not None:
            self._let_out(store)
            store.close()
            self.leaving = None

    def _let_out(self, store: Store) -> None:
        """Wait for writes of other threads; one that was interrupted may never be counted out, but holds no lock."""
        store.let_go()
        began = time.monotonic()
        # Reading a count takes a step of it, which both must take to stay comparable.
        while next(self._entered) > next(self._left):
            waited = time.monotonic() - began
            holding = store.committer.lock.held or any(each.lock.held for each in list(store.partitions.values()))
            if waited > (self.timeout if holding else CLOSE_WAIT_SECONDS):
                return
            time.sleep(_CLOSE_STEP_SECONDS)

    def forget(self) -> None:
        """In a forked child: drop the parent's store without touching its locks."""
        store = self.live or self.leaving
        self.live = self.leaving = None
        self.generation += 1
        for producer in list(self.producers):
            producer.forget()
        for consumer in listed(self.consumers):
            consumer.forget()
        self.worker.forget()
        self._renew()
        if store is not None:
            store.forget()


class Registry:
    """The engines of this process, by directory: flock knows open files, so one directory has one writing store."""

    def __init__(self) -> None:
        self.mutex = threading.RLock()
        self.engines: dict[tuple[int, int, int, bool], Engine] = {}
        # Also those that were replaced in the table above while somebody still uses them.
        self.alive: set[Engine] = set()
        # Of the threads that must not be at work when a fork happens.
        self.guards: list[threading.Lock] = []
        self.forking = False

    def acquire(
        self, files: Files, path: str, mode: Mode, *, exclusive: bool, timeout: float, tuning: Tuning, handle: int
    ) -> Engine:
        """The engine of a directory, opened or shared, with one handle more."""
        with self.mutex:
            engine = self._shared(files, path, mode, exclusive)
            if engine is None:
                engine = Engine(files, path, mode, exclusive, timeout, tuning)
                key = self._key(files, path, engine.writable)
                self.alive.add(engine)
                if key is not None:
                    self.engines[key] = engine
            else:
                engine.timeout = engine.store.context.timeout = max(engine.timeout, timeout)
            engine.handles.add(handle)
            return engine

    def _shared(self, files: Files, path: str, mode: Mode, exclusive: bool) -> Engine | None:
        key = self._key(files, path, True)
        if key is None:
            return None
        engine = self.engines.get(key)
        if engine is not None and not engine.handles:
            # Every handle was forgotten: what they left open is closed before somebody else's begins.
            self.finish(engine)
            engine = None
        if mode == "r":
            if engine is not None and not engine.exclusive:
                return engine
            reading = self.engines.get((*key[:3], False))
            return None if reading is None or reading.frozen else reading
        if engine is None:
            return None
        if mode == "x":
            raise OpenError(f"{path} is a log already.", hint='Nothing was changed; open it with mode "a".')
        if engine.exclusive or exclusive:
            raise LockedError(
                f"{path} is open in this very process ({files.process_id()}), "
                + ("exclusively." if engine.exclusive else "so it cannot be opened exclusively."),
                pid=files.process_id(),
                host=files.host_name(),
                hint="Nothing was changed; close the other handle first, or share it.",
            )
        return engine

    def _key(self, files: Files, path: str, writable: bool) -> tuple[int, int, int, bool] | None:
        stat = files.stat(path)
        return None if stat is None else (id(files), stat.device, stat.inode, writable)

    def finish(self, engine: Engine) -> None:
        """Close an engine that has no handle; after an interrupt the next open, close or the exit finishes it."""
        try:
            engine.close()
        except Exception:
            self.remove(engine)
            raise
        self.remove(engine)

    def remove(self, engine: Engine) -> None:
        """Forget an engine that is closed."""
        self.alive.discard(engine)
        for key in [key for key, known in self.engines.items() if known is engine]:
            del self.engines[key]

    # At exit and around forks.

    def close_all(self) -> None:
        """At exit: bring to disk what handles that nobody closed have written."""
        for engine in list(self.alive):
            consumers = [consumer.close for consumer in listed(engine.consumers)]
            for close in (*consumers, *[producer.close for producer in list(engine.producers)], engine.close):
                try:
                    close()
                except by_system(TailraceError, OSError):
                    # Nobody is left to tell; recovery meets the same state.
                    continue
        self.engines.clear()
        self.alive.clear()

    def before_fork(self) -> None:
        """Let no fork copy a flush or an opening halfway; when one takes long, the child loses a few descriptors."""
        deadline = time.monotonic() + FORK_WAIT_SECONDS
        self.forking = self.mutex.acquire(timeout=FORK_WAIT_SECONDS)
        for engine in list(self.alive):
            store = engine.live
            for guard in () if store is None else (store.flusher.guard, engine.worker.guard):
                if guard.acquire(timeout=max(0.0, deadline - time.monotonic())):
                    self.guards.append(guard)

    def after_in_parent(self) -> None:
        while self.guards:
            self.guards.pop().release()
        if self.forking:
            self.forking = False
            self.mutex.release()

    def after_in_child(self) -> None:
        self.mutex = threading.RLock()
        self.guards = []
        self.forking = False
        for engine in list(self.alive):
            try:
                engine.forget()
            except by_system(TailraceError, OSError):
                # A descriptor that could not be closed is lost; the child opens its own.
                continue


def listed(some: weakref.WeakSet[Result]) -> list[Result]:
    """What is in a set that other threads change."""
    while True:
        try:
            return list(some)
        except RuntimeError:
            # Changed in this very moment, which a WeakSet does not bear.
            continue


def topic_settings(entry: TopicEntry) -> TopicSettings:
    """The settings of a topic; how many partitions it has follows from its slots."""
    return TopicSettings.from_json({**entry.settings, "partitions": len(entry.slots)})


def stored_settings(settings: TopicSettings) -> dict[str, Any]:
    """The settings as the catalog keeps them, with ages in seconds and None for what is not set."""
    stored = settings.to_json()
    del stored["partitions"]
    return {**stored, "segment_age": settings.segment_age, "retain": settings.retain}


def name_damage(error: CorruptionError, topic: str) -> CorruptionError:
    """The same error with the topic in it, which the disk does not know."""
    error.topic = error.topic or topic
    return error


_registry = Registry()
acquire = _registry.acquire
atexit.register(_registry.close_all)
os.register_at_fork(
    before=_registry.before_fork,
    after_in_parent=_registry.after_in_parent,
    after_in_child=_registry.after_in_child,
)
