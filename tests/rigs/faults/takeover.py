"""Take-over: how long the partitions of a killed member are without a reader.

Method: members wait in poll over eight partitions. One of them is handed a record and is killed with it in hand, so
that nothing of it is committed. The time runs from just before the kill until another member has the same record in
hand; both clocks are CLOCK_MONOTONIC, which all processes of a machine share. Then a new member takes the place of the
dead one, and the next round begins when the shares are even again.
"""

from __future__ import annotations

import json
import os
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from random import Random
from typing import Any

import tailrace
from tests.processes import is_readable
from tests.rigs.faults.herd import Beast, Body, Herd, tell

GROUP = "takers"
TOPIC = "work"
PARTITIONS = 8
# What half of the take-overs and 99 of 100 should stay below, in milliseconds, on a machine that is not overloaded.
GOALS = {0.5: 5.0, 0.99: 50.0}
SETTLE_SECONDS_MAX = 20.0
TAKE_SECONDS_MAX = 20.0


@dataclass
class TakeOver:
    """The times of one size of group, in milliseconds."""

    members: int = 0
    rounds: int = 0
    times: list[float] = field(default_factory=list)
    # How many processes wanted a processor, for each that there is: above 1 the times say more of that than of groups.
    load: float = 0.0
    faults: list[str] = field(default_factory=list)

    def at(self, share: float) -> float:
        """The time that this share of the rounds did not exceed."""
        ordered = sorted(self.times)
        return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else float("nan")

    def text(self) -> str:
        met = all(self.at(share) < most for share, most in GOALS.items())
        return (
            f"{self.members} members, {len(self.times)} kills: p50 {self.at(0.5):.2f} ms, p90 {self.at(0.9):.2f} ms, "
            f"p99 {self.at(0.99):.2f} ms, longest {max(self.times, default=float('nan')):.2f} ms "
            f"(goal {'met' if met else 'NOT met'}, load {self.load:.1f} a processor)"
        )

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "p50": self.at(0.5), "p99": self.at(0.99)}


def taker(reports: int) -> Body:
    """A member that tells of every record, and keeps in hand for ever the one that is meant for it."""

    def run(home: Path, name: str, life: int, random: Random) -> None:
        with tailrace.open(home / "log") as log, log.consumer(TOPIC, GROUP) as consumer:
            own = b"hold %d" % os.getpid()
            while True:
                batch = consumer.poll()
                now = time.monotonic_ns()
                for record in batch:
                    os.write(reports, b"%d %d %d %d\n" % (os.getpid(), now, record.partition, record.offset))
                    if record.value == own:
                        time.sleep(3600)

    return run


class Reports:
    """What members tell, line by line, through one pipe."""

    def __init__(self) -> None:
        self.reading, self.writing = os.pipe()
        self.rest = b""
        self.told: list[tuple[int, int, int, int]] = []

    def find(self, wanted: Any, seconds: float) -> tuple[int, int, int, int] | None:
        """The first report that is wanted; None when it does not come in time."""
        deadline = time.monotonic() + seconds
        seen = 0
        while True:
            for report in self.told[seen:]:
                if wanted(report):
                    return report
            seen = len(self.told)
            left = deadline - time.monotonic()
            if left <= 0 or not is_readable(self.reading, left):
                return None
            *lines, self.rest = (self.rest + os.read(self.reading, 65_536)).split(b"\n")
            for line in lines:
                pid, now, partition, offset = map(int, line.split())
                self.told.append((pid, now, partition, offset))

    def close(self) -> None:
        os.close(self.reading)
        os.close(self.writing)


def settled(log: tailrace.Log, members: int) -> dict[int, list[int]]:
    """The partitions of each process, once they are shared evenly."""
    deadline = time.monotonic() + SETTLE_SECONDS_MAX
    while True:
        try:
            info = log.group(GROUP)
        except tailrace.errors.GroupNotFoundError:
            info = None
        if info is not None:
            pids = {member.id: member.pid for member in info.members if member.alive}
            owned: dict[int, list[int]] = {pid: [] for pid in pids.values()}
            for partition in info.partitions:
                if partition.owner is not None:
                    owned[pids[partition.owner]].append(partition.partition)
            shares = [len(some) for some in owned.values()]
            if len(shares) == members and sum(shares) == PARTITIONS and max(shares) - min(shares) <= 1:
                return owned
        if time.monotonic() > deadline:
            raise AssertionError(f"the shares did not become even within {SETTLE_SECONDS_MAX:g} s: {info}")
        time.sleep(0.002)


def one_round(home: Path, herd: Herd, reports: Reports, random: Random, result: TakeOver) -> None:
    """One kill."""
    reports.told.clear()
    victim = random.choice(herd.beasts)
    pid = victim.pid
    with tailrace.open(home / "log") as log:
        owned = settled(log, len(herd.beasts))
        partition = random.choice(owned[pid])
        place = log.topic(TOPIC).append(b"hold %d" % pid, partition=partition, durable=False)
    wanted = (place.partition, place.offset)
    if reports.find(lambda report: report[0] == pid and report[2:] == wanted, TAKE_SECONDS_MAX) is None:
        result.faults.append(f"{pid} was never handed {wanted}")
        return
    # The others are asleep in poll again by then.
    time.sleep(0.02 + random.random() * 0.02)
    began = time.monotonic_ns()
    victim.kill()
    found = reports.find(lambda report: report[0] != pid and report[2:] == wanted, TAKE_SECONDS_MAX)
    if found is None:
        result.faults.append(f"nobody took over {wanted} from {pid} within {TAKE_SECONDS_MAX:g} s")
    else:
        result.times.append((found[1] - began) / 1e6)
    result.rounds += 1
    victim.start()


def run(home: Path, seed: int, members: int, rounds: int) -> TakeOver:
    """So many rounds with so many members."""
    home.mkdir(parents=True, exist_ok=True)
    result = TakeOver(members)
    random = Random(f"{seed}:takeover:{members}")
    with tailrace.open(home / "log") as log:
        log.topic(TOPIC, partitions=PARTITIONS)
    reports = Reports()
    try:
        with Herd() as herd:
            for number in range(members):
                herd.add(Beast(f"taker-{number}", home, seed, taker(reports.writing))).start()
            while result.rounds < rounds and not result.faults:
                one_round(home, herd, reports, random, result)
    finally:
        reports.close()
    result.load = os.getloadavg()[0] / (os.cpu_count() or 1)
    return result


def main(home: Path, seed: int, rounds: int) -> list[TakeOver]:
    """Two members and eight, with the result beside the logs."""
    results = [run(home / f"of-{members}", seed, members, rounds) for members in (2, 8)]
    (home / "result.json").write_text(json.dumps([result.to_json() for result in results], indent=1))
    tell([fault for result in results for fault in result.faults])
    return results
