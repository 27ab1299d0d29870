"""valueFormat=json beside from_json of a real Spark: the same for odd values, except for what the document lists."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

pytest.importorskip("pyspark")

import tailrace

DOCUMENT = Path(__file__).parents[3] / "docs" / "spark.md"
# Values that are the same in both, by the schema they are read with.
SAME = {
    "a string": [
        '{"a": "x"}', "{'a': 'x'}", """{"a": 'x'}""", """{'a': "it's"}""", r"{'a': 'it\'s'}", r'{"a": "it\'s"}',
        """{"a": 'say "hi"'}""", "{a: 1}", '{"a": 01}', '{"a": +1}', '{"a": .5}', '[{"a":"x"}]', "[]", "null", "1",
        '{"a":"x",}', '{"a":"1","a":"2"}', '{"a": {"b": 1}}', """{"a":{'b':'c'}}""", '{"a": [1, 2.50, null]}',
        '{"a": 1.0}', '{"a": 1e3}', '{"a": true}', '{"a": 100000000000000000000000}', '{"a":"tab\there"}',
        r'{"a": "\u00e9"}', '{"A": "x"}', r'{"a": "\q"}', "\u00a0{}", '// c\n{"a":1}', '  {"a": "x"}\n', '{"a": "x"',
    ],
    "a timestamp": [
        '{"a": 1763200000}', '{"a": 1763200000000}', '{"a": -1}', '{"a": 1763200000.5}', '{"a": "1763200000"}',
        '{"a": "2026-11-15T10:00:00Z"}', '{"a": "2026-11-15T10:00:00+02:00"}', '{"a": "2026-11-15 10:00:00"}',
        '{"a": "2026-11-15"}', '{"a": "2026-11-15T10:00"}', '{"a": "2026-11-15T10:00:00.123456789Z"}', '{"a": ""}',
        '{"a": true}', '{"a": "2026-11-15T10"}', '{"a": "2026-11"}', '{"a": "2026"}', '{"a": "2026-1-5"}',
        '{"a": " 2026-11-15T10:00:00Z "}', '{"a": 9999999999999999999999}', '{"a": "2026-11-15T24:00:00Z"}',
        '{"a": "20261115T100000Z"}', '{"a": "2026-W46-7"}', "{'a': '2026-11-15T10:00:00Z'}", '{"a": "2026-02-30"}',
    ],
    "a timestamp_ntz": ['{"a": 1763200000}', '{"a": "2026-11-15T10:00:00"}', '{"a": "2026-11-15"}'],
    "a date": [
        '{"a": "2026-11-15"}', '{"a": 20000}', '{"a": "2026-11-15T10:00:00Z"}', '{"a": "2026-1-5"}',
        '{"a": "2026-11"}', '{"a": "2026"}', '{"a": ""}',
    ],
    "a int": [
        '{"a": 1}', '{"a": 1.0}', '{"a": "1"}', '{"a": ""}', '{"a": true}', '{"a": 3000000000}', '{"a": 1e2}',
        '{"a": null}', "{'a': 7}", '{"a": -0}',
    ],
    "a bigint": ['{"a": 9223372036854775807}', '{"a": 9223372036854775808}', '{"a": "5"}'],
    "a double": [
        '{"a": 1}', '{"a": "1.5"}', '{"a": "NaN"}', '{"a": NaN}', '{"a": -Infinity}', '{"a": "-INF"}',
        '{"a": "+INF"}', '{"a": ""}', '{"a": true}', '{"a": 1e400}',
    ],
    "a boolean": ['{"a": true}', '{"a": "true"}', '{"a": 1}'],
    "a decimal(5,2)": ['{"a": 1.005}', '{"a": "1.005"}', '{"a": 123456}', '{"a": "1,234.5"}', '{"a": ""}'],
    "a binary": ['{"a": "aGk="}', '{"a": "hi!"}', '{"a": "aGk"}'],
    "a struct<b:int>": ['{"a": {"b": 1}}', """{"a": {'b': 1}}""", '{"a": "x"}', '{"a": [1]}', '{"a": {}}'],
    "a array<int>": ['{"a": [1, null]}', '{"a": ["x"]}', '{"a": 1}', '{"a": [1,"x",3]}'],
    "a map<string,int>": ['{"a": {"x": 1}}', '{"a": {"x": "y"}}', '{"a": []}'],
    "a int, b int": ['{"a": 1, "b": "x"}', '{"a": "x", "b": 2}', '{"b": 3}', '{"a": 1, "b"'],
}  # fmt: skip
# What stands in the document: how Spark reads a value, and how the source does, as text; ! for one that is corrupt.
DIFFERENT = {
    ("a string", '{"a": "x"} more'): ("{x}", "{null}!"),
    ("a string", ""): ("{null}", "{null}!"),
    ("a string", '{"a": NaN}'): ('{"NaN"}', "{NaN}"),
    ("a double", '{"a": +INF}'): ("{Infinity}", "{null}!"),
    ("a timestamp", '{"a": 99999999999999999}'): ("{8319-09-05 12:48:39.689664}", "{null}!"),
    ("a timestamp", '{"a": "2026-11-15T10:00:00 UTC"}'): ("{2026-11-15 10:00:00}", "{null}!"),
    ("a date", '{"a": "20000"}'): ("{+20000-01-01}", "{null}!"),
    ("a timestamp_ntz", '{"a": "2026-11-15T10:00:00+02:00"}'): ("{null}!", "{2026-11-15 08:00:00}"),
    ("a struct<b:int>", '{"a": {"b": "x"}}'): ("{{null}}!", "{null}!"),
    ("a map<string,int>", '{"a": {"x": 1, "x": 2}}'): ("{{x -> 1, x -> 2}}", "{{x -> 2}}"),
}


@pytest.mark.timeout(600)
def test_the_same_as_from_json(spark, settings, tmp_path):
    settings({"spark.sql.session.timeZone": "UTC"})
    path = str(tmp_path / "log")
    with tailrace.open(path) as log:
        for number, (ddl, texts) in enumerate(SAME.items()):
            everything = [*texts, *(text for schema, text in DIFFERENT if schema == ddl)]
            log.topic(f"t{number}", partitions=1).extend(everything)
    found, different = {}, {}
    for number, ddl in enumerate(SAME):
        names = [part.split()[0] for part in re.split(r",\s+", ddl)]
        read = spark.read.format("tailrace").option("subscribe", f"t{number}")
        row = f"concat(cast(struct({', '.join(names)}) AS string), if(_corrupt_record IS NULL, '', '!'))"
        parsed = f"from_json(cast(value AS string), '{ddl}, _corrupt_record string')"
        theirs = read.load(path).selectExpr("offset", "cast(value AS string) AS text", f"{parsed} AS parsed")
        theirs = theirs.selectExpr("offset", "text", "parsed.*").selectExpr("offset", "text", f"{row} AS row")
        ours = read.option("valueFormat", "json").schema(f"{ddl}, _offset long, _corrupt_record string").load(path)
        mine = {each._offset: each.row for each in ours.selectExpr("_offset", f"{row} AS row").collect()}
        for each in theirs.collect():
            found[ddl, each.text] = each.row
            if mine[each.offset] != each.row:
                different[ddl, each.text] = (each.row, mine[each.offset])
    assert len(found) == sum(map(len, SAME.values())) + len(DIFFERENT)
    assert different == DIFFERENT


def test_the_document_lists_what_differs():
    """A row of its table for each, with the value as an example."""
    text = DOCUMENT.read_text("utf-8")
    table = text[text.index("| value | column | `from_json` | here |") :].split("\n\n")[0]
    shown = {tuple(re.findall(r"`([^`]*)`", line)[:2]) for line in table.splitlines()[2:]}
    expected = {(text, ddl.split(maxsplit=1)[1]) for ddl, text in DIFFERENT if text}
    assert {row for row in shown if row and row[0].startswith("{")} == expected
    assert "an empty value" in table
