"""Findings of host time name the line of the program behind them."""

from __future__ import annotations

import pytest

import gpusight as gs
from gpusight.rules.finding import StackLine
from gpusight.rules.patterns.stack_lines import code_with_line, fix_with_lines, title_with_line
from tests.analysis.hotspots.stack_traces import MS, loader_trace

COLLATE = StackLine("/home/ada/train.py", 88, "collate", 61.0 * MS, 0.9, ran=True)
RARE = StackLine("/home/ada/train.py", 90, "main", 6.0 * MS, 0.1, ran=True)


@pytest.mark.parametrize(
    ("title", "named"),
    [
        (
            "Data loading (`next`) stalls the GPU 61 ms/step",
            "Data loading (`train.py:88 collate`) stalls the GPU 61 ms/step",
        ),
        (
            "Data loading (before H2D copies) stalls the GPU 61 ms/step",
            "Data loading (`train.py:88 collate`) stalls the GPU 61 ms/step",
        ),
        (
            "Host work between steps: GPU idle 61 ms/step",
            "Host work between steps (`train.py:88 collate`): GPU idle 61 ms/step",
        ),
        ("12 blocking syncs per step", "12 blocking syncs per step (`train.py:88 collate`)"),
        (
            "Other host code (`a`, `b` and `c`): GPU idle 61 ms/step",
            "Other host code (`train.py:88 collate`): GPU idle 61 ms/step",
        ),
    ],
)
def test_titles(title: str, named: str) -> None:
    assert title_with_line(title, (COLLATE, RARE)) == named


def test_a_line_with_little_of_the_time_is_not_in_the_title() -> None:
    assert title_with_line("Host code: GPU idle 1 ms", (RARE,)) == "Host code: GPU idle 1 ms"
    function_only = StackLine("train.py", 80, "main", 1.0, 1.0, ran=False)
    assert title_with_line("Host code: GPU idle 1 ms", (function_only,)) == (
        "Host code: GPU idle 1 ms"
    )


def test_advice_and_snippet_refer_to_the_line() -> None:
    assert code_with_line("loader = …", (COLLATE,), "#") == "# train.py:88 collate\nloader = …"
    assert code_with_line("", (COLLATE,), "#") == ""
    assert fix_with_lines("Move it.", (COLLATE, RARE)) == (
        "Move it. Lines: `train.py:88 collate` (90%), `train.py:90 main` (10%)."
    )
    assert fix_with_lines("Move it.", ()) == "Move it."


def test_a_host_finding_names_its_line() -> None:
    [finding] = gs.diagnose(loader_trace()).to_dict()["findings"]
    assert "(`train.py:88 collate`): GPU idle 12.0 ms/step" in finding["title"]
    assert finding["lines"][0] == {
        "file": "/home/ada/train.py",
        "line": 88,
        "function": "collate",
        "ns": 6.0 * 12 * MS,
        "share": 1.0,
    }
    assert "train.py:88 collate" in finding["code"].splitlines()[0]
    assert "train.py:88 collate" in repr(gs.diagnose(loader_trace()))


def test_without_stacks_there_are_no_lines() -> None:
    [finding] = gs.diagnose(loader_trace(stack_samples=[])).to_dict()["findings"]
    assert finding["lines"] == []
    assert "train.py" not in finding["title"]


def test_the_line_that_syncs() -> None:
    """Kernels of 1 ms, each followed by a copy that blocks: `forward` reads values back."""
    trace = loader_trace()
    calls, kernels, copies = [], [], []
    for at in range(60):
        begin = at * 2 * MS
        calls += [
            {"start_ns": begin, "end_ns": begin + 10_000, "correlation": 2 * at + 1},
            {
                "start_ns": begin + 20_000,
                "end_ns": begin + 1_050_000,
                "name": "cudaMemcpyAsync",
                "correlation": 2 * at + 2,
            },
            {
                "start_ns": begin + 1_050_000,
                "end_ns": begin + 1_900_000,
                "name": "cudaStreamSynchronize",
            },
        ]
        kernels.append(
            {
                "start_ns": begin + 10_000,
                "end_ns": begin + 1 * MS,
                "name": "gemm",
                "correlation": 2 * at + 1,
            }
        )
        copies.append(
            {
                "start_ns": begin + 1 * MS + 40_000,
                "end_ns": begin + 1 * MS + 45_000,
                "kind": "Device-to-Host",
                "src_kind": "Device",
                "dst_kind": "Pageable",
                "bytes": 4,
                "correlation": 2 * at + 2,
            }
        )
    samples = [
        row | {"stack": 2} for row in trace.table("stack_samples").drop("process").to_dicts()
    ]
    busy = loader_trace(api_calls=calls, kernels=kernels, copies=copies, stack_samples=samples)
    findings = {f["rule"]: f for f in gs.diagnose(busy).to_dict()["findings"]}
    assert findings["host-sync"]["lines"][0]["function"] == "forward"
