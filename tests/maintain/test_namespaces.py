"""How namespaces end: drops that are killed or cut off, and drops beside those who open, create or drop the same one.

Goal: a namespace is whole or gone, its name can be used at once, and whoever comes in between gets a typed error or
what they asked for. Method: real processes, and drops on the simulated disk that take turns, die and lose power at
every operation.
"""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import threading
from functools import partial
from pathlib import Path
from random import Random

import pytest

import tailrace
from tailrace.disk.admin import Admin
from tailrace.disk.files import Files
from tailrace.disk.opening import LOOKS_MAX, _Opening
from tailrace.disk.store import Store
from tailrace.engine import engine as engines
from tailrace.errors import LockedError, NotALogError, StorageError
from tailrace.maintain import namespaces
from tailrace.maintain.namespaces import DROPPED, drop_namespace, is_there, namespace_path
from tests.processes import start
from tests.rigs.sim import PASSIVE, Disk, Kill, Killed, Process, Scheduler
from tests.rigs.sim.engine import sim_tuning, small_limits

KILLED = """
    import os, sys, tailrace
    from tailrace.maintain import namespaces
    namespaces.remove_tree = lambda *_: os.kill(os.getpid(), 9)
    tailrace.open(sys.argv[1]).drop_namespace("tenant")
"""


@pytest.fixture
def shop(tmp_path):
    path = tmp_path / "shop"
    with tailrace.open(path) as log, log.namespace("tenant") as tenant:
        tenant.topic("orders").append("old")
        with tenant.namespace("unit") as unit:
            unit.topic("orders").append("deep")
    return path


@pytest.fixture
def killed(shop):
    """A log in which a process was killed amid a drop."""
    with start(KILLED, shop) as other:
        assert other.wait(20) == -signal.SIGKILL
    assert [name[: len(DROPPED)] for name in os.listdir(shop / "namespaces")] == [DROPPED]
    return shop


def names(shop: Path) -> list[str]:
    return sorted(os.listdir(shop / "namespaces"))


def test_after_a_killed_drop_the_namespace_is_gone_and_may_come_back(killed):
    with tailrace.open(killed) as log:
        assert log.namespaces() == []
        with log.namespace("tenant") as tenant:
            assert tenant.topics() == []
            assert tenant.topic("orders").append("new").offset == 0
        assert names(killed) == ["tenant"]
        log.drop_namespace("tenant")
    assert names(killed) == []


def test_the_next_drop_finishes_a_killed_one(killed):
    with tailrace.open(killed) as log:
        with pytest.raises(NotALogError):
            log.drop_namespace("tenant")
        assert names(killed) == []


def test_the_rest_of_a_drop_that_cannot_be_removed_is_in_nobodys_way(killed, monkeypatch):
    class Stubborn(Files):
        __slots__ = ()

        def remove_file(self, path: str) -> None:
            if DROPPED in path:
                raise PermissionError(errno.EACCES, "not yours")
            super().remove_file(path)

    monkeypatch.setattr(engines, "FILES", Stubborn())
    with tailrace.open(killed) as log, log.namespace("tenant") as tenant:
        assert tenant.topic("orders").append("new").offset == 0


def test_a_drop_that_is_at_work_is_left_alone(shop, monkeypatch):
    """Another drop or a creation does not remove under its hands."""
    remove = namespaces.remove_tree
    seen = []

    def look(files, path: str) -> None:
        monkeypatch.setattr(namespaces, "remove_tree", remove)
        with tailrace.open(shop) as other:
            other.namespace("another").close()
            with pytest.raises(NotALogError):
                other.drop_namespace("tenant")
            with other.namespace("tenant") as tenant:
                assert tenant.topics() == []
            seen.append(sorted(os.listdir(path)))
        remove(files, path)

    monkeypatch.setattr(namespaces, "remove_tree", look)
    with tailrace.open(shop) as log:
        log.drop_namespace("tenant")
        assert log.namespaces() == ["another", "tenant"]
    assert "tailrace.json" in seen[0]
    assert names(shop) == ["another", "tenant"]


def test_what_has_no_identity_can_be_dropped(shop):
    """What a creation left that died, or versions before, or damage."""
    (shop / "namespaces" / "tenant" / "tailrace.json").unlink()
    (shop / "namespaces" / "foreign").mkdir()
    (shop / "namespaces" / "foreign" / "letter.txt").touch()
    with tailrace.open(shop) as log:
        log.drop_namespace("tenant")
        with pytest.raises(NotALogError):
            log.drop_namespace("foreign")
        assert names(shop) == ["foreign"]
        with log.namespace("tenant") as tenant:
            assert tenant.topics() == []


def test_a_drop_whose_sync_fails_takes_nothing_away(shop, monkeypatch):
    class Failing(Files):
        __slots__ = ()

        def sync_directory(self, path: str) -> None:
            if path.endswith("/namespaces"):
                raise OSError(errno.EIO, "bad block")
            super().sync_directory(path)

    monkeypatch.setattr(engines, "FILES", Failing())
    with tailrace.open(shop) as log:
        with pytest.raises(StorageError, match="Dropping a namespace"):
            log.drop_namespace("tenant")
        with log.namespace("tenant") as tenant:
            assert tenant.topic("orders").get(0).text == "old"


def test_drops_beside_those_who_open_and_append(tmp_path):
    """What is acknowledged stays until the drop that comes after it; all errors are typed."""
    dropped = refused = 0
    with tailrace.open(tmp_path / "shop") as log:
        for _ in range(60):
            with log.namespace("tenant") as tenant:
                tenant.topic("orders", partitions=4).append("old")
            barrier = threading.Barrier(3)
            outcomes: list[object] = []
            opened: list[tailrace.Log] = []

            def append(barrier=barrier, outcomes=outcomes, opened=opened) -> None:
                barrier.wait(20)
                try:
                    opened.append(log.namespace("tenant"))
                    outcomes.append(opened[0].topic("new").append("acknowledged").offset)
                except Exception as error:  # noqa: BLE001  # what comes is looked at below
                    outcomes.append(error)

            def drop(barrier=barrier, outcomes=outcomes) -> None:
                barrier.wait(20)
                try:
                    log.drop_namespace("tenant")
                    outcomes.append("dropped")
                except (LockedError, NotALogError):
                    outcomes.append("refused")
                except Exception as error:  # noqa: BLE001  # what comes is looked at below
                    outcomes.append(error)

            threads = [threading.Thread(target=each) for each in (append, drop, drop)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join(30)
            assert sorted(map(str, outcomes))[0] == "0", outcomes
            assert {str(each) for each in outcomes} <= {"0", "dropped", "refused"}, outcomes
            assert opened[0].topic("new").get(0).text == "acknowledged"
            opened[0].close()
            with log.namespace("tenant") as tenant:
                assert tenant.topic("new").get(0).text == "acknowledged"
            dropped += outcomes.count("dropped")
            refused += outcomes.count("refused")
            log.drop_namespace("tenant")
            assert os.listdir(tmp_path / "shop" / "namespaces") == []
    assert dropped + refused == 120
    assert dropped


def test_a_directory_that_never_stays_is_an_error_in_the_end(tmp_path, monkeypatch):
    looks = []

    def vanish(self) -> None:
        looks.append(self)
        raise FileNotFoundError(errno.ENOENT, "gone")

    monkeypatch.setattr(_Opening, "_prepare", vanish)
    with pytest.raises(StorageError):
        tailrace.open(tmp_path / "shop")
    assert len(looks) == LOOKS_MAX


# On the simulated disk.

LOG = "/log"
TENANT = namespace_path(LOG, "tenant")


def a_log() -> Disk:
    """A log with one namespace, which holds a topic."""
    disk = Disk(1)
    process = Process(disk, "maker")
    opened(process, LOG).close()
    fill(process)
    disk.sync()
    return disk


def opened(process: Process, path: str) -> Store:
    return Store(process, path, "a", timeout=30.0, tuning=sim_tuning())


def fill(process: Process) -> None:
    store = opened(process, TENANT)
    topics(store, "old")
    store.close()


def topics(store: Store, *new: str) -> set[str]:
    for name in new:
        Admin(store).create(name, {}, 2)
    store.refresh()
    return set(store.catalog.by_name)


def check(disk: Disk) -> bool:
    """Whether the namespace is there; it is whole or gone, and its name can be used and dropped again."""
    process = Process(disk, "looker")
    there = is_there(process, TENANT)
    namespaces.finish_drops(process, LOG)
    store = opened(process, TENANT)
    assert topics(store) == ({"old"} if there else set())
    topics(store, "next")
    store.close()
    drop_namespace(process, LOG, "tenant")
    assert process.list_directory(f"{LOG}/namespaces") == []
    return there


@pytest.mark.parametrize("cut", [False, True])
def test_a_drop_that_ends_anywhere(cut):
    """It dies, or the power goes, before every operation."""
    found: set[bool] = set()
    tried = 0
    with small_limits():
        disk = a_log()
        dropper = Process(disk, "dropper")
        random = Random("drop")

        def observe(process: Process, kind: str, detail: tuple[object, ...]) -> None:
            nonlocal tried
            if process is dropper and kind not in PASSIVE:
                tried += 1
                for state in disk.crash_states(random, 4) if cut else ():
                    found.add(check(disk.crash(state)))
                if not cut:
                    found.add(check(disk.clone()))

        disk.observer = observe
        drop_namespace(dropper, LOG, "tenant")
        disk.observer = None
        assert not check(disk.crash(None) if cut else disk)
    assert found == {False, True}
    assert tried > 10


def test_drops_and_openings_that_take_turns():
    """Two drops, an opening and perhaps a death of a drop: whoever has it open has what is there."""
    ends: dict[str, int] = {}
    with small_limits():
        before = a_log()
        for number in range(150):
            random = Random(f"turns/{number}")
            disk = before.clone()
            if number % 3 == 0:
                disk.plan(Kill(random.randrange(1, 60), process="first", when=random.choice(("before", "after"))))
            scheduler = Scheduler(disk, number, stay=random.choice((0.0, 0.5, 0.9)))
            mine: list[set[str]] = []

            def drop(process: Process) -> None:
                try:
                    drop_namespace(process, LOG, "tenant")
                    end = "dropped"
                except Killed:
                    raise
                except (LockedError, NotALogError) as error:
                    end = type(error).__name__
                ends[end] = ends.get(end, 0) + 1

            def use(process: Process, mine=mine) -> None:
                store = opened(process, TENANT)
                mine.append(topics(store, "new"))

            for name, action in (("first", drop), ("second", drop), ("user", use)):
                process = Process(disk, name)
                scheduler.spawn(process, partial(action, process))
            scheduler.run()
            disk.plan()
            # The user has it open, so it stays as they know it.
            assert mine in ([{"new"}], [{"old", "new"}]), mine
            looker = Process(disk, "looker")
            with pytest.raises(LockedError):
                drop_namespace(looker, LOG, "tenant")
            assert topics(opened(looker, TENANT)) == mine[0]
    assert set(ends) == {"dropped", "LockedError", "NotALogError"}


OTHER = """
import sys, tailrace
with tailrace.open(sys.argv[1]) as log:
    if sys.argv[2] == "drop":
        log.drop_namespace("n")
    else:
        with log.namespace("n") as inner:
            inner.topic("t").extend(sys.argv[3:])
"""


@pytest.mark.parametrize("anew", [False, True])
def test_a_reader_notices_that_its_namespace_was_dropped(tmp_path, anew):
    """It holds no lock that would refuse the drop; what a new one of that name holds is not taken for the old."""

    def other(*arguments: str) -> None:
        subprocess.run([sys.executable, "-c", OTHER, str(tmp_path / "log"), *arguments], check=True, timeout=60)

    other("fill", "old1", "old2")
    with tailrace.open(tmp_path / "log", "r", namespace="n") as reader:
        topic = reader.topic("t")
        assert [record.text for record in topic.read()] == ["old1", "old2"]
        following = iter(topic.read(follow=True, timeout=20))
        assert [next(following).text for _ in range(2)] == ["old1", "old2"]
        other("drop")
        if anew:
            other("fill", "new1", "new2", "new3")
        for read in (
            lambda: list(topic.read()), lambda: topic.read().count(), lambda: topic.get(1), lambda: next(following),
        ):  # fmt: skip
            with pytest.raises(NotALogError, match="removed or replaced"):
                read()
    if anew:
        with tailrace.open(tmp_path / "log", "r", namespace="n") as reader:
            assert [record.text for record in reader.topic("t").read()] == ["new1", "new2", "new3"]
