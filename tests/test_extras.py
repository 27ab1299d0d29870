"""Optional packages: found once, and a missing one names the extra that brings it."""

from __future__ import annotations

import sys

import pytest

from tailrace import extras
from tailrace.errors import MissingExtraError


def test_a_module_that_is_there_is_returned():
    import json.decoder

    assert extras.require("json.decoder", "none") is json.decoder
    assert extras.pyarrow().__name__ == "pyarrow"


def test_a_loaded_module_is_not_imported_again(monkeypatch):
    made = object()
    monkeypatch.setitem(sys.modules, "tailrace_made_up", made)
    monkeypatch.setattr(extras, "import_module", None)
    assert extras.require("tailrace_made_up", "none") is made


@pytest.mark.parametrize("module", ["tailrace_made_up", "tailrace_made_up.part.of.it"])
def test_a_missing_module_names_its_package_and_its_extra(module):
    with pytest.raises(
        MissingExtraError, match=r'This needs tailrace_made_up: pip install "tailrace\[sql\]"'
    ) as caught:
        extras.require(module, "sql")
    assert caught.value.extra == "sql"
    assert caught.value.__cause__ is None
