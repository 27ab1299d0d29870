"""The directory of a measurement, which is removed however the measurement ends."""

from __future__ import annotations

import os
import shutil
import signal

import pytest

import tailrace
from tailrace.bench.place import PREFIX, log_around, workplace
from tests.consuming import in_thread


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_second_interrupt_does_not_end_the_removal(tmp_path, monkeypatch, number):
    heard = []
    before = signal.signal(number, lambda *_: heard.append("by whoever was asked before"))
    remove = shutil.rmtree

    def interrupted(*arguments: object, **options: object) -> None:
        os.kill(os.getpid(), number)
        remove(*arguments, **options)

    monkeypatch.setattr(shutil, "rmtree", interrupted)
    try:
        with workplace(tmp_path) as directory:
            (directory / "file").write_text("x")
        assert heard == []
        assert list(tmp_path.iterdir()) == []
        os.kill(os.getpid(), number)
        assert heard == ["by whoever was asked before"]
    finally:
        signal.signal(number, before)


def test_it_is_removed_with_its_contents_whatever_the_block_raises(tmp_path):
    def fail():
        with workplace(tmp_path) as directory:
            assert directory.parent == tmp_path
            assert directory.name.startswith(PREFIX)
            (directory / "deep").mkdir()
            (directory / "deep" / "file").write_text("x")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fail()
    assert list(tmp_path.iterdir()) == []


def test_another_thread_than_the_main_one_has_no_signals_to_ignore(tmp_path):
    def work():
        with workplace(tmp_path):
            pass
        return True

    assert in_thread(work)()
    assert list(tmp_path.iterdir()) == []


def test_the_log_that_a_directory_is_inside_of(tmp_path):
    assert log_around(tmp_path) is None
    path = tmp_path / "shop"
    tailrace.open(path).close()
    assert log_around(path) == path
    assert log_around(path / "topics" / "there" / "is" / "none") == path
    assert log_around(tmp_path) is None
