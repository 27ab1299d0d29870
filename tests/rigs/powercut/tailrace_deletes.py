"""Deleted, erased and expired records of Tailrace under power cuts, while segments are rewritten.

What was hidden stays hidden, what was acknowledged stays, a rewrite changes no other record, and no file has a byte of
what was erased. Each call is announced with the acknowledgement of the one before it, so that a check knows which one a
cut may have left half done.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import random
import re
import time
import zlib
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from tests.rigs.powercut.systems import Acknowledge, Note, System, Verdict
from tests.rigs.powercut.tailrace_log import CUT_VARIABLE, FILLER, JOURNAL_BYTES, boot

TOPIC, MOVES = "people", "moves"
PARTITIONS = 2
KEYS = tuple(f"person-{number}" for number in range(6))
SETTINGS = {"partitions": PARTITIONS, "segment_bytes": "16KiB", "mutable": True, "compress": "none"}
# Seconds that a record lives: until the power is cut at the latest, for longer than any run, for ever.
SHORT, LONG, ALWAYS = 0.001, 3600.0, None
KINDS = {"append": 6, "loose": 3, "extend": 5, "transaction": 4, "delete": 6, "vacuum": 2, "erase": 1.2}
MARKER = re.compile(rb"<\d+\.\d+\.\d+>")

Place = tuple[int, int]


class Made(NamedTuple):
    """A record that a call writes: where, for whom, for how long, and the name that its value begins with."""

    partition: int
    key: str
    life: float | None
    name: str


def value_of(name: str) -> bytes:
    """The value of a name, which cannot be taken for another."""
    first = zlib.crc32(name.encode())
    return b"<%s>%s" % (name.encode(), FILLER[first % 60_000 :][: 100 + first % 700].replace(b"<", b"-"))


def time_of(name: str) -> int:
    """The timestamp of a record, so that a rewrite cannot change it unseen."""
    cut, number, index = map(int, name.split("."))
    return 1_700_000_000_000_000 + ((cut * 10_000 + number) * 1_000 + index) * 1_000


class Known:
    """What is known of the topic from the notes of its writers."""

    def __init__(self) -> None:
        self.records: dict[Place, Made] = {}
        # What no reader may be shown any more: deleted, erased or expired.
        self.hidden: set[Place] = set()
        # Names of which no file may have a byte.
        self.erased: set[str] = set()
        # By partition, up to where its records were acknowledged as durable.
        self.durable: dict[int, int] = defaultdict(int)
        self.moves: list[str] = []
        self.faults: list[str] = []

    def visible(self, partition: int) -> list[int]:
        return sorted(at for where, at in self.records if where == partition and (where, at) not in self.hidden)

    def of_key(self, key: str) -> set[Place]:
        return {place for place, made in self.records.items() if made.key == key}

    def apply(self, step: Note, firsts: list[int]) -> None:
        """Take in a call that returned; `firsts` is where the partitions ended before it."""
        ends = [*firsts]
        for made in _made(step):
            place = (made.partition, ends[made.partition])
            self.records[place] = made
            ends[made.partition] += 1
            if made.life == SHORT:
                self.hidden.add(place)
            if step.get("durable"):
                self.durable[made.partition] = ends[made.partition]
        for partition, offsets in step.get("deletes", ()):
            self.hidden.update((partition, offset) for offset in offsets)
            self.durable[partition] = max(self.durable[partition], offsets[-1] + 1)
        if step["kind"] == "transaction":
            self.moves.append(step["move"])
        if step["kind"] == "erase":
            gone = self.of_key(step["key"])
            self.hidden |= gone
            self.erased.update(self.records[place].name for place in gone)

    def reopen(self, note: Note, left: Note | None) -> None:
        """Take in what a process found after a power cut, which is durable from then on."""
        found = {(partition, at): name for partition, at, name in note["found"]}
        written = {made.name: made for made in _made(left or {})}
        doubtful = self.doubtful(left)
        self.faults += [f"{self.records[place].name} came back" for place in self.hidden & found.keys()]
        for place in [*self.records]:
            if place[1] >= note["ends"][place[0]]:
                del self.records[place]
                self.hidden.discard(place)
            elif place not in found and place not in self.hidden:
                self.hidden.add(place)
                if place not in doubtful:
                    self.faults.append(f"{self.records[place].name} was not there after a cut")
        for place, name in found.items():
            if place not in self.records and name in written:
                self.records[place] = written[name]
        self.durable = defaultdict(int, dict(enumerate(note["ends"])))
        self.moves = note["moves"]

    def doubtful(self, left: Note | None) -> set[Place]:
        """The records that a call which did not return may have hidden."""
        if left is None:
            return set()
        if left["kind"] == "erase":
            return self.of_key(left["key"]) - self.hidden
        return {(partition, at) for partition, offsets in left.get("deletes", ()) for at in offsets}


def _made(step: Note) -> list[Made]:
    return [Made(*each) for each in step.get("records", ())]


# The work.


def plan(known: Known, cut: int, number: int) -> Note:
    """Draw the next call, from what is there."""
    draw = random.Random(f"{cut}.{number}")
    kind = draw.choices([*KINDS], [*KINDS.values()])[0]
    step: Note = {"kind": kind, "durable": kind != "loose"}
    partitions = range(PARTITIONS) if kind == "extend" and draw.random() < 0.5 else [draw.randrange(PARTITIONS)]
    count = draw.choice((2, 10, 30)) if kind == "extend" else 1
    if kind in ("append", "loose", "extend", "transaction"):
        life = draw.choice((SHORT, LONG, ALWAYS, ALWAYS, ALWAYS))
        places = [partition for partition in partitions for _ in range(count)]
        step["records"] = [(each, draw.choice(KEYS), life, f"{cut}.{number}.{at}") for at, each in enumerate(places)]
    if kind in ("delete", "transaction"):
        partition = draw.randrange(PARTITIONS)
        there = known.visible(partition)
        # Often the newest one, which may not be on disk yet.
        offsets = sorted({*draw.sample(there, min(len(there), draw.choice((1, 3, 12)))), *there[-1:]})
        step["deletes"] = [(partition, offsets)] if offsets else []
    if kind == "transaction":
        step["move"] = f"{cut}.{number}"
    if kind == "erase":
        step["key"] = draw.choice(KEYS)
    return step


def perform(log: Any, step: Note) -> None:
    topic, records = log.topic(TOPIC), _made(step)
    if step["kind"] in ("append", "loose"):
        [made] = records
        topic.append(
            value_of(made.name), key=made.key, partition=made.partition, ttl=made.life, timestamp=time_of(made.name),
            durable=step["durable"],
        )  # fmt: skip
    elif step["kind"] in ("extend", "transaction"):
        with log.transaction() as transaction:
            for partition in sorted({made.partition for made in records}):
                some = [made for made in records if made.partition == partition]
                transaction.extend(
                    TOPIC, [value_of(made.name) for made in some], keys=[made.key for made in some],
                    timestamps=[time_of(made.name) for made in some], ttl=some[0].life, partition=partition,
                )  # fmt: skip
            for partition, offsets in step.get("deletes", ()):
                transaction.delete(TOPIC, offsets, partition)
            if "move" in step:
                transaction.append(MOVES, step["move"])
    elif step["kind"] == "delete":
        for partition, offsets in step["deletes"]:
            topic.delete(offsets, partition)
    elif step["kind"] == "vacuum":
        log.vacuum()
    else:
        topic.erase(step["key"])


def _vacuums(log: Any, over: Any) -> None:
    while not over.wait(0.02):
        log.vacuum()


@contextlib.contextmanager
def _vacuumed(log: Any, beside: bool) -> Iterator[None]:
    """Inside, another process vacuums again and again, if so requested."""
    if not beside:
        yield
        return
    context = multiprocessing.get_context("fork")
    over = context.Event()
    other = context.Process(target=_vacuums, args=(log, over))
    other.start()
    try:
        yield
    finally:
        over.set()
        other.join()
    if other.exitcode:
        raise ChildProcessError(f"the vacuum ended with {other.exitcode}")


def _writer(beside: bool) -> Any:
    def write(directory: Path, acknowledge: Acknowledge, count: int, pause: float) -> None:
        import tailrace

        os.environ["TAILRACE_JOURNAL_BYTES"] = JOURNAL_BYTES
        cut = int(os.environ.get(CUT_VARIABLE, "0"))
        with tailrace.open(directory / "log") as log:
            topic = log.topic(TOPIC, **SETTINGS)
            log.topic(MOVES)
            known = Known()
            there, ends = _shown(log)
            found = [(*place, name) for place, name in there.items()]
            # A record that was hidden when it was found is known by its offset alone.
            known.records = {(partition, at): Made(partition, "", ALWAYS, name) for partition, at, name in found}
            step = plan(known, cut, 0)
            acknowledge({"ack": "found", "cut": cut, "found": found, "ends": ends, "moves": _moves(log), "next": step})
            with _vacuumed(log, beside):
                for number in range(count):
                    firsts = [bounds.latest for _, bounds in sorted(topic.offsets().items())]
                    perform(log, step)
                    known.apply(step, firsts)
                    step = plan(known, cut, number + 1)
                    acknowledge({"ack": number, "firsts": firsts, "next": step})
                    time.sleep(pause)

    return write


# The check.


def _shown(log: Any) -> tuple[dict[Place, str], list[int]]:
    """Return the name of each record that is shown, with its place, and the ends of the partitions."""
    if TOPIC not in {info.name for info in log.topics()}:
        return {}, [0] * PARTITIONS
    topic = log.topic(TOPIC)
    shown: dict[Place, str] = {}
    for record in topic.read():
        found = MARKER.match(record.value)
        shown[record.partition, record.offset] = found[0][1:-1].decode() if found else "?"
    return shown, [bounds.latest for _, bounds in sorted(topic.offsets().items())]


def _moves(log: Any) -> list[str]:
    return [record.text for record in log.topic(MOVES).read()] if MOVES in {info.name for info in log.topics()} else []


class Audit:
    """One check: what is shown, held against what was acknowledged and what was under way."""

    def __init__(self, notes: list[Note]) -> None:
        self.known = Known()
        self.left: Note | None = None
        for note in notes:
            if note["ack"] == "found":
                self.known.reopen(note, self.left)
            elif self.left is not None:
                self.known.apply(self.left, note["firsts"])
            self.left = note["next"]
        self.faults = self.known.faults
        self.doubtful = self.known.doubtful(self.left)
        self.written = {made.name: made for made in _made(self.left or {})}
        self.promised = {
            place
            for place in self.known.records.keys() - self.known.hidden - self.doubtful
            if place[1] < self.known.durable[place[0]]
        }
        self.survived = 0

    def look_for_erased(self, directory: Path) -> None:
        """What was erased is in no file, before the log is opened for the first time after the cut."""
        for path in directory.rglob("*"):
            left = self.known.erased & _names_in(path)
            if left:
                self.faults.append(f"{path.relative_to(directory)} has {sorted(left)[:3]}, which were erased")

    def look_for_deleted(self, directory: Path) -> None:
        """What is hidden is in no segment after a vacuum."""
        hidden = {self.known.records[place].name for place in self.known.hidden}
        for path in directory.rglob(f"*-{TOPIC}/*/*.seg"):
            left = hidden & _names_in(path)
            if left:
                self.faults.append(f"{path.name} has {sorted(left)[:3]} after a vacuum, which were hidden")

    def compare(self, log: Any) -> None:
        known = self.known
        shown, ends = _shown(log)
        self.survived = len(self.promised & shown.keys())
        for record in log.topic(TOPIC).read() if shown else ():
            self._judge(record, shown[record.partition, record.offset])
        for place in sorted(known.hidden & shown.keys()):
            self.faults.append(f"{known.records[place].name} at {place} is shown again")
        for place in sorted(known.records.keys() - known.hidden - self.doubtful - shown.keys()):
            # Nothing below the end is missing; what is above it was not durable.
            if place in self.promised or place[1] < ends[place[0]]:
                self.faults.append(f"{known.records[place].name} at {place} is gone")
        self._judge_call({*shown.values()}, self.doubtful & shown.keys(), _moves(log))

    def _judge(self, record: Any, name: str) -> None:
        """A record is as it was written."""
        place = (record.partition, record.offset)
        made = self.known.records.get(place) or self.written.get(name)
        if made is None or made.name != name or made.partition != record.partition:
            self.faults.append(f"{name} at {place} was not written there")
            return
        timestamp = round(record.timestamp.timestamp() * 1_000_000)
        if (record.key, record.value, timestamp) != (made.key.encode(), value_of(name), time_of(name)):
            self.faults.append(f"{name} at {place} is another record than the one that was written")

    def _judge_call(self, names: set[str], shown: set[Place], moves: list[str]) -> None:
        """The call that did not return was made entirely, or not at all."""
        step = self.left or {"kind": ""}
        lasting = [made.name in names for made in self.written.values() if made.life != SHORT]
        outcomes = {*lasting}
        if step["kind"] != "erase":
            outcomes |= {place not in shown for place in self.doubtful - self.known.hidden}
        moved = moves[len(self.known.moves) :]
        if step["kind"] == "transaction":
            outcomes.add(moved == [step["move"]])
        if moves[: len(self.known.moves)] != self.known.moves or moved not in ([], [step.get("move")]):
            self.faults.append(f"the transactions that are there are {moves}")
        if len(outcomes) > 1:
            self.faults.append(f"{step['kind']} of {sorted(self.written)} and {sorted(self.doubtful)} is there in part")

    def go_on(self, log: Any) -> None:
        """Appends go on where the partitions end, and a vacuum changes nothing that is shown."""
        before, ends = _shown(log)
        for partition, end in enumerate(ends):
            if log.topic(TOPIC, **SETTINGS).append(b"after", partition=partition).offset != end:
                self.faults.append(f"partition {partition} did not go on at {end}")
            before[partition, end] = "?"
        log.vacuum()
        if _shown(log)[0] != before:
            self.faults.append("a vacuum changed what is shown")
        report = log.verify()
        if not report.ok:
            self.faults.append(f"verify found {report.damage}")


def _names_in(path: Path) -> set[str]:
    try:
        data = path.read_bytes() if path.is_file() else b""
    except FileNotFoundError:
        return set()
    return {found[1:-1].decode() for found in MARKER.findall(data)}


def check(directory: Path, acknowledged: list[Note], seed: int) -> Verdict:
    import tailrace

    os.environ["TAILRACE_JOURNAL_BYTES"] = JOURNAL_BYTES
    audit = Audit(acknowledged)
    damaged = ""
    try:
        audit.look_for_erased(directory / "log")
        with boot(f"{seed}, first"), tailrace.open(directory / "log") as log:
            audit.compare(log)
            audit.go_on(log)
            shown = _shown(log)
        audit.look_for_erased(directory / "log")
        audit.look_for_deleted(directory / "log")
        # Recovering once more changes nothing.
        with boot(f"{seed}, second"), tailrace.open(directory / "log") as log:
            if _shown(log) != shown:
                audit.faults.append("the next recovery came to something else")
    except tailrace.errors.TailraceError as error:
        damaged = f"{type(error).__name__}: {error}"
    return Verdict(len(audit.promised), audit.survived, damaged, tuple(audit.faults))


def _system(key: str, setting: str, *, beside: bool = False) -> System:
    return System(key, "Tailrace", setting, _writer(beside), check, "tailrace", "tailrace", promised=True)


SYSTEMS = (
    _system("tailrace-deletes", "append, ttl, delete, erase, vacuum, transactions, rolls"),
    _system("tailrace-deletes-vacuum", "the same while another process vacuums", beside=True),
)
