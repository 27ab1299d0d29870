"""The table of the README: where it goes, and what it says."""

from __future__ import annotations

from tests.rigs.powercut.campaign import Row
from tests.rigs.powercut.record import State
from tests.rigs.powercut.report import BEGIN, END, block, write_block
from tests.rigs.powercut.rig import ROOT, Checked
from tests.rigs.powercut.systems import Verdict, all_systems


def test_the_table_goes_between_its_marks(tmp_path):
    readme = tmp_path / "README.md"
    readme.write_text(f"before\n{BEGIN}\nold table\n{END}\nafter\n", encoding="utf-8")
    rows = [
        Row("a", "A 1", "default", "ext4", states=7, worst_acknowledged=5, worst_survived=5),
        Row("b", "B 2", "told", "ext4", states=7, worst_acknowledged=5, worst_survived=3, losing=2, damaged=1),
    ]
    write_block(readme, block(rows, ["ext4"], 1))
    text = readme.read_text(encoding="utf-8")
    assert text.startswith("before\n")
    assert text.endswith("\nafter\n")
    assert "old table" not in text
    assert "| A 1 | default | 5 of 5 | 0 of 7 |" in text
    assert "| B 2 | told | **3 of 5** | 2 of 7; unreadable after 1 |" in text


def test_the_readme_has_one_row_for_each_system_and_the_page_has_every_setting():
    rows = [
        Row("a", "A 1", "default", "ext4", states=7, worst_acknowledged=5, worst_survived=5),
        Row("a", "A 1", "default", "xfs", states=7, worst_acknowledged=5, worst_survived=5),
        Row("a-full", "A 1", "told FULL", "ext4", states=7, worst_acknowledged=6, worst_survived=6),
    ]
    short, whole = (block(rows, ["ext4", "xfs"], 1, short=each) for each in (True, False))
    assert "| A 1 | default | 5 of 5 | 0 of 7 | 5 of 5 | 0 of 7 |" in short
    assert "told FULL" not in short
    assert "| A 1 | told FULL | 6 of 6 | 0 of 7 | not run |  |" in whole
    # The cuts of all settings are counted in both.
    assert "21 cuts" in short
    assert "21 cuts" in whole
    for page in ("README.md", "docs/durability.md"):
        assert (ROOT / page).read_text("utf-8").count(BEGIN) == 1


def test_rows_of_two_passes_are_one():
    first = Row(
        "a", "A 1", "default", "ext4", states=3, acknowledged=9, survived=9, worst_acknowledged=5, worst_survived=5
    )
    second = first._replace(states=4, survived=7, losing=1, worst_acknowledged=4, worst_survived=2, faults=("lost",))
    both = first.merged(second)
    assert (both.states, both.acknowledged, both.survived, both.losing) == (7, 18, 16, 1)
    assert (both.worst_acknowledged, both.worst_survived) == (4, 2)
    assert both.faults == ("lost",)


def test_a_file_system_that_is_gone_is_counted_apart_and_fails_a_run_only_when_it_is_often_gone():
    system = next(system for system in all_systems().values() if system.name == "Tailrace")
    state = State(3, 4, 2, "torn", ())
    row = Row(system.key, "A 1", "default", "xfs")
    for _ in range(600):
        row = row.with_checked(Checked(state, Verdict(5, 5)), "")
    row = row.with_checked(Checked(state, Verdict(0, 0), unmounted="xfs itself did not mount"), "second cut 0, ")
    assert (row.states, row.unmounted, row.acknowledged) == (600, 1, 3000)
    assert "second cut 0, " in row.unmounted_why
    assert row.merged(row).unmounted == 2
    assert not row.broken(system)
    assert "After 1 more the file system itself could not be mounted again." in block([row], ["xfs"], 1)
    for _ in range(2):
        row = row.with_checked(Checked(state, Verdict(0, 0), unmounted="xfs itself did not mount"), "")
    assert any("3 states could not be mounted" in text for text in row.broken(system))
