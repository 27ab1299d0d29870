"""The session: quick where nothing was set, and what its user set everywhere else."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("pyspark")

import tailrace
from tailrace.spark import sessions
from tests.spark import launch

CHECKPOINTS = "spark.sql.streaming.checkpointFileManagerClass"
SOCKETS = "spark.python.unix.domain.socket.enabled"
STATE = "spark.sql.streaming.stateStore.providerClass"

PROGRAM = """
import json, os, sys
import tailrace.spark
arguments = json.loads(sys.argv[1])
spark = tailrace.spark.session(*arguments["given"], **arguments["settings"])
assert tailrace.spark.session() is spark, "a running session is taken as it is"
spark.range(3).count()
conf = dict(spark.sparkContext.getConf().getAll())
print("#", json.dumps({"conf": conf, "python": os.environ.get("PYSPARK_PYTHON")}))
spark.stop()
"""


def start(*given, environment=None, **settings):
    """The settings of a session in a process of its own."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("SPARK_", "PYSPARK_"))}
    kept |= {name: launch.environment()[name] for name in ("PYTHONPATH", "SPARK_SUBMIT_OPTS")}
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", PROGRAM, json.dumps({"given": given, "settings": settings})],
        env={**kept, **(environment or {})}, capture_output=True, text=True, check=False, timeout=240,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3_000:]
    line = next(line for line in done.stdout.splitlines() if line.startswith("#"))
    return json.loads(line[1:])


@pytest.mark.skipif(launch.missing() is not None, reason=str(launch.missing()))
@pytest.mark.xdist_group("spark")
@pytest.mark.timeout(300)
class TestSessions:
    def test_quick_where_nothing_was_set(self):
        found = start()
        conf = found["conf"]
        assert conf["spark.master"] == "local[*]"
        assert conf["spark.app.name"] == "tailrace"
        assert conf["spark.sql.shuffle.partitions"] == str(os.cpu_count())
        assert conf["spark.driver.host"] == conf["spark.driver.bindAddress"] == "127.0.0.1"
        assert conf["spark.ui.enabled"] == conf["spark.ui.showConsoleProgress"] == "false"
        assert conf[SOCKETS] == "true"
        assert conf[STATE].endswith("RocksDBStateStoreProvider")
        assert conf[CHECKPOINTS].endswith("FileSystemBasedCheckpointFileManager")
        assert found["python"] == sys.executable

    def test_nothing_that_was_set_is_changed(self, tmp_path):
        (tmp_path / "spark-defaults.conf").write_text(
            "spark.sql.shuffle.partitions 7\nspark.master local[1]\nspark.ui.showConsoleProgress=true\n"
            f"# spark.pyspark.python /nowhere\n{STATE} org.example.Mine\n"
        )
        environment = {
            "SPARK_CONF_DIR": str(tmp_path),
            "PYSPARK_SUBMIT_ARGS": "--conf spark.driver.host=localhost --name mine pyspark-shell",
            "PYSPARK_PYTHON": sys.executable,
        }
        conf = start(environment=environment, **{SOCKETS: False, "spark.sql.ansi.enabled": "false"})["conf"]
        assert conf["spark.master"] == "local[1]"
        assert conf["spark.sql.shuffle.partitions"] == "7"
        assert conf["spark.ui.showConsoleProgress"] == "true"
        assert conf[STATE] == "org.example.Mine"
        assert conf["spark.driver.host"] == "localhost"
        assert "spark.driver.bindAddress" not in conf
        assert conf["spark.app.name"] == "mine"
        assert conf[SOCKETS] == "false"
        assert conf["spark.sql.ansi.enabled"] == "false"


OWN = """
import sys
import tailrace.spark
from pyspark.sql import SparkSession
spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
frame = spark.read.format("tailrace").option("subscribe", "orders").load(sys.argv[1])
print("#", frame.count())
spark.stop()
"""


@pytest.mark.skipif(launch.missing() is not None, reason=str(launch.missing()))
@pytest.mark.xdist_group("spark")
@pytest.mark.timeout(300)
def test_a_session_of_the_users_own_in_an_environment_that_is_not_active(tmp_path):
    """Spark starts the first `python3` on the path, which knows nothing of what is installed here."""
    other = tmp_path / "bin" / "python3"
    other.parent.mkdir()
    other.write_text(f'#!/bin/sh\nexec "{Path(sys.base_prefix, "bin", "python3")}" "$@"\n')
    other.chmod(0o755)
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("SPARK_", "PYSPARK_", "PYTHON"))}
    environment = {**kept, "PATH": f"{other.parent}{os.pathsep}{os.environ['PATH']}", "SPARK_LOCAL_IP": "127.0.0.1"}
    environment["SPARK_SUBMIT_OPTS"] = launch.java_options()
    without = [other, "-c", "import tailrace"]
    assert subprocess.run(without, env=environment, capture_output=True, check=False, timeout=60).returncode == 1
    with tailrace.open(tmp_path / "log") as log:
        log.topic("orders").extend(["a", "b"])
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", OWN, tmp_path / "log"],
        env=environment, capture_output=True, text=True, check=False, timeout=240, cwd=tmp_path,
    )  # fmt: skip
    assert "# 2" in done.stdout.splitlines(), done.stderr[-3_000:]


class TestPython:
    """Which Python a session that is made later gives to the processes that Spark starts."""

    def python(self, **environment):
        program = "import os, tailrace.spark; print(os.environ.get('PYSPARK_PYTHON'))"
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("SPARK_", "PYSPARK_"))}
        done = subprocess.run(
            [sys.executable, "-W", "ignore", "-c", program],
            env={**kept, **environment}, capture_output=True, text=True, check=True, timeout=60,
        )  # fmt: skip
        return done.stdout.strip()

    def test_the_one_that_runs(self):
        assert self.python() == sys.executable

    def test_unless_another_was_said(self, tmp_path):
        assert self.python(PYSPARK_PYTHON="python3.12") == "python3.12"
        assert self.python(PYSPARK_SUBMIT_ARGS="--conf spark.pyspark.python=/x pyspark-shell") == "None"
        (tmp_path / "spark-defaults.conf").write_text("spark.pyspark.python /x\n")
        assert self.python(SPARK_CONF_DIR=str(tmp_path)) == "None"

    def test_nor_in_a_program_that_was_submitted(self):
        """Spark runs already, and may run its tasks on hosts where this Python is not."""
        assert self.python(PYSPARK_GATEWAY_PORT="4040") == "None"


class TestChoices:
    """What needs no Spark to be known."""

    class Conf(dict):
        contains = dict.__contains__

    def defaults(self, **conf):
        return sessions._defaults(self.Conf({name.replace("_", "."): value for name, value in conf.items()}))

    @pytest.mark.parametrize(
        ("master", "cores"),
        [
            ("local", 1),
            ("local[3]", 3),
            ("local[2,4]", 2),
            ("local[*]", os.cpu_count()),
            ("local[*, 2]", os.cpu_count()),
        ],
    )
    def test_local_masters(self, master, cores, monkeypatch):
        for name in ("SPARK_LOCAL_IP", "HADOOP_CONF_DIR"):
            monkeypatch.delenv(name, raising=False)
        chosen = self.defaults(spark_master=master)
        assert chosen["spark.sql.shuffle.partitions"] == str(cores)
        assert chosen["spark.driver.host"] == "127.0.0.1"

    @pytest.mark.parametrize("master", ["spark://host:7077", "local-cluster[2,1,1024]", "yarn", "k8s://https://host"])
    def test_clusters_keep_what_only_suits_one_machine(self, master):
        chosen = self.defaults(spark_master=master)
        assert chosen == sessions.EVERYWHERE
        assert CHECKPOINTS not in chosen

    def test_other_file_systems_keep_their_checkpoints(self, monkeypatch):
        monkeypatch.delenv("HADOOP_CONF_DIR", raising=False)
        assert CHECKPOINTS not in self.defaults(spark_hadoop_fs_defaultFS="hdfs://name/")
        monkeypatch.setenv("HADOOP_CONF_DIR", "/etc/hadoop")
        assert CHECKPOINTS not in self.defaults()

    def test_addresses_of_the_environment(self, monkeypatch):
        monkeypatch.setenv("SPARK_LOCAL_IP", "10.0.0.1")
        assert "spark.driver.host" not in self.defaults()

    def test_names_that_are_no_settings(self):
        with pytest.raises(ValueError, match="begin with spark"):
            sessions.session(shuffle_partitions=3)

    def test_servers(self):
        assert sessions._is_remote(sessions._wanted(None, "sc://host:15002", None, {}))
        assert not sessions._is_remote(sessions._wanted("app", "local[2]", {"spark.x": True}, {}))
        assert sessions._wanted("app", "local[2]", {"spark.x": True}, {"spark.y": 3}) == {
            "spark.x": "true",
            "spark.y": "3",
            "spark.app.name": "app",
            "spark.master": "local[2]",
        }


def test_without_java_it_says_what_to_install():
    program = "import tailrace.spark; tailrace.spark.session()"
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", program],
        env={"PATH": "/nowhere", "PYTHONPATH": str(launch.ROOT / "src")},
        capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].startswith("Spark needs Java 17 or newer: ")
