"""topic: what it lists, creates, shows, alters, trims, drops and refuses."""

from __future__ import annotations

import csv
import io
import json
import sys
from pathlib import Path

import click
import pytest

import tailrace
from tailrace.cli.commands import topic
from tailrace.disk.admin import Admin
from tailrace.errors import VersionError
from tailrace.settings import TopicSettings
from tailrace.types import SETTINGS, Settings


def test_ls_has_the_same_fields_in_every_format(shop):
    rows = json.loads(shop.ok("topic", "ls", "-o", "json"))
    assert [row["name"] for row in rows] == ["orders", "sensors.eu.t1"]
    assert rows[0]["records"] == 4
    assert rows[0]["partitions"] == 2
    assert rows[0]["settings"]["compress"] == "zstd"
    fields = [
        "name",
        "partitions",
        "records",
        "lost_records",
        "bytes",
        "rate",
        "oldest",
        "newest",
        "settings",
        "groups",
    ]
    assert list(rows[0]) == fields
    assert [json.loads(line)["name"] for line in shop.ok("topic", "ls", "-o", "jsonl").splitlines()] == [
        "orders",
        "sensors.eu.t1",
    ]
    assert next(csv.reader(io.StringIO(shop.ok("topic", "ls", "-o", "csv")))) == fields
    plain = [line.split("\t") for line in shop.ok("topic", "ls").splitlines()]
    assert [len(row) for row in plain] == [len(fields)] * 2
    assert plain[0][:3] == ["orders", "2", "4"]
    table = shop.ok("topic", "ls", "-o", "table").splitlines()
    shown = [name for name in fields if name not in ("groups", "lost_records")]
    assert table[0].split() == shown, "without groups or losses there is no column for them"
    assert len(table) == 3


def test_ls_takes_a_pattern(shop):
    assert shop.ok("topic", "ls", "sensors...").startswith("sensors.eu.t1\t")
    result = shop("topic", "ls", "nothing...")
    assert (result.exit_code, result.stdout) == (0, "")
    assert result.stderr == "No topic matches 'nothing...'.\n"
    assert json.loads(shop.ok("topic", "ls", "nothing", "-o", "json")) == []


@pytest.mark.parametrize(("form", "grouped"), [("table", False), ("json", False), ("table", True)])
def test_ls_shows_a_topic_of_a_newer_version_and_says_so(shop, form, grouped):
    if grouped:
        shop.ok("read", "orders", "--group", "billing")
    with tailrace.open(shop.path) as log, pytest.raises(VersionError):
        # It is recorded before the answer is refused.
        Admin(log.engine.store).alter(log.engine.refresh().by_name["orders"].id, {"tier": "s3"}, 2)
    result = shop("topic", "ls", "-o", form)
    assert result.exit_code == 0, result.stderr
    assert "orders" in result.stdout
    assert "sensors.eu.t1" in result.stdout
    *others, told = result.stderr.splitlines()
    assert told == (
        "orders has 1 setting that only a newer version of Tailrace knows (tier): this one neither reads nor writes it."
    )
    assert [note.partition(":")[0] for note in others] == ["The groups are not shown"] * grouped
    for command in (("create", "orders"), ("show", "orders")):
        refused = shop("topic", *command)
        assert (refused.exit_code, "setting 'tier', which only a newer version" in refused.stderr) == (1, True)


def test_a_table_has_the_settings_that_are_special(shop):
    rows = shop.ok("topic", "ls", "-o", "table").splitlines()
    assert rows[1].split()[-1] == "compress=zstd"
    assert rows[2].split()[-1] == "-"


def test_every_setting_is_an_option_of_create_and_alter():
    assert TopicSettings().to_user() == {name: info.default for name, info in SETTINGS.items()}
    assert [*SETTINGS] == [*Settings.__annotations__] == [*TopicSettings._fields]
    for command in (topic.create, topic.alter):
        options = {each.name: each for each in command.params if isinstance(each, click.Option)}
        for name, info in SETTINGS.items():
            assert options[name].opts == [f"--{name.replace('_', '-')}"]
            assert options[name].metavar == info.form
            assert "[default: " in options[name].help


SCHEMA = Path(__file__).with_name("schema.json")
OPTIONS = {
    "partitions": ("4", 4),
    "partitioner": ("murmur2", "murmur2"),
    "durable": ("50ms", "50ms"),
    "compress": ("zstd", "zstd"),
    "max_record_bytes": ("1MiB", 1 << 20),
    "segment_bytes": ("64MB", 64 * 10**6),
    "segment_age": ("1h", "1h"),
    "retain": ("7d", "7d"),
    "retain_bytes": ("10GB", 10**10),
    "keep_unread": ("billing,audit", ["audit", "billing"]),
    "ttl": ("1h", "1h"),
    "mutable": ("yes", True),
    "schema": (str(SCHEMA), json.loads(SCHEMA.read_text())),
    "dedupe_window": ("1h", "1h"),
}
# They are fixed when a topic is created.
FIXED = {"partitioner": "crc32", "mutable": False}


def test_settings_as_options(cli):
    assert [*OPTIONS] == [*SETTINGS]
    given = [word for name, (text, _) in OPTIONS.items() for word in (f"--{name.replace('_', '-')}", text)]
    wanted = {name: value for name, (_, value) in OPTIONS.items()}
    assert json.loads(cli.ok("topic", "create", "all", *given, "-o", "json"))["settings"] == wanted
    cli.ok("topic", "create", "plain")
    free = {name: text for name, (text, _) in OPTIONS.items() if name not in FIXED}
    changing = [word for name, text in free.items() for word in (f"--{name.replace('_', '-')}", text)]
    shown = json.loads(cli.ok("topic", "alter", "plain", *changing, "-o", "json"))["settings"]
    assert shown == {**wanted, **FIXED}


@pytest.mark.parametrize("name", [name for name in OPTIONS if name not in ("partitions", *FIXED)])
def test_none_takes_a_setting_back(cli, name):
    option = f"--{name.replace('_', '-')}"
    cli.ok("topic", "create", "orders", option, OPTIONS[name][0])
    result = cli("topic", "alter", "orders", option, "none", "-o", "json")
    shown = json.loads(result.stdout)
    assert shown["settings"][name] == SETTINGS[name].default
    assert result.stderr.startswith(f"{name}: ")
    assert " -> " in result.stderr
    cli.ok("topic", "alter", "orders", "--retain-bytes", "1MiB", "--retain", "1h")
    derived = json.loads(cli.ok("topic", "show", "orders", "-o", "json"))["derived"]
    assert derived == ["segment_bytes", "segment_age"], "what was taken back follows from limits again"


@pytest.mark.parametrize(
    "arguments",
    [(), ("--retain", "soon"), ("--retain", "1d", "retain=2d"), ("--partitions", "x"), ("--durable", "often"), ("7d",)],
)
def test_alter_refuses_what_is_no_setting(shop, arguments):
    before = shop.ok("topic", "show", "orders", "-o", "json")
    assert shop("topic", "alter", "orders", *arguments).exit_code == 2
    assert json.loads(shop.ok("topic", "show", "orders", "-o", "json"))["settings"] == json.loads(before)["settings"]


def test_what_follows_from_a_limit_is_said(shop):
    shop.ok("topic", "alter", "orders", "retain_bytes=1MiB", "retain=1h")
    shown = [" ".join(line.split()) for line in shop.ok("topic", "show", "orders", "-o", "table").splitlines()]
    assert "settings.segment_bytes 128KiB, derived from retain_bytes" in shown
    assert "settings.segment_age 450s, derived from retain" in shown
    fields = json.loads(shop.ok("topic", "show", "orders", "-o", "json"))
    assert (fields["settings"]["segment_bytes"], fields["settings"]["segment_age"]) == (128 << 10, "450s")
    assert fields["derived"] == ["segment_bytes", "segment_age"]
    assert "segment" not in shop.ok("topic", "ls", "-o", "table"), "of the settings, those that were given"
    shop.ok("topic", "alter", "orders", "segment_bytes=64KiB", "segment_age=1d")
    fields = json.loads(shop.ok("topic", "show", "orders", "-o", "json"))
    assert (fields["settings"]["segment_bytes"], fields["settings"]["segment_age"]) == (64 << 10, "1d")
    assert fields["derived"] == []
    result = shop("topic", "alter", "orders", "segment_bytes=default", "segment_age=default", "-o", "json")
    assert json.loads(result.stdout)["derived"] == ["segment_bytes", "segment_age"]
    assert "segment_bytes: 65536 -> 131072" in result.stderr


@pytest.mark.parametrize(
    "arguments",
    [
        ("topic", "create"), ("topic", "ls"), ("topic", "show"), ("topic", "drop", "--yes"), ("append",), ("read",),
        ("tail",), ("verify",), ("group", "reset", "g", "--to", "latest", "--topic"), ("read", "--group", "g"),
    ],
)  # fmt: skip
def test_a_star_inside_of_a_level_is_usage(shop, arguments):
    shop.ok("read", "orders", "--group", "g")
    result = shop(*arguments, "sensor_*", *(["x"] if arguments == ("append",) else []))
    assert result.exit_code == 2, result.output
    assert "* stands for a whole level, as in 'sensors.*'" in result.stderr
    assert len(shop.ok("topic", "ls").splitlines()) == 2


def test_no_limit_is_named_as_it_is_written_at_a_shell(cli):
    result = cli("topic", "create", "orders", "--retain-bytes", "1")
    assert (result.exit_code, result.stderr.splitlines()[0]) == (
        2, "tailrace: retain_bytes=1 is too small: write 4KiB or more, or none for no limit.",
    )  # fmt: skip


def test_create_refuses_what_exists(shop):
    result = shop("topic", "create", "orders")
    assert result.exit_code == 4
    assert json.loads(shop("topic", "create", "orders", "-o", "json").stderr)["error"]["code"] == "topic-exists"


@pytest.mark.parametrize("text", ["-1", "1e3", "two", "", "2.5"])
def test_partitions_that_are_no_number(cli, text):
    result = cli("topic", "create", "orders", "--partitions", text)
    assert result.exit_code == 2
    assert f"partitions={text} is not a number of partitions: write an integer from 1 on." in result.stderr


@pytest.mark.parametrize("setting", ["compres=zstd", "compress=fast", "partitions=0", "partitions=x", "partitions"])
def test_wrong_settings_are_usage(shop, setting):
    assert shop("topic", "create", "new", "--set", setting).exit_code == 2
    assert shop("topic", "alter", "orders", setting).exit_code == 2
    assert len(shop.ok("topic", "ls").splitlines()) == 2


@pytest.mark.parametrize("name", ["", "a..b", "__own", "a.*", "x" * 300])
def test_wrong_names_are_usage(shop, name):
    assert shop("topic", "create", name).exit_code == 2


def test_show(shop):
    fields = json.loads(shop.ok("topic", "show", "orders", "-o", "json"))
    assert fields["offsets"] == [
        {"partition": 0, "earliest": 0, "latest": 3, "durable": 3},
        {"partition": 1, "earliest": 0, "latest": 1, "durable": 1},
    ]
    assert "compress" in shop.ok("topic", "show", "orders", "-o", "table")
    assert "offsets.1.latest\t1\n" in shop.ok("topic", "show", "orders")
    assert shop("topic", "show", "nothing").exit_code == 3


def test_alter(shop):
    result = shop("topic", "alter", "orders", "partitions=4", "durable=50ms", "segment_bytes=1MiB", "-o", "json")
    assert result.exit_code == 0, result.stderr
    fields = json.loads(result.stdout)
    assert fields["partitions"] == 4
    assert fields["settings"]["durable"] == "50ms"
    assert fields["settings"]["segment_bytes"] == 1 << 20
    assert "partitions: 2 -> 4" in result.stderr
    assert json.loads(shop.ok("topic", "alter", "orders", "durable=default", "-ojson"))["settings"]["durable"] is None
    assert shop("topic", "alter", "orders", "partitions=1").exit_code == 4
    assert shop("topic", "alter", "nothing", "partitions=1").exit_code == 3


def test_trim(shop):
    dry = shop("topic", "trim", "orders", "--before", "0:2,1:0", "--dry-run", "-o", "json")
    assert dry.exit_code == 0, dry.stderr
    assert [(row["partition"], row["before"], row["records"]) for row in json.loads(dry.stdout)] == [
        (0, 2, 2),
        (1, 0, 0),
    ]
    assert "Would trim 2 records" in dry.stderr
    assert shop.ok("read", "orders", "--count") == "4\n"
    refused = shop("topic", "trim", "orders", "--before", "latest")
    assert refused.exit_code == 8
    assert "4 records" in refused.stderr
    assert "--yes" in refused.stderr
    assert shop.ok("read", "orders", "--count") == "4\n"
    shop.ok("topic", "trim", "orders", "--before", "2", "-p", "0", "--yes")
    assert shop.ok("read", "orders", "--count") == "2\n"
    shop.ok("topic", "trim", "orders", "--before", "latest", "-y")
    assert shop.ok("read", "orders", "--count") == "0\n"


def test_delete(shop):
    refused = shop("topic", "delete", "orders", "0", "-y")
    assert refused.exit_code == 4
    assert "not mutable" in refused.stderr
    shop.ok("topic", "create", "notes", "--mutable", "yes")
    for number in range(4):
        shop.ok("append", "notes", str(number))
    dry = shop("topic", "delete", "notes", "0", "2", "--dry-run", "-o", "json")
    assert json.loads(dry.stdout) == {"topic": "notes", "partition": 0, "records": 2}
    assert "Would delete 2 records" in dry.stderr
    assert shop("topic", "delete", "notes", "0", "2").exit_code == 8
    assert shop.ok("read", "notes", "--count") == "4\n"
    assert json.loads(shop.ok("topic", "delete", "notes", "0", "2", "-p", "0", "-y", "-o", "json"))["records"] == 2
    assert json.loads(shop.ok("topic", "delete", "notes", "2", "3", "-y", "-o", "json"))["records"] == 1
    assert shop.ok("read", "notes", "--count") == "1\n"
    assert shop("topic", "delete", "notes", "9", "-y").exit_code == 3


def test_trim_refuses_a_place_that_may_be_the_end(shop):
    refused = shop("topic", "trim", "orders", "--before", "active", "--yes")
    assert refused.exit_code == 2
    assert "--before active would remove every record" in refused.stderr


def test_trim_by_time(shop):
    assert json.loads(shop.ok("topic", "trim", "orders", "--before", "-1h", "-y", "-o", "json"))[0]["records"] == 0
    assert shop.ok("read", "orders", "--count") == "4\n"


@pytest.mark.parametrize("arguments", [("--before", "2"), ("--before", "9:1"), ("--before", "1", "-p", "9"), ()])
def test_trim_needs_a_place_it_can_find(shop, arguments):
    assert shop("topic", "trim", "orders", "--yes", *arguments).exit_code == 2
    assert shop.ok("read", "orders", "--count") == "4\n"


def test_drop(shop):
    assert "Would drop" in shop("topic", "drop", "orders", "--dry-run").stderr
    refused = shop("topic", "drop", "orders")
    assert refused.exit_code == 8
    assert "4 records" in refused.stderr
    assert shop("read", "orders").exit_code == 0
    shop.ok("topic", "drop", "orders", "--yes")
    assert shop("read", "orders").exit_code == 3
    assert shop("topic", "drop", "orders", "--yes").exit_code == 3


def test_erase_a_key(cli):
    cli.ok("topic", "create", "customers", "--mutable", "yes")
    cli.ok("append", "customers", "a", "b", "-k", "customer-42")
    cli.ok("append", "customers", "c", "-k", "customer-43")
    asked = cli("topic", "erase", "customers", "customer-42")
    assert (asked.exit_code, "erase every record of the key customer-42" in asked.stderr) == (8, True)
    result = cli("topic", "erase", "customers", "customer-42", "-y", "-o", "json")
    assert result.exit_code == 0, result.stderr
    told = json.loads(result.stdout)
    assert (told["records"], told["offsets"]) == (2, {"0": [0, 1]})
    assert "backups" in result.stderr
    assert cli.ok("read", "customers") == "c\n"
    assert cli("topic", "erase", "customers", "unknown", "-y").exit_code == 0
    cli.ok("append", "plain", "x", "-k", "k")
    refused = cli("topic", "erase", "plain", "k", "-y")
    assert (refused.exit_code, "not mutable" in refused.stderr) == (4, True)


def test_show_tells_what_is_hidden_and_what_a_vacuum_would_free(cli):
    cli.ok("topic", "create", "sessions", "--ttl", "1h", "--mutable", "yes")
    cli.ok("append", "sessions", *["x" * 500] * 50)
    told = json.loads(cli.ok("topic", "show", "sessions", "-o", "json"))
    assert [told[name] for name in ("records", "hidden_records", "dead_bytes", "vacuum_frees_bytes")] == [50, 0, 0, 0]
    assert "hidden" not in cli.ok("topic", "show", "sessions", "-o", "table")
    cli.ok("append", "sessions", *["y" * 500] * 20, "--ttl", "1ms")
    cli.ok("topic", "delete", "sessions", *map(str, range(10)), "-y")
    told = json.loads(cli.ok("topic", "show", "sessions", "-o", "json"))
    assert (told["records"], told["hidden_records"]) == (70, 30)
    assert 30 * 500 <= told["dead_bytes"] == told["vacuum_frees_bytes"] < 30 * 700
    assert "hidden records" in cli.ok("topic", "show", "sessions", "-o", "table").replace("_", " ")
    cli.ok("vacuum")
    told = json.loads(cli.ok("topic", "show", "sessions", "-o", "json"))
    assert [told[name] for name in ("records", "hidden_records", "dead_bytes")] == [40, 0, 0]


def test_a_schema_from_a_file(cli, tmp_path):
    shown = cli.ok("topic", "create", "orders", "--schema", str(SCHEMA), "-o", "table")
    assert "settings.schema" in shown
    assert '{"properties":{"id":{"type":"integer"}},"required":["id"],"type":"object"}' in shown
    assert "schema_version" in shown
    fields = json.loads(cli.ok("topic", "show", "orders", "-o", "json"))
    assert (fields["settings"]["schema"], fields["schema_version"]) == (json.loads(SCHEMA.read_text()), 1)
    assert cli.ok("append", "orders", '{"id":1}') == "orders[0]@0  (1 record)\n"
    assert "schema=JSON of 74 bytes" in cli.ok("topic", "ls", "-o", "table")
    other = tmp_path / "other.json"
    other.write_bytes(b'\xef\xbb\xbf{"type":"string"}')
    result = cli("topic", "alter", "orders", f"schema={other}", "-o", "json")
    assert result.stderr == "schema: JSON of 74 bytes -> JSON of 17 bytes\n"
    assert json.loads(result.stdout)["schema_version"] == 2
    result = cli("topic", "alter", "orders", "--schema", "none", "-o", "json")
    assert result.stderr == "schema: JSON of 17 bytes -> None\n"
    assert json.loads(result.stdout)["settings"]["schema"] is None
    assert "schema_version" not in json.loads(result.stdout)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (None, "cannot be read: No such file or directory."),
        (b"{", "is no JSON: Expecting property name enclosed in double quotes in line 1."),
        (b"\xff", "is no JSON: it is not UTF-8."),
        (b"", "is no JSON: Expecting value in line 1."),
        (b"[" * 100_000, "is no JSON: "),
        (b'"text"', "is no JSON Schema: its JSON is no object."),
        (b'{"type":"strin"}', "schema is no JSON Schema: type: "),
        (
            b'{"$ref":"https://example.invalid/a"}',
            "schema refers to 'https://example.invalid/a', which is outside of it",
        ),
        (
            b'{"$schema":"http://json-schema.org/draft-07/schema#"}',
            "schema is written in 'http://json-schema.org/draft-07",
        ),
        (b'{"const":NaN}', "schema cannot be stored as JSON"),
        (b'{"title":"%s"}' % (b"x" * 70_000), "schema takes 70,012 bytes as JSON; the maximum is 65,536."),
    ],
)
def test_a_file_that_holds_no_schema(cli, tmp_path, text, said):
    file = tmp_path / "schema.json"
    if text is not None:
        file.write_bytes(text)
    result = cli("topic", "create", "orders", "--schema", str(file))
    assert (result.exit_code, result.stdout) == (2, "")
    assert said in result.stderr
    cli.ok("topic", "create", "plain")
    assert cli("topic", "alter", "plain", "--schema", str(file)).exit_code == 2
    assert json.loads(cli.ok("topic", "show", "plain", "-o", "json"))["settings"]["schema"] is None
    assert "orders" not in cli.ok("topic", "ls")


def test_a_schema_without_its_package(cli, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "jsonschema_rs", None)
    file = tmp_path / "schema.json"
    file.write_text('{"title":"not compiled before"}')
    result = cli("topic", "create", "orders", "--set", f"schema={file}")
    assert (result.exit_code, result.stdout) == (1, "")
    assert 'pip install "tailrace[schema]"' in result.stderr
    assert "orders" not in cli.ok("topic", "ls")
