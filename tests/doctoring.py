"""What the tests of the doctor share: its findings by their codes, and a shell that runs what a finding says."""

from __future__ import annotations

import subprocess
from pathlib import Path

from click.testing import CliRunner

import tailrace
from tailrace.cli.app import root
from tailrace.types import Finding

# What may be true of the machine that runs the tests.
SURROUNDINGS = frozenset(
    {"container-layer", "not-durable", "unknown-file-system", "unsupported-file-system", "disk-nearly-full",
     "inotify-few", "disk-full-soon", "inodes-few", "few-descriptors", "no-barriers", "writeback-mode"}
)  # fmt: skip


def diagnose(path: Path, namespace: str | None = None) -> list[Finding]:
    """What the doctor says of a directory, without what it says of this machine."""
    return [each for each in tailrace.Log.diagnose(path, namespace=namespace) if each.code not in SURROUNDINGS]


def codes(path: Path) -> list[str]:
    return [each.code for each in diagnose(path)]


def only(path: Path, code: str) -> Finding:
    """The one finding there must be."""
    (found,) = diagnose(path)
    assert found.code == code, found
    return found


def shell(command: str, *, code: int = 0) -> str:
    """Run a command as it is printed; it must end with an exit code.

    A shell takes it apart. What calls `tailrace` is then run in this process, since a new interpreter takes its time.
    """
    words = _bash(f"tailrace() {{ printf '%s\\0' tailrace \"$@\"; }}; {command}").split("\0")
    if words[0] != "tailrace":
        return words[0]
    done = CliRunner().invoke(root, words[1:-1], prog_name="tailrace")
    assert done.exit_code == code, (command, done.stdout, done.stderr)
    return done.stdout


def _bash(script: str) -> str:
    done = subprocess.run(
        ["bash", "-c", script], check=False, capture_output=True, text=True, timeout=60, stdin=subprocess.DEVNULL
    )
    assert done.returncode == 0, (script, done.stdout, done.stderr)
    return done.stdout


def contents(path: Path) -> dict[str, tuple[int, bytes | None]]:
    """Every file and directory of a log with the time of its last change and its bytes."""
    found: dict[str, tuple[int, bytes | None]] = {}
    for each in [path, *sorted(path.rglob("*"))]:
        stat = each.stat()
        found[str(each)] = (stat.st_mtime_ns, each.read_bytes() if each.is_file() else None)
    return found
