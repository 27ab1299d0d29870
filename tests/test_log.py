"""Opening, sharing, closing and carrying handles, and namespaces."""

from __future__ import annotations

import os
import pickle

import pytest

import tailrace
from tailrace import errors


@pytest.fixture(autouse=True)
def _no_namespace(monkeypatch):
    for name in ("TAILRACE_NAMESPACE", "TAILRACE_JOURNAL_BYTES"):
        monkeypatch.delenv(name, raising=False)


def test_a_log_is_made_where_there_is_none(tmp_path):
    with tailrace.open(tmp_path / "deep" / "shop") as log:
        assert log.location == str(tmp_path / "deep" / "shop")
        log.topic("orders").append("hello")
    with tailrace.open(str(tmp_path / "deep" / "shop") + "/") as log:
        assert log.location == str(tmp_path / "deep" / "shop")
        assert log.topic("orders").get(0).text == "hello"


def test_a_relative_path_stays_where_it_was(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with tailrace.open("shop") as log:
        monkeypatch.chdir("/")
        log.topic("orders").append("hello")
        assert pickle.loads(pickle.dumps(log)).location == str(tmp_path / "shop")
    assert (tmp_path / "shop" / "tailrace.json").exists()


def test_the_location_comes_from_the_environment(tmp_path, monkeypatch):
    with pytest.raises(TypeError, match="TAILRACE_LOG"):
        tailrace.open()
    monkeypatch.setenv("TAILRACE_LOG", str(tmp_path / "shop"))
    with tailrace.open() as log:
        assert log.location == str(tmp_path / "shop")
    monkeypatch.setenv("TAILRACE_NAMESPACE", "tenant")
    with tailrace.open() as log:
        assert log.location == str(tmp_path / "shop" / "namespaces" / "tenant")


@pytest.mark.parametrize(
    ("arguments", "error", "said"),
    [
        ({"location": ""}, ValueError, "empty"),
        ({"location": "http://host/log"}, errors.OpenError, "remote logs are not supported in this version"),
        ({"location": "HTTPS://host/log"}, errors.OpenError, "remote logs are not supported in this version"),
        ({"mode": "w"}, ValueError, "mode='w'"),
        ({"io": "direct"}, ValueError, "io='direct'"),
        ({"durable": 0.05}, TypeError, "durable"),
        ({"timeout": -1}, ValueError, "negative"),
        ({"namespace": ""}, errors.InvalidNameError, "empty"),
    ],
)
def test_wrong_arguments_are_refused_and_create_nothing(tmp_path, arguments, error, said):
    with pytest.raises(error, match=said):
        tailrace.open(**{"location": tmp_path / "shop", **arguments})
    assert not (tmp_path / "shop").exists()


def test_reading_never_creates(tmp_path):
    with pytest.raises(errors.NotALogError):
        tailrace.open(tmp_path / "shop", "r")
    assert not (tmp_path / "shop").exists()


def test_creating_must_create(tmp_path):
    with tailrace.open(tmp_path / "shop", "x") as log:
        log.topic("orders").append("hello")
        with pytest.raises(errors.OpenError, match="already"):
            tailrace.open(tmp_path / "shop", "x")
    with pytest.raises(errors.OpenError, match="already"):
        tailrace.open(tmp_path / "shop", "x")


def test_a_directory_of_something_else_is_refused(tmp_path):
    (tmp_path / "photo.jpg").write_bytes(b"")
    for namespace in (None, "tenant"):
        with pytest.raises(errors.NotALogError, match="photo"):
            tailrace.open(tmp_path, namespace=namespace)
    assert os.listdir(tmp_path) == ["photo.jpg"]


# What cannot be opened, or is not there any more.


@pytest.mark.parametrize(
    ("arguments", "error", "said"),
    [
        ({"location": 5}, TypeError, "not int"),
        ({"location": "a\0b"}, ValueError, "zero byte"),
        ({"location": "\ud800"}, ValueError, "a character that no file name can hold"),
        ({"exclusive": 1}, TypeError, "exclusive must be True or False"),
        ({"mode": "r", "exclusive": True}, ValueError, "does not write"),
    ],
)
def test_more_wrong_arguments_are_refused(tmp_path, arguments, error, said):
    with pytest.raises(error, match=said):
        tailrace.open(**{"location": tmp_path / "shop", **arguments})
    assert not (tmp_path / "shop").exists()


@pytest.mark.parametrize("pattern", [None, 5, b"..."])
def test_patterns_are_text(tmp_path, pattern):
    with tailrace.open(tmp_path / "shop") as log:
        with pytest.raises(TypeError, match="match must be a str"):
            log.topics(pattern)
        with pytest.raises(TypeError, match="topics must be a str"):
            log.verify(pattern)
        with pytest.raises(TypeError, match="cannot be called"):
            log.verify(progress=5)


def test_the_hint_for_a_namespace_says_its_own_rule(tmp_path):
    with tailrace.open(tmp_path / "shop") as log, pytest.raises(errors.InvalidNameError, match="85") as caught:
        log.namespace("x" * 86)
    assert "1 to 85 bytes" in caught.value.hint
