"""A real standalone cluster on one machine: a master, two workers on two addresses, and drivers.

    python -m tests.rigs.spark.cluster [NAME...]               every scenario, or those whose name begins so
    python -m tests.rigs.spark.cluster --count 4 --seed 1      so many of them, drawn at random

Everything listens on 127.0.0.1 and 127.0.0.2, on ports that were free, and lies in a temporary directory. One directory
of it, `unseen`, is seen by the drivers only: the workers live in a mount namespace of their own (`unshare -m`) in which
an empty file system hides it, as on a machine that does not share the directory of a log.
"""

from __future__ import annotations

import json
import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.rigs.spark.kills import processes_below
from tests.spark import launch

HOSTS = ("127.0.0.1", "127.0.0.2")
# Long enough for a machine with much other work.
START_SECONDS = 240.0
JOB_SECONDS = 300.0
STOP_SECONDS = 30.0
# Spark gives the Python process of a stream ten seconds to start, and a busy machine may need more: start it again.
_TOO_SLOW = "Python worker failed to connect back"
TRIES_MAX = 5
# Quick to start rather than quick in the long run; the archive of classes is of no use to other programs than a driver.
QUICK = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
# More than there are, so that a second application need not wait for the first one to go.
CORES = 4
SETTINGS = {
    "spark.cores.max": "2",
    "spark.executor.cores": "1",
    "spark.executor.memory": "512m",
    "spark.executor.extraJavaOptions": QUICK,
    "spark.driver.memory": "768m",
    "spark.driver.host": HOSTS[0],
    "spark.driver.bindAddress": HOSTS[0],
    "spark.ui.enabled": "false",
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.catalogImplementation": "in-memory",
    "spark.sql.streaming.checkpointFileManagerClass": launch.CHECKPOINTS,
    # Both executors are there before the first task, which would otherwise be alone on one of them.
    "spark.scheduler.minRegisteredResourcesRatio": "1.0",
    "spark.scheduler.maxRegisteredResourcesWaitingTime": "60s",
    # A second attempt on the other host when half of the batch is through; jobs that want that set the multiplier.
    "spark.speculation": "true",
    "spark.speculation.interval": "200ms",
    "spark.speculation.quantile": "0.5",
    "spark.speculation.multiplier": "1000000",
    "spark.speculation.efficiency.enabled": "false",
    "spark.speculation.minTaskRuntime": "500ms",
}


def hiding(directory: Path) -> list[str] | None:
    """How to start a program that sees an empty directory in place of this one; None when that is not allowed here."""
    for how in (["unshare", "-m"], ["unshare", "-rm"]):
        mount = [*how, "sh", "-c", f'mount -t tmpfs none "{directory}" && exec "$@"', "sh"]
        try:
            if subprocess.run([*mount, "true"], capture_output=True, check=False, timeout=20).returncode == 0:
                return mount
        except OSError:
            return None
    return None


def clean_environment(**more: str) -> dict[str, str]:
    """What a host has before anybody set it up for Spark."""
    ours = ("SPARK_", "PYSPARK_", "PYTHON", "TAILRACE_", "COV_")
    return {**{name: value for name, value in os.environ.items() if not name.startswith(ours)}, **more}


class Cluster:
    """A master and a worker on each address; use it as a context."""

    def __init__(self, work: Path) -> None:
        self.work = work
        self.shared = work / "shared"
        self.unseen = work / "unseen"
        self.home = ""
        self.url = ""
        self.started = 0.0
        self.workers: dict[str, int] = {}
        self._running: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> Cluster:
        import pyspark

        self.home = pyspark.__path__[0]
        for folder in (self.shared, self.unseen, self.work / "sockets"):
            folder.mkdir(parents=True)
        prefix = hiding(self.unseen)
        self.hides = prefix is not None
        began = time.monotonic()
        try:
            master = self._daemon("master", HOSTS[0], [], "master.Master")
            self.url = self._wait(master, "master", "Starting Spark master at ").split()[0]
            for number, host in enumerate(HOSTS, 1):
                folder = str(self.work / f"worker-{number}")
                size = ["--cores", str(CORES), "--memory", "4g", "--work-dir", folder, self.url]
                worker = self._daemon(f"worker-{number}", host, prefix or [], "worker.Worker", *size)
                self.workers[host] = worker.pid
            for number, worker in enumerate(self._running[1:], 1):
                self._wait(worker, f"worker-{number}", "Successfully registered with master ")
        except BaseException:
            self.__exit__()
            raise
        self.started = time.monotonic() - began
        return self

    def __exit__(self, *exc: object) -> None:
        stop(self._running[::-1])

    def _daemon(self, name: str, host: str, prefix: list[str], kind: str, *arguments: str) -> subprocess.Popen[bytes]:
        """Start one; the script becomes the Java process, so that its id is the one to stop."""
        where = ["--host", host, "--port", "0", "--webui-port", "0"]
        command = [*prefix, f"{self.home}/bin/spark-class", f"org.apache.spark.deploy.{kind}", *where, *arguments]
        environment = clean_environment(
            SPARK_HOME=self.home,
            SPARK_LOCAL_IP=host,
            SPARK_LOCAL_DIRS=str(self.work / f"{name}-local"),
            SPARK_DAEMON_MEMORY="256m",
            SPARK_DAEMON_JAVA_OPTS=QUICK,
        )
        with open(self.work / f"{name}.log", "wb") as told:
            made = subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL, stdout=told, stderr=told)
        self._running.append(made)
        return made

    def _wait(self, running: subprocess.Popen[bytes], name: str, text: str) -> str:
        """Wait for a line of its log; what stands behind the text."""
        path = self.work / f"{name}.log"
        deadline = time.monotonic() + START_SECONDS
        while time.monotonic() < deadline and running.poll() is None:
            _, found, rest = path.read_text().partition(text)
            if found and "\n" in rest:
                return rest.partition("\n")[0]
            time.sleep(0.1)
        raise AssertionError(f"the {name} did not start:\n{path.read_text()[-3_000:]}")

    def settings(self) -> dict[str, str]:
        """What an application of the tests sets."""
        return {
            **SETTINGS,
            "spark.driver.extraJavaOptions": launch.java_options(),
            "spark.python.unix.domain.socket.dir": str(self.work / "sockets"),
            "spark.sql.warehouse.dir": str(self.work / "warehouse"),
            "spark.local.dir": str(self.work / "driver-local"),
            # Variables of the driver do not reach executors: they have those of their worker, and these.
            "spark.executorEnv.PYTHONPATH": _paths(),
        }


def _paths() -> str:
    """For the modules of the tests, which are not installed; Tailrace is."""
    return os.pathsep.join([str(launch.SITE), str(launch.ROOT)])


class Driver:
    """An application on the cluster, in a process of its own that does what it is told."""

    def __init__(self, cluster: Cluster, **settings: str) -> None:
        self.cluster = cluster
        self.log = cluster.work / f"driver-{time.monotonic_ns()}.log"
        chosen = {**cluster.settings(), **settings}
        command = [sys.executable, "-W", "ignore", "-m", "tests.rigs.spark.cluster_jobs"]
        with open(self.log, "wb") as told:
            self.process = subprocess.Popen(
                [*command, cluster.url, str(cluster.work), json.dumps(chosen)],
                env=clean_environment(PYTHONPATH=_paths(), SPARK_LOCAL_IP=HOSTS[0]),
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=told, cwd=cluster.work, bufsize=0,
            )  # fmt: skip
        self._rest = b""
        self.started = 0.0

    def __enter__(self) -> Driver:
        try:
            self.started = self._answer(START_SECONDS)["started"]
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *exc: object) -> None:
        self.stop()

    def stop(self) -> None:
        """Let it end by itself, which gives the executors back; else end it and what it started."""
        self.process.stdin.close()
        below = [pid for pid, _ in processes_below(self.process.pid)]
        try:
            self.process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        end(below)
        self.process.stdout.close()

    def java(self) -> int:
        """The Java process of the driver."""
        return next(pid for pid, name in processes_below(self.process.pid) if name == "java")

    def run(self, job: str, **arguments: Any) -> dict[str, Any]:
        """Do a job; it must succeed."""
        found = self.attempt(job, **arguments)
        assert "error" not in found, found["error"]
        return found

    def attempt(self, job: str, **arguments: Any) -> dict[str, Any]:
        """Do a job; `error` in the answer is what went wrong."""
        for _ in range(TRIES_MAX):
            self.process.stdin.write(json.dumps({"job": job, **arguments}).encode() + b"\n")
            found = self._answer(JOB_SECONDS)
            if _TOO_SLOW not in found.get("error", ""):
                break
        return found

    def _answer(self, seconds: float) -> dict[str, Any]:
        deadline = time.monotonic() + seconds
        while True:
            line, newline, rest = self._rest.partition(b"\n")
            if newline:
                self._rest = rest
                if line.startswith(b"# "):
                    return json.loads(line[2:])
                continue
            left = deadline - time.monotonic()
            assert left > 0, f"no answer within {seconds:.0f} s:\n{self.log.read_text()[-3_000:]}"
            if select.select([self.process.stdout], [], [], min(left, 1.0))[0]:
                some = os.read(self.process.stdout.fileno(), 65_536)
                if not some:
                    return {"error": f"the driver died:\n{self.log.read_text()[-3_000:]}"}
                self._rest += some


def stop(running: list[subprocess.Popen[bytes]]) -> None:
    """End daemons and all that they started, by their ids."""
    below = [pid for each in running for pid, _ in processes_below(each.pid)]
    for each in running:
        each.terminate()
    for each in running:
        try:
            each.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            each.kill()
            each.wait()
    end(below)


def end(pids: list[int]) -> None:
    """Kill what is left of these processes after a moment, and wait until they are gone."""
    deadline = time.monotonic() + STOP_SECONDS
    grace = time.monotonic() + 3
    while alive := [pid for pid in pids if is_alive(pid)]:
        assert time.monotonic() < deadline, f"these processes do not end: {alive}"
        for pid in alive if time.monotonic() > grace else ():
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        time.sleep(0.1)


def is_alive(pid: int) -> bool:
    """Whether a process is there and is no mere entry that waits for its parent."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@contextmanager
def temporary() -> Iterator[Cluster]:
    """A cluster in a directory with a short name, since sockets are in it, removed afterwards."""
    work = Path(tempfile.mkdtemp(prefix="tailrace-cluster-"))
    try:
        with Cluster(work) as cluster:
            yield cluster
    finally:
        shutil.rmtree(work, ignore_errors=True)


if __name__ == "__main__":
    from tests.rigs.spark.cluster_scenarios import main

    sys.exit(main(sys.argv[1:]))
