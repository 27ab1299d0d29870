"""Scheduler: simulated processes take turns at every operation, in an order that a seed decides."""

from __future__ import annotations

import threading
from collections.abc import Callable
from random import Random

from tests.rigs.sim.disk import Disk
from tests.rigs.sim.faults import Deadlock, Killed
from tests.rigs.sim.inode import Inode
from tests.rigs.sim.process import Process


class Task:
    """One process's function, and how it ended."""

    def __init__(self, process: Process, function: Callable[[], object]) -> None:
        self.process = process
        self.function = function
        self.turn = threading.Semaphore(0)
        self.ready: Callable[[], bool] | None = None
        self.reason = ""
        self.inode: Inode | None = None
        self.deadline = 0.0
        self.ended = False
        self.killed = False
        self.result: object = None
        self.error: BaseException | None = None


class Scheduler:
    """Runs one function a process, one operation at a time; only the holder of the baton runs.

    A wait has the simulated clock: it moves when nobody else can run. A lock wait that only other waiters could end
    is a Deadlock, whatever its timeout. `stay` is the chance to go on without giving others a turn.
    """

    def __init__(self, disk: Disk, seed: int, *, stay: float = 0.0) -> None:
        self.disk = disk
        self.random = Random(seed)
        self.stay = stay
        self.tasks: dict[Process, Task] = {}
        self.switches = 0
        self._all_ended = threading.Event()
        self._deadlock: Deadlock | None = None

    def spawn(self, process: Process, function: Callable[[], object]) -> Task:
        task = self.tasks[process] = Task(process, function)
        return task

    def run(self) -> None:
        """Until all have ended. A killed one is no error; any other exception kills its process and is raised here."""
        self.disk.scheduler = self
        for task in self.tasks.values():
            threading.Thread(target=self._body, args=(task,), name=task.process.name, daemon=True).start()
        try:
            self._pass_on()
            self._all_ended.wait()
        finally:
            self.disk.scheduler = None
        if self._deadlock is not None:
            raise self._deadlock
        for task in self.tasks.values():
            if task.error is not None:
                raise task.error

    def _body(self, task: Task) -> None:
        task.turn.acquire()
        try:
            task.result = task.function()
        except Killed:
            task.killed = True
        except BaseException as error:  # noqa: BLE001  # It is raised again in run().
            task.error = error
            task.process.kill()
        task.ended = True
        self._pass_on()

    def switch(self, process: Process) -> None:
        """Perhaps let others run before this process's next operation."""
        task = self.tasks.get(process)
        if task is None or (self.stay and self.random.random() < self.stay):
            return
        self._hand_over(task)

    def wait(
        self, process: Process, ready: Callable[[], bool], reason: str, timeout: float, inode: Inode | None
    ) -> bool:
        """Let others run until `ready` or the timeout; `inode` is the one whose lock is waited for."""
        task = self.tasks[process]
        task.ready, task.reason, task.inode = ready, reason, inode
        task.deadline = self.disk.clock_us + timeout * 1e6
        self._hand_over(task)
        task.ready = None
        return ready()

    def _hand_over(self, task: Task) -> None:
        following = self._choose()
        if following is not task:
            self.switches += 1
            if following is not None:
                following.turn.release()
            task.turn.acquire()
        process = task.process
        if process.dead or self._deadlock is not None:
            process.kill()
            raise Killed(process.name)

    def _pass_on(self) -> None:
        following = self._choose()
        if following is None:
            self._all_ended.set()
        else:
            following.turn.release()

    def _choose(self) -> Task | None:
        """Who goes on; None when all have ended."""
        living = [task for task in self.tasks.values() if not task.ended]
        while living:
            now = self.disk.clock_us
            runnable = [
                task
                for task in living
                if task.ready is None or task.process.dead or task.deadline <= now or task.ready()
            ]
            if runnable:
                return self.random.choice(runnable)
            if self._deadlock is not None:
                return living[0]
            self._move_clock(living)
        return None

    def _move_clock(self, waiting: list[Task]) -> None:
        """Nobody can run: time passes for those who wait for time, and the rest is a deadlock."""
        deadline = min((task.deadline for task in waiting if not self._blocked(task)), default=float("inf"))
        if deadline == float("inf"):
            self._deadlock = Deadlock("; ".join(f"{task.process.name} {task.reason}" for task in waiting))
        else:
            self.disk.clock_us = int(deadline) + 1

    def _blocked(self, task: Task) -> bool:
        """Whether another task, which cannot run either, holds what this one waits for."""
        holders = task.inode.holders if task.inode is not None else ()
        tasks = (self.tasks.get(holder.process) for holder in holders)
        return any(other is not None and not other.ended and other is not task for other in tasks)
