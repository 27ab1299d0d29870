"""Locations: paths that are logs, paths that cannot be, and addresses that are no paths."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

import tailrace
from tailrace import errors


@pytest.fixture(autouse=True)
def _no_namespace(monkeypatch):
    for name in ("TAILRACE_NAMESPACE", "TAILRACE_JOURNAL_BYTES"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize(
    "address",
    ["s3://bucket/x", "S3A://bucket/x", "gs://b/x", "abfss://c@a/x", "http://h/x", "file:///tmp/x", "s3:/bucket/x"],
)
def test_an_address_becomes_no_directory(tmp_path, monkeypatch, address):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TAILRACE_LOG", address)
    with tailrace.open(tmp_path / "shop") as log:
        for use in (
            tailrace.open,
            lambda: tailrace.open(address),
            lambda: tailrace.open(Path(address)),
            lambda: tailrace.open(address, "r"),
            lambda: tailrace.repair(address),
            lambda: tailrace.Log.diagnose(address),
            lambda: log.backup(address),
            lambda: tailrace.Log.restore(address, tmp_path / "new"),
            lambda: tailrace.Log.restore(tmp_path / "old", address),
        ):
            with pytest.raises(errors.OpenError, match=r"cannot be the directory of the .* not supported") as caught:
                use()
            assert "write a path" in caught.value.hint
    assert os.listdir(tmp_path) == ["shop"]
    if address.startswith("file:"):
        assert caught.value.hint.endswith("such as /tmp/x.")


def test_a_directory_may_look_like_an_address_from_the_one_around_it(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with tailrace.open("./s3:/bucket") as log:
        assert log.location == str(tmp_path / "s3:" / "bucket")


@pytest.mark.parametrize("mode", ["a", "r", "x"])
@pytest.mark.parametrize("name", ["x" * 300, "/".join(["x" * 200] * 30)])
def test_a_path_too_long_is_no_log(tmp_path, mode, name):
    with pytest.raises(errors.NotALogError, match="File name too long") as caught:
        tailrace.open(tmp_path / name, mode)
    assert len(str(caught.value)) < 200


@pytest.mark.parametrize("mode", ["a", "r", "x"])
def test_a_link_that_leads_nowhere_is_no_log(tmp_path, mode):
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    with pytest.raises(errors.NotALogError, match=r"symbolic link to .*nowhere, which leads nowhere"):
        tailrace.open(tmp_path / "link", mode)
    assert os.listdir(tmp_path) == ["link"]


@pytest.mark.parametrize("mode", ["a", "r", "x"])
def test_a_path_through_a_link_that_leads_nowhere_is_no_log(tmp_path, mode):
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    with pytest.raises(errors.NotALogError, match=r"link is a symbolic link to .*nowhere, which leads nowhere"):
        tailrace.open(tmp_path / "link" / "below" / "shop", mode)
    assert os.listdir(tmp_path) == ["link"]


@pytest.mark.parametrize("mode", ["a", "x"])
def test_a_path_through_a_link_may_end_where_nothing_is_yet(tmp_path, mode):
    (tmp_path / "there").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "there")
    tailrace.open(tmp_path / "link" / "below" / "shop", mode).close()
    assert (tmp_path / "there" / "below" / "shop" / "tails").exists()
