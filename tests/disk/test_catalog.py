"""What a newer version wrote into the catalog is a VersionError, and never taken for damage."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

import tailrace
from tailrace import bulk
from tailrace.disk.catalog import Catalog, encode
from tailrace.errors import CorruptionError, VersionError


@pytest.fixture
def path(tmp_path):
    with tailrace.open(tmp_path / "log") as log:
        log.topic("orders").append("one")
        log.topic("others").append("two")
    return tmp_path / "log"


def record(log: tailrace.Log, *records: dict[str, object]) -> None:
    """Append to the catalog what a newer version would."""
    log.engine.change(lambda admin: admin._record(*records))


def add_settings(path, **settings: object) -> None:
    with tailrace.open(path) as log:
        record(log, {"op": "alter", "id": log.engine.entry("orders").id, "settings": settings, "slots": []})


def consume(log: tailrace.Log) -> None:
    with log.consumer("orders", "group", stop="now") as consumer:
        list(consumer)


def test_an_unknown_record_ends_the_opening(path):
    with tailrace.open(path) as log, pytest.raises(VersionError, match="'rename'"):
        record(log, {"op": "rename", "id": 1, "name": "sales"})
    for mode in ("a", "r"):
        with pytest.raises(VersionError, match="The record 2 of the catalog is 'rename'") as caught:
            tailrace.open(path, mode)
        assert "upgrade" in caught.value.hint
    (path / "tails").unlink()
    for mode in ("a", "r"):
        with pytest.raises(VersionError, match="'rename'"):
            tailrace.open(path, mode)
    with pytest.raises(VersionError, match="'rename'"):
        tailrace.repair(path, dry_run=True)
    with pytest.raises(VersionError, match="'rename'"):
        tailrace.repair(path)


def test_what_is_no_record_is_damage():
    for value in (b"{}", b'{"op": 3}', b'{"op": null}', b"[]", b"x"):
        with pytest.raises(CorruptionError):
            Catalog().apply(0, value)
    with pytest.raises(VersionError):
        Catalog().apply(0, encode({"op": "create2"}))


def uses_of(log: tailrace.Log) -> list[Callable[[], object]]:
    orders = log.topic("orders")
    return [
        lambda: orders.append("x"),
        lambda: orders.extend(["x"]),
        lambda: list(orders.read()),
        lambda: orders.get(0),
        lambda: orders.trim(1),
        lambda: orders.alter(compress="zstd"),
        lambda: orders.settings,
        orders.drop,
        lambda: list(log.topic("...").read()),
        lambda: bulk.plan(log, "orders"),
        lambda: consume(log),
    ]


def test_a_topic_with_an_unknown_setting_is_not_used_and_others_are(path, tmp_path):
    add_settings(path, tier="s3")
    for recovered in (False, True):
        if recovered:
            (path / "tails").unlink()
        with tailrace.open(path) as log:
            for use in uses_of(log):
                with pytest.raises(VersionError, match="'tier'"):
                    use()
            with pytest.raises(VersionError, match="'tier'"), log.transaction() as tx:
                tx.append("orders", "x")
            log.topic("others").append("three")
            assert log.topic("others").read().count() == 2 + recovered
            assert log.verify().ok
            log.vacuum()
            log.backup(tmp_path / f"backup-{recovered}")
            assert log.stats().topics
    with tailrace.open(path, "r") as log:
        assert log.topic("others").read().count() == 3
        with pytest.raises(VersionError, match="'tier'"):
            list(log.topic("orders").read())


def test_retention_leaves_a_topic_with_an_unknown_setting_alone(path):
    with tailrace.open(path) as log:
        log.topic("orders").alter(segment_bytes=4096)
        for _ in range(50):
            log.topic("orders").append("x" * 1000, durable=False)
    add_settings(path, hold=True, retain_bytes=4096)
    with tailrace.open(path) as log:
        log.vacuum()
        assert log.engine.store.partition(log.engine.entry("orders").slots[0]).start == 0
    add_settings(path, hold=None)
    with tailrace.open(path) as log:
        log.vacuum()
        assert log.topic("orders").offsets()[0].earliest > 0


def test_only_settings_that_differ_from_the_defaults_are_stored(path):
    engine = None
    with tailrace.open(path) as log:
        log.topic("plain", partitions=2)
        log.topic("plain").append("x")
        log.topic("packed", compress="zstd", retain="7d", max_record_bytes=1000).append("x")
        engine = log.engine
        assert engine.entry("plain").settings == {}
        assert engine.entry("packed").settings == {"compress": "zstd", "retain": 604800.0, "max_record_bytes": 1000}
        log.topic("packed").alter(compress="none", retain="forever", durable=False)
        assert engine.entry("packed").settings == {"max_record_bytes": 1000, "durable": False}
        log.topic("packed").alter(durable=None, max_record_bytes="64MiB")
        settings = log.topic("packed").settings
        assert settings["retain"] == "forever"
        snapshot = json.loads(engine.store.catalog.snapshot())
    with tailrace.open(path) as log:
        assert log.topic("packed").settings == settings
        assert json.loads(log.engine.store.catalog.snapshot()) == snapshot


@pytest.mark.parametrize("slots", [[1], [3, 3]])
def test_a_slot_that_is_given_to_two_partitions_is_damage(slots):
    """Two partitions in one slot would write over each other."""
    catalog = Catalog()
    catalog.apply(0, encode({"op": "create", "name": "orders", "settings": {}, "slots": [1, 2]}))
    with pytest.raises(CorruptionError, match="cannot be understood"):
        catalog.apply(1, encode({"op": "create", "name": "others", "settings": {}, "slots": slots}))
    assert list(catalog.by_name) == ["orders"]
    catalog.apply(1, encode({"op": "drop", "id": 1}))
    catalog.apply(2, encode({"op": "create", "name": "others", "settings": {}, "slots": [1]}))
    assert catalog.by_slot == {1: (3, 0)}
