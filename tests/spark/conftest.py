"""What the Spark tests share: one session, and paths of a test's own."""

from __future__ import annotations

import os

import pytest

from tests.spark import launch

NEEDS_SPARK = ("spark",)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    for item in items:
        if "tests/spark/" in item.nodeid and not set(NEEDS_SPARK).isdisjoint(getattr(item, "fixturenames", ())):
            # A session takes ten seconds to start, and a query most of a second.
            item.add_marker(pytest.mark.slow)
            # One JVM, not one a worker; a cold start on a busy machine takes its time.
            item.add_marker(pytest.mark.xdist_group("spark"))
            item.add_marker(pytest.mark.timeout(300))
            # What pyspark itself leaves open or calls deprecated is not ours to mend.
            item.add_marker(pytest.mark.filterwarnings("ignore::ResourceWarning"))
            item.add_marker(pytest.mark.filterwarnings("ignore::DeprecationWarning"))
            item.add_marker(pytest.mark.filterwarnings("ignore::FutureWarning"))
            item.add_marker(pytest.mark.filterwarnings("ignore::UserWarning:pyspark"))


@pytest.fixture(scope="session")
def spark(tmp_path_factory):
    """The session of all tests: never stop it, and change its settings only with `settings`."""
    reason = launch.missing()
    if reason is not None:
        pytest.skip(reason)
    before = dict(os.environ)
    session = launch.start(tmp_path_factory.mktemp("spark"))
    yield session
    session.stop()
    os.environ.clear()
    os.environ.update(before)


@pytest.fixture
def settings(spark):
    """Set confs of the session for one test: settings(name=value) by a dict."""
    kept: dict[str, str | None] = {}

    def change(values: dict[str, str]) -> None:
        for name, value in values.items():
            kept.setdefault(name, spark.conf.get(name, None))
            spark.conf.set(name, value)

    yield change
    for name, value in kept.items():
        if value is None:
            spark.conf.unset(name)
        else:
            spark.conf.set(name, value)


@pytest.fixture
def checkpoint(tmp_path):
    """A fresh directory for the checkpoint of a query."""
    return str(tmp_path / "checkpoint")
