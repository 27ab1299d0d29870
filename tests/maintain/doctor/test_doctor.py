"""The doctor on real logs: each situation is made, found, and mended by the very command that the finding prints."""

from __future__ import annotations

import json
import os
import shutil
import signal
import time
from pathlib import Path

import pytest

import tailrace
from tailrace import bulk
from tailrace.errors import DurabilityError
from tailrace.maintain.doctor import KINDS
from tests.doctoring import codes, contents, diagnose, only, shell
from tests.processes import run, start
from tests.rigs.faults.storm import locks_held
from tests.rigs.faults.test_stop import APPENDER, TRANSACTOR, stopped

# How many logs are spoiled; TAILRACE_SPOILED=2000 is a longer run.
SPOILED = int(os.environ.get("TAILRACE_SPOILED", "15"))


@pytest.fixture(autouse=True)
def _small_journals(monkeypatch):
    monkeypatch.setenv("TAILRACE_JOURNAL_BYTES", "256KiB")


@pytest.fixture
def path(tmp_path) -> Path:
    return tmp_path / "log"


def fill(path: Path, topic: str = "orders", *, segments: int = 3, **settings) -> None:
    """A topic of one partition with several segments."""
    with tailrace.open(path) as log:
        made = log.topic(topic, segment_bytes="16KiB", **settings)
        for number in range(segments):
            made.extend([b"%06d" % (number * 100 + each) + bytes(140) for each in range(100)])


def segments(path: Path, topic: str = "orders") -> list[Path]:
    return sorted(path.glob(f"topics/*-{topic}/0/*.seg"))


def flip(file: Path, position: int) -> None:
    data = bytearray(file.read_bytes())
    data[position] ^= 0x40
    file.write_bytes(data)


# All is well, and nothing is touched.


def test_a_sound_log_has_no_findings_open_or_closed(path):
    fill(path)
    assert codes(path) == []
    with tailrace.open(path) as log:
        log.topic("orders").append("tea", durable=False)
        assert [each for each in log.doctor() if each.severity != "note"] == []
    with tailrace.open(path, "r") as log:
        assert [each for each in log.doctor() if each.severity != "note"] == []


def test_nothing_is_changed_and_no_lock_is_left(path, monkeypatch):
    fill(path)
    with tailrace.open(path) as log, log.namespace("acme") as inner:
        inner.topic("t").append("x")
        with log.transaction() as transaction:
            transaction.append("orders", "a")
            transaction.append("sums", "b")
        before = contents(path)
        held = locks_held(os.getpid())
        diagnose(path)
        assert locks_held(os.getpid()) == held
        assert {name: data for name, data in contents(path).items() if not name.endswith("/stats")} == {
            name: data for name, data in before.items() if not name.endswith("/stats")
        }
    # Damaged, and on another boot.
    flip(segments(path)[0], 70)
    monkeypatch.setenv("TAILRACE_BOOT_ID", "another")
    before = contents(path)
    assert diagnose(path)
    assert contents(path) == before


def test_writers_are_not_held_up(path):
    fill(path)
    program = """
    import sys, time, tailrace
    with tailrace.open(sys.argv[1]) as log:
        topic, longest, count = log.topic("orders"), 0.0, 0
        print("ready", flush=True)
        end = time.monotonic() + 2.0
        while time.monotonic() < end:
            began = time.monotonic()
            topic.append("tea")
            with log.transaction() as transaction:
                transaction.append("orders", "a")
                transaction.append("sums", "b")
            longest, count = max(longest, time.monotonic() - began), count + 1
        print(count, longest)
    """
    writer = start(program, path)
    try:
        assert writer.stdout is not None
        assert writer.stdout.readline() == "ready\n"
        looks = 0
        while writer.poll() is None and looks < 20:
            assert [each for each in diagnose(path) if each.severity != "note"] == []
            looks += 1
        printed, complaint = writer.communicate(timeout=60)
    finally:
        writer.kill()
    assert writer.returncode == 0, complaint
    count, longest = printed.split()
    assert looks > 3
    assert int(count) > 10
    assert float(longest) < 2.0


def test_it_ends_soon_whatever_the_size(path):
    with tailrace.open(path) as log:
        for number in range(40):
            log.topic(f"t{number}").append("x", durable=False)
    fill(path, segments=60)
    began = time.monotonic()
    assert codes(path) == []
    assert time.monotonic() - began < 10.0


# What is no log, or cannot be opened.


def test_what_is_no_log(path, tmp_path):
    assert "nothing at" in only(path, "not-a-log").what
    shell(only(path, "not-a-log").run)
    path.mkdir()
    assert "empty" in only(path, "not-a-log").what
    (path / "notes.txt").write_text("mine")
    assert "'notes.txt'" in only(path, "not-a-log").what
    shell(only(path, "not-a-log").run)
    assert "a file" in only(path / "notes.txt", "not-a-log").what
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    assert "nothing at" in only(tmp_path / "link", "not-a-log").what
    for name in ("journal", "catalog", "topics"):
        (tmp_path / "half" / name).mkdir(parents=True)
    assert "not made to the end" in only(tmp_path / "half", "not-a-log").what


def test_damaged_identity_and_a_newer_version(path):
    fill(path)
    identity = path / "tailrace.json"
    whole = identity.read_text()
    identity.write_text(whole[:20])
    assert only(path, "identity-damaged").damage
    identity.write_text(json.dumps({**json.loads(whole), "format": 99}))
    found = only(path, "newer-version")
    assert found.run == "pip install --upgrade tailrace"


def test_damaged_catalog(path):
    fill(path)
    (segment,) = path.glob("catalog/*.seg")
    flip(segment, 100)
    found = [each for each in diagnose(path) if each.code == "catalog-damaged"]
    assert len(found) == 1
    assert found[0].damage


def test_damaged_tails(path):
    fill(path)
    with tailrace.open(path):
        # The word `end` of the topic's slot, as a stray store of some process would change it.
        tails = path / "tails"
        data = bytearray(tails.read_bytes())
        data[4096 + 256 : 4096 + 256 + 8] = (7).to_bytes(8, "little")
        with tails.open("r+b") as file:
            file.write(data)
        found = {each.code: each for each in diagnose(path)}
        assert found["tails-damaged"].damage
        assert "orders[0]" in found["tails-damaged"].what
    # Opened alone it heals itself from the checksummed blocks.
    shell(found["tails-damaged"].run)
    assert "tails-damaged" not in {each.code for each in diagnose(path)}


def test_damaged_journal(path):
    with tailrace.open(path) as log:
        with log.transaction() as transaction:
            transaction.append("a", "1")
            transaction.append("b", "2")
        (journal,) = path.glob("journal/*.wal")
    data = bytearray(journal.read_bytes())
    for position in (10, 4096 + 10):
        data[position] ^= 1
    journal.write_bytes(data)
    found = only(path, "journal-damaged")
    assert found.damage
    assert str(journal) in found.what


def test_a_damaged_entry_of_the_journal(path):
    """Whole entries behind it show that it was whole once: a commit is not told from a torn one by itself."""
    log = tailrace.open(path)
    for number in range(3):
        with log.transaction() as transaction:
            transaction.append("a", f"{number}")
            transaction.append("b", f"{number}")
        assert "journal-damaged" not in {each.code for each in diagnose(path)}
    (journal,) = path.glob("journal/*.wal")
    with journal.open("r+b") as file:
        file.seek(8_192 + 20)
        file.write(b"\xff")
    found = {each.code: each for each in diagnose(path)}["journal-damaged"]
    assert f"{journal}: 1 of its entries are damaged, at position 8192" in found.what
    assert "repair" in found.run
    log.close()


def as_nobody(path: Path) -> list[str]:
    """The codes that a user without any rights gets."""
    program = """
    import os, sys, tailrace
    # The interpreter's own files may be root's alone: everything is imported before the rights are given up.
    tailrace.Log.diagnose(sys.argv[1])
    if os.getuid() == 0:
        os.setgid(65534); os.setuid(65534)
    for each in tailrace.Log.diagnose(sys.argv[1]):
        print(each.code)
    """
    return run(program, path).split()


def test_permissions(path):
    fill(path)
    for above in (path.parent, *path.parent.parents):
        if above.stat().st_uid == os.getuid() and above != Path("/"):
            above.chmod(above.stat().st_mode | 0o055)
    path.chmod(0o700)
    if os.getuid() == 0:
        assert as_nobody(path) == ["unreadable"]
        path.chmod(0o755)
        assert "no-write-permission" in as_nobody(path)
    else:
        path.chmod(0o000)
        assert "unreadable" in as_nobody(path)
        path.chmod(0o555)
        assert "no-write-permission" in as_nobody(path)
        path.chmod(0o755)


@pytest.mark.skipif(os.getuid() != 0, reason="only root gives files away")
def test_mixed_owners(path):
    fill(path)
    os.chown(path / "tails", 65534, -1)
    found = only(path, "mixed-owners")
    assert str(path / "tails") in found.what
    shell(found.run.removeprefix("sudo "))
    assert codes(path) == []


# Locks.


@pytest.mark.parametrize(
    ("script", "locked", "name"), [(APPENDER, "topics/*-shared/0", "shared[0]"), (TRANSACTOR, "journal", "the journal")]
)
def test_a_stopped_process_that_holds_a_lock(path, script, locked, name):
    with tailrace.open(path) as log:
        log.topic("shared", segment_bytes="1MiB")
        log.topic("twin")
        with log.transaction() as transaction:
            transaction.append("shared", "0")
            transaction.append("twin", "0")
    with stopped(script, path, locked) as process:
        found = [each for each in diagnose(path) if each.code == "stopped-holder"]
        assert any(f"lock of {name}" in each.what for each in found)
        assert all(f"rocess {process.pid} (" in each.what for each in found)
        assert diagnose(path)[0].severity == "error"
        with tailrace.open(path, "r") as log:
            before = log.topic("shared").offsets()[0].latest
            shell(found[0].run)
            deadline = time.monotonic() + 20
            while log.topic("shared").offsets()[0].latest <= before + 2 and time.monotonic() < deadline:
                time.sleep(0.01)
            assert log.topic("shared").offsets()[0].latest > before + 2


def test_a_lock_that_is_held_for_long(path):
    fill(path)
    program = """
    import fcntl, os, sys, time
    fd = os.open(sys.argv[1], os.O_RDONLY)
    fcntl.flock(fd, fcntl.LOCK_EX)
    print("ready", flush=True)
    time.sleep(60)
    """
    holder = start(program, segments(path)[0].parent)
    try:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "ready\n"
        found = only(path, "lock-held")
        assert f"rocess {holder.pid}" in found.what
        assert "orders[0]" in found.what
        assert str(holder.pid) in shell(found.run)
    finally:
        holder.kill()
        holder.communicate()
    assert codes(path) == []


OPENER = """
import sys, time, tailrace
log = tailrace.open(sys.argv[1], exclusive=len(sys.argv) > 2)
log.topic("orders").append("x")
print("ready", flush=True)
time.sleep(60)
"""


def opened(path: Path, *arguments: str, environment: dict[str, str] | None = None):
    process = start(OPENER, path, *arguments, environment=environment)
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n", process.communicate()
    return process


def test_who_has_the_log_open(path):
    process = opened(path)
    try:
        assert codes(path) == []
        os.kill(process.pid, signal.SIGSTOP)
        os.waitid(os.P_PID, process.pid, os.WSTOPPED)
        found = only(path, "stopped-process")
        shell(found.run)
        deadline = time.monotonic() + 10
        while codes(path) and time.monotonic() < deadline:
            time.sleep(0.05)
        assert codes(path) == []
    finally:
        process.kill()
        process.communicate()


def test_an_exclusive_holder_is_named(path):
    process = opened(path, "exclusively")
    try:
        found = only(path, "exclusive")
        assert f"rocess {process.pid}" in found.what
        assert " for " in found.what
        assert str(process.pid) in shell(found.run)
    finally:
        process.kill()
        process.communicate()


def test_a_process_that_recovers_is_named(path):
    fill(path)
    program = """
    import fcntl, json, os, sys, time
    fd = os.open(sys.argv[1], os.O_RDWR)
    fcntl.flock(fd, fcntl.LOCK_EX)
    note = {"pid": os.getpid(), "since": int(time.time()) - 90, "why": "recovering"}
    os.pwrite(fd, json.dumps(note).encode().ljust(256), 0)
    print("ready", flush=True)
    time.sleep(60)
    """
    process = start(program, path / "lock")
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        found = only(path, "recovering")
        assert " for 1.5" in found.what
        shell(found.run)
    finally:
        process.kill()
        process.communicate()


def test_a_log_that_another_kernel_has_open(path):
    process = opened(path, environment={"TAILRACE_BOOT_ID": "another"})
    try:
        found = only(path, "open-elsewhere")
        assert str(process.pid) in shell(found.run)
    finally:
        process.kill()
        process.communicate()


def test_descriptors_of_a_process_run_out(path):
    program = """
    import os, resource, sys, time, tailrace
    log = tailrace.open(sys.argv[1])
    log.topic("orders").append("x")
    kept = [os.open("/dev/null", os.O_RDONLY) for _ in range(60)]
    used = len(os.listdir("/proc/self/fd"))
    resource.setrlimit(resource.RLIMIT_NOFILE, (used + 2, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
    print("ready", flush=True)
    time.sleep(60)
    """
    process = start(program, path)
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        found = only(path, "few-descriptors-left")
        assert f"rocess {process.pid}" in found.what
        shell(found.run)
        assert codes(path) == []
    finally:
        process.kill()
        process.communicate()


# What a death leaves.


def transact(path: Path) -> None:
    with tailrace.open(path) as log, log.transaction() as transaction:
        transaction.append("orders", "a")
        transaction.append("sums", "b")


def append(path: Path, durable: bool) -> None:
    with tailrace.open(path) as log:
        log.topic("orders").append("x", durable=False)
        log.topic("orders").append("x", durable=durable)


@pytest.mark.parametrize(
    ("work", "arguments", "at", "code"),
    [
        (transact, (), "journal-synced", "unresolved-transaction"),
        (append, (True,), "sync", "interrupted-sync"),
        (append, (False,), "published", "not-on-disk"),
    ],
)
def test_a_killed_writer(path, tailrace_faults, work, arguments, at, code):
    fill(path)
    transact(path)
    assert codes(path) == []
    assert tailrace_faults.kill(work, path, *arguments, at=at).killed
    found = next(each for each in diagnose(path) if each.code == code)
    assert found.severity == "warning"
    assert codes(path) == [code]
    shell(found.run)
    assert codes(path) == []


def test_writers_that_die_over_and_over(path, tailrace_faults):
    fill(path)
    transact(path)
    for _ in range(6):
        # Each decides the commit of the one before it in a journal file of its own, and dies in its own commit.
        assert tailrace_faults.kill(transact, path, at="journal-synced").killed
    found = {each.code: each for each in diagnose(path)}
    assert set(found) == {"unresolved-transaction", "journal-many"}
    shell(found["journal-many"].run)
    assert codes(path) == []


def test_another_boot_after_a_clean_close_is_nothing(path, monkeypatch):
    fill(path)
    transact(path)
    monkeypatch.setenv("TAILRACE_BOOT_ID", "another")
    assert codes(path) == []


@pytest.mark.parametrize(
    ("work", "arguments", "at"), [(append, (False,), "published"), (transact, (), "journal-synced")]
)
def test_another_boot_after_a_death(path, monkeypatch, tailrace_faults, work, arguments, at):
    fill(path)
    transact(path)
    assert tailrace_faults.kill(work, path, *arguments, at=at).killed
    monkeypatch.setenv("TAILRACE_BOOT_ID", "another")
    found = only(path, "recovery-pending")
    assert "machine stopped" in found.what
    shell(found.run)
    assert codes(path) == []


def test_a_copy_of_an_open_log(path, tmp_path):
    with tailrace.open(path) as log:
        log.topic("orders").append("x")
        with log.transaction() as transaction:
            transaction.append("orders", "a")
            transaction.append("sums", "b")
        shutil.copytree(path, tmp_path / "copy")
    found = only(tmp_path / "copy", "recovery-pending")
    assert "copy" in found.what
    shell(found.run)
    assert codes(tmp_path / "copy") == []


def test_missing_tails(path):
    fill(path)
    (path / "tails").unlink()
    found = only(path, "recovery-pending")
    assert "tails" in found.what
    shell(found.run)
    assert codes(path) == []


# Failures of the disk.


def test_a_partition_that_cannot_be_synced(tailrace_log, tailrace_faults, tmp_path):
    topic = tailrace_log.topic("orders")
    topic.append("a")
    fault = tailrace_faults.fail_sync(topic="orders")
    with pytest.raises(DurabilityError):
        topic.append("b")
    assert fault.fired
    found = next(each for each in tailrace_log.doctor() if each.code == "failed-partition")
    assert "orders[0]" in found.what
    assert f"end process {os.getpid()} first" in found.what
    assert found.run == f"tailrace repair -L {tmp_path}/log"
    assert found.severity == "error"


def test_a_journal_that_cannot_be_synced_twice(tailrace_log, tailrace_faults):
    for name in ("a", "b"):
        tailrace_log.topic(name).append("x")
    faults = [tailrace_faults.fail("journal-sync") for _ in range(1)]
    for _ in range(4):
        try:
            with tailrace_log.transaction() as transaction:
                transaction.append("a", "1")
                transaction.append("b", "2")
        except DurabilityError:
            faults.append(tailrace_faults.fail("journal-sync"))
    found = {each.code: each for each in tailrace_log.doctor()}
    assert faults[0].fired
    if tailrace_log.engine.store.tails.words[9]:
        assert found["log-failed"].severity == "error"
    else:
        pytest.fail("the journal did not fail for good")


def test_a_journal_file_that_is_kept_for_a_failed_partition(tailrace_log, tailrace_faults):
    store = tailrace_log.engine.store

    def transact() -> None:
        with tailrace_log.transaction() as transaction:
            transaction.append("a", "1")
            transaction.append("b", "2")

    transact()
    fault = tailrace_faults.fail_sync(topic="a")
    store.checkpoint()
    assert fault.fired
    with tailrace_log.transaction() as transaction:
        transaction.append("b", "1")
        transaction.append("c", "2")
    found = {each.code: each for each in tailrace_log.doctor()}
    assert "a[0]" in found["failed-partition"].what
    assert "a[0]" in found["journal-pinned"].what


# Damage.


@pytest.mark.parametrize(
    ("which", "position", "reason"),
    [(0, 20, "header"), (0, -20, "footer"), (1, -20, "footer"), (-1, 100, "damaged")],
)
def test_damaged_segments(path, which, position, reason):
    fill(path, segments=4)
    flip(segments(path)[which], position)
    found = next(each for each in diagnose(path) if each.code == "damaged-range")
    assert "orders[0]" in found.what
    assert reason in found.what
    assert found.damage
    assert found.severity == "error"


def test_a_missing_segment(path):
    fill(path, segments=4)
    first, second, *_ = segments(path)
    second.unlink()
    found = only(path, "damaged-range")
    assert "the segment is missing" in found.what
    assert str(second) in found.what
    assert str(first) not in found.what
    first.unlink()
    assert "a segment is missing" in only(path, "damaged-range").what


def test_a_partition_that_recovery_found_damaged(path, monkeypatch):
    fill(path)
    flip(segments(path)[-1], 200)
    monkeypatch.setenv("TAILRACE_BOOT_ID", "another")
    segments(path)[0].unlink()
    with tailrace.open(path):
        pass
    found = {each.code: each for each in diagnose(path)}
    assert "orders[0]" in found["damaged-partition"].what
    assert found["damaged-partition"].damage


# What a repair mends.


def repaired(path: Path, code: str, *, lost: bool = False) -> list[str]:
    """Run what a finding tells to run, then the repair itself; the codes that are left."""
    found = next(each for each in diagnose(path) if each.code == code)
    assert found.run.startswith("tailrace repair")
    shell(f"{found.run} --dry-run", code=5 if lost else 0)
    shell(f"{found.run.replace(' --dry-run', '')} --yes", code=5 if lost else 0)
    return codes(path)


def test_a_repair_after_a_failed_sync(path, tailrace_faults):
    fill(path)
    with tailrace.open(path) as log:
        fault = tailrace_faults.fail_sync(topic="orders")
        with pytest.raises(DurabilityError):
            log.topic("orders").append("x")
        assert fault.fired
    assert repaired(path, "failed-partition") == []


def test_a_repair_of_damaged_records(path):
    fill(path, segments=4)
    # The body of the first frame of a sealed segment; the sample always has the first record.
    flip(segments(path)[0], 400)
    left = repaired(path, "damaged-range", lost=True)
    assert sorted(left) == ["lost-range", "quarantine"]
    found = next(each for each in diagnose(path) if each.code == "lost-range")
    assert "orders[0]" in found.what
    shell(found.run)


def test_a_repair_of_a_damaged_footer(path):
    fill(path, segments=4)
    flip(segments(path)[1], -20)
    assert repaired(path, "damaged-range") == []


def test_a_repair_of_identity_catalog_and_journal(path):
    fill(path)
    transact(path)
    (path / "tailrace.json").write_text("{")
    assert repaired(path, "identity-damaged") == []
    (journal,) = path.glob("journal/*.wal")
    for position in (10, 4096 + 10):
        flip(journal, position)
    assert "journal-damaged" not in repaired(path, "journal-damaged")
    flip(next(iter(path.glob("catalog/*.seg"))), 100)
    # The settings of a topic are lost with their record.
    assert "catalog-damaged" not in repaired(path, "catalog-damaged", lost=True)
    with tailrace.open(path) as log:
        assert log.topic("orders").read().count() > 300


def test_segments_under_each_others_names(path):
    fill(path, segments=4)
    first, second, *_ = segments(path)
    kept = first.read_bytes()
    first.write_bytes(second.read_bytes())
    second.write_bytes(kept)
    assert "says that its first record is" in only(path, "damaged-range").what
    assert repaired(path, "damaged-range") == []
    with tailrace.open(path) as log:
        assert [record.value[:6] for record in log.topic("orders").read()] == [b"%06d" % each for each in range(400)]


def test_a_slot_that_was_cleared(path):
    fill(path)
    fill(path, "other")
    with (path / "tails").open("r+b") as file:
        file.seek(4096 + 256)
        file.write(bytes(256))
    assert only(path, "tails-damaged").damage
    assert "orders[0]" in only(path, "tails-damaged").what
    assert repaired(path, "tails-damaged") == []
    with tailrace.open(path) as log:
        assert log.topic("orders").read().count() == 300


def test_a_topic_that_is_dropped_is_not_taken_for_damage(path):
    fill(path)
    with tailrace.open(path, "r") as reader:
        with tailrace.open(path) as log:
            log.topic("orders").drop()
        assert [each for each in reader.doctor() if each.damage] == []


def test_a_repair_that_was_interrupted(path, monkeypatch):
    fill(path, segments=4)
    flip(segments(path)[1], -20)

    def die(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr("tailrace.disk.repair.write.Mender.mend", die)
        with pytest.raises(KeyboardInterrupt):
            tailrace.repair(path)
    found = {each.code: each for each in diagnose(path)}
    assert "repair.unfinished" in found["repair-unfinished"].what
    shell(f"{found['repair-unfinished'].run} -y")
    assert "repair-unfinished" not in codes(path)


# Leftovers, namespaces, quoting.


def test_staged_segments_that_nobody_commits(path, tailrace_clock):
    tailrace_clock.set("-2d")
    with tailrace.open(path) as log:
        log.topic("orders").append("x")
        part = bulk.stage(log, "orders", 0, bulk.build([b"y"] * 10))
        tailrace_clock.advance("2d")
        assert codes(path) == []
        old = time.time() - 2 * 86_400
        os.utime(part.path, (old, old))
        found = only(path, "staged-leftover")
    assert shell(found.run) == "1\n"
    assert codes(path) == []


def test_quarantine_and_links_of_a_dead_backup(path):
    fill(path)
    (path / "quarantine").mkdir()
    (path / "quarantine" / "x.bytes").write_bytes(bytes(5_000))
    found = only(path, "quarantine")
    assert "4.88KiB" in found.what
    shell(found.run)
    shutil.rmtree(path / "quarantine")
    (path / "backup-links" / "ab").mkdir(parents=True)
    os.link(segments(path)[0], path / "backup-links" / "ab" / "1")
    shell(only(path, "backup-leftover").run)


def test_namespaces_are_looked_at_with_the_command_for_each(path, tailrace_faults):
    fill(path)

    def work() -> None:
        with tailrace.open(path, namespace="acme corp") as inner:
            inner.topic("orders").append("x", durable=False)

    with tailrace.open(path, namespace="acme corp") as inner:
        inner.topic("orders").append("x")
    assert tailrace_faults.kill(work, at="published").killed
    found = only(path, "not-on-disk")
    assert found.what.startswith("Namespace 'acme corp': ")
    assert f"-L {path} -N 'acme corp'" in found.run
    alone = diagnose(path, "acme corp")
    assert [each.run for each in alone] == [found.run]
    shell(found.run)
    assert codes(path) == []


def test_commands_are_quoted_for_a_shell(tmp_path, tailrace_faults, monkeypatch):
    path = tmp_path / "it's a\tlog; $HOME"
    fill(path)
    monkeypatch.setenv("TAILRACE_NAMESPACE", "elsewhere")
    assert tailrace_faults.kill(append_here, path, at="published").killed
    (found,) = [each for each in diagnose(path, "") if each.code == "not-on-disk"]
    assert "-N ''" in found.run
    shell(found.run)
    assert [each.code for each in diagnose(path, "")] == []


def append_here(path: Path) -> None:
    os.environ.pop("TAILRACE_NAMESPACE", None)
    append(path, durable=False)


def test_every_kind_is_told_and_tested():
    here, root = Path(__file__).parent, Path(__file__).parents[3]
    tests = "".join(each.read_text() for each in [*here.glob("test_*.py"), root / "tests/cli/commands/test_doctor.py"])
    source = "".join(
        each.read_text() for each in (root / "src/tailrace/maintain/doctor").glob("*.py") if each.stem != "kinds"
    )
    assert [code for code in KINDS if f'"{code}"' not in tests] == []
    assert [code for code in KINDS if f'"{code}"' not in source] == []
    assert all(kind.why.endswith(".") for kind in KINDS.values())


DOCS = Path(__file__).parents[3] / "docs" / "doctor.md"


def table(columns: int) -> dict[str, list[str]]:
    found = {}
    for line in DOCS.read_text("utf-8").splitlines():
        cells = [cell.strip() for cell in line.strip("|").split(" | ")]
        if line.startswith("| `") and len(cells) == columns:
            found[cells[0].strip("`")] = cells[1:]
    return found


def test_the_page_has_every_finding_to_the_letter():
    rows = table(5)
    assert {code: (cells[0], cells[2]) for code, cells in rows.items()} == {
        code: (kind.severity, kind.why) for code, kind in KINDS.items()
    }
    assert all(len(cells[1]) > 5 and "`" in cells[3] for cells in rows.values())


def test_the_page_has_the_lines_as_they_are_drawn():
    from importlib import import_module

    for name, (value, _) in table(3).items():
        module, _, constant = name.partition(".")
        assert float(value) == getattr(import_module(f"tailrace.maintain.doctor.{module}"), constant), name
    assert len(table(3)) > 20


# Whatever is in the files.


def spoil(path: Path, rng) -> str:
    """Change one file of a log in some way; what was done."""
    files = [each for each in sorted(path.rglob("*")) if each.is_file()]
    file = rng.choice(files)
    data = bytearray(file.read_bytes())
    kind = rng.choice(["flip", "noise", "cut", "remove", "empty", "ones", "rename", "directory"])
    if kind == "remove":
        file.unlink()
    elif kind == "rename":
        file.rename(file.with_name(f"{file.name}.bak"))
    elif kind == "directory":
        file.unlink()
        file.mkdir()
    elif kind in ("cut", "empty"):
        file.write_bytes(data[: rng.randrange(len(data) + 1) if kind == "cut" else 0])
    elif data:
        at = rng.randrange(min(len(data), 8_192))
        stop = at + {"flip": 1, "noise": 64, "ones": 512}[kind]
        data[at:stop] = {"ones": b"\xff" * (stop - at), "noise": rng.randbytes(stop - at)}.get(
            kind, bytes([data[at] ^ 1])
        )
        file.write_bytes(data)
    return f"{kind} {file.relative_to(path)}"


def test_spoiled_files_are_findings_and_never_a_crash(path, tmp_path, rng, monkeypatch):
    fill(path, segments=3)
    with tailrace.open(path) as log, log.transaction() as transaction:
        transaction.append("orders", "a")
        transaction.append("sums", "b")
    with tailrace.open(path) as log, log.consumer("orders", "billing") as consumer:
        consumer.poll(max_records=50, timeout=10)
    for number in range(SPOILED):
        copy = tmp_path / f"copy{number}"
        shutil.copytree(path, copy)
        if rng.randrange(2):
            # Otherwise it stays a copy, whose tails are not believed.
            with tailrace.open(copy):
                pass
        done = [spoil(copy, rng) for _ in range(rng.choice([1, 1, 2, 4]))]
        monkeypatch.setenv("TAILRACE_BOOT_ID", rng.choice(["", "another"]))
        began = time.monotonic()
        try:
            found = tailrace.Log.diagnose(copy)
        except Exception as error:
            raise AssertionError(done) from error
        assert time.monotonic() - began < 20, done
        assert all(each.what and each.why and each.run for each in found)
        monkeypatch.delenv("TAILRACE_BOOT_ID")
        shutil.rmtree(copy)
