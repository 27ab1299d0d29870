"""version: what is installed, in every format."""

from __future__ import annotations

import json


def test_version(cli):
    from importlib.metadata import version

    assert cli.ok("version") == cli.ok("--version") == f"tailrace {version('tailrace')}\n"
    assert json.loads(cli.ok("version", "-o", "json"))["tailrace"] == version("tailrace")
