"""What ./demo and ./test need of the machine is found, installed where possible, or asked for in plain words."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
DEBIAN = Path("/etc/debian_version").exists()
# All that the functions call, besides what a test puts beside them.
TOOLS = ("bash", "sed", "cat", "chmod")


class Machine:
    """A PATH of its own, on which there is no Java and nothing can really be installed."""

    def __init__(self, directory: Path) -> None:
        self.bin = directory / "bin"
        self.bin.mkdir()
        self.calls = directory / "calls"
        for tool in TOOLS:
            (self.bin / tool).symlink_to(shutil.which(tool))

    def program(self, name: str, text: str) -> None:
        path = self.bin / name
        path.write_text(f"#!/bin/bash\n{text}\n")
        path.chmod(0o755)

    def java(self, version: str) -> str:
        """The text of a Java of some version, which tells of it as Java does: on standard error, after a notice."""
        return f"echo 'Picked up JAVA_TOOL_OPTIONS: -Xmx1g' >&2; echo 'openjdk version \"{version}\" 2025-04-15' >&2"

    def apt_get(self, packages: dict[str, str]) -> None:
        """An apt-get that notes its calls, and installs Javas by the names of packages."""
        cases = "".join(
            f'*" {name}") printf "%s\\n" "#!/bin/bash" {_quoted(self.java(version))} >{self.bin}/java; '
            f"chmod +x {self.bin}/java; exit 0;;\n"
            for name, version in packages.items()
        )
        self.program("apt-get", f'echo "$*" >>{self.calls}\ncase "$*" in update*) exit 0;;\n{cases}esac\nexit 100')

    def user(self, number: int) -> None:
        self.program("id", f"echo {number}")

    def find_java(self, **environment: str) -> subprocess.CompletedProcess[str]:
        return self.run("find_java && echo found $(java_version)", **environment)

    def run(self, script: str, **environment: str) -> subprocess.CompletedProcess[str]:
        command = ["bash", "-c", f"set -u; source scripts/environment.sh; {script}"]
        given = {"PATH": str(self.bin), **environment}
        return subprocess.run(command, cwd=ROOT, env=given, capture_output=True, text=True, check=False)

    @property
    def called(self) -> list[str]:
        return self.calls.read_text().splitlines() if self.calls.exists() else []


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "'\\''") + "'"


@pytest.fixture
def machine(tmp_path):
    made = Machine(tmp_path)
    made.user(0)
    return made


def install(package: str) -> str:
    return f"install -y -qq {package}"


@pytest.mark.parametrize(("told", "version"), [("17.0.15", 17), ("21", 21), ("25-ea", 25)])
def test_a_java_that_is_new_enough_is_found(machine, told, version):
    machine.apt_get({})
    machine.program("java", machine.java(told))
    done = machine.find_java()
    assert (done.returncode, done.stdout, done.stderr) == (0, f"found {version}\n", "")
    assert machine.called == []


@pytest.mark.skipif(not DEBIAN, reason="installs on Debian only")
def test_root_on_debian_gets_java_installed(machine):
    machine.apt_get({"openjdk-17-jre-headless": "17.0.15", "default-jre-headless": "21"})
    done = machine.find_java()
    assert (done.returncode, done.stdout) == (0, "found 17\n")
    assert done.stderr == "installing openjdk-17-jre-headless\n"
    assert machine.called == ["update -qq", install("openjdk-17-jre-headless")]


@pytest.mark.skipif(not DEBIAN, reason="installs on Debian only")
def test_a_release_without_java_17_gives_the_one_it_has(machine):
    machine.apt_get({"default-jre-headless": "21.0.2"})
    done = machine.find_java()
    assert (done.returncode, done.stdout) == (0, "found 21\n")
    assert machine.called == ["update -qq", install("openjdk-17-jre-headless"), install("default-jre-headless")]


@pytest.mark.skipif(not DEBIAN, reason="installs on Debian only")
def test_an_installation_that_fails_ends_in_advice(machine):
    machine.apt_get({"default-jre-headless": "11.0.2"})
    done = machine.find_java()
    assert (done.returncode, done.stdout) == (1, "")
    assert "Spark needs Java 17 or newer, and the one on the PATH is Java 11." in done.stderr
    assert "sudo apt-get install openjdk-17-jre-headless" in done.stderr


@pytest.mark.parametrize(
    ("java", "told"), [(None, "there is none on the PATH."), ("1.8.0_292", "the one on the PATH is Java 8.")]
)
def test_whoever_is_not_root_is_told_what_to_install(machine, java, told):
    machine.apt_get({"openjdk-17-jre-headless": "17.0.15"})
    machine.user(1000)
    if java is not None:
        machine.program("java", machine.java(java))
    done = machine.find_java()
    assert (done.returncode, done.stdout) == (1, "")
    assert told in done.stderr
    assert "openjdk-17-jre-headless" in done.stderr
    assert machine.called == []


def test_java_home_goes_before_the_path(machine, tmp_path):
    machine.apt_get({"openjdk-17-jre-headless": "17.0.15"})
    machine.program("java", machine.java("11.0.2"))
    (tmp_path / "jdk" / "bin").mkdir(parents=True)
    (machine.bin / "java").rename(tmp_path / "jdk" / "bin" / "java")
    machine.program("java", machine.java("17.0.15"))
    home = str(tmp_path / "jdk")
    done = machine.find_java(JAVA_HOME=home)
    assert done.returncode == 1
    assert f"the one in JAVA_HOME ({home}) is Java 11." in done.stderr
    assert machine.called == [], "Spark would take the Java of JAVA_HOME, whatever else is installed"
    assert machine.find_java(JAVA_HOME="").stdout == "found 17\n"


def test_the_demo_says_how_to_go_without_java(machine):
    machine.program("dirname", f'exec {shutil.which("dirname")} "$@"')
    machine.user(1000)
    command = ["bash", str(ROOT / "demo"), "--seconds", "3"]
    environment = {**os.environ, "PATH": str(machine.bin)}
    environment.pop("JAVA_HOME", None)
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert "Spark needs Java 17" in done.stderr
    assert "./demo --no-spark" in done.stderr


class Pythons:
    """Commands that are Python to whoever only asks for a version, on the PATH and under pyenv."""

    def __init__(self, machine: Machine, home: Path) -> None:
        self.machine = machine
        self.home = home

    def find(self, version: str, **environment: str) -> subprocess.CompletedProcess[str]:
        script = f'use_version "{version}" && find_python && echo "$venv $python"'
        return self.machine.run(script, **{"HOME": str(self.home), **environment})

    def add(self, root: Path, *versions: str) -> None:
        for version in versions:
            path = root / "versions" / version / "bin" / "python"
            path.parent.mkdir(parents=True)
            path.write_text("#!/bin/bash\nexit 0\n")
            path.chmod(0o755)


@pytest.fixture
def pythons(machine, tmp_path):
    machine.apt_get({})
    return Pythons(machine, tmp_path / "home")


def test_a_version_on_the_path_goes_before_pyenv(pythons):
    pythons.machine.program("python3.12", "exit 0")
    pythons.add(pythons.home / ".pyenv", "3.12.1")
    assert pythons.find("3.12").stdout == "python3.12\n.venv-3.12 .venv-3.12/bin/python\n"


def test_a_command_of_pyenv_that_is_not_active_leads_to_the_newest_version(pythons, tmp_path):
    pythons.machine.program("python3.13", "exit 127")
    pythons.add(pythons.home / ".pyenv", "3.13.2", "3.13.10", "3.13.9", "3.13.11rc1", "3.12.12")
    assert pythons.find("3.13").stdout.splitlines()[0] == f"{pythons.home}/.pyenv/versions/3.13.10/bin/python"
    pythons.add(tmp_path / "elsewhere", "3.13.3")
    found = pythons.find("3.13", PYENV_ROOT=str(tmp_path / "elsewhere"))
    assert found.stdout.splitlines()[0] == f"{tmp_path}/elsewhere/versions/3.13.3/bin/python"


@pytest.mark.parametrize("arguments", [["--python", "3.12"], ["--python=3.12"], ["--quick", "--python", "3.12"]])
def test_a_version_that_is_not_here_ends_in_advice(pythons, tmp_path, arguments):
    """In a copy, which has no environment yet."""
    for tool in ("dirname", "cksum"):
        pythons.machine.program(tool, f'exec {shutil.which(tool)} "$@"')
    pythons.machine.user(1000)
    (tmp_path / "copy" / "scripts").mkdir(parents=True)
    for name in ("test", "scripts/environment.sh", "pyproject.toml"):
        shutil.copy(ROOT / name, tmp_path / "copy" / name)
    environment = {"PATH": str(pythons.machine.bin), "HOME": str(pythons.home)}
    command = ["bash", str(tmp_path / "copy" / "test"), *arguments]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "There is no Python 3.12 on the PATH or under pyenv: install it (pyenv install 3.12)." in done.stderr


@pytest.mark.parametrize("version", ["", "3", "3.10", "3.13.0", "2.7", "banana", "../x"])
def test_what_is_no_version_is_refused(version):
    done = subprocess.run(
        ["bash", str(ROOT / "test"), "--python", version], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert f"'{version}' is no version of Python that Tailrace runs on" in done.stderr


def test_pages_claim_the_versions_of_the_classifiers_and_no_others():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    claimed = re.findall(r":: Python :: (3\.\d+)", " ".join(project["classifiers"]))
    assert project["requires-python"] == f">={claimed[0]}"
    told = f"{', '.join(claimed[:-1])} and {claimed[-1]}"
    assert f"tested on Python {told}" in (ROOT / "README.md").read_text("utf-8")
    assert f"the suite runs on {told}" in (ROOT / "CONTRIBUTING.md").read_text("utf-8")
