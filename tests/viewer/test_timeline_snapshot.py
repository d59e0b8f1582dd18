"""Excerpts: which time and tracks they show, and that no event and no time is lost in them."""

from __future__ import annotations

from typing import Any

import polars as pl
import pytest

from gpusight.analysis.selection import Selection
from gpusight.errors import UsageError
from gpusight.results import Composite, NotApplicable, TableResult
from gpusight.viewer.timeline_snapshot import timeline
from tests.shared import DATA, opened
from tests.traces import Row, build_trace

US = 1_000


def us(start: int, end: int, name: str, **more: Any) -> Row:
    return {"start_ns": start * US, "end_ns": end * US, "name": name, **more}


def answer(trace: Any, selection: Selection | None = None, **options: Any) -> Composite:
    snapshot = timeline(trace, selection or Selection(), **options)
    assert isinstance(snapshot, Composite), snapshot
    return snapshot


def frame(result: Composite, name: str) -> pl.DataFrame:
    (snapshot,) = (s for s in result.sections if s.command == name)
    assert isinstance(snapshot, TableResult)
    return snapshot.frame


def facts(result: Composite) -> dict[str, Any]:
    return {fact.key: fact.value for fact in result.facts}


LENGTHS = (300, 100, 120, 110, 130, 105)
STARTS = [sum(LENGTHS[:n]) for n in range(len(LENGTHS))]


def stepped(**more: Any) -> Any:
    """Make a program of six steps, each a kernel after a pause, launched by a call."""
    spans = list(zip(STARTS, LENGTHS, range(6), strict=True))
    return build_trace(
        ranges=[us(s, s + n, f"step_{i}") for s, n, i in spans],
        kernels=[us(s + 20, s + n, "sgemm", correlation=i + 1) for s, n, i in spans],
        api_calls=[us(s + 5, s + 10, "cudaLaunchKernel", correlation=i + 1) for s, n, i in spans],
        **more,
    )


def test_the_median_step_stands_for_the_others() -> None:
    result = answer(stepped())
    known = facts(result)
    # The first step is warm-up; of the others 110 us is the median.
    assert known["what"] == "step_3, the median of 5 steps"
    assert (result.meta["start_ns"], result.meta["end_ns"]) == (516_700, 633_300)
    assert known["length_ns"] == 116_600
    assert [step["number"] for step in result.meta["steps"]] == [2, 3, 4]


@pytest.mark.parametrize(
    ("options", "what", "start", "end"),
    [
        ({"steps": "2"}, "step_2", 400 - 3.6, 520 + 3.6),
        ({"steps": "2-3"}, "step_2 to step_3", 400 - 6.9, 630 + 6.9),
        ({"window": (410_000, 450_000)}, None, 410, 450),
        ({"selection": Selection(within="step_4")}, "step_4", 630 - 3.9, 760 + 3.9),
        ({"selection": Selection(within="step_*")}, "step_*, the median of 6", 520 - 3.3, 633.3),
    ],
)
def test_other_times_can_be_asked_for(
    options: dict[str, Any], what: str | None, start: float, end: float
) -> None:
    result = answer(stepped(), **options)
    assert facts(result).get("what") == what
    assert result.meta["start_ns"] == pytest.approx(start * US)
    assert result.meta["end_ns"] == pytest.approx(end * US)


def test_tracks_say_how_many_events_and_how_busy() -> None:
    rows = frame(answer(stepped(), window=(400_000, 520_000)), "tracks")
    assert rows.select("kind", "events", "busy_ns", "drawn").rows() == [
        ("ledger", 3, 120_000, True),
        ("stream", 1, 100_000, True),
        ("ranges", 1, 120_000, True),
        ("api", 1, 5_000, True),
    ]
    stream = rows.row(1, named=True)
    assert stream["busy_share"] == pytest.approx(100 / 120)


def test_events_inside_each_other_count_once() -> None:
    nested = [us(0, 100, "a"), us(10, 40, "b"), us(20, 30, "c")]
    rows = frame(answer(build_trace(ranges=nested), tracks=["ranges"]), "tracks")
    assert rows.select("events", "busy_ns", "lines").rows() == [(3, 100_000, 3)]


def test_narrow_events_are_summed_up_and_nothing_is_lost() -> None:
    short = [us(n * 3, n * 3 + 2, "sgemm") for n in range(20_000)]
    trace = build_trace(kernels=[*short, us(60_000, 62_000, "softmax")])
    result = answer(trace, tracks=["stream"])
    slices, sums = frame(result, "slices"), frame(result, "sums")
    assert slices.select("duration_ns", "category").rows() == [(2_000_000, "compute/softmax")]
    assert slices["name"][0].startswith("softmax")
    assert sums["events"].sum() == 20_000
    assert sums["busy_ns"].sum() == 40_000_000
    assert sums.height <= 900
    assert (sums["busy_ns"] <= sums["free_ns"]).all()
    (track,) = frame(result, "tracks").iter_rows(named=True)
    assert (track["events"], track["busy_ns"]) == (20_001, 42_000_000)


def test_a_bin_says_what_slices_leave_of_it() -> None:
    # 900 bins of 10 us: the long event ends in the middle of one, and a short one follows.
    kernels = [us(0, 8_995, "sgemm"), us(8_996, 8_999, "softmax"), us(8_999, 9_000, "softmax")]
    sums = frame(answer(build_trace(kernels=kernels), tracks=["stream"]), "sums")
    assert sums.select("duration_ns", "free_ns", "busy_ns").rows() == [(10_000, 5_000, 4_000)]


def test_pictures_that_would_hold_too_much_are_drawn_more_coarsely() -> None:
    kernels = [
        us(n * 30, n * 30 + 4, "sgemm", stream=stream) for n in range(300) for stream in range(40)
    ]
    result = answer(build_trace(kernels=kernels), tracks=["stream"], window=(None, None))
    assert result.meta["bins"] < 900
    assert frame(result, "slices").height + frame(result, "sums").height <= 5_000
    assert frame(result, "sums")["events"].sum() == 12_000


def test_a_page_has_room_for_a_few_streams_and_threads() -> None:
    kernels = [us(n, n + 5, "sgemm", stream=n) for n in range(20)]
    calls = [us(n, n + 5, "cudaLaunchKernel", thread=n) for n in range(100)]
    trace = build_trace(
        kernels=kernels,
        api_calls=calls,
        threads=[{"thread": n, "tid": n} for n in range(100)],
    )
    result = answer(trace)
    drawn = frame(result, "tracks").filter("drawn")["kind"].to_list()
    assert drawn == ["ledger", *["stream"] * 6, *["api"] * 2]
    assert any("more tracks are not drawn" in note for note in result.notes)
    every = answer(trace, tracks=["all"])
    assert frame(every, "tracks").filter("drawn").height == 60


def test_tracks_are_chosen_by_kind_key_or_glob() -> None:
    trace = stepped(gpu_metrics=[{"time_ns": 0, "metric": "SMs Active [%]", "value": 5.0}])

    def kinds(*patterns: str) -> set[str]:
        return set(frame(answer(trace, tracks=patterns), "tracks")["kind"])

    assert kinds("stream", "api") == {"stream", "api"}
    assert kinds("gpu0/stream7") == {"stream"}
    assert kinds("gpu0/*") == {"ledger", "stream", "metric"}
    assert kinds("all") == {"ledger", "stream", "metric", "ranges", "api"}
    with pytest.raises(UsageError, match="kinds in the capture: ledger, stream"):
        answer(trace, tracks=["nothing"])


def test_one_gpu_or_process_can_be_asked_for() -> None:
    kernels = [us(0, 10, "sgemm"), us(0, 10, "sgemm", device=1)]
    trace = build_trace(kernels=kernels, devices=[{"name": "A"}, {"name": "B"}])
    groups = frame(answer(trace, Selection(device=1)), "tracks")["group"].unique().to_list()
    assert groups == ["GPU 1 · B"]


def test_the_ledgers_track_sums_to_the_ledger_of_the_step() -> None:
    trace = opened(DATA / "dataload.sqlite")
    result = answer(trace, window=(11_000_000, 100_000_000), tracks=["ledger"])
    (track,) = frame(result, "tracks").iter_rows(named=True)
    assert track["busy_ns"] == facts(result)["length_ns"]


def test_captures_without_a_timeline_say_why() -> None:
    snapshot = timeline(build_trace())
    assert isinstance(snapshot, NotApplicable)
    assert snapshot.command == "timeline"
    report = timeline(opened(DATA / "thrice.ncu-rep.xz"))
    assert isinstance(report, NotApplicable)
    assert "records no timeline" in report.hint


def test_a_capture_of_the_host_alone_is_shown() -> None:
    trace = build_trace(cpu_ops=[us(0, 10, "aten::mm"), us(2, 5, "aten::add")])
    rows = frame(answer(trace), "tracks")
    assert rows.select("kind", "events").rows() == [("ops", 2)]
