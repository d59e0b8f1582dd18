"""Events that the core decodes become the rows that msgspec's events become."""

from __future__ import annotations

import contextlib
import json
import random
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import polars as pl
import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from gpusight.core.library import core_status
from gpusight.errors import GpusightError
from gpusight.readers import chrome_events
from gpusight.readers.chrome_columns import (
    ArgumentColumn,
    EventArguments,
    NumberBuilder,
    TextBuilder,
)
from gpusight.readers.chrome_events import ChromeEvent, EventReader, ExactChromeEvent
from gpusight.readers.chrome_scan import ScannedEvents
from gpusight.readers.chrome_source import EventSorter
from gpusight.readers.file_blocks import FileBlocks

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.skipif(
    core_status().library is None, reason=f"no compiled core: {core_status().reason}"
)
NUMBERS = st.one_of(
    st.integers(-5, 1 << 45).map(str),
    st.floats(0, 1e13).map(lambda value: f"{value:.3f}"),
    st.floats(allow_nan=False, allow_infinity=False).map(repr),
    st.sampled_from(["0", "-0", "-0.5", "1e3", "007", "1.", "9007199254740993", "NaN", "null"]),
)
TEXTS = st.one_of(
    st.sampled_from(["ProfilerStep#1", "[memory]", "aten::mm", "nccl:all_reduce", "", "é\t€"]),
    st.text(max_size=20).filter(lambda text: text.isprintable()),
).map(json.dumps)
LABELS = st.one_of(
    st.integers(-3, 9).map(str), st.sampled_from(['"7"', '"stream 7"', "null", "1.0", '"Spans"'])
)
HOST = ("cpu_op", "cuda_runtime", "cuda_driver", "user_annotation", "python_function", "Operator")
OTHER = ("kernel", "new_kernel", "gpu_memcpy", "overhead", "Trace", "ac2g", "odd")
CATEGORIES = st.sampled_from([*HOST, *OTHER]).map(json.dumps)
ANY_JSON = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False), st.text()),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.text(), inner)),
    max_leaves=8,
)
ARGUMENTS = st.one_of(
    ANY_JSON.map(lambda value: json.dumps(value, ensure_ascii=False)),
    st.sampled_from(['{"Collective name": "x", "stream": 7}', "{}", "[1,2", '"\\u12"', "tru"]),
    st.integers(0, 200).map(lambda depth: "[" * depth + "]" * depth),
)
FIELDS = {
    "ph": st.sampled_from(['"X"', '"X"', '"X"', '"i"', '"M"', '"s"', '"?"', "1", "null"]),
    "cat": st.one_of(CATEGORIES, st.just("null")),
    "name": st.one_of(TEXTS, st.sampled_from(["null", "3"])),
    "pid": LABELS,
    "tid": LABELS,
    "ts": NUMBERS,
    "dur": NUMBERS,
    "args": ARGUMENTS,
}


@st.composite
def events(draw: st.DrawFn) -> str:
    """Write an event: most have all that is needed, some have odd fields or one of them twice."""
    if draw(st.booleans()):
        fields = ["ph", "cat", "name", "pid", "tid", "ts", "dur", "args"]
    else:
        fields = draw(st.lists(st.sampled_from([*FIELDS, "id", "na\\u006de"]), max_size=10))
    space = draw(st.sampled_from(["", "", " ", "\n  "]))
    usual = {"ph": '"X"', "cat": '"kernel"', "pid": "0", "tid": "7", "ts": "12.5", "dur": "3"}
    parts = []
    for field in fields:
        odd = draw(st.integers(0, 3)) == 0
        value = draw(FIELDS.get(field, TEXTS)) if odd else usual.get(field, '"a"')
        parts.append(f'"{field}":{space}{value}')
    return f"{{{space}{f',{space}'.join(parts)}{space}}}"


def rows(path: Path, *, exact: bool, with_core: bool) -> Any:
    """Read a trace; what became of its events."""
    reader = EventReader(path, FileBlocks(path))
    reader._settled, reader.exact, reader._uses_core = True, exact, with_core
    event: Any = ExactChromeEvent if exact else ChromeEvent
    reader._decoder = msgspec.json.Decoder(list[event])
    sorter = EventSorter()
    try:
        sorter.add_all(reader)
    except GpusightError as error:
        return str(error)
    found = {
        kind: (
            *(r.start_ns.to_list(), r.duration_ns.to_list(), r.pid.to_list(), r.tid.to_list()),
            *([str(name) for name in r.names], r.distinct_names, r.height, dict(r.left_out)),
            r.arguments.joined(),
        )
        for kind, r in sorter.rows.items()
        if r.height or r.left_out
    }
    settings = [(e.name, e.pid, e.tid, bytes(e.args)) for e in sorter.settings]
    left = reader.unreadable, reader.cut_off, reader.left_over, reader.about
    return found, settings, dict(sorter.unknown), left


def check(path: Path, text: str | bytes, part_bytes: int = 100) -> None:
    """Compare the two, with times as doubles and exact."""
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    for exact in (False, True):
        wanted = rows(path, exact=exact, with_core=False)
        assert rows(path, exact=exact, with_core=True) == wanted
        with small_parts(part_bytes):
            assert rows(path, exact=exact, with_core=True) == wanted


@contextlib.contextmanager
def small_parts(part_bytes: int = 100) -> Iterator[None]:
    """Have even a short file read in parts, by two threads from the second one on."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("gpusight.readers.file_blocks.BLOCK_BYTES", part_bytes)
        patch.setattr(chrome_events, "_SCANNED_BYTES", part_bytes)
        patch.setattr(chrome_events, "_AHEAD_BYTES", 3 * part_bytes // 2)
        patch.setattr(chrome_events, "_WINDOW", 10 * part_bytes)
        yield


PLAIN = '{"ph":"X","cat":"kernel","name":"k","pid":0,"tid":7,"ts":1.5,"dur":2,"args":{"a":[1,{}]}}'


@given(
    listed=st.lists(events(), max_size=12),
    between=st.sampled_from([",", ",\n", " , "]),
    end=st.sampled_from(["]", "]}", '],"a":1}', "", ",]", ']] "'] * 2),
)
@example(listed=[PLAIN, PLAIN], between=",", end="]}")
def test_any_events(tmp_path: Path, listed: list[str], between: str, end: str) -> None:
    check(tmp_path / "x.json", '{"b": 2, "traceEvents": [' + between.join(listed) + end)


@pytest.mark.parametrize("seed", range(60))
def test_damage(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    content = bytearray(f"[{PLAIN},\n{PLAIN},{PLAIN}]".encode())
    for _ in range(chance.choice([1, 1, 2, 5])):
        content[chance.randrange(1, len(content))] = chance.choice(
            [*b'"\\{}[]:,0-.eE\x00\x1f\x80\xff\n tn', chance.randrange(256)]
        )
    check(tmp_path / "x.json", bytes(content[: chance.randrange(1, len(content) + 1)]))
    check(tmp_path / "x.json", bytes(content))


def test_usual_events_are_decoded_by_the_core() -> None:
    text = f"{PLAIN}, {PLAIN},{{}}]".encode()
    scanned = ScannedEvents.of(text, exact=False)
    assert scanned is not None
    assert (scanned.height, scanned.used, scanned.closed) == (3, len(text), True)
    cut = ScannedEvents.of(text[: len(PLAIN) + 20], exact=False)
    assert cut is not None
    assert (cut.height, cut.used, cut.closed) == (1, len(PLAIN) + 1, False)


@pytest.mark.parametrize("length", [0, 1, 15, 16, 17, 100_000])
def test_long_texts_and_many_of_them(tmp_path: Path, length: int) -> None:
    named = [PLAIN.replace('"k"', json.dumps(f"{i}" + "é" * length)) for i in range(3)]
    check(tmp_path / "x.json", f"[{','.join(named)}]", part_bytes=max(100, length // 20))
    many = [PLAIN.replace('"k"', f'"{i}"') for i in range(40_000)] if length == 0 else []
    check(tmp_path / "x.json", f"[{','.join(many)}]", part_bytes=100_000)


@pytest.mark.parametrize("arguments", ["{}", '{"a": [{"x": 1}, {"ph": "X"}, {"ph": "}, {"}]}'])
def test_parts_of_a_file_are_decoded_ahead(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: str
) -> None:
    one_by_one = []
    cut = EventReader._cut

    def counted(*parts: Any, **options: Any) -> Any:
        one_by_one.append(len(parts[1]))
        return cut(*parts, **options)

    monkeypatch.setattr(EventReader, "_cut", counted)
    text = ",".join([PLAIN.replace('{"a":[1,{}]}', arguments)] * 60)
    path = tmp_path / "x.json"
    path.write_text(f"[{text}]")
    wanted = rows(path, exact=False, with_core=False)
    one_by_one.clear()
    with small_parts():
        assert rows(path, exact=False, with_core=True) == wanted
    # What looks like the beginning of an event in arguments stops the threads, sixteen times.
    assert sum(one_by_one) < len(text) / (2 if arguments == "{}" else 1)


KEYS = ["op", "External id", "shape", "Shape", "name", "grid", "odd key"]
WHOLE = st.integers(-(1 << 70), 1 << 70)
VALUES = {
    "op": st.one_of(WHOLE, WHOLE.map(str), st.sampled_from([None, "", "-", "007", True, 1.5])),
    "External id": st.one_of(st.integers(0, 9), st.none(), st.sampled_from(["7", " 7", "--7"])),
    "shape": st.one_of(st.none(), st.lists(st.integers(0, 9), max_size=2), ANY_JSON),
    "Shape": st.one_of(st.none(), st.lists(st.integers(0, 9), max_size=2)),
    "name": st.one_of(st.text(max_size=5), st.none(), st.booleans(), st.integers(-9, 9), ANY_JSON),
    "grid": st.one_of(st.lists(st.integers(0, 9), max_size=3), st.none(), ANY_JSON),
    "odd key": st.one_of(st.floats(0, 100), st.integers(-5, 1 << 60), st.none(), ANY_JSON),
}
USUAL: dict[str, Any] = {
    "op": 5,
    "External id": 3,
    "shape": [[1, 2], []],
    "Shape": None,
    "name": "n\\té",
    "grid": [1, 2, 3],
    "odd key": 0.5,
}
WANTED = (
    ArgumentColumn(("op", "External id"), lambda: NumberBuilder(pl.Int64)),
    ArgumentColumn(("External id",), lambda: NumberBuilder(pl.Int64)),
    ArgumentColumn(("shape", "Shape"), lambda: TextBuilder(raw=True)),
    ArgumentColumn(("name",), TextBuilder),
    ArgumentColumn(("grid",), lambda: NumberBuilder(pl.Int64, place=1)),
    ArgumentColumn(("grid",), lambda: NumberBuilder(pl.Int64, place=0)),
    ArgumentColumn(("odd key",), lambda: NumberBuilder(pl.Float64)),
    ArgumentColumn(("not there",), TextBuilder),
)


@st.composite
def any_arguments(draw: st.DrawFn) -> str:
    """Write arguments: most keys have the usual value."""
    keys = draw(st.lists(st.sampled_from(KEYS), max_size=8))
    odd = draw(st.sampled_from([None, None, *KEYS]))
    parts = [
        f"{json.dumps(key)}: {json.dumps(draw(VALUES[key]) if key == odd else USUAL[key])}"
        for key in keys
    ]
    return f"{{{', '.join(parts)}}}"


@settings(deadline=None)
@given(st.lists(any_arguments(), min_size=1, max_size=6))
def test_columns_of_arguments(texts: list[str]) -> None:
    event = '{"ph":"X","cat":"kernel","name":"k","pid":0,"tid":7,"ts":1.5,"dur":2,"args":%s}'
    text = ",".join(event % arguments for arguments in texts) + "]"
    scanned = ScannedEvents.of(text.encode(), exact=False)
    assume(scanned is not None)
    assert scanned is not None
    selected = scanned.select(np.arange(len(texts)), lambda _: 0)
    assert selected is not None
    columns: list[Any] = []
    for part in (selected.arguments, selected.arguments._replace(at=None, keys=None)):
        arguments = EventArguments()
        arguments.add_part(part)
        columns.append([column.to_list() for column in arguments.columns(WANTED)])
        columns[-1].append(arguments.wrong)
    assert columns[0] == columns[1]


def test_usual_arguments_are_decoded_by_the_core(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gpusight.readers.chrome_columns._structs", None)
    usual = PLAIN.replace('{"a":[1,{}]}', json.dumps(USUAL)).encode()
    scanned = ScannedEvents.of(usual + b"," + PLAIN.encode() + b"]", exact=False)
    assert scanned is not None
    selected = scanned.select(np.arange(2), lambda _: 0)
    assert selected is not None
    arguments = EventArguments()
    arguments.add_part(selected.arguments)
    columns = arguments.columns(WANTED)
    values = [5, 3, "[[1,2],[]]", "n\\té", 2, 1, 0.5, None]
    assert [column.to_list() for column in columns] == [[value, None] for value in values]


def test_likely_columns_are_built_in_the_same_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    arguments = EventArguments()
    written = [b'{"a": 1, "b": 2}', b'{"b": 300}', b'{"b": "odd", "a": null}']
    arguments.add([msgspec.Raw(text) for text in written])
    first, second, absent = (
        ArgumentColumn((key,), lambda: NumberBuilder(pl.Int64)) for key in ("a", "b", "c")
    )
    (column,) = arguments.columns([first], [second, absent])
    assert (column.to_list(), arguments.wrong) == ([1, None, None], {})
    monkeypatch.setattr(EventArguments, "_built", None)
    (kept,) = arguments.columns([second])
    assert kept.to_list() == [2, 300, None]
    assert kept.dtype == pl.Int64
    assert arguments.wrong == {"b": 1}  # named only once somebody wants it
