"""`python -m tailrace`: the command line."""

from __future__ import annotations

from tailrace.cli import main

if __name__ == "__main__":
    main()
