"""Repair: quarantines what is damaged, writes placeholders for what is lost, and makes the log usable again."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from tailrace.disk.catalog import CATALOG_PLACE, Catalog, SlotPlace
from tailrace.disk.context import is_untyped, storage_error
from tailrace.disk.failures import by_system
from tailrace.disk.journal import JournalFile, journal_numbers, restore_names
from tailrace.disk.opening import Alone, believable_tails, note_marks, read_identity, write_identity
from tailrace.disk.previous_tails import read_floors
from tailrace.disk.repair.catalog import Findings, examine, rebuild, salvage, with_trims
from tailrace.disk.repair.facts import PartitionPlan
from tailrace.disk.repair.plan import Planner
from tailrace.disk.repair.slots import Slots, facts_of_floor
from tailrace.disk.repair.write import QUARANTINE, UNFINISHED_NAME, Mender
from tailrace.disk.salvage.journal import Salvaged, known_id, salvage_all
from tailrace.disk.segment import segment_base, segment_name
from tailrace.disk.tails import FAILED, READY_WORD, Tails, word_of
from tailrace.errors import CorruptionError, NotALogError, StorageError
from tailrace.limits import JOURNAL_BYTES_MIN
from tailrace.names import IDENTITY_NAME, group_of, marked_topic
from tailrace.types import Damage, RepairReport, RepairStep

if TYPE_CHECKING:
    from tailrace.disk.files import Files
    from tailrace.disk.journal import JournalEntry
    from tailrace.settings import Tuning

Progress = Callable[[int, int], None]

CATALOG = "the catalog"


def repair(
    files: Files, path: str, *, tuning: Tuning, dry_run: bool = False, progress: Progress | None = None
) -> RepairReport:
    """Repair the log in a directory; docs/repair.md numbers the steps."""
    run = _Repair(files, path, tuning, dry_run, progress)
    try:
        return run.run()
    except by_system() as error:
        if error is run.theirs:
            raise
        failed = storage_error(error, f"repairing {path}", path) if is_untyped(error) else error
        if isinstance(failed, StorageError) and "hint" not in vars(failed):
            # Unlike any other call this one keeps what it has done so far.
            kept = "Nothing was changed" if dry_run else "What is repaired stays so, and the rest is as it was"
            if run.halfway:
                kept += ", but that the partition it was at is read-only until it is repaired"
            failed.hint = f"{kept}: no record is lost by this; {failed.remedy}, then repair again."
        if failed is error:
            raise
        raise failed from error
    finally:
        run.close()


class _Repair:
    def __init__(self, files: Files, path: str, tuning: Tuning, dry_run: bool, progress: Progress | None) -> None:
        self.files = files
        self.path = path
        self.tuning = tuning
        self.dry_run = dry_run
        self.progress = progress
        self.done = self.total = 0
        # The error that the caller's progress function raised.
        self.theirs: OSError | None = None
        self.steps: list[RepairStep] = []
        self.lost: list[Damage] = []
        self.notes: list[str] = []
        self.alone: Alone | None = None
        self.tails: Tails | None = None
        self.damaged_tails = False
        self.mender: Mender | None = None
        # Whether a partition was left read-only that had not been before.
        self.halfway = False

    def close(self) -> None:
        """Close everything."""
        if self.tails is not None:
            self.tails.close()
        if self.alone is not None:
            self.alone.release()

    def run(self) -> RepairReport:
        files = self.files
        began = files.monotonic()
        if files.stat(f"{self.path}/catalog") is None and files.stat(f"{self.path}/topics") is None:
            raise NotALogError(
                f"There is no log at {self.path}.", hint="Nothing was changed; name the directory of a log."
            )
        if not self.dry_run:
            self.alone = Alone(files, self.path, self.tuning)
            self.mender = Mender(files, self.path, self.tuning.lost_span_max)
        unfinished = files.stat(f"{self.path}/{UNFINISHED_NAME}") is not None
        log_id, settings = self._identity()
        self._directories()
        journal_bytes = int(settings.get("journal_bytes", self.tuning.journal_bytes))
        self.total = self._size()
        self.tails = self._believable(log_id)
        findings = self._catalog(log_id)
        if findings.why:
            catalog = self._mend_catalog(findings)
        else:
            catalog = findings.catalog
        if self.tails is None:
            if not self.damaged_tails:
                detail = "its tails are not of this boot: it is recovered first, as at an open"
                self._report_step("log", None, None, detail)
            if self.alone is not None:
                self.tails = self.alone.recover(log_id, settings)
        if self.alone is not None:
            note_marks(self.files, self.path, log_id, settings, catalog)
        if self.tails is not None:
            self._mend_live(log_id, catalog, self.tails, journal_bytes)
        else:
            self._plan_unrecovered(log_id, catalog)
        if unfinished:
            self._report_step("log", None, None, "a repair died here: every name is brought to disk once more")
        if self.mender is not None:
            self._finish(catalog, unfinished)
        quarantined = () if self.mender is None else tuple(self.mender.quarantined)
        # A recovery happens at every open: by itself it is no repair.
        recovered = all(step.what == "log" for step in self.steps) and not unfinished and not self.notes
        steps = () if recovered else tuple(self.steps)
        return RepairReport(
            steps, tuple(self.lost), tuple(self.notes), quarantined, self.dry_run, files.monotonic() - began
        )

    def _finish(self, catalog: Catalog, unfinished: bool) -> None:
        files = self.files
        assert self.mender is not None
        if unfinished:
            for target in self.mender.replaced():
                self.mender.replace_again(target)
            directories = [f"{self.path}/{place.directory}" for place in catalog.places()]
            directories += sorted({directory.rpartition("/")[0] for directory in directories})
            directories += [f"{self.path}/{name}" for name in ("catalog", "journal", "topics", QUARANTINE)]
            for directory in [*directories, self.path]:
                if files.stat(directory) is not None:
                    files.sync_directory(directory)  # rule: names synced after a dead repair
        self.mender.finish()

    # Progress and steps.

    def _report_progress(self, count: int) -> None:
        self.done += count
        if self.progress is not None:
            try:
                self.progress(self.done, max(self.total, self.done))
            except by_system() as error:
                self.theirs = error
                raise

    def _report_step(self, what: str, topic: str | None, partition: int | None, why: str) -> None:
        self.steps.append(RepairStep(what, topic, partition, why))

    def _size(self) -> int:
        """Return the total size of the segments."""
        total = 0
        todo = [f"{self.path}/catalog", f"{self.path}/topics"]
        while todo:
            directory = todo.pop()
            for name in self.files.list_directory(directory) if self.files.stat(directory) is not None else ():
                stat = self.files.stat(f"{directory}/{name}")
                if stat is not None and stat.directory:
                    todo.append(f"{directory}/{name}")
                elif stat is not None and segment_base(name) is not None:
                    total += stat.size
        return total

    # Identity.

    def _identity(self) -> tuple[bytes, dict[str, Any]]:
        try:
            found = read_identity(self.files, self.path)
        except (CorruptionError, NotALogError):
            found = None
        if found is not None:
            return found
        log_id, size = known_id(self.files, self.path)
        if log_id is None:
            raise CorruptionError(
                "Neither tailrace.json nor the tails nor the journal say which log this is",
                path=f"{self.path}/{IDENTITY_NAME}",
                hint="Nothing was changed; restore tailrace.json from a backup of this log.",
            )
        settings = {"journal_bytes": max(size or self.tuning.journal_bytes, JOURNAL_BYTES_MIN)}
        self._report_step("identity", None, None, "tailrace.json is damaged or missing: it is written again")
        if not self.dry_run:
            try:
                write_identity(self.files, self.path, log_id, settings)
            except by_system():
                # After a failed directory fsync the kernel may consider the entry clean: it is removed, so that the
                # next repair creates it again.
                if self.files.stat(f"{self.path}/{IDENTITY_NAME}") is not None:
                    self.files.remove_file(f"{self.path}/{IDENTITY_NAME}")
                raise
        return log_id, settings

    def _directories(self) -> None:
        """Create the directories again that every log has."""
        missing = [name for name in ("journal", "topics") if self.files.stat(f"{self.path}/{name}") is None]
        for name in missing:
            what = "journal" if name == "journal" else "catalog"
            self._report_step(what, None, None, f"the directory {name} is missing: it is made again")
        if not missing or self.mender is None:
            return
        self.mender.begin()
        for name in missing:
            self.files.make_directory(f"{self.path}/{name}")
        try:
            self.files.sync_directory(self.path)  # rule: directory of the log made again
        except by_system():
            # After a failed directory fsync the kernel may consider the entry clean: the next repair must create it
            # again.
            for name in missing:
                self.files.remove_directory(f"{self.path}/{name}")
            raise

    def _believable(self, log_id: bytes) -> Tails | None:
        if self.alone is not None:
            restore_names(self.files, f"{self.path}/journal")
            tails = self.alone.believable(log_id)
        else:
            tails = believable_tails(self.files, self.path, log_id, write=False)
        if tails is None or tails.lagging() is not None:
            return tails
        tails.close()
        self.damaged_tails = True
        detail = "the newest state of a partition in the tails is damaged: the log is recovered first"
        self._report_step("tails", None, None, detail)
        return None

    # The catalog.

    def _catalog(self, log_id: bytes) -> Findings:
        planner = Planner(self.files, self.path, (), self._report_progress, cached=self.dry_run)
        if self.tails is not None:
            facts = Slots(self.tails, (), journal_damaged=False).facts(CATALOG_PLACE)
        else:
            facts = facts_of_floor(read_floors(self.files, self.path, log_id), CATALOG_PLACE)
        return examine(self.files, self.path, planner, facts)

    def _mend_catalog(self, findings: Findings) -> Catalog:
        for why in findings.why:
            self._report_step("catalog", None, None, why)
        for each in findings.lost:
            self.lost.append(Damage(None, None, *each))
        owners = {} if self.tails is None else Slots(self.tails, (), journal_damaged=False).owners()
        salvaged = salvage(self.files, self.path, findings, owners)
        if findings.incomplete:
            self.notes += with_trims(self.files, self.path, salvaged.catalog)
            self.notes.append(
                "records of the catalog are lost: topics, settings or trims may be missing; "
                "compare with a backup if there is one"
            )
        self.notes += salvaged.notes
        if self.mender is not None:
            self.mender.begin()
            rebuild(self.files, self.path, self.mender, findings, salvaged)
            if self.tails is not None:
                # Slots may have changed: the state that recovery finds in the segments counts.
                self.tails.words[READY_WORD] = 0
                self.tails.close()
                self.tails = None
        return salvaged.catalog

    # Partitions and journal.

    def _plan_unrecovered(self, log_id: bytes, catalog: Catalog) -> None:
        """Plan a dry run for a log that was not recovered: only the previous tails and the journal hold its state."""
        floors = read_floors(self.files, self.path, log_id)
        journal = self._journal(log_id)
        planner = Planner(self.files, self.path, _entries(journal), self._report_progress, cached=True)
        for place in catalog.places():
            self._note_plan(catalog, planner.plan(place, facts_of_floor(floors, place)))
        self._note_journal(journal, None)

    def _journal(self, log_id: bytes) -> list[Salvaged]:
        directory = f"{self.path}/journal"
        if self.files.stat(directory) is None:
            return []
        for number in () if self.dry_run else journal_numbers(self.files, directory):
            file = JournalFile(self.files, directory, number, log_id)
            file.open()
            try:
                self.files.forget_cache(file.descriptor)
            finally:
                file.close()
        return salvage_all(self.files, directory, log_id)

    def _note_journal(self, journal: list[Salvaged], slots: Slots | None) -> bool:
        """Report what is wrong with the journal, and return whether a new one must be started."""
        whys = [f"{each.file.path.rpartition('/')[2]}: {why}" for each in journal for why in each.damage]
        if slots is not None:
            whys += slots.journal_whys()
        for why in whys:
            self._report_step("journal", None, None, why)
        return bool(whys)

    def _mend_live(self, log_id: bytes, catalog: Catalog, tails: Tails, journal_bytes: int) -> None:
        """Repair with valid tails: they record what failed, and up to where everything was published."""
        if self.steps and not self.dry_run:
            catalog = self._catalog(log_id).catalog
        journal = self._journal(log_id)
        entries = _entries(journal)
        slots = Slots(tails, entries, journal_damaged=any(each.damage for each in journal))
        begins_journal = self._note_journal(journal, slots)
        planner = Planner(self.files, self.path, entries, self._report_progress, cached=self.dry_run)
        plans = []
        for place in catalog.places():
            plan = planner.plan(place, slots.facts(place))
            plans.append(plan)
            self._note_plan(catalog, plan)
        if self.mender is None:
            return
        if begins_journal or not all(plan.sound for plan in plans):
            self.mender.begin()
        slots.neutralise_drop(self.files, f"{self.path}/catalog")
        if begins_journal:
            for each in journal:
                if each.damage:
                    self.mender.copy_aside(each.file.path)
            slots.begin_journal(self.files, f"{self.path}/journal", log_id, journal, journal_bytes)
        for plan in plans:
            if not plan.sound:
                self._mend(catalog, slots, plan)
        if begins_journal:
            slots.finish_journal(self.files, f"{self.path}/journal", log_id)

    def _mend(self, catalog: Catalog, slots: Slots, plan: PartitionPlan) -> None:
        assert self.mender is not None
        tails, slot = slots.tails, plan.place.slot
        word = word_of(slot) + FAILED
        marks = plan.reset and tails.holds(slot) and not tails.words[word]
        newest = self._newest(tails, plan.place) if marks else None
        if plan.reset:
            slots.mark(plan.place)
        try:
            state = self.mender.mend(plan, _topic_of(catalog, plan.place))
        except BaseException:
            if marks and newest is not None and self._newest(tails, plan.place) == newest:
                # It is still the segment that the slot names, so appends continue there as before.
                tails.words[word] = 0
            else:
                self.halfway = marks
            raise
        if state is not None:
            slots.reset(plan.place, state)

    def _newest(self, tails: Tails, place: SlotPlace) -> int | None:
        """Return the inode of the newest segment by the slot's state; a rewritten segment has another one."""
        block = tails.read_block(place.slot)
        if block is None or block[2] != place.incarnation:
            return None
        stat = self.files.stat(f"{self.path}/{place.directory}/{segment_name(block[1].base)}")
        return None if stat is None else stat.inode

    def _note_plan(self, catalog: Catalog, plan: PartitionPlan) -> None:
        if plan.sound:
            return
        topic, partition = _topic_of(catalog, plan.place), plan.place.partition
        for why in plan.why:
            self._report_step("partition", topic, partition, why)
        for lost in plan.lost:
            self.lost.append(Damage(topic, partition, *lost))
            self.notes += _consequences(topic, plan.start, lost.first, lost.last)


def _entries(journal: Iterable[Salvaged]) -> list[JournalEntry]:
    return [entry for each in journal for entry in each.entries]


def _topic_of(catalog: Catalog, place: SlotPlace) -> str:
    entry = catalog.by_id.get(place.topic_id)
    return CATALOG if entry is None else entry.name


def _consequences(topic: str, start: int, first: int, last: int) -> list[str]:
    """Return what follows from the loss of records of an internal topic."""
    group = group_of(topic)
    if group is not None:
        before = "has no cursors any more and begins where its consumers say" if first <= start else (
            "continues at the cursors stored before, and may read again what it had read"
        )  # fmt: skip
        return [f"the group {group!r} loses what was stored at {first} to {last} of its own topic: it {before}"]
    if marked_topic(topic) is not None:
        return [f"marks of deleted records at {first} to {last} of {topic} are lost: those records may show again"]
    if topic == "__applied":
        consequence = "an application whose last marker was among them may apply its last batch twice"
        return [f"markers of batches at {first} to {last} are lost: {consequence}"]
    if topic == "__outbox":
        return [f"frames that a transaction of Spark had yet to deliver, at {first} to {last} of __outbox, are lost"]
    return []
