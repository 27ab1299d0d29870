"""Guard: which thread is inside a session, whether it waits there, and which thread asked for the close."""

from __future__ import annotations

import threading


class Guard:
    """Lets one thread at a time into a session; a signal handler finds out that its own thread is inside already."""

    def __init__(self) -> None:
        # Taken by `with` alone: an interrupt between acquire() or release() and the lines beside it could leave it
        # locked. The first line inside the `with` sets `thread`: a line before it would overwrite a thread that is
        # still inside, and without a call in between a signal handler always knows whose call it interrupted.
        self.mutex = threading.Lock()
        self.thread = 0
        # Whether the thread that is inside waits for an event, and nothing is half done.
        self.resting = False
        # Whether any thread asked for the close, which did so first, and whether it is done.
        self.closing = self.closed = False
        self.closed_by = 0

    def is_mine(self) -> bool:
        """Return whether the calling thread is inside already."""
        return self.mutex.locked() and self.thread == threading.get_ident()

    def ask_to_close(self) -> None:
        """Let the thread that is inside close the session when its call ends."""
        self.closed_by = self.closed_by or threading.get_ident()
        self.closing = True
