"""The page of a report: numbers are those of the commands, names are text, its size is bounded."""

from __future__ import annotations

import html
import json
import random
import re
import string
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

import gpusight as gs
from gpusight.analysis.ledger.ledger_report import LedgerReport
from gpusight.errors import UsageError
from gpusight.render.diagnosis_summary import outside_plan_text
from gpusight.render.html.html_templates import clipped_text, css_color
from gpusight.render.html.report_page import to_page
from gpusight.reports.report_builder import build_report
from gpusight.rules.diagnosis import TimelineDiagnosis
from gpusight.trace.trace import Trace
from gpusight.units import format_time
from tests.reports.training_programs import EVIL, training
from tests.shared import DATA, opened
from tests.traces import build_trace

MAX_BYTES = 3_000_000
CAPTURES = [
    "dataload.sqlite",
    "graph.sqlite",
    "healthy.json.gz",
    "jax_small.xplane.pb",
    "jax_graph.trace.json.gz",
    "memory_snapshot.pickle",
    "gpt_small_forward_key_averages.txt",
    "thrice.ncu-rep.xz",
    "odd_node.nsys-rep",
]


class Document(HTMLParser):
    """What a page says: tables by caption, sections, attributes, texts, and what it would load."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tables: dict[str, list[list[tuple[dict[str, str], str]]]] = {}
        self.rows: list[dict[str, str]] = []
        self.sections: list[str] = []
        self.headings: list[str] = []
        self.attributes: list[tuple[str, str, str]] = []
        self.tags: set[str] = set()
        self._table: list[list[tuple[dict[str, str], str]]] = []
        self._open = ""
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        own = {name: value or "" for name, value in attrs}
        self.tags.add(tag)
        self.attributes += [(tag, name, value) for name, value in own.items()]
        if tag == "table":
            self._table = []
        if tag == "section":
            self.sections.append(own.get("id", ""))
        if tag == "tr":
            self._table.append([])
            self.rows.append(own)
        if tag in {"td", "th"} and self._table:
            self._table[-1].append((own, ""))
        if tag in {"caption", "h2", "h3"}:
            self.headings.append("")
        self._open = tag if tag in {"caption", "h2", "h3"} else self._open

    def handle_endtag(self, tag: str) -> None:
        if tag == "caption":
            self.tables[self.headings[-1]] = self._table
        self._open = "" if tag == self._open else self._open

    def handle_data(self, data: str) -> None:
        if self._open:
            self.headings[-1] += data
        elif self._table and self._table[-1]:
            own, text = self._table[-1][-1]
            self._table[-1][-1] = (own, text + data)


def page_of(*traces: Trace, **options: Any) -> str:
    return to_page(build_report(list(traces), **options))


@pytest.fixture(scope="module")
def dataload() -> tuple[Trace, str]:
    trace = opened(DATA / "dataload.sqlite")
    return trace, page_of(trace)


# Numbers ------------------------------------------------------------------------------------------


def test_the_ledger_is_that_of_the_command(dataload: tuple[Trace, str]) -> None:
    trace, page = dataload
    document = gs.ledger(trace).to_dict()["devices"][0]["entries"]
    rows = [row for row in Document(page).rows if "data-entry" in row]
    shown = [(row["data-entry"], int(row["data-ns"])) for row in rows]
    assert dict(shown) == {entry["entry"]: entry["ns"] for entry in document}
    groups = [entry.partition("/")[0] for entry, _ in shown]
    assert list(dict.fromkeys(groups)) == ["compute", "copy", "idle"]
    for group in set(groups):
        sizes = [ns for entry, ns in shown if entry.startswith(group)]
        assert sizes == sorted(sizes, reverse=True)
    assert sum(int(row["data-ns"]) for row in rows) == gs.ledger(trace).answer.focus.length_ns


def test_the_kernels_are_those_of_the_command(dataload: tuple[Trace, str]) -> None:
    trace, page = dataload
    view = gs.kernels(trace).rows()
    table = Document(page).tables["Kernels by GPU time"][1:]
    assert len(table) == len(view)
    for cells, row in zip(table, view, strict=True):
        exact = [float(own["data-v"]) for own, _ in cells if "data-v" in own]
        keys = ("total_ns", "share", "calls", "mean_ns", "min_ns", "max_ns")
        assert exact == [row[key] for key in keys]
        assert row["short_name"] in cells[0][1]
        assert cells[1][1] == row["category"]


def test_the_copies_are_those_of_the_command(dataload: tuple[Trace, str]) -> None:
    trace, page = dataload
    view = gs.copies(trace).rows()
    table = Document(page).tables["Memcpys and memsets by GPU time"][1:]
    shown = [[float(own["data-v"]) for own, _ in cells if "data-v" in own] for cells in table]
    keys = ("total_ns", "share", "calls", "bytes", "bandwidth_bytes_s", "exposed_ns")
    assert shown == [[row[key] for key in keys if row[key] is not None] for row in view]


def test_the_findings_are_those_of_the_command(dataload: tuple[Trace, str]) -> None:
    trace, page = dataload
    view = gs.diagnose(trace).timeline
    assert view is not None
    headings = Document(page).headings
    for finding in view.findings:
        assert finding.title.replace("`", "") in (headings if finding.is_fix else page)
        assert html.escape(finding.code.splitlines()[0]) in page
        assert f"<code>{finding.rule}</code>" in page
    first = re.search(r'<ol class="gains">.*?data-v="([^"]+)"', page, re.DOTALL)
    assert first is not None
    assert float(first[1]) == (view.findings[0].saved_ns or 0.0) / view.steps
    left = re.search(r'class="together" data-now="([^"]+)" data-then="([^"]+)"', page)
    assert left is not None
    assert float(left[2]) == pytest.approx(view.predicted_step_ns)


def test_the_numbers_at_the_top_are_those_of_the_sections(dataload: tuple[Trace, str]) -> None:
    trace, page = dataload
    shown = dict(re.findall(r'data-key="(\w+)"><dt>[^<]*</dt><dd data-v="([^"]+)"', page))
    view = gs.diagnose(trace).timeline
    assert view is not None
    assert float(shown["step_ns"]) == view.step_ns
    assert float(shown["peak_bytes"]) == gs.memory(trace).facts["peak_bytes"]
    entries = gs.ledger(trace).to_dict()["devices"][0]["entries"]
    idle = sum(e["ns"] for e in entries if e["entry"].startswith("idle/"))
    whole = sum(e["ns"] for e in entries)
    assert float(shown["busy_share"]) == pytest.approx(1 - idle / whole)


def test_the_flame_chart_has_the_tree_of_ranges() -> None:
    match = re.search(r'class="flame-data">(.*?)</script>', page_of(training(4)))
    assert match is not None
    data = json.loads(match[1])
    names = [data["names"][n] for n in data["name"]]
    assert names == ["step_#", "data", "forward", "backward"]
    assert data["parent"] == [-1, 0, 0, 0]
    assert data["host"] == [4 * 980_000, 4 * 400_000, 4 * 190_000, 4 * 90_000]
    assert data["gpu"] == [4 * 350_000, 0, 4 * 200_000, 4 * 100_000]


# Every capture ------------------------------------------------------------------------------------


@pytest.mark.parametrize("capture", CAPTURES)
def test_every_form_of_capture_gives_a_page(capture: str) -> None:
    page = page_of(opened(DATA / capture))
    document = Document(page)
    assert document.sections[-1] == "limitations"
    assert len(set(document.sections)) == len(document.sections)
    assert len(page.encode()) < MAX_BYTES / 4


def test_a_capture_without_anything_gives_a_page_that_says_so() -> None:
    page = page_of(build_trace())
    assert ">Limitations<" in page
    assert page.count('class="absent"') == 1
    assert "Plan: each fix" not in page


def test_sections_that_have_nothing_to_say_are_left_out() -> None:
    with_all = Document(page_of(training())).sections
    assert with_all == [
        "ledger", "findings", "timeline", "utilization", "kernels", "ranges", "phases", "copies",
        "memory", "limitations",
    ]  # fmt: skip
    kernel = {"start_ns": 0, "end_ns": 10, "name": "k"}
    bare = Document(page_of(build_trace(kernels=[kernel], devices=[{}]))).sections
    assert {"phases", "copies", "memory"}.isdisjoint(bare)


def test_a_report_beside_a_timeline_adds_what_was_measured() -> None:
    traces = [opened(DATA / name) for name in ("resnet18_infer.sqlite", "thrice.ncu-rep.xz")]
    sections = Document(page_of(*traces)).sections
    assert {"measured-1", "roofline-1", "occupancy-1"} <= {*sections}


def test_before_and_after_is_what_compare_says() -> None:
    digests = gs.baseline(DATA / "dataload.sqlite").digests
    trace = opened(DATA / "dataload.sqlite")
    page = page_of(trace, base=digests)
    view = gs.compare(digests, trace)
    assert Document(page).sections[0] == "comparison"
    assert html.escape(view.explanation[0]).replace("-&gt;", "") in re.sub(
        r'<span class="arrow">-&gt;</span>', "", page
    )


def test_notes_are_below_the_plan_and_have_no_number() -> None:
    trace = opened(DATA / "jax_small.xplane.pb")
    report = build_report([trace])
    assert report.program is not None
    diagnosis = report.program.diagnosis
    assert isinstance(diagnosis, TimelineDiagnosis)
    (note,) = (f for f in diagnosis.outside_plan if not f.is_fix)
    assert note.rule == "warmup-in-window"
    page = to_page(report)
    ranks = re.findall(r'<span class="rank">(\d+)</span>', page)
    assert ranks == [str(n) for n in range(1, len(diagnosis.plan) + 1)]
    text = outside_plan_text(diagnosis, note, explained=True)
    assert f'<li><a href="#finding-warmup-in-window">{html.escape(text)}</a></li>' in page
    assert f'id="finding-warmup-in-window"><summary><span>{html.escape(text)}' in page


def test_a_fix_leads_to_the_kernel_that_it_is_of() -> None:
    page = page_of(opened(DATA / "thrice.ncu-rep.xz"))
    places = re.findall(r'<li><a href="#(measured-1-\d)">', page)
    assert places
    assert all(f'<details class="finding" id="{place}"' in page for place in places)


def test_the_step_time_names_the_recorded_one_and_the_fixes_are_in_the_order_of_the_plan() -> None:
    trace = opened(DATA / "gpt_small_forward.json.gz")
    report = gs.report(trace)
    program = report.answer.program
    assert program is not None
    assert isinstance(program.ledger, LedgerReport)
    recorded = format_time(program.ledger.focus.recorded_step_ns, digits=3)
    page = report.to_html()
    assert f"without the profiler (estimate); {recorded} with it" in page
    assert "Plan: each fix after those before it" in page


def test_a_program_that_waits_for_nothing_is_left_in_peace() -> None:
    page = page_of(opened(DATA / "healthy.json.gz"))
    assert "No significant bottleneck" in page
    assert "Plan: each fix" not in page


# What a page is -----------------------------------------------------------------------------------


def test_a_page_needs_nothing_else(dataload: tuple[Trace, str]) -> None:
    document = Document(dataload[1])
    assert document.tags.isdisjoint({"img", "link", "iframe", "object", "embed", "form", "base"})
    addresses = [value for _, name, value in document.attributes if name in {"src", "href"}]
    assert all(address.startswith("#") for address in addresses)
    policy = [value for _, name, value in document.attributes if "default-src" in value]
    assert len(policy) == 1
    assert "default-src 'none'" in policy[0]
    assert "script-src 'sha256-" in policy[0]
    assert "url(" not in dataload[1].split("</style>")[0]
    assert not [name for _, name, _ in document.attributes if name.startswith("on")]


def test_hostile_names_are_text_everywhere() -> None:
    trace = training(gemm=EVIL, forward=EVIL, meta={"path": f"/home/me/{EVIL.replace('/', '')}"})
    digests = gs.baseline(trace).digests
    page = page_of(trace, base=digests)
    document = Document(page)
    assert document.tags.isdisjoint({"img"})
    data = page.count('class="figure-data"') + page.count('class="flame-data"')
    assert page.count("<script") == page.count("</script>") == 1 + data
    assert "window.hacked" in page  # it is there, to be read
    assert "\x1b" not in page
    assert "\u202e" not in page


def test_no_folder_machine_or_person_is_named() -> None:
    page = page_of(training())
    assert "run.sqlite" in page
    assert "secret-project" not in page
    assert "/home/" not in page


def test_many_long_names_do_not_make_a_large_page() -> None:
    letters = random.Random(7).choices(string.ascii_lowercase, k=1_200)  # no loop of kernels
    evil = [f"{'<&>' * 80}{letter * 8}_{n}" for n, letter in enumerate(letters)]
    kernels = [
        {"start_ns": 20 * n, "end_ns": 20 * n + 9, "name": name, "correlation": n}
        for n, name in enumerate(evil)
    ]
    ranges = [
        {"start_ns": 20 * n, "end_ns": 20 * n + 15, "name": f"{chr(97 + n % 26) * (n // 26)}{name}"}
        for n, name in enumerate(evil)
    ]
    trace = build_trace(kernels=kernels, ranges=ranges, devices=[{}])
    page = page_of(trace)
    assert len(page.encode()) < MAX_BYTES
    assert "Top 1,000 kernels by time. 200 more" in page


def test_the_view_saves_the_page_but_never_over_a_capture(tmp_path: Path) -> None:
    view = gs.report(DATA / "dataload.sqlite", title="A <b>title</b>")
    saved = view.save(tmp_path / "report.html")
    assert saved.read_text(encoding="utf-8") == view.to_html()
    assert "<h1>A &lt;b&gt;title&lt;/b&gt;</h1>" in view.to_html()
    assert re.search(r"Step time: 12\.\d ms", view.to_text())
    assert "<script" not in view._repr_html_()
    assert view.meta["step_ns"] == gs.report(DATA / "dataload.sqlite").meta["step_ns"]
    with pytest.raises(UsageError, match="is the capture itself"):
        view.save(DATA / "dataload.sqlite")


@pytest.mark.parametrize("words", ["a" * 500, "<" * 500, "\x1b" * 500, '"' * 3, "名" * 300])
def test_clipped_text_takes_no_more_room_than_given(words: str) -> None:
    assert len(clipped_text(words, 60)) <= 60


@pytest.mark.parametrize(
    ("key", "color"),
    [
        ("compute/matmul", "var(--compute-matmul)"),
        ("communication", "var(--communication)"),
        ("compute/nobody-knows", "var(--compute-other)"),
        ("host/3", "var(--host-3)"),
    ],
)
def test_every_entry_has_a_color(key: str, color: str) -> None:
    assert css_color(key) == color
