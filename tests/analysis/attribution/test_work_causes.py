"""What caused each piece of GPU work."""

from __future__ import annotations

import gzip
import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from gpusight.analysis.attribution.nested_intervals import is_own_code, site_of_stack, text_of
from gpusight.analysis.attribution.work_causes import (
    FrameworkOperators,
    WorkSelection,
    attribute,
    causes_of_rows,
    names_of_causes,
    selected_work,
)
from gpusight.readers.tables import FrameSource
from gpusight.trace.trace import Meta, Trace
from tests.shared import DATA, EVERY_TORCH_TRACE, SHARED, name, needs_shared, opened
from tests.traces import Rows, build_trace

MAIN, AUTOGRAD = 11, 12
MACHINE: dict[str, Rows] = {
    "processes": [{"process": 1, "pid": 100}],
    "threads": [{"thread": MAIN, "tid": 100}, {"thread": AUTOGRAD, "tid": 101}],
}


def causes(trace: Trace, table: str = "kernels") -> list[dict[str, Any]]:
    """Name the causes of each row of a table."""
    frame = attribute(trace).frames[table]
    flags = frame.select(pl.col("found").cast(pl.String), "in_graph", "from_forward")
    return names_of_causes(trace, frame).hstack(flags.get_columns()).to_dicts()


def kernel(start: int, correlation: int, **more: Any) -> dict[str, Any]:
    return {"start_ns": start, "end_ns": start + 5, "correlation": correlation, "name": "k", **more}


# time      0    10   20   30   40   50   60
# linear    [------------------------)          op 1
# mm             [---------)                    op 2
# call              1           2          3    3 is outside of all operators
OPS: Rows = [
    {"start_ns": 0, "end_ns": 50, "name": "linear", "op": 1},
    {"start_ns": 10, "end_ns": 30, "name": "mm", "op": 2},
]
CALLS: Rows = [
    {"start_ns": 15, "end_ns": 16, "correlation": 101},
    {"start_ns": 40, "end_ns": 41, "correlation": 102},
    {"start_ns": 55, "end_ns": 56, "correlation": 103},
]


def test_the_operator_by_id_by_call_by_time_or_not_at_all() -> None:
    calls = [dict(CALLS[0]), {**CALLS[1], "op": 2}, dict(CALLS[2])]
    trace = build_trace(
        cpu_ops=OPS,
        api_calls=calls,
        kernels=[
            kernel(60, 101, op=1),
            kernel(61, 102),
            kernel(62, 101),
            kernel(63, 103),
            kernel(64, 999),
        ],
    )
    work_causes = [(c["op"], c["found"], c["call"]) for c in causes(trace)]
    assert work_causes == [
        ("linear", "op id", "cudaLaunchKernel"),
        ("mm", "call", "cudaLaunchKernel"),
        ("mm", "time", "cudaLaunchKernel"),
        (None, "none", "cudaLaunchKernel"),
        (None, "none", None),
    ]


def test_an_id_that_is_only_the_correlation_once_more_must_fit_in_time() -> None:
    """Profilers write the correlation id where they know no operator."""
    ops = [*OPS, {"start_ns": 70, "end_ns": 80, "name": "later", "op": 101}]
    launches = [{"start_ns": 75, "end_ns": 76, "correlation": 101}]
    by_chance = build_trace(cpu_ops=ops, api_calls=CALLS, kernels=[kernel(60, 101, op=101)])
    meant = build_trace(cpu_ops=ops, api_calls=launches, kernels=[kernel(90, 101, op=101)])
    assert [(c["op"], c["found"]) for c in causes(by_chance)] == [("mm", "time")]
    assert [(c["op"], c["found"]) for c in causes(meant)] == [("later", "op id")]


def test_an_id_that_comes_twice_must_fit_in_time() -> None:
    ops = [*OPS, {"start_ns": 52, "end_ns": 58, "name": "again", "op": 2}]
    trace = build_trace(
        cpu_ops=ops, api_calls=CALLS, kernels=[kernel(60, 101, op=2), kernel(61, 103, op=2)]
    )
    assert [(c["op"], c["found"]) for c in causes(trace)] == [("mm", "op id"), ("again", "time")]


def test_processes_are_kept_apart() -> None:
    other = {"process": 2, "thread": 21}
    trace = build_trace(
        cpu_ops=[*OPS, {"start_ns": 5, "end_ns": 45, "name": "other", "op": 2, **other}],
        api_calls=[*CALLS, {**CALLS[0], **other}],
        kernels=[
            kernel(60, 101, op=2),
            kernel(61, 101, op=2, process=2),
            kernel(62, 101, process=2),
        ],
    )
    assert [(c["op"], c["found"]) for c in causes(trace)] == [
        ("mm", "op id"),
        ("other", "op id"),
        ("other", "time"),
    ]


def test_copies_fills_and_whole_graphs_have_causes_too() -> None:
    work = {"start_ns": 60, "end_ns": 65, "correlation": 101}
    trace = build_trace(
        cpu_ops=OPS, api_calls=CALLS, copies=[work], memsets=[work], graph_launches=[work]
    )
    for table in ("copies", "memsets", "graph_launches"):
        (result,) = causes(trace, table)
        assert (result["op"], result["in_graph"]) == ("mm", False)
    assert attribute(trace).frames["kernels"].height == 0


# A training step: forward on the main thread, backward on autograd's.
#
# time           0    10   20   30   40   50   60   70   80   90
# step (range)   [----------------------------------------)
# train.py       [-----------------------------------------)
# model.py         [-------------)
# Linear_0           [---------)
# torch/…              [----)
# aten::addmm            [-)              sequence 7
# backward of it                     [------)    on autograd's thread, sequence 7
# AccumulateGrad                               [--)
PYTHON: Rows = [
    {"start_ns": 0, "end_ns": 88, "name": "train.py(3): main"},
    {"start_ns": 4, "end_ns": 34, "name": "model.py(9): forward"},
    {"start_ns": 8, "end_ns": 30, "name": "nn.Module: Linear_0"},
    {"start_ns": 12, "end_ns": 24, "name": "torch/nn/functional.py(5): linear"},
    {"start_ns": 13, "end_ns": 23, "name": "<built-in function linear>"},
]
SERVING_7 = {"sequence": 7, "forward_thread": 1, "thread": AUTOGRAD}
STEP: dict[str, Rows] = {
    **MACHINE,
    "ranges": [{"start_ns": 0, "end_ns": 85, "name": "step"}],
    "python_calls": PYTHON,
    "cpu_ops": [
        {"start_ns": 14, "end_ns": 18, "name": "aten::t", "op": 1, "sequence": 7},
        {"start_ns": 19, "end_ns": 23, "name": "aten::addmm", "op": 2, "sequence": 7},
        {"start_ns": 40, "end_ns": 56, "name": "AddmmBackward0", "op": 3, **SERVING_7},
        {"start_ns": 42, "end_ns": 50, "name": "aten::mm", "op": 4, "thread": AUTOGRAD},
        {"start_ns": 60, "end_ns": 66, "name": "AccumulateGrad", "op": 5, "thread": AUTOGRAD},
    ],
    "api_calls": [
        {"start_ns": 20, "end_ns": 21, "correlation": 1},
        {"start_ns": 44, "end_ns": 45, "correlation": 2, "thread": AUTOGRAD},
        {"start_ns": 62, "end_ns": 63, "correlation": 3, "thread": AUTOGRAD},
    ],
    "kernels": [kernel(30, 1, op=2), kernel(50, 2, op=4), kernel(70, 3, op=5)],
}
SHOWN = ("op", "forward_op", "range", "module", "call_site", "from_forward")


def test_a_backward_kernel_has_the_module_and_the_line_of_its_forward_operator() -> None:
    work_causes = [tuple(c[key] for key in SHOWN) for c in causes(build_trace(None, **STEP))]
    there = ("step", "nn.Module: Linear_0", "model.py(9): forward")
    assert work_causes == [
        ("aten::addmm", None, *there, False),
        ("aten::mm", "aten::addmm", *there, True),
        ("AccumulateGrad", None, "step", None, None, False),
    ]


def test_the_range_of_the_forward_operator_is_there_too() -> None:
    ranges = [*STEP["ranges"], {"start_ns": 2, "end_ns": 36, "name": "forward"}]
    trace = build_trace(None, **{**STEP, "ranges": ranges})
    frame = attribute(trace).frames["kernels"]
    names = trace.ranges["name"].cast(pl.String)
    assert names.gather(frame["range"]).to_list() == ["forward", "step", "step"]
    assert names.gather(frame["forward_range"]).to_list() == [None, "forward", None]


def test_python_on_the_launching_thread_goes_before_that_of_the_forward() -> None:
    """A backward written in Python runs on autograd's thread; the framework's code says less."""
    own = {"start_ns": 41, "end_ns": 55, "thread": AUTOGRAD}
    rows = [*PYTHON, {**own, "name": "mine.py(4): backward"}]
    trace = build_trace(None, **{**STEP, "python_calls": rows})
    assert causes(trace)[1]["call_site"] == "mine.py(4): backward"
    assert causes(trace)[1]["module"] == "nn.Module: Linear_0"
    rows = [*PYTHON, {**own, "name": "torch/autograd/graph.py(8): run"}]
    trace = build_trace(None, **{**STEP, "python_calls": rows})
    assert causes(trace)[1]["call_site"] == "model.py(9): forward"


def test_without_any_code_of_the_user_the_innermost_frame_is_the_call_site() -> None:
    trace = build_trace(None, **{**STEP, "python_calls": PYTHON[3:]})
    assert causes(trace)[0]["call_site"] == "torch/nn/functional.py(5): linear"
    trace = build_trace(None, **{**STEP, "python_calls": PYTHON[4:]})
    assert causes(trace)[0]["call_site"] == "<built-in function linear>"


def test_sequence_numbers_that_two_threads_used_are_told_apart() -> None:
    """Recomputed operators count on autograd's thread, with numbers that the main one has too."""
    back = {"thread": AUTOGRAD, "name": "backward"}
    trace = build_trace(
        cpu_ops=[
            {"start_ns": 0, "end_ns": 5, "name": "first", "sequence": 7},
            {"start_ns": 6, "end_ns": 9, "name": "second", "sequence": 8},
            {"start_ns": 20, "end_ns": 25, "name": "again", "sequence": 8, "thread": AUTOGRAD},
            {"start_ns": 26, "end_ns": 29, "name": "more", "sequence": 9, "thread": AUTOGRAD},
            {"start_ns": 30, "end_ns": 35, "sequence": 9, "forward_thread": 2, "op": 1, **back},
            {"start_ns": 36, "end_ns": 39, "sequence": 8, "forward_thread": 2, "op": 2, **back},
            {"start_ns": 40, "end_ns": 45, "sequence": 8, "forward_thread": 1, "op": 3, **back},
            {"start_ns": 46, "end_ns": 49, "sequence": 7, "forward_thread": 1, "op": 4, **back},
            {"start_ns": 50, "end_ns": 55, "sequence": 8, "forward_thread": 3, "op": 5, **back},
        ],
        kernels=[kernel(60 + op, 100 + op, op=op) for op in range(1, 6)],
    )
    work_causes = [c["forward_op"] for c in causes(trace)]
    assert work_causes == ["more", "again", "second", "first", None]


def test_without_a_known_main_thread_any_range_of_the_process_counts() -> None:
    rows = {key: value for key, value in STEP.items() if key not in MACHINE}
    assert [c["range"] for c in causes(build_trace(None, **rows))] == ["step", "step", "step"]
    apart = [{"start_ns": 0, "end_ns": 85, "name": "step", "process": 9, "thread": 91}]
    trace = build_trace(None, **{**rows, "ranges": apart})
    assert [c["range"] for c in causes(trace)] == [None, None, None]


def test_only_push_pop_ranges_hold_launches() -> None:
    ranges = [*STEP["ranges"], {"start_ns": 19, "end_ns": 30, "name": "loose", "kind": "start_end"}]
    assert causes(build_trace(None, **{**STEP, "ranges": ranges}))[0]["range"] == "step"


@pytest.mark.parametrize("launch", ["cudaGraphLaunch", "cuGraphLaunch", "hipGraphLaunch"])
def test_kernels_inside_a_graph_belong_to_its_launch(launch: str) -> None:
    trace = build_trace(
        ranges=[{"start_ns": 0, "end_ns": 50, "name": "replay"}],
        cpu_ops=OPS,
        api_calls=[{"start_ns": 15, "end_ns": 16, "correlation": 5, "name": launch}],
        kernels=[kernel(20, 5, op=1), kernel(25, 5), kernel(30, 6, graph_node=3)],
    )
    work_causes = [(c["op"], c["range"], c["in_graph"]) for c in causes(trace)]
    assert work_causes == [("mm", "replay", True), ("mm", "replay", True), (None, None, True)]
    (note,) = selected_work(WorkSelection(trace)).notes
    assert note.startswith("3 GPU activities ran inside CUDA graphs: only the launch of the")


def test_older_traces_have_stacks_on_operators() -> None:
    stack = (
        "/e/site-packages/torch/nn/functional.py(5): linear;model.py(9): forward;train.py(3): main"
    )
    ops = [
        {"start_ns": 0, "end_ns": 30, "name": "linear", "stack": stack, "sequence": 7},
        {"start_ns": 5, "end_ns": 20, "name": "mm", "op": 2},
        {"start_ns": 40, "end_ns": 50, "name": "MmBackward", "op": 3, **SERVING_7},
    ]
    trace = build_trace(cpu_ops=ops, kernels=[kernel(60, 1, op=2), kernel(70, 2, op=3)])
    work_causes = [(c["call_site"], c["from_forward"]) for c in causes(trace)]
    assert work_causes == [("model.py(9): forward", False), ("model.py(9): forward", True)]


@pytest.mark.parametrize(
    ("frame", "own"),
    [
        ("train.py(3): main", True),
        ("src/model/block.py(12): forward", True),
        ("/srv/src/model.py(12): <lambda>", True),
        ("~/train.py(3): main", True),
        ("C:\\code\\train.py(3): main", True),
        ("<ipython-input-3-abc>(1): <module>", True),
        ("torchvision/models/resnet.py(266): forward", True),
        ("/e/lib/python3.10/site-packages/transformers/trainer.py(9): train", True),
        ("torch/nn/modules/module.py(1783): _call_impl", False),
        ("/e/lib/python3.10/site-packages/torch/nn/functional.py(5): linear", False),
        ("/usr/lib/python3/dist-packages/torch/_ops.py(1): __call__", False),
        ("triton/runtime/jit.py(9): run", False),
        ("contextlib.py(299): helper", False),
        ("/usr/lib/python3.12/asyncio/events.py(4): run", False),
        ("threading.py(10): run", False),
        ("/tmp/torchinductor_me/ab/cd.py(30): call", False),
        ("gy/cgybawuvq7x2mz5nq7x2mz5nq7x2mz5nq7x2mz5nq7x2mz5ndlo.py(114): call", False),
        ("D:\\cache\\gy\\cgybawuvq7x2mz5nq7x2mz5nq7x2mz5nq7x2mz5nq7x2mz5ndlo.py(114): call", False),
        ("gy/callbacks.py(114): call", True),
        ("gyro/cgybawuvq7x2mz5nq7x2mz5nq7x2mz5nq7x2mz5nq7x2mz5ndlo.py(114): call", True),
        ("<frozen os>(680): __getitem__", False),
        ("<built-in function linear>", False),
        ("nn.Module: Linear_0", False),
        ("train.py", False),
        ("", False),
        ("gpusight/recording/inside/torch_recorder.py(76): step_began", False),
    ],
)
def test_code_of_the_user(frame: str, own: bool) -> None:
    assert is_own_code(frame) is own


def test_the_call_site_of_a_stack() -> None:
    inner, outer = "torch/nn/functional.py(5): linear", "train.py(3): main"
    assert site_of_stack(f"{inner};{outer}") == outer
    assert site_of_stack(inner) == inner
    assert site_of_stack(";;") is None


def test_compiled_code_is_called_from_a_line_of_the_user() -> None:
    trace = opened(DATA / "torch_odd.json.gz")
    fused = trace.table("kernels", ["name"])["name"].cast(pl.String).str.starts_with("triton_")
    work_causes = [c["call_site"] for c, ours in zip(causes(trace), fused, strict=True) if ours]
    assert work_causes == ["torch_odd.py(43): fused"] * 3


def test_odd_rows_are_survived() -> None:
    """Operators that cross, of no thread, of no length; work of no process; nothing at all."""
    trace = build_trace(
        cpu_ops=[
            {"start_ns": 0, "end_ns": 20, "name": "a", "thread": None},
            {"start_ns": 5, "end_ns": 15, "name": "b", "op": 0},
            {"start_ns": 10, "end_ns": 30, "name": "c", "op": -4},
            {"start_ns": 12, "end_ns": 12, "name": "d"},
        ],
        api_calls=[
            {"start_ns": 12, "correlation": 1},
            {"start_ns": 12, "correlation": 2, "thread": None},
            {"start_ns": 17, "correlation": 3, "process": None},
        ],
        kernels=[kernel(40, 1, op=0), kernel(41, 2, op=-4), kernel(42, 3, process=None)],
    )
    assert [(c["op"], c["found"]) for c in causes(trace)] == [
        ("c", "time"),
        (None, "none"),
        (None, "none"),
    ]
    assert all(f.is_empty() for f in attribute(build_trace()).frames.values())
    assert [c["found"] for c in causes(build_trace(kernels=[kernel(0, 1, op=3)]))] == ["none"]


WITH_ARROWS = [
    DATA / "torch_checkpoint.json.gz",
    DATA / "torch_odd.json.gz",
    *(SHARED / "torch" / f"{n}.json.gz" for n in ("conv", "item", "gpt_small_train_bf16_fused")),
]


def test_threads_and_processes_without_number_take_no_time() -> None:
    """Every event on a thread and a process of its own, with keys from all over the range."""
    n = 20_000
    far = 1 << 61
    start = pl.int_range(n, eager=True)
    own = {"start_ns": start, "process": start + far // 2, "thread": start * (far // n)}
    trace = Trace(
        FrameSource.of(
            Meta(path="", source="torch-chrome", tool=""),
            {
                "cpu_ops": pl.DataFrame(
                    {**own, "end_ns": start + 9, "op": far - start, "name": ["a"] * n}
                ),
                "api_calls": pl.DataFrame(
                    {**own, "end_ns": start + 5, "correlation": far - start, "name": ["c"] * n}
                ),
                "kernels": pl.DataFrame(
                    {
                        "start_ns": start,
                        "end_ns": start + 5,
                        "process": own["process"],
                        "correlation": far - start,
                        "device": [0] * n,
                        "name": ["k"] * n,
                    }
                ),
            },
        )
    )
    began = time.process_time()
    assert (attribute(trace).frames["kernels"]["found"] == "time").sum() == n
    assert time.process_time() - began < 5


def arrows(path: Path, origin: int) -> dict[tuple[int, int], tuple[int, int]]:
    """Give the arrows that PyTorch drew to backward operators from forward ones: (start, tid)."""
    with gzip.open(path) as file:
        events = json.load(file)["traceEvents"]
    first = min(round(e["ts"] * 1000) for e in events if e.get("cat") == "cpu_op")
    ends: dict[str, dict[int, tuple[int, int]]] = {"s": {}, "f": {}}
    for event in events:
        if event.get("cat") == "fwdbwd":
            start = round(event["ts"] * 1000) - first + origin
            ends[event["ph"]][event["id"]] = (start, event["tid"])
    return {back: ends["s"][arrow] for arrow, back in ends["f"].items()}


@pytest.mark.parametrize("path", [p for p in WITH_ARROWS if p.exists()], ids=name)
def test_backward_operators_are_led_back_as_pytorch_itself_does(path: Path) -> None:
    trace = opened(path)
    ops = trace.table("cpu_ops", ["start_ns", "thread"])
    rows = {(start, key & 0xFFFFFFFF): row for row, (start, key) in enumerate(ops.iter_rows())}
    drawn = arrows(path, origin=int(ops["start_ns"][0]))
    assert len(drawn) > 50
    backward = np.array([rows[back] for back in drawn])
    forward = FrameworkOperators(trace).forward(backward)
    assert forward.tolist() == [rows[there] for there in drawn.values()]


def test_every_kernel_of_a_torch_trace_has_its_operator_and_line() -> None:
    trace = opened(DATA / "torch_odd.json.gz")
    work_causes = causes(trace)
    outside = [c for c in work_causes if not c["in_graph"]]
    assert all(c["op"] and c["call"] and c["range"] and c["call_site"] for c in outside)
    assert {c["found"] for c in outside} == {"op id"}
    assert {c["call"] for c in work_causes if c["in_graph"]} == {"cudaGraphLaunch"}


def test_an_nsys_capture_has_calls_and_ranges() -> None:
    trace = opened(DATA / "graph_node.sqlite")
    work_causes = causes(trace)
    assert {(c["call"], c["range"], c["op"]) for c in work_causes} == {
        ("cudaGraphLaunch", "replay", None)
    }


@needs_shared
@pytest.mark.parametrize("path", EVERY_TORCH_TRACE, ids=name)
def test_ids_and_times_agree_wherever_both_are_known(path: Path) -> None:
    """What the profiler wrote and what was open at the launch are the same, or one in the other."""
    trace = opened(path)
    frame = attribute(trace).frames["kernels"].filter(pl.col("found") == "op id")
    frame = frame.filter(pl.col("call").is_not_null())
    ops = trace.table("cpu_ops", ["start_ns", "end_ns"]).select(pl.all().gather(frame["op"]))
    began = trace.table("api_calls", ["start_ns"])["start_ns"].gather(frame["call"])
    assert ((ops["start_ns"] <= began) & (began <= ops["end_ns"])).all()


MEMORY = Path("/proc/self/statm")


@pytest.mark.skipif(not MEMORY.exists(), reason="the system does not say what is in memory")
def test_long_names_are_not_written_for_each_row() -> None:
    long = "b" * 1_000_000
    names = pl.Series("name", ["a", long], dtype=pl.Enum(["a", long]))
    rows = pl.Series([1, None, 0] * 1_000)
    before = int(MEMORY.read_text(encoding="ascii").split()[1])
    text = text_of(names, rows)
    pages = int(MEMORY.read_text(encoding="ascii").split()[1]) - before
    assert text[:3].to_list() == [long, None, "a"]
    assert text.name == "name"
    assert text.dtype == pl.String
    # A thousand copies are a gigabyte.
    assert pages * 4096 < 200e6


def test_names_that_are_plain_text_stay_so() -> None:
    text = text_of(pl.Series("name", ["a", "b"]), pl.Series([1, None]))
    assert text.to_list() == ["b", None]


@pytest.mark.parametrize("capture", ["torch_checkpoint.json.gz", "gpt_small_forward.sqlite"])
def test_of_some_rows_the_causes_are_those_of_all(capture: str) -> None:
    trace = opened(DATA / capture)
    frames = {table: f for table, f in attribute(trace).frames.items() if f.height}
    for step in (7, 1):
        rows = {table: pl.Series(range(1, f.height, step)) for table, f in frames.items()}
        every = pl.concat([frames[table][of_table] for table, of_table in rows.items()])
        assert causes_of_rows(trace, rows).equals(every)
