"""The table of the README: where it goes, and what it says."""

from __future__ import annotations

from tests.powercut.campaign import Row
from tests.powercut.report import BEGIN, END, block, write_block


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


def test_rows_of_two_passes_are_one():
    first = Row(
        "a", "A 1", "default", "ext4", states=3, acknowledged=9, survived=9, worst_acknowledged=5, worst_survived=5
    )
    second = first._replace(states=4, survived=7, losing=1, worst_acknowledged=4, worst_survived=2, faults=("lost",))
    both = first.merged(second)
    assert (both.states, both.acknowledged, both.survived, both.losing) == (7, 18, 16, 1)
    assert (both.worst_acknowledged, both.worst_survived) == (4, 2)
    assert both.faults == ("lost",)
