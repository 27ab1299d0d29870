"""Members of groups over the simulated disk: processes that produce and consume, and tell a witness all they do."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from tailrace.engine.engine import Engine
from tailrace.errors import CommittedNotVisibleError, GroupNotFoundError, TailraceError
from tailrace.groups.consumer import Consumer
from tailrace.groups.group_topic import find_group, open_group
from tailrace.groups.session import Session
from tailrace.local.log import LocalLog
from tailrace.log import Log
from tailrace.records import Record
from tests.collector import uncollected
from tests.rigs.sim import Disk, Process
from tests.rigs.sim.disk import NEVER
from tests.rigs.sim.engine import PATH, SEGMENT_BYTES, sim_tuning, small_limits
from tests.rigs.sim.group_audit import signed
from tests.rigs.sim.group_witness import OUTPUT, GroupWitness
from tests.rigs.sim.witness import Key
from tests.tuning import tuned

SOURCE, TARGET = "in", "out"
PARTITIONS = 3
# A group whose members commit what they processed, and one whose members commit it with what they made of it.
ORDINARY_GROUP, EXACT_GROUP = "g", "x"
RECORDS_MAX = 12
GROUP_SEGMENT_BYTES = 2_048


@contextmanager
def small_groups() -> Iterator[None]:
    """Snapshots of groups after a few records, everything else as small, and every commit signed.

    Without the garbage collector, whose finalizers would do operations of one process in the turn of another.
    """
    few = tuned(group_records_max=RECORDS_MAX, state_segment_bytes=GROUP_SEGMENT_BYTES)
    with uncollected(), small_limits(), few, signed():
        yield


def open_log(process: Process) -> Log:
    """A handle of a simulated process, past the registry, whose lock all of them would share."""
    log = Log(LocalLog(PATH, "a", 0.0, False, "auto", 30.0))
    log.backend.live = Engine(process, PATH, "a", False, 30.0, sim_tuning())
    log.backend.live.handles.add(id(log.backend))
    return log


def forget_handle(log: Log) -> None:
    """Forget a handle whose process is dead, with its store, which its groups would keep alive."""
    engine = log.backend.live
    if engine is not None:
        engine.closed, engine.live = True, None
    log.backend.live, log.backend.closed = None, True


def session_of(consumer: Consumer) -> Session:
    """The local session of a consumer."""
    session = consumer._session
    assert isinstance(session, Session)
    return session


class Member:
    """One simulated process at work; it tells the witness what it tries before, and what it was promised after."""

    def __init__(self, disk: Disk, name: str, witness: GroupWitness) -> None:
        self.disk = disk
        self.name = name
        self.witness = witness
        self.process = Process(disk, name)
        self.log = open_log(self.process)
        self.consumer: Consumer | None = None
        self.every: int | str = 1
        self.turn = witness.turn(name, "", "after")
        # How far each partition was handed out in this turn, and what of it is in hand.
        self.positions: dict[Key, int] = {}
        self.hand: list[tuple[Key, int]] = []

    # Life.

    @property
    def dead(self) -> bool:
        return self.process.dead

    def die(self) -> None:
        """Its process was killed."""
        self.process.kill()
        self.turn.excused = True
        # In this order: a consumer that is dropped by a living process warns.
        forget_handle(self.log)
        self.consumer = None

    def failed(self, error: BaseException) -> None:
        """A step raised: what was handed out may come again, and may be stored when the consumer is asked for more."""
        self.turn.excused = True
        membership = session_of(self.consumer).membership.member if self.consumer is not None else None
        if membership is not None and self.turn.commit == "after":
            self.witness.storing(membership.group.id, self.positions)
        if membership is not None and self.turn.commit == "before":
            self.witness.undone.add(membership.id)
        self._begin_turn(self.turn.group, self.turn.commit)
        if isinstance(error, GroupNotFoundError) and self.consumer is not None:
            consumer, self.consumer = self.consumer, None
            try:
                consumer.close()
            except TailraceError:
                # It has nothing to leave any more.
                return

    def _begin_turn(self, group: str, commit: str) -> None:
        self.turn = self.witness.turn(f"{self.name} at {self.disk.steps}", group, commit)
        self.positions, self.hand = {}, []

    # Producing.

    def topic(self, name: str, partitions: int) -> int:
        """The id of a topic, made when there is none."""
        engine = self.log.engine
        if engine.find(name) is None:
            self.log.topic(name, partitions=partitions, segment_bytes=SEGMENT_BYTES)
        entry = engine.entry(name)
        if name == SOURCE:
            self.witness.records.topics[entry.id] = len(entry.slots)
        return entry.id

    def produce(self, partition: int, count: int = 1, *, durable: bool = True, size: int = 0) -> None:
        key = (self.topic(SOURCE, PARTITIONS), partition)
        records = self.witness.records
        values = records.values(count, size)
        group = records.attempt({key: values}, durable)
        ranges = self.log.topic(SOURCE).extend(values, partition=partition, durable=durable)
        group.acknowledged = {key: ranges[partition].start}

    def flush(self) -> None:
        self.log.sync()

    def checkpoint(self) -> None:
        self.log.engine.store.checkpoint()

    # Consuming.

    def join(self, group: str = ORDINARY_GROUP, commit: str = "after", every: int | str = 1) -> None:
        """Have a consumer; it sits down when it is asked for records."""
        if self.consumer is None:
            self.consumer = self.log.consumer(SOURCE, group, commit=commit, commit_every=every)  # type: ignore[arg-type]
            self.every = every
            self._begin_turn(group, commit)

    @property
    def group(self) -> int:
        """The id of the consumer's group, which is made when there is none, as sitting down does."""
        membership = session_of(self.consumer).membership.member if self.consumer is not None else None
        return membership.group.id if membership is not None else open_group(self.log.engine, self.turn.group).id

    @property
    def owned(self) -> dict[Key, int]:
        """How far those partitions were handed out that are this member's now."""
        feeds = session_of(self.consumer).feeds.by_place if self.consumer is not None else {}
        return {place: at for place, at in self.positions.items() if place in feeds}

    def consume(self, count: int = 2, timeout: float = 0.0) -> int:
        """Poll for the ordinary group; how many records that gave."""
        if self.turn.group == EXACT_GROUP:
            self.leave()
        self.join()
        return self._poll(count, timeout)

    def _poll(self, count: int, timeout: float) -> int:
        if self.turn.commit != "before":
            return self._poll_once(count, timeout)
        assert self.consumer is not None
        membership, process = session_of(self.consumer).membership.member, self.process.number
        self.witness.ask(process, count, None if membership is None else membership.group.id)
        try:
            given = self._poll_once(count, timeout)
        except BaseException:
            self.witness.answered(process, None)
            raise
        self.witness.answered(process, self.positions)
        return given

    def _poll_once(self, count: int, timeout: float) -> int:
        consumer, witness = self.consumer, self.witness
        assert consumer is not None
        group, commit = self.group, self.turn.commit
        processed = {} if commit == "manual" else dict(self.positions)
        witness.storing(group, processed)
        batch = consumer.poll(count, timeout=timeout)
        group, owned = self.group, self.owned
        if commit == "after" and self.every == 1:
            self._stored(group, {place: at for place, at in processed.items() if place in owned})
        self.hand = []
        for record in batch:
            self._take(group, record)
        if commit == "before":
            self._stored(group, {place: self.positions[place] for place, _ in self.hand})
        if self.hand:
            # What was taken back is stored with what was handed out.
            self.witness.undone.discard(str(consumer.member))
        return len(batch)

    def _stored(self, group: int, positions: Mapping[Key, int]) -> None:
        """The library said that these are stored; an operator may have moved them since, but has told the turn."""
        if not self.turn.excused:
            self.witness.stored(group, positions)

    def _take(self, group: int, record: Record) -> None:
        place = (self.log.engine.entry(SOURCE).id, record.partition)
        member = self.consumer.member if self.consumer is not None else None
        self.turn.member = member
        self.witness.hand(group, self.turn, place, record.offset, record.value or b"", member)
        self.positions[place] = record.offset + 1
        self.hand.append((place, record.offset))

    def iterate(self, count: int = 2) -> None:
        """Records one by one, up to where the log ends now, and away again."""
        self.leave()
        self.consumer = self.log.consumer(SOURCE, ORDINARY_GROUP, commit_every=1, stop="now")
        self._begin_turn(ORDINARY_GROUP, "after")
        for _ in range(count):
            self.witness.storing(self.group, self.positions)
            self.hand = []
            record = next(self.consumer, None)
            if record is None:
                self._stored(self.group, self.positions)
                break
            self._take(self.group, record)
        self.leave()

    def commit(self) -> None:
        """Store everything that was handed out for the ordinary group."""
        if self.consumer is not None and self.consumer.member is not None and self.turn.group == ORDINARY_GROUP:
            group, positions = self.group, self.owned
            self.witness.storing(group, positions)
            self.consumer.commit()
            self._stored(group, positions)
            self.hand = []

    def leave(self) -> None:
        """Close the consumer: what is in hand was not processed."""
        consumer, self.consumer = self.consumer, None
        if consumer is None:
            return
        membership, turn = session_of(consumer).membership.member, self.turn
        turn.in_hand = set(self.hand)
        if turn.commit == "manual":
            turn.excused = True
        begun = dict(reversed(self.hand))
        feeds = list(session_of(consumer).feeds.by_place)
        positions = {place: begun.get(place, self.positions[place]) for place in feeds if place in self.positions}
        try:
            consumer.close()
        except KeyboardInterrupt:
            # A close that was interrupted is finished by another.
            turn.excused = True
            consumer.close()
            raise
        except BaseException:
            turn.excused = True
            raise
        if membership is not None and turn.commit == "after":
            self._stored(membership.group.id, positions)

    # Exactly once.

    def transact(self, count: int = 2, timeout: float = 0.0) -> int:
        """Poll for the other group, make something of each record, and store it together with the cursors."""
        if self.turn.group == ORDINARY_GROUP:
            self.leave()
        self.join(EXACT_GROUP, "manual")
        self.topic(TARGET, 1)
        given = self._poll(count, timeout)
        group = self.group
        self.witness.exact[group] = TARGET
        if self.hand:
            self._commit_with_outputs(group)
        return given

    def _commit_with_outputs(self, group: int) -> None:
        handed = self.witness.handed
        values = [OUTPUT % (place[1], at) + handed[group, place][at][1] for place, at in self.hand]
        positions = self.owned
        self.witness.storing(group, positions)
        try:
            with self.log.transaction() as tx:
                tx.extend(TARGET, values, partition=0)
                assert self.consumer is not None
                self.consumer.commit(tx)
        except CommittedNotVisibleError:
            if not self.turn.excused:
                self.witness.committed(group, positions)
            raise
        self._stored(group, positions)

    def process_all(self, batch: int = 2) -> None:
        """Everything that there is, by the loop of the library."""
        self.leave()
        self.topic(TARGET, 1)
        known, ends = open_group(self.log.engine, EXACT_GROUP), self._ends()
        group = known.id
        self.witness.exact[group] = TARGET
        self.witness.storing(group, ends)

        def function(record: Record) -> bytes:
            return OUTPUT % (record.partition, record.offset) + (record.value or b"")

        self.log.process(SOURCE, function, TARGET, group=EXACT_GROUP, stop="now", batch=batch)
        state = known.view()
        if state.members:
            # It reads its own share. What another member owns, or is entitled to and has not taken yet because it is
            # stopped, is left to that member.
            ends = {place: end for place, end in ends.items() if state.cursors.get(place, 0) >= end}
        self.witness.stored(group, ends)

    def _ends(self) -> dict[Key, int]:
        entry = self.log.engine.entry(SOURCE)
        return {(entry.id, at): self.log.engine.partition(entry, at).end for at in range(len(entry.slots))}

    # Operating.

    def reset(self, to: str, *, force: bool = False) -> None:
        """Move the cursors of the ordinary group to the beginning or the end."""
        group = open_group(self.log.engine, ORDINARY_GROUP).id
        witness = self.witness
        if not witness.bounds.get(group):
            return
        witness.resetting.add(group)
        witness.evict(ORDINARY_GROUP)
        witness.reset(group, dict.fromkeys(self._ends(), NEVER if to == "latest" else 0), done=False)
        # The audit sees when it happens, and to which cursors.
        self.log.reset_group(ORDINARY_GROUP, to, force=force)
        witness.resetting.discard(group)

    def evict(self, other: Member) -> None:
        """Take the partitions of another member away."""
        member = other.consumer.member if other.consumer is not None else None
        if member is not None:
            self.witness.evicting.add(member)
            other.turn.excused = True
            self.log.evict_member(other.turn.group, member)

    def drop(self, *, force: bool = True) -> None:
        """Drop the ordinary group."""
        group = open_group(self.log.engine, ORDINARY_GROUP).id
        records = self.witness.records
        records.dropping.add(group)
        self.witness.evict(ORDINARY_GROUP)
        self.log.drop_group(ORDINARY_GROUP, force=force)
        # A call that was stopped on its way drops the group that has the name when it goes on, perhaps a later one.
        now = find_group(self.log.engine, ORDINARY_GROUP)
        known = {each for each in self.witness.bounds if each not in self.witness.exact}
        later = known - {group} - (set() if now is None else {now.id})
        if later:
            self.witness.evict(ORDINARY_GROUP)
        for each in (group, *later):
            records.dropping.add(each)
            records.dropped.add(each)
            self.witness.forget(each)
