"""What a plausible design gets wrong with files; each rule is then taken out, and the loss must show."""

from __future__ import annotations

from contextlib import suppress

import pytest

from tailrace.disk.frame import MORE, place, prepare, salt_chain
from tailrace.disk.segment import HEADER_BYTES, Index, pack_header, parse_header
from tailrace.disk.store import Store
from tailrace.disk.tails import IDENTITY, Tails
from tailrace.errors import CorruptionError, LockedError, StorageError
from tests.rigs.sim import Kill, Process
from tests.rigs.sim.bench import BOTH, FIRST, Bench, killed
from tests.rigs.sim.engine import frames_of, open_store, sim_tuning
from tests.rigs.sim.mutation import edited, instead, mutate, never, without
from tests.rigs.sim.witness import Finding, compare, read_all


def rewritten(*, more: bool = False) -> Bench:
    """A sealed segment written anew in another layout, as a compaction would, whose frames the journal still holds."""
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
    mutate(monkeypatch, never("salt of a segment"))
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
    mutate(monkeypatch, without("one directory sync per unlink"))
    assert trims() is None
    mutate(monkeypatch, edited("trim that came back", "self._kept(directory, place.trim)", "self._bases(directory)"))
    assert trims() is not None


def half_created_successor() -> Finding | None:
    bench = Bench()
    bench.a.roll(("t", 0))
    bench.strike(Kill(0, when="after"), "create", ".seg")
    killed(lambda: bench.a.append(("t", 0)))
    bench.calm()
    findings: list[Finding] = []

    def look(process: Process, kind: str, detail: tuple[object, ...]) -> None:
        bench.invariants(process, kind, detail)
        if kind in ("remove_file", "sync_directory", "create") and not findings:
            finding = bench.cut(24)
            findings.extend([finding] if finding else [])

    bench.disk.observer = look
    with suppress(StorageError):
        bench.b.trim(("t", 0), 99)
    bench.calm()
    return findings[0] if findings else bench.cut()


def test_retention_goes_by_the_state_not_by_the_listing():
    """I5: a half-created successor does not make the last good segment an old one."""
    assert half_created_successor() is None


def test_retention_by_listing(monkeypatch):
    mutate(monkeypatch, edited("retention by state", "and base <= state.base", ""))
    assert half_created_successor() is not None


def seals() -> Finding | None:
    bench = Bench()
    bench.a.append(("t", 0), 3, split=True, durable=None)
    findings: list[Finding] = []

    def look(process: Process, kind: str, detail: tuple[object, ...]) -> None:
        bench.invariants(process, kind, detail)
        if not findings and any(".seg" in str(part) for part in detail):
            finding = bench.cut(200)
            findings.extend([finding] if finding else [])

    bench.disk.observer = look
    bench.a.roll(("t", 0))
    bench.calm()
    return findings[0] if findings else bench.cut()


def test_seal_in_two_syncs():
    """I5, I7: the footer is written when all it covers is on disk."""
    assert seals() is None


def test_seal_in_one_sync(monkeypatch):
    mutate(monkeypatch, edited("frames before the footer", "state.synced < state.position or", "False and"))
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
    store = Store(process, "/copy", "a", tuning=sim_tuning())
    entry = store.refresh().by_name["t"]
    first = store.append(store.partition(entry.slots[0]), frames_of([b"on the copy"], process), 0.0)
    after = bench.disk.crash(None)
    try:
        again = Store(Process(after, "again"), "/copy", "a", tuning=sim_tuning())
        found = read_all(again)
    except Exception as error:  # noqa: BLE001  # Anything but the records is a loss.
        return Finding(repr(error), 1)
    if (entry.id, 0) not in found or found[entry.id, 0].records.get(first) != b"on the copy":
        return Finding("the record on the copy is lost", 1)
    del found[entry.id, 0].records[first]
    return compare(bench.witness, found, cut=True)


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
    store = Store(process, "/copy", "a", tuning=sim_tuning())
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


def damaged_header(position: int, *, floor: bool) -> Finding | None:
    """A last segment with one damaged header byte; what recovery makes of it, with the old tails or without."""
    bench = Bench()
    bench.a.store.checkpoint()
    disk = bench.disk.crash(None)
    disk.flip(FIRST, position)
    process = Process(disk, "recoverer")
    if not floor:
        process.remove_file("/log/tails")
    before = disk.files()[FIRST]
    store = open_store(process)
    partition = store.partition(1)
    if disk.files().get(FIRST) != before or not partition.failed:
        return Finding("recovery took a damaged segment for one that was never synced", 3)
    with pytest.raises(CorruptionError, match="read-only"):
        store.append(partition, frames_of([b"x"], process), 0.0)
    try:
        found = list(store.reader(partition).frames(0, partition.end))
    except CorruptionError as error:
        return None if (error.first, error.path) == (0, FIRST) else Finding(f"the range is wrong: {error}")
    return Finding(f"reading gives {len(found)} frames and no error", 3)


def test_torn_tail_or_damage():
    """I10: a damaged header is never taken for a segment that was created and never synced."""
    for position in range(HEADER_BYTES):
        assert damaged_header(position, floor=True) is None


def test_damage_taken_for_a_torn_tail(monkeypatch):
    mutate(monkeypatch, instead("damage is no torn tail", "if last:"))
    finding = damaged_header(20, floor=False)
    assert finding is not None
    assert finding.lost
