"""What every test may ask for: the seed of the run, and an environment without the caller's settings."""

from __future__ import annotations

import contextlib
import gc
import os
import random
import sys

import hypothesis
import pytest

SEED_VARIABLE = "TAILRACE_SEED"

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


def pytest_collection_finish():
    """Tests collect garbage in order to see what is left of theirs: modules and thousands of test items are not."""
    gc.collect()
    gc.freeze()


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
