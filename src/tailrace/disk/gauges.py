"""The stats file: what the processes of a log wrote, and how long it took (docs/format.md, section 7)."""

from __future__ import annotations

import math
import struct
import threading
from bisect import bisect_left
from collections import deque
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from tailrace.disk.failures import by_system
from tailrace.limits import STATS_PAGES_MAX

if TYPE_CHECKING:
    from tailrace.disk.files import Files, Map

Noted = TypeVar("Noted")

MAGIC = b"TRSTATS1"
VERSION = 1
IDENTITY = struct.Struct("<8sQ16s")
HEADER_BYTES = 4096
PAGE_BYTES = 4096
PAGE_WORDS = PAGE_BYTES // 8
FILE_BYTES_MAX = HEADER_BYTES + STATS_PAGES_MAX * PAGE_BYTES

BUCKETS = 160
SAMPLES_MAX = 16
SAMPLE_WORDS = 3

# Words of a page, in aligned 8-byte units from its start.
PID, TOKEN, CLAIMED, TOUCHED, SAMPLED = range(5)
RECORDS, BYTES, READ_RECORDS, READ_BYTES, FAILURES, APPEND_LONGEST, SYNC_LONGEST = range(8, 15)
SAMPLES = 16
APPEND_BUCKETS = SAMPLES + SAMPLES_MAX * SAMPLE_WORDS
SYNC_BUCKETS = APPEND_BUCKETS + BUCKETS
_LONGEST = (APPEND_LONGEST, SYNC_LONGEST)

BEAT_US = 1_000_000
LIVE_US_MAX = 10_000_000
OWNED_US_MAX = 60_000_000
RATE_US = 16_000_000
LOCK_SECONDS_MAX = 1.0
ATTEMPTS_MAX = 8
# How many appends are tallied at once: their notes take less than a MiB.
HEARD_MAX = 4_096

# A duration is counted in quarters of a microsecond, plus one microsecond: so the shortest has three bits, the three
# highest bits select one of four buckets per octave, and zero is no special case.
_SHORTEST = 4
_LONGEST_COUNTED = (_SHORTEST << BUCKETS // 4) - 1
_APPEND_SHIFT = APPEND_BUCKETS - 16
_SYNC_SHIFT = SYNC_BUCKETS - 16
_WORD_MAX = (1 << 64) - 1


class Histogram(NamedTuple):
    """Counts of calls by duration: four buckets per octave, so a duration is known to a quarter of itself."""

    counts: tuple[int, ...] = (0,) * BUCKETS
    maximum: float = 0.0

    @property
    def samples(self) -> int:
        return sum(self.counts)

    def percentile(self, q: float) -> float:
        """Return the microseconds that `q` percent (0 to 100) of the calls did not exceed; 0.0 if there were none."""
        if not 0 <= q <= 100:
            raise ValueError(f"A percentile is between 0 and 100, not {q}.")
        rank = max(1, math.ceil(self.samples * q / 100))
        for index, count in enumerate(self.counts):
            if count >= rank:
                low, high = bucket_bounds(index)
                return min(low + (high - low) * (rank - 0.5) / count, self.maximum)
            rank -= count
        return 0.0


class Totals(NamedTuple):
    """Totals of all processes of a log since the machine booted; `processes` counts live writers."""

    processes: int = 0
    appended_records: int = 0
    appended_bytes: int = 0
    appends: int = 0
    syncs: int = 0
    failures: int = 0
    read_records: int = 0
    read_bytes: int = 0
    records_per_second: float = 0.0
    bytes_per_second: float = 0.0
    append_histogram: Histogram = Histogram()
    sync_histogram: Histogram = Histogram()


class Gauges:
    """The counters of one process for one log. No method but the constructor raises an OSError.

    Calls count in memory, `beat` adds what they counted to the process's page of the file. A page outlives its owner
    with all its totals, and the next owner counts on from them: so the sum over all pages never falls, and a kill at
    any moment neither loses a page's totals nor counts them twice.
    """

    __slots__ = ("_beaten_us", "_beating", "_counts", "_descriptor", "_files", "_heard", "_heard_syncs", "_identity",
                 "_map", "_mutex", "_page", "_pages_max", "_path", "_token")  # fmt: skip

    def __init__(self, files: Files, path: str, pages_max: int = STATS_PAGES_MAX) -> None:
        self._files = files
        self._path = path
        self._pages_max = pages_max
        self._identity = pack_identity(files.boot_id())
        self._map: Map | None = None
        self._descriptor = -1
        self._page = 0
        self._token = 0
        self._start()

    def _start(self) -> None:
        # One list under one mutex: not the mapped words, since a lost page could be written to, and not a list per
        # thread, which would have to track when threads end.
        self._counts = [0] * PAGE_WORDS
        # Appends that were noted and not counted yet: (records, bytes, seconds).
        self._heard: deque[tuple[int, int, float]] = deque()
        self._heard_syncs: deque[float] = deque()
        # Reentrant, because a signal handler may append in the middle of an append.
        self._mutex = threading.RLock()
        self._beating = threading.Lock()
        self._beaten_us = 0

    @classmethod
    def open(cls, files: Files, path: str, *, now_us: int, pages_max: int = STATS_PAGES_MAX) -> Gauges:
        """Return counters for the file at `path`, with a page of their own if one is available; `beat` tries again."""
        gauges = cls(files, path, pages_max)
        gauges._publish(now_us, LOCK_SECONDS_MAX)
        return gauges

    def appended(self, records: int, bytes_: int, seconds: float) -> None:
        """Count what one call wrote, and how long its caller waited."""
        heard = self._heard
        heard.append((records, bytes_, seconds))
        if len(heard) >= HEARD_MAX:
            self._tally()

    def wrote(self, records: int, bytes_: int) -> None:
        """Count what was written for calls that are not over yet: `waited` counts how long each waited."""
        with self._mutex:
            counts = self._counts
            counts[RECORDS] += records
            counts[BYTES] += bytes_

    def waited(self, seconds: float) -> None:
        """Count how long the caller of an append waited, whose records are counted already."""
        self.appended(0, 0, seconds)

    def _tally(self) -> None:
        """Count what was only noted so far: many at once cost a third of as many one by one."""
        appends, syncs = _take(self._heard), _take(self._heard_syncs)
        with self._mutex:
            if appends:
                records, sizes, durations = zip(*appends, strict=True)
                self._counts[RECORDS] += sum(records)
                self._counts[BYTES] += sum(sizes)
                self._sort_in(sorted(durations), _APPEND_SHIFT, APPEND_LONGEST)
            if syncs:
                self._sort_in(sorted(syncs), _SYNC_SHIFT, SYNC_LONGEST)

    def _sort_in(self, durations: list[float], shift: int, longest: int) -> None:
        """Count ordered durations in their buckets."""
        counts = self._counts
        done = 0
        while done < len(durations):
            quarters = _quarters(durations[done])
            bits = quarters.bit_length()
            bucket = (bits << 2) + (quarters >> bits - 3)
            upper = bisect_left(durations, _bucket_stop(bucket), done + 1)
            counts[shift + bucket] += upper - done
            done = upper
        counts[longest] = max(counts[longest], _quarters(durations[-1]))

    def synced(self, seconds: float) -> None:
        """Count one sync that succeeded."""
        heard = self._heard_syncs
        heard.append(seconds)
        if len(heard) >= HEARD_MAX:
            self._tally()

    def read_out(self, records: int, bytes_: int) -> None:
        """Count records handed to a reader."""
        with self._mutex:
            counts = self._counts
            counts[READ_RECORDS] += records
            counts[READ_BYTES] += bytes_

    def failed(self) -> None:
        """Count one write or sync that failed."""
        with self._mutex:
            self._counts[FAILURES] += 1

    def beat(self) -> None:
        """Publish what was counted, at most once a second; call it at least twice a minute to keep the page."""
        now_us = self._files.now_us()
        if 0 <= now_us - self._beaten_us < BEAT_US or not self._beating.acquire(blocking=False):
            return
        try:
            self._publish(now_us, 0.0)
        finally:
            self._beating.release()

    def close(self) -> None:
        """Publish the last counts, and leave the page to the next process."""
        if not self._beating.acquire(timeout=LOCK_SECONDS_MAX):
            return
        try:
            if self._map is not None or self._heard or self._heard_syncs or any(self._counts):
                self._publish(self._files.now_us(), LOCK_SECONDS_MAX, leave=True)
            self._drop()
        finally:
            self._beating.release()

    def forget(self) -> None:
        """Forget page and counts in a forked child: they stay the parent's, and the next `beat` finds another page."""
        self._start()
        self._drop()

    def _publish(self, now_us: int, timeout: float, *, leave: bool = False) -> None:
        while self._heard or self._heard_syncs:
            self._tally()
        self._beaten_us = now_us
        try:
            if self._hold(now_us, timeout):
                try:
                    self._store(now_us, leave)
                finally:
                    self._files.unlock(self._descriptor)
        except by_system():
            # Nothing depends on these numbers, so a full disk must not fail the call they are about.
            self._drop()

    def _hold(self, now_us: int, timeout: float) -> bool:
        """Lock the file with a page of this process in it."""
        files = self._files
        if self._map is not None:
            if not files.lock(self._descriptor, timeout=timeout):
                if timeout <= 0:
                    return False
            # The size comes first: a load beyond the end of a truncated file would kill the process.
            elif self._is_named() and self._is_whole((self._page + PAGE_WORDS) * 8) and self._is_owned(self._map):
                return True
        for _ in range(ATTEMPTS_MAX):
            self._drop()
            self._descriptor = files.open(self._path, create=True)
            if not files.lock(self._descriptor, timeout=timeout):
                break
            if self._is_named():
                if self._is_whole(HEADER_BYTES):
                    return self._claim(now_us)
                self._replace()
        self._drop()
        return False

    def _is_named(self) -> bool:
        """Return whether the open file is still the one at the path."""
        here, there = self._files.stat_open(self._descriptor), self._files.stat(self._path)
        return there is not None and (here.device, here.inode) == (there.device, there.inode)

    def _is_whole(self, size: int) -> bool:
        """Return whether the file has `size` bytes and the identity of this boot."""
        files, descriptor = self._files, self._descriptor
        return files.stat_open(descriptor).size >= size and files.read(descriptor, IDENTITY.size, 0) == self._identity

    def _is_owned(self, mapped: Map) -> bool:
        """Return whether no other process took the page while this one slept."""
        found = mapped.words[self._page + TOKEN], mapped.words[self._page + PID]
        return found == (self._token, self._files.process_id())

    def _replace(self) -> None:
        """Replace a file that is empty, damaged or of another boot by a new one; its lock keeps other processes out.

        Not in place: truncating a file that another process has mapped would kill that process.
        """
        temporary = f"{self._path}.new"
        descriptor = self._files.open(temporary, create=True)
        try:
            self._files.truncate(descriptor, 0)
            self._files.write(descriptor, self._identity.ljust(HEADER_BYTES, b"\0"), 0)
        finally:
            self._files.close(descriptor)
        self._files.rename(temporary, self._path)

    def _claim(self, now_us: int) -> bool:
        """Take the first page without a live owner, or add one; return False if there are too many."""
        files, descriptor = self._files, self._descriptor
        pages = min((files.stat_open(descriptor).size - HEADER_BYTES) // PAGE_BYTES, self._pages_max)
        self._map = files.map(descriptor, HEADER_BYTES + pages * PAGE_BYTES)
        first = HEADER_BYTES // 8
        for page in range(first, first + pages * PAGE_WORDS, PAGE_WORDS):
            if not _owned(self._map.words[page + PID], self._map.words[page + TOUCHED], now_us, OWNED_US_MAX):
                break
        else:
            if pages == self._pages_max:
                self._drop()
                return False
            self._map.close()
            # Written, not only extended: a store into a hole kills the process when the disk is full.
            files.write(descriptor, bytes(PAGE_BYTES), HEADER_BYTES + pages * PAGE_BYTES)
            self._map = files.map(descriptor, HEADER_BYTES + (pages + 1) * PAGE_BYTES)
            page = first + pages * PAGE_WORDS
        words = self._map.words
        self._page = page
        self._token = int.from_bytes(files.random_bytes(8), "little")
        words[page + TOKEN] = self._token
        words[page + CLAIMED] = now_us
        words[page + TOUCHED] = now_us
        words[page + PID] = files.process_id()
        self._sample(now_us - 1)
        return True

    def _store(self, now_us: int, leave: bool) -> None:
        """Add the counts to the page, whose file is locked."""
        assert self._map is not None
        words, page = self._map.words, self._page
        with self._mutex:
            counts, self._counts = self._counts, [0] * PAGE_WORDS
        for word in _LONGEST:
            if counts[word] > words[page + word]:
                words[page + word] = counts[word]
            counts[word] = 0
        for word, count in enumerate(counts):
            if count:
                words[page + word] = (words[page + word] + count) & _WORD_MAX
        self._sample(now_us)
        words[page + TOUCHED] = now_us
        if leave:
            words[page + PID] = 0

    def _sample(self, now_us: int) -> None:
        assert self._map is not None
        words, page = self._map.words, self._page
        number = words[page + SAMPLED] % SAMPLES_MAX
        at = page + SAMPLES + number * SAMPLE_WORDS
        words[at] = 0  # Readers take no lock: they skip a sample without a time.
        words[at + 1], words[at + 2] = words[page + RECORDS], words[page + BYTES]
        words[at] = now_us
        words[page + SAMPLED] = number + 1

    def _drop(self) -> None:
        mapped, self._map = self._map, None
        descriptor, self._descriptor = self._descriptor, -1
        if mapped is not None:
            mapped.close()
        try:
            if descriptor >= 0:
                self._files.close(descriptor)
        except by_system():
            pass  # Nothing has to be kept, and the descriptor is closed in any case.


def collect(files: Files, path: str) -> Totals:
    """Return the totals of the file at `path`, zeros if there is none of this boot, without a lock or a write."""
    try:
        descriptor = files.open(path)
    except FileNotFoundError:
        return Totals()
    try:
        data = files.read(descriptor, FILE_BYTES_MAX, 0)
    finally:
        files.close(descriptor)
    if len(data) < HEADER_BYTES or data[: IDENTITY.size] != pack_identity(files.boot_id()):
        return Totals()
    whole = len(data) - (len(data) - HEADER_BYTES) % PAGE_BYTES
    pages = list(struct.iter_unpack(f"<{PAGE_WORDS}Q", data[HEADER_BYTES:whole])) or [(0,) * PAGE_WORDS]
    now_us = files.now_us()
    sums = [sum(column) for column in zip(*pages, strict=True)]
    appends, syncs = (
        Histogram(tuple(sums[first : first + BUCKETS]), max(0, max(page[longest] for page in pages) - _SHORTEST) / 4)
        for first, longest in ((APPEND_BUCKETS, APPEND_LONGEST), (SYNC_BUCKETS, SYNC_LONGEST))
    )
    rates = [_rates(page, now_us) for page in pages]
    return Totals(
        processes=sum(_owned(page[PID], page[TOUCHED], now_us, LIVE_US_MAX) for page in pages),
        appended_records=sums[RECORDS],
        appended_bytes=sums[BYTES],
        appends=appends.samples,
        syncs=syncs.samples,
        failures=sums[FAILURES],
        read_records=sums[READ_RECORDS],
        read_bytes=sums[READ_BYTES],
        records_per_second=sum(records for records, _ in rates),
        bytes_per_second=sum(bytes_ for _, bytes_ in rates),
        append_histogram=appends,
        sync_histogram=syncs,
    )


def _take(heard: deque[Noted]) -> list[Noted]:
    """Take the notes one by one: another thread, or a signal handler of this one, may do the same at the same time."""
    taken: list[Noted] = []
    try:
        while len(taken) < HEARD_MAX:
            taken.append(heard.popleft())
    except IndexError:
        pass
    return taken


def _quarters(seconds: float) -> int:
    """Return a duration in the unit of the buckets."""
    quarters = int(seconds * 4e6) + _SHORTEST
    if not _SHORTEST <= quarters <= _LONGEST_COUNTED:
        return _LONGEST_COUNTED if seconds > 0 else _SHORTEST
    return quarters


def _bucket_stop(bucket: int) -> float:
    """Return the first duration that is too long for the bucket of a number of bits and the three highest of them."""
    bits, highest = (bucket >> 2) - 1, (bucket & 3) + 4
    return (((highest + 1) << bits - 3) - _SHORTEST) / 4e6


def pack_identity(boot_id: bytes) -> bytes:
    """Return the first bytes of the file: numbers of another boot are ignored, and not added to."""
    return IDENTITY.pack(MAGIC, VERSION, boot_id)


def bucket_bounds(index: int) -> tuple[float, float]:
    """Return the durations of a bucket in microseconds, the upper bound exclusive."""
    octave, quarter = divmod(index, 4)
    return ((_SHORTEST + quarter) << octave) / 4 - 1, ((_SHORTEST + quarter + 1) << octave) / 4 - 1


def _owned(pid: int, touched_us: int, now_us: int, silence_us_max: int) -> bool:
    # A time far in the future is as foreign as one long past: the clock was set back.
    return pid != 0 and abs(now_us - touched_us) <= silence_us_max


def _rates(page: tuple[int, ...], now_us: int) -> tuple[float, float]:
    """Return the records and bytes per second over a page's last samples."""
    samples = [page[at : at + SAMPLE_WORDS] for at in range(SAMPLES, APPEND_BUCKETS, SAMPLE_WORDS)]
    known = sorted(sample for sample in samples if 0 < sample[0] <= now_us)
    recent = [sample for sample in known if now_us - sample[0] <= RATE_US]
    if not recent:
        return 0.0, 0.0
    # Without a flusher samples may be further apart than the window is long.
    first, last = (recent if len(recent) > 1 else known[-2:])[0], recent[-1]
    # A process that no longer beats writes no more: its rate falls with time instead of staying constant.
    until_us = last[0] if now_us - last[0] < 2 * BEAT_US else now_us
    seconds = max(until_us - first[0], BEAT_US) / 1e6
    return max(0, last[1] - first[1]) / seconds, max(0, last[2] - first[2]) / seconds
