"""Opening a directory: creation, the life-long lock, identity, recovery when the tails cannot be believed."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from tailrace.disk.catalog import CATALOG_INCARNATION
from tailrace.disk.home import storage_error
from tailrace.disk.recovery import Recovery, build_tails
from tailrace.disk.tails import INCARNATION, READY_WORD, FrozenTails, Tails, word_of
from tailrace.errors import LockedError, NotALogError, OpenError, ReadOnlyError, VersionError
from tailrace.limits import JOURNAL_BYTES_MIN

if TYPE_CHECKING:
    from tailrace.disk.files import Files
    from tailrace.options import Tuning

FORMAT_VERSION = 1
IDENTITY_NAME = "tailrace.json"
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
        f"{IDENTITY_NAME}.new",
    }
)
FOREIGN_WAIT_SECONDS = 5.0
RETRY_SECONDS = 0.01
LOOKS_MAX = 5
CONTENTION_SECONDS = 0.25

Mode = Literal["a", "r", "x"]


class Opened(NamedTuple):
    """An open directory: who it is, its tails, and the lock that keeps others from recovering it."""

    log_id: bytes
    settings: dict[str, Any]
    tails: Tails
    lock: int


def open_directory(files: Files, path: str, mode: Mode, *, exclusive: bool, timeout: float, tuning: Tuning) -> Opened:
    """Open or create the log in a directory."""
    if mode == "r":
        return _open_reading(files, path)
    try:
        return _Opening(files, path, mode, exclusive, timeout, tuning).run()
    except PermissionError as error:
        raise ReadOnlyError(f"{path} cannot be written to: {error.strerror}.") from error
    except OSError as error:
        if isinstance(error, OpenError):
            raise
        raise storage_error(error, f"opening {path}", path) from error


def _open_reading(files: Files, path: str) -> Opened:
    identity = read_identity(files, path)
    if identity is None:
        raise NotALogError(f"There is no log at {path}.", hint="Nothing was created; name the directory of a log.")
    log_id, settings = identity
    if files.stat(f"{path}/tails") is not None:
        try:
            tails = Tails(files, f"{path}/tails", write=False)
        except ValueError:
            tails = None
        if tails is not None:
            if tails.belongs(log_id) and _settled(files, tails):
                return Opened(log_id, settings, tails, -1)
            tails.close()
    survey = Recovery(files, path, log_id, write=False).run()
    data = build_tails(files.boot_id(), 0, 0, log_id, survey.slots, survey.catalog.next_slot)
    return Opened(log_id, settings, FrozenTails(files, f"{path}/tails", data), -1)


def _settled(files: Files, tails: Tails) -> bool:
    """Whether the words can be what the blocks led to; a live writer may be storing them, so it is asked again."""
    for _ in range(LOOKS_MAX):
        if not tails.mismatches(strict=False):
            return True
        files.sleep(RETRY_SECONDS)
    return False


def read_identity(files: Files, path: str) -> tuple[bytes, dict[str, Any]] | None:
    """The id and fixed settings of the log in a directory, None when there is none."""
    name = f"{path}/{IDENTITY_NAME}"
    try:
        stat = files.stat(name)
        if stat is None:
            return None
        descriptor = files.open(name)
    except FileNotFoundError:
        return None
    try:
        data = files.read(descriptor, min(stat.size, IDENTITY_BYTES_MAX), 0)
    finally:
        files.close(descriptor)
    try:
        record = json.loads(data)
        log_id = bytes.fromhex(record["id"])
        version = int(record["format"])
        settings = dict(record["settings"])
    except (ValueError, KeyError, TypeError) as error:
        raise NotALogError(
            f"{name} cannot be understood.", hint="Nothing was changed; restore the file from a copy."
        ) from error
    if version != FORMAT_VERSION:
        raise VersionError(f"{path} has format {version}, and this version of Tailrace knows {FORMAT_VERSION}.")
    if len(log_id) != 16:
        raise NotALogError(f"{name} has no valid id.", hint="Nothing was changed; restore the file from a copy.")
    return log_id, settings


class _Opening:
    """One attempt to open for writing."""

    def __init__(self, files: Files, path: str, mode: Mode, exclusive: bool, timeout: float, tuning: Tuning) -> None:
        self.files = files
        self.path = path
        self.mode = mode
        self.exclusive = exclusive
        self.timeout = timeout
        self.tuning = tuning
        self.began = files.monotonic()
        self.lock = -1

    def run(self) -> Opened:
        self._prepare()
        self.lock = self.files.open(f"{self.path}/lock", create=True)
        try:
            while True:
                opened = self._attempt()
                if opened is not None:
                    return opened
                self.files.sleep(RETRY_SECONDS)
        except BaseException:
            self.files.close(self.lock)
            raise

    def _prepare(self) -> None:
        """Make the directory, or refuse one that holds something else."""
        stat = self.files.stat(self.path)
        if stat is None:
            _make_directories(self.files, self.path)
        elif not stat.directory:
            raise NotALogError(f"{self.path} is a file, not a directory.")
        names = self.files.list_directory(self.path)
        if IDENTITY_NAME in names:
            if self.mode == "x":
                raise OpenError(f"{self.path} is a log already.", hint='Nothing was changed; open it with mode "a".')
        elif not OWN_NAMES.issuperset(names):
            foreign = next(name for name in names if name not in OWN_NAMES)
            raise NotALogError(f"{self.path} is not a log: it holds {foreign!r} and no {IDENTITY_NAME}.")

    def _waited(self) -> float:
        return self.files.monotonic() - self.began

    def _attempt(self) -> Opened | None:
        files = self.files
        if files.lock(self.lock):
            return self._alone()
        if self.exclusive:
            if self._waited() < min(CONTENTION_SECONDS, self.timeout):
                return None
            raise self._refused("is open in another process, so it cannot be opened exclusively")
        if not files.lock(self.lock, shared=True):
            why = self._holder().get("why")
            if why == "exclusive" and self._waited() >= min(CONTENTION_SECONDS, self.timeout):
                raise self._refused("is open exclusively in another process")
            if self._waited() >= self.timeout:
                raise self._refused("stayed locked by a process that recovers it")
            return None
        identity = read_identity(files, self.path)
        tails = self._believable(identity[0]) if identity is not None else None
        if identity is not None and tails is not None:
            return Opened(*identity, tails, self.lock)
        files.unlock(self.lock)
        if self._waited() >= FOREIGN_WAIT_SECONDS:
            raise LockedError(
                f"{self.path} is open on another machine or was started on another kernel.",
                hint="Nothing was changed; close it there first: one log is written from one machine at a time.",
            )
        return None

    def _alone(self) -> Opened | None:
        """The exclusive lock is ours: create, recover if need be, then share it or keep it."""
        self._say("recovering")
        identity = read_identity(self.files, self.path)
        if identity is None:
            identity = self._create()
        elif self.mode == "x":
            raise OpenError(f"{self.path} is a log already.", hint='Nothing was changed; open it with mode "a".')
        tails = self._believable(identity[0])
        if tails is None:
            tails = self._recover(*identity)
        else:
            tails.restore_words()
        if self.exclusive:
            self._say("exclusive")
        else:
            self._say("")
            # Turning an exclusive lock into a shared one lets go of it for a moment.
            if not self.files.lock(self.lock, shared=True):
                tails.close()
                return None
        return Opened(*identity, tails, self.lock)

    def _believable(self, log_id: bytes) -> Tails | None:
        if self.files.stat(f"{self.path}/tails") is None:
            return None
        try:
            tails = Tails(self.files, f"{self.path}/tails", write=True)
        except ValueError:
            return None
        if tails.belongs(log_id):
            return tails
        tails.close()
        return None

    def _create(self) -> tuple[bytes, dict[str, Any]]:
        """Lay out an empty log; its identity is written last, and without it there is no log."""
        for name in ("journal", "catalog", "topics"):
            directory = f"{self.path}/{name}"
            if self.files.stat(directory) is not None:
                # Left by a dead creation: a name whose sync failed counts as synced, so it is made anew.
                self.files.remove_directory(directory)
            self.files.make_directory(directory)
        log_id = self.files.random_bytes(16)
        settings = {"journal_bytes": max(self.tuning.journal_bytes, JOURNAL_BYTES_MIN)}
        self._write_identity(log_id, settings)
        return log_id, settings

    def _write_identity(self, log_id: bytes, settings: dict[str, Any]) -> None:
        """Replace the identity file as a whole."""
        files, path = self.files, self.path
        record = {"format": FORMAT_VERSION, "id": log_id.hex(), "settings": settings}
        new = f"{path}/{IDENTITY_NAME}.new"
        descriptor = files.open(new, create=True)
        try:
            data = json.dumps(record, indent=1).encode() + b"\n"
            files.truncate(descriptor, 0)
            files.write(descriptor, data, 0)
            files.sync_data(descriptor)
        finally:
            files.close(descriptor)
        files.sync_directory(path)
        files.rename(new, f"{path}/{IDENTITY_NAME}")
        files.sync_directory(path)

    def _recover(self, log_id: bytes, settings: dict[str, Any]) -> Tails:
        """Bring the log to a state from which appends may go on; every step may be repeated."""
        files, path = self.files, self.path
        # The creation may have failed at the very last sync of a name, which only a new name makes good.
        self._write_identity(log_id, settings)
        recovery = Recovery(files, path, log_id, write=True)
        survey = recovery.run()
        recovery.finish_journal()
        new = f"{path}/tails.new"
        descriptor = files.open(new, create=True)
        try:
            stat = files.stat_open(descriptor)
            data = build_tails(files.boot_id(), stat.device, stat.inode, log_id, survey.slots, survey.catalog.next_slot)
            files.truncate(descriptor, 0)
            files.write(descriptor, bytes(data), 0)
            files.sync_data(descriptor)
        finally:
            files.close(descriptor)
        files.rename(new, f"{path}/tails")
        files.sync_directory(path)
        tails = Tails(files, f"{path}/tails", write=True)
        tails.words[word_of(0) + INCARNATION] = CATALOG_INCARNATION
        tails.words[READY_WORD] = 1
        return tails

    def _say(self, why: str) -> None:
        """Note who holds the lock and why, for the error that others get."""
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

    def _refused(self, what: str) -> LockedError:
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


def _make_directories(files: Files, path: str) -> None:
    """Make a directory and its missing parents, and make their names durable."""
    parent = path.rpartition("/")[0] or "/"
    if files.stat(parent) is None:
        _make_directories(files, parent)
    files.make_directory(path)
    files.sync_directory(parent)
