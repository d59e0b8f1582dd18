"""Real captures: every one is answered, and what is planned hits what ncu really recorded."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import polars as pl
import pytest

import gpusight as gs
from gpusight.analysis.drill.drill_kernels import FUNCTION, pick_kernels
from gpusight.analysis.drill.launch_anchors import LaunchAnchor
from gpusight.analysis.drill.launch_plan import pick_totals, plan_launches, plan_totals
from gpusight.results import NotApplicable
from tests.shared import (
    DATA,
    EVERY_REPORT,
    EVERY_SQLITE,
    EVERY_TORCH_TRACE,
    SHARED,
    name,
    needs_shared,
)

if TYPE_CHECKING:
    from pathlib import Path

    from gpusight.analysis.drill.drill_kernels import DrillSelection
    from gpusight.analysis.drill.launch_plan import PlannedRun

JAX = sorted(DATA.glob("jax*"))
_FROM_FIRST = {LaunchAnchor.PROGRAM, LaunchAnchor.PROFILER}


@pytest.mark.parametrize("path", [*EVERY_SQLITE, *EVERY_REPORT, *EVERY_TORCH_TRACE, *JAX], ids=name)
def test_every_capture_is_answered(path: Path) -> None:
    found = pick_kernels(gs.open(path))
    if isinstance(found, NotApplicable):
        assert found.reason
        return
    planned = plan_launches(found)
    if planned is None:
        assert not found.chosen
        return
    covered = [group for run in planned.runs for group in run.covers]
    assert sorted(covered) == [kernel.group for kernel in found.chosen]
    for run in planned.runs:
        assert run.count >= len(run.covers)
        if planned.anchor in _FROM_FIRST:
            assert set(run.covers) <= _hit(found, run)


def _hit(found: DrillSelection, run: PlannedRun) -> set[int | None]:
    """Give the groups of the launches that a run measures, counted from the first."""
    column = "function" if run.base == FUNCTION else "mangled_name"
    names = found.launches[column].cast(pl.String)
    matching = names.str.contains(run.pattern).fill_null(value=False)
    rows = found.launches.filter(matching)[run.skip : run.skip + run.count]
    return set(rows["group"].to_list())


@needs_shared
@pytest.mark.parametrize(
    ("timeline", "report"),
    [
        ("nsys/gpt_small_forward.sqlite", "ncu/gpt_fwd.ncu-rep.xz"),
        ("nsys/resnet18_infer.sqlite", "ncu/resnet18.ncu-rep.xz"),
    ],
)
def test_ncu_recorded_the_launches_where_they_are_looked_for(timeline: str, report: str) -> None:
    """These reports hold the launches from the beginning of the step on, unfiltered."""
    found = pick_kernels(gs.open(SHARED / timeline))
    assert not isinstance(found, NotApplicable)
    planned = plan_launches(found)
    assert planned is not None
    assert planned.exact
    wanted = {k.group: (k.function, *k.shape) for k in found.chosen}
    shape = [f"{part}_{axis}" for part in ("grid", "block") for axis in "xyz"]
    measured = gs.open(SHARED / report).table("profiles", ["launch", "base_name", *shape])
    rows = measured.sort("launch").with_columns(pl.col("base_name").cast(pl.String))
    for run in planned.runs:
        matching = rows.filter(pl.col("base_name").str.contains(run.pattern))
        hit = matching[run.skip : run.skip + run.count].select("base_name", *shape)
        assert {wanted[group] for group in run.covers} <= set(hit.iter_rows())


@pytest.mark.parametrize("path", sorted(DATA.glob("*averages.txt")), ids=name)
def test_totals_are_answered(path: Path) -> None:
    found = pick_totals(gs.open(path))
    if isinstance(found, NotApplicable):
        assert found.command == "drill"
        return
    kernels, _ = found
    planned = plan_totals(tuple(k for k in kernels if k.verdict.value == "chosen"))
    assert planned is not None
    assert not planned.exact
    for run in planned.runs:
        kernel = next(k for k in kernels if k.group in run.covers)
        assert run.skip + run.count <= kernel.launches
        assert re.search(run.pattern, kernel.function.removesuffix("...") + "")


def test_names_that_a_table_cut_short_are_matched_by_their_beginning() -> None:
    found = pick_totals(gs.open(DATA / "gpt_small_train_key_averages.txt"))
    assert not isinstance(found, NotApplicable)
    kernels, _ = found
    planned = plan_totals((kernels[0],))
    assert planned is not None
    whole = "sm80_xmma_gemm_f32f32_f32f32_f32_tn_n_tilesize64x64x8_stage3_warpsize1x4x1"
    assert re.search(planned.runs[0].pattern, whole)
