"""SMs, compute and memory in use over time."""

from __future__ import annotations

from typing import Any

import pytest

from gpusight.analysis.orion.orion_build import OrionOptions, OrionRefusal
from gpusight.analysis.orion.orion_utilization import orion_utilization
from gpusight.errors import MissingDataError
from gpusight.render.charts.usage_charts import orion_figure
from gpusight.results import Composite
from tests.analysis.orion.orion_reports import (
    CONV,
    DRAM,
    RELU,
    SM,
    facts,
    launch,
    report,
    section,
    timeline,
)


def used(grid: int, sm: float, dram: float) -> dict[str, Any]:
    """Describe a launch of which an SM holds 8 blocks, on 100 SMs."""
    counters = {SM: sm, DRAM: dram, "launch__sm_count": 100}
    return launch(CONV, counters, grid=grid)


def test_averages_count_idle_time_as_idle() -> None:
    nsys = timeline((CONV, 100, 200), (CONV, 400, 500), grid=400)
    result = orion_utilization(report(used(400, 80, 20)), nsys, OrionOptions())
    assert isinstance(result, Composite)
    values = facts(result)
    assert (values["window_ns"], values["busy_ns"]) == (400, 200)
    assert values["sm_share_average"] == pytest.approx(0.25)
    assert values["compute_share_average"] == pytest.approx(0.4)
    assert values["memory_share_average"] == pytest.approx(0.1)
    series = section(result, "series")
    assert series["start_ns"].to_list() == [100, 200, 400]
    assert series["kernels"].to_list() == [1, 0, 1]
    assert series["sm_share"].to_list() == [0.5, 0.0, 0.5]


def test_kernels_that_overlap_add_up_to_no_more_than_all() -> None:
    nsys = timeline((CONV, 0, 100), (CONV, 50, 100), grid=600)
    result = orion_utilization(report(used(600, 30, 90)), nsys, OrionOptions())
    assert isinstance(result, Composite)
    series = section(result, "series")
    assert series["sm_share"].to_list() == [0.75, 1.0]
    assert series["compute_share"].to_list() == pytest.approx([0.3, 0.6])
    assert series["memory_share"].to_list() == [0.9, 1.0]


def test_what_the_report_does_not_tell_is_not_zero() -> None:
    nsys = timeline((CONV, 0, 100), (CONV, 100, 200), grid=400)
    counters = {SM: 80, "launch__sm_count": 100}
    result = orion_utilization(report(launch(CONV, counters, grid=400)), nsys, OrionOptions())
    assert isinstance(result, Composite)
    values = facts(result)
    assert (values["compute_share_average"], values["memory_share_average"]) == (0.8, None)
    assert section(result, "series")["memory_share"].to_list() == [None, None]
    (note,) = [note for note in result.notes if "throughput of DRAM for 2 kernels" in note]
    assert "--section SpeedOfLight" in note


def test_a_share_that_one_launch_lacks_has_no_average() -> None:
    known, bare = used(400, 80, 20), launch(RELU, {"launch__sm_count": 100}, grid=400)
    nsys = timeline((CONV, 0, 100), (RELU, 200, 300), grid=400)
    result = orion_utilization(report(known, bare), nsys, OrionOptions())
    assert isinstance(result, Composite)
    values = facts(result)
    assert (values["compute_share_average"], values["memory_share_average"]) == (None, None)
    assert values["sm_share_average"] is not None
    assert section(result, "series")["compute_share"].to_list() == [0.8, 0.0, None]
    assert any("the SMs and DRAM for one kernel" in note for note in result.notes)


def test_a_picture_leaves_out_what_is_not_known() -> None:
    nsys = timeline((CONV, 0, 100), grid=400)
    counters = {SM: 80, "launch__sm_count": 100}
    result = orion_utilization(report(launch(CONV, counters, grid=400)), nsys, OrionOptions())
    assert isinstance(result, Composite)
    names = [series.name.partition(",")[0] for series in orion_figure(result).series]
    assert names == ["SMs in use", "compute"]
    with pytest.raises(MissingDataError, match="--section SpeedOfLight"):
        orion_figure(result, only="memory_share")


def test_kernels_that_were_not_measured_are_said() -> None:
    nsys = timeline((CONV, 0, 100), ("other", 100, 200), grid=800)
    result = orion_utilization(report(used(800, 50, 50)), nsys, OrionOptions())
    assert isinstance(result, Composite)
    assert facts(result)["unmeasured_ns"] == 100
    assert section(result, "unmeasured")["name"].to_list() == ["other"]
    assert any("lower bounds" in note for note in result.notes)
    none = orion_utilization(report(used(800, 50, 50)), timeline(("other", 0, 1)), OrionOptions())
    assert isinstance(none, OrionRefusal)
