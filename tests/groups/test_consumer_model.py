"""The consumer against a model: whatever is done in whatever order, it hands out what it should."""

from __future__ import annotations

import pytest

import tailrace
from tailrace import errors


@pytest.fixture
def log(tmp_path):
    with tailrace.open(tmp_path / "shop", durable=False) as log:
        yield log


class Model:
    """What a group of one member should do: a position and a stored cursor a partition, and nothing else."""

    def __init__(self, log, rng, commit):
        self.log = log
        self.rng = rng
        self.commit = commit
        self.starts, self.ends = {}, {}
        # Behind the last record handed out, the same without what is in hand, and what is stored.
        self.position, self.processed, self.stored = {}, {}, {}
        self.paused = set()
        for topic, partitions in (("a", 2), ("b", 1)):
            log.topic(topic, partitions=partitions)
            for partition in range(partitions):
                self.starts[topic, partition] = self.ends[topic, partition] = 0
        self.consumer = None
        self.open()

    def open(self):
        self.consumer = self.log.consumer(
            ["a", "b"], "g", commit=self.commit, commit_every=10**9, on_lost="earliest", member="only"
        )
        self.paused = set()
        self.position = {place: self.stored.get(place, start) for place, start in self.starts.items()}
        self.processed = dict(self.position)

    def available(self):
        return sum(
            self.ends[place] - max(self.position[place], self.starts[place])
            for place in self.position
            if place[0] not in self.paused
        )

    def handed(self, records, position):
        for record in records:
            place = (record.topic, record.partition)
            assert place[0] not in self.paused
            # What was removed is skipped, unless it was in memory already.
            assert record.offset in (position[place], max(position[place], self.starts[place])), place
            assert record.text == f"{place} {record.offset}"
            position[place] = record.offset + 1

    def ask(self):
        self.processed = dict(self.position)

    # What may happen.

    def append(self):
        place = self.rng.choice(list(self.ends))
        count = self.rng.choice([1, 1, 3, 40])
        values = [f"{place} {self.ends[place] + number}" for number in range(count)]
        self.log.topic(place[0]).extend(values, partition=place[1])
        self.ends[place] += count

    def next(self):
        if self.available():
            self.ask()
            self.handed([next(self.consumer)], self.position)
            self.stored_before()

    def several(self):
        for _ in range(self.rng.randrange(30)):
            self.next()

    def poll(self):
        self.ask()
        count = self.rng.choice([1, 2, 7, 100])
        batch = self.consumer.poll(count, timeout=0)
        assert len(batch) <= count
        assert bool(batch) == bool(self.available())
        self.handed(batch, self.position)
        self.stored_before()

    def stored_before(self):
        if self.commit == "before":
            self.stored = dict(self.position)

    def peek(self):
        count = self.rng.choice([1, 5, 100])
        batch = self.consumer.peek(count)
        assert bool(batch) == bool(self.available())
        self.handed(batch, dict(self.position))

    def commit_now(self):
        self.consumer.commit()
        self.ask()
        self.stored = dict(self.position)

    def seek(self):
        self.consumer.peek()
        topic, partition = place = self.rng.choice(list(self.ends))
        offset = self.rng.randint(self.starts[place], self.ends[place])
        self.consumer.seek(offset, topic=topic, partition=partition)
        self.position[place] = self.processed[place] = offset
        self.stored_before()

    def pause(self):
        topic = self.rng.choice(["a", "b"])
        if topic in self.paused:
            self.consumer.resume(topic)
        else:
            self.consumer.pause(topic)
        self.paused ^= {topic}

    def lag(self):
        expected = sum(self.ends[place] - max(self.position[place], self.starts[place]) for place in self.position)
        assert self.consumer.lag().records == expected

    def trim(self):
        topic, partition = place = self.rng.choice(list(self.ends))
        offset = self.rng.randint(self.starts[place], self.ends[place])
        self.log.topic(topic).trim(offset, partition)
        self.starts[place] = offset

    def transact(self, fails=False):
        try:
            with self.log.transaction() as tx:
                self.poll()
                self.consumer.commit(tx)
                if fails:
                    raise KeyError
        except KeyError:
            self.position = {place: self.stored.get(place, start) for place, start in self.starts.items()}
        else:
            self.stored = dict(self.position)
        self.ask()

    def fail_to_transact(self):
        self.transact(fails=True)

    def close(self):
        self.consumer.close()
        if self.commit == "after":
            self.stored.update(self.processed)
        for each in self.log.group("g").partitions if self.log.groups() else ():
            place = (each.topic, each.partition)
            # Nothing is stored for a group that stands at the beginning, and what was removed may be skipped or not.
            begins = self.starts[place]
            assert max(each.position or 0, begins) == max(self.stored.get(place) or 0, begins), place
            assert (each.position or 0) <= self.log.topic(each.topic).offsets()[each.partition].durable
        self.stored = {place: offset for place, offset in self.stored.items() if offset is not None}
        self.open()

    def evict(self):
        if self.consumer.member is not None:
            self.log.evict_member("g", self.consumer.member)
            with pytest.raises(errors.PartitionLostError):
                self.consumer.poll(timeout=0)
            self.position = {place: self.stored.get(place, start) for place, start in self.starts.items()}
            self.ask()


class TestAgainstAModel:
    @pytest.mark.parametrize("commit", ["after", "manual", "before"])
    @pytest.mark.parametrize("turn", range(3))
    def test_whatever_happens(self, log, rng, commit, turn):
        model = Model(log, rng, commit)
        steps = [
            model.append, model.append, model.next, model.several, model.poll, model.peek, model.commit_now, model.seek,
            model.pause, model.lag, model.trim, model.transact, model.fail_to_transact, model.close, model.evict,
        ]  # fmt: skip
        done = []
        try:
            for _ in range(150):
                step = rng.choice(steps)
                done.append(step.__name__)
                step()
        except BaseException:
            print(done)
            raise
        model.close()
        model.consumer.close()
