"""The asker: a process that asks a log of many segments one question and says how long the answers took."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from time import perf_counter, thread_time

import tailrace
from benchmarks.engine_segments import BARE, QUESTIONS, TOPIC, bare_loop, partition_path
from tailrace.bench.children import request, say

# So often the log is opened anew, with nothing known of it, or for so long.
TURNS_MAX = 10
SECONDS_MAX = 0.5


def main() -> None:
    """Milliseconds of the processor for the first question to a log that is open, as often as there is time.

    A wait would be for other processes: what is read was just written and is in memory.
    """
    asked = request()
    path, segments = Path(asked["path"]), asked["segments"]
    if asked["question"] == BARE:
        directory = partition_path(path)
        say(repeated(lambda: _timed(lambda: bare_loop(directory))))
        return
    # What is imported at the first use of it is not timed.
    with tailrace.open(path) as log:
        log.topic(TOPIC).read(last=1).count()
        for question in QUESTIONS.values():
            question(log, segments)
    ask = QUESTIONS[asked["question"]]

    def once() -> float:
        with tailrace.open(path) as log:
            log.topic(TOPIC).offsets()
            return _timed(lambda: ask(log, segments))

    say(repeated(once))


def repeated(once: Callable[[], float]) -> list[float]:
    """What a measurement gives again and again."""
    deadline = perf_counter() + SECONDS_MAX
    found = [once()]
    while len(found) < TURNS_MAX and perf_counter() < deadline:
        found.append(once())
    return found


def _timed(work: Callable[[], object]) -> float:
    start = thread_time()
    work()
    return (thread_time() - start) * 1e3


if __name__ == "__main__":
    main()
