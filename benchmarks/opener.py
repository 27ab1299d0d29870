"""The opener: a process that opens a log or a store and reports how long that took."""

from __future__ import annotations

from pathlib import Path
from time import perf_counter

import tailrace
from benchmarks.stores import kind_named
from tailrace.bench.children import request, say


def main() -> None:
    """Report the milliseconds from the call of open to the known end of a topic."""
    asked = request()
    # Imported before the clock starts.
    assert tailrace.Log is not None
    if asked["kind"]:
        kind = kind_named(asked["kind"])
        start = perf_counter()
        store = kind.open(Path(asked["path"]))
        took = perf_counter() - start
        store.close()
    else:
        start = perf_counter()
        log = tailrace.open(asked["path"])
        bounds = log.topic(asked["topic"]).offsets()
        took = perf_counter() - start
        log.close()
        assert bounds[0].latest > 0
    say(took * 1e3)


if __name__ == "__main__":
    main()
