from __future__ import annotations

import re

import polars as pl
import pytest

import gpusight as gs
from gpusight.analysis.drill.drill_kernels import function_of, functions, pattern_of
from gpusight.recording.ncu_command import include_filter
from tests.shared import EVERY_NCU_REPORT, EVERY_SQLITE, name
from tests.traces import build_trace

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
