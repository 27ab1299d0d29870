"""CSV rows, whole and broken, in batches."""

from __future__ import annotations

import io

import pytest

from tailrace.cli import limits
from tailrace.cli.ending import CommandError
from tailrace.cli.input import BadLine, InputRecord
from tailrace.cli.rows import read_rows
from tests.tuning import limit


def rows(data: bytes, key_field=None, **options):
    batches = list(read_rows(io.BytesIO(data), key_field, **options))
    return [entry for batch in batches for entry in batch.entries], [bad for batch in batches for bad in batch.bad]


def test_rows_become_objects():
    entries, bad = rows('\ufeffid,name\n1,"a ""b"" c"\n\n2,"two\nlines"\n'.encode(), "id")
    assert entries == [
        InputRecord(b'{"id":"1","name":"a \\"b\\" c"}', b"1"),
        InputRecord(b'{"id":"2","name":"two\\nlines"}', b"2"),
    ]
    assert bad == []


def test_bad_rows_are_named_by_their_first_line():
    entries, bad = rows(b'a,b\n1,2\n3\n"x\ny",5\n6,7,8\n\xff,1\n9,9\n', lenient=True)
    assert [entry.value for entry in entries] == [b'{"a":"1","b":"2"}', b'{"a":"x\\ny","b":"5"}', b'{"a":"9","b":"9"}']
    assert bad == [
        BadLine(3, "it has 1 column, not 2"),
        BadLine(6, "it has 3 columns, not 2"),
        BadLine(7, "it is not UTF-8"),
    ]


def test_a_quote_that_is_not_closed_is_told_with_what_it_took():
    entries, bad = rows(b'a,b\n1,2\n"3,4\n' + b"5,6\n" * 997, lenient=True)
    assert [entry.value for entry in entries] == [b'{"a":"1","b":"2"}']
    assert bad == [BadLine(3, "a quote opened in line 3 is not closed: lines 3 to 1000 were not imported", 998)]
    _, bad = rows(b'a,b\n1,"2\n', lenient=True)
    assert bad == [BadLine(2, "a quote opened in line 2 is not closed")]
    entries, bad = rows(b'a,b\n"1,2\n3,4\n5,"6"\n7,8\n', lenient=True)
    assert [entry.value for entry in entries] == [b'{"a":"7","b":"8"}']
    assert bad == [BadLine(2, "a quote opened in line 2 is not closed: lines 2 to 4 were not imported", 3)]
    _, bad = rows(b'a,b\n"1,2\n3",4,5\n', lenient=True)
    assert bad == [BadLine(2, "it has 3 columns, not 2: lines 2 to 3 were not imported", 2)]


def test_a_stray_quote_gathers_no_more_than_a_row_may_have(monkeypatch):
    limit(monkeypatch, limits, row_bytes_max=1_000)
    entries, bad = rows(b'a,b\n"1,2\n' + b"3,4\n" * 1_000, lenient=True)
    (stray,) = bad
    assert stray.line == 2
    assert len(entries) + stray.lines == 1_001
    assert stray.lines < 300


def test_a_csv_whose_names_cannot_be_read_is_refused():
    with pytest.raises(CommandError, match="no names"):
        rows(b'"a,b\n1,2\n')


def test_a_csv_can_be_entered_in_the_middle():
    entries, _ = rows(b"a\n1\n2\n3\n", first_line=3)
    assert [entry.value for entry in entries] == [b'{"a":"2"}', b'{"a":"3"}']


@pytest.mark.parametrize(("data", "reason"), [(b"a,a\n", "twice"), (b"a,b\n", "no column 'k'")])
def test_a_csv_with_wrong_names_is_refused(data, reason):
    with pytest.raises(CommandError, match=reason):
        rows(data, "k")


def test_a_mark_of_the_byte_order_is_no_part_of_a_name():
    assert rows(b"\xef\xbb\xbf" + b'"id",n\n1,2\n', "id")[0] == [InputRecord(b'{"id":"1","n":"2"}', b"1")]


def test_what_the_topic_would_refuse_is_a_bad_row():
    _, bad = rows(b"a\n1\n", value_bytes_max=3, lenient=True)
    assert [each.line for each in bad] == [2]


def test_batches_are_bounded(monkeypatch):
    def sizes():
        return [len(batch.entries) for batch in read_rows(io.BytesIO(b"a\n" + b"12345\n" * 8), None)]

    limit(monkeypatch, limits, batch_entries_max=3)
    assert sizes() == [3, 3, 2]
    limit(monkeypatch, limits, batch_entries_max=100, batch_bytes_max=20)
    assert sizes() == [4, 4, 0]
