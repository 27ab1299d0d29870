"""Many syncs at once: they share the commits of the file system, which are most of the cost of a sync."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

from tailrace.disk.lock import insist

Item = TypeVar("Item")

# Fewer are not worth the threads.
TOGETHER_MIN = 32
THREADS = 16
_LOOK_SECONDS = 0.0002


def sync_all(sync: Callable[[Item], None], items: Sequence[Item]) -> None:
    """Sync many items, several at a time; raise the first error.

    When this returns or raises, no other thread is inside a sync or will begin one, whatever interrupted it: the caller
    then releases the locks that the syncs need.
    """
    if len(items) < TOGETHER_MIN:
        for item in items:
            sync(item)
        return
    shared = _Shared(sync, items)
    interrupted: BaseException | None = None
    try:
        shared.start_threads()
        shared.work()
        shared.finish()
    except BaseException as error:  # noqa: BLE001  # raised below, once no thread is at work
        interrupted = error
    # Nothing is called between the exception and this `try`, so that an interrupt only delays the wait.
    while interrupted is not None:
        try:
            interrupted = insist(shared.finish, interrupted)
            break
        except KeyboardInterrupt as error:
            interrupted = error
    if interrupted is not None:
        raise interrupted
    if shared.errors:
        raise shared.errors[0]


class _Shared(Generic[Item]):
    """The items that the calling thread and its helpers share."""

    def __init__(self, sync: Callable[[Item], None], items: Sequence[Item]) -> None:
        self.action = sync
        self.waiting = deque(items)
        self.errors: list[BaseException] = []
        # A helper adds itself to `helpers` before it looks at this, and the caller sets this before it looks at
        # `helpers`: one of the two sees the other. A join would not do, because an interrupt inside Thread.start can
        # leave a running thread that the caller has no reference to.
        self.closed = False
        self.helpers: set[int] = set()

    def start_threads(self) -> None:
        """Start the helpers, as many as the system allows."""
        try:
            for _ in range(THREADS - 1):
                threading.Thread(target=self.help, name="tailrace-sync", daemon=True).start()
        except RuntimeError:
            # An interpreter that is shutting down starts no threads, and neither does a system that has too many.
            return

    def help(self) -> None:
        """Work in a helper thread."""
        thread = threading.get_ident()
        self.helpers.add(thread)
        try:
            self.work()
        finally:
            self.helpers.discard(thread)

    def work(self) -> None:
        """Sync one item after another, until there are none or one of them failed."""
        while not self.closed and not self.errors:
            try:
                item = self.waiting.popleft()
            except IndexError:
                return
            try:
                self.action(item)
            except Exception as error:  # noqa: BLE001  # raised by the calling thread
                self.errors.append(error)

    def finish(self) -> None:
        """Stop helpers from starting another item, and wait for the current one of each; may be repeated."""
        self.closed = True
        while self.helpers:
            time.sleep(_LOOK_SECONDS)
