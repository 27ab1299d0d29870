"""What a plausible design gets wrong, each as a directed test; the rule is then taken out and the loss must show."""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator
from functools import partial
from random import Random

import pytest

from tailrace.disk import commit, reader, recovery
from tailrace.disk.commit import Committer
from tailrace.disk.frame import MORE, place, prepare, salt_chain
from tailrace.disk.journal import JournalFile
from tailrace.disk.partition import Partition
from tailrace.disk.recovery import Recovery
from tailrace.disk.segment import HEADER_BYTES, Index, pack_header, parse_header, walk
from tailrace.disk.store import Store
from tailrace.disk.tails import DIRTY, IDENTITY, Tails
from tailrace.errors import CorruptionError, DurabilityError, LockedError, TailraceError, TopicNotFoundError
from tests.sim import Disk, Fail, Kill, Killed, Process, Scheduler
from tests.sim.engine import TUNING, Writer, check, frames_of, open_store
from tests.sim.faults import Fault
from tests.sim.invariants import Invariants
from tests.sim.mutation import mutate, mutated
from tests.sim.witness import Finding, Witness, compare, read_all

FIRST = "/log/topics/00000001-t/0/00000000000000000000.seg"
BOTH = (("t", 0), ("t", 1))


class Bench:
    """A machine with the writers a and b, who both use the partitions of topic t."""

    def __init__(self, seed: int = 1) -> None:
        self.disk = Disk(seed)
        self.witness = Witness()
        self.invariants = Invariants(self.disk, self.witness)
        self.a = self.writer("a")
        self.a.append(("t", 0))
        self.a.append(("t", 1))
        self.b = self.writer("b")
        self.b.append(("t", 0))
        self.b.transact(BOTH)

    def writer(self, name: str) -> Writer:
        return Writer(Process(self.disk, name), self.witness)

    def strike(self, fault: Fault, kind: str, path: str, number: int = 1) -> None:
        """Let a fault happen at the number-th operation of a kind on a path that holds a text."""
        seen = 0

        def look(process: Process, done: str, detail: tuple[object, ...]) -> None:
            nonlocal seen
            self.invariants(process, done, detail)
            if done == kind and any(path in str(part) for part in detail):
                seen += 1
                if seen == number:
                    fault.at = self.disk.steps
                    self.disk.plan(fault)

        self.disk.observer = look

    def calm(self) -> None:
        self.disk.observer = self.invariants
        self.disk.plan()

    def cut(self, states: int = 40) -> Finding | None:
        """The first thing wrong after a power cut, over many states of the medium; and no invariant was broken."""
        self.invariants.look()
        for choice in self.disk.crash_states(Random(1), states):
            try:
                finding = check(self.disk.crash(choice), self.witness, cut=True, deep=True)
            except TailraceError as error:
                finding = Finding(repr(error))
            if finding is not None:
                return finding
        return Finding(self.invariants.broken[0]) if self.invariants.broken else None


def killed(action: Callable[[], object]) -> None:
    with pytest.raises(Killed):
        action()


# Rows of the table "what goes wrong without these rules".


def hole(across_a_roll: bool) -> Bench:
    bench = Bench()
    if across_a_roll:
        for _ in range(3):
            bench.a.append(("t", 0), durable=None, size=1_200)
    bench.a.append(("t", 0), durable=None)
    bench.a.transact(BOTH, size=1_200 if across_a_roll else 0)
    return bench


@pytest.mark.parametrize("across_a_roll", [False, True])
def test_hole(across_a_roll):
    """I1, I7: a commit behind unsynced bytes syncs them first."""
    assert hole(across_a_roll).cut() is None


def test_hole_without_the_rule(monkeypatch):
    mutate(monkeypatch, Committer, "_plan", "if partition.state.safe < partition.state.end:", "if False:")
    finding = hole(False).cut()
    assert finding is not None
    assert finding.lost


def dead_commit() -> Bench:
    bench = Bench()
    bench.strike(Kill(0), "write", ".seg")
    killed(lambda: bench.a.transact(BOTH))
    bench.calm()
    bench.b.append(("t", 0))
    return bench


def test_kill_between_journal_sync_and_segment_write():
    """I8: the next writer meets `pending` and rolls the dead commit forward before it appends."""
    bench = dead_commit()
    assert bench.b.store.partition(1).end == 5
    assert bench.cut() is None


def test_kill_between_journal_sync_and_segment_write_without_pending(monkeypatch):
    mutate(monkeypatch, Partition, "enter", "if words[word + PENDING] and not resolving:", "if False:")
    finding = dead_commit().cut()
    assert finding is not None
    assert finding.lost


def ghosts() -> Bench:
    bench = Bench()
    bench.strike(Kill(0, when="after"), "write", ".seg")
    killed(lambda: bench.a.append(("t", 0), 3, split=True, durable=None))
    bench.calm()
    bench.b.append(("t", 0))
    return bench


def test_ghost_frames():
    """I7: frames of a dead writer do not follow from a frame that another put in place of their first."""
    bench = ghosts()
    assert bench.disk.files()[FIRST].count(b"v00000") >= 5, "the dead writer's frames lie behind the new one"
    assert bench.cut() is None


def test_ghost_frames_without_the_chain(monkeypatch):
    loose = mutated(walk, "header.chain != chain or ", "")
    for module in (recovery, reader):
        monkeypatch.setattr(module, "walk", loose)
    bench = ghosts()
    finding = check(bench.disk.crash(bench.disk.everything()), bench.witness, cut=True)
    assert finding is not None
    assert "torn" in finding.text


def failed_seal() -> Bench:
    bench = Bench()
    bench.strike(Fail(0, number=errno.EIO), "sync_data", ".seg")
    with pytest.raises(DurabilityError):
        bench.a.roll(("t", 0))
    bench.calm()
    bench.b.store.committer.checkpoint()
    return bench


def test_fsyncgate_across_paths():
    """I1, I4: a sync that failed in a seal is known to the checkpoint, which keeps the journal file."""
    bench = failed_seal()
    with pytest.raises(DurabilityError):
        bench.b.append(("t", 0))
    bench.b.append(("t", 1))
    assert bench.cut() is None


def test_fsyncgate_across_paths_without_the_shared_word(monkeypatch):
    mutate(monkeypatch, Partition, "sync", "words[word + FAILED] = 1", "words[word + SYNCING] = 0")
    finding = failed_seal().cut()
    assert finding is not None
    assert finding.lost


def deaths_in_a_commit() -> Iterator[tuple[Bench, Fault]]:
    """A commit killed before each of its operations; the other process then empties the journal."""
    at = 0
    while True:
        at += 1
        bench = Bench()
        bench.b.store.checkpoint()
        fault = Kill(at + bench.a.process.steps, process="a")
        bench.disk.plan(fault)
        try:
            bench.a.transact(BOTH)
        except Killed:
            pass
        bench.disk.plan()
        if not fault.fired:
            return
        bench.b.store.committer.checkpoint()
        yield bench, fault


def test_dirty_is_marked_before_publish():
    """I1, I3, I4: at every death of a commit the checkpoint of another process knows what it has to sync."""
    count = 0
    for bench, _ in deaths_in_a_commit():
        count += 1
        assert bench.cut(8) is None
    assert count > 20


def test_dirty_marked_after_publish(monkeypatch):
    mutate(monkeypatch, Committer, "_journal", "words[write.partition.word + DIRTY] = file.generation_number", "pass")
    publish = Partition.publish_committed

    def late(self, state):
        publish(self, state)
        self.home.tails.words[self.word + DIRTY] = 1

    monkeypatch.setattr(Partition, "publish_committed", late)
    findings = []
    for bench, _ in deaths_in_a_commit():
        finding = check(bench.disk.crash(None), bench.witness, cut=True)
        findings += [finding] if finding else []
        findings += [Finding(text) for text in bench.invariants.broken]
    assert any("I3" in finding.text for finding in findings)
    assert any("torn" in finding.text or finding.lost for finding in findings)


def checkpoint_dies() -> Bench:
    bench = Bench()
    bench.a.transact(BOTH)
    bench.strike(Kill(0, when="after"), "sync_data", "/journal/")
    killed(bench.a.store.committer.checkpoint)
    bench.calm()
    bench.b.transact(BOTH)
    return bench


def test_the_generation_is_read_from_the_journal():
    """I1, I2: a checkpointer dies with its header on disk; the next commit is written under that header."""
    assert checkpoint_dies().cut() is None


def test_the_generation_remembered_in_a_process(monkeypatch):
    mutate(monkeypatch, JournalFile, "refresh", "self.read_generation()", "self.generation or self.read_generation()")
    finding = checkpoint_dies().cut()
    assert finding is not None
    assert finding.lost


def rewritten(*, more: bool = False) -> Bench:
    """A sealed segment written anew in another layout, as a compaction would, while the journal still holds its frames."""
    bench = Bench()
    bench.a.append(("t", 0), durable=None)
    bench.a.transact(BOTH, 2, split=True)
    bench.a.roll(("t", 0))
    process = bench.a.process
    records = [value for _, value in sorted(read_all(bench.a.store)[1, 0].records.items())]
    header = parse_header(bench.disk.files()[FIRST][:HEADER_BYTES])
    assert header is not None
    salt = header.salt + 1
    # Keys make the new layout longer than the old one, so that a replay by position would hit the middle of a frame.
    frames = prepare(records, [b"k" * 60] * len(records), None, process.now_us())
    if more:
        frames = [frame._replace(flags=frame.flags | MORE) for frame in frames]
    placed = place(frames, 0, salt_chain(salt))
    index = Index(salt)
    index.add_placed(frames, placed.buffers)
    descriptor = process.open(f"{FIRST}.new", create=True)
    process.write(descriptor, pack_header(header.topic_id, header.partition, salt, header.created), 0)
    process.write_all(descriptor, [*placed.buffers, index.pack_footer()], HEADER_BYTES)
    process.sync_data(descriptor)
    process.rename(f"{FIRST}.new", FIRST)
    process.sync_directory(FIRST.rpartition("/")[0])
    return bench


def test_replay_compares_salts():
    """I6: a replay does not write into a segment that was written anew under the same name."""
    assert rewritten().cut() is None


def test_replay_by_name_alone(monkeypatch):
    mutate(monkeypatch, Recovery, "_replay_write", "if header.salt != part.salt:", "if False:")
    assert rewritten().cut() is not None


def test_in_a_sealed_segment_the_footer_decides():
    """A rewritten segment may end in a frame whose group went on; its footer says that nothing is missing."""
    bench = rewritten(more=True)
    assert compare(bench.witness, read_all(bench.writer("c").store), cut=False) is None
    assert bench.cut() is None


def trims() -> Finding | None:
    """Several segments are removed by one trim, and the power goes at each of its operations."""
    bench = Bench()
    for _ in range(4):
        bench.a.roll(("t", 0))
        bench.a.append(("t", 0))
    findings: list[Finding] = []

    def look(process: Process, kind: str, detail: tuple[object, ...]) -> None:
        bench.invariants(process, kind, detail)
        if kind in ("remove_file", "sync_directory", "write", "sync_data") and not findings:
            finding = bench.cut(24)
            findings.extend([finding] if finding else [])

    bench.disk.observer = look
    bench.a.trim(("t", 0), 6)
    bench.calm()
    finding = bench.cut(24)
    return findings[0] if findings else finding


def test_retention_order():
    """I5: segments go one by one, oldest first, and what comes back after a cut is below the trim."""
    assert trims() is None


def test_retention_without_an_order(monkeypatch):
    """Two rules stand in for each other: an order on the medium, and a recovery that clears what came back."""
    mutate(monkeypatch, Partition, "trim", "self.files.sync_directory(self.path)", "pass")
    assert trims() is None
    mutate(monkeypatch, Recovery, "_scan", "self._kept(directory, place.trim)", "self._bases(directory)")
    assert trims() is not None


def half_created_successor() -> Bench:
    bench = Bench()
    bench.a.roll(("t", 0))
    bench.strike(Kill(0, when="after"), "create", ".seg")
    killed(lambda: bench.a.append(("t", 0)))
    bench.calm()
    bench.b.trim(("t", 0), 99)
    return bench


def test_retention_goes_by_the_state_not_by_the_listing():
    """I5: a half-created successor does not make the last good segment an old one."""
    assert half_created_successor().cut() is None


def test_retention_by_listing(monkeypatch):
    mutate(monkeypatch, Partition, "trim", "if base <= self.state.base", "")
    assert half_created_successor().cut() is not None


def seals() -> Finding | None:
    bench = Bench()
    bench.a.append(("t", 0), 3, split=True, durable=None)
    findings: list[Finding] = []

    def look(process: Process, kind: str, detail: tuple[object, ...]) -> None:
        bench.invariants(process, kind, detail)
        if not findings and any(".seg" in str(part) for part in detail):
            finding = bench.cut(40)
            findings.extend([finding] if finding else [])

    bench.disk.observer = look
    bench.a.roll(("t", 0))
    bench.calm()
    return findings[0] if findings else bench.cut()


def test_seal_in_two_syncs():
    """I5, I7: the footer is written when all it covers is on disk."""
    assert seals() is None


def test_seal_in_one_sync(monkeypatch):
    mutate(monkeypatch, Partition, "seal", "state.synced < state.position or", "False and")
    finding = seals()
    assert finding is not None
    assert "corruption" in finding.text


def copied_on_one_boot() -> Finding | None:
    """cp -r without a sync, then work on the copy, then a power cut that keeps nothing unsynced."""
    bench = Bench()
    bench.a.store.close()
    bench.b.store.close()
    process = Process(bench.disk, "cp")
    copies = {path: data for path, data in bench.disk.files().items() if path.startswith("/log/")}
    bench.disk.observer = None
    directories = {path.rpartition("/")[0] for path in copies}
    for directory in sorted({parent for path in directories for parent in _parents(path)}):
        process.make_directory(f"/copy{directory[4:]}")
    for path, data in copies.items():
        descriptor = process.open(f"/copy{path[4:]}", create=True)
        process.write(descriptor, data, 0)
        process.close(descriptor)
    store = Store(process, "/copy", "a", tuning=TUNING)
    entry = store.refresh().by_name["t"]
    first = store.append(store.partition(entry.slots[0]), frames_of([b"on the copy"], process), 0.0)
    after = bench.disk.crash(None)
    try:
        again = Store(Process(after, "again"), "/copy", "a", tuning=TUNING)
        found = read_all(again)
    except Exception as error:  # noqa: BLE001  # Anything but the records is a loss.
        return Finding(repr(error), 1)
    if (entry.id, 0) not in found or found[entry.id, 0].records.get(first) != b"on the copy":
        return Finding("the record on the copy is lost", 1)
    known = {key: contents._replace(records=dict(list(contents.records.items())[:first])) for key, contents in found.items()}
    return compare(bench.witness, known, cut=True)


def _parents(path: str) -> list[str]:
    parts = path.split("/")
    return ["/".join(parts[:count]) for count in range(2, len(parts) + 1)]


def test_same_boot_is_not_enough():
    """I1: the words of a copy are those of another file; recovery brings its pages to the medium first."""
    assert copied_on_one_boot() is None


def test_same_boot_alone(monkeypatch):
    def careless(self: Tails, log_id: bytes) -> bool:
        fields = IDENTITY.unpack(bytes(self.view[: IDENTITY.size]))
        return fields[2] == self.files.boot_id() and fields[5] == log_id

    monkeypatch.setattr(Tails, "belongs", careless)
    finding = copied_on_one_boot()
    assert finding is not None
    assert finding.lost


def test_a_copy_is_recognised_and_recovered():
    """A synced copy on one boot is a log of its own from the moment it is opened."""
    bench = Bench()
    bench.a.append(("t", 0), durable=None)
    bench.disk.copy("/log", "/copy")
    process = Process(bench.disk, "copier")
    trace = bench.disk.record()
    store = Store(process, "/copy", "a", tuning=TUNING)
    assert any(kind == "sync_everything" for _, kind, _ in trace)
    assert compare(bench.witness, read_all(store), cut=False) is None
    identity = IDENTITY.unpack(bytes(store.tails.view[: IDENTITY.size]))
    assert identity[4] == process.stat("/copy/tails").inode != process.stat("/log/tails").inode  # type: ignore[union-attr]
    store.append(store.partition(1), frames_of([b"other"], process), 0.0)
    assert bench.cut() is None, "the original does not notice"


def test_another_kernel_is_refused():
    """A live handle with another boot id: never recovered under it."""
    bench = Bench()

    class Foreign(Process):
        def boot_id(self) -> bytes:
            return b"another kernel !"

    before = bench.disk.files()["/log/tails"]
    with pytest.raises(LockedError):
        open_store(Foreign(bench.disk, "foreign"))
    assert bench.disk.files()["/log/tails"] == before


def damaged_header(position: int) -> Finding | None:
    """A last segment with one damaged header byte; what recovery makes of it."""
    bench = Bench()
    disk = bench.disk.crash(None)
    disk.flip(FIRST, position)
    before = disk.files()[FIRST]
    store = open_store(Process(disk, "recoverer"))
    if disk.files().get(FIRST) != before:
        return Finding("the damaged segment was touched", 1)
    partition = store.partition(1)
    if partition.end < 3 or not partition.failed:
        return Finding(f"recovery took it for new: it ends at {partition.end}", 3)
    with pytest.raises(CorruptionError) as caught:
        list(store.reader(partition).frames(0, partition.end))
    assert (caught.value.first, caught.value.path) == (0, FIRST)
    with pytest.raises(DurabilityError):
        store.append(partition, frames_of([b"x"], store.files), 0.0)  # type: ignore[arg-type]
    return None


def test_torn_tail_or_damage():
    """I10: a damaged header is never taken for a segment that was created and never synced."""
    for position in range(HEADER_BYTES):
        assert damaged_header(position) is None


def test_damage_taken_for_a_torn_tail(monkeypatch):
    mutate(monkeypatch, Recovery, "_scan", "if last and size <= HEADER_BYTES:", "if last:")
    assert damaged_header(20) is not None


def _append_often(writer: Writer, durable: float | None) -> None:
    for _ in range(4):
        writer.append(("t", 0), durable=durable)


def mixed_durability(seed: int) -> list[str]:
    """One writer that waits for the disk and one that does not, on one partition, in a random order."""
    bench = Bench(seed)
    for writer in (bench.a, bench.b):
        writer.process.kill()
    scheduler = Scheduler(bench.disk, seed)
    problems: list[str] = []

    for name, durable in (("waits", 0.0), ("hurries", None)):
        writer = bench.writer(name)
        scheduler.spawn(writer.process, partial(_append_often, writer, durable))
    try:
        scheduler.run()
    except Exception as error:  # noqa: BLE001  # Counted with the rest.
        problems.append(repr(error))
    bench.invariants.look()
    problems += bench.invariants.broken
    for choice in bench.disk.crash_states(Random(seed), 12):
        try:
            finding = check(bench.disk.crash(choice), bench.witness, cut=True)
        except Exception as error:  # noqa: BLE001  # Counted with the rest.
            finding = Finding(repr(error))
        problems += [finding.text] if finding else []
    return problems


def test_mixed_durability():
    """I2, I7: the lock is held through write, sync and publish."""
    assert [problem for seed in range(12) for problem in mixed_durability(seed)] == []


def test_mixed_durability_without_the_lock(monkeypatch):
    mutate(
        monkeypatch, Partition, "sync", "self.files.sync_data(self.descriptor)", "self.leave(); self.files.sync_data(self.descriptor); self.lock.acquire()",
    )  # fmt: skip
    problems = [problem for seed in range(12) for problem in mixed_durability(seed)]
    assert any("lost" in problem or "found at" in problem or "fell" in problem for problem in problems)


def stale_writer() -> Bench:
    bench = Bench()
    _, partition = bench.a.at(("t", 0))
    bench.b.drop("t")
    bench.b.append(("t", 0))
    group = bench.witness.attempt({(bench.a.entry("t").id, 0): [b"stale"]}, True)
    first = bench.a.store.append(partition, frames_of([b"stale"], bench.a.process), 0.0)
    group.acknowledged = dict.fromkeys(group.parts, first)
    return bench


def test_topic_dropped_and_made_again():
    """A writer with the old topic in hand is told so; incarnations tell the two apart."""
    with pytest.raises(TopicNotFoundError):
        stale_writer()
    bench = Bench()
    bench.b.drop("t")
    bench.b.append(("t", 0))
    assert bench.cut() is None


def test_topic_dropped_and_made_again_without_incarnations(monkeypatch):
    mutate(monkeypatch, Partition, "enter", "if words[word + INCARNATION] != self.incarnation:", "if False:")
    finding = stale_writer().cut()
    assert finding is not None
    assert finding.lost


def segments_after(commits: int) -> int:
    bench = Bench()
    for _ in range(commits):
        bench.a.transact(BOTH)
    assert bench.cut(6) is None
    assert not any(".staged" in path for path in bench.disk.files())
    return sum(path.endswith(".seg") for path in bench.disk.files() if "/topics/" in path)


def test_small_parts_never_become_segments(monkeypatch):
    """Adoption for a micro-batch would seal the active segment each time."""
    assert segments_after(12) == 2
    monkeypatch.setattr(commit, "ADOPT_BYTES_MIN", 0)
    assert segments_after(12) > 20


def test_a_large_part_is_adopted(small):
    """I8: above the limit a part becomes a segment of its own by a rename, and is whole or absent all the same."""
    bench = Bench()
    bench.a.transact(BOTH, size=900)
    assert sum(path.endswith(".seg") for path in bench.disk.files() if "/topics/" in path) == 4
    assert bench.cut() is None
