"""A simulated machine: a disk that tears, reorders, fills up and fails, and processes that die and interleave."""

from __future__ import annotations

from tests.rigs.sim.disk import Disk
from tests.rigs.sim.faults import FALLIBLE, PASSIVE, Cut, Deadlock, Fail, Full, Interrupt, Kill, Killed, PowerCut
from tests.rigs.sim.process import Process
from tests.rigs.sim.scheduler import Scheduler

__all__ = [
    "FALLIBLE",
    "PASSIVE",
    "Cut",
    "Deadlock",
    "Disk",
    "Fail",
    "Full",
    "Interrupt",
    "Kill",
    "Killed",
    "PowerCut",
    "Process",
    "Scheduler",
]
