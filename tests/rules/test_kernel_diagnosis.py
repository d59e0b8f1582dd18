"""The diagnosis of kernels: of launches built by hand, of real reports, of anything."""

from __future__ import annotations

import csv
import io
import json
import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tools.rule_pages import kernel_rules_parts

import gpusight as gs
from gpusight.analysis.counters.profiled_launch import QUANTITIES
from gpusight.analysis.kernel_summary import kernel_launches
from gpusight.analysis.roofline.roofline_report import roofline
from gpusight.cli.main import main
from gpusight.errors import UsageError
from gpusight.hardware.gpu_lookup import GEMM_FIXED_NS
from gpusight.render.diagnosis_screen import MAX_LINES, screen_lines
from gpusight.render.diagnosis_summary import fix_of_plan
from gpusight.render.diagnosis_view import diagnosis_to_markdown
from gpusight.render.explanation import kernel_finding_table, kernel_overview
from gpusight.render.html.diagnosis_page import diagnosis_to_page
from gpusight.render.result_view import DiagnosisView
from gpusight.render.table_layout import TableOptions
from gpusight.results import NotApplicable, TableResult
from gpusight.rules.diagnosis import JoinedDiagnosis, KernelReportDiagnosis
from gpusight.rules.kernel_diagnosis import diagnose_kernels
from gpusight.rules.registry import KERNEL_RULES
from tests.render.hostile import HOSTILE
from tests.rules.kernel.rule_launches import FOUND, SECTORS
from tests.rules.launches import HEALTHY, IDLE, trace_of
from tests.shared import EVERY_NCU_REPORT, SHARED, name, needs_shared, opened
from tests.traces import build_trace

if TYPE_CHECKING:
    from pathlib import Path

    from gpusight.rules.diagnosis import LaunchDiagnosis
    from gpusight.trace.trace import Trace


# A whole capture: grouping, ranking, one finding for each cause, and every form of the answer.


UNCOALESCED = {**FOUND["uncoalesced-access"], "name": "strided(float*)"}
COPY: dict[str, Any] = {"name": "copy(float*)", "duration_ns": 900_000.0}
SMALL = {**FOUND["small-grid"], "name": "tiny(float*)", "duration_ns": 20_000.0}


def diagnosed(trace: Trace, **options: Any) -> KernelReportDiagnosis:
    result = diagnose_kernels(trace, **options)
    assert isinstance(result, KernelReportDiagnosis)
    return result


@pytest.fixture
def diagnosis() -> KernelReportDiagnosis:
    return diagnosed(trace_of(COPY, SMALL, UNCOALESCED, UNCOALESCED))


def test_kernels_are_ranked_by_the_time_that_fixes_save(
    diagnosis: KernelReportDiagnosis,
) -> None:
    assert [group.label for group in diagnosis.groups] == ["strided", "tiny", "copy"]
    strided, tiny, copy = diagnosis.groups
    assert len(strided.kernels) == 2
    assert strided.duration_ns == 400_000
    assert strided.saved_ns == pytest.approx(2 * strided.kernels[0].saved_ns)
    assert strided.saved_ns > tiny.saved_ns > copy.saved_ns == 0
    assert diagnosis.saved_ns == pytest.approx(strided.saved_ns + tiny.saved_ns)
    assert [f.rule for f in diagnosis.findings][:2] == ["uncoalesced-access", "small-grid"]


def test_one_finding_for_each_cause(diagnosis: KernelReportDiagnosis) -> None:
    first = diagnosis.groups[0].findings
    assert [f.rule for f in first] == ["uncoalesced-access"]
    assert first[0].also == ("memory-bound",)
    healthy = diagnosis.groups[-1].findings
    assert [(f.rule, f.speedup) for f in healthy] == [("memory-bound", 1.0)]
    assert healthy[0].title == "At the DRAM roofline (90%)"


def test_every_rule_is_accounted_for(diagnosis: KernelReportDiagnosis) -> None:
    for kernel in diagnosis.kernels:
        rules = {f.rule for f in kernel.findings} | {r for f in kernel.findings for r in f.also}
        assert rules.isdisjoint(kernel.clean)
        assert len(rules | set(kernel.clean) | set(kernel.not_applicable)) == 16


def test_the_document(diagnosis: KernelReportDiagnosis) -> None:
    document = json.loads(json.dumps(diagnosis.document()))
    assert document["meta"]["gpus"] == ["NVIDIA H200"]
    assert document["meta"]["launches"] == 4
    assert document["saved_ns"] == pytest.approx(diagnosis.saved_ns)
    first = document["kernels"][0]
    assert (first["name"], first["launch"], first["duration_ns"]) == ("strided(float*)", 2, 200_000)
    assert first["held_by"] == "memory"
    finding = first["findings"][0]
    assert finding["rule"] == "uncoalesced-access"
    assert finding["speedup"] > 2
    assert finding["saved_ns"] == pytest.approx(200_000 * (1 - 1 / finding["speedup"]))
    assert finding["confidence"] == "high"
    assert {e["metric"] for e in finding["evidence"]} >= {"sectors_moved", "sectors_needed"}
    assert all(finding[key] for key in ("why", "fix", "code", "misleads", "estimate", "sections"))


def test_missing_counters_are_named_with_what_to_collect() -> None:
    lacking = diagnosed(trace_of(UNCOALESCED, without=("sectors", "wavefronts", "bank_conf")))
    absent = lacking.kernels[0].not_applicable
    assert {"uncoalesced-access", "bank-conflict"} <= set(absent)
    assert "SourceCounters" in absent["uncoalesced-access"].sections
    assert any("--section SourceCounters" in note for note in lacking.notes)


def test_a_report_without_counters_says_so_and_how_to_record_them() -> None:
    counterless = ("throughput", "pipe", "issue", "l1tex", "inst_executed", "sectors", "dram")
    bare = diagnosed(trace_of(COPY, without=counterless))
    assert not bare.findings
    assert "memory-bound" in bare.unevaluated
    screen = DiagnosisView(replace(bare, meta={"path": "a.ncu-rep"})).to_text(TableOptions(80))
    assert "The report lacks the counters that show what limits its kernels.\n" in screen
    assert screen.endswith("next: ncu --set full -o report PROGRAM\n")
    assert "rules lack counters; collect with ncu --set full" in screen
    # Where every rule was evaluated, there is nothing to record.
    only = diagnosed(trace_of(COPY), rules=["divergence"])
    assert (only.findings, only.unevaluated) == ((), ())
    sound = DiagnosisView(replace(only, meta={"path": "a.ncu-rep"})).to_text(TableOptions(80))
    assert "No kernel has a finding.\nnext: gpusight roofline a.ncu-rep\n" in sound


def test_selections() -> None:
    trace = trace_of(COPY, SMALL, UNCOALESCED, UNCOALESCED)
    assert [k.launch for k in diagnosed(trace, kernel="strided*").kernels] == [2, 3]
    assert [k.launch for k in diagnosed(trace, launches=[1]).kernels] == [1]
    only = diagnosed(trace, rules=["small-grid"])
    assert {f.rule for f in only.findings} == {"small-grid"}
    # A rule that is asked for alone answers, even where another one would account for it.
    effect = diagnosed(trace, rules=["memory-bound"], launches=[2]).kernels[0]
    assert [f.rule for f in effect.findings] == ["memory-bound"]
    assert (effect.clean, effect.not_applicable) == ((), {})
    with pytest.raises(UsageError, match="no rule 'nope'"):
        diagnose_kernels(trace, rules=["nope"])
    with pytest.raises(UsageError, match="no launch 9"):
        diagnose_kernels(trace, launches=[9])


def test_a_timeline_says_what_it_is_for() -> None:
    timeline = build_trace(kernels=[{"start_ns": 0, "end_ns": 9, "name": "k"}])
    answer = diagnose_kernels(timeline)
    assert isinstance(answer, NotApplicable)
    assert "timeline" in answer.reason
    assert "ncu" in answer.hint


def test_a_launch_without_a_duration_is_diagnosed_too() -> None:
    result = diagnosed(trace_of({**UNCOALESCED, "duration_ns": None}))
    finding = result.groups[0].findings[0]
    assert finding.speedup is not None
    assert finding.speedup > 2
    assert finding.saved_ns is None
    assert "strided" in DiagnosisView(result).to_text(TableOptions(80), details=True)


def test_a_gain_that_is_not_known_is_null_and_said() -> None:
    units = ("throughput", "pipe_", "issue", "l1tex2xbar", "stalled", "cycles_active")
    result = diagnosed(
        trace_of({"counters": {f"{SECTORS}_ideal": 125_000}, "name": "k(float*)"}, without=units)
    )
    finding = result.groups[0].findings[0]
    assert (finding.rule, finding.speedup) == ("uncoalesced-access", None)
    text = " ".join(DiagnosisView(result).to_text(TableOptions(80), details=True).split())
    assert "speedup unknown" in text
    assert result.document()["kernels"][0]["findings"][0]["speedup"] is None


def test_text_fits_the_screen_and_answers_first(diagnosis: KernelReportDiagnosis) -> None:
    lines = DiagnosisView(diagnosis).to_text(TableOptions(80)).splitlines()
    assert len(lines) <= 15
    assert max(map(len, lines)) <= 80
    first = next(line for line in lines if line.startswith(" 1. "))
    assert "strided: Uncoalesced access" in first
    assert any("at roofline" in line for line in lines)
    assert any(line.startswith("first fix of each kernel: ") for line in lines)
    lines = DiagnosisView(diagnosis).to_text(TableOptions(80), details=True).splitlines()
    assert max(map(len, lines)) <= 80
    for word in ("gain", "data", "why", "fix"):
        assert any(line.startswith(f"   {word} ") for line in lines)


def test_other_forms(diagnosis: KernelReportDiagnosis) -> None:
    assert kernel_overview(diagnosis).frame["finding"].to_list()[0] == "uncoalesced-access"
    rows = kernel_finding_table(diagnosis).frame
    assert rows.filter(rows["launch"] == 2)["rank"].to_list() == [1]
    markdown = diagnosis_to_markdown(diagnosis, details=True)
    assert "### 1. `strided`" in markdown
    assert "```cuda" in markdown
    page = diagnosis_to_page(diagnosis)
    assert page.startswith("<!DOCTYPE html>")
    assert page.count('<section class="kernel">') == 3
    assert "default-src 'none'" in page


@pytest.mark.parametrize("name", HOSTILE)
def test_names_of_others_are_only_shown(name: str) -> None:
    hostile = diagnosed(trace_of({**UNCOALESCED, "name": name}))
    text = DiagnosisView(hostile).to_text(TableOptions(80), details=True)
    page, markdown = diagnosis_to_page(hostile), diagnosis_to_markdown(hostile, details=True)
    for shown in (text, page, markdown):
        assert not {"\x1b", "\x9b", "\u202e"} & set(shown)
    assert "</script>" not in page
    assert "<b>bold" not in page
    assert max(map(len, text.splitlines())) <= 80


def test_the_view_shows_itself() -> None:
    view = gs.diagnose(trace_of(UNCOALESCED, COPY))
    assert [k.launch for k in view.kernels] == [0, 1]
    assert view.findings[0].rule == "uncoalesced-access"
    assert view.saved_ns > 0
    assert view.notes == ()
    assert view.meta["tool"] == "Nsight Compute"
    assert "strided" in repr(view)
    assert "<table>" in view._repr_html_()
    assert json.loads(view.to_json())["kernels"][0]["name"] == "strided(float*)"
    assert "`strided`" in view.to_markdown()
    assert view.to_html().startswith("<!DOCTYPE html>")
    assert len(list(csv.reader(io.StringIO(view.to_csv())))) == 3


def test_the_page_of_rules_explains_every_rule() -> None:
    page = "\n\n".join(kernel_rules_parts())
    for rule in (k for k in FOUND):
        assert f"\n## {rule}\n" in page


def test_lines_of_the_source() -> None:
    base = 0x7000
    trace = trace_of(
        {**UNCOALESCED, "mangled_name": "_Z7strided", "binary": 0, "address": base},
        counter_instances=[
            {"launch": 0, "metric": SECTORS, "instance": base + 16, "value": 900.0},
            {"launch": 0, "metric": f"{SECTORS}_ideal", "instance": base + 16, "value": 100.0},
            {"launch": 0, "metric": SECTORS, "instance": base + 48, "value": 200.0},
        ],
        code_lines=[
            {"binary": 0, "function": "_Z7strided", "offset": 0, "path": "a.cu", "line": 3},
            {"binary": 0, "function": "_Z7strided", "offset": 32, "path": "a.cu", "line": 7},
        ],
        source_files=[{"binary": 0, "path": "a.cu", "content": "\n\n  b[j] = a[j];\n"}],
    )
    places = diagnosed(trace, lines=True).groups[0].findings[0].places
    assert [(p.path, p.line, round(p.share, 2), p.text) for p in places] == [
        ("a.cu", 3, 0.8, "b[j] = a[j];"),
        ("a.cu", 7, 0.2, ""),
    ]
    text = DiagnosisView(diagnosed(trace, lines=True)).to_text(TableOptions(80), details=True)
    assert "80.0%  a.cu:3  b[j] = a[j];" in text


def test_lines_by_samples_under_an_old_name() -> None:
    base, far = 0x7000, 1 << 40  # what lies so far off is a moment, not an instruction
    trace = trace_of(
        {"counters": IDLE, "mangled_name": "_Z1k", "binary": 0, "address": base},
        counter_instances=[
            {"launch": 0, "metric": "samples", "instance": base + 32, "value": 60.0},
            {"launch": 0, "metric": "samples", "instance": base, "value": 40.0},
            {"launch": 0, "metric": "samples", "instance": base + far, "value": 900.0},
        ],
        code_lines=[
            {"binary": 0, "function": "_Z1k", "offset": 0, "path": "a.cu", "line": 3},
            {"binary": 0, "function": "_Z1k", "offset": 32, "path": "a.cu", "line": 7},
        ],
    )
    (finding,) = diagnosed(trace, lines=True).groups[0].findings
    assert finding.rule == "latency-bound"
    assert [(p.line, round(p.share, 2)) for p in finding.places] == [(7, 0.6), (3, 0.4)]


def test_idle_kernels_wait() -> None:
    waiting = diagnosed(trace_of({"counters": IDLE}))
    finding = waiting.groups[0].findings[0]
    assert finding.rule == "latency-bound"
    assert finding.title == "Stall Long Scoreboard 91% (global or local memory)"
    assert finding.confidence.value == "low"


def test_numbers_of_the_profilers_own_sentences_stand_in_for_counters() -> None:
    text = "a total of 875000 excessive sectors (88% of the total 1000000 sectors)."
    rules = [{"launch": 0, "rule": "UncoalescedGlobalAccess", "message": text}]
    trace = trace_of(UNCOALESCED, without=("sectors",), rule_results=rules)
    finding = diagnosed(trace).groups[0].findings[0]
    assert finding.rule == "uncoalesced-access"
    assert finding.title == "Uncoalesced access: 8.0x the ideal sectors"


# Real reports: kernels whose character is known, and others that must not break anything.


PLANTED = {
    "copy_coalesced": "memory-bound",
    "copy_strided": "uncoalesced-access",
    "fma_heavy": "compute-bound",
    "fp64_heavy": "fp64-heavy",
    "transpose_bank_conflict": "bank-conflict",
    "transpose_padded": "latency-bound",
    "low_occupancy_smem": "low-occupancy-shared-memory",
    "low_occupancy_regs": "low-occupancy-registers",
    "divergent": "divergence",
    "atomic_contention": "atomic-contention",
    "tiny_grid": "small-grid",
    "pointer_chase": "latency-bound",
}
FULL = SHARED / "ncu" / "kernels_full.ncu-rep.xz"


@pytest.fixture(scope="module")
def planted() -> list[LaunchDiagnosis]:
    return list(gs.diagnose(gs.open(FULL, cache=False)).kernels)


@needs_shared
@pytest.mark.parametrize("kernel", sorted(PLANTED))
def test_the_first_finding_is_the_planted_character(
    kernel: str, planted: list[LaunchDiagnosis]
) -> None:
    both = [k for k in planted if k.name.startswith(f"{kernel}(")]
    assert len(both) == 2
    for launch in both:
        assert launch.findings[0].rule == PLANTED[kernel]


@needs_shared
def test_kernels_at_their_roof_say_so(planted: list[LaunchDiagnosis]) -> None:
    result = [k for k in planted if k.name.startswith(("copy_coalesced", "fma_heavy"))]
    assert len(result) == 4
    for kernel in result:
        (finding,) = kernel.findings
        assert finding.speedup == 1.0
        assert finding.at_roofline
        assert finding.title.startswith(("At the DRAM roofline", "Instruction issue"))


@needs_shared
def test_padding_leaves_no_conflict_and_estimates_what_it_gives(
    planted: list[LaunchDiagnosis],
) -> None:
    times = {k.name.partition("(")[0]: k.duration_ns or 0.0 for k in planted}
    padded = next(k for k in planted if k.name.startswith("transpose_padded"))
    assert "bank-conflict" in padded.clean
    conflict = next(k for k in planted if k.name.startswith("transpose_bank_conflict"))
    real = times["transpose_bank_conflict"] / times["transpose_padded"]
    assert conflict.findings[0].speedup == pytest.approx(real, rel=0.3)


@needs_shared
def test_the_profilers_own_rules_stand_beside(planted: list[LaunchDiagnosis]) -> None:
    strided = next(k for k in planted if k.name.startswith("copy_strided"))
    own = {r.rule: r for r in strided.profiler_rules}
    assert own["UncoalescedGlobalAccess"].speedup_percent == pytest.approx(87.44, abs=0.01)


@needs_shared
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


@needs_shared
@pytest.mark.parametrize("report", EVERY_NCU_REPORT, ids=name)
def test_text_fits_eighty_columns(
    report: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert main(["diagnose", str(report), "--details"]) == 0
    lines = capsys.readouterr().out.splitlines()
    # The next command is whole, so that it can be pasted.
    assert max(len(line) for line in lines if not line.startswith("next: ")) <= 80


@pytest.mark.parametrize("report", EVERY_NCU_REPORT, ids=name)
def test_all_commands_agree_on_what_limits_a_kernel(report: Path) -> None:
    trace = opened(report)
    points = roofline(trace, launches=True)
    if isinstance(points, NotApplicable):
        pytest.skip(points.reason)
    launches = points.sections[0]
    assert isinstance(launches, TableResult)
    by_roofline = dict(launches.frame.select("launch", "bound").iter_rows())
    table = kernel_launches(trace)
    assert not isinstance(table, NotApplicable)
    by_kernels = dict(table.frame.select("launch", "bound").iter_rows())
    diagnosis = diagnosed(trace)
    by_diagnose = {kernel.launch: kernel.limiter for kernel in diagnosis.kernels}
    assert by_roofline == by_kernels == by_diagnose
    limits = launches.frame.select("launch", "limit", "limit_share").iter_rows()
    by_launch = {launch: limit for launch, *limit in limits}
    # A rule that names a limiter names this one, with the share that `roofline` and `join` show.
    for kernel in diagnosis.kernels:
        level, share = by_launch[kernel.launch]
        for finding in kernel.findings:
            if finding.rule in {"memory-bound", "compute-bound", "latency-bound"}:
                assert finding.rule == f"{kernel.limiter}-bound"
            if finding.rule == "memory-bound" and "memory throughput" not in finding.title:
                assert level.upper() in finding.title
                assert f"{share:.0%}" in finding.title
                assert not finding.at_roofline or share >= 0.8 or (finding.speedup or 0) > 1


@pytest.mark.parametrize("report", EVERY_NCU_REPORT, ids=name)
def test_titles_are_short_and_have_an_effort(report: Path) -> None:
    for finding in diagnosed(opened(report)).findings:
        assert len(finding.title) <= 56
        assert finding.title[0].isupper() or finding.title[0].isdigit()
        assert finding.effort in {"one line", "config", "rewrite"}


@needs_shared
def test_library_gemms_should_use_tensor_cores() -> None:
    view = gs.diagnose(opened(SHARED / "ncu" / "gpt_fwd.ncu-rep.xz"))
    gemms = [k for k in view.kernels if "gemm" in k.name]
    assert gemms
    assert {k.findings[0].rule for k in gemms} == {"tensor-cores-idle"}
    elementwise = [k for k in view.kernels if "elementwise" in k.name]
    assert all(f.speedup is not None and f.speedup < 2 for k in elementwise for f in k.findings)


@needs_shared
def test_a_timeline_and_a_report_estimate_the_same_fix_alike() -> None:
    """A GEMM on Tensor Cores takes what the plan's simulation says, and names the fix."""
    timeline = opened(SHARED / "nsys" / "gpt_small_train.sqlite")
    report = opened(SHARED / "ncu" / "gpt_fwd.ncu-rep.xz")
    view = gs.diagnose([timeline, report])
    joined = view.answer
    assert isinstance(joined, JoinedDiagnosis)
    numbers = {e.metric: e.value for e in joined.timeline.plan[0].evidence}
    gemms = [k for k in joined.kernels if k.finding and k.finding.rule == "tensor-cores-idle"]
    assert len(gemms) > 3
    for kernel in gemms:
        assert kernel.finding is not None
        mean_ns = kernel.group.duration_ns / len(kernel.group.kernels)
        alike = 1 / (1 / numbers["ratio"] + GEMM_FIXED_NS / mean_ns)
        assert kernel.finding.speedup is not None
        if "memory traffic stays" in kernel.finding.estimate:  # which a timeline does not show
            assert kernel.finding.speedup < alike
        else:
            assert kernel.finding.speedup == pytest.approx(alike, rel=0.1)
        assert fix_of_plan(joined.timeline, kernel.finding) == "fix 1"
    for width in (80, 100):
        lines = [line.text for line in screen_lines(joined, TableOptions(width))]
        assert len(lines) <= MAX_LINES
        assert (
            sum(line.startswith((" 1. ", " 2. ", " 3. ", " 4. ")) for line in lines) >= 2
        )  # of long paths
        assert any("profiled kernel" in line.lower() for line in lines)


@needs_shared
def test_the_limit_is_the_one_that_the_occupancy_names() -> None:
    """A carve-out that is just large enough for what registers allow is no limit of its own."""
    trace = opened(SHARED / "ncu" / "gpt_fwd.ncu-rep.xz")
    view = gs.diagnose(trace, launches=[8, 29]).kernels
    assert {k.launch for k in view} == {8, 29}
    for kernel in view:
        assert "low-occupancy-registers" in {f.rule for f in kernel.findings}


# Whatever a capture holds, every rule answers, and no gain is nonsense.


METRICS = sorted({m for q in QUANTITIES for f in q.formulas for m in f.metrics})
VALUES = st.one_of(
    st.sampled_from([0.0, 1.0, 32.0, 100.0, -1.0, 1e18, float("nan"), float("inf")]),
    st.floats(0, 120),
    st.floats(0, 1e12),
)
SIDES = st.sampled_from([None, 0, 1, 33, 132, 70_000])


@settings(max_examples=30, deadline=None)
@given(
    counters=st.dictionaries(st.sampled_from(METRICS), VALUES, max_size=60),
    lacking=st.lists(st.sampled_from(sorted(HEALTHY)), max_size=30),
    grid=SIDES,
    block=SIDES,
    duration=st.sampled_from([None, 0.0, 900.0, 3e3, 2e5, 1e12]),
    name=st.sampled_from(["k", "sgemm_nn", "flash_fwd_kernel", ""]),
)
def test_every_rule_answers(
    counters: dict[str, float],
    lacking: list[str],
    grid: int | None,
    block: int | None,
    duration: float | None,
    name: str,
) -> None:
    trace = trace_of(
        {
            "counters": counters,
            "grid_x": grid,
            "block_x": block,
            "duration_ns": duration,
            "name": name,
        },
        without=[metric for metric in lacking if metric not in counters],
    )
    result = diagnose_kernels(trace)
    assert isinstance(result, KernelReportDiagnosis)
    (kernel,) = result.kernels
    also = [rule for f in kernel.findings for rule in f.also]
    rules = [f.rule for f in kernel.findings]
    assert sorted([*rules, *also, *kernel.clean, *kernel.not_applicable]) == sorted(KERNEL_RULES)
    for finding in kernel.findings:
        assert finding.speedup is None or 1 <= finding.speedup <= 1000
        assert all(math.isfinite(e.value) for e in finding.evidence)
    gains = [f.speedup or 0.0 for f in kernel.findings]
    assert gains == sorted(gains, reverse=True)


@needs_shared
def test_limits_name_targets_that_follow_from_the_launch(planted: list[LaunchDiagnosis]) -> None:
    first = {k.name.partition("(")[0]: k.findings[0] for k in planted}
    registers = first["low_occupancy_regs"]
    # The changes that `occupancy` lists (test_occupancy.py).
    pasted = registers.code.splitlines()
    # The smallest step is what is pasted: fewer registers may spill.
    assert pasted[0] == "// step 1: 168 registers, 12 warps per SM"
    assert pasted[1] == "__global__ void __launch_bounds__(128, 3) kernel(...)"
    assert pasted[2].startswith("// step 2: 64 registers, 32 warps per SM, unless it spills")
    assert pasted[3] == "//   __launch_bounds__(128, 8)"
    assert "spill stores" in registers.code
    # The speedup is that of the smallest step.
    assert registers.speedup == pytest.approx(1.37, abs=0.01)
    assert "2.5x with 32 warps (64 registers per thread); less if registers spill" in (
        registers.estimate
    )
    assert "// step 1: 115712 bytes, 8 warps per SM" in first["low_occupancy_smem"].code
    assert "// step 2: 28160 bytes, 32 warps per SM" in first["low_occupancy_smem"].code
    assert "// at most 115712" in first["low_occupancy_smem"].code
    # As for registers, it is ranked by the smallest step.
    assert first["low_occupancy_smem"].speedup == pytest.approx(1.62, abs=0.01)
    assert "2.6x with 32 warps" in first["low_occupancy_smem"].estimate
    assert "spill" not in first["low_occupancy_smem"].estimate
    assert "64 registers per thread" in registers.estimate
    evidence = {e.metric: e.value for e in registers.evidence}
    assert evidence["warps_without_limit"] == 64
    shared = {e.metric for e in first["low_occupancy_smem"].evidence}
    assert "dynamic_shared_bytes" in shared
    assert "registers" not in shared
    strided = first["copy_strided"].estimate
    assert "needs 8% instead of 65% of the present time" in strided


def test_a_summed_finding_counts_the_launches_without_it() -> None:
    without = {**COPY, "name": UNCOALESCED["name"]}
    result = diagnose_kernels(trace_of(UNCOALESCED, UNCOALESCED, without))
    assert isinstance(result, KernelReportDiagnosis)
    (group,) = result.groups
    finding = group.findings[0]
    assert (len(group.kernels), finding.launches) == (3, 2)
    assert finding.launch in {0, 1}
    assert finding.time_ns == group.duration_ns
    alone = max(kernel.findings[0].speedup or 0.0 for kernel in group.kernels[:2])
    assert 1.0 < (finding.speedup or 0.0) < alone
