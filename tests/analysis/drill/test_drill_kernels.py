"""Which kernels `drill` picks, and how ncu is to name their functions."""

from __future__ import annotations

import re

import polars as pl
import pytest

import gpusight as gs
from gpusight.analysis.drill.drill_kernels import (
    DrillChoice,
    DrillSelection,
    function_of,
    functions,
    pattern_of,
    pick_kernels,
)
from gpusight.analysis.selection import Selection
from gpusight.errors import UsageError
from gpusight.recording.ncu_command import include_filter
from gpusight.results import NotApplicable
from tests.analysis.drill.launch_programs import Launch, Program, Range
from tests.shared import DATA, EVERY_NCU_REPORT, EVERY_SQLITE, name
from tests.traces import build_trace

GEMM = Launch("gemm", took_ns=900)
WIDE = Launch("gemm", grid=8, took_ns=700)
NCCL = Launch(
    "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)", took_ns=5_000
)
TINY = Launch("tiny", took_ns=1)
BODY = [GEMM, WIDE, NCCL, TINY]
PROGRAM = Program([Range(f"step_{n}", BODY) for n in range(3)])


def verdicts(picked: DrillSelection | NotApplicable) -> dict[tuple[str, int | None], DrillChoice]:
    assert not isinstance(picked, NotApplicable)
    return {(k.name, k.shape[0]): k.choice for k in picked.kernels}


def test_by_time_without_what_communicates_or_is_too_small() -> None:
    picked = pick_kernels(PROGRAM.trace(), top=1)
    assert verdicts(picked) == {
        NCCL.key: DrillChoice.COMMUNICATES,
        GEMM.key: DrillChoice.CHOSEN,
        WIDE.key: DrillChoice.NEXT,
        TINY.key: DrillChoice.SMALL,
    }


def test_launches_and_times_are_of_the_window() -> None:
    picked = pick_kernels(Program([GEMM, *PROGRAM.parts]).trace())
    assert isinstance(picked, DrillSelection)
    gemm = picked.chosen[0]
    assert (gemm.launches, gemm.time_ns) == (3, 2_700)
    assert gemm.share == pytest.approx(900 / sum(launch.took_ns for launch in BODY))


def test_steps_and_times_choose_the_window() -> None:
    trace = PROGRAM.trace()
    one = pick_kernels(trace, steps="1")
    every = pick_kernels(trace, time=(None, None))
    assert isinstance(one, DrillSelection)
    assert isinstance(every, DrillSelection)
    assert [one.chosen[0].launches, every.chosen[0].launches] == [1, 3]


def test_zero_is_all_that_matter() -> None:
    picked = pick_kernels(PROGRAM.trace(), top=0)
    assert isinstance(picked, DrillSelection)
    assert [k.shape[0] for k in picked.chosen] == [1, 8]


@pytest.mark.parametrize("pattern", ["tiny", "t?ny", "/^ti/", "tiny|nothing"])
def test_a_pattern_asks_for_any_kernel(pattern: str) -> None:
    picked = pick_kernels(PROGRAM.trace(), kernel=pattern)
    assert verdicts(picked) == {TINY.key: DrillChoice.CHOSEN}


def test_a_pattern_that_means_nothing_is_refused() -> None:
    with pytest.raises(UsageError, match="no kernel matches 'conv'"):
        pick_kernels(PROGRAM.trace(), kernel="conv")


def test_a_range_chooses_what_was_launched_inside() -> None:
    inner: list[Launch | Range] = [GEMM, Range("attention", [WIDE]), TINY]
    program = Program([part for _ in range(4) for part in inner])
    picked = pick_kernels(program.trace(), Selection(within="attention"))
    assert verdicts(picked) == {WIDE.key: DrillChoice.CHOSEN}


def test_products_at_their_roof_are_left_out() -> None:
    """Large BF16 products of a torch trace with shapes reach 83% of the peak."""
    picked = pick_kernels(gs.open(str(DATA / "healthy.json.gz")))
    assert isinstance(picked, DrillSelection)
    assert [k.choice for k in picked.kernels] == [DrillChoice.AT_ROOF, DrillChoice.CHOSEN]
    assert picked.kernels[0].roof_share == pytest.approx(0.834, abs=0.01)
    assert picked.kernels[1].roof_share is None


def test_amd_has_no_nsight_compute() -> None:
    trace = build_trace(
        kernels=[{"name": "k", "end_ns": 5}], devices=[{"name": "AMD Instinct MI300X"}]
    )
    picked = pick_kernels(trace)
    assert isinstance(picked, NotApplicable)
    assert "NVIDIA" in picked.reason


def test_without_kernels_there_is_nothing_to_pick() -> None:
    picked = pick_kernels(build_trace(api_calls=[{"name": "cudaMalloc"}]))
    assert isinstance(picked, NotApplicable)
    assert picked.command == "drill"


def test_sparse_captures_are_answered() -> None:
    """No API calls, no correlation, no shapes, no process."""
    rows = [
        {"name": "k", "start_ns": n * 10, "end_ns": n * 10 + 5, "process": None} for n in range(9)
    ]
    picked = pick_kernels(build_trace(kernels=rows))
    assert isinstance(picked, DrillSelection)
    assert picked.chosen[0].shape == (None,) * 6
    assert picked.launches.height == 9


_OTHER_DEMANGLER = "2021.1.0.0__RTX-2070__699ccb6"
"""ncu took the ABI tag of a Numba kernel for its name."""


@pytest.mark.parametrize(
    ("kernel", "function"),
    [
        (
            "void at::native::vectorized_elementwise_kernel<4, F>(int, F)",
            "vectorized_elementwise_kernel",
        ),
        ("sm80_xmma_gemm_f32f32", "sm80_xmma_gemm_f32f32"),
        ("void cutlass::Kernel2<cutlass_80_simt>(typename T1::Params)", "Kernel2"),
        ("_Z10dmatrixmulPfiiS_iiS_", "dmatrixmul"),
        ("void (anonymous namespace)::softmax<float>(float*)", "softmax"),
        ("triton_poi_fused_add_0", "triton_poi_fused_add_0"),
    ],
)
def test_function_of(kernel: str, function: str) -> None:
    assert function_of(kernel) == function


@pytest.mark.parametrize("path", EVERY_NCU_REPORT, ids=name)
def test_ncu_calls_functions_what_we_call_them(path: object) -> None:
    trace = gs.open(str(path), cache=False)
    if not trace.has("profiles", "base_name") or _OTHER_DEMANGLER in str(path):
        pytest.skip("the report does not tell")
    pairs = trace.table("profiles", ["name", "base_name"]).drop_nulls().unique().cast(pl.String)
    assert [function_of(name) for name in pairs["name"]] == pairs["base_name"].to_list()


@pytest.mark.parametrize("path", EVERY_SQLITE, ids=name)
def test_nsys_calls_functions_what_we_call_them(path: object) -> None:
    trace = gs.open(str(path), cache=False)
    if not trace.has("kernels", "base_name"):
        pytest.skip("no kernels")
    pairs = trace.table("kernels", ["name", "base_name"]).drop_nulls().unique().cast(pl.String)
    assert [function_of(name) for name in pairs["name"]] == pairs["base_name"].to_list()


def test_the_captures_own_word_counts() -> None:
    kernels = [{"name": "a::b<int>", "base_name": "beta"}, {"name": "a::b<int>"}, {"name": "c"}]
    assert functions(build_trace(kernels=kernels)).to_list() == ["beta", "b", "c"]


def test_pattern_matches_these_names_and_no_others() -> None:
    pattern = pattern_of(["gemm", "fusion.1", "copy$k"])
    assert all(re.search(pattern, text) for text in ("gemm", "fusion.1", "copy$k"))
    assert not any(re.search(pattern, text) for text in ("gemm2", "my_gemm", "fusion_1", "copy"))


def test_a_name_cut_short_matches_what_begins_like_it() -> None:
    pattern = pattern_of(["gemm", "sm80_xmma_gemm_f32..."])
    assert re.search(pattern, "sm80_xmma_gemm_f32f32_tn")
    assert not re.search(pattern, "gemm_f32")


def test_patterns_hold_no_more_backslashes_than_every_dialect_reads() -> None:
    r"""Some take `\<`, `\'` and `\`` for the beginning or the end of something."""
    assert pattern_of(["a<b>'c`-%/"]) == "^a<b>'c`-%/$"
    assert pattern_of(["a.*(b)|c[1]$^{2}\\d?+"]) == r"^a\.\*\(b\)\|c\[1\]\$\^\{2\}\\d\?\+$"


def test_a_name_that_is_only_the_mark_of_a_cut_does_not_match_everything() -> None:
    assert pattern_of(["..."]) == r"^\.\.\.$"


def test_patterns_need_no_brackets() -> None:
    """`gpusight record` takes a pattern with brackets for one of whole names."""
    assert not set("<>:( ") & set(pattern_of(["gemm", "conv", "x..."]))


@pytest.mark.parametrize(
    ("text", "domain", "push_pop", "written"),
    [
        ("step_5", None, True, "step_5/"),
        ("step_5", "", False, "step_5"),
        ("forward", "mine", True, "mine@forward/"),
        ("Range A[i]", None, False, r"Range A\[i\]"),
        ("a/b, c*d+e@f", "x@y", True, r"x\@y@a\/b\, c\*d\+e\@f/"),
        ("C:\\temp", None, True, "C:\\\\\\\\temp/"),
        ("a\\/b", None, True, None),
        ("end\\", None, True, None),
        ("", None, True, None),
        ("two\nlines", None, True, None),
        ("regex:x", None, True, None),
    ],
)
def test_nvtx_ranges_are_written_as_ncu_reads_them(
    text: str, domain: str | None, push_pop: bool, written: str | None
) -> None:
    assert include_filter(text, domain=domain, push_pop=push_pop) == written
