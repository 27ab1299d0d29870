"""Journal files and their generations: the newest file, under a header that is certainly on disk."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from tailrace.arguments import format_size
from tailrace.disk.context import Context, storage_error
from tailrace.disk.failures import by_system
from tailrace.disk.journal import (
    ENTRIES_AT,
    JournalEntry,
    JournalFile,
    journal_name,
    journal_numbers,
    read_all,
    restore_names,
)
from tailrace.disk.partition import salted
from tailrace.disk.tails import CHANGES_WORD, WORD_MAX
from tailrace.errors import CorruptionError, DurabilityError

if TYPE_CHECKING:
    from tailrace.disk.files import Files


class JournalFiles:
    """Creates journal files and headers, follows those of other processes, removes old ones."""

    def __init__(self, context: Context) -> None:
        self.context = context
        self.files: Files = context.files
        self.directory = f"{context.path}/journal"
        self.file: JournalFile | None = None
        # The header this process synced last; headers of other processes are written again before an entry follows
        # them.
        self.own_header: tuple[int, int, int] = (0, 0, 0)
        # The count of journal changes when `file` was last examined or written to.
        self.seen = -1

    def changing(self) -> None:
        """Count a change of the journal before it is made: a process that counted less reads the journal again."""
        self.seen = -1
        words = self.context.tails.words
        words[CHANGES_WORD] = words[CHANGES_WORD] + 1 & WORD_MAX  # rule: changes counted

    def changed(self) -> None:
        """Record that the counted change is made, and that `file` reflects it."""
        self.seen = self.context.tails.words[CHANGES_WORD]

    def newest(self) -> JournalFile:
        """Return the newest journal file, created if there is none, with the entries of other processes followed."""
        file = self.file
        if file is not None and self.seen == self.context.tails.words[CHANGES_WORD]:
            return file
        file = self._look()
        self.changed()
        return file

    def _look(self) -> JournalFile:
        file = self.file
        numbers: list[int] = []
        if file is None or not self._is_newest(file):
            restore_names(self.files, self.directory)
            numbers = journal_numbers(self.files, self.directory)
            if not numbers:
                return self.new_file(1, 1, 1)
            self.close()
            file = JournalFile(self.files, self.directory, numbers[-1], self.context.log_id)
            file.open(write=True)
            self.file = file
        file.refresh()
        if file.generation is None:
            # Its creator died before the header was written; the file before it says how to continue.
            numbers = numbers or journal_numbers(self.files, self.directory)
            generation, lsn = self._before(numbers)
            self.close()
            return self.new_file(numbers[-1], generation + 1, lsn)
        if file.size < self.context.tuning.journal_bytes:
            self._fill(file)
        return file

    def _is_newest(self, file: JournalFile) -> bool:
        """Return whether an open file still has its name and none follows it, without listing the directory.

        Numbers are consecutive, and the oldest file is always removed first: so if a later file exists without the next
        after this one, this one is gone.
        """
        here, there = self.files.stat(file.path), self.files.stat_open(file.descriptor)
        return (
            here is not None
            and (here.device, here.inode) == (there.device, there.inode)
            and self.files.stat(f"{self.directory}/{journal_name(file.number + 1)}") is None
        )

    def _before(self, numbers: Sequence[int]) -> tuple[int, int]:
        """Return the last generation and the next lsn of the file before the newest."""
        if len(numbers) < 2:
            return 0, 1
        previous = JournalFile(self.files, self.directory, numbers[-2], self.context.log_id)
        previous.open()
        try:
            previous.refresh()
            if previous.generation is None:
                raise CorruptionError("A journal file has no valid header", path=previous.path)
            return previous.generation.generation, previous.place.lsn
        finally:
            previous.close()

    def new_file(self, number: int, generation: int, lsn: int) -> JournalFile:
        """Create a new file with its first generation."""
        self.changing()
        self.close()
        file = JournalFile(self.files, self.directory, number, self.context.log_id)
        try:
            file.open(create=True)
            self.file = file
            if file.size and not file.holds_entries():
                # Its creator died while it wrote zeros: if kept, they would stay on a full disk.
                file.cut(0)
            file.fill(self.context.tuning.journal_bytes)
        except by_system() as error:
            self.close()
            size = format_size(self.context.tuning.journal_bytes)
            raise storage_error(error, f"creating a journal file of {size}", file.path) from error
        self.start(file, generation, generation, lsn)
        return file

    def _fill(self, file: JournalFile) -> None:
        try:
            file.fill(self.context.tuning.journal_bytes)
        except by_system() as error:
            raise storage_error(error, "filling a journal file", file.path) from error

    def start(self, file: JournalFile, first: int, generation: int, lsn: int) -> None:
        """Write a header and make it and its file's name durable."""
        self.changing()  # rule: counted before it is written
        salt = salted(self.files)
        try:
            file.write_generation(first, generation, salt, lsn)
            self.files.sync_directory(self.directory)  # rule: journal name
        except by_system() as error:
            # As if this process had died: the next holder writes the header again before it relies on it.
            self.close()
            raise storage_error(error, "starting a journal generation", file.path) from error
        except DurabilityError:
            self.close()
            raise
        self.own_header = (file.number, generation, salt)
        self.changed()  # rule: counted after it is written

    def make_sure(self, file: JournalFile) -> None:
        """Write a header again that another process wrote and that may not be synced."""
        generation = file.generation
        assert generation is not None
        key = (file.number, generation.generation, generation.salt)
        if file.place.position == ENTRIES_AT and key != self.own_header:
            self.changing()
            try:
                file.write_generation(generation.first, generation.generation, generation.salt, generation.lsn)
                # After a failed directory fsync the kernel may consider the entry clean; renaming it twice dirties it
                # again.
                self.files.rename(file.path, f"{file.path}.new")  # rule: journal name moved away
                self.files.rename(f"{file.path}.new", file.path)  # rule: journal name moved back
                self.files.sync_directory(self.directory)  # rule: journal name made sure
            except by_system() as error:
                self.close()
                raise storage_error(error, "writing a journal header again", file.path) from error
            except DurabilityError:
                self.close()
                raise
            self.own_header = key
            self.changed()

    def close(self) -> None:
        """Close the descriptor; the next caller examines the journal again."""
        self.seen = -1
        if self.file is not None:
            file, self.file = self.file, None
            file.close()

    def find(self, lsn: int) -> JournalEntry | None:
        """Return the whole entry of a commit, in whichever file it is."""
        for _, entries in reversed(read_all(self.files, self.directory, self.context.log_id)):
            for entry in reversed(entries):
                if entry.lsn == lsn:
                    return entry
        return None

    def exist(self) -> bool:
        """Return whether anything was ever journalled."""
        return bool(journal_numbers(self.files, self.directory))

    def remove_older(self) -> None:
        """Remove every file but the newest: no partition needs them any more."""
        older = journal_numbers(self.files, self.directory)[:-1]
        for number in older:
            self.files.remove_file(JournalFile(self.files, self.directory, number, self.context.log_id).path)
        if older:
            self.files.sync_directory(self.directory)  # rule: old journal files
