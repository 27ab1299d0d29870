"""Values are checked with the schema of their topic by every way of writing, before anything is written."""

from __future__ import annotations

import json
import pickle
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import jsonschema_rs
import msgspec
import pyarrow as pa
import pytest

import tailrace
from tailrace.disk import codec
from tailrace.disk.admin import Admin
from tailrace.disk.frame import Attributes
from tailrace.engine.engine import topic_settings
from tailrace.errors import CorruptionError, MissingExtraError, SchemaError, SettingsMismatchError
from tailrace.limits import SCHEMA_FAILURES_MAX
from tailrace.log import repair
from tailrace.schemas import TopicSchema, schema_text
from tailrace.write.schema import FIELD_CHARACTERS_MAX, REASON_CHARACTERS_MAX, Checker, checker_of

SCHEMA = {
    "type": "object",
    "properties": {
        "id": {"type": "integer", "minimum": 0},
        "address": {"type": "object", "properties": {"zip": {"type": "string"}}, "required": ["zip"]},
        "items": {"type": "array", "items": {"type": "object", "properties": {"price": {"type": "number"}}}},
    },
    "required": ["id"],
    "additionalProperties": False,
}
STRING = {"type": "string"}
GOOD, BAD = b'{"id":1}', b'{"id":"1"}'


@pytest.fixture
def log(tmp_path):
    with tailrace.open(tmp_path / "shop") as log:
        yield log


@pytest.fixture
def topic(log):
    return log.topic("orders", partitions=2, schema=SCHEMA)


def values(topic):
    return [record.value for record in topic.read()]


def versions(log, name="orders"):
    """The version of the schema in every frame of a topic, with the number of its records."""
    found = []
    for partition in log.topic(name).backend.route(log.engine).partitions:
        reader = log.engine.store.reader(partition)
        headers = [frame.header for frame in reader.frames(partition.start, partition.end)]
        found += [(header.count, Attributes.unpack(header.attributes).schema_version) for header in headers]
        reader.close()
    return found


def checker(schema=None):
    return checker_of(TopicSchema(1, schema_text(SCHEMA if schema is None else schema)))


def refused(action, index, field):
    with pytest.raises(SchemaError) as caught:
        action()
    assert (caught.value.index, caught.value.field) == (index, field)
    return caught.value


class TestChecker:
    @pytest.mark.parametrize(
        ("value", "field", "said"),
        [
            ("{}", "id", '"id" is a required property'),
            ('{"id":1.5}', "id", '1.5 is not of type "integer"'),
            ('{"id":-1}', "id", "-1 is less than the minimum of 0"),
            ('{"id":1,"address":{}}', "address.zip", '"zip" is a required property'),
            ('{"id":1,"address":{"zip":8000}}', "address.zip", '8000 is not of type "string"'),
            ('{"id":1,"items":[{},{"price":"x"}]}', "items[1].price", '"x" is not of type "number"'),
            ('{"id":1,"colour":"red"}', "colour", "'colour' was unexpected"),
            ("[1]", None, '[1] is not of type "object"'),
        ],
    )
    def test_the_field_and_the_reason(self, value, field, said):
        error = refused(lambda: checker().check_one(value.encode(), "orders"), 0, field)
        assert error.failures == ((0, field, error.failures[0][2]),)
        assert said in error.failures[0][2]
        assert said in str(error)
        assert "the topic 'orders'" in str(error)
        assert (error.code, error.hint.split(";")[0]) == ("schema", "Nothing of this call was written")
        again = pickle.loads(pickle.dumps(error))
        assert (again.index, again.field, again.failures, str(again)) == (0, field, error.failures, str(error))

    @pytest.mark.parametrize(
        "value",
        [b"", b"{", b"x", b"NaN", b'{"id":Infinity}', b'{"id":1}{"id":2}', b"\xef\xbb\xbf{}",
         '{"id":1}'.encode("utf-16"),
         b'{"id":1,"address":{"zip":"\xff"}}', rb'{"id":1,"address":{"zip":"\ud800"}}', b'{"id":1e999}',
         b"[" * 10_000 + b"]" * 10_000],
    )  # fmt: skip
    def test_no_json(self, value):
        error = refused(lambda: checker().check([GOOD, value]), 1, None)
        assert "it is no JSON" in str(error) or "nested too deep" in str(error)

    def test_what_fits(self):
        fits = checker()
        fits.check(
            [GOOD, GOOD.decode(), bytearray(GOOD), memoryview(GOOD), None, b' { "id" : 12345678901234567890123 } ']
        )
        fits.check([])
        fits.check_one(None)
        with pytest.raises(TypeError):
            fits.check([GOOD, 5])

    def test_all_that_do_not_fit_are_named(self):
        error = refused(lambda: checker().check([GOOD, BAD, None, b"x", GOOD, b"{}"]), 1, "id")
        assert [failure[:2] for failure in error.failures] == [(1, "id"), (3, None), (5, "id")]
        assert "(2 others of this call do not fit either)" in str(error)
        error = refused(lambda: checker().check([BAD] * (SCHEMA_FAILURES_MAX + 5)), 0, "id")
        assert len(error.failures) == SCHEMA_FAILURES_MAX
        assert "(999 or more others" in str(error)

    def test_a_reason_is_no_longer_than_a_log_can_hold(self):
        large = json.dumps({"id": "x" * 10**6}).encode()
        error = refused(lambda: checker().check_one(large), 0, "id")
        assert len(str(error)) < 2 * REASON_CHARACTERS_MAX
        assert 'is not of type "integer"' in str(error)
        error = refused(
            lambda: checker().check_one(json.dumps({"id": 1, "y" * 10**5: 1}).encode()), 0, None or error_field("y")
        )
        assert len(str(error)) < 3 * (REASON_CHARACTERS_MAX + FIELD_CHARACTERS_MAX)

    def test_of_alternatives_the_one_that_came_furthest_is_named(self):
        address = {"type": "object", "properties": {"zip": STRING}, "required": ["zip"]}
        fits = checker(
            {
                "properties": {
                    "to": {"anyOf": [address, {"type": "null"}]},
                    "note": {"anyOf": [STRING, {"type": "null"}]},
                }
            }
        )
        fits.check([b'{"to":null,"note":"x"}', b'{"to":{"zip":"8000"},"note":null}'])
        refused(lambda: fits.check_one(b'{"to":{"zip":8000}}'), 0, "to.zip")
        error = refused(lambda: fits.check_one(b'{"note":5}'), 0, "note")
        assert '5 is not of type "string", and 5 is not of type "null"' in str(error)

    def test_formats_are_not_checked_and_references_inside_are_followed(self):
        fits = checker({"$ref": "#/$defs/mail", "$defs": {"mail": {"type": "string", "format": "email"}}})
        fits.check([b'"no address"'])
        refused(lambda: fits.check_one(b"5"), 0, None)

    def test_it_checks_as_the_validator_alone(self, rng):
        alone = jsonschema_rs.Draft202012Validator(SCHEMA)
        scalars = [
            None,
            True,
            0,
            -1,
            1.0,
            2.5,
            "x",
            [],
            {},
            [1],
            {"zip": "a"},
            {"zip": 1},
            [{"price": 1}],
            [{"price": "x"}],
        ]
        for _ in range(2_000):
            names = rng.sample(["id", "address", "items", "other"], rng.randrange(5))
            value = {name: rng.choice(scalars) for name in names}
            try:
                checker().check_one(json.dumps(value).encode())
                fits = True
            except SchemaError:
                fits = False
            assert fits == alone.is_valid(value), value

    def test_equal_ones(self):
        one, other = Checker(1, "{}"), Checker(1, "{}")
        assert one == other
        assert hash(one) == hash(other)
        assert one != Checker(2, "{}")
        assert one != Checker(1, '{"type":"string"}')
        assert one != "{}"
        assert checker() is checker(), "shared by the topics and handles of a process"

    def test_a_schema_in_the_catalog_that_is_none(self):
        broken = Checker(1, '{"type":"strin"}')
        with pytest.raises(ValueError, match="schema is no JSON Schema: type"):
            broken.compile()
        with pytest.raises(CorruptionError, match="in the catalog makes no sense"):
            broken.check_one(b"{}")


def error_field(letter):
    return letter * FIELD_CHARACTERS_MAX + "..."


@pytest.mark.parametrize(
    ("schema", "said"),
    [
        ({"type": "strin"}, 'schema is no JSON Schema: type: "strin"'),
        ({"type": 5}, "schema is no JSON Schema: type: 5"),
        ({"properties": {"a": {"minimum": "x"}}}, "schema is no JSON Schema: properties.a.minimum"),
        ({"pattern": "("}, "schema is no JSON Schema: "),
        ({"$ref": "#/$defs/missing"}, "schema is no JSON Schema: "),
        (
            {"$ref": "https://example.invalid/a.json"},
            "schema refers to 'https://example.invalid/a.json', which is outside",
        ),
        ({"properties": {"a": {"$ref": "file:///etc/passwd"}}}, "schema refers to 'file:///etc/passwd'"),
        ({"$defs": {"a": {"$ref": "other.json"}}}, "schema refers to 'other.json'"),
    ],
)
def test_no_topic_gets_what_is_no_schema(log, schema, said):
    with pytest.raises(ValueError, match=said.replace("(", r"\(").replace("$", r"\$")):
        log.topic("orders", schema=schema)
    assert log.topics() == []
    topic = log.topic("orders", partitions=1)
    with pytest.raises(ValueError, match="schema"):
        topic.alter(schema=schema)
    assert topic.settings["schema"] is None
    assert log.topics()[0].schema_version == 0


class TestWays:
    def test_append(self, topic):
        topic.append(json={"id": 1})
        topic.append(GOOD)
        topic.append(GOOD.decode(), key="k")
        topic.append(None, key="k")
        refused(lambda: topic.append(json={"id": "x"}), 0, "id")
        refused(lambda: topic.append(BAD, durable=False, partition=1), 0, "id")
        refused(lambda: topic.append("no JSON"), 0, None)
        assert len(values(topic)) == 4

    def test_the_first_append_creates_no_topic_for_a_value_that_does_not_fit(self, log):
        topic = tailrace.Topic(log, "later", {"schema": SCHEMA})
        refused(lambda: topic.append(BAD), 0, "id")
        refused(lambda: topic.extend([GOOD, BAD]), 1, "id")
        with topic.producer() as producer:
            refused(lambda: producer.append(BAD), 0, "id")
        assert log.topics() == []
        topic.append(GOOD)
        assert versions(log, "later") == [(1, 1)]

    @pytest.mark.parametrize("durable", [True, False])
    def test_extend(self, log, topic, durable):
        keys = [b"%d" % number for number in range(8)]
        topic.extend([GOOD] * 8, keys=keys, durable=durable)
        topic.extend([GOOD, None], keys=["a", "b"])
        topic.extend(({"id": number} for number in range(3)), json=True)
        # The index is that of the call, whatever the partition of the record.
        for index in range(8):
            some = [GOOD] * 8
            some[index] = BAD
            refused(lambda some=some: topic.extend(some, keys=keys, durable=durable), index, "id")
        refused(lambda: topic.extend([{"id": 1}, {}], json=True), 1, "id")
        refused(lambda: topic.extend(iter([GOOD, "x"])), 1, None)
        assert len(values(topic)) == 13
        assert {version for _, version in versions(log)} == {1}

    def test_extend_with_arrow(self, log, topic):
        topic.extend(pa.array([GOOD, None], pa.binary()), keys=["a", "b"])
        topic.extend(pa.table({"value": pa.array([GOOD.decode()] * 20_000), "key": ["k"] * 20_000}))
        topic.extend(pa.chunked_array([pa.array([GOOD]), pa.array([GOOD])]).dictionary_encode())
        topic.extend(pa.table({"id": [1, 2]}), json=True)
        refused(lambda: topic.extend(pa.array([GOOD, BAD])), 1, "id")
        table = pa.table({"value": [GOOD] * 19_999 + [BAD], "key": [b"%d" % (number % 7) for number in range(20_000)]})
        refused(lambda: topic.extend(table), 19_999, "id")
        refused(lambda: topic.extend(pa.chunked_array([pa.array([GOOD]), pa.array([GOOD, b"x"])])), 2, None)
        refused(lambda: topic.extend(pa.table({"id": ["a", "b"]}), json=True), 0, "id")
        error = refused(lambda: topic.extend(pa.array([BAD] + [GOOD] * 9_000 + [BAD] * 10)), 0, "id")
        assert [failure[0] for failure in error.failures] == [0, *range(9_001, 9_011)]
        error = refused(lambda: topic.extend(pa.chunked_array([[BAD] * 600] * 3)), 0, "id")
        assert len(error.failures) == SCHEMA_FAILURES_MAX
        assert len(values(topic)) == 20_006
        assert {version for _, version in versions(log)} == {1}

    def test_producer(self, log, topic):
        with topic.producer() as producer:
            first = producer.append(json={"id": 1})
            for value, field in ((BAD, "id"), ("x", None)):
                refused(lambda value=value: producer.append(value), 0, field)
                refused(lambda value=value: producer.append(value, key="k"), 0, field)
            second = producer.append(GOOD, key="k")
            assert first.result().offset == 0
            assert second.result()
        assert values(topic) == [GOOD, GOOD]
        assert {version for _, version in versions(log)} == {1}

    def test_transaction(self, log, topic):
        with log.transaction() as tx:
            tx.append(topic, GOOD)
            refused(lambda: tx.append("orders", BAD), 0, "id")
            refused(lambda: tx.extend(topic, [GOOD, BAD]), 1, "id")
            refused(lambda: tx.extend(topic, pa.array([GOOD, BAD])), 1, "id")
            tx.extend(topic, [GOOD, GOOD])
            tx.append("others", b"anything")
        assert values(topic) == [GOOD] * 3

        def half():
            with log.transaction() as tx:
                tx.append("others", b"left out")
                tx.append(topic, BAD)

        refused(half, 0, "id")
        assert values(log.topic("others")) == [b"anything"]
        assert {version for _, version in versions(log)} == {1}
        assert versions(log, "others") == [(1, 0)]

    def test_a_transaction_is_checked_with_the_schema_of_its_commit(self, log, topic):
        def overtaken():
            with log.transaction() as tx:
                tx.append(topic, GOOD)
                tx.extend(topic, [GOOD, GOOD])
                topic.alter(schema=STRING)

        refused(overtaken, 0, None)
        with log.transaction() as tx:
            tx.append(topic, b'"text"')
            topic.alter(schema=None)
        with log.transaction() as tx:
            tx.append(topic, b"anything")
        assert sorted(values(topic)) == [b'"text"', b"anything"]

    def test_process(self, log, topic):
        source = log.topic("source")
        source.extend([b"1", b"x", b"2"])

        def order(record):
            return [b'{"id":%s}' % record.value, GOOD]

        with pytest.raises(SchemaError) as caught:
            log.process("source", order, "orders", group="a", stop="now")
        assert caught.value.failures[0][:2] == (0, None)
        assert "process() stopped at source[0]@1" in caught.value.__notes__[0]
        assert sorted(values(topic)) == [b'{"id":1}', GOOD]
        assert log.process("source", order, "orders", group="a", stop="now", on_error="dead-letter") == 2
        assert sorted(values(topic)) == [b'{"id":1}', GOOD, GOOD, b'{"id":2}']
        (letter,) = log.topic("orders.dead").read()
        assert (letter.value, letter.headers["dead-letter-reason"][:11]) == (b"x", b"SchemaError")

    def test_copies_of_records_are_checked(self, log, topic):
        log.topic("source").extend([GOOD, BAD])
        refused(lambda: topic.extend(log.topic("source").read()), 1, "id")
        topic.extend(log.topic("source").read(limit=1))
        assert values(topic) == [GOOD]


class TestAlter:
    def test_old_records_are_not_looked_at(self, log):
        topic = log.topic("orders", partitions=1)
        topic.append(b"anything")
        topic.alter(schema=SCHEMA)
        topic.append(GOOD)
        topic.alter(schema=STRING)
        topic.append(b'"text"')
        topic.alter(schema=None)
        topic.append(b"anything")
        assert versions(log) == [(1, 0), (1, 1), (1, 2), (1, 0)]
        assert len(values(topic)) == 4
        log.vacuum()
        assert log.verify().damage == ()
        assert (log.topics()[0].schema_version, topic.settings["schema"]) == (2, None)

    def test_the_same_settings_and_others(self, log, topic):
        assert log.topic("orders", schema=json.loads(schema_text(SCHEMA))).settings["schema"] == SCHEMA
        with pytest.raises(SettingsMismatchError, match=r"schema is \{.*, not \{'type': 'string'\}") as caught:
            log.topic("orders", schema=STRING)
        assert caught.value.diff == {"schema": (SCHEMA, STRING)}
        log.topic("orders", schema=STRING, alter=True)
        log.topic("orders", schema=STRING, alter=True)
        assert log.topics()[0].schema_version == 2
        refused(lambda: topic.append(GOOD), 0, None)

    def test_a_handle_can_be_pickled_with_its_type(self, log):
        class Local(msgspec.Struct):
            id: int

        topic = log.topic("local", schema=Local)
        again = pickle.loads(pickle.dumps(topic))
        refused(lambda: again.append(b'{"id":"x"}'), 0, "id")

    def test_versions_count_right_when_two_alter_at_once(self, log, topic, monkeypatch):
        """The other change comes between the look at the settings and the record in the catalog."""
        other = log.topic("orders")
        alter, done = Admin.alter, []

        def slow(admin, *arguments):
            if not done:
                done.append(True)
                # As another process would, which does not wait for the mutex of this one.
                entry = log.engine.entry("orders")
                settings = topic_settings(entry).altered(schema=STRING).schema.to_json()
                alter(admin, entry.id, {"schema": settings}, 2, True)
            return alter(admin, *arguments)

        monkeypatch.setattr(Admin, "alter", slow)
        other.alter(schema={"type": "integer"})
        assert log.topics()[0].schema_version == 3
        other.append(b"1")
        assert versions(log) == [(1, 3)]

    def test_records_of_a_producer_that_wait_while_the_schema_changes(self, log, topic):
        with topic.producer(linger="10s") as producer:
            futures = [producer.append(json={"id": number}, key=f"k{number}") for number in range(20)]
            topic.alter(schema={"properties": {"id": {"minimum": 10}}})
            futures.append(producer.append(json={"id": 3}, key="x"))
            with pytest.raises(SchemaError):
                producer.flush()
            outcomes = [future.exception() for future in futures]
        assert [isinstance(error, SchemaError) for error in outcomes] == [True] * 10 + [False] * 10 + [True]
        assert [error.field for error in outcomes if error is not None] == ["id"] * 11
        assert sorted(json.loads(value)["id"] for value in values(topic)) == [*range(10, 20)]
        assert {version for _, version in versions(log)} == {2}

    def test_a_producer_of_a_topic_that_gets_its_first_schema(self, log):
        topic = log.topic("plain", partitions=1)
        with topic.producer(linger="10s") as producer:
            futures = [producer.append(b"%d" % number) for number in range(1_000)]
            topic.alter(schema={"type": "integer", "maximum": 500})
            with pytest.raises(SchemaError):
                producer.flush()
            assert [future.exception() is None for future in futures] == [True] * 501 + [False] * 499
            assert futures[500].result().offset == 500
            refused(lambda: producer.append(b"501"), 0, None)

    def test_nothing_built_before_is_published_after(self, log, monkeypatch):
        """A frame was built and not yet written when the schema changed: the value is checked again."""
        topic = log.topic("orders", partitions=1)
        taken, go = threading.Event(), threading.Event()
        prepare = type(topic.backend)._choose

        def slow(self, *arguments):
            taken.set()
            assert go.wait(20)
            return prepare(self, *arguments)

        monkeypatch.setattr(type(topic.backend), "_choose", slow)
        with ThreadPoolExecutor(1) as pool:
            # partition= takes the way past the choice, after the route was taken.
            waiting = pool.submit(log.topic("orders").append, BAD, partition=0)
            assert taken.wait(20)
            topic.alter(schema=SCHEMA)
            go.set()
            assert isinstance(waiting.exception(), SchemaError)
        assert values(topic) == []

    def test_while_other_threads_write(self, log):
        """Each record that is published after alter() has returned has the new schema's version and fits it."""
        schemas = [{"type": "object", "properties": {"round": {"const": number}}} for number in range(6)]
        topic = log.topic("orders", partitions=2, schema=schemas[0])
        current, ended = [0], threading.Event()

        def write(how):
            mine = log.topic("orders")
            while not ended.is_set():
                value = json.dumps({"round": current[0]}).encode()
                try:
                    if how == "append":
                        mine.append(value)
                    elif how == "quick":
                        mine.append(value, durable=False)
                    elif how == "extend":
                        mine.extend([value] * 3, keys=["a", "b", "c"])
                    else:
                        with log.transaction() as tx:
                            tx.append(mine, value, key="a")
                            tx.append(mine, value, key="b")
                except SchemaError:
                    # The round was over.
                    continue

        with ThreadPoolExecutor(4) as pool:
            writers = [pool.submit(write, how) for how in ("append", "quick", "extend", "transaction")]
            ends = [sum(bounds.latest for bounds in topic.offsets().values())]
            for number in range(1, 6):
                while sum(bounds.latest for bounds in topic.offsets().values()) < ends[-1] + 20:
                    pass
                topic.alter(schema=schemas[number])
                ends.append(sum(bounds.latest for bounds in topic.offsets().values()))
                current[0] = number
            ended.set()
            for writer in writers:
                writer.result()
        for partition in topic.backend.route(log.engine).partitions:
            reader = log.engine.store.reader(partition)
            last = 0
            for frame in reader.frames(partition.start, partition.end):
                version = Attributes.unpack(frame.header.attributes).schema_version
                assert version >= last, "a frame of an earlier schema after one of a later one"
                last = version
            reader.close()
        found = [(count, version) for count, version in versions(log)]
        rounds = [json.loads(value)["round"] for value in values(topic)]
        assert [version - 1 for count, version in found for _ in range(count)] == rounds


class TestProcesses:
    PROGRAM = """
import sys, json, tailrace
from tailrace.errors import TailraceError
assert "jsonschema_rs" not in sys.modules
with tailrace.open(sys.argv[1]) as log:
    topic = log.topic("orders")
    assert [record.value for record in topic.read()], "reading needs no package"
    assert "jsonschema_rs" not in sys.modules
    if sys.argv[2] == "without":
        sys.modules["jsonschema_rs"] = None
    try:
        print(topic.append(sys.argv[3]).offset)
    except TailraceError as error:
        print(json.dumps([error.code, str(error)]))
"""

    def run(self, log, how, value):
        done = subprocess.run(
            [sys.executable, "-c", self.PROGRAM, log.location, how, value], capture_output=True, text=True, check=True
        )
        return json.loads(done.stdout)

    @pytest.mark.slow
    def test_another_process_checks_too(self, log):
        topic = log.topic("orders", schema=SCHEMA)
        topic.append(GOOD)
        assert self.run(log, "with", '{"id":2}') == 1
        assert self.run(log, "with", '{"id":"2"}')[0] == "schema"
        topic.alter(schema=STRING)
        assert self.run(log, "with", '{"id":2}')[0] == "schema"
        assert self.run(log, "with", '"text"') == 2

    WRITER = """
import sys, tailrace
from tailrace.errors import SchemaError
with tailrace.open(sys.argv[1]) as log:
    topic, number = log.topic("orders"), 0
    print("begun", flush=True)
    while True:
        try:
            topic.append(b'{"round":%d}' % number, durable=False)
        except SchemaError:
            number += 1
            if number == 4:
                break
"""

    def test_another_process_writes_while_the_schema_changes(self, log):
        topic = log.topic("orders", partitions=1, schema={"properties": {"round": {"const": 0}}})
        with subprocess.Popen([sys.executable, "-c", self.WRITER, log.location], stdout=subprocess.PIPE) as other:
            assert other.stdout.readline() == b"begun\n"
            ends = [0]
            for number in range(1, 5):
                while topic.offsets()[0].latest < ends[-1] + 10:
                    assert other.poll() is None
                topic.alter(schema={"properties": {"round": {"const": number}}})
                ends.append(topic.offsets()[0].latest)
            assert other.wait(30) == 0
        rounds = [json.loads(record.value)["round"] for record in topic.read()]
        assert rounds == sorted(rounds)
        # Whatever was published after alter() returned fits the new schema; some was perhaps while it returned.
        for offset, number in enumerate(rounds):
            assert number >= sum(end <= offset for end in ends[1:]), offset
        found = [version - 1 for count, version in versions(log) for _ in range(count)]
        assert found == rounds

    def test_a_process_without_the_package_reads_and_does_not_write(self, log):
        log.topic("orders", schema=SCHEMA).append(GOOD)
        code, said = self.run(log, "without", '{"id":2}')
        assert (code, said) == ("missing-extra", 'This needs jsonschema_rs: pip install "tailrace[schema]"')
        assert values(log.topic("orders")) == [GOOD]

    def test_no_topic_gets_a_schema_without_the_package(self, log, monkeypatch):
        monkeypatch.setitem(sys.modules, "jsonschema_rs", None)
        for library in ("jsonschema_rs", "msgspec.json"):
            monkeypatch.setitem(sys.modules, library, None)
            with pytest.raises(MissingExtraError, match=r'pip install "tailrace\[schema\]"'):
                log.topic("orders", schema={"title": f"not checked before, without {library}"})
        assert log.topics() == []

    def test_a_backup_keeps_it(self, log, topic, tmp_path):
        topic.append(GOOD)
        log.backup(tmp_path / "backup")
        tailrace.Log.restore(tmp_path / "backup", tmp_path / "again")
        with tailrace.open(tmp_path / "again") as again:
            refused(lambda: again.topic("orders").append(BAD), 0, "id")
            again.topic("orders").append(GOOD)
            assert again.topics()[0].schema_version == 1


class TestGroupCommit:
    def test_appends_of_many_threads(self, log):
        topic = log.topic("orders", partitions=1, schema=SCHEMA)
        begun = threading.Barrier(32)

        def append(number):
            begun.wait()
            topic.append(json={"id": number}, key=None if number % 2 else "k", ttl=None if number % 3 else "1h")

        with ThreadPoolExecutor(32) as pool:
            list(pool.map(append, range(32)))
        found = versions(log)
        assert sum(count for count, _ in found) == 32
        assert {version for _, version in found} == {1}
        assert sorted(json.loads(value)["id"] for value in values(topic)) == [*range(32)]

    def test_a_value_that_does_not_fit_fails_alone(self, log):
        topic = log.topic("orders", partitions=1, schema=SCHEMA)
        begun = threading.Barrier(16)

        def append(number):
            begun.wait()
            try:
                topic.append(GOOD if number % 2 else BAD)
                return True
            except SchemaError:
                return False

        with ThreadPoolExecutor(16) as pool:
            assert list(pool.map(append, range(16))) == [bool(number % 2) for number in range(16)]
        assert values(topic) == [GOOD] * 8


def test_compressed_frames_carry_the_version(log):
    topic = log.topic("orders", compress="zstd", schema=SCHEMA)
    topic.extend([json.dumps({"id": 1, "address": {"zip": "8" * 400}}).encode()] * 40)
    topic.append(GOOD)
    assert versions(log) == [(40, 1), (1, 1)]
    reader = log.engine.store.reader(topic.backend.route(log.engine).partitions[0])
    assert [frame.header.codec for frame in reader.frames(0, 40)] == [codec.codec_of("zstd")]
    reader.close()


def test_a_rewrite_keeps_the_version(log):
    topic = log.topic("orders", partitions=1, mutable=True, schema=SCHEMA)
    topic.extend([json.dumps({"id": number}).encode() for number in range(100)])
    topic.alter(schema=None)
    topic.extend([b"x"] * 100)
    topic.delete(range(0, 200, 2))
    log.vacuum()
    found = versions(log)
    assert {version for _, version in found} == {0, 1}
    assert sum(count for count, version in found if version) == 50
    assert log.verify().damage == ()


def test_the_package_is_loaded_with_the_first_check_alone(tmp_path):
    program = """
import sys, tailrace
with tailrace.open(sys.argv[1]) as log:
    log.topic("orders").append(b"x")
    log.topic("orders").extend([b"x"])
    with log.transaction() as tx:
        tx.append("orders", b"x")
assert not {"jsonschema_rs", "msgspec", "tailrace.write.schema", "tailrace.schemas"} & set(sys.modules), sys.modules
"""
    subprocess.run([sys.executable, "-c", program, str(tmp_path / "log")], check=True)


def test_a_repair_of_the_catalog_leaves_a_topic_without_a_schema(tmp_path):
    with tailrace.open(tmp_path / "log") as log:
        topic = log.topic("orders", partitions=1, schema=SCHEMA)
        topic.append(GOOD)
        topic.alter(schema=STRING)
        topic.append(b'"text"')
    for path in (tmp_path / "log").glob("catalog/*"):
        path.unlink()
    (tmp_path / "log" / "tails").unlink()
    repair(tmp_path / "log")
    with tailrace.open(tmp_path / "log") as log:
        topic = log.topic("orders")
        assert values(topic) == [GOOD, b'"text"']
        assert (topic.settings["schema"], log.topics()[0].schema_version) == (None, 0)
        topic.append(b"anything")
        topic.alter(schema=SCHEMA)
        refused(lambda: topic.append(BAD), 0, "id")
        assert [version for _, version in versions(log)] == [1, 2, 0]
