"""Optional packages: imported at their first use, with an error that says how to install a missing one."""

from __future__ import annotations

import sys
from importlib import import_module
from typing import Any

from tailrace.errors import MissingExtraError


def require(module: str, extra: str) -> Any:
    """Return an optional module; raise MissingExtraError, which names the extra that installs it, if it is missing."""
    found = sys.modules.get(module)
    if found is not None:
        return found
    try:
        return import_module(module)
    except ImportError:
        package = module.partition(".")[0]
        raise MissingExtraError(f'This needs {package}: pip install "tailrace[{extra}]"', extra=extra) from None


def pyarrow() -> Any:
    """Return the module pyarrow."""
    return require("pyarrow", "arrow")
