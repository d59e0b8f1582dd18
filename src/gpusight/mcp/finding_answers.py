"""Answers about findings: the plan of a capture, and each id of it in full."""

from __future__ import annotations

import os
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpusight import api
from gpusight.errors import UsageError
from gpusight.mcp.tool_answers import (
    MAX_CELL_CHARS,
    NOTICE,
    ToolAnswer,
    first_row,
    milliseconds,
    page,
    percent,
    quoted,
    rounded,
    selection,
    sentence,
    without_empty,
)
from gpusight.mcp.workspace import is_pattern
from gpusight.render.cell_text import show
from gpusight.render.ranks_view import RANK_ID, rank_page
from gpusight.results import Fmt, TableResult

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gpusight.mcp.workspace import Workspace
    from gpusight.render.result_view import DiagnosisView, RanksView
    from gpusight.rules.diagnosis import KernelReportDiagnosis, TimelineDiagnosis

_MAX_LEDGER_ROWS = 8


def diagnose(workspace: Workspace, given: Mapping[str, Any]) -> ToolAnswer:
    """Give the plan: what to fix, in order, and what each fix saves; of a job, who is late."""
    from gpusight.rules.diagnosis import JoinedDiagnosis, KernelReportDiagnosis

    if given.get("ranks") or _is_job(workspace, given):
        return _job(workspace, given)
    path = workspace.path(given["capture"])
    start = {"notice": NOTICE, "capture": quoted(workspace.name(path), 300)}
    diagnosis = _diagnosis(workspace, given).answer
    if isinstance(diagnosis, KernelReportDiagnosis):
        return _kernel_plan(start, diagnosis, first_row(given))
    timeline = diagnosis.timeline if isinstance(diagnosis, JoinedDiagnosis) else diagnosis
    return _timeline_plan(start, timeline, first_row(given))


def _is_job(workspace: Workspace, given: Mapping[str, Any]) -> bool:
    from gpusight.open_job import is_job_folder

    return is_pattern(given["capture"]) or is_job_folder(workspace.path(given["capture"]))


def _diagnosis(workspace: Workspace, given: Mapping[str, Any]) -> DiagnosisView:
    names = [given["capture"], *([given["report"]] if "report" in given else [])]
    options = selection(given)
    question = ("diagnose", *sorted(options.items()))

    def ask() -> DiagnosisView:
        return api.diagnose([workspace.trace(name) for name in names], **options)

    view: DiagnosisView = workspace.kept(question, names, ask)
    return view


def _timeline_plan(start: ToolAnswer, diagnosis: TimelineDiagnosis, first: int) -> ToolAnswer:
    from gpusight.render.diagnosis_summary import outside_plan_text

    steps = max(1, diagnosis.steps)
    unit = "ms_per_step" if diagnosis.steps else "ms"
    recorded_ns = diagnosis.focus.recorded_step_ns
    entries = sorted(diagnosis.ledger.devices[0].entries, key=lambda entry: -entry.ns)
    fixes = [
        without_empty(
            {
                "id": finding.rule,
                "title": sentence(finding.title),
                f"saves_{unit}": "no time estimate"
                if finding.saved_ns is None
                else milliseconds(finding.saved_ns / steps),
                f"then_{unit}": milliseconds(then_ns),
                "confidence": finding.confidence.value,
                "effort": finding.effort,
                "fix": sentence(finding.fix),
            }
        )
        for finding, then_ns in zip(diagnosis.findings, diagnosis.plan_step_ns, strict=True)
        if finding.in_plan
    ]
    answer = without_empty(
        {
            **start,
            "gpu": quoted(diagnosis.meta.get("gpu") or "unknown"),
            "steps": diagnosis.steps,
            f"now_{unit}": milliseconds(diagnosis.step_ns),
            "with_profiler_ms": milliseconds(recorded_ns)
            if recorded_ns and recorded_ns != diagnosis.step_ns
            else None,
            "ledger_percent": {
                f"ledger:{entry.entry}": percent(entry.share)
                for entry in entries[:_MAX_LEDGER_ROWS]
            },
            f"after_all_fixes_{unit}": milliseconds(diagnosis.predicted_step_ns) if fixes else None,
            "below_the_plan": [
                {
                    "id": finding.rule,
                    "title": sentence(outside_plan_text(diagnosis, finding, explained=True)),
                }
                for finding in diagnosis.findings
                if not finding.in_plan
            ],
            "others": [
                {
                    "what": sentence(section.label),
                    "summary": sentence(section.summary()),
                    "pid": None if section.owner is None else section.owner.pid,
                }
                for section in diagnosis.sections
            ],
            "notes": [sentence(note) for note in diagnosis.notes],
        }
    )
    if any(section.owner is not None for section in diagnosis.sections):
        answer["if_ranks_of_a_job"] = "diagnose with ranks=true: who is late, and why"
    if not fixes:
        answer["result"] = "no significant bottleneck found"
    answer["next"] = "explain an id: evidence, code, locations, how to verify"
    return page(answer, "fixes", fixes, first)


def _job(workspace: Workspace, given: Mapping[str, Any]) -> ToolAnswer:
    """Give the ranks that hold up a job, then all ranks."""
    files = workspace.files(given["capture"])
    job = _ranks(workspace, files, given).to_dict()
    meta = job["meta"]
    if meta["ranks"] == 1:
        raise UsageError(
            "the capture of one rank alone is no job",
            hint="give the folder of all ranks, or a pattern such as traces/rank*.json.gz",
        )
    answer = without_empty(
        {
            "notice": NOTICE,
            "ranks": meta["ranks"],
            "steps": meta["steps"],
            "now_ms_per_step": milliseconds(meta["step_ns"]),
            "balanced_ms_per_step": milliseconds(meta["balanced_step_ns"]),
            "late_by_chance_ms": milliseconds(meta["noise_ns"]),
            "stragglers": [_straggler(straggler) for straggler in job["stragglers"]],
            "result": "" if job["stragglers"] else "no straggler",
            "not_read": [sentence(str(unread)) for unread in job["unread"]],
            "notes": [sentence(note) for note in meta["notes"]],
            "next": "explain a rank by id; diagnose its capture, or its process (process: pid)",
        }
    )
    rows = [
        without_empty(
            {
                "id": f"rank:{rank['rank']}",
                "capture": quoted(workspace.name(Path(os.path.realpath(rank["file"]))), 300),
                **{
                    f"{kind}_ms": milliseconds(rank[f"{kind}_ns"])
                    for kind in ("step", "compute", "copy", "transfer", "wait", "idle")
                },
            }
        )
        for rank in job["ranks"]
    ]
    return page(answer, "by_rank", rows, first_row(given))


def _ranks(workspace: Workspace, files: list[Path], given: Mapping[str, Any]) -> RanksView:
    steps = {"steps": given["steps"]} if "steps" in given else {}
    question = ("ranks", *steps.items())
    view: RanksView = workspace.kept(
        question, list(map(str, files)), lambda: api.ranks(files, **steps)
    )
    return view


def _straggler(straggler: Mapping[str, Any]) -> ToolAnswer:
    return {
        "id": f"rank:{straggler['rank']}",
        "rank": straggler["rank"],
        "cause": straggler["cause"],
        "costs_ms_per_step": milliseconds(straggler["recoverable_ns"]),
        "percent_of_step": percent(straggler["share"]),
        "late_ms": milliseconds(straggler["late_ns"]),
        "pattern": straggler["pattern"],
        "evidence": [
            [sentence(item["meaning"]), rounded(item["value"]), item["unit"]]
            for item in straggler["evidence"]
        ],
        "verify": "gpusight record -o after -- PROGRAM && gpusight ranks after*",
    }


def _kernel_plan(start: ToolAnswer, diagnosis: KernelReportDiagnosis, first: int) -> ToolAnswer:
    whole_ns = diagnosis.duration_ns or 1.0
    rows, number = [], 0
    for group in diagnosis.groups:
        finding = group.findings[0] if group.findings else None
        number += finding is not None
        row: ToolAnswer = {
            "id": str(number) if finding else None,
            "kernel": quoted(group.label),
            "launches": len(group.kernels),
            "percent_of_time": percent(group.duration_ns / whole_ns),
            "limited_by": group.longest.limiter,
        }
        if finding:
            row |= {
                "rule": finding.rule,
                "title": sentence(finding.title),
                "speedup": None if finding.speedup is None else rounded(finding.speedup),
                "saves_ms": milliseconds(finding.saved_ns),
                "confidence": finding.confidence.value,
                "fix": sentence(finding.fix),
            }
        rows.append(without_empty(row))
    answer = without_empty(
        {
            **start,
            "gpu": [quoted(name) for name in diagnosis.meta.get("gpus", [])],
            "profiled_ms": milliseconds(diagnosis.duration_ns),
            "notes": [sentence(note) for note in diagnosis.notes],
            "next": "explain an id",
        }
    )
    return page(answer, "kernels", rows, first)


def explain(workspace: Workspace, given: Mapping[str, Any]) -> ToolAnswer:
    """Resolve an id: a finding, a rank, an entry of the ledger, or an event."""
    which = str(given["id"]).strip("`")
    if which.startswith(RANK_ID) or _is_job(workspace, given):
        return _explain_rank(workspace, given, which)
    if which.startswith("ledger:"):
        return _explain_entry(workspace, given, which)
    table, _, row = which.partition(":")
    if row.isdigit():
        return _explain_event(workspace, given, table, int(row))
    return _explain_finding(workspace, given, which)


def _explain_finding(workspace: Workspace, given: Mapping[str, Any], which: str) -> ToolAnswer:
    from gpusight.render.cell_text import safe_lines

    view = _diagnosis(workspace, given)
    document = view.explain(int(which) if which.isdigit() else which).to_dict()["finding"]
    finding = document["findings"][0] if document.get("findings") else document
    path = str(workspace.path(given["capture"]))
    answer = {
        "notice": NOTICE,
        "id": which,
        "kernel": quoted(document["label"]) if "label" in document else None,
        "title": sentence(finding["title"]),
        "why": sentence(finding["why"]),
        "fix": sentence(finding["fix"]),
        "code": safe_lines(finding["code"]),
        "estimate": sentence(finding["estimate"]),
        "confidence": f"{finding['confidence']}: {sentence(finding['confidence_reason'])}",
        "evidence": [
            [sentence(item["meaning"]), rounded(item["value"]), item["unit"]]
            for item in finding["evidence"]
        ],
        "where": [
            {
                "kind": place["kind"],
                "name": quoted(place["name"]),
                "ms": milliseconds(place["ns"]),
                "count": place["count"],
            }
            for place in finding["where"]
        ]
        if isinstance(finding["where"], list)
        else None,
        "lines": [
            {
                "line": quoted(_place(line), 300),
                "ms": milliseconds(line["ns"]),
                "percent": percent(line["share"]),
            }
            for line in finding.get("lines") or ()
        ],
        "needs_first": finding.get("needs"),
        "expect": sentence(finding.get("afterwards") or ""),
        "caveats": sentence(finding.get("misleads") or ""),
        "verify": _verification(path, is_report="label" in document),
    }
    answer = without_empty(answer)
    locations = _locations(workspace, given, view, finding["rule"])
    return page(answer, "locations", locations, first_row(given))


def _place(line: Mapping[str, Any]) -> str:
    """Write a line of code with its path; native functions have neither file nor line."""
    path = ":".join(str(line[key]) for key in ("file", "line") if line[key] is not None)
    return f"{path} {line['function'] or ''}".strip()


def _explain_rank(workspace: Workspace, given: Mapping[str, Any], which: str) -> ToolAnswer:
    """Give what makes a rank late, and its latest steps."""
    job = _ranks(workspace, workspace.files(given["capture"]), given).answer
    rank = rank_page(job, which)
    facts = {
        fact.key.removesuffix("_ns"): quoted(fact.value, 300)
        if fact.fmt is Fmt.NAME
        else sentence(show(fact.value, fact.fmt))
        for fact in rank.facts
    }
    rows = {
        section.command: [
            without_empty(
                {
                    key.replace("_ns", "_ms"): milliseconds(value) if key.endswith("ns") else value
                    for key, value in row.items()
                    if not isinstance(value, str) or key in ("cause", "mostly")
                }
            )
            for row in section.rows()
        ]
        for section in rank.sections
        if isinstance(section, TableResult)
    }
    answer: ToolAnswer = {"notice": NOTICE, "id": which, "title": rank.title, **facts}
    answer["next"] = "diagnose its capture"
    answer |= {name: rows[name] for name in ("ranks", "idle")}
    return page(answer, "latest_steps", rows.get("steps", []), first_row(given))


def _verification(path: str, *, is_report: bool) -> str:
    """Give the commands that show whether a fix did what was predicted."""
    if is_report:  # has no timeline that could be compared
        return "gpusight record --with ncu -o after -- PROGRAM && gpusight diagnose after.ncu-rep"
    before = shlex.quote(path)
    return f"gpusight record -o after -- PROGRAM && gpusight compare {before} after.*"


def _locations(
    workspace: Workspace, given: Mapping[str, Any], view: DiagnosisView, rule: str
) -> list[ToolAnswer]:
    """List time spans that show a finding of a timeline, with the ids of their events."""
    from gpusight.rules.timeline_diagnosis import FindingLocator

    diagnosis = view.timeline
    findings = diagnosis.findings if diagnosis else ()
    finding = next((finding for finding in findings if finding.rule == rule), None)
    if diagnosis is None or finding is None:
        return []
    trace = workspace.trace(given["capture"])
    located = FindingLocator(trace, diagnosis).of(finding)
    return [
        without_empty(
            {
                "id": f"{place.table}:{place.row}" if place.table else None,
                "label": quoted(place.label),
                "start_ms": place.start_ns / 1e6,
                "ms": milliseconds(place.end_ns - place.start_ns),
            }
        )
        for place in located
    ]


def _explain_entry(workspace: Workspace, given: Mapping[str, Any], which: str) -> ToolAnswer:
    """List what an entry of the ledger consists of."""
    options = selection(given)
    parts = api.explain(workspace.trace(given["capture"]), which, **options)
    answer: ToolAnswer = {"notice": NOTICE, "id": which}
    answer |= {key.replace("_ns", "_ms"): milliseconds(ns) for key, ns in parts.meta.items()}
    rows = [
        without_empty(
            {
                "gpu": row["device"],
                "kind": row["kind"],
                "name": quoted(row["name"]) if row["name"] else None,
                "ms": milliseconds(row["ns"]),
                "percent": percent(row["share"]),
                "gaps": row["count"],
            }
        )
        for row in parts.frame.iter_rows(named=True)
    ]
    return page(answer, "parts", rows, first_row(given))


def _explain_event(
    workspace: Workspace, given: Mapping[str, Any], table: str, row: int
) -> ToolAnswer:
    """Give all that is known of one event of the timeline."""
    from gpusight.viewer.event_details import event_details

    capture = given["capture"]
    trace = workspace.trace(capture)
    event = event_details(trace, table, row)
    start_ns, end_ns = trace.table(table, ["start_ns", "end_ns"]).row(row)
    around = max(end_ns - start_ns, 1000)
    answer: ToolAnswer = {
        "notice": NOTICE,
        "id": f"{table}:{row}",
        "kind": event.kind,
        "name": quoted(event.title, MAX_CELL_CHARS),
        "facts": {
            section.title: {
                fact.label: quoted(show(fact.value, fact.fmt)) for fact in section.facts
            }
            for section in event.sections
        },
        "in_serve": f"gpusight serve {shlex.quote(str(workspace.path(capture)))}, then add to the "
        f"address #c=0&t={start_ns - around}-{end_ns + around}&e={table}:{row}",
    }
    links = [{"relation": link.relation, "id": f"{link.table}:{link.row}"} for link in event.links]
    return page(answer, "related", links, first_row(given))
