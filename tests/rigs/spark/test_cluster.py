"""A master and two workers: a slice of what `python -m tests.rigs.spark.cluster` does, on one cluster."""

from __future__ import annotations

import pytest

pytest.importorskip("pyspark")

from tests.rigs.spark import cluster
from tests.rigs.spark.cluster_scenarios import FAR, SCENARIOS, SHORT, Stage
from tests.spark import launch

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(600),
    # It has six Java processes of its own, so it must not run beside the tests of the shared session.
    pytest.mark.xdist_group("spark"),
    pytest.mark.skipif(launch.missing() is not None, reason=str(launch.missing())),
]

SLICE = [
    "copied-staged",
    "executor-killed-staged",
    "unseen-read",
]


@pytest.fixture(scope="module")
def stage():
    with cluster.temporary() as made:
        stage = Stage(made, SHORT)
        yield stage
        stage.close()


@pytest.mark.parametrize("name", SLICE)
def test_on_a_cluster(name, stage):
    if name in FAR and not stage.cluster.hides:
        pytest.skip("hiding a directory from the workers needs unshare -m, which is not allowed here")
    assert SCENARIOS[name](stage)
