"""The doctor: reports what is or will be wrong with a log, why it matters, and the command to run (docs/doctor.md).

Nothing is changed, no process waits for a lock of the doctor, and not all data is read. Facts are gathered first, as
plain values; each check decides by those alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, NamedTuple

from tailrace import settings
from tailrace.disk.failures import by_system
from tailrace.disk.gauges import collect
from tailrace.disk.opening import OWN_NAMES, RESTORING_NAME, broken_links, lacks_identity, read_identity
from tailrace.disk.repair.write import UNFINISHED_NAME
from tailrace.engine.engine import Engine
from tailrace.errors import CorruptionError, NotALogError, RecoveryNeededError, TailraceError, VersionError
from tailrace.maintain.doctor.commands import Commands, quote
from tailrace.maintain.doctor.groups import check_groups, check_retention, look_at_retention
from tailrace.maintain.doctor.groups import look as look_at_groups
from tailrace.maintain.doctor.kinds import KINDS, finding, named, worst_first
from tailrace.maintain.doctor.look import (
    LINKS,
    QUARANTINE,
    LockedDirectory,
    Words,
    lasting,
    partition_name,
    read_journal,
    read_leftover,
    read_locks,
    read_words,
)
from tailrace.maintain.doctor.machine import Machine
from tailrace.maintain.doctor.segments import SegmentSurvey, survey
from tailrace.maintain.doctor.space import check_room, check_segments, expect, growth_of, rate_of
from tailrace.maintain.doctor.state import (
    UPGRADE,
    check_damage,
    check_directories,
    check_journal,
    check_leftovers,
    check_locks,
    check_lost,
    check_newer,
    check_recovery,
    check_staged,
    check_words,
)
from tailrace.maintain.doctor.surroundings import (
    check_clock,
    check_limits,
    check_mount,
    check_permissions,
    check_read_only,
)
from tailrace.maintain.namespaces import nameless_in, namespaces_in
from tailrace.names import IDENTITY_NAME, is_internal

if TYPE_CHECKING:
    from tailrace.disk.catalog import Catalog
    from tailrace.disk.files import Files
    from tailrace.types import Finding

__all__ = ["KINDS", "Machine", "examine"]

# How long a reader waits for records that are being written.
TIMEOUT_SECONDS = 1.0


def examine(files: Files, path: str, *, namespace: str | None = None, machine: Machine | None = None) -> list[Finding]:
    """Return all findings about the log in a directory and about the namespaces in it, the worst first.

    With `namespace` the directory is that of a namespace: the outer log is two levels above it.
    """
    outer = path if namespace is None else path.rpartition("/")[0].rpartition("/")[0]
    commands = Commands(outer, namespace, path)
    return worst_first(_Examination(files, machine or Machine(), path, commands).run())


class _Opened(NamedTuple):
    """A log that can be read."""

    engine: Engine
    catalog: Catalog


class _Examination:
    """The examination of one log and of its namespaces."""

    def __init__(self, files: Files, machine: Machine, path: str, commands: Commands, *, inner: bool = False) -> None:
        self.files = files
        self.machine = machine
        self.path = path
        self.commands = commands
        # For a namespace the machine has been examined already.
        self.inner = inner

    def run(self) -> Iterator[Finding]:
        try:
            identity = read_identity(self.files, self.path)
            if identity is None:
                yield self._not_a_log()
                return
        except (NotALogError, CorruptionError) as error:
            yield finding("identity-damaged", f"{error.message.rstrip('.')}.", self._repair)
            return
        except VersionError as error:
            yield finding("newer-version", error.message, UPGRADE)
            return
        except by_system() as error:
            yield self._unreadable(error, "Looking at the directory")
            return
        if not self.inner:
            yield from self._guarded("Looking at the machine", self._machine)
        yield from self._open(identity[0])
        yield from self._guarded("Looking at the namespaces", self._namespaces)

    # Missing and unreadable logs.

    def _not_a_log(self) -> Finding:
        stat = self.files.stat(self.path)
        where = self.commands.directory
        if stat is None:
            parent = self.path.rpartition("/")[0] or "/"
            return finding("not-a-log", f"There is nothing at {self.path}.", f"ls -la {quote(parent)}")
        if not stat.directory:
            return finding("not-a-log", f"{self.path} is a file, not a directory.", f"ls -la {where}")
        names = self.files.list_directory(self.path)
        if RESTORING_NAME in names:
            what = f"{self.path} is not a log yet: a restore into it has not finished; run it again."
            return finding("not-a-log", what, f"ls -la {where}")
        if lacks_identity(self.files, self.path):
            what = f"{self.path}/{IDENTITY_NAME} is missing, though a log lies here."
            return finding("identity-damaged", what, self._repair)
        foreign = [name for name in names if name not in OWN_NAMES]
        if names and not foreign:
            what = f"{self.path} holds files of a log, and no {IDENTITY_NAME}: it was not made to the end."
        elif names:
            what = f"{self.path} is not a log: it holds {named(map(repr, foreign))} and no {IDENTITY_NAME}."
        else:
            what = f"{self.path} is an empty directory."
        return finding("not-a-log", what, f"ls -la {where}")

    def _unreadable(self, error: Exception, what: str) -> Finding:
        path = getattr(error, "filename", None) or getattr(error, "path", None) or self.path
        reason = getattr(error, "strerror", None) or str(error)
        where = quote(path) if isinstance(path, str) else self.commands.directory
        return finding("unreadable", f"{what} failed: {reason} ({path}).", f"ls -ld {where}")

    def _guarded(self, what: str, check: Callable[[], Iterable[Finding]]) -> Iterator[Finding]:
        """Yield the findings of a check; an error becomes a finding, and the other checks still run."""
        try:
            yield from check()
        except CorruptionError as error:
            yield finding("damaged-range", f"{what} met damage: {error}.", self._repair)
        except VersionError as error:
            yield finding("newer-version", f"{what} met what is newer: {error.message}", UPGRADE)
        except by_system(TailraceError, OSError) as error:
            yield self._unreadable(error, what)

    @property
    def _repair(self) -> str:
        return self.commands.tailrace("repair", options=("--dry-run",))

    # The machine.

    def _machine(self) -> Iterator[Finding]:
        machine, commands = self.machine, self.commands
        mount, room = machine.mount(self.path), machine.room(self.path)
        yield from check_mount(mount, commands)
        yield from check_read_only(room, mount, commands)
        below = [f"{self.path}/{name}" for name in self.files.list_directory(self.path)]
        for directory in ("journal", "catalog", "topics"):
            if self.files.stat(f"{self.path}/{directory}") is not None:
                inside = self.files.list_directory(f"{self.path}/{directory}")
                below += [f"{self.path}/{directory}/{name}" for name in inside]
        yield from check_permissions(machine, self.path, below, commands)

    # The log.

    def _open(self, log_id: bytes) -> Iterator[Finding]:
        engine: Engine | None = None
        catalog: Catalog | None = None
        try:
            engine = Engine(self.files, self.path, "r", False, TIMEOUT_SECONDS, settings.Tuning(background=False))
            catalog = engine.refresh()
        except RecoveryNeededError:
            # The check of the journal reports this with more detail.
            pass
        except CorruptionError as error:
            # The check of the journal reports this with more detail.
            if error.path != f"{self.path}/journal":
                code = "tails-damaged" if (error.path or "").endswith("/tails") else "catalog-damaged"
                yield finding(code, f"{error}.", self._repair)
        except VersionError as error:
            yield finding("newer-version", error.message, UPGRADE)
        except by_system(TailraceError, OSError) as error:
            yield self._unreadable(error, "Opening the log for reading")
        try:
            yield from self._guarded("Looking at the state", lambda: self._state(log_id, catalog))
            if engine is not None and catalog is not None:
                yield from self._inside(_Opened(engine, catalog))
        finally:
            if engine is not None:
                engine.close()

    def _state(self, log_id: bytes, catalog: Catalog | None) -> Iterator[Finding]:
        commands, now_us = self.commands, self.files.now_us()
        before = read_words(self.files, self.path, log_id, catalog)
        locks = read_locks(self.files, self.machine, self.path, self._places(catalog))
        words = before
        if before is not None and _is_busy(before):
            self.files.sleep(TIMEOUT_SECONDS / 10)
            words = lasting(before, read_words(self.files, self.path, log_id, catalog))
        yield from check_locks(locks, self.machine, now_us, commands)
        yield from check_words(words, locks, commands)
        journal = read_journal(self.files, self.path, log_id)
        yield from check_recovery(words, journal, locks, commands)
        yield from check_journal(words, journal, commands)
        unfinished = f"{self.path}/{UNFINISHED_NAME}"
        if self.files.stat(unfinished) is not None and (locks is None or locks.alone is None):
            what = f"A repair was begun and did not come to its end: it left {unfinished}."
            yield finding("repair-unfinished", what, commands.tailrace("repair"))
        links = read_leftover(self.files, f"{self.path}/{LINKS}")
        if locks is None or locks.backup:
            links = links._replace(files=0)
        yield from check_leftovers(read_leftover(self.files, f"{self.path}/{QUARANTINE}"), links, commands)

    def _places(self, catalog: Catalog | None) -> dict[str, LockedDirectory]:
        places = {
            "the journal": LockedDirectory(f"{self.path}/journal"),
            "the catalog": LockedDirectory(f"{self.path}/catalog", 0),
        }
        for place in () if catalog is None else catalog.places():
            name = partition_name(catalog.by_id[place.topic_id].name, place.partition) if catalog is not None else ""
            places[name] = LockedDirectory(f"{self.path}/{place.directory}", place.slot)
        return places

    def _inside(self, opened: _Opened) -> Iterator[Finding]:
        """Yield the findings that need a log which can be read."""
        found = SegmentSurvey()

        def segments() -> Iterator[Finding]:
            nonlocal found
            found = survey(opened.engine)
            yield from check_damage(found.damage, self.commands)
            yield from check_lost(found.lost, self.commands)
            yield from check_directories(found.missing, self.commands)
            yield from check_newer(found.newer)

        yield from self._guarded("Looking at the segments", segments)
        yield from self._guarded("Looking at the groups", lambda: self._groups(opened.engine, found))
        yield from self._guarded("Looking at sizes and times", lambda: self._sizes(opened, found))

    def _groups(self, engine: Engine, found: SegmentSurvey) -> Iterator[Finding]:
        deadline = self.files.monotonic() + settings.TUNING.doctor_groups_seconds
        groups, left = look_at_groups(engine, self.machine, found.looks, deadline)
        if left:
            what = f"{len(left):,} groups were not looked at, for want of time: {named(left)}."
            yield finding("not-looked-at", what, self.commands.tailrace("group ls"))
        yield from check_groups(groups, self.files.now_us(), self.commands)
        waiting, unread = look_at_retention(engine, deadline)
        yield from check_retention(waiting, unread, groups, self.commands)

    def _sizes(self, opened: _Opened, found: SegmentSurvey) -> Iterator[Finding]:
        commands, now_us = self.commands, self.files.now_us()
        users = [entry for entry in opened.catalog.by_name.values() if not is_internal(entry.name)]
        looks = [look for look in found.looks if not is_internal(look.topic)]
        newest = [(look.name, look.newest) for look in looks if look.newest is not None]
        yield from check_clock(found.looks, newest, now_us, commands)
        yield from check_segments(looks, found.counts, commands)
        staged = []
        for path in found.staged:
            stat, time = self.files.stat(path), self.machine.modified(path)
            if stat is not None and time is not None:
                staged.append((path, stat.size, time))
        yield from check_staged(staged, now_us / 1e6, commands)
        if self.inner:
            return
        stat = self.files.stat(f"{self.path}/stats")
        # An empty file has no figures, and opening a pipe would wait for a writer.
        lately = collect(self.files, f"{self.path}/stats").bytes_per_second if stat is not None and stat.size else 0.0
        sizes: dict[str, int] = {}
        for look in looks:
            sizes[look.topic] = sizes.get(look.topic, 0) + look.bytes
        growth = [growth_of(entry, sizes.get(entry.name, 0)) for entry in users]
        room = self.machine.room(self.path)
        room = room._replace(free_bytes=min(room.free_bytes, self.files.free_bytes(self.path)))
        rate, left = expect(room.free_bytes, rate_of(looks, now_us), lately, growth)
        yield from check_room(room, left, rate, commands)
        partitions = sum(len(entry.slots) for entry in users)
        yield from check_limits(partitions, self.machine.descriptors_max(), self.machine.event_queues())

    # Namespaces.

    def _namespaces(self) -> Iterator[Finding]:
        deadline = self.files.monotonic() + settings.TUNING.doctor_namespaces_seconds
        left = []
        for link in broken_links(self.files, self.path):
            yield finding("unreadable", f"{link} is a symbolic link that leads nowhere.", f"ls -ld {quote(link)}")
        for name, location in [*namespaces_in(self.files, self.path), *nameless_in(self.files, self.path)]:
            if self.files.monotonic() > deadline:
                left.append(name)
                continue
            yield from self._namespace(name, location)
        if left:
            what = f"{len(left):,} namespaces were not looked at, for want of time: {named(left)}."
            yield finding("not-looked-at", what, Commands(self.path, left[0]).tailrace("doctor"))

    def _namespace(self, name: str, location: str) -> Iterator[Finding]:
        """Yield the findings of one namespace, unless it was dropped meanwhile: half of it looks damaged."""
        commands = Commands(self.path, name, location)
        before = _known_id(self.files, location)
        found = list(_Examination(self.files, self.machine, location, commands, inner=True).run())
        if _known_id(self.files, location) == before:
            for each in found:
                if each.code != "not-a-log":
                    yield each._replace(what=f"Namespace {name!r}: {each.what}")


def _known_id(files: Files, path: str) -> bytes | None:
    """Return the id of the log at a path, None without one, empty if it cannot be read."""
    try:
        identity = read_identity(files, path)
    except by_system(TailraceError, OSError):
        return b""
    return None if identity is None else identity[0]


def _is_busy(words: Words) -> bool:
    return bool(words.slots or words.unresolved or words.mismatches or words.blind)
