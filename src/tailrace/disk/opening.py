"""Opening a directory: creation, the lock held while open, identity, recovery if the tails are not valid."""

from __future__ import annotations

import errno
import json
import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from tailrace.disk.catalog import CATALOG_INCARNATION
from tailrace.disk.context import storage_error
from tailrace.disk.failures import by_system
from tailrace.disk.previous_tails import is_copy
from tailrace.disk.recovery import Recovery, build_tails
from tailrace.disk.segment import segment_base
from tailrace.disk.tails import (
    DIRTY,
    IDENTITY,
    INCARNATION,
    READY_WORD,
    UNRESOLVED_WORD,
    FrozenTails,
    Tails,
    word_of,
)
from tailrace.errors import CorruptionError, LockedError, NotALogError, OpenError, ReadOnlyError, VersionError
from tailrace.limits import JOURNAL_BYTES_MAX, JOURNAL_BYTES_MIN
from tailrace.names import IDENTITY_NAME, marked_topic, unescape

if TYPE_CHECKING:
    from tailrace.disk.catalog import Catalog
    from tailrace.disk.files import Files
    from tailrace.disk.recovery import RecoveredLog
    from tailrace.settings import Tuning

FORMAT_VERSION = 1
# The features that a process must support in order to open a log; this version has none, so no log uses any.
FEATURES: frozenset[str] = frozenset()
IDENTITY_BYTES_MAX = 65_536
OWN_NAMES = frozenset(
    {
        "lock",
        "tails",
        "tails.new",
        "stats",
        "stats.new",
        "journal",
        "catalog",
        "topics",
        "namespaces",
        "members",
        "quarantine",
        "repair.unfinished",
        "backup-links",
        f"{IDENTITY_NAME}.new",
    }
)
# Among the settings of a copy: the id of the log it was copied from, equal to its own until it has another.
COPIED_FROM = "copied_from"
# Among the settings of a log that was recovered and whose marks were not compared with its records yet.
MARKS_UNCHECKED = "marks_unchecked"
# Exists in a directory that a restore turns into a log, until it is one.
RESTORING_NAME = "restore.unfinished"
FOREIGN_WAIT_SECONDS = 5.0
RETRY_SECONDS = 0.01
_TOPIC_DIRECTORY = re.compile("[0-9a-f]{8}-")
LOOKS_MAX = 5
LOOK_AGAIN_SECONDS = 0.05
CONTENTION_SECONDS = 0.25

Mode = Literal["a", "r", "x"]


class OpenedLog(NamedTuple):
    """An open directory: its identity, its tails, and the lock that keeps other processes from recovering it."""

    log_id: bytes
    settings: dict[str, Any]
    tails: Tails
    lock: int


# Compares the marks of a recovered log with its records; called under the exclusive lock.
CheckMarks = Callable[[OpenedLog], None]


def open_directory(
    files: Files, path: str, mode: Mode, *, exclusive: bool, timeout: float, tuning: Tuning, check_marks: CheckMarks
) -> OpenedLog:
    """Open or create the log in a directory."""
    if mode == "r":
        return _open_reading(files, path)
    try:
        return _Opening(files, path, mode, exclusive, timeout, tuning, check_marks).run()
    except PermissionError as error:
        raise ReadOnlyError(f"{error.filename or path} cannot be written to: {error.strerror}.") from error
    except by_system() as error:
        if isinstance(error, OpenError):
            raise
        raise storage_error(error, f"opening {path}", path) from error


def _open_reading(files: Files, path: str) -> OpenedLog:
    identity = read_identity(files, path)
    if identity is None:
        if files.stat(f"{path}/{RESTORING_NAME}") is not None:
            raise _half_restored(path)
        if lacks_identity(files, path):
            raise _missing_identity(path)
        raise NotALogError(f"There is no log at {path}.", hint="Nothing was created; name the directory of a log.")
    log_id, settings = identity
    tails = believable_tails(files, path, log_id, write=False)
    if tails is not None:
        if _settled(files, tails):
            return OpenedLog(log_id, settings, tails, -1)
        tails.close()
    _refuse_without_journal(files, path)
    copied, former = _origin(files, path, log_id, settings)
    survey = Recovery(files, path, log_id, write=False, copied=copied, former=former).run()
    data = build_tails(files.boot_id(), 0, 0, log_id, survey.slots, survey.catalog.next_slot)
    return OpenedLog(log_id, settings, FrozenTails(files, f"{path}/tails", data), -1)


def believable_tails(files: Files, path: str, log_id: bytes, *, write: bool) -> Tails | None:
    """Return the tails of a log if they are of this boot, this file and this log; None otherwise."""
    if files.stat(f"{path}/tails") is None:
        return None
    try:
        tails = Tails(files, f"{path}/tails", write=write)
    except ValueError:
        return None
    if tails.belongs(log_id):
        return tails
    tails.close()
    return None


def _half_restored(path: str) -> NotALogError:
    return NotALogError(
        f"{path} is not a log yet: a restore into it has not finished.",
        hint="Nothing was changed; run the restore into this directory again, or remove it.",
    )


def _settled(files: Files, tails: Tails) -> bool:
    """Return whether the words agree with the blocks; a live writer may be storing them, so they are checked again."""
    for _ in range(LOOKS_MAX):
        if not tails.mismatches(strict=False):
            return True
        files.sleep(RETRY_SECONDS)
    return False


def read_identity(files: Files, path: str) -> tuple[bytes, dict[str, Any]] | None:
    """Return the id and fixed settings of the log in a directory, or None if there is none."""
    name = f"{path}/{IDENTITY_NAME}"
    try:
        stat = files.stat(name)
        if stat is None:
            return None
        # An empty file has no identity, and opening a pipe would wait for a writer.
        descriptor = files.open(name) if stat.size else -1
    except FileNotFoundError:
        return None
    data = b""
    if descriptor >= 0:
        try:
            data = files.read(descriptor, min(stat.size, IDENTITY_BYTES_MAX), 0)
        finally:
            files.close(descriptor)
    try:
        record = json.loads(data)
        newer = record.get("format") if isinstance(record, dict) else None
        if type(newer) is int and newer > FORMAT_VERSION:
            # Only that version can read the rest of it.
            raise VersionError(f"{path} has format {newer}, and this version of Tailrace knows {FORMAT_VERSION}.")
        refuse_features(record["features"], path)
        log_id = bytes.fromhex(record["id"])
        version = int(record["format"])
        settings = dict(record["settings"])
    except (ValueError, KeyError, TypeError, ArithmeticError, RecursionError) as error:
        raise _damaged_identity(files, path, f"{name} cannot be understood") from error
    if version != FORMAT_VERSION:
        raise VersionError(f"{path} has format {version}, and this version of Tailrace knows {FORMAT_VERSION}.")
    if len(log_id) != 16:
        raise _damaged_identity(files, path, f"{name} has no valid id")
    size = settings.get("journal_bytes", JOURNAL_BYTES_MIN)
    if type(size) is not int or not JOURNAL_BYTES_MIN <= size <= JOURNAL_BYTES_MAX:
        raise _damaged_identity(files, path, f"{name} names no size for the journal")
    return log_id, settings


def refuse_features(words: Any, path: str) -> None:
    """Raise VersionError if a log uses a feature that this version lacks; ValueError if the list is not valid."""
    if type(words) is not list or not all(type(word) is str for word in words):
        raise ValueError(words)
    unknown = sorted(set(words) - FEATURES)
    if unknown:
        named = ", ".join(map(repr, unknown))
        raise VersionError(f"{path} was written by a newer version of Tailrace: it uses {named}, unknown to this one.")


def _damaged_identity(files: Files, path: str, what: str) -> Exception:
    """Return the error for an invalid identity file: beside a catalog it is damage, else the file is foreign."""
    if files.stat(f"{path}/catalog") is None:
        return NotALogError(f"{what}.", hint="Nothing was changed; name the directory of a log.")
    return _lost_identity(path, what)


def _missing_identity(path: str) -> CorruptionError:
    return _lost_identity(path, f"{path}/{IDENTITY_NAME} is missing")


def _lost_identity(path: str, what: str) -> CorruptionError:
    return CorruptionError(
        f"{what}, though a log lies here",
        path=f"{path}/{IDENTITY_NAME}",
        hint="Nothing was changed and the records are not touched; have it written again with: tailrace repair",
    )


def _refuse_without_journal(files: Files, path: str) -> None:
    """Raise CorruptionError without a journal directory: a recovery would look as if there had been no commit."""
    if files.stat(f"{path}/journal") is None:
        raise CorruptionError(
            "The directory of the journal is missing, so the log cannot be recovered",
            path=f"{path}/journal",
            hint="Nothing was changed and the records are not touched; have it made again with: tailrace repair",
        )


def lacks_identity(files: Files, path: str) -> bool:
    """Return whether a directory holds a log without its identity.

    A log has its identity before anything else. A process that removes a whole directory may remove that first, so a
    directory that shrinks between two looks is not damaged.
    """
    if files.stat(f"{path}/{IDENTITY_NAME}") is not None or not _holds_log(files, path):
        return False
    before = _count(files, path)
    files.sleep(LOOK_AGAIN_SECONDS)
    return files.stat(f"{path}/{IDENTITY_NAME}") is None and _holds_log(files, path) and _count(files, path) >= before


def _holds_log(files: Files, path: str) -> bool:
    """Return whether there are segments of a catalog, or topics and the tails: topics alone are left by a removal."""
    if any(segment_base(name) is not None for name in _inside(files, f"{path}/catalog")):
        return True
    topics = any(_TOPIC_DIRECTORY.match(name) for name in _inside(files, f"{path}/topics"))
    return topics and files.stat(f"{path}/tails") is not None


def _count(files: Files, path: str) -> int:
    """Return how many files and directories are below a directory."""
    below = _inside(files, path)
    return len(below) + sum(_count(files, f"{path}/{name}") for name in below)


def broken_links(files: Files, path: str) -> list[str]:
    """Return the broken symbolic links in place of namespaces, or of all of them: to a disk not mounted, say."""
    directory = f"{path}/namespaces"
    if files.stat(directory) is None:
        return [directory] if files.is_link(directory) else []
    below = [f"{directory}/{name}" for name in files.list_directory(directory) if _is_escaped(name)]
    return [link for link in below if files.is_link(link) and files.stat(link) is None]


def _is_escaped(name: str) -> bool:
    """Return whether the directory of a namespace may have this name; anything else there is foreign."""
    try:
        unescape(name)
    except ValueError:
        return False
    return True


def _inside(files: Files, path: str) -> list[str]:
    try:
        stat = files.stat(path)
        return files.list_directory(path) if stat is not None and stat.directory else []
    except FileNotFoundError:
        return []


class Alone:
    """The exclusive lock of a directory that holds a log, whether it can be opened or not: for a repair."""

    def __init__(self, files: Files, path: str, tuning: Tuning) -> None:
        self._opening = _Opening(files, path, "a", True, CONTENTION_SECONDS, tuning)
        self._files = files
        opening = self._opening
        opening.lock = files.open(f"{path}/lock", create=True)
        try:
            while not files.lock(opening.lock):
                if opening.waited() >= CONTENTION_SECONDS:
                    raise opening.refused("is open in another process, and a repair works alone")
                files.sleep(RETRY_SECONDS)
            opening.note_holder("exclusive")
        except BaseException:
            self.release()
            raise

    def believable(self, log_id: bytes) -> Tails | None:
        """Return the tails, if they are of this boot and this log."""
        return self._opening.believable(log_id)

    def recover(self, log_id: bytes, settings: dict[str, Any]) -> Tails:
        """Recover the log, so that it can be appended to; every step may be repeated."""
        return self._opening.recover(log_id, settings)

    def release(self) -> None:
        """Release the lock."""
        lock, self._opening.lock = self._opening.lock, -1
        if lock >= 0:
            self._files.close(lock)


class _Opening:
    """One attempt to open for writing."""

    def __init__(
        self,
        files: Files,
        path: str,
        mode: Mode,
        exclusive: bool,
        timeout: float,
        tuning: Tuning,
        check_marks: CheckMarks | None = None,
    ) -> None:
        self.files = files
        self.path = path
        self.check_marks = check_marks
        self.mode = mode
        self.exclusive = exclusive
        self.timeout = timeout
        self.tuning = tuning
        self.began = files.monotonic()
        self.lock = -1

    def run(self) -> OpenedLog:
        try:
            self._begin()
            while True:
                opened = self._attempt()
                if opened is not None:
                    return opened
                self.files.sleep(RETRY_SECONDS)
        except BaseException:
            if self.lock >= 0:
                self.files.close(self.lock)
            raise

    def _begin(self) -> None:
        """Open the lock of the directory, which is created if need be."""
        for left in reversed(range(LOOKS_MAX)):
            try:
                self._prepare()
                self.lock = self.files.open(f"{self.path}/lock", create=True)
                return
            except FileNotFoundError:
                # A namespace may be dropped between any two steps.
                if not left:
                    raise

    def _is_dropped(self) -> bool:
        """Return whether our lock is that of a dropped namespace; then start again with the current directory."""
        named = self.files.stat(f"{self.path}/lock")
        if named is not None and named.inode == self.files.stat_open(self.lock).inode:
            return False
        lock, self.lock = self.lock, -1
        self.files.close(lock)
        self._begin()
        return True

    def _prepare(self) -> None:
        """Create the directory, or refuse one that holds something else."""
        stat = self.files.stat(self.path)
        if stat is None:
            make_directories(self.files, self.path)
        elif not stat.directory:
            raise NotALogError(f"{self.path} is a file, not a directory.")
        names = self.files.list_directory(self.path)
        if IDENTITY_NAME in names:
            if self.mode == "x":
                raise OpenError(f"{self.path} is a log already.", hint='Nothing was changed; open it with mode "a".')
        elif RESTORING_NAME in names:
            raise _half_restored(self.path)
        elif lacks_identity(self.files, self.path):
            raise _missing_identity(self.path)
        elif not OWN_NAMES.issuperset(names):
            foreign = next(name for name in names if name not in OWN_NAMES)
            raise NotALogError(f"{self.path} is not a log: it holds {foreign!r} and no {IDENTITY_NAME}.")
        elif stat is not None:
            sync_name(self.files, self.path)  # rule: name of a log that somebody began

    def waited(self) -> float:
        return self.files.monotonic() - self.began

    def _attempt(self) -> OpenedLog | None:
        files = self.files
        if files.lock(self.lock):  # rule: lock before recovery
            return None if self._is_dropped() else self._alone()
        if self.exclusive:
            if self.waited() < min(CONTENTION_SECONDS, self.timeout):
                return None
            raise self.refused("is open in another process, so it cannot be opened exclusively")
        if not files.lock(self.lock, shared=True):
            why = self._holder().get("why")
            if why == "exclusive" and self.waited() >= min(CONTENTION_SECONDS, self.timeout):
                raise self.refused("is open exclusively in another process")
            if self.waited() >= self.timeout:
                raise self.refused("stayed locked by a process that recovers it")
            return None
        if self._is_dropped():
            return None
        identity = read_identity(files, self.path)
        tails = self.believable(identity[0]) if identity is not None else None
        if identity is not None and tails is not None:
            return OpenedLog(*identity, tails, self.lock)
        files.unlock(self.lock)
        if self.waited() >= FOREIGN_WAIT_SECONDS:
            raise LockedError(
                f"{self.path} is open on another machine or was started on another kernel.",
                hint="Nothing was changed; close it there first: one log is written from one machine at a time.",
            )
        return None

    def _alone(self) -> OpenedLog | None:
        """Create or recover the log under the exclusive lock, then share the lock or keep it."""
        identity = read_identity(self.files, self.path)
        self.note_holder("recovering")
        if identity is None:
            identity = self._create()
        elif self.mode == "x":
            raise OpenError(f"{self.path} is a log already.", hint='Nothing was changed; open it with mode "a".')
        tails = self.believable(identity[0])
        lagging = None if tails is None else tails.lagging()
        if tails is not None and lagging is not None:
            tails.restore_words(lagging)
        else:
            if tails is not None:
                # What the damaged block said about the newest records is found in the segments.
                tails.close()
            tails = self.recover(*identity)
        if identity[1].get(COPIED_FROM) == identity[0].hex():
            identity = (self._part_from_original(tails, identity[1]) or identity[0], identity[1])
        if MARKS_UNCHECKED in identity[1] and self.check_marks is not None:
            # The process that recovered the log, which may have been a repair, need not have lived to do this.
            self.check_marks(OpenedLog(*identity, Tails(self.files, f"{self.path}/tails", write=True), -1))
            del identity[1][MARKS_UNCHECKED]
            write_identity(self.files, self.path, *identity)
        if self.exclusive:
            self.note_holder("exclusive")
        else:
            self.note_holder("")
            # Converting an exclusive lock into a shared one releases it for a moment.
            if not self.files.lock(self.lock, shared=True):
                tails.close()
                return None
        return OpenedLog(*identity, tails, self.lock)

    def believable(self, log_id: bytes) -> Tails | None:
        return believable_tails(self.files, self.path, log_id, write=True)

    def _part_from_original(self, tails: Tails, settings: dict[str, Any]) -> bytes | None:
        """Give a copy an id of its own, since two logs that diverge are not one; return None if that has to wait."""
        files, path = self.files, self.path
        if tails.words[UNRESOLVED_WORD] or any(tails.column(DIRTY, tails.slots())):
            # The journal holds commits under the old id.
            return None
        directory = f"{path}/journal"
        for name in files.list_directory(directory):
            files.remove_file(f"{directory}/{name}")
        files.sync_directory(directory)
        log_id = files.random_bytes(16)
        write_identity(files, path, log_id, settings)
        tails.view[IDENTITY.size - len(log_id) : IDENTITY.size] = log_id
        tails.sync()
        return log_id

    def _create(self) -> tuple[bytes, dict[str, Any]]:
        """Lay out an empty log; its identity is written last, and without it there is no log."""
        if self.files.stat(f"{self.path}/{RESTORING_NAME}") is not None:
            # A restore started since the directory was checked.
            raise _half_restored(self.path)
        for name in ("journal", "catalog", "topics"):  # rule: identity last
            directory = f"{self.path}/{name}"
            if self.files.stat(directory) is not None:
                # Left by a dead creation: after a failed directory fsync the kernel may consider the entry clean, so it
                # is created again.
                self.files.remove_directory(directory)  # rule: directories made anew
            self.files.make_directory(directory)
        log_id = self.files.random_bytes(16)
        settings = {"journal_bytes": max(self.tuning.journal_bytes, JOURNAL_BYTES_MIN)}
        write_identity(self.files, self.path, log_id, settings)
        return log_id, settings

    def recover(self, log_id: bytes, settings: dict[str, Any]) -> Tails:
        """Recover the log, so that it can be appended to; every step may be repeated."""
        files, path = self.files, self.path
        _refuse_without_journal(files, path)
        copied, former = _origin(files, path, log_id, settings)
        if copied:
            # Until it has an id of its own, the settings name the original's: that survives a death in the next steps.
            settings[COPIED_FROM] = log_id.hex()
        # The creation may have failed at the very last sync of a name, which only a new directory entry repairs.
        write_identity(self.files, self.path, log_id, settings)  # rule: identity written anew
        recovery = Recovery(files, path, log_id, write=True, copied=copied, former=former)
        survey = recovery.run()
        # Before the tails are ready: until then every process recovers the log again.
        note_marks(files, path, log_id, settings, survey.catalog)  # rule: note in the identity file
        if any(slot.damage for slot in survey.slots):  # rule: end of a damaged partition noted
            # Entries that are about to be invalidated may be the only record of where a damaged partition ended.
            write_tails(files, path, log_id, survey)
        recovery.finish_journal()  # rule: generation after recovery
        write_tails(files, path, log_id, survey)
        tails = Tails(files, f"{path}/tails", write=True)
        tails.words[word_of(0) + INCARNATION] = CATALOG_INCARNATION
        tails.words[READY_WORD] = 1
        return tails

    def note_holder(self, why: str) -> None:
        """Write the holder and the reason into the lock file, for the errors of other processes."""
        record = {
            "pid": self.files.process_id(),
            "host": self.files.host_name(),
            "since": self.files.now_us() // 1_000_000,
            "why": why,
        }
        self.files.write(self.lock, json.dumps(record).encode().ljust(256), 0)

    def _holder(self) -> dict[str, Any]:
        try:
            holder = json.loads(self.files.read(self.lock, 256, 0))
        except ValueError:
            return {}
        return holder if isinstance(holder, dict) else {}

    def refused(self, what: str) -> LockedError:
        holder = self._holder()
        pid = self.files.lock_holder(self.lock) or holder.get("pid")
        named = f" (process {pid})" if pid else ""
        same = holder.get("pid") == pid
        return LockedError(
            f"{self.path} {what}{named}.",
            pid=pid,
            host=holder.get("host") if same else None,
            since=str(holder["since"]) if same and "since" in holder else None,
        )


def _origin(files: Files, path: str, log_id: bytes, settings: dict[str, Any]) -> tuple[bool, bytes]:
    """Return whether a directory is a copy that has no id of its own yet, and the id that it had before."""
    former = settings.get(COPIED_FROM)
    pending = former == log_id.hex()
    try:
        before = bytes.fromhex(former) if isinstance(former, str) else b""
    except ValueError:
        before = b""
    return pending or is_copy(files, path, log_id), before


def make_directories(files: Files, path: str) -> None:
    """Create a directory and its missing parents, and sync their names."""
    parent = path.rpartition("/")[0] or "/"
    stat = files.stat(parent)
    if stat is None:
        make_directories(files, parent)
    elif not stat.directory:
        raise NotALogError(f"{path} cannot be made: {parent} is a file, not a directory.")
    else:
        sync_name(files, parent)  # rule: name of a directory that somebody began
    made = files.make_directory(path)
    try:
        files.sync_directory(parent)  # rule: name of the log
    except by_system():
        # After a failed directory fsync the kernel may consider the entry clean: the next process has to create it
        # again.
        if made:
            files.remove_directory(path)
        raise


def sync_name(files: Files, path: str) -> None:
    """Sync the name of a directory: its creator may have died before it did."""
    parent = path.rpartition("/")[0]
    try:
        files.sync_directory(parent or "/")  # rule: sync of a begun name
    except by_system() as error:
        if error.errno not in (errno.EACCES, errno.EPERM, errno.EINVAL, errno.EROFS):
            raise


def write_identity(files: Files, path: str, log_id: bytes, settings: dict[str, Any]) -> None:
    """Replace the identity file as a whole."""
    record = {"format": FORMAT_VERSION, "id": log_id.hex(), "features": [], "settings": settings}
    new = f"{path}/{IDENTITY_NAME}.new"
    descriptor = files.open(new, create=True)
    try:
        data = json.dumps(record, indent=1).encode() + b"\n"
        files.truncate(descriptor, 0)
        files.write(descriptor, data, 0)
        files.sync_data(descriptor)  # rule: identity file
    finally:
        files.close(descriptor)
    files.sync_directory(path)  # rule: layout before identity
    files.rename(new, f"{path}/{IDENTITY_NAME}")
    files.sync_directory(path)  # rule: identity's name


def note_marks(files: Files, path: str, log_id: bytes, settings: dict[str, Any], catalog: Catalog) -> None:
    """Note in the identity that the marks have to be compared with the records, if there are any marks."""
    if MARKS_UNCHECKED not in settings and any(marked_topic(name) is not None for name in catalog.by_name):
        settings[MARKS_UNCHECKED] = True
        write_identity(files, path, log_id, settings)


def write_tails(files: Files, path: str, log_id: bytes, survey: RecoveredLog, *, ready: bool = False) -> None:
    """Replace the tails as a whole; they are valid once the ready flag is stored, here or later."""
    new = f"{path}/tails.new"  # rule: tails replaced as a whole
    descriptor = files.open(new, create=True)
    try:
        stat = files.stat_open(descriptor)
        data = build_tails(files.boot_id(), stat.device, stat.inode, log_id, survey.slots, survey.catalog.next_slot)
        data[READY_WORD * 8] = ready
        files.truncate(descriptor, 0)
        files.write(descriptor, bytes(data), 0)
        files.sync_data(descriptor)  # rule: new tails
    finally:
        files.close(descriptor)
    files.rename(new, f"{path}/tails")
    files.sync_directory(path)  # rule: name of the new tails
