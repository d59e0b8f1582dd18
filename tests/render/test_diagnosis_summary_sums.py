"""The plan adds up in every output: text, JSON, Markdown, report and the findings of `serve`."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from functools import cache
from importlib import resources
from pathlib import Path

import pytest

import gpusight as gs
from gpusight.errors import NotApplicableError
from gpusight.render.diagnosis_screen import MAX_LINES
from gpusight.render.diagnosis_summary import plan_total
from gpusight.render.html.report_page import to_page
from gpusight.reports.report_builder import build_report
from gpusight.reports.report_contents import build_headline
from gpusight.rules.diagnosis import TimelineDiagnosis
from gpusight.trace.trace import Trace
from gpusight.units import format_speedup
from gpusight.viewer.timeline_view import ViewerTimeline
from gpusight.web.analysis_payloads import findings_payload
from tests.reports.training_programs import training
from tests.shared import DATA, opened

UNITS = {"ns": 1.0, "µs": 1e3, "ms": 1e6, "s": 1e9}
TIMELINES = ("*.sqlite", "*.nsys-rep", "*.json.gz", "*.xplane.pb")
DEMOS = resources.files("gpusight").joinpath("data")
BUNDLED = [
    *(path for pattern in TIMELINES for path in sorted(DATA.glob(pattern))),
    *(Path(str(DEMOS.joinpath(name))) for name in ("demo.sqlite", "demo.json.gz")),
]
every_capture = pytest.mark.parametrize("path", BUNDLED, ids=lambda path: str(path.name))


@cache
def diagnosed(path: Path) -> tuple[Trace, TimelineDiagnosis]:
    trace = opened(path)
    try:
        diagnosis = gs.diagnose(trace).timeline
    except NotApplicableError as none:
        pytest.skip(str(none))
    assert isinstance(diagnosis, TimelineDiagnosis)
    return trace, diagnosis


def ns_of(text: str) -> float:
    """Read a time back, as it is shown."""
    value, unit = text.split()
    return float(value.replace(",", "")) * UNITS[unit]


def saved_per_step_ns(diagnosis: TimelineDiagnosis) -> float:
    return diagnosis.step_ns - diagnosis.predicted_step_ns


def test_bundled_captures_have_plans() -> None:
    plans = [len(diagnosed(path)[1].fixes) for path in BUNDLED if path.name.startswith("demo")]
    assert max(plans) >= 4


@every_capture
def test_each_step_time_is_the_one_before_less_the_saving(path: Path) -> None:
    _, diagnosis = diagnosed(path)
    left_ns = diagnosis.step_ns
    for finding, step_ns in zip(diagnosis.findings, diagnosis.plan_step_ns, strict=True):
        assert (step_ns is None) == (finding not in diagnosis.fixes)
        if step_ns is not None:
            left_ns -= (finding.saved_ns or 0.0) / max(1, diagnosis.steps)
            assert step_ns == pytest.approx(left_ns, abs=1.0)
    assert diagnosis.predicted_step_ns == pytest.approx(left_ns, abs=1.0)


@every_capture
def test_json_adds_up(path: Path) -> None:
    trace, diagnosis = diagnosed(path)
    document = json.loads(gs.diagnose(trace).to_json())
    plan, findings = document["plan"], document["findings"]
    saved_ns = sum(finding["after_above_ns"] or 0.0 for finding in findings)
    assert plan["step_ns"] - saved_ns / max(1, diagnosis.steps) == pytest.approx(
        plan["predicted_step_ns"], abs=1.0
    )
    assert plan["speedup"] == pytest.approx(plan["step_ns"] / max(1.0, plan["predicted_step_ns"]))
    assert plan["step_ns"] == document["window"]["step_ns"]


@every_capture
def test_text_and_markdown_add_up(path: Path) -> None:
    trace, diagnosis = diagnosed(path)
    result = gs.diagnose(trace)
    text, markdown = result.to_text(), result.to_markdown()
    assert len(text.splitlines()) <= MAX_LINES
    rows = [line.split(" | ") for line in markdown.splitlines() if re.match(r"\| +\d", line)]
    assert len(rows) == len(diagnosis.plan)
    if diagnosis.fixes:
        assert plan_total(diagnosis) in text
        assert plan_total(diagnosis).replace(">", r"\>") in markdown.replace("\\\\", "\\")
        shown_ns = sum(ns_of(row[3]) for row in rows if row[3].strip() != "-")
        assert shown_ns == pytest.approx(saved_per_step_ns(diagnosis), rel=0.005)
        total = format_speedup(diagnosis.step_ns / max(1.0, diagnosis.predicted_step_ns))
        most = "up to " if diagnosis.is_upper_bound else ""
        assert rows[len(diagnosis.fixes) - 1][4].strip() == f"{most}{total}"


@every_capture
def test_report_adds_up(path: Path) -> None:
    trace, diagnosis = diagnosed(path)
    report = build_report([trace])
    page = to_page(report)
    step_ns = next(n.value for n in report.headline.numbers if n.key in ("step_ns", "window_ns"))
    assert report.headline.now_ns == diagnosis.step_ns
    if diagnosis.steps:
        assert step_ns == pytest.approx(diagnosis.step_ns)
    check_page(page, diagnosis)


def check_page(page: str, diagnosis: TimelineDiagnosis) -> None:
    """Compare what cards, findings and bar of a page add up to with the total of its sentences."""
    cards = [
        float(ns)
        for of in re.findall(r'<ol class="gains">(.*?)</ol>', page, re.DOTALL)
        for ns in re.findall(r'<b data-v="([^"]+)"', of)
    ]
    listed = [float(ns) for ns in re.findall(r'<em data-v="([^"]+)"', page)]
    assert len(listed) == len(diagnosis.fixes)
    assert sum(cards) == pytest.approx(saved_per_step_ns(diagnosis), abs=1.0)
    assert sum(listed) == pytest.approx(saved_per_step_ns(diagnosis), abs=1.0)
    bar = re.search(r'data-now="([^"]+)" data-then="([^"]+)">(.*?)</div>', page, re.DOTALL)
    if bar is None:
        assert diagnosis.step_ns < 1.005 * diagnosis.predicted_step_ns
        return
    assert float(bar[1]) == diagnosis.step_ns
    assert float(bar[2]) == pytest.approx(diagnosis.predicted_step_ns, abs=1.0)
    widths = [float(width) for width in re.findall(r"width:([\d.]+)%", bar[3])]
    assert sum(widths) == pytest.approx(100, abs=0.01)
    total = plan_total(diagnosis).replace(">", "&gt;")
    assert page.count(f">{total[0].upper()}{total[1:]}</p>") == 2  # at the top and in the list


def test_a_long_plan_adds_up_too() -> None:
    report = build_report([training()])
    program = report.program
    assert program is not None
    assert isinstance(program.diagnosis, TimelineDiagnosis)
    first = program.diagnosis.findings[0]
    part_ns = program.diagnosis.focus.length_ns / 20
    findings = tuple(replace(first, saved_ns=part_ns / n) for n in range(1, 8))
    diagnosis = replace(program.diagnosis, findings=findings)
    longer = replace(program, diagnosis=diagnosis)
    page = to_page(replace(report, program=longer, headline=build_headline(longer, ())))
    assert "4 more fixes" in page
    check_page(page, diagnosis)


@every_capture
def test_serve_adds_up(path: Path) -> None:
    trace, diagnosis = diagnosed(path)
    payload = findings_payload(ViewerTimeline(trace), [])
    assert payload.step_ns == diagnosis.step_ns
    saved_ns = sum(finding.saved_ns_per_step or 0.0 for finding in payload.findings)
    assert saved_ns == pytest.approx(saved_per_step_ns(diagnosis), abs=1.0)
    assert payload.predicted_step_ns == diagnosis.predicted_step_ns
    assert payload.plan == (plan_total(diagnosis) if diagnosis.fixes else "")
    shares = sum(finding.share or 0.0 for finding in payload.findings)
    assert shares == pytest.approx(saved_per_step_ns(diagnosis) / diagnosis.step_ns)
