"""The rig: records a workload on a real file system, then mounts and checks crash states of it."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from tailrace.disk.files import BOOT_ID_VARIABLE
from tests.rigs.powercut.devices import mount_image, unmount_patiently
from tests.rigs.powercut.fuse import DISK_NAME
from tests.rigs.powercut.record import Medium, Record, State
from tests.rigs.powercut.stirring import stirred
from tests.rigs.powercut.systems import System, Verdict
from tests.rigs.powercut.tailrace_log import CUT_VARIABLE
from tests.rigs.powercut.tools import maker
from tests.rigs.powercut.workload import MUTATION_VARIABLE

ROOT = Path(__file__).resolve().parents[3]
# Large enough that ext4 has a second superblock, and xfs can be made at all; what is not written takes no memory.
IMAGE_BYTES = {"ext4": 160 << 20, "xfs": 320 << 20}
MAKE_OPTIONS = {
    # Nothing is left for later, when it would be taken for something that the workload did.
    "ext4": ["-q", "-F", "-b", "4096", "-J", "size=8", "-E", "lazy_itable_init=0,lazy_journal_init=0,nodiscard"],
    "xfs": ["-q", "-f", "-K"],
}
MOUNT_OPTIONS = {"ext4": "", "xfs": "nouuid"}
WORKLOAD_SECONDS = 120


class RigError(Exception):
    """The rig itself did not work; nothing is said about any system."""


class Checked(NamedTuple):
    """A state and what was found in it."""

    state: State
    verdict: Verdict
    # Whether the file system itself had to be repaired before it could be mounted.
    repaired: bool = False
    # Why it could not be mounted at all, so that nothing in it was looked at.
    unmounted: str = ""


def make_image(home: Path, file_system: str) -> Path:
    """A disk with an empty file system."""
    image = home / f"blank.{file_system}"
    if not image.exists():
        with open(image, "wb") as file:
            file.truncate(IMAGE_BYTES[file_system])
        command = [maker(file_system), *MAKE_OPTIONS[file_system], str(image)]
        made = subprocess.run(command, capture_output=True, text=True, check=False)
        if made.returncode:
            raise RigError(f"{' '.join(command)} failed: {made.stderr}")
    return image


class Disk:
    """A recorded disk with a mounted file system; a context manager that always takes everything down again."""

    def __init__(self, home: Path, image: Path, file_system: str) -> None:
        self.home = home
        self.image = image
        self.file_system = file_system
        self.record = home / "record"
        self.data = home / "data"
        self._undo = contextlib.ExitStack()

    def __enter__(self) -> Disk:
        fuse = self.home / "fuse"
        for directory in (fuse, self.data):
            directory.mkdir(exist_ok=True)
        with contextlib.ExitStack() as undo:
            ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            self.channel = undo.enter_context(ours)
            with theirs:
                self.recorder = _start(
                    "recorder", self.image, self.record, fuse, theirs.fileno(), pass_fds=[theirs.fileno()],
                    stdout=subprocess.PIPE,
                )  # fmt: skip
            undo.callback(_end, self.recorder)
            if self.recorder.stdout is None or not self.recorder.stdout.readline():
                raise RigError("The recorder did not start.")
            undo.callback(unmount_patiently, fuse)
            mount_image(fuse / DISK_NAME, self.data, self.file_system, MOUNT_OPTIONS[self.file_system])
            undo.callback(unmount_patiently, self.data)
            self._undo = undo.pop_all()
        return self

    def tell(self, message: dict[str, object]) -> None:
        self.channel.send(json.dumps(message).encode())
        if self.channel.recv(1) != b"k":
            raise RigError("The recorder is gone.")

    def run(self, system: System, count: int, pause: float, mutation: str = "", cut: int = 0) -> None:
        """Let a system work on the disk, from its first call to the end of its process."""
        descriptor = os.open(self.data, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        os.fsync(descriptor)
        os.close(descriptor)
        self.tell({"start": system.key})
        worker = _start(
            "workload", system.key, self.data, self.channel.fileno(), count, pause, pass_fds=[self.channel.fileno()],
            stderr=subprocess.PIPE,
            env={**os.environ, MUTATION_VARIABLE: mutation, CUT_VARIABLE: str(cut), BOOT_ID_VARIABLE: f"boot {cut}"},
        )  # fmt: skip
        try:
            with stirred(self.data):
                _, complaint = worker.communicate(timeout=WORKLOAD_SECONDS)
        except subprocess.TimeoutExpired:
            # It may wait for a disk that does not answer, and then nothing ends it but errors.
            self.recorder.kill()
            raise RigError(f"The workload of {system.key} did not end within {WORKLOAD_SECONDS} s.") from None
        finally:
            _end(worker)
        if worker.returncode:
            raise RigError(f"The workload of {system.key} failed:\n{complaint}")
        self.tell({"stop": system.key})

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None:
            # A recorder that no longer answers would make unmounting wait for ever; without it there are only errors.
            _end(self.recorder)
        with contextlib.suppress(OSError) if kind is not None else contextlib.nullcontext():
            self._undo.close()


def record_workload(
    home: Path, system: System, file_system: str, count: int, pause: float, mutation: str = ""
) -> Record:
    """Run a system on a new disk and return the record of it."""
    image = make_image(home, file_system)
    with Disk(home, image, file_system) as disk:
        disk.run(system, count, pause, mutation)
    return Record(image, disk.record)


def record_again(
    home: Path, system: System, file_system: str, record: Record, state: State, count: int, pause: float
) -> Record:
    """Run a system on the disk that a power cut left: its recovery is recorded like everything else."""
    image = home / "again"
    Medium(record).write_state(state, image)
    before = tuple(record.acknowledged(state.point))
    with Disk(home, image, file_system) as disk:
        disk.run(system, count, pause, cut=1 + sum("found" in note for note in before))
    return Record(image, disk.record, before)


@contextlib.contextmanager
def checker(system: System) -> Iterator[Callable[[Path, list[dict], int], Verdict]]:
    """A process that checks mounted crash states of one system."""
    process = _start("checker", system.key, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdin is not None
    assert process.stdout is not None

    def ask(directory: Path, acknowledged: list[dict], seed: int) -> Verdict:
        request = {"directory": str(directory), "acknowledged": acknowledged, "seed": seed}
        process.stdin.write(json.dumps(request) + "\n")
        process.stdin.flush()
        answer = process.stdout.readline()
        if not answer:
            raise RigError(f"The checker of {system.key} ended.")
        return Verdict(*json.loads(answer))

    try:
        yield ask
    finally:
        _end(process)


def check_states(
    home: Path, system: System, file_system: str, record: Record, states: list[State], deadline: float = float("inf")
) -> Iterator[Checked]:
    """Mount one state after another, as after a reboot, and let it be checked."""
    medium = Medium(record)
    image, place = home / "state", home / "state.mounted"
    place.mkdir(exist_ok=True)
    with checker(system) as ask:
        for state in states:
            if time.monotonic() > deadline:
                return
            medium.write_state(state, image)
            try:
                repaired = mount_as_at_boot(image, place, file_system)
            except OSError as error:
                yield Checked(state, Verdict(0, 0), unmounted=f"{file_system} itself did not mount: {error}")
                continue
            try:
                yield Checked(state, ask(place, record.acknowledged(state.point), state.number), repaired)
            finally:
                unmount_patiently(place)


def mount_as_at_boot(image: Path, place: Path, file_system: str) -> bool:
    """Mount what a cut has left; True when ext4 needed its e2fsck first.

    The superblock of ext4 has two sectors and one checksum. A cut between them keeps it from being mounted, and what
    starts a machine lets e2fsck take the second superblock and replay the journal.
    """
    try:
        mount_image(image, place, file_system, MOUNT_OPTIONS[file_system])
        return False
    except OSError:
        if file_system != "ext4":
            raise
    repair = Path(maker("ext4")).with_name("e2fsck")
    subprocess.run([repair, "-f", "-y", image], check=False, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    mount_image(image, place, file_system, MOUNT_OPTIONS[file_system])
    return True


def _start(module: str, *arguments: object, **settings: object) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", f"tests.rigs.powercut.{module}", *map(str, arguments)]
    return subprocess.Popen(command, cwd=ROOT, text=True, **settings)  # type: ignore[call-overload]


def _end(process: subprocess.Popen[str]) -> None:
    """End a process that may have ended, and close what leads to it."""
    for pipe in (process.stdin, process.stdout, process.stderr):
        if pipe is not None:
            pipe.close()
    if process.poll() is None:
        try:
            process.wait(2)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
