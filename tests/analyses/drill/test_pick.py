from __future__ import annotations

import pytest

import gpusight as gs
from gpusight.analysis.drill.drill_kernels import DrillChoice, DrillSelection, pick_kernels
from gpusight.analysis.selection import Selection
from gpusight.errors import UsageError
from gpusight.results import NotApplicable
from tests.analyses.drill.programs import Launch, Program, Range
from tests.shared import DATA
from tests.traces import build_trace

GEMM = Launch("gemm", took_ns=900)
WIDE = Launch("gemm", grid=8, took_ns=700)
NCCL = Launch(
    "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)", took_ns=5_000
)
TINY = Launch("tiny", took_ns=1)
BODY = [GEMM, WIDE, NCCL, TINY]
PROGRAM = Program([Range(f"step_{n}", BODY) for n in range(3)])


def verdicts(found: DrillSelection | NotApplicable) -> dict[tuple[str, int | None], DrillChoice]:
    assert not isinstance(found, NotApplicable)
    return {(k.name, k.shape[0]): k.verdict for k in found.kernels}


def test_by_time_without_what_communicates_or_is_too_small() -> None:
    found = pick_kernels(PROGRAM.trace(), top=1)
    assert verdicts(found) == {
        NCCL.key: DrillChoice.COMMUNICATES,
        GEMM.key: DrillChoice.CHOSEN,
        WIDE.key: DrillChoice.NEXT,
        TINY.key: DrillChoice.SMALL,
    }


def test_launches_and_times_are_of_the_window() -> None:
    found = pick_kernels(Program([GEMM, *PROGRAM.parts]).trace())
    assert isinstance(found, DrillSelection)
    gemm = found.chosen[0]
    assert (gemm.launches, gemm.time_ns) == (3, 2_700)
    assert gemm.share == pytest.approx(900 / sum(launch.took_ns for launch in BODY))


def test_zero_is_all_that_matter() -> None:
    found = pick_kernels(PROGRAM.trace(), top=0)
    assert isinstance(found, DrillSelection)
    assert [k.shape[0] for k in found.chosen] == [1, 8]


@pytest.mark.parametrize("pattern", ["tiny", "t?ny", "/^ti/", "tiny|nothing"])
def test_a_pattern_asks_for_any_kernel(pattern: str) -> None:
    found = pick_kernels(PROGRAM.trace(), kernel=pattern)
    assert verdicts(found) == {TINY.key: DrillChoice.CHOSEN}


def test_a_pattern_that_means_nothing_is_refused() -> None:
    with pytest.raises(UsageError, match="no kernel matches 'conv'"):
        pick_kernels(PROGRAM.trace(), kernel="conv")


def test_a_range_chooses_what_was_launched_inside() -> None:
    inner: list[Launch | Range] = [GEMM, Range("attention", [WIDE]), TINY]
    program = Program([part for _ in range(4) for part in inner])
    found = pick_kernels(program.trace(), Selection(within="attention"))
    assert verdicts(found) == {WIDE.key: DrillChoice.CHOSEN}


def test_products_at_their_roof_are_left_out() -> None:
    """Large BF16 products of a torch trace with shapes reach 83% of the peak."""
    found = pick_kernels(gs.open(str(DATA / "healthy.json.gz")))
    assert isinstance(found, DrillSelection)
    assert [k.verdict for k in found.kernels] == [DrillChoice.AT_ROOF, DrillChoice.CHOSEN]
    assert found.kernels[0].roof_share == pytest.approx(0.834, abs=0.01)
    assert found.kernels[1].roof_share is None


def test_amd_has_no_nsight_compute() -> None:
    trace = build_trace(
        kernels=[{"name": "k", "end_ns": 5}], devices=[{"name": "AMD Instinct MI300X"}]
    )
    found = pick_kernels(trace)
    assert isinstance(found, NotApplicable)
    assert "NVIDIA" in found.reason


def test_without_kernels_there_is_nothing_to_pick() -> None:
    found = pick_kernels(build_trace(api_calls=[{"name": "cudaMalloc"}]))
    assert isinstance(found, NotApplicable)
    assert found.command == "drill"


def test_sparse_captures_are_answered() -> None:
    """No API calls, no correlation, no shapes, no process."""
    rows = [
        {"name": "k", "start_ns": n * 10, "end_ns": n * 10 + 5, "process": None} for n in range(9)
    ]
    found = pick_kernels(build_trace(kernels=rows))
    assert isinstance(found, DrillSelection)
    assert found.chosen[0].shape == (None,) * 6
    assert found.launches.height == 9
