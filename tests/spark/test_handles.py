"""Open logs of a process: shared, kept for a while, and never those of another log at the same path."""

from __future__ import annotations

import os
import pickle
import shutil
import threading
import traceback

import pytest

pytest.importorskip("pyspark")

import tailrace
from tailrace.errors import NotALogError, RecoveryNeededError, StorageError, TailraceError
from tailrace.spark import handles, limits
from tests.spark.sink.jobs import job, numbers, table
from tests.tuning import limit


@pytest.fixture
def log(tmp_path):
    with tailrace.open(tmp_path / "log") as opened:
        opened.topic("a", partitions=4)
        yield opened
    handles.close_all()


@pytest.fixture
def path(tmp_path, monkeypatch):
    """The directory of a log that no process has open; no other log is known."""
    monkeypatch.setattr(handles, "_kept", {})
    monkeypatch.setattr(handles, "_locations", {})
    make(tmp_path / "log")
    yield str(tmp_path / "log")
    handles.close_all()


def make(path, *values):
    with tailrace.open(path) as log:
        log.topic("a", partitions=1).extend([*values])


def replace(path, *values):
    """Put another log in the place of one."""
    shutil.rmtree(path)
    make(path, *values)


def texts(log):
    return [record.text for record in log.topic("a").read()]


class TestHandles:
    def test_a_handle_can_be_pickled_and_writes_where_it_is_used(self, path):
        far = pickle.loads(pickle.dumps(handles.handle_on(path, None, create=False)))
        assert far.location == path
        with handles.shared_log(far) as log:
            log.topic("a").append("x")
            assert texts(log) == ["x"]

    def test_a_missing_log_is_an_error_unless_it_may_be_created(self, path, tmp_path):
        place = tmp_path / "missing"
        with pytest.raises(NotALogError) as caught:
            handles.handle_on(str(place), None, create=False)
        assert '.option("createTopics", "true")' in caught.value.hint
        assert not place.exists()
        assert handles.handle_on(str(place), None, create=True).location == str(place)
        assert place.exists()

    def test_a_name_is_resolved_once(self, path, monkeypatch):
        first = handles.handle_on(path, None, create=False)
        with monkeypatch.context() as patched:
            patched.setattr(tailrace, "open", lambda *given, **named: pytest.fail("opened"))
            assert handles.handle_on(path, None, create=False).location == first.location

    def test_a_log_that_is_gone_since_is_noticed(self, path):
        handles.handle_on(path, None, create=False)
        shutil.rmtree(path)
        with pytest.raises(NotALogError):
            handles.handle_on(path, None, create=False)

    def test_the_environment_may_name_another_log_later(self, path, tmp_path, monkeypatch):
        make(tmp_path / "other")
        for place in (path, str(tmp_path / "other")):
            monkeypatch.setenv("TAILRACE_LOG", place)
            assert handles.handle_on(None, None, create=False).location == place

    def test_the_current_directory_may_change(self, path, tmp_path, monkeypatch):
        for name in ("one", "two"):
            make(tmp_path / name / "log")
            monkeypatch.chdir(tmp_path / name)
            assert os.path.realpath(handles.handle_on("log", None, create=False).location) == str(
                tmp_path / name / "log"
            )

    def test_a_log_that_must_be_recovered_is_there(self, path, monkeypatch):
        def refuse(*given, **named):
            raise RecoveryNeededError("not recovered")

        monkeypatch.setattr(tailrace, "open", refuse)
        handles._check_there(path, None)


class TestReading:
    def test_all_queries_share_one_that_needs_no_right_to_write(self, path):
        log = handles.reading(path, None)
        assert handles.reading(path, None) is log
        with pytest.raises(TailraceError):
            log.topic("a").append("x")

    def test_another_log_at_the_same_path_is_opened(self, path):
        assert texts(handles.reading(path, None)) == []
        replace(path, "new")
        assert texts(handles.reading(path, None)) == ["new"]

    def test_a_log_that_was_not_recovered_is_looked_at_again(self, path, monkeypatch):
        first = handles.reading(path, None)
        monkeypatch.setattr(handles, "is_frozen", lambda log: log is first)
        second = handles.reading(path, None)
        assert second is not first
        assert handles.reading(path, None) is second

    def test_a_log_is_not_frozen_once_it_is_recovered(self, path):
        assert not handles.is_frozen(handles.reading(path, None))


class TestOpening:
    def test_a_query_without_a_log_says_what_to_write(self, monkeypatch):
        monkeypatch.delenv("TAILRACE_LOG", raising=False)
        with pytest.raises(ValueError, match=r'Say which log to read: \.load\("/data/log"\)') as caught:
            handles.open_log(None, None)
        assert caught.value.__suppress_context__

    def test_another_wrong_type_stays_what_it_is(self):
        with pytest.raises(TypeError):
            handles.open_log(5, None)

    @pytest.mark.parametrize("write", [True, False])
    def test_a_missing_log_is_never_created(self, tmp_path, write):
        with pytest.raises(NotALogError):
            handles.open_log(str(tmp_path / "missing"), None, write=write)
        assert not (tmp_path / "missing").exists()

    def test_one_for_writing_is_not_shared(self, path):
        with handles.open_log(path, None, write=True) as log:
            log.topic("a").append("x")
            assert log is not handles.reading(path, None)
        assert texts(handles.reading(path, None)) == ["x"]


class TestSharing:
    def shared(self, path):
        return handles.shared_log(handles.handle_on(path, None, create=False))

    def test_users_share_one_log_that_stays_open_for_the_next(self, path):
        with self.shared(path) as one, self.shared(path) as two:
            assert one is two
        (kept,) = handles._kept.values()
        timer = kept.timer
        assert timer.is_alive()
        with self.shared(path) as three:
            assert three is one
            # The timer was stopped, so the log is not closed while it is used.
            assert timer.finished.is_set()
            assert kept.timer is None

    def test_a_timer_that_comes_too_late_closes_nothing(self, path):
        with self.shared(path):
            pass
        (kept,) = handles._kept.values()
        with self.shared(path) as log:
            handles._close_idle(kept)
            log.topic("a").append("x")
        assert texts(log) == ["x"]
        # Another thread than the current timer has nothing to close either.
        handles._close_idle(kept)
        assert [*handles._kept.values()] == [kept]

    def test_closing_all_leaves_those_in_use(self, path):
        with self.shared(path) as log:
            handles.close_all()
            log.topic("a").append("x")
            assert texts(log) == ["x"]
        handles.close_all()
        assert handles._kept == {}

    def test_another_log_at_the_same_path_is_opened_and_the_old_one_closed_by_its_last_user(self, path, monkeypatch):
        closed = []
        real = handles._close
        monkeypatch.setattr(handles, "_close", lambda kept: (closed.append(kept.log), real(kept)))
        with self.shared(path) as old:
            replace(path, "new")
            with self.shared(path) as new:
                assert new is not old
                assert texts(new) == ["new"]
                assert closed == []
        assert closed == [old]

    def test_another_log_closes_one_that_is_idle(self, path, monkeypatch):
        closed = []
        real = handles._close
        with self.shared(path) as old:
            pass
        monkeypatch.setattr(handles, "_close", lambda kept: (closed.append(kept.log), real(kept)))
        replace(path, "new")
        with self.shared(path) as new:
            assert texts(new) == ["new"]
        assert closed == [old]

    def test_a_log_that_is_gone_is_not_created_again(self, path):
        handle = handles.handle_on(path, None, create=False)
        shutil.rmtree(path)
        with pytest.raises(NotALogError, match="There is no longer a log at"), handles.shared_log(handle):
            pass
        assert not os.path.exists(path)

    @pytest.mark.parametrize("error", [StorageError("the disk is gone"), OSError(5, "an error")], ids=type)
    def test_a_log_that_cannot_be_closed_is_let_go(self, path, monkeypatch, error):
        def fail(self):
            real(self)
            raise error

        with self.shared(path) as log:
            real = type(log).close
            monkeypatch.setattr(type(log), "close", fail)
        handles.close_all()
        assert handles._kept == {}


class TestHints:
    def test_a_hint_becomes_part_of_the_text_once(self):
        with pytest.raises(NotALogError) as caught, handles.hinted(), handles.hinted():
            raise NotALogError("no log", hint="make one")
        assert caught.value.__notes__ == ["make one"]
        assert "make one" in "".join(traceback.format_exception(caught.value))

    @pytest.mark.parametrize("error", [ValueError("no such option"), NotALogError("no log", hint="make one")], ids=type)
    def test_the_frames_below_are_left_out(self, error):
        def inner():
            raise error

        with pytest.raises(type(error)) as caught, handles.hinted():
            inner()
        assert "inner" not in [frame.name for frame in traceback.extract_tb(caught.value.__traceback__)]

    @pytest.mark.parametrize("kind", [TypeError, KeyError, UnicodeError])
    def test_an_error_of_ours_keeps_its_frames(self, kind):
        def inner():
            raise kind("a bug")

        with pytest.raises(kind) as caught, handles.hinted():
            inner()
        assert traceback.extract_tb(caught.value.__traceback__)[-1].name == "inner"


def test_handles_are_closed_when_they_are_idle(log, monkeypatch):
    limit(monkeypatch, limits, idle_seconds=0.05)
    handles.close_all()
    job(log).run(table(5))
    waited = threading.Event()
    for _ in range(100):
        if not handles._kept:
            break
        waited.wait(0.05)
    assert handles._kept == {}
    job(log).run(table(5))
    assert len(numbers(log.topic("a"))) == 10
    assert os.path.exists(log.location)
