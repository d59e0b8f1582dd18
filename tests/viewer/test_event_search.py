"""Names that hold a text, and the next event of a name."""

from __future__ import annotations

import time

import pytest

from gpusight.errors import UsageError
from gpusight.trace.trace import Trace
from gpusight.viewer.event_search import NamedEvents, next_event, search
from tests.traces import build_trace

GEMM = "void gemm<float*, 4>(float const*)"


def trace() -> Trace:
    return build_trace(
        kernels=[
            {"start_ns": 100, "end_ns": 150, "name": GEMM},
            {"start_ns": 200, "end_ns": 260, "name": "Softmax"},
            {"start_ns": 300, "end_ns": 350, "name": GEMM},
        ],
        copies=[{"start_ns": 10, "end_ns": 15, "kind": "Host-to-Device"}],
        ranges=[
            {"start_ns": 0, "end_ns": 400, "name": "gemm and softmax"},
            {"start_ns": 5, "end_ns": 6, "name": "</script><img src=x onerror=alert(1)>"},
        ],
        cpu_ops=[{"start_ns": 1, "end_ns": 3, "name": "aten::softmax"}],
        api_calls=[{"start_ns": 90, "end_ns": 95, "name": "cudaLaunchKernel"}],
        python_calls=[{"start_ns": 0, "end_ns": 9, "name": "model.py(3): forward"}],
        os_calls=[{"start_ns": 0, "end_ns": 9, "name": "read"}],
        gpu_ranges=[{"start_ns": 100, "end_ns": 350, "name": "forward"}],
        collectives=[{"start_ns": 0, "end_ns": 2, "name": "allreduce", "side": "gpu"}],
    )


@pytest.mark.parametrize(
    ("query", "names"),
    [
        ("softmax", ["gemm and softmax", "Softmax", "aten::softmax"]),
        ("SOFTMAX", ["gemm and softmax", "Softmax", "aten::softmax"]),
        ("gemm", ["gemm and softmax", GEMM]),
        ("float*", [GEMM]),
        ("*softmax", ["gemm and softmax", "Softmax", "aten::softmax"]),
        ("soft*", ["Softmax"]),
        ("aten::?oftmax", ["aten::softmax"]),
        ("/^[sS]oft/", ["Softmax"]),
        ("regex:^SOFT", []),
        ("host-to", ["Host-to-Device"]),
        ("launch", ["cudaLaunchKernel"]),
        ("forward", ["forward", "model.py(3): forward"]),
        ("allreduce", ["allreduce"]),
        ("</script>", ["</script><img src=x onerror=alert(1)>"]),
        ("", []),
        ("  ", []),
        ("x" * 1_000, []),
    ],
)
def test_what_a_query_finds(query: str, names: list[str]) -> None:
    result = search(trace(), query)
    assert [group.name for group in result.groups] == names
    assert result.total == len(names)
    assert result.query == query


def test_a_kernel_is_found_by_the_label_that_people_see() -> None:
    name = "ampere_sgemm_128x64_tn"
    result = search(build_trace(kernels=[{"end_ns": 5, "name": name}]), "gemm f32")
    assert [group.name for group in result.groups] == [name]


def test_events_of_a_name_are_counted_and_summed_up() -> None:
    first, second = search(trace(), "gemm").groups
    assert first == NamedEvents("ranges", "Range", "gemm and softmax", 0, 1, 400)
    assert second == NamedEvents("kernels", "Kernel", GEMM, 0, 2, 100)


def test_more_names_than_are_shown_are_counted() -> None:
    rows = [{"start_ns": n, "end_ns": 2 * n, "name": f"step {n}"} for n in range(100)]
    result = search(build_trace(ranges=rows), "step", limit=3)
    assert [group.name for group in result.groups] == ["step 99", "step 98", "step 97"]
    assert result.total == 100


@pytest.mark.parametrize("query", ["/(/", "/a(?=b)/", r"regex:\1", "/a{9999}{9999}/"])
def test_what_is_no_regular_expression_is_said(query: str) -> None:
    with pytest.raises(UsageError, match="is not a regular expression") as caught:
        search(trace(), query)
    assert caught.value.why


def test_no_regular_expression_hangs() -> None:
    hostile = build_trace(ranges=[{"end_ns": 1, "name": "a" * 100_000 + "!"}])
    began = time.process_time()
    assert search(hostile, "/^(a+)+$/").total == 0
    assert time.process_time() - began < 5


@pytest.mark.parametrize(
    ("time_ns", "direction", "row"),
    [(0, 1, 0), (100, 1, 2), (150, 1, 2), (300, 1, 0), (999, 1, 0),
     (999, -1, 2), (300, -1, 0), (101, -1, 0), (100, -1, 2), (0, -1, 2)],
)  # fmt: skip
def test_the_next_event_of_a_name_goes_round(time_ns: int, direction: int, row: int) -> None:
    assert next_event(trace(), "kernels", 0, time_ns, direction) == row


def test_the_code_of_a_name_that_is_not_there_gives_nothing() -> None:
    assert next_event(trace(), "kernels", 17, 0, 1) is None
    assert next_event(trace(), "overheads", 0, 0, 1) is None
    with pytest.raises(UsageError, match="no names in 'devices'"):
        next_event(trace(), "devices", 0, 0, 1)


def test_codes_are_those_that_next_event_takes() -> None:
    for group in search(trace(), "/./").groups:
        row = next_event(trace(), group.table, group.code, -1, 1)
        assert row is not None


def test_a_capture_without_events_has_no_names() -> None:
    assert search(build_trace(), "a").total == 0
