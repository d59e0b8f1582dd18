"""Ranges of the host in the explanation."""

from __future__ import annotations

from typing import Any

from gpusight.comparison.digest import CallDigest
from tests.comparison.digests import JITTER, MS, steady
from tests.comparison.test_explain_change import explanation_of


def with_ranges(*outer: tuple[str, float], inner: tuple[tuple[str, float], ...] = ()) -> Any:
    rows = [(*row, True) for row in outer] + [(*row, False) for row in inner]
    return {
        "ranges": tuple(
            CallDigest(name=name, calls=(1.0,) * 4, host_ns=ns(ms), gpu_ns=None, outer=is_outer)
            for name, ms, is_outer in rows
        )
    }


def ns(ms: float) -> tuple[float, ...]:
    return tuple(ms * part * MS for part in JITTER)


def test_ranges_of_the_host_that_changed_are_named_once() -> None:
    before = with_ranges(("optimizer", 18), ("forward", 11), inner=(("step_#", 46), ("block_#", 9)))
    after = with_ranges(("optimizer", 2), ("forward", 21), inner=(("step_#", 42), ("block_#", 20)))
    text = explanation_of(
        steady(compute_matmul=40, idle_launching=6, change=before),
        steady(compute_matmul=10, idle_framework=32, change=after),
    )
    assert "On the host: range optimizer -16.0 ms, forward +10.0 ms." in text
    assert (
        "compute/matmul (-30.0 ms) and range optimizer on the host (-16.0 ms) fell by far "
        "more than the step (-4.00 ms), because the bottleneck moved from GPU work to the host: "
        "the GPU idles 26.0 ms longer" in text
    )
    assert "block_#" not in text


def test_a_host_that_got_faster_behind_a_busy_gpu() -> None:
    sides = [
        steady(compute_matmul=40, idle_queued=1, change=with_ranges(("optimizer", ms)))
        for ms in (30, 10)
    ]
    assert (
        "On the host: range optimizer -20.0 ms; the step did not change as much (no difference), "
        "because the bottleneck is still GPU work." in explanation_of(*sides)
    )


def test_a_step_that_followed_its_host_a_little() -> None:
    sides = [
        steady(compute_matmul=40, idle_launching=wait, change=with_ranges(("optimizer", ms)))
        for ms, wait in ((30, 6), (10, 1))
    ]
    assert "optimizer -20.0 ms; the step changed by only -5.00 ms, because" in explanation_of(
        *sides
    )


def test_small_changes_of_ranges_are_not_named() -> None:
    sides = [steady(compute_matmul=40, change=with_ranges(("optimizer", ms))) for ms in (10, 8)]
    assert "On the host" not in explanation_of(*sides)


def test_odd_names_of_ranges_are_quoted_and_cut() -> None:
    sides = [
        steady(compute_matmul=40, change=with_ranges(("my, own step", ms), ("x" * 500, ms)))
        for ms in (30, 10)
    ]
    text = explanation_of(*sides)
    assert f"range 'my, own step' -20.0 ms, '{'x' * 59}…' -20.0 ms" in text
