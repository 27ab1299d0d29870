"""The doctor on real logs: each situation is made, found, and mended by the very command that the finding prints."""

from __future__ import annotations

import json
import os
import shutil
import time
from pathlib import Path

import pytest

import tailrace
from tailrace.errors import DurabilityError
from tests.doctoring import codes, contents, diagnose, only, shell
from tests.processes import start
from tests.rigs.faults.storm import locks_held

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


# Locks.


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


# Damage.


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
