"""Ranges as a tree: what lies within what, which names are one, what a large one leaves out."""

from __future__ import annotations

import pytest

from gpusight.analysis.selection import Selection
from gpusight.reports import range_tree as module
from gpusight.reports.range_tree import MAX_NODES, RangeTree, range_tree
from gpusight.results import NotApplicable
from gpusight.trace.trace import Trace
from tests.traces import Rows, build_trace


def ranges(*rows: tuple[str, int, int], thread: int = 11) -> list[dict[str, object]]:
    return [{"name": n, "start_ns": a, "end_ns": b, "thread": thread} for n, a, b in rows]


def tree(trace: Trace, **options: object) -> RangeTree:
    nodes = range_tree(trace, **options)  # type: ignore[arg-type]
    assert isinstance(nodes, RangeTree)
    return nodes


def listed(nodes: RangeTree) -> list[tuple[str, int, int]]:
    """Give path, times and host time of every node, in order."""
    paths: list[str] = []
    for node, parent in enumerate(nodes.parent.tolist()):
        number = int(nodes.name[node])
        name = nodes.names[number] if number >= 0 else f"{nodes.smaller[node]} smaller"
        paths.append(name if parent < 0 else f"{paths[parent]}/{name}")
    return list(zip(paths, nodes.calls.tolist(), nodes.host_ns.tolist(), strict=True))


STEPS: Rows = ranges(
    ("step_0", 0, 100),
    ("forward", 2, 42),
    ("attn", 10, 20),
    ("backward", 42, 92),
    ("attn", 50, 80),
    ("step_1", 100, 190),
    ("forward", 102, 152),
)


def test_ranges_of_one_name_in_one_place_are_one_node() -> None:
    nodes = tree(build_trace(ranges=STEPS), steps=["step_0", "step_1"])
    assert listed(nodes) == [
        ("step_#", 2, 190),
        ("step_#/forward", 2, 90),
        ("step_#/backward", 1, 50),
        ("step_#/backward/attn", 1, 30),
        ("step_#/forward/attn", 1, 10),
    ]
    assert (nodes.ranges, nodes.threads, nodes.host_total_ns) == (7, 1, 190)
    assert nodes.gpu_ns is None
    assert "GPU times of ranges are unknown" in nodes.notes[0]


def test_names_that_differ_by_numbers_stay_apart_while_they_are_few() -> None:
    few = ranges(*((f"layer{n}", 10 * n, 10 * n + 5) for n in range(4)))
    many = ranges(*((f"layer{n}", 10 * n, 10 * n + 5) for n in range(12)))
    assert [path for path, _, _ in listed(tree(build_trace(ranges=few)))] == [
        "layer0", "layer1", "layer2", "layer3",
    ]  # fmt: skip
    assert listed(tree(build_trace(ranges=many))) == [("layer#", 12, 60)]


def test_what_a_framework_writes_behind_a_name_is_not_part_of_it() -> None:
    rows = ranges(("aten::mm, seq = 3, sizes = [[1]]", 0, 5), ("aten::mm, seq = 4", 5, 9))
    assert listed(tree(build_trace(ranges=rows))) == [("aten::mm", 2, 9)]


def test_several_threads_are_the_outermost_nodes() -> None:
    rows: Rows = [*ranges(("a", 0, 10), ("b", 2, 4)), *ranges(("a", 0, 7), thread=12)]
    names: Rows = [
        {"thread": 11, "tid": 71, "name": "python3"},
        {"thread": 12, "tid": 72, "name": None},
    ]
    nodes = tree(build_trace(ranges=rows, threads=names))
    assert listed(nodes) == [
        ("python3 (71)", 1, 10),
        ("thread (72)", 1, 7),
        ("python3 (71)/a", 1, 10),
        ("thread (72)/a", 1, 7),
        ("python3 (71)/a/b", 1, 2),
    ]


def test_gpu_work_is_what_any_thread_launched_while_a_range_was_open() -> None:
    calls: Rows = [
        {"start_ns": 12, "end_ns": 13, "correlation": 1},
        {"start_ns": 45, "end_ns": 46, "correlation": 2, "thread": 12},
    ]
    kernels: Rows = [
        {"start_ns": 20, "end_ns": 27, "name": "k", "correlation": 1},
        {"start_ns": 50, "end_ns": 80, "name": "k", "correlation": 2},
    ]
    nodes = tree(build_trace(ranges=STEPS, api_calls=calls, kernels=kernels), steps=["step_0"])
    assert nodes.gpu_ns is not None
    work = dict(zip((path for path, _, _ in listed(nodes)), nodes.gpu_ns.tolist(), strict=True))
    assert work["step_#"] == 37
    assert work["step_#/forward"] == work["step_#/forward/attn"] == 7
    assert work["step_#/backward"] == 30
    assert work["step_#/backward/attn"] == 0


def test_what_lies_in_a_range_that_is_not_selected_is_outermost() -> None:
    nodes = tree(build_trace(ranges=STEPS), selection=Selection(within="forward"))
    assert listed(nodes) == [("forward", 2, 90), ("forward/attn", 1, 10)]


def test_a_large_tree_keeps_the_largest_and_sums_the_rest_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "MAX_NODES", 6)
    monkeypatch.setattr(module, "_KEPT_NODES", 3)
    letters = "abcdefgh"
    inner = ((f"in_{x}", 100 * n + 1, 100 * n + 50 - n) for n, x in enumerate(letters))
    rows = ranges(*inner, *((x, 100 * n, 100 * n + 60 - n) for n, x in enumerate(letters)))
    nodes = tree(build_trace(ranges=rows))
    assert listed(nodes) == [
        ("a", 1, 60),
        ("b", 1, 59),
        ("c", 1, 58),
        ("5 smaller", 5, 57 + 56 + 55 + 54 + 53),
        ("a/1 smaller", 1, 49),
        ("b/1 smaller", 1, 48),
        ("c/1 smaller", 1, 47),
    ]
    assert nodes.host_total_ns == sum(60 - n for n in range(8))
    assert nodes.notes[-1] == "the 3 largest ranges are shown, 8 smaller ones aggregated"


def test_no_tree_is_larger_than_a_page_can_bear() -> None:
    letters = [chr(97 + n % 26) * (1 + n // 26) for n in range(6_000)]
    rows = ranges(*((name, 10 * n, 10 * n + 9) for n, name in enumerate(letters)))
    nodes = tree(build_trace(ranges=rows))
    assert len(nodes) <= MAX_NODES
    assert nodes.host_total_ns == 6_000 * 9
    assert int(nodes.calls[nodes.parent < 0].sum()) == 6_000


def test_ranges_deeper_than_anyone_looks_are_said_not_shown() -> None:
    rows = ranges(*((f"d{'x' * n}", n, 1_000 - n) for n in range(130)))
    nodes = tree(build_trace(ranges=rows))
    assert len(nodes) == 100
    assert nodes.notes[-1] == "30 ranges nested deeper than 100 levels are not shown"


@pytest.mark.parametrize(
    ("rows", "reason"),
    [
        ([], "the capture has no NVTX ranges"),
        ([{"name": "m", "kind": "mark"}], "no range with a duration in the selection"),
    ],
)
def test_without_ranges_there_is_a_reason(rows: Rows, reason: str) -> None:
    nodes = range_tree(build_trace(ranges=rows))
    assert isinstance(nodes, NotApplicable)
    assert nodes.reason == reason
