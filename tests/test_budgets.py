"""The budgets of start-up and size: what importing, asking for help and installing may cost."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
IMPORT_SECONDS_MAX = 0.040
HELP_SECONDS_MAX = 0.120
INSTALLED_BYTES_MAX = 6_000_000
ROUNDS = 9

# Each costs more to import than Tailrace may in all, or belongs to an extra or an edge.
HEAVY = (
    "asyncio",
    "click",
    "concurrent.futures.process",
    "duckdb",
    "email",
    "http",
    "importlib.metadata",
    "logging",
    "lz4",
    "multiprocessing",
    "numpy",
    "pandas",
    "polars",
    "pyarrow",
    "subprocess",
    "unittest",
    "urllib.request",
    "backports.zstd",
    "compression.zstd",
)


def cpu_seconds(arguments: list[str]) -> float:
    """User and system time of one child, as the kernel counted it: waiting for a busy machine is not in it."""
    silent = [(os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0)]
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "COV"))}
    child = os.posix_spawn(arguments[0], arguments, environment, file_actions=silent)
    _, status, usage = os.wait4(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0, f"failed: {arguments}"
    return usage.ru_utime + usage.ru_stime


def cpu_above_bare(arguments: list[str]) -> float:
    """The least CPU time of several runs above the least of bare Python: noise only ever adds."""
    bare = [sys.executable, "-c", "pass"]
    cpu_seconds(arguments)
    runs = [(cpu_seconds(arguments), cpu_seconds(bare)) for _ in range(ROUNDS)]
    return min(run for run, _ in runs) - min(run for _, run in runs)


def test_import_is_cheap():
    assert cpu_above_bare([sys.executable, "-c", "import tailrace"]) < IMPORT_SECONDS_MAX


def test_help_is_cheap():
    command = Path(sys.executable).with_name("tailrace")
    assert command.exists(), "the command is not installed beside this Python: run ./test"
    assert cpu_above_bare([str(command), "--help"]) < HELP_SECONDS_MAX


def test_import_loads_nothing_heavy():
    program = "import json, sys; old = {*sys.modules}; import tailrace; print(json.dumps([*({*sys.modules} - old)]))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    loaded = json.loads(done.stdout)
    assert "tailrace" in loaded
    assert sorted(set(loaded) & set(HEAVY)) == []


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_core_and_its_dependencies_are_small(tmp_path):
    target = tmp_path / "installed"
    install = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-compile"]
    subprocess.run([*install, "--target", str(target), str(ROOT)], check=True, timeout=280)
    assert (target / "tailrace" / "py.typed").exists()
    assert (target / "fastcrc").exists()
    size = sum(path.stat().st_size for path in target.rglob("*") if path.is_file() and path.suffix != ".pyc")
    assert size < INSTALLED_BYTES_MAX, f"{size:,} bytes"
