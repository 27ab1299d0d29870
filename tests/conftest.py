"""What every test may ask for: the seed of the run, and an environment without the caller's settings."""

from __future__ import annotations

import contextlib
import gc
import os
import random
import shutil
import sys
import tempfile
from pathlib import Path

import hypothesis
import pytest

from tests import slow

SEED_VARIABLE = "TAILRACE_SEED"
MEMORY = Path("/dev/shm")
MEMORY_BYTES_MIN = 4 << 30
# These work in a directory of the disk: the disk, or what the kernel does with its files, is their subject.
ON_DISK = ("tests/disk/test_", "tests/maintain/doctor/", "tests/cli/commands/test_doctor.py", "tests/rigs/")
FAILED = pytest.StashKey[bool]()

# A deadline would make a busy machine look like a bug.
hypothesis.settings.register_profile("tailrace", deadline=None, print_blob=True)
hypothesis.settings.register_profile("quick", parent=hypothesis.settings.get_profile("tailrace"), max_examples=25)
hypothesis.settings.load_profile("tailrace")


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config):
    # Set before workers start, so that all of them share one seed, and before Hypothesis reads its own option.
    seed = os.environ.setdefault(SEED_VARIABLE, str(random.SystemRandom().randrange(2**30)))
    if config.getoption("--hypothesis-seed") is None:
        config.option.hypothesis_seed = seed
    # Thousands of small logs are synced many times each, and then removed.
    room = shutil.disk_usage(MEMORY).free if os.access(MEMORY, os.W_OK) else 0
    if config.option.basetemp is None and room >= MEMORY_BYTES_MIN:
        os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(MEMORY))


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_collection_modifyitems(config, items):
    """Mark the tests of slow.txt, and leave those out that are marked long, unless `-m` asks for them.

    Slow tests come first: after groups pytest-xdist hands tests out in this order, and its workers end together.
    """
    table = slow.read()
    for item in items:
        if slow.name_of(item.nodeid) in table:
            item.add_marker(pytest.mark.slow)
    if "long" not in config.option.markexpr:
        left_out = [item for item in items if item.get_closest_marker("long") is not None]
        if left_out:
            config.hook.pytest_deselected(items=left_out)
            items[:] = [item for item in items if item.get_closest_marker("long") is None]
    yield
    items.sort(key=lambda item: item.get_closest_marker("slow") is None)


def pytest_collection_finish():
    """Tests collect garbage in order to see what is left of theirs: modules and thousands of test items are not."""
    gc.collect()
    gc.freeze()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item):
    report = yield
    if report.failed:
        item.stash[FAILED] = True
    return report


def pytest_report_header():
    return f"seed: {os.environ[SEED_VARIABLE]} (repeat with {SEED_VARIABLE}={os.environ[SEED_VARIABLE]})"


@pytest.fixture(scope="session")
def seed() -> int:
    """The seed of this run: TAILRACE_SEED, or drawn at random and printed."""
    return int(os.environ[SEED_VARIABLE])


@pytest.fixture
def rng(seed, request) -> random.Random:
    """A random source of the test's own: the same for the same seed, whatever ran before it."""
    return random.Random(f"{seed}:{request.node.nodeid}")


@pytest.fixture
def tmp_path(tmp_path, request):
    """Return a directory of the test's own, in memory unless the disk is its subject; it stays after a failure."""
    if MEMORY not in tmp_path.parents or not request.node.nodeid.startswith(ON_DISK):
        yield tmp_path
        return
    path = Path(tempfile.mkdtemp(prefix="tailrace-test-"))
    yield path
    if not request.node.stash.get(FAILED, False):
        shutil.rmtree(path, ignore_errors=True)


@pytest.fixture(autouse=True)
def _clean_environment(monkeypatch):
    for name in ("TAILRACE_LOG", "TAILRACE_BOOT_ID", "NO_COLOR", "FORCE_COLOR", "TERM"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture(autouse=True)
def _close_forgotten_logs():
    """Close the logs that a test leaves open for writing: their threads would work on beside the tests after it."""
    before = _writing_engines()
    yield
    left = _writing_engines() - before
    if left and "tailrace.spark.handles" in sys.modules:
        sys.modules["tailrace.spark.handles"].close_all()
    for engine in left & _writing_engines():
        consumers, producers = list(engine.consumers), list(engine.producers)
        for close in [*(user.close for user in (*consumers, *producers)), engine.close]:
            with contextlib.suppress(Exception):
                close()
        sys.modules["tailrace.engine.engine"]._registry.remove(engine)


def _writing_engines():
    module = sys.modules.get("tailrace.engine.engine")
    return set() if module is None else {engine for engine in module._registry.alive if engine.writable}
