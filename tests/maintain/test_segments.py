"""Inventory: what is known of segments between two rounds, so that another round reads no file."""

from __future__ import annotations

from tests.vacuuming import Clock, clock, fill, log, tune

__all__ = ["clock", "log", "tune"]


def read(log, group: str, count: int) -> None:
    with log.consumer("orders", group=group, commit="manual") as consumer:
        assert len(consumer.poll(count)) == count
        consumer.commit()


def test_a_round_without_limits_looks_at_no_file(log, monkeypatch):
    from tailrace.maintain import vacuum

    for number in range(50):
        log.topic(f"t{number}").append("x")
    assert not vacuum.is_wanted(log.engine)
    touched = []
    with monkeypatch.context() as patch:
        for name in ("list_directory", "stat", "open", "read"):
            patch.setattr(Clock, name, lambda *_, name=name, **__: touched.append(name))
        assert not vacuum.is_wanted(log.engine)
    assert touched == []


def test_a_round_with_nothing_due_reads_no_file(log, monkeypatch):
    from tailrace.maintain import vacuum

    topic = log.topic("orders", segment_bytes=4096, retain="1h", retain_bytes="1GiB")
    fill(topic, 10)
    for _ in vacuum.steps(log.engine):
        pass
    touched = []
    with monkeypatch.context() as patch:
        for name in ("list_directory", "open", "read"):
            patch.setattr(Clock, name, lambda *_, name=name, **__: touched.append(name))
        for _ in vacuum.steps(log.engine):
            pass
    assert touched == []
