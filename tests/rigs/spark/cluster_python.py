"""How Python reaches the executors: programs for spark-submit, in environments that lack what is handed over."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import sysconfig
import tarfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import tailrace
from tests.rigs.spark.cluster import HOSTS, Cluster, clean_environment
from tests.spark import launch

if TYPE_CHECKING:
    from tests.rigs.spark.cluster_scenarios import Stage

SUBMIT_SECONDS = 400
# What Tailrace needs that is no Python text, and so is installed where tasks run; Spark brings pyspark with it.
NEEDED = ("pyarrow", "numpy", "numpy.libs", "fastcrc", "backports", "typing_extensions.py")
PYSPARK = ("pyspark", "py4j")

PROGRAM = """
import json, os, sys
from pyspark.sql import SparkSession
from pyspark.sql.functions import udf

log, register = sys.argv[1:]
spark = SparkSession.builder.getOrCreate()
spark.sparkContext.setLogLevel("ERROR")
if register == "register":
    import tailrace.spark
    tailrace.spark.register(spark)


@udf("string")
def place(_):
    import os, sys, tailrace
    return json.dumps([os.path.abspath(sys.executable), tailrace.__file__])


def run():
    rows = spark.read.format("tailrace").options(subscribe="in", minPartitions=4).load(log)
    found = rows.selectExpr("key", "value").withColumn("place", place("key"))
    counted = {row["place"]: row["count"] for row in found.groupBy("place").count().collect()}
    rows.select("key", "value").write.format("tailrace").mode("append").option("topic", "out").save(log)
    return {"places": counted}


try:
    answer = run()
except Exception as error:
    answer = {"error": str(error)}
print("#", json.dumps(answer))
spark.stop()
"""


def fill(log: Any, topic: str, partitions: int, count: int) -> None:
    made = log.topic(topic, partitions=partitions)
    for first in range(0, count, 100_000):
        texts = [str(number) for number in range(first, min(first + 100_000, count))]
        made.extend(texts, keys=texts)


def check_rows(log: Any, topic: str, count: int) -> None:
    found = []
    for record in log.topic(topic).read():
        assert int(record.key) == int(record.value)
        found.append(int(record.value))
    missing, twice = count - len(set(found)), len(found) - len(set(found))
    assert sorted(found) == [*range(count)], f"{missing} rows are missing, {twice} are there twice"


def environment(path: Path, *packages: str) -> str:
    """A Python environment with some packages of this one; the path of its interpreter."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(path)], check=True, timeout=120)
    (target,) = path.glob("lib/python*/site-packages")
    here = Path(sysconfig.get_paths()["purelib"])
    for name in packages:
        if (here / name).exists():
            (target / name).symlink_to(here / name)
    return str(path / "bin" / "python")


def package(folder: Path) -> Path:
    """Tailrace as a file for --py-files, whose name must end in .zip: a wheel is such a file under another name."""
    return Path(shutil.make_archive(str(folder / "tailrace"), "zip", launch.ROOT / "src", "tailrace"))


def packed(folder: Path) -> Path:
    """An environment with Tailrace and without pyspark as an archive, with whole files in place of links."""
    environment(folder / "packed", *NEEDED)
    (target,) = (folder / "packed").glob("lib/python*/site-packages")
    for name in ("tailrace", "pyspark_tailrace"):
        (target / name).symlink_to(launch.ROOT / "src" / name)
    path = folder / "packed.tar.gz"
    with tarfile.open(path, "w:gz", compresslevel=1, dereference=True) as file:
        file.add(folder / "packed", ".")
    return path


class Submitted(NamedTuple):
    """What a program is started with: the Python of tasks and plans, that of the driver if another, more options."""

    python: str
    driver_python: str | None = None
    options: tuple[str, ...] = ()
    register: bool = True


def submit(cluster: Cluster, log: str, how: Submitted) -> dict[str, Any]:
    """Run the program; its answer, or what the driver said in the end."""
    program = cluster.work / "program.py"
    program.write_text(PROGRAM)
    # The tests' own modules are of no use there, and pyspark may come from the zip alone.
    settings = {name: value for name, value in cluster.settings().items() if name != "spark.executorEnv.PYTHONPATH"}
    confs = [word for name, value in settings.items() for word in ("--conf", f"{name}={value}")]
    command = [f"{cluster.home}/bin/spark-submit", "--master", cluster.url, *confs, *how.options]
    variables = {"PYSPARK_PYTHON": how.python}
    if how.driver_python is not None:
        variables["PYSPARK_DRIVER_PYTHON"] = how.driver_python
    done = subprocess.run(
        [*command, str(program), log, "register" if how.register else "found"],
        env=clean_environment(SPARK_HOME=cluster.home, SPARK_LOCAL_IP=HOSTS[0], **variables),
        capture_output=True, text=True, check=False, timeout=SUBMIT_SECONDS, cwd=cluster.work,
    )  # fmt: skip
    lines = [line for line in done.stdout.splitlines() if line.startswith("# ")]
    return json.loads(lines[-1][2:]) if lines else {"error": done.stderr[-3_000:]}


def shown(stage: Stage, name: str, how: Submitted, rows: int = 5_000) -> list[tuple[str, str]]:
    """Run the program over a log of its own and check its rows; which Python and which Tailrace its tasks had."""
    location = str(stage.cluster.shared / name)
    with tailrace.open(location) as log:
        fill(log, "in", 2, rows)
        log.topic("out", partitions=2)
        found = submit(stage.cluster, location, how)
        assert "error" not in found, found["error"]
        check_rows(log, "out", rows)
    assert sum(found["places"].values()) == rows
    return sorted({(python, package) for python, package in map(json.loads, found["places"])})


def py_files(stage: Stage) -> str:
    """Executors get Tailrace by --py-files, as a zip; it must be registered there."""
    work = stage.cluster.work
    python = environment(work / "python-tasks", *NEEDED)
    how = Submitted(python, environment(work / "python-driver", *NEEDED, *PYSPARK), ("--py-files", str(package(work))))
    for ran, imported in shown(stage, "py-files", how):
        assert ran == python
        assert "/tailrace.zip/" in imported
    found = submit(stage.cluster, str(stage.cluster.shared / "py-files"), how._replace(register=False))
    assert "DATA_SOURCE_NOT_FOUND" in found.get("error", ""), found
    return "read and written with the zip and register; not found without register"


def archives(stage: Stage) -> str:
    """Executors get a whole environment by --archives; it must also be where the driver is, which runs with it too."""
    work = stage.cluster.work
    path = packed(work)
    (work / "env").symlink_to(work / "packed")
    how = Submitted("./env/bin/python", options=("--archives", f"{path}#env"), register=False)
    for ran, imported in shown(stage, "archives", how):
        # Unpacked where the executor works.
        assert "/worker-" in ran
        assert imported.startswith(ran.removesuffix("bin/python"))
    return f"an archive of {path.stat().st_size >> 20} MB, read and written; the format was found without register"
