"""JAX's traces in Chrome's format, beside the profiles of the same runs."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import polars as pl
import pytest

from gpusight.errors import NotACaptureError
from gpusight.readers.open import open_trace
from gpusight.trace.trace import Trace
from tests.shared import DATA

CAPTURES = ("jax_small", "jax_graph")
SHARED_TABLES = {
    "kernels": ["name", "device", "stream", "correlation", "grid_x", "block_x", "shared_bytes"],
    "copies": ["kind", "bytes", "src_kind", "dst_kind", "correlation"],
    "memsets": ["bytes", "memory_kind", "correlation"],
    "ranges": ["name", "kind", "payload_int"],
    "api_calls": ["name", "correlation"],
    "python_calls": ["name"],
}


def pair(name: str) -> tuple[Trace, Trace]:
    trace = open_trace(DATA / f"{name}.trace.json.gz", cache=False)
    return trace, open_trace(DATA / f"{name}.xplane.pb", cache=False)


@pytest.mark.parametrize("name", CAPTURES)
@pytest.mark.parametrize("table", SHARED_TABLES)
def test_both_forms_hold_the_same(name: str, table: str) -> None:
    ours, theirs = (
        t.table(table, ["start_ns", "end_ns", *SHARED_TABLES[table]]) for t in pair(name)
    )
    assert ours.height == theirs.height
    keys = SHARED_TABLES[table]
    assert sorted(ours.select(keys).rows(), key=str) == sorted(theirs.select(keys).rows(), key=str)
    lengths = [(f["end_ns"] - f["start_ns"]).sort() for f in (ours, theirs)]
    assert (lengths[0] - lengths[1]).abs().max() in (None, 0, 1), "rounded to nanoseconds"


@pytest.mark.parametrize("name", CAPTURES)
def test_the_trace_is_whole(name: str) -> None:
    trace, _ = pair(name)
    trace.validate()
    assert (trace.meta.tool, trace.meta.source) == ("JAX profiler", "jax-chrome")
    assert not [note for note in trace.meta.notes if "phase" in note]
    assert trace.devices["device"].to_list() == [0]
    kernels = trace.table("kernels", ["start_ns", "stream"]).sort("start_ns")
    assert kernels["start_ns"].min() >= 0  # type: ignore[operator]
    assert set(trace.threads["thread"]) >= set(trace.ranges["thread"])


def test_a_trace_of_something_else_with_processes(tmp_path: Path) -> None:
    named = {"ph": "M", "pid": 1, "name": "process_name", "args": {"name": "my server"}}
    event = {"ph": "X", "pid": 1, "tid": 1, "ts": 1, "dur": 1, "name": "x"}
    path = tmp_path / "t.json.gz"
    path.write_bytes(gzip.compress(json.dumps({"traceEvents": [named, event, {}]}).encode()))
    with pytest.raises(NotACaptureError, match="not one of PyTorch or JAX"):
        open_trace(path, cache=False).has("kernels")


def test_a_plane_may_begin_like_json(tmp_path: Path) -> None:
    """A first plane of 91 or 123 bytes: its length is a bracket."""
    from tests.readers.jax.xspaces import event, line, plane, space

    for size in (91, 123):
        lead = plane("/host:CPU", line("python3", event("x" * 10, 0, 5)))
        for extra in range(200):
            made = space(plane("/host:CPU", line("python3", event("x" * extra, 0, 5))), lead)
            if made[1] == size:
                break
        else:
            pytest.skip("the builder makes no plane of that length")
        path = tmp_path / f"{size}.xplane.pb"
        path.write_bytes(made)
        assert open_trace(path, cache=False).has("ranges")


def test_steps_and_annotations() -> None:
    trace, _ = pair("jax_small")
    names = trace.table("ranges", ["name"])["name"].cast(pl.String).to_list()
    assert [n for n in names if "#" in n] == sorted(n for n in names if "#" in n)
    assert any("#" in n for n in names)
