"""Which names a pattern matches."""

from __future__ import annotations

import pytest

from gpusight.analysis.name_patterns import kernel_codes, matching
from gpusight.errors import UsageError


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("sm__a.sum", ["sm__a.sum"]),
        ("sm__a", ["sm__a.sum", "sm__a.sum.per_second"]),
        ("A.SUM", ["sm__a.sum", "sm__a.sum.per_second", "breakdown:sm__a.sum"]),
        ("*second", ["sm__a.sum.per_second"]),
        ("/^b/", ["breakdown:sm__a.sum"]),
        ("regex:a.sum$", ["sm__a.sum", "breakdown:sm__a.sum"]),
        ("nothing", []),
    ],
)
def test_a_pattern_is_a_name_a_glob_a_regex_or_a_part_of_a_name(
    pattern: str, expected: list[str]
) -> None:
    names = ["sm__a.sum", "sm__a.sum.per_second", "breakdown:sm__a.sum"]
    assert matching(pattern, names) == expected


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("gemm", [0]),
        ("sgemm 128", [1]),
        ("gem", [0, 1, 2]),
        ("GEMM_", [1, 2]),
        ("*GEMM", [0]),
        ("/^v.*gemm/", [2]),
        ("regex:SGEMM", []),
        ("nope", []),
    ],
)
def test_a_kernel_is_meant_by_its_name_a_glob_a_regex_or_any_part(
    pattern: str, expected: list[int]
) -> None:
    labels = [("gemm", "gemm"), ("ampere_sgemm_128", "sgemm 128"), ("void gemm_x<4>(int)", "x")]
    known = dict(enumerate(labels))
    if expected:
        assert kernel_codes(known, pattern) == expected
        return
    with pytest.raises(UsageError, match=r"no work matches .*'sgemm 128'"):
        kernel_codes(known, pattern, "work")
