"""A whole capture: grouping, ranking, one finding for each cause, and every form of the answer."""

from __future__ import annotations

import csv
import io
import json
from typing import TYPE_CHECKING, Any

import pytest

import gpusight as gs
from gpusight.errors import UsageError
from gpusight.render.diagnosis_text import kernels_to_markdown, kernels_to_text
from gpusight.render.explanation import kernel_finding_table, kernel_overview
from gpusight.render.html.diagnosis_page import kernels_to_page
from gpusight.render.rule_reference import kernel_rules_parts
from gpusight.render.table_layout import TableOptions
from gpusight.results import NotApplicable
from gpusight.rules.diagnosis_results import KernelReportDiagnosis
from gpusight.rules.kernel_diagnosis import diagnose_kernels
from tests.findings.launches import IDLE, trace_of
from tests.findings.test_rules import FOUND, SECTORS
from tests.render.hostile import HOSTILE
from tests.traces import build_trace

if TYPE_CHECKING:
    from gpusight.trace.trace import Trace

UNCOALESCED = {**FOUND["uncoalesced-access"], "name": "strided(float*)"}
HEALTHY: dict[str, Any] = {"name": "copy(float*)", "duration_ns": 900_000.0}
SMALL = {**FOUND["small-grid"], "name": "tiny(float*)", "duration_ns": 20_000.0}


def diagnosed(trace: Trace, **options: Any) -> KernelReportDiagnosis:
    found = diagnose_kernels(trace, **options)
    assert isinstance(found, KernelReportDiagnosis)
    return found


@pytest.fixture
def diagnosis() -> KernelReportDiagnosis:
    return diagnosed(trace_of(HEALTHY, SMALL, UNCOALESCED, UNCOALESCED))


def test_kernels_are_ranked_by_the_time_that_fixes_give_back(
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
    assert "at its roof" in healthy[0].title


def test_every_rule_is_accounted_for(diagnosis: KernelReportDiagnosis) -> None:
    for kernel in diagnosis.kernels:
        found = {f.rule for f in kernel.findings} | {r for f in kernel.findings for r in f.also}
        assert found.isdisjoint(kernel.clean)
        assert len(found | set(kernel.clean) | set(kernel.not_applicable)) == 16


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


def test_selections() -> None:
    trace = trace_of(HEALTHY, SMALL, UNCOALESCED, UNCOALESCED)
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
    found = diagnosed(trace_of({**UNCOALESCED, "duration_ns": None}))
    finding = found.groups[0].findings[0]
    assert finding.speedup is not None
    assert finding.speedup > 2
    assert finding.saved_ns is None
    assert "strided" in kernels_to_text(found, TableOptions(80), details=1)


def test_a_gain_that_is_not_known_is_null_and_said() -> None:
    units = ("throughput", "pipe_", "issue", "l1tex2xbar", "stalled", "cycles_active")
    found = diagnosed(
        trace_of({"counters": {f"{SECTORS}_ideal": 125_000}, "name": "k(float*)"}, without=units)
    )
    finding = found.groups[0].findings[0]
    assert (finding.rule, finding.speedup) == ("uncoalesced-access", None)
    assert "gain not known" in kernels_to_text(found, TableOptions(80), details=1)
    assert found.document()["kernels"][0]["findings"][0]["speedup"] is None


def test_text_fits_the_screen_and_answers_first(diagnosis: KernelReportDiagnosis) -> None:
    text = kernels_to_text(diagnosis, TableOptions(80), details=0)
    lines = text.splitlines()
    assert max(map(len, lines)) <= 80
    assert "strided" in lines[3]
    assert "uncoalesced-access" in lines[3]
    assert "at roof" in lines[5]
    assert "the first fix of each kernel together" in lines[6]
    for word in ("gain", "seen", "why", "fix"):
        assert any(line.startswith(f"   {word} ") for line in lines)


def test_other_forms(diagnosis: KernelReportDiagnosis) -> None:
    assert kernel_overview(diagnosis).frame["finding"].to_list()[0] == "uncoalesced-access"
    rows = kernel_finding_table(diagnosis).frame
    assert rows.filter(rows["launch"] == 2)["rank"].to_list() == [1]
    markdown = kernels_to_markdown(diagnosis, limit=0, details=1)
    assert "### 1. `strided`" in markdown
    assert "```cuda" in markdown
    page = kernels_to_page(diagnosis)
    assert page.startswith("<!DOCTYPE html>")
    assert page.count('<section class="kernel">') == 3
    assert "default-src 'none'" in page


@pytest.mark.parametrize("name", HOSTILE)
def test_names_of_others_are_only_shown(name: str) -> None:
    hostile = diagnosed(trace_of({**UNCOALESCED, "name": name}))
    text = kernels_to_text(hostile, TableOptions(80), details=0)
    page, markdown = kernels_to_page(hostile), kernels_to_markdown(hostile, limit=0, details=0)
    for shown in (text, page, markdown):
        assert not {"\x1b", "\x9b", "\u202e"} & set(shown)
    assert "</script>" not in page
    assert "<b>bold" not in page
    assert max(map(len, text.splitlines())) <= 80


def test_the_view_shows_itself() -> None:
    view = gs.diagnose(trace_of(UNCOALESCED, HEALTHY))
    assert [k.launch for k in view.kernels] == [0, 1]
    assert view.findings[0].rule == "uncoalesced-access"
    assert view.saved_ns > 0
    assert view.notes == ()
    assert view.meta["tool"] == "Nsight Compute"
    assert "strided" in repr(view)
    assert "<table>" in view._repr_html_()
    assert json.loads(view.to_json())["kernels"][0]["name"] == "strided(float*)"
    assert "### 1." in view.to_markdown()
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
    text = kernels_to_text(diagnosed(trace, lines=True), TableOptions(80), details=1)
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
    assert "data from global or local memory" in finding.title
    assert finding.confidence.value == "low"


def test_numbers_of_the_profilers_own_sentences_stand_in_for_counters() -> None:
    said = "a total of 875000 excessive sectors (88% of the total 1000000 sectors)."
    rules = [{"launch": 0, "rule": "UncoalescedGlobalAccess", "message": said}]
    trace = trace_of(UNCOALESCED, without=("sectors",), rule_results=rules)
    finding = diagnosed(trace).groups[0].findings[0]
    assert finding.rule == "uncoalesced-access"
    assert "8.0 sectors" in finding.title
