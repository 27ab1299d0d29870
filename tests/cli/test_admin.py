"""topic, namespace, stats, verify, completion, version: what they show, change and refuse."""

from __future__ import annotations

import csv
import io
import json

import click
import pytest

from tailrace.cli.commands import topic
from tailrace.settings import TopicSettings
from tailrace.types import SETTINGS, Settings


@pytest.fixture
def shop(cli):
    cli.ok("topic", "create", "orders", "--set", "partitions=2", "--set", "compress=zstd")
    cli.ok("append", "orders", "a", "b", "c", "--partition", "0")
    cli.ok("append", "orders", "d", "--partition", "1")
    cli.ok("append", "sensors.eu.t1", "20")
    return cli


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
}


def test_settings_as_options(cli):
    assert [*OPTIONS] == [*SETTINGS]
    given = [word for name, (text, _) in OPTIONS.items() for word in (f"--{name.replace('_', '-')}", text)]
    wanted = {name: value for name, (_, value) in OPTIONS.items()}
    assert json.loads(cli.ok("topic", "create", "all", *given, "-o", "json"))["settings"] == wanted
    cli.ok("topic", "create", "plain")
    fixed = ("--partitioner", "murmur2")
    changing = [word for word in given if word not in fixed]
    shown = json.loads(cli.ok("topic", "alter", "plain", *changing, "-o", "json"))["settings"]
    assert shown == {**wanted, "partitioner": "crc32"}


@pytest.mark.parametrize("name", [name for name in OPTIONS if name not in ("partitions", "partitioner")])
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


def test_namespaces(shop):
    shop.ok("-N", "tenant", "append", "orders", "x", "y")
    assert shop.ok("read", "orders", "-N", "tenant") == "x\ny\n"
    assert shop.ok("read", "orders", "--count") == "4\n"
    (row,) = json.loads(shop.ok("namespace", "ls", "-o", "json", "-N", "ignored"))
    assert row | {"bytes": 0} == {"name": "tenant", "topics": 1, "partitions": 1, "records": 2, "bytes": 0}
    refused = shop("namespace", "drop", "tenant")
    assert refused.exit_code == 8
    assert "1 topic and 2 records" in refused.stderr
    assert "Would drop" in shop("namespace", "drop", "tenant", "--dry-run").stderr
    assert shop("namespace", "drop", "other", "--yes").exit_code == 3
    shop.ok("namespace", "drop", "tenant", "--yes")
    assert shop.ok("namespace", "ls") == ""
    assert shop("namespace", "ls").stderr == "There are no namespaces.\n"


def test_a_typo_in_a_namespace_is_corrected(shop):
    shop.ok("-N", "tenant", "append", "orders", "x")
    for arguments in (("read", "orders", "-N", "tennant"), ("namespace", "drop", "tennant", "--yes")):
        result = shop(*arguments)
        assert result.exit_code == 3
        assert "did you mean 'tenant'?" in result.stderr
        assert shop.told("namespace ls\n") in result.stderr


def test_the_environment_names_log_and_namespace(shop, monkeypatch):
    from click.testing import CliRunner

    from tailrace.cli.app import root

    shop.ok("-N", "tenant", "append", "orders", "x")
    monkeypatch.setenv("TAILRACE_LOG", str(shop.path))
    monkeypatch.setenv("TAILRACE_NAMESPACE", "tenant")
    assert CliRunner().invoke(root, ["read", "orders"]).stdout == "x\n"
    assert CliRunner().invoke(root, ["read", "orders", "--count", "-N", ""]).stdout == "4\n"
    assert [row["name"] for row in json.loads(shop.ok("namespace", "ls", "-o", "json"))] == ["tenant"]


def test_stats(shop):
    fields = json.loads(shop.ok("stats", "-o", "json"))
    assert fields["topics"] == 2
    assert fields["records"] == 5
    assert {"p50", "p99"} <= set(fields["append_latency"])
    assert "records\t5\n" in shop.ok("stats")
    assert "append_latency.p99\t" in shop.ok("stats")
    picture = shop.ok("stats", "-o", "table").splitlines()
    assert [line.split()[0] for line in picture if not line.startswith(" ")] == ["log", "writing", "latency", "journal"]
    assert [line.split() for line in picture if "records  " in line] == [["records", "5"]]
    assert "namespaces" not in "".join(picture)
    shop.ok("append", "orders", "x", "-N", "tenant")
    assert json.loads(shop.ok("stats", "-o", "json"))["namespaces"] == 1
    assert "  namespaces  1, not included" in shop.ok("stats", "-o", "table").splitlines()


def test_stats_again_and_again(shop):
    lines = shop.ok("stats", "--watch", "--every", "0.05", "--limit", "3", "-o", "jsonl").splitlines()
    assert [json.loads(line)["records"] for line in lines] == [5, 5, 5]
    rows = list(
        csv.DictReader(io.StringIO(shop.ok("stats", "--watch", "--every", "0.05", "--limit", "2", "-o", "csv")))
    )
    assert [row["records"] for row in rows] == ["5", "5"]
    plain = shop.ok("stats", "--watch", "--every", "0.05", "--limit", "2").splitlines()
    assert [line.split("\t")[plain[0].split("\t").index("records")] for line in plain] == ["records", "5", "5"]
    for arguments in (("--every", "1"), ("--limit", "1"), ("--watch", "--every", "nan"), ("--watch", "--every", "inf")):
        assert shop("stats", *arguments).exit_code == 2


def test_verify_a_sound_log(shop):
    result = shop("verify")
    assert result.exit_code == 0
    assert result.stdout == ""
    assert result.stderr.startswith("No damage: ")
    report = json.loads(shop.ok("verify", "orders", "-o", "json"))
    assert report["damage"] == []
    assert report["checked_records"] == 4
    assert shop("verify", "ordes").exit_code == 3


def test_quiet_says_nothing_beside_the_data(shop):
    assert shop("verify", "-q").stderr == ""
    assert shop("topic", "trim", "orders", "--before", "latest", "-y", "-q").stderr == ""
    assert f"log {shop.path}" in shop("topic", "ls", "-v").stderr


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_prints_a_script(cli, shell):
    assert f"_TAILRACE_COMPLETE={shell}_complete" in cli.ok("completion", shell)
    assert cli("completion", "tcsh").exit_code == 2
    assert "Choose from: bash, zsh, fish" in cli("completion").stderr


def test_completion_knows_commands_options_and_topics(shop, monkeypatch):
    shop.ok("append", "orders", "x", "-N", "tenant")

    def complete(*words: str) -> list[str]:
        for name, value in (("COMP_WORDS", " ".join(words)), ("COMP_CWORD", str(len(words) - 1))):
            monkeypatch.setenv(name, value)
        monkeypatch.setenv("_TAILRACE_COMPLETE", "bash_complete")
        done = shop.finish()
        assert done.stderr == b""
        return [line.split(",")[-1] for line in done.stdout.decode().split()]

    assert complete("tailrace", "to") == ["topic"]
    assert complete("tailrace", "topic", "tr") == ["trim"]
    assert "--grep" in complete("tailrace", "read", "--g")
    assert complete("tailrace", "read", "ord") == ["orders"]
    assert complete("tailrace", "-L", "/nowhere", "read", "ord") == []
    assert complete("tailrace", "read", "-N", "t") == ["tenant"]
    assert complete("tailrace", "namespace", "drop", "t") == ["tenant"]
    assert complete("tailrace", "verify", "ord") == ["orders"]
    assert complete("tailrace", "read", "-o", "a") == ["auto", "arrow"]
    assert complete("tailrace", "topic", "ls", "-o", "a") == ["auto"]
    assert complete("tailrace", "read", "-o", "p") == []
    monkeypatch.setenv("COMP_CWORD", "2")
    for words, kind in (
        ("tailrace -L x", b"dir,x"),
        ("tailrace import x", b"file,x"),
    ):
        monkeypatch.setenv("COMP_WORDS", words)
        assert shop.finish().stdout.strip() == kind
    monkeypatch.setenv("COMP_WORDS", "tailrace append t -i x")
    monkeypatch.setenv("COMP_CWORD", "4")
    assert shop.finish().stdout.strip() == b"file,x"


def test_version(cli):
    from importlib.metadata import version

    assert cli.ok("version") == cli.ok("--version") == f"tailrace {version('tailrace')}\n"
    assert json.loads(cli.ok("version", "-o", "json"))["tailrace"] == version("tailrace")


def test_an_unknown_command_is_corrected(cli):
    result = cli("raed", "orders")
    assert result.exit_code == 2
    assert "did you mean 'read'" in result.stderr


def test_alone_it_prints_its_help(cli):
    assert "Commands:" in cli.ok()
    assert "trim" in cli.ok("topic")


def test_a_log_of_something_else_is_left_alone(cli):
    cli.path.mkdir()
    (cli.path / "notes.txt").write_text("mine")
    assert cli("read", "orders").exit_code == 3
    assert cli("append", "orders", "a").exit_code == 3
    assert [path.name for path in cli.path.iterdir()] == ["notes.txt"]
