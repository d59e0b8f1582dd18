"""The five questions on real captures; the figures come from SQL over the captures themselves."""

from __future__ import annotations

import sqlite3
from collections import Counter
from contextlib import closing
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import pytest

from gpusight.analysis.questions.attention_question import AttentionSizes
from gpusight.analysis.questions.question_answers import questions
from gpusight.errors import GpusightError
from gpusight.readers.open import open_trace
from gpusight.render.table_layout import TableOptions
from gpusight.render.terminal_tables import to_plain
from gpusight.results import Composite, NotApplicable
from tests.shared import DATA, EVERY_REPORT, EVERY_SQLITE, EVERY_TORCH_TRACE, SHARED, needs_shared
from tests.shared import name as capture

GPT = AttentionSizes.of("4,12,512,64")
Kernel = tuple[int, int, str, int]
"""Begin, end, name and when its launch began."""


def answers(path: Path, **options: Any) -> dict[str, Any]:
    other = options.pop("compare", None)
    if other is not None:
        options["compare"] = open_trace(other, cache=False)
    found = questions(open_trace(path, cache=False), **options)
    assert isinstance(found, Composite), found
    told: dict[str, Any] = found.meta["answers"]
    return told


def recorded(path: Path) -> tuple[dict[str, list[tuple[int, int]]], list[Kernel]]:
    """Read ranges by name, and kernels, from an SQLite export."""
    with closing(sqlite3.connect(f"file:{path}?immutable=1", uri=True)) as base:
        ranges: dict[str, list[tuple[int, int]]] = {}
        for name, start, end in base.execute(
            "SELECT coalesce(n.text, s.value), n.start, n.end FROM NVTX_EVENTS n"
            " LEFT JOIN StringIds s ON s.id = n.textId"
            " WHERE n.eventType = 59 AND n.end IS NOT NULL ORDER BY n.start"
        ):
            ranges.setdefault(name, []).append((start, end))
        kernels = base.execute(
            "SELECT k.start, k.end, s.value, r.start FROM CUPTI_ACTIVITY_KIND_KERNEL k"
            " JOIN StringIds s ON s.id = k.demangledName"
            " JOIN CUPTI_ACTIVITY_KIND_RUNTIME r ON r.correlationId = k.correlationId"
        ).fetchall()
    return ranges, kernels


def inside(kernels: list[Kernel], spans: list[tuple[int, int]]) -> list[list[Kernel]]:
    return [[k for k in kernels if start <= k[3] < end] for start, end in spans]


def spent(kernels: list[Kernel]) -> int:
    return sum(end - start for start, end, *_ in kernels)


def flat(parts: list[list[Kernel]]) -> list[Kernel]:
    return [kernel for part in parts for kernel in part]


def top(kernels: list[Kernel], count: int) -> tuple[str, float, float]:
    """Name the kernel with most time; its time and launches in one of `count` passes."""
    times, calls = Counter[str](), Counter[str]()
    for start, end, name, _ in kernels:
        times[name] += end - start
        calls[name] += 1
    name, most = times.most_common(1)[0]
    return name, most / count, calls[name] / count


def check_forward(path: Path) -> None:
    told = answers(path, model=GPT)
    ranges, kernels = recorded(path)
    passes = ranges["forward"]
    each = inside(kernels, passes)
    host = [end - start for start, end in passes]
    done = [max(e, max(k[1] for k in p)) - s for (s, e), p in zip(passes, each, strict=True)]
    assert told["a"]["passes"] == len(passes)
    assert told["a"]["host_ns"] == pytest.approx(fmean(host))
    assert told["a"]["host_stddev_ns"] == pytest.approx(stdev(host))
    assert told["a"]["complete_ns"] == pytest.approx(fmean(done))
    name, time, launches = top(flat(each), len(passes))
    forward = told["b"]["forward"]
    assert forward["name"] == name
    assert (forward["pass_ns"], forward["launches"]) == pytest.approx((time, launches))
    products = [k for k in flat(each) if "gemm" in k[2] or "splitK" in k[2]]
    assert told["c"]["matmul_share"] == pytest.approx(spent(products) / spent(flat(each)))
    for part, range_ in (("softmax", "computing_softmax"), ("final", "final_matmul")):
        of_part = flat(inside(kernels, ranges[range_]))
        own = [k for k in of_part if part == "softmax" or "gemm" in k[2]]
        assert told["e"][f"{part}_calls"] == len(ranges[range_]) / len(passes)
        assert told["e"][f"{part}_call_ns"] == pytest.approx(spent(own) / len(ranges[range_]))
    assert told["e"]["scores_flops"] == 1_610_612_736
    assert told["e"]["flops_ratio"] == pytest.approx(1 / 25.6)


def test_a_forward_capture_equals_what_sql_says() -> None:
    check_forward(DATA / "gpt_small_forward.sqlite")


@needs_shared
@pytest.mark.parametrize("name", ["gpt_small_fwdbwd", "gpt_small_train"])
def test_training_captures_equal_what_sql_says(name: str) -> None:
    path = SHARED / "nsys" / f"{name}.sqlite"
    check_forward(path)
    told = answers(path)
    ranges, kernels = recorded(path)
    passes = len(ranges["forward"])
    both = flat(inside(kernels, [*ranges["forward"], *ranges["backward"]]))
    name_, time, launches = top(both, passes)
    found = told["b"]["forward+backward"]
    assert found["name"] == name_
    assert (found["pass_ns"], found["launches"]) == pytest.approx((time, launches))
    steps = flat(inside(kernels, [ranges[n][0] for n in ranges if n.startswith("step_")]))
    optimizer = flat(inside(kernels, ranges.get("optimizer", [])))
    assert told["d"]["training"]["optimizer"] == pytest.approx(spent(optimizer) / spent(steps))


def test_the_trace_of_the_same_program_says_the_same() -> None:
    """Without ranges: passes from the repetition of kernels, FLOPs from recorded sizes."""
    nsys = answers(DATA / "gpt_small_forward.sqlite", model=GPT)
    torch = answers(DATA / "gpt_small_forward.json.gz")
    assert torch["a"]["passes"] == nsys["a"]["passes"] == 3
    assert torch["b"]["forward"]["launches"] == nsys["b"]["forward"]["launches"] == 24
    assert torch["b"]["forward"]["pass_ns"] == pytest.approx(
        nsys["b"]["forward"]["pass_ns"], rel=0.01
    )
    assert torch["c"]["share"] == pytest.approx(nsys["c"]["share"], rel=0.01)
    for key in ("scores_flops", "softmax_flops", "final_flops", "scores_calls"):
        assert torch["e"][key] == nsys["e"][key]
    assert torch["e"]["time_ratio"] == pytest.approx(nsys["e"]["time_ratio"], rel=0.05)


@needs_shared
def test_training_without_ranges_is_told_by_autograd() -> None:
    nsys = answers(SHARED / "nsys" / "gpt_small_train.sqlite")
    torch = answers(SHARED / "torch" / "gpt_small_train.json.gz")
    for part, launches in (("forward", 24), ("forward+backward", 48), ("step", 48)):
        assert torch["b"][part]["launches"] == nsys["b"][part]["launches"] == launches
    for side in ("inference", "training"):
        for group, share in nsys["d"][side].items():
            assert torch["d"][side][group] == pytest.approx(share, abs=0.005)


@needs_shared
def test_what_autograd_launches_is_no_forward_pass() -> None:
    """An old trace, whose operators on autograd's thread are numbered like forward ones."""
    (path,) = (SHARED / "public" / "torch").glob("kineto__tb_plugin*num_workers_0*")
    told = answers(path, steps="all")
    assert told["a"]["passes"] == 6
    assert told["b"]["forward+backward"]["name"] != told["b"]["forward"]["name"]


@needs_shared
def test_forward_against_training() -> None:
    folder = SHARED / "nsys"
    forward, train = folder / "gpt_small_forward.sqlite", folder / "gpt_small_train.sqlite"
    told = answers(forward, compare=train)["d"]
    assert told == answers(train, compare=forward)["d"]
    assert told["inference"]["matmul"] == pytest.approx(0.8371, abs=1e-4)
    assert told["training"]["matmul"] == pytest.approx(0.7872, abs=1e-4)
    assert (told["inference"]["optimizer"], told["training"]["optimizer"]) == (
        0,
        pytest.approx(0.0714, abs=1e-4),
    )


@needs_shared
@pytest.mark.parametrize("path", [*EVERY_SQLITE, *EVERY_REPORT, *EVERY_TORCH_TRACE], ids=capture)
def test_every_capture_answers_or_says_why(path: Path) -> None:
    try:
        found = questions(open_trace(path, cache=False))
    except GpusightError:
        return
    text = to_plain(found, TableOptions(width=80, limit=20))
    assert max(map(len, text.splitlines())) <= 80
    if isinstance(found, NotApplicable):
        assert found.reason
        return
    shares = found.meta["answers"]["d"]
    for side in ("inference", "training"):
        if shares["answer"]:
            assert sum(shares[side].values()) == pytest.approx(1)
    for told in found.meta["answers"].values():
        assert told["answer"] or told["why"]
