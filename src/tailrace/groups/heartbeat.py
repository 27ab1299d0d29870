"""Heartbeat: two words in a member's lock file that tell the other processes whether the member runs and polls.

The lock alone tells that the member's process has not ended: a process that was stopped (SIGSTOP) keeps it. The words
are stored into mapped memory, so a beat is no system call. Times are those of the monotonic clock, which all processes
of a machine share and which does not advance while the machine sleeps.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Literal, NamedTuple

if TYPE_CHECKING:
    from tailrace.disk import Files, Map

# The time of the last poll in microseconds, times two, plus one while the member waits inside poll; and the time at
# which the process's background thread last ran, 0 before it has.
_WORDS = struct.Struct("=QQ")
# A member that polls all the time stores its beat at most this often.
BEAT_SECONDS = 0.01
# The background thread beats twice a second, and may be held up by a sync.
RAN_SECONDS_MIN = 2.0

MemberState = Literal["alive", "stopped", "silent", "dead"]


class Seen(NamedTuple):
    """The content of a lock file: whether it is locked, when the member last polled, when its process last ran."""

    locked: bool
    polled: float
    waiting: bool
    ran: float

    def is_late(self, now: float, seconds: float) -> bool:
        """Return whether the member has not polled for `seconds`."""
        return now - self.polled > seconds

    def is_stopped(self, now: float, seconds: float) -> bool:
        """Return whether the process does not run: a member that waits in poll beats, as a background thread does."""
        if not self.waiting and not self.ran:
            return False
        bound = seconds if self.waiting else max(seconds, RAN_SECONDS_MIN)
        return now - max(self.polled, self.ran) > bound

    def state(self, now: float, answer_seconds: float, max_processing: float | None) -> MemberState:
        """Return the member's state in one word."""
        if not self.locked:
            return "dead"
        if self.is_stopped(now, answer_seconds):
            return "stopped"
        if max_processing is not None and self.is_late(now, max_processing):
            return "silent"
        return "alive"


GONE = Seen(False, 0.0, False, 0.0)


def look(files: Files, directory: str, member: str) -> Seen:
    """Read a member's lock file."""
    try:
        descriptor = files.open(f"{directory}/{member}")
    except FileNotFoundError:
        return GONE
    try:
        if files.lock(descriptor, shared=True):
            return GONE
        words = files.read(descriptor, _WORDS.size, 0)
    finally:
        files.close(descriptor)
    if len(words) < _WORDS.size:
        # It was locked a moment ago, before its words were written.
        return Seen(True, files.monotonic(), False, 0.0)
    polled, ran = _WORDS.unpack(words)
    return Seen(True, (polled >> 1) / 1e6, bool(polled & 1), ran / 1e6)


class Heartbeat:
    """The words of one member, written by its own process."""

    def __init__(self, files: Files, descriptor: int) -> None:
        self.polled = files.monotonic()
        self.waiting = False
        files.write(descriptor, _WORDS.pack(round(self.polled * 1e6) << 1, 0), 0)
        self.memory: Map = files.map(descriptor, _WORDS.size)

    def poll(self, now: float, *, waiting: bool) -> None:
        """Record that the member asks for records, and whether it waits for them."""
        if waiting is not self.waiting or now - self.polled >= BEAT_SECONDS:
            self.polled, self.waiting = now, waiting
            self._store(0, round(now * 1e6) << 1 | waiting)

    def run(self, now: float) -> None:
        """Record that the process runs; called by its background thread."""
        self._store(1, round(now * 1e6))

    def _store(self, index: int, word: int) -> None:
        try:
            self.memory.words[index] = word
        except ValueError:
            # Another thread has closed it in this moment.
            return

    def close(self) -> None:
        """Unmap the words: a mapping keeps the lock as a descriptor does. A second call does nothing."""
        self.memory.close()
