"""The lag of each group, by the topic that it reads."""

from __future__ import annotations

from types import SimpleNamespace

import tailrace
from tailrace.cli.invocation import Invocation
from tailrace.cli.lags import lags_by_topic
from tailrace.errors import VersionError


def test_lags_are_summed_over_partitions(tmp_path):
    with tailrace.open(tmp_path / "log") as log:
        for index in range(2):
            log.topic("orders", partitions=2).extend(["x"] * (3 + index), partition=index)
        log.topic("clicks").append("x")
        for group, topics in (("billing", ["orders", "clicks"]), ("audit", ["clicks"])):
            with log.consumer(topics, group, start="earliest") as consumer:
                consumer.poll(1, timeout=1)
                consumer.commit()
        found = lags_by_topic(Invocation(), log)
    lags = {topic: {each["name"]: each["lag_records"] for each in rows} for topic, rows in found.items()}
    assert lags["clicks"]["audit"] == 0
    assert lags["orders"]["billing"] + lags["clicks"]["billing"] == 7
    assert set(lags) == {"orders", "clicks"}
    assert all(set(each) == {"name", "lag_records", "lag_seconds"} for rows in found.values() for each in rows)


def test_groups_that_cannot_be_read_do_not_hide_the_topics(capsys):
    def groups():
        raise VersionError("It is newer.")

    assert lags_by_topic(Invocation(), SimpleNamespace(groups=groups)) == {}
    assert capsys.readouterr().err == "The groups are not shown: It is newer.\n"
