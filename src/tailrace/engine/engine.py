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

from tailrace.disk import Admin, Files, Store, by_system
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
from tailrace.settings import TopicSettings, refuse_unknown

if TYPE_CHECKING:
    from tailrace.disk import Catalog, Mode, Partition, TopicEntry, Watch
    from tailrace.groups.consumer import Consumer
    from tailrace.groups.heartbeat import Heartbeat
    from tailrace.settings import Tuning
    from tailrace.write.producer import Producer

Result = TypeVar("Result")

FILES = Files()
# How long a fork waits for a flush, and a close for appends in other threads.
FORK_WAIT_SECONDS = 2.0
CLOSE_WAIT_SECONDS = 2.0
# How long a process sleeps between two checks when it cannot announce that it waits.
REST_SECONDS = 0.001
_CLOSE_STEP_SECONDS = 0.0005


class Engine:
    """The state that the handles of one directory share.

    Handles call `acquire` and `release`; the last release closes the store. A forked child gets a new store at its
    first use, and a new `generation`, by which iterators, producers and transactions detect that they were copied.
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
        # Ids of the open handles: a set, because a finalizer may remove its own id between any two steps.
        self.handles: set[int] = set()
        self._renew()
        # The store of this process; None after a fork until its first use, and after the close.
        self.live: Store | None = self._watched(
            Store(files, path, mode, exclusive=exclusive, timeout=timeout, tuning=tuning)
        )
        # The store while it is being closed: after an interrupt the next close continues with it.
        self.leaving: Store | None = None

    def _renew(self) -> None:
        """Create the state that a child must not inherit: another thread of the parent may have held or counted it."""
        # Guards the catalog, the reopening and the end.
        self.mutex = threading.RLock()
        self._entered = count()
        self._left = count()
        # Called around every write, so that a close never closes a descriptor during one; counting is atomic.
        self.enter: Callable[[], int] = self._entered.__next__
        self.leave: Callable[[], int] = self._left.__next__
        self.watches: weakref.WeakSet[Watch] = weakref.WeakSet()
        # Runs retention and vacuum.
        self.worker = Background(self)
        # Producers that may still hold records that are not written.
        self.producers: set[Producer] = set()
        # Consumers that may hold partitions of a group.
        self.consumers: weakref.WeakSet[Consumer] = weakref.WeakSet()
        # Heartbeats of the group members in this process: the flusher thread runs them.
        self.heartbeats: set[Heartbeat] = set()

    # For the facade and the other packages.

    @property
    def store(self) -> Store:
        """The live store of this process."""
        return self.live or self._reopen()

    @property
    def frozen(self) -> bool:
        """Whether it shows the log as it was at the open, because no writing process has recovered it."""
        return isinstance(self.store.tails, FrozenTails)

    def refresh(self) -> Catalog:
        """Return the current catalog, with the changes of every process."""
        store = self.live or self._reopen()
        if store.catalog.offset != store.catalog_partition.end:
            with self.mutex:
                store.refresh()
        return store.catalog

    def find(self, name: str) -> TopicEntry | None:
        """Return a topic by its name; None if there is none."""
        return self.refresh().by_name.get(name)

    def entry(self, name: str) -> TopicEntry:
        """Return a topic by its name; raise TopicNotFoundError with the nearest name if there is none."""
        catalog = self.refresh()
        found = catalog.by_name.get(name)
        if found is None:
            raise topic_not_found(name, list(catalog.by_name))
        return found

    def partition(self, entry: TopicEntry, index: int) -> Partition:
        """Return one partition of a topic; raise VersionError if it has a setting that this version does not know."""
        refuse_unknown(entry.settings)
        return self.store.partition(entry.slots[index], entry.id)

    def change(self, action: Callable[[Admin], Result]) -> Result:
        """Change the catalog under `mutex`."""
        with self.mutex:
            return self.write(lambda: action(Admin(self.store)))

    def write(self, action: Callable[[], Result]) -> Result:
        """Run a function that writes, and keep the store open until it returns."""
        self.enter()
        try:
            if self.closed:
                raise ClosedError("The log is closed.")
            return action()
        finally:
            self.leave()

    def check_same(self, generation: int) -> None:
        """Raise ForkedError for an object that was copied by a fork."""
        if generation != self.generation:
            raise ForkedError("This object was made in the parent process, before a fork.")

    def watch(self, closes: str | None = None) -> Watch:
        """Return a watch that wakes when any process publishes, or when a handle closes; the caller closes it."""
        tails = f"{self.path}/tails"
        watch = self.files.watch(tails if self.files.stat(tails) is not None else self.path, closes)
        self.watches.add(watch)
        return watch

    def rest(self, watch: Watch, timeout: float, *, clear: bool = True) -> bool:
        """Wait for an event of a watch of this log; return True if the caller should look for changes."""
        store = self.live
        if store is not None:
            unheard = store.tails.announce()
            if unheard:
                return True
            if unheard is None:
                # Publishers cannot be told that this process waits, so the ends are polled.
                watch.wait(min(timeout, REST_SECONDS))
                return True
        return watch.wait(timeout, clear=clear)

    def wake(self) -> None:
        """End every wait, so that followers of a closed handle notice the close."""
        for watch in listed(self.watches):
            watch.wake()

    # Open and close.

    def _watched(self, store: Store) -> Store:
        """Return the same store, with the background thread attached to its hooks."""
        store.on_beat = self._beat
        store.context.on_seal = self.worker.poke
        return store

    def _beat(self) -> None:
        """Run the background work and the heartbeats; the flusher thread calls this about twice a second."""
        self.worker.beat()
        if self.heartbeats:
            now = self.files.monotonic()
            for each in list(self.heartbeats):
                each.run(now)

    def _reopen(self) -> Store:
        """In a forked child: open a store of its own, on first use."""
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
        """Release a handle; everything appended is on disk then, and the last release closes the store."""
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
                # Another thread released the last handle meanwhile, which brought everything to disk.
                return

    def close(self) -> None:
        """Close the store after the writes of other threads; call it again to finish an interrupted close."""
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
        """Wait for writes of other threads; an interrupted one may stay counted, but holds no lock."""
        store.let_go()
        began = time.monotonic()
        # Reading a counter increments it, so both are read each time to stay comparable.
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
    """The engines of this process, by directory: flock locks open files, so a directory has one writing store."""

    def __init__(self) -> None:
        self.mutex = threading.RLock()
        self.engines: dict[tuple[int, int, int, bool], Engine] = {}
        # Includes engines that were replaced in the table above while handles still use them.
        self.alive: set[Engine] = set()
        # Locks of the background threads, held during a fork.
        self.guards: list[threading.Lock] = []
        self.forking = False

    def acquire(
        self, files: Files, path: str, mode: Mode, *, exclusive: bool, timeout: float, tuning: Tuning, handle: int
    ) -> Engine:
        """Return the engine of a directory, opened or shared, with one more handle."""
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
            # Every handle was garbage-collected: the engine is closed before a new handle opens the directory.
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
        """Close an engine without handles; after an interrupt the next open, close or the exit finishes it."""
        try:
            engine.close()
        except Exception:
            self.remove(engine)
            raise
        self.remove(engine)

    def remove(self, engine: Engine) -> None:
        """Remove an engine that is closed."""
        self.alive.discard(engine)
        for key in [key for key, known in self.engines.items() if known is engine]:
            del self.engines[key]

    # At exit and around forks.

    def close_all(self) -> None:
        """At exit: write to disk what unclosed handles have buffered."""
        for engine in list(self.alive):
            consumers = [consumer.close for consumer in listed(engine.consumers)]
            for close in (*consumers, *[producer.close for producer in list(engine.producers)], engine.close):
                try:
                    close()
                except by_system(TailraceError, OSError):
                    # There is no caller to raise to at exit; recovery handles the same state.
                    continue
        self.engines.clear()
        self.alive.clear()

    def before_fork(self) -> None:
        """Take locks so that no fork copies a flush or an opening halfway; on a timeout the child leaks descriptors."""
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
    """Return the items of a set that other threads change."""
    while True:
        try:
            return list(some)
        except RuntimeError:
            # Another thread changed it during the iteration, which a WeakSet refuses.
            continue


def topic_settings(entry: TopicEntry) -> TopicSettings:
    """Return the settings of a topic; the number of partitions is the number of its slots."""
    return TopicSettings.from_json({**entry.settings, "partitions": len(entry.slots)})


def stored_settings(settings: TopicSettings) -> dict[str, Any]:
    """Return the settings as the catalog stores them: only those that differ from the default, for older versions."""
    return {name: value for name, value in altered_settings(settings).items() if value is not None}


def altered_settings(settings: TopicSettings) -> dict[str, Any]:
    """Return all settings with ages in seconds, and None for a default: in the catalog it removes an earlier value."""
    stored = settings.to_json()
    stored |= {name: getattr(settings, name) for name in ("segment_age", "retain", "dedupe_window")}
    del stored["partitions"]
    default = settings._field_defaults
    return {name: None if getattr(settings, name) == default[name] else value for name, value in stored.items()}


def name_damage(error: CorruptionError, topic: str) -> CorruptionError:
    """Return the same error with the name of the topic, which disk/ does not know."""
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
