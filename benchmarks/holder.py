"""The holder: a process that has a log open for writing and does nothing with it."""

from __future__ import annotations

import time

import tailrace
from tailrace.bench.children import request, say


def main() -> None:
    """Report readiness, then stay until killed."""
    asked = request()
    with tailrace.open(asked["path"]):
        say("ready")
        while True:
            time.sleep(3_600)


if __name__ == "__main__":
    main()
