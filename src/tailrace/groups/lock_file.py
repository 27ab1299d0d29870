"""Lock file: locked as long as its member lives, because the kernel unlocks it when the process ends."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tailrace.disk import by_system
from tailrace.groups.heartbeat import Heartbeat, look

if TYPE_CHECKING:
    from tailrace.disk import Files, Watch
    from tailrace.engine.engine import Engine

MEMBERS = "members"


def members_directory(engine: Engine, group_id: int) -> str:
    """Return the directory with the lock files of a group's members."""
    return f"{engine.path}/{MEMBERS}/{group_id:08x}"


def is_alive(files: Files, directory: str, member: str) -> bool:
    """Return whether a member's lock file is locked."""
    return look(files, directory, member).locked


class LockFile:
    """One member's own lock file, with the heartbeat in it and the watch that tells of the others' deaths."""

    def __init__(self, engine: Engine, directory: str, member: str) -> None:
        self.engine = engine
        self.files: Files = engine.files
        self.directory = directory
        self.path = f"{directory}/{member}"
        self.descriptor = -1
        self.heartbeat: Heartbeat | None = None
        self.watch: Watch | None = None

    def take(self) -> bool:
        """Create and lock the file; False when another process has locked it.

        Whatever this raises, `release` gives back what was taken.
        """
        files = self.files
        files.make_directory(f"{self.engine.path}/{MEMBERS}")
        files.make_directory(self.directory)
        # The watch is armed before the first look at anything, so that nothing is missed, and before the lock is taken:
        # Linux closes the highest descriptors of a dead process first, and closing an event queue takes it ten
        # milliseconds, for which the others would wait.
        self.watch = self.engine.watch(self.directory)
        self.descriptor = files.open(self.path, exclusive=True)
        if not files.lock(self.descriptor):
            return False
        self.heartbeat = Heartbeat(files, self.descriptor)
        self.engine.heartbeats.add(self.heartbeat)
        return True

    def release(self) -> None:
        """Remove and unlock the file, which looks like a death to the others. Safe to repeat after an interrupt."""
        if self.watch is not None:
            self.watch.close()
            self.watch = None
        if self.descriptor >= 0:
            try:
                self.files.remove_file(self.path)
            except by_system():
                # The group's files were removed already, or the member that takes over removes this one.
                pass
            self._stop_beating()
            # Nothing is called between these two, so that no interrupt parts them.
            descriptor, self.descriptor = self.descriptor, -1
            self.files.close(descriptor)

    def forget(self) -> None:
        """In a forked child: close what was inherited without unlocking, which would unlock the parent's file."""
        self._stop_beating()
        descriptor, self.descriptor = self.descriptor, -1
        if descriptor >= 0:
            self.files.close(descriptor)
        if self.watch is not None:
            self.watch.close()
        self.watch = None

    def _stop_beating(self) -> None:
        if self.heartbeat is not None:
            self.engine.heartbeats.discard(self.heartbeat)
            self.heartbeat.close()
            self.heartbeat = None

    def beat(self, *, waiting: bool | None = None) -> None:
        """Tell the others that the member polls, and whether it waits inside poll; None leaves that as it is."""
        heartbeat = self.heartbeat
        if heartbeat is not None:
            heartbeat.poll(self.files.monotonic(), waiting=heartbeat.waiting if waiting is None else waiting)

    def silent_seconds(self) -> float:
        """Return the time since the member last polled; 0.0 for one without a heartbeat."""
        heartbeat = self.heartbeat
        return 0.0 if heartbeat is None else self.files.monotonic() - heartbeat.polled
