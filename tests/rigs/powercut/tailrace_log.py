"""Tailrace under power cuts: what is written, in which order, and what has to be there afterwards."""

from __future__ import annotations

import concurrent.futures
import contextlib
import itertools
import multiprocessing
import os
import random
import time
import zlib
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from tests.rigs.powercut.systems import Acknowledge, Note, System, Verdict

JOURNAL_BYTES = "1MiB"  # Small, so that checkpoints come as well.
LARGE_BYTES = 1 << 20  # A part of this size is staged as a segment of its own.
PLACES = 3
LANES = 4
TOPICS = ("orders", "payments", "parcels")
# Which process this is on the disk: the first, or one that opens what a power cut left.
CUT_VARIABLE = "TAILRACE_POWERCUT_CUT"

RETAIN_BYTES = 64 << 10
FILLER = random.Random(0).randbytes(1 << 17)

Place = tuple[str, int]


class Part(NamedTuple):
    """Records for one partition, all in one write."""

    topic: str
    partition: int
    count: int
    size: int = 200


class Step(NamedTuple):
    """One call, and what it writes where."""

    kind: str
    parts: tuple[Part, ...]
    durable: bool = True

    @property
    def whole(self) -> bool:
        """Whether it is promised to be there entirely or not at all, over all partitions."""
        return self.kind != "producer" and (self.durable or len(self.parts) == 1)


Plan = Callable[[random.Random, int, int], Step]


def values(cut: int, lane: int, number: int, part: Part) -> list[bytes]:
    """The values of one part: each says where it belongs, and its text is checked to the last byte."""
    made = []
    for index in range(part.count):
        head = f"{cut}.{lane}.{number}.{part.topic}.{part.partition}.{index}:".encode()
        first = zlib.crc32(head) % (len(FILLER) - part.size)
        made.append(head + FILLER[first : first + max(part.size - len(head), 0)])
    return made


def _appends(draw: random.Random, lane: int, number: int) -> Step:
    return Step("append", (Part("orders", 0, 1),))


def _loose(draw: random.Random, lane: int, number: int) -> Step:
    return Step("append", (Part("orders", 0, 1),), durable=False)


def _batches(draw: random.Random, lane: int, number: int) -> Step:
    count = draw.choice((1, 10, 100))
    return Step("extend", tuple(Part("orders", place, count) for place in range(draw.randint(1, PLACES))))


def _transactions(draw: random.Random, lane: int, number: int) -> Step:
    names = draw.sample(TOPICS, draw.randint(2, 3))
    return Step("transaction", tuple(Part(name, draw.randrange(PLACES), draw.randint(1, 20)) for name in names))


def _threads(draw: random.Random, lane: int, number: int) -> Step:
    """Each thread has partitions of its own, so that the order in them is known beforehand."""
    if draw.random() < 0.2:
        return Step("transaction", (Part("orders", lane, 2), Part("payments", lane, 1)))
    return Step("append", (Part("orders", lane, 1),))


def _mixed(draw: random.Random, lane: int, number: int) -> Step:
    kind = draw.choices(("append", "loose", "extend", "transaction", "producer", "large"), (6, 4, 3, 3, 1, 0.2))[0]
    if kind == "append":
        return Step("append", (Part("orders", draw.randrange(PLACES), 1, draw.choice((10, 200, 5000))),))
    if kind == "loose":
        return Step("append", (Part(draw.choice(("orders", "payments")), draw.randrange(PLACES), 1),), durable=False)
    if kind == "extend":
        return _batches(draw, lane, number)
    if kind == "producer":
        return Step("producer", (Part("payments", draw.randrange(PLACES), 30),))
    if kind == "large":
        large = Part("parcels", draw.randrange(PLACES), 20, LARGE_BYTES // 20 + 100)
        return Step("transaction", (large, Part("orders", draw.randrange(PLACES), 1)))
    return _transactions(draw, lane, number)


def _vacuums(draw: random.Random, lane: int, number: int) -> Step:
    return Step("vacuum", ()) if number % 8 == 7 else Step("extend", (Part("orders", draw.randrange(PLACES), 40),))


def _steps(plan: Plan, cut: int, lane: int, count: int) -> list[Step]:
    """The calls of one thread between one power cut and the next."""
    draw = random.Random(f"{plan.__name__}:{cut}:{lane}")
    return [plan(draw, lane, number) for number in range(count)]


def _key_for(partition: int, partitions: int) -> str:
    """A key that the default partitioner sends there."""
    return next(key for key in map(str, itertools.count()) if zlib.crc32(key.encode()) % partitions == partition)


def _perform(log: Any, step: Step, texts: list[tuple[Part, list[bytes]]]) -> None:
    if step.kind == "append":
        part, [value] = texts[0]
        log.topic(part.topic).append(value, partition=part.partition, durable=step.durable)
    elif step.kind == "extend":
        topic = log.topic(step.parts[0].topic)
        keys = [_key_for(part.partition, topic.partitions) for part, some in texts for _ in some]
        topic.extend([value for _, some in texts for value in some], keys=keys, durable=step.durable)
    elif step.kind == "vacuum":
        log.vacuum()
    elif step.kind == "producer":
        part, some = texts[0]
        topic = log.topic(part.topic)
        with topic.producer() as producer:
            key = _key_for(part.partition, topic.partitions)
            futures = [producer.append(value, key=key) for value in some]
        for future in futures:
            future.result()
    else:
        with log.transaction() as transaction:
            for part, some in texts:
                transaction.extend(part.topic, some, partition=part.partition)


@contextlib.contextmanager
def _threaded(run: Callable[[int], None], lanes: range) -> Iterator[None]:
    with concurrent.futures.ThreadPoolExecutor(max(len(lanes), 1)) as pool:
        others = [pool.submit(run, lane) for lane in lanes]
        yield
        for other in others:
            other.result()


@contextlib.contextmanager
def _forked(run: Callable[[int], None], lanes: range) -> Iterator[None]:
    """The same in processes of their own, which go on with the log that was open when they were made."""
    context = multiprocessing.get_context("fork")
    others = [context.Process(target=run, args=(lane,)) for lane in lanes]
    for other in others:
        other.start()
    yield
    for other in others:
        other.join()
        if other.exitcode:
            raise ChildProcessError(f"a process ended with {other.exitcode}")


def _writer(plan: Plan, lanes: int, partitions: int, forks: bool, settings: dict[str, Any]) -> Any:
    def write(directory: Path, acknowledge: Acknowledge, count: int, pause: float) -> None:
        import tailrace

        os.environ["TAILRACE_JOURNAL_BYTES"] = JOURNAL_BYTES
        with tailrace.open(directory / "log") as log:
            topics = [log.topic(name, partitions=partitions, **settings) for name in TOPICS]
            found = [
                [topic.name, place, bounds.latest] for topic in topics for place, bounds in topic.offsets().items()
            ]
            cut = int(os.environ.get(CUT_VARIABLE, "0"))
            acknowledge({"ack": "found", "found": found, "cut": cut})

            def run(lane: int) -> None:
                for number, step in enumerate(_steps(plan, cut, lane, count // lanes)):
                    _perform(log, step, [(part, values(cut, lane, number, part)) for part in step.parts])
                    note: Note = {"ack": number, "lane": lane}
                    if not step.durable:
                        note["safe"] = [
                            [part.topic, part.partition, log.topic(part.topic).offsets()[part.partition].durable]
                            for part in step.parts
                        ]
                    acknowledge(note)
                    time.sleep(pause)

            with _forked(run, range(1, lanes)) if forks else _threaded(run, range(1, lanes)):
                run(0)

    return write


class Call(NamedTuple):
    """A call that was made, where its records begin, and whether it was acknowledged."""

    step: Step
    firsts: list[int]
    acknowledged: bool
    # Of each part, how far its partition reached when a later process opened the log.
    limits: list[int]


class Audit:
    """One check: what is there, held against what was to be written and what was acknowledged."""

    def __init__(self, plan: Plan, lanes: int, notes: list[Note], everything: bool) -> None:
        self.everything = everything
        self.faults: list[str] = []
        # By place; None for what retention has removed at the beginning.
        self.found: dict[Place, list[bytes | None]] = {}
        self.expected: dict[Place, list[bytes]] = defaultdict(list)
        self.calls: list[Call] = []
        self.safe: list[list[Any]] = []
        self.acknowledged = self.survived = 0
        openings = [index for index, note in enumerate(notes) if "found" in note]
        for first, last in itertools.pairwise([*openings, len(notes)]):
            self._add(plan, lanes, notes[first], notes[first + 1 : last])

    def _add(self, plan: Plan, lanes: int, opening: Note, notes: list[Note]) -> None:
        """Take in what one process did: where it found the partitions to end, and the calls it made from there."""
        ends = {(topic, partition): end for topic, partition, end in opening["found"]}
        for place, written in self.expected.items():
            del written[ends.get(place, 0) :]
        for call in self.calls:
            ends_now = [ends.get((part.topic, part.partition), 0) for part in call.step.parts]
            call.limits[:] = map(min, call.limits, ends_now)
        self.safe = [entry for note in notes for entry in note.get("safe", ())]
        for lane in range(lanes):
            # One call more than was acknowledged may have been under way in each thread.
            done = sum(note["lane"] == lane for note in notes)
            for number, step in enumerate(_steps(plan, opening["cut"], lane, done + 1)):
                firsts = []
                for part in step.parts:
                    written = self.expected[part.topic, part.partition]
                    firsts.append(len(written))
                    written += values(opening["cut"], lane, number, part)
                self.calls.append(Call(step, firsts, number < done, [2**62] * len(firsts)))

    def read(self, log: Any) -> dict[Place, list[bytes | None]]:
        found: dict[Place, list[bytes | None]] = {}
        for info in log.topics():
            topic = log.topic(info.name)
            kept = 0
            for partition, bounds in topic.offsets().items():
                records = list(topic.read(partition=partition))
                first = bounds.earliest
                if [record.offset for record in records] != list(range(first, first + len(records))):
                    self.faults.append(
                        f"the offsets of {info.name}[{partition}] are not {first}, {first + 1} and so on"
                    )
                found[info.name, partition] = [*itertools.repeat(None, first), *(record.value for record in records)]
                kept += sum(len(record.value) for record in records)
            removed = any(bounds.earliest for bounds in topic.offsets().values())
            if removed and kept < RETAIN_BYTES // 2:
                self.faults.append(f"retention has left only {kept} bytes of values in {info.name}")
        return found

    def compare(self) -> None:
        """Each partition holds the beginning of what was written to it, in order, cut only where a call ends."""
        for call in self.calls:
            self._judge(call)
        for place, found in self.found.items():
            expected = self.expected[place]
            same = all(value is None or value == wanted for value, wanted in zip(found, expected, strict=False))
            if not same or len(found) > len(expected):
                self.faults.append(f"{place} holds something else than the beginning of what was written")
        for topic, partition, safe in self.safe:
            if len(self.found.get((topic, partition), ())) < safe:
                self.faults.append(f"{topic}[{partition}] had said that {safe} records are on disk")

    def _judge(self, call: Call) -> None:
        step = call.step
        wanted = [part.count for part in step.parts]
        ends = [len(self.found.get((part.topic, part.partition), ())) for part in step.parts]
        there = [
            min(max(min(end, limit) - first, 0), part.count)
            for part, first, limit, end in zip(step.parts, call.firsts, call.limits, ends, strict=True)
        ]
        if call.acknowledged and (step.durable or self.everything):
            self.acknowledged += sum(wanted)
            self.survived += sum(there)
        if call.acknowledged and step.durable and there != wanted:
            self.faults.append(f"an acknowledged {step.kind} at {call.firsts} has {there} of {wanted} records")
        if step.whole and there != wanted and any(there):
            self.faults.append(f"{step.kind} at {call.firsts} is there in part: {there} of {wanted} records")

    def go_on(self, log: Any) -> None:
        """Appends go on where the records end."""
        for topic, partition in self.found:
            position = log.topic(topic).append(b"after", partition=partition)
            if position.offset != len(self.found[topic, partition]):
                self.faults.append(f"{topic}[{partition}] went on at {position.offset}")
            self.found[topic, partition].append(b"after")


def _checker(plan: Plan, lanes: int, promised: bool) -> Any:
    def check(directory: Path, acknowledged: list[Note], seed: int) -> Verdict:
        import tailrace

        os.environ["TAILRACE_JOURNAL_BYTES"] = JOURNAL_BYTES
        audit = Audit(plan, lanes, acknowledged, not promised)
        compared = False
        damaged = ""
        try:
            with boot(f"{seed}, first"), tailrace.open(directory / "log") as log:
                audit.found = audit.read(log)
                audit.compare()
                compared = True
                report = log.verify()
                if not report.ok:
                    audit.faults.append(f"verify found {report.damage}")
                audit.go_on(log)
            # Recovering once more changes nothing.
            with boot(f"{seed}, second"), tailrace.open(directory / "log") as log:
                if audit.read(log) != audit.found:
                    audit.faults.append("the next recovery came to something else")
        except tailrace.errors.TailraceError as error:
            damaged = f"{type(error).__name__}: {error}"
            if not compared:
                audit.compare()
        return Verdict(audit.acknowledged, audit.survived, damaged, tuple(audit.faults))

    return check


@contextlib.contextmanager
def boot(name: str) -> Iterator[None]:
    os.environ["TAILRACE_BOOT_ID"] = name
    try:
        yield
    finally:
        del os.environ["TAILRACE_BOOT_ID"]


def _system(
    key: str,
    setting: str,
    plan: Plan,
    *,
    lanes: int = 1,
    partitions: int = PLACES,
    promised: bool = True,
    forks: bool = False,
    **settings: Any,
) -> System:
    write = _writer(plan, lanes, partitions, forks, settings)
    return System(key, "Tailrace", setting, write, _checker(plan, lanes, promised), "tailrace", "tailrace", promised)


ROLLING = {"segment_bytes": "16KiB"}
SYSTEMS = (
    _system("tailrace", "default: append", _appends, partitions=1),
    _system("tailrace-extend", "extend, with rolls", _batches, **ROLLING),
    _system("tailrace-transaction", "transactions over topics, with rolls", _transactions, **ROLLING),
    _system(
        "tailrace-threads", "four threads: append, transactions, rolls", _threads, lanes=LANES, partitions=LANES,
        **ROLLING,
    ),
    _system(
        "tailrace-processes", "two processes: append, transactions, rolls", _threads, lanes=2, partitions=LANES,
        forks=True, **ROLLING,
    ),
    _system("tailrace-mixed", "all of these, a producer, parts of 1 MiB, rolls", _mixed, **ROLLING),
    _system("tailrace-vacuum", "extend, rolls, retention by bytes", _vacuums, **ROLLING, retain_bytes=RETAIN_BYTES),
    _system("tailrace-loose", "append with durable=False", _loose, partitions=1, promised=False),
)  # fmt: skip
