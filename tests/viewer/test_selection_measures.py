"""The numbers of a marked stretch, against a loop over all work."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpusight.errors import UsageError
from gpusight.viewer.selection_measures import (
    DeviceMeasures,
    KernelMeasures,
    KindMeasures,
    SelectionMeasures,
    measure,
)
from gpusight.viewer.timeline_view import ViewerTimeline
from tests.traces import build_trace

KERNELS = {
    "sgemm": "compute/matmul",
    "volta_sgemm_128x64": "compute/matmul",
    "softmax_kernel": "compute/softmax",
}
TABLES = ("kernels", "copies", "memsets")

spans = st.lists(
    st.tuples(
        st.integers(0, 50),
        st.integers(0, 20),
        st.sampled_from([*KERNELS, "copies", "memsets"]),
        st.integers(0, 1),
    ),
    min_size=1,
    max_size=25,
)
Span = tuple[int, int, str, int]


def timeline_of(work: list[Span]) -> ViewerTimeline:
    tables: dict[str, Any] = {table: [] for table in TABLES}
    for start, length, what, device in work:
        times = {"start_ns": start, "end_ns": start + length, "device": device, "stream": start % 3}
        if what in KERNELS:
            tables["kernels"].append({**times, "name": what})
        else:
            tables[what].append(times)
    return ViewerTimeline(build_trace(**tables, devices=[{"device": 0}]))


def inside(span: Span, start: int, end: int) -> int:
    return max(0, min(span[0] + span[1], end) - max(span[0], start))


def touching(work: list[Span], start: int, end: int) -> list[Span]:
    """Give what runs in the stretch; an instant does where it lies in it."""
    return [
        span for span in work if span[0] < end and (span[0] + span[1] > start or span[0] >= start)
    ]


def key_of(what: str) -> str:
    return KERNELS.get(what) or {"copies": "copy/h2d", "memsets": "copy/memset"}[what]


@settings(max_examples=25, deadline=None)
@given(spans, st.integers(-5, 70), st.integers(1, 70))
def test_equals_a_loop(work: list[Span], start: int, width: int) -> None:
    end = start + width
    measured, ran = measure(timeline_of(work), start, end), touching(work, start, end)
    assert [one.device for one in measured.devices] == sorted({span[3] for span in work})
    for device in measured.devices:
        own = [span for span in ran if span[3] == device.device]
        instants = {t for s in own for t in range(max(s[0], start), min(s[0] + s[1], end))}
        assert device.busy_ns == len(instants)
        expected: dict[str, tuple[int, int]] = {}
        for span in own:
            ns, count = expected.get(key_of(span[2]), (0, 0))
            expected[key_of(span[2])] = (ns + inside(span, start, end), count + 1)
        assert {kind.key: (kind.ns, kind.count) for kind in device.by} == expected
        assert [kind.ns for kind in device.by] == sorted((k.ns for k in device.by), reverse=True)
    for kernel in measured.kernels:
        alike = [span for span in ran if span[2] == kernel.name]
        assert kernel.count == len(alike)
        assert kernel.total_ns == sum(inside(span, start, end) for span in alike)
    assert {k.name for k in measured.kernels} == {s[2] for s in ran if s[2] in KERNELS}


def test_reads_like_this() -> None:
    work = [(0, 10, "sgemm", 0), (5, 10, "sgemm", 0), (12, 8, "copies", 0), (90, 1, "memsets", 1)]
    assert measure(timeline_of(work), 2, 16) == SelectionMeasures(
        2,
        16,
        (
            DeviceMeasures(
                0,
                "NVIDIA H200",
                14,
                (KindMeasures("compute/matmul", 18, 2), KindMeasures("copy/h2d", 4, 1)),
            ),
            DeviceMeasures(1, "", 0, ()),
        ),
        (KernelMeasures("sgemm", 2, 18),),
    )


def test_the_twenty_with_most_time() -> None:
    kernels = [{"start_ns": n * 100, "end_ns": n * 101, "name": f"kernel_{n}"} for n in range(50)]
    measured = measure(ViewerTimeline(build_trace(kernels=kernels)), 0, 10_000)
    assert [kernel.total_ns for kernel in measured.kernels] == list(range(49, 29, -1))


def test_a_capture_without_gpu_work() -> None:
    timeline = ViewerTimeline(build_trace(ranges=[{"start_ns": 0, "end_ns": 9, "name": "step"}]))
    assert measure(timeline, 0, 5) == SelectionMeasures(0, 5, (), ())


def test_refuses_a_stretch_without_length() -> None:
    with pytest.raises(UsageError, match="end after"):
        measure(timeline_of([(0, 1, "sgemm", 0)]), 5, 5)
