"""Flipped bits: each byte of a log is damaged, and reading gives the same as before or an error (I10)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress

from tailrace.disk import segment
from tailrace.errors import TailraceError
from tests.rigs.mutations.sweeps import told
from tests.rigs.sim import Disk, Process
from tests.rigs.sim.bench import BOTH, FIRST, Bench
from tests.rigs.sim.engine import check, open_store

# What a partition shows: its records with their times, what its segments say of themselves, and places by time.
Shown = tuple[tuple[object, ...], ...]


def shown(disk: Disk) -> dict[int, Shown | None]:
    """Every partition as another process sees it, None where an error says that it is damaged."""
    store = open_store(Process(disk, "reader"))
    found: dict[int, Shown | None] = {}
    for entry in list(store.refresh().by_name.values()):
        for slot in entry.slots:
            partition = store.partition(slot)
            found[slot] = None
            if partition.failed:
                continue
            reader = store.reader(partition)
            with suppress(TailraceError):
                records = [
                    (column.offset(at), column.value(at), column.time(at))
                    for column in map(reader.columns, reader.frames(partition.start, partition.end))
                    for at in range(column.count)
                ]
                infos = [(info.base, info.end, info.records, info.min_time, info.max_time, info.created)
                         for info in reader.layout().infos()]  # fmt: skip
                # A place by time is looked up in the index of a footer, which nothing else here would need.
                places = [(time, reader.offset_at(time)) for time in sorted({time for _, _, time in records})]
                found[slot] = (*records, *infos, *places)
    return found


def _flipped(disk: Disk, path: str, positions: Iterator[int]) -> str | None:
    """Flip bits of a file; what is then shown and is not what was shown before."""
    before = shown(disk.crash(None))
    for position in positions:
        for bit in (0, 1, 6):
            other = disk.crash(None)
            other.flip(path, position, bit)
            after: dict[int, Shown | None] = {}
            with suppress(TailraceError):
                after = shown(other)
            for slot, contents in after.items():
                if contents is not None and contents != before.get(slot):
                    return f"bit {bit} of byte {position} of {path} was flipped, and slot {slot} shows something else"
            if after and set(after) != set(before):
                return f"bit {bit} of byte {position} of {path} was flipped, and a topic is gone"
    return None


def _log(seed: int) -> Disk:
    """A log with a sealed and an active segment, all of it on the medium, floor included."""
    bench = Bench(seed)
    bench.a.append(("t", 0), 3, split=True)
    bench.a.roll(("t", 0))
    bench.a.append(("t", 0), 2)
    bench.a.transact(BOTH)
    bench.a.store.committer.checkpoint()
    return bench.disk.crash(None)


@contextmanager
def _short_stretches() -> Iterator[None]:
    """An entry of the index for each frame: with one for all of a small segment no search depends on it."""
    before, segment.INDEX_STRETCH_BYTES = segment.INDEX_STRETCH_BYTES, 1
    try:
        yield
    finally:
        segment.INDEX_STRETCH_BYTES = before


def segments(seed: int) -> str | None:
    """Every byte of the sealed segment, with its footer, and of the active one."""
    with _short_stretches():
        disk = _log(seed)
    for path in sorted(path for path in disk.files() if path.startswith(FIRST[:-25])):
        size = len(disk.files()[path].rstrip(b"\0"))
        problem = told(lambda: _flipped(disk, path, iter(range(size))))  # noqa: B023
        if problem:
            return problem
    return None


def tails(seed: int) -> str | None:
    """Every byte of the header of the tails and of the first slots, on another boot: floors come from whole blocks."""
    disk = _log(seed)
    size = len(disk.files()["/log/tails"].rstrip(b"\0"))
    positions = [*range(64), *range(4_096, size)]
    before = shown(disk.crash(None))
    for position in positions:
        other = disk.crash(None)
        other.flip("/log/tails", position, 4)
        problem = told(lambda: None if shown(other) == before else "another state is shown")  # noqa: B023
        if problem:
            return f"byte {position} of the tails was flipped: {problem}"
    return None


def journal(seed: int) -> str | None:
    """Every byte of the journal, when commits are there alone: what is not whole does not count, and no more is lost.

    The header sector of the generation before is nobody's business.
    """
    bench = Bench(seed)
    bench.a.store.committer.checkpoint()
    bench.a.transact(BOTH, 2)
    disk = bench.disk.crash(None)
    path = "/log/journal/00000001.wal"
    data = disk.files()[path]
    at = next(sector for sector in (4_096, 0) if data[sector + 40 : sector + 48] != (2).to_bytes(8, "little"))
    for position in [*range(at, at + 68), *range(8_192, len(data.rstrip(b"\0")))]:
        old = position < 8_192
        group = bench.witness.groups[-1]
        acknowledged, safe = group.acknowledged, bench.witness.safe
        if not old:
            # Damage to the only copy may lose the commit, as a whole.
            group.acknowledged, bench.witness.safe = {}, {}
        for bit in (0, 5):
            other = disk.crash(None)
            other.flip(path, position, bit)
            problem = told(lambda: check(other, bench.witness, cut=True))  # noqa: B023
            if problem:
                return f"bit {bit} of byte {position} of the journal was flipped: {problem}"
        group.acknowledged, bench.witness.safe = acknowledged, safe
    return None
