"""Real reports: kernels whose character is known, and others that must not break anything."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

import gpusight as gs
from gpusight.cli.main import main
from tests.shared import EVERY_NCU_REPORT, SHARED, name, needs_shared

if TYPE_CHECKING:
    from pathlib import Path

    from gpusight.rules.diagnosis_results import LaunchDiagnosis

PLANTED = {
    "copy_coalesced": "memory-bound",
    "copy_strided": "uncoalesced-access",
    "fma_heavy": "compute-bound",
    "fp64_heavy": "fp64-heavy",
    "transpose_bank_conflict": "bank-conflict",
    "transpose_padded": "memory-bound",
    "low_occupancy_smem": "low-occupancy-shared-memory",
    "low_occupancy_regs": "low-occupancy-registers",
    "divergent": "divergence",
    "atomic_contention": "atomic-contention",
    "tiny_grid": "small-grid",
    "pointer_chase": "latency-bound",
}
FULL = SHARED / "ncu" / "kernels_full.ncu-rep.xz"
pytestmark = needs_shared


@pytest.fixture(scope="module")
def planted() -> list[LaunchDiagnosis]:
    return list(gs.diagnose(gs.open(FULL, cache=False)).kernels)


@pytest.mark.parametrize("kernel", sorted(PLANTED))
def test_the_first_finding_is_the_planted_character(
    kernel: str, planted: list[LaunchDiagnosis]
) -> None:
    both = [k for k in planted if k.name.startswith(f"{kernel}(")]
    assert len(both) == 2
    for launch in both:
        assert launch.findings[0].rule == PLANTED[kernel]


def test_kernels_at_their_roof_say_so(planted: list[LaunchDiagnosis]) -> None:
    found = [k for k in planted if k.name.startswith(("copy_coalesced", "fma_heavy"))]
    assert len(found) == 4
    for kernel in found:
        (finding,) = kernel.findings
        assert finding.speedup == 1.0
        assert "at its roof" in finding.title


def test_padding_leaves_no_conflict_and_estimates_what_it_gives(
    planted: list[LaunchDiagnosis],
) -> None:
    times = {k.name.partition("(")[0]: k.duration_ns or 0.0 for k in planted}
    padded = next(k for k in planted if k.name.startswith("transpose_padded"))
    assert "bank-conflict" in padded.clean
    conflict = next(k for k in planted if k.name.startswith("transpose_bank_conflict"))
    real = times["transpose_bank_conflict"] / times["transpose_padded"]
    assert conflict.findings[0].speedup == pytest.approx(real, rel=0.3)


def test_the_profilers_own_rules_stand_beside(planted: list[LaunchDiagnosis]) -> None:
    strided = next(k for k in planted if k.name.startswith("copy_strided"))
    own = {r.rule: r for r in strided.profiler_rules}
    assert own["UncoalescedGlobalAccess"].speedup_percent == pytest.approx(87.44, abs=0.01)


@pytest.mark.parametrize("report", EVERY_NCU_REPORT, ids=name)
def test_every_report_is_diagnosed(report: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["diagnose", str(report), "--format", "json", "--no-cache"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["kernels"]
    for kernel in document["kernels"]:
        rules = [f["rule"] for f in kernel["findings"]]
        assert len(rules) == len(set(rules))
        for finding in kernel["findings"]:
            assert finding["speedup"] is None or finding["speedup"] >= 1
            assert finding["evidence"]
        judged = len(rules) + len(kernel["clean"]) + len(kernel["not_applicable"])
        assert judged + sum(len(f["also"]) for f in kernel["findings"]) == 16


@pytest.mark.parametrize("report", EVERY_NCU_REPORT, ids=name)
def test_text_fits_eighty_columns(
    report: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert main(["diagnose", str(report), "--details", "0"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 80


def test_products_of_libraries_are_told_to_use_tensor_cores() -> None:
    view = gs.diagnose(gs.open(SHARED / "ncu" / "gpt_fwd.ncu-rep.xz", cache=False))
    products = [k for k in view.kernels if "gemm" in k.name]
    assert products
    assert {k.findings[0].rule for k in products} == {"tensor-cores-idle"}
    elementwise = [k for k in view.kernels if "elementwise" in k.name]
    assert all(f.speedup is not None and f.speedup < 2 for k in elementwise for f in k.findings)


def test_the_limit_is_the_one_that_the_occupancy_names() -> None:
    """A carve-out that is just large enough for what registers allow is no limit of its own."""
    trace = gs.open(SHARED / "ncu" / "gpt_fwd.ncu-rep.xz", cache=False)
    found = gs.diagnose(trace, launches=[8, 29]).kernels
    assert {k.launch for k in found} == {8, 29}
    for kernel in found:
        assert "low-occupancy-registers" in {f.rule for f in kernel.findings}
