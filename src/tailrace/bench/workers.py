"""Worker threads: they stand ready, and do their share of a count when they are told to."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

WAIT_SECONDS_MAX = 300.0


@contextmanager
def crew(members: Sequence[Callable[[int], object]]) -> Iterator[Callable[[int], object]]:
    """One thread for each function; telling the crew a count shares it among them and waits for all."""
    if len(members) == 1:
        yield members[0]
        return
    begin, end = threading.Barrier(len(members) + 1), threading.Barrier(len(members) + 1)
    share = [0]
    errors: list[BaseException] = []

    def stand(member: Callable[[int], object]) -> None:
        try:
            while True:
                begin.wait()
                if share[0] == 0:
                    return
                try:
                    member(share[0])
                except BaseException as error:  # noqa: BLE001 (told to whoever gave the count)
                    errors.append(error)
                end.wait()
        except threading.BrokenBarrierError:
            # Whoever gave the count was interrupted.
            return

    threads = [threading.Thread(target=stand, args=(member,), daemon=True) for member in members]
    for thread in threads:
        thread.start()

    def tell(count: int) -> None:
        share[0] = max(1, count // len(members))
        begin.wait()
        end.wait(WAIT_SECONDS_MAX)
        if errors:
            raise errors[0]

    try:
        yield tell
    except BaseException:
        begin.abort()
        end.abort()
        raise
    finally:
        share[0] = 0
        if not begin.broken:
            begin.wait()
        for thread in threads:
            thread.join(WAIT_SECONDS_MAX)
