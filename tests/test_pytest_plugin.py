"""The pytest plugin as a user's project meets it, and the guide to it, whose examples run."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import textwrap
from datetime import UTC, datetime
from pathlib import Path

import pytest

import tailrace
from tailrace.engine import engine as engines
from tailrace.testing import steered
from tailrace.testing.files import target_of
from tests.actions import append

ROOT = Path(__file__).parents[1]
GUIDE = ROOT / "docs" / "testing.md"
NOON = datetime(2030, 6, 1, 12, tzinfo=UTC)


def run_pytest(directory, *arguments, environment=None):
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST", "TAILRACE"))}
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "--basetemp", str(directory / "base"), *arguments],
        check=False,
        cwd=directory,
        capture_output=True,
        text=True,
        timeout=110,
        env={**kept, **(environment or {})},
    )


def write_tests(directory, text, name="test_example.py"):
    path = directory / name
    path.write_text(textwrap.dedent(text), "utf-8")
    return path


def test_the_files_are_put_back(tmp_path):
    before, seen = engines.FILES, []

    def fail_inside():
        with steered() as steering:
            seen.append(steering)
            assert engines.FILES is not before
            with tailrace.open(tmp_path / "log") as log:
                append(log)
            steering.faults.fill_disk()
            raise KeyError

    with pytest.raises(KeyError):
        fail_inside()
    assert engines.FILES is before
    assert seen[0].faults.writes == 1
    assert seen[0].faults.room is None


def test_logs_that_were_opened_before_are_left_alone(tmp_path):
    with tailrace.open(tmp_path / "log") as log, steered() as (clock, faults):
        clock.freeze(NOON)
        faults.fill_disk()
        log.topic("orders").append(b"1")
        assert log.topic("orders").get(0).timestamp < NOON
        assert faults.writes == 0


def test_the_fixtures_work_together_in_a_users_project(tmp_path):
    write_tests(
        tmp_path,
        """
        import os
        import pytest, tailrace
        from tailrace.engine import engine

        PLAIN = type(engine.FILES)

        def test_log(tailrace_log, tmp_path):
            assert tailrace_log.location == str(tmp_path / "log")
            tailrace_log.topic("orders").append(b"1")

        def test_closed_by_the_test(tailrace_log):
            tailrace_log.topic("orders").append(b"1")
            tailrace_log.close()

        def test_left_failing(tailrace_log, tailrace_faults):
            fault = tailrace_faults.fail_sync()
            tailrace_log.topic("orders").append(b"1", durable=False)
            with pytest.raises(tailrace.errors.DurabilityError):
                tailrace_log.sync()
            assert fault.fired

        def test_left_full_and_failing_later(tailrace_log, tailrace_faults):
            tailrace_log.topic("orders").append(b"1", durable=False)
            tailrace_faults.fail_sync()
            tailrace_faults.fill_disk()

        def test_one_layer(tailrace_faults, tailrace_clock, tmp_path):
            tailrace_clock.freeze("2030-01-01T00:00Z")
            with tailrace.open(tmp_path / "own") as log:
                log.topic("orders").append(b"1")
                assert log.topic("orders").get(0).timestamp == tailrace_clock.now
            assert tailrace_faults.writes == 1

        def test_real_again():
            assert type(engine.FILES) is PLAIN

        @pytest.mark.xfail(strict=True, raises=ZeroDivisionError)
        def test_that_fails(tailrace_log, tailrace_faults):
            tailrace_faults.fill_disk()
            1 / 0

        def test_real_after_a_failure():
            assert type(engine.FILES) is PLAIN
        """,
    )
    done = run_pytest(
        tmp_path, "-W", "error", "--import-mode=importlib", environment={"TAILRACE_NAMESPACE": "elsewhere"}
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "7 passed, 1 xfailed" in done.stdout


def test_an_error_at_the_end_is_not_hidden_without_a_fault(tmp_path):
    write_tests(
        tmp_path,
        """
        from tailrace.errors import StorageError

        def test_it(tailrace_log):
            def fail():
                raise StorageError("closing failed")
            tailrace_log.close = fail
        """,
    )
    done = run_pytest(tmp_path, "-W", "ignore")
    assert done.returncode == 1
    assert "closing failed" in done.stdout
    assert "1 passed, 1 error" in done.stdout


def test_workers_of_xdist_have_it_too(tmp_path):
    pytest.importorskip("xdist")
    write_tests(
        tmp_path,
        """
        import pytest

        @pytest.mark.parametrize("number", range(6))
        def test_it(tailrace_log, tailrace_faults, number):
            topic = tailrace_log.topic("orders")
            assert tailrace_faults.kill(lambda: topic.append(b"1"), at="published").killed
            assert len(list(topic.read())) == 1
        """,
    )
    done = run_pytest(tmp_path, "-n", "2", "-W", "error")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "6 passed" in done.stdout


def test_it_can_be_left_out(tmp_path):
    write_tests(tmp_path, "def test_it(tailrace_log):\n    pass\n")
    done = run_pytest(tmp_path, "-p", "no:tailrace")
    assert done.returncode == 1
    assert "fixture 'tailrace_log' not found" in done.stdout


def test_a_run_that_does_not_use_it_loads_nothing(tmp_path):
    write_tests(
        tmp_path,
        """
        import sys

        def test_it():
            assert "tailrace.pytest_plugin" in sys.modules
            loaded = [name for name in sys.modules if name.startswith("tailrace.")]
            assert loaded == ["tailrace.pytest_plugin"]
        """,
    )
    done = run_pytest(tmp_path)
    assert done.returncode == 0, done.stdout


def test_a_program_that_imported_the_library_may_run_pytest(tmp_path):
    write_tests(tmp_path, "def test_it(tailrace_log):\n    pass\n")
    program = "import sys, pytest, tailrace; tailrace.open; sys.exit(pytest.main(sys.argv[1:]))"
    arguments = [sys.executable, "-c", program, "-W", "error", "-p", "no:cacheprovider"]
    done = subprocess.run(arguments, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_library_does_not_know_of_it():
    program = """
        import sys, tempfile, tailrace
        with tailrace.open(tempfile.mkdtemp() + "/log") as log:
            log.topic("orders").append(b"1")
        print([name for name in sys.modules if name.split(".")[0] in ("pytest", "_pytest")
               or name.startswith("tailrace.testing")])
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(program)], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


# The guide.


def guide_blocks():
    return re.findall(r"^```python\n(.*?)^```$", GUIDE.read_text("utf-8"), re.MULTILINE | re.DOTALL)


def test_the_examples_of_the_guide_pass(tmp_path):
    blocks = guide_blocks()
    write_tests(tmp_path, "\n\n".join(blocks), "test_guide.py")
    done = run_pytest(tmp_path, "-W", "error")
    assert done.returncode == 0, done.stdout + done.stderr
    wanted = sum(block.count("\ndef test_") + block.startswith("def test_") for block in blocks)
    assert wanted >= 6
    assert f"{wanted} passed" in done.stdout


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/a/topics/00000001-orders/0/00000000000000000000.seg", "segment"),
        ("/a/topics/00000001-orders/12/0123456789abcdef.staged", "staged"),
        ("/a/catalog/00000000000000000000.seg", "catalog"),
        ("/a/journal/00000001.wal", "journal"),
        ("/a/namespaces/b/tails", "tails"),
        ("/a/tails.new", "other"),
        ("/topics/catalog/0/stats", "other"),
        ("lock", "other"),
    ],
)
def test_files_are_known_by_their_names(path, kind):
    assert target_of(path).kind == kind
