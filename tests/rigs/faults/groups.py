"""Groups with real processes: members are killed, stopped, evicted, come and go, while writers write.

Goal: the group misses no acknowledged record; none is handed out twice but those that were uncommitted at a kill or an
eviction; nobody commits for a partition that is another's; at every quiet moment the shares are even. Method: a few
writers and 2 to 16 members over all partitions of several topics, one of them asked for by a pattern that more topics
match later. Everybody notes what happens to it; tests/rigs/faults/proof.py compares. Snapshots of the group come often.
"""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path
from random import Random

import tailrace
from tailrace.errors import GroupNotFoundError, LockedError, OwnershipError, TopicNotFoundError
from tailrace.names import match
from tests.rigs.faults.group_result import Result, missing_faults
from tests.rigs.faults.harness import JOURNAL_BYTES
from tests.rigs.faults.herd import Beast, Herd, tell
from tests.rigs.faults.members import DOOMED, GROUP, OUTPUT, STRICT_FILE, is_narrow, member, read_rest, write
from tests.rigs.faults.notes import Notes
from tests.rigs.faults.proof import prove
from tests.rigs.faults.witness import Progress, instrument, watch

WRITERS = 3
EVENT_SECONDS_MEAN = 0.05
# How long a stopped member stands still; others wait for a lock that it may hold.
STOP_SECONDS_MAX = 0.4
EVICT_TIMEOUT_SECONDS = 0.3
QUIET_SECONDS = 2.5
SETTLE_SECONDS_MAX = 20.0
FINISH_SECONDS_MAX = 60.0
RECORDS_MAX = 100
LONGER = 8.0
# What is done to the processes of a run; what stands here more often happens more often.
KINDS = (
    *["kill"] * 7, "kill all", "evict", *["stop"] * 2, *["stop and evict"] * 3, *["leave"] * 2, *["join"] * 2,
    *["grow"] * 2, "kill a writer",
)  # fmt: skip
# A topic with these shares of all partitions, and the share that it has in the beginning.
TOPICS = {"orders": (3 / 8, 3 / 8), "clicks": (3 / 8, 2 / 8), "sensors.0": (1 / 8, 1 / 16)}
# Topics that match the pattern later, and their shares.
LATER = {"sensors.1": 1 / 16, "sensors.2": 1 / 16}


class Controller:
    """Starts everything, and does to it what a bad day would do."""

    def __init__(self, home: Path, seed: int, members: tuple[int, int], partitions: int) -> None:
        self.home = home
        self.seed = seed
        self.random = Random(f"{seed}:controller")
        self.low, self.high = members
        self.partitions = partitions
        self.result = Result()
        self.notes = Notes(home / "controller.notes")
        self.herd = Herd()
        self.witness = self.herd.add(Beast("witness", home, seed, watch(GROUP)))
        self.writers = [self.herd.add(Beast(f"writer-{at}", home, seed, write)) for at in range(WRITERS)]
        self.members = [self.herd.add(Beast(f"member-{at}", home, seed, member)) for at in range(self.high)]
        self.last = self.herd.add(Beast("last", home, seed, read_rest))
        self.later = list(LATER)
        self.wakeups: list[tuple[float, Beast, bool]] = []
        self.told_to_leave: set[int] = set()
        self.deck = sorted({*KINDS}) + ["kill"] * 3
        self.random.shuffle(self.deck)

    def open(self, timeout: float = 20.0) -> tailrace.Log:
        return tailrace.open(self.home / "log", timeout=timeout)

    # Preparing.

    def prepare(self) -> None:
        with self.open() as log:
            for name, (_, share) in TOPICS.items():
                log.topic(name, partitions=max(1, round(self.partitions * share)), segment_bytes=65_536)
            # Of this one everything goes that the group has read, and nothing else.
            log.topic("clicks").alter(segment_bytes=4_096, retain="read")
            log.topic(OUTPUT, partitions=2)

    def running(self) -> list[Beast]:
        return [beast for beast in self.members if beast.running]

    def start(self, beast: Beast) -> None:
        # Until it can deal with it, being told to leave would be a death.
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
        try:
            beast.start()
        finally:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
        self.notes.say(started=beast.pid, name=beast.name, life=beast.life)

    # What is done to them.

    def strike(self) -> None:
        """One event: in the beginning one of each kind, so that a short run has them all."""
        kind = self.deck.pop() if self.deck else self.random.choice(KINDS)
        moving = [beast for beast in self.running() if not beast.stopped]
        if kind in ("kill", "kill all") and moving:
            count = self.random.choice((1, 1, 1, 2)) if kind == "kill" else len(moving)
            for beast in self.random.sample(moving, min(len(moving), count)):
                self.kill(beast)
        elif kind == "evict" and moving:
            self.evict(self.random.choice(moving).pid)
        elif kind in ("stop", "stop and evict") and moving:
            self.stop(self.random.choice(moving), evict=kind != "stop")
        elif kind == "leave" and len(moving) > self.low:
            self.leave(self.random.choice(moving))
        elif kind == "join":
            self.join()
        elif kind == "grow":
            self.grow()
        elif kind == "kill a writer":
            beast = self.random.choice(self.writers)
            beast.kill()
            self.result.kills_of_writers += 1
            self.start(beast)

    def kill(self, beast: Beast) -> None:
        self.notes.say(killed=beast.pid)
        if self.reap(beast):
            return
        pid = beast.pid
        code = beast.kill()
        if code != -signal.SIGKILL and not (code == 0 and pid in self.told_to_leave):
            self.result.faults.append(f"{beast.name}-{beast.life} ended by itself with {code}: {beast.error()}")
        self.result.kills += 1
        if self.random.random() < 0.7:
            self.start(beast)

    def reap(self, beast: Beast) -> bool:
        """A member that was told to leave may have left already."""
        if beast.ended():
            code = beast.wait()
            if code != 0:
                self.result.faults.append(f"{beast.name}-{beast.life} ended with {code}: {beast.error()}")
            return True
        return False

    def stop(self, beast: Beast, *, evict: bool) -> None:
        if self.reap(beast):
            return
        beast.stop()
        self.result.stops += 1
        if evict:
            self.evict(beast.pid)
        self.wakeups.append(
            (time.monotonic() + self.random.random() * STOP_SECONDS_MAX, beast, self.random.random() < 0.15)
        )

    def evict(self, pid: int) -> None:
        """Evict whoever sits in the group for a process; a lock that the stopped process holds may be in the way."""
        try:
            with self.open(EVICT_TIMEOUT_SECONDS) as log:
                for found in log.group(GROUP).members:
                    if found.pid == pid:
                        log.evict_member(GROUP, found.id)
                        self.notes.say(evicted=found.id)
                        self.result.evictions += 1
        except LockedError:
            self.result.evictions_blocked += 1
        except OwnershipError as error:
            # It was dead, and somebody took over between the look and the eviction.
            self.notes.say(not_evicted=str(error))

    def wake(self, *, everybody: bool = False) -> None:
        """Let those go on whose time has come; some are killed instead."""
        now = time.monotonic()
        due = [each for each in self.wakeups if everybody or each[0] <= now]
        self.wakeups = [each for each in self.wakeups if each not in due]
        for _, beast, doomed in due:
            if not beast.running or not beast.stopped:
                continue
            if doomed:
                self.kill(beast)
            else:
                beast.go_on()

    def leave(self, beast: Beast) -> None:
        if not self.reap(beast):
            self.told_to_leave.add(beast.pid)
            beast.tell_to_leave()
            self.result.leaves += 1

    def join(self) -> None:
        absent = [beast for beast in self.members if not beast.running]
        if absent:
            self.start(self.random.choice(absent))
            self.result.joins += 1

    def grow(self) -> None:
        """Add a partition, or a topic that matches the pattern; for that nobody may stand still with a lock."""
        self.wake(everybody=True)
        with self.open() as log:
            if self.later and self.random.random() < 0.4:
                name = self.later.pop(0)
                log.topic(name, partitions=max(1, round(self.partitions * LATER[name])), segment_bytes=65_536)
                self.result.topics_added += 1
                return
            if self.random.random() < 0.5:
                self._doom(log)
                return
            for name, (share, _) in TOPICS.items():
                now = log.topic(name).partitions
                if now < round(self.partitions * share):
                    log.topic(name).alter(partitions=now + 1)
                    self.result.partitions_added += 1
                    return

    def _doom(self, log: tailrace.Log) -> None:
        """Drop a topic that members may be reading, or make it again."""
        try:
            log.topic(DOOMED).drop()
            self.result.topics_dropped += 1
        except TopicNotFoundError:
            # Writers may make it again in this moment, as they would.
            log.topic(DOOMED, partitions=1)

    # Quiet.

    def tend(self) -> None:
        """Take away those who left, complain of those who ended otherwise, and have enough of them."""
        for beast in self.running():
            if not beast.stopped:
                self.reap(beast)
        while len(self.running()) < self.low or all(is_narrow(beast.name) for beast in self.running()):
            self.join()

    def quiet(self) -> None:
        """Nothing happens any more: within a moment every partition has an owner, and the shares are even."""
        self.wake(everybody=True)
        began = time.monotonic()
        with self.open() as log:
            while True:
                self.tend()
                told = self._uneven(log)
                if not told:
                    break
                if time.monotonic() - began > SETTLE_SECONDS_MAX:
                    self.result.faults.append(f"not even after {SETTLE_SECONDS_MAX:g} s: {told}")
                    break
                time.sleep(0.005)
        self.result.quiet_points += 1
        self.result.settle_seconds_max = max(self.result.settle_seconds_max, time.monotonic() - began)

    def _uneven(self, log: tailrace.Log) -> str:
        try:
            info = log.group(GROUP)
        except GroupNotFoundError:
            return "there is no group yet"
        if {found.pid for found in info.members if found.alive} != {beast.pid for beast in self.running()}:
            return f"members are {info.members}, running are {self.running()}"
        # Partitions that the same members may read are shared evenly among those.
        shares: dict[frozenset[str], dict[str, int]] = {}
        for topic, partition, owner, *_ in info.partitions:
            if owner is None:
                return f"{topic}[{partition}] has no owner"
            readers = frozenset(
                found.id for found in info.members if found.alive and any(match(each, topic) for each in found.topics)
            )
            shares.setdefault(readers, dict.fromkeys(readers, 0))[owner] += 1
        uneven = [share for share in shares.values() if max(share.values()) - min(share.values()) > 1]
        return f"shares are {uneven}" if uneven else ""

    # The whole.

    def run(self, seconds: float) -> Result:
        self.prepare()
        with self.herd:
            self.start(self.witness)
            for beast in [*self.writers, *self.random.sample(self.members, self.random.randint(self.low, self.high))]:
                self.start(beast)
            self.quiet()
            began = time.monotonic()
            next_quiet = began + min(QUIET_SECONDS, seconds / 2)
            # On a busy machine it takes longer until enough was done to prove anything.
            while (past := time.monotonic() - began) < seconds or (
                past < LONGER * seconds and self._needs_more(seconds)
            ):
                time.sleep(self.random.expovariate(1 / EVENT_SECONDS_MEAN))
                self.wake()
                self.tend()
                self.strike()
                if time.monotonic() > next_quiet:
                    self.quiet()
                    next_quiet = time.monotonic() + QUIET_SECONDS
            self.result.seconds = time.monotonic() - began
            while self._is_growing():
                self.grow()
            self._evict_once_more()
            self.quiet()
            self._finish()
        return self.result

    def _needs_more(self, seconds: float) -> bool:
        return bool(self.deck) or self.result.kills < seconds or self.result.stops < max(1.0, seconds / 4)

    def _evict_once_more(self) -> None:
        """Somebody who will not be killed any more, and so hears of it."""
        before = self.result.evictions
        while self.result.evictions == before:
            # All of them may have been killed last.
            self.tend()
            self.evict(self.random.choice(self.running()).pid)

    def _is_growing(self) -> bool:
        """Whether partitions or topics are missing that were to come during the run."""
        missing = sum(
            round(self.partitions * share) - max(1, round(self.partitions * first)) for share, first in TOPICS.values()
        )
        return bool(self.later) or self.result.partitions_added < missing or not self.result.topics_dropped

    def _finish(self) -> None:
        """The writers stop, the members drain and leave, one more reads the rest, and everything is compared.

        Nobody commits what is in hand when it leaves. How much that is depends on when it was told to, and so does what
        is left of the topic that was dropped and made again, for which nobody waits.
        """
        (self.home / "stop").touch()
        self.result.faults += self.herd.wait_for(self.writers, FINISH_SECONDS_MAX)
        with self.open() as log:
            self._drain(log)
        for beast in self.running():
            beast.tell_to_leave()
        self.result.faults += self.herd.wait_for(self.running(), FINISH_SECONDS_MAX)
        self.start(self.last)
        self.result.faults += self.herd.wait_for([self.last], FINISH_SECONDS_MAX)
        (self.home / "enough").touch()
        self.result.faults += self.herd.wait_for([self.witness], FINISH_SECONDS_MAX)
        with self.open() as log:
            proof = prove(self.home, log)
            self.result.counts = dict(proof.counts)
            self.result.faults += proof.faults
            damage = log.verify().damage
            if damage:
                self.result.faults.append(f"verify found damage: {damage}")

    def _drain(self, log: tailrace.Log) -> None:
        """Wait until everything was handed out; cursors that are stored by count follow when their members leave."""
        deadline = time.monotonic() + FINISH_SECONDS_MAX
        progress = Progress(self.home)
        while True:
            self.tend()
            handed = progress.look()
            behind = [
                f"{each.topic}[{each.partition}] of {each.owner} at {handed.get(each[:2], 0)}, its end is {each.latest}"
                for each in log.group(GROUP).partitions
                if each.topic != DOOMED and max(each.position or 0, handed.get(each[:2], 0)) < each.latest
            ]
            if not behind:
                return
            if time.monotonic() > deadline:
                self.result.faults.append(f"not read within {FINISH_SECONDS_MAX:g} s: {behind}")
                return
            time.sleep(0.02)


def main(
    home: Path, seed: int, seconds: float, members: tuple[int, int] = (2, 16), partitions: int = 64, *,
    strict: bool = False,
) -> Result:  # fmt: skip
    """A run, with its result beside the log."""
    home.mkdir(parents=True, exist_ok=True)
    if strict:
        (home / STRICT_FILE).touch()
    os.environ["TAILRACE_JOURNAL_BYTES"] = str(JOURNAL_BYTES)
    instrument(home, GROUP, RECORDS_MAX)
    controller = Controller(home, seed, members, partitions)
    result = controller.run(seconds)
    result.faults += missing_faults(result, seconds)
    (home / "result.json").write_text(json.dumps(result.to_json(), indent=1))
    tell(result.faults)
    return result
