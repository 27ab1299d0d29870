"""Arrow, pandas and Polars show the same records as a loop over them does."""

from __future__ import annotations

import struct
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given

from tailrace.disk import frame
from tailrace.disk.columns import FramePart, columns
from tailrace.errors import CorruptionError, MissingExtraError
from tailrace.read import arrow
from tailrace.read.batch import Batch
from tailrace.records import to_datetime
from tests.frames import TIME, gapped, parts, several

pa = pytest.importorskip("pyarrow")


def rows(found: list[FramePart]) -> list[dict[str, Any]]:
    return [
        {
            "topic": record.topic,
            "partition": record.partition,
            "offset": record.offset,
            "timestamp": to_datetime(record.timestamp_us),
            "key": record.key,
            "value": record.value,
            "headers": [{"name": name, "value": value} for name, value in record.headers.multi_items()] or None,
        }
        for record in Batch(found)
    ]


@given(several())
def test_arrow_equals_the_records(found: list[FramePart]) -> None:
    batch = Batch(found).to_arrow()
    assert isinstance(batch, pa.RecordBatch)
    assert batch.schema == arrow.schema()
    batch.validate(full=True)
    assert batch.to_pylist() == rows(found)


def test_the_schema_is_the_documented_one() -> None:
    assert {field.name: str(field.type) for field in arrow.schema()} == {
        "topic": "dictionary<values=string, indices=int32, ordered=0>",
        "partition": "int32",
        "offset": "int64",
        "timestamp": "timestamp[us, tz=UTC]",
        "key": "binary",
        "value": "binary",
        "headers": "list<item: struct<name: string, value: binary>>",
    }


def test_the_bytes_of_one_frame_are_shared() -> None:
    (part,) = parts(frame.prepare([b"value"] * 100, [b"key"] * 100, None, TIME))
    batch = Batch([part._replace(first=10, stop=90)]).to_arrow()
    for name, blob in (("value", part.columns.value_blob), ("key", part.columns.key_blob)):
        assert batch.column(name).buffers()[2].address == pa.py_buffer(blob).address


def test_neighbouring_frames_and_gaps_keep_their_offsets() -> None:
    dense = parts(frame.prepare([b"v" * 600_000] * 3, None, None, TIME), base=10)
    found = [*dense, gapped([20, 25], [b"x", b"y"]), *dense[1:], *dense[:1]]
    assert Batch(found).to_arrow().column("offset").to_pylist() == [10, 11, 12, 20, 25, 11, 12, 10]


def test_without_arange_offsets_are_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    found = parts(frame.prepare([b"v"] * 3, None, None, TIME), base=10)
    monkeypatch.delattr(pa, "arange", raising=False)
    assert Batch(found).to_arrow().column("offset").to_pylist() == [10, 11, 12]


def damaged(offsets: tuple[int, ...]) -> FramePart:
    body = struct.pack("<4i", 0, 1, 2, 8) + b"abcdefgh"
    header = frame.Header(0, 0, 3, len(body), len(body), 0, 0, 3, 0, TIME, TIME, frame.PLAIN, 0, 0)
    made = columns(header, body, 30)
    # They are checked when a frame is opened, and once more before Arrow reads through them.
    made.value_offsets = memoryview(struct.pack(f"<{len(offsets)}i", *offsets)).cast("i")
    return FramePart("orders", 4, made, 0, 3)


@pytest.mark.parametrize("offsets", [(0, 1 << 30, 2, 8), (0, -9, 2, 8), (0, 5, 3, 8)])
def test_offsets_that_leave_their_bytes_never_reach_arrow(offsets: tuple[int, ...]) -> None:
    with pytest.raises(CorruptionError) as caught:
        Batch([damaged(offsets)]).to_arrow()
    error = caught.value
    assert (error.topic, error.partition, error.first, error.last) == ("orders", 4, 30, 32)


def test_headers_that_cannot_be_read_are_corruption() -> None:
    with pytest.raises(CorruptionError):
        Batch(parts(frame.prepare([b"v"], None, [b"\xff\xff"], TIME))).to_arrow()


def test_a_reader_pulls_batches_one_by_one() -> None:
    pulled = []

    def batches() -> Any:
        for base in range(3):
            pulled.append(base)
            yield Batch(parts(frame.prepare([b"v"] * 2, None, None, TIME), f"topic{base}", base=base)).to_arrow()

    found = arrow.reader(batches())
    assert found.read_next_batch().column("topic").to_pylist() == ["topic0"] * 2
    assert pulled == [0]
    assert found.read_all().num_rows == 4


def source(kind: str) -> Any:
    found = parts(frame.prepare([b"v", None], [b"k", None], None, [TIME, TIME + 5]))
    reader = arrow.reader([Batch(found).to_arrow()])
    return reader if kind == "reader" else reader.read_all()


@pytest.mark.parametrize("kind", ["reader", "table"])
def test_pandas(kind: str) -> None:
    pytest.importorskip("pandas")
    found = arrow.to_pandas(source(kind))
    assert list(found.columns) == arrow.schema().names
    assert list(found["value"]) == [b"v", None]
    assert list(found["topic"]) == ["orders", "orders"]
    assert found["timestamp"][1].to_pydatetime() == to_datetime(TIME + 5)


@pytest.mark.parametrize("kind", ["reader", "table"])
def test_polars(kind: str) -> None:
    pytest.importorskip("polars")
    found = arrow.to_polars(source(kind))
    assert found.columns == arrow.schema().names
    assert found["key"].to_list() == [b"k", None]
    assert found["timestamp"].to_list() == [to_datetime(TIME), to_datetime(TIME + 5)]


@pytest.mark.parametrize(
    ("missing", "extra", "call"),
    [
        ("pyarrow", "arrow", lambda: Batch().to_arrow()),
        ("pyarrow", "arrow", lambda: arrow.to_pandas(None)),
        ("pandas", "pandas", lambda: arrow.to_pandas(None)),
        ("polars", "polars", lambda: arrow.to_polars(None)),
    ],
)
def test_a_missing_extra_names_the_command(
    missing: str, extra: str, call: Callable[[], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, missing, None)
    with pytest.raises(MissingExtraError) as caught:
        call()
    assert f'pip install "tailrace[{extra}]"' in str(caught.value)
    assert caught.value.extra == extra


def test_importing_the_modules_does_not_import_pyarrow() -> None:
    code = (
        "import sys, tailrace.read.batch, tailrace.read.arrow, tailrace.write.arrow_intake, tailrace.read.json_table;"
        "sys.exit(any(name in sys.modules for name in ('pyarrow', 'numpy', 'pandas', 'polars')))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
