"""What slows down the kernels of an ncu report: findings ranked by time, with source lines.

Joined with a timeline of the same program, kernels are weighted by their time in its window.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from typing import TYPE_CHECKING

import polars as pl

from gpusight.analysis.aggregates import names_of
from gpusight.analysis.capture_info import device_names
from gpusight.analysis.counters.counter_selection import LaunchSelection, no_counters
from gpusight.analysis.counters.profiled_launch import launches as measured_launches
from gpusight.analysis.counters.source_lines import (
    SAMPLES,
    first_of,
    instructions,
    line_text,
    metrics_of_instructions,
    source_texts,
    with_lines,
)
from gpusight.analysis.join.launch_matching import NEEDS, ORDER, cover, in_launch_order
from gpusight.analysis.roofline.roofline_points import roofline_points
from gpusight.analysis.selection import EVERYTHING, ResolvedSelection
from gpusight.naming.kernel_names import unique_short_names
from gpusight.results import NotApplicable
from gpusight.rules.diagnosis import (
    COMMAND,
    JoinedDiagnosis,
    KernelGroup,
    KernelReportDiagnosis,
    LaunchDiagnosis,
    ProfilerRule,
    TimedKernel,
)
from gpusight.rules.engine import run_kernel_rules
from gpusight.rules.finding import SourceLocation
from gpusight.rules.patterns.library_kernels import advise_on_library
from gpusight.rules.registry import KERNEL_RULES, kernel_rules, select_rules
from gpusight.rules.rule import Framework, InstructionCounters, framework_of
from gpusight.units import format_share

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from gpusight.analysis.counters.profiled_launch import ProfiledLaunch
    from gpusight.analysis.selection import Selection
    from gpusight.rules.diagnosis import TimelineDiagnosis
    from gpusight.rules.finding import KernelFinding
    from gpusight.rules.rule import KernelRule
    from gpusight.trace.trace import Trace


_BY_SAMPLES = InstructionCounters(SAMPLES)
"""Locates findings without counters of their own: where warps were sampled most often."""
MAX_LINES_SHOWN = 3
MIN_LINE_SHARE = 0.05
"""Least share of a source line to be shown."""


def hot_lines(
    trace: Trace, rules: Mapping[int, Iterable[KernelRule]]
) -> dict[tuple[int, str], list[SourceLocation]]:
    """Find the source lines behind the findings of these rules, by launch and rule.

    Empty where the report has no counters of single instructions (SourceCounters), or the program
    no line numbers (compile with -lineinfo).
    """
    if not trace.has("counter_instances") or not trace.has("code_lines"):
        return {}
    counters = {rule.located_by or _BY_SAMPLES for matched in rules.values() for rule in matched}
    if not counters:
        return {}
    amounts = _line_amounts(trace, list(rules), counters)
    sources = source_texts(trace)
    lines = {
        (launch, rule.id): _source_locations(
            amounts[rule.located_by or _BY_SAMPLES], launch, sources
        )
        for launch, matched in rules.items()
        for rule in matched
    }
    return {key: locations for key, locations in lines.items() if locations}


def _line_amounts(
    trace: Trace, launches: list[int], counters: Iterable[InstructionCounters]
) -> dict[InstructionCounters, pl.DataFrame]:
    """Sum counters by launch and source line."""
    available = metrics_of_instructions(trace)
    weights = {located: _metric_weights(located, available) for located in counters}
    metrics = {metric for by_metric in weights.values() for metric in by_metric}
    scope = LaunchSelection(trace, launches=launches)
    lined = with_lines(trace, instructions(scope, sorted(metrics)))
    amounts = {}
    for located, by_metric in weights.items():
        weight = pl.col("metric").cast(pl.String).replace_strict(by_metric, default=0.0)
        amount = (pl.col("value") * weight).sum().alias("amount")
        summed = lined.group_by("launch", "path", "line").agg(amount)
        amounts[located] = summed.filter(pl.col("amount") > 0)
    return amounts


def _metric_weights(located: InstructionCounters, available: Sequence[str]) -> dict[str, float]:
    """Return the factor of each metric in the sum; empty where the capture lacks one."""
    added, subtracted = first_of(located.metrics, available), first_of(located.less, available)
    if not added or (located.less and not subtracted):
        return {}
    return {added[0]: float(located.scale), **dict.fromkeys(subtracted, -1.0)}


def _source_locations(
    amounts: pl.DataFrame, launch: int, sources: dict[str, list[str]]
) -> list[SourceLocation]:
    rows = amounts.filter(pl.col("launch") == launch)
    total = float(rows["amount"].sum())
    top = rows.drop_nulls("line").sort("amount", "path", "line", descending=True)
    return [
        SourceLocation(path, line, amount / total, line_text(sources, path, line) or "")
        for path, line, amount in top.head(MAX_LINES_SHOWN)
        .select("path", "line", "amount")
        .iter_rows()
        if amount >= MIN_LINE_SHARE * total
    ]


_PROFILER_RULE = (
    "launch",
    "rule",
    "title",
    "section",
    "kind",
    "message",
    "speedup_kind",
    "speedup_percent",
)


def diagnose_kernels(
    trace: Trace,
    selection: Selection = EVERYTHING,
    *,
    kernel: str | None = None,
    launches: Sequence[int] = (),
    rules: Sequence[str] = (),
    extra_rules: Sequence[KernelRule] = (),
    lines: bool = False,
) -> KernelReportDiagnosis | NotApplicable:
    """Run all rules, or only `rules`, on every profiled launch.

    `lines` locates findings in the source, for which the counters of all instructions are read.
    """
    selected = select_rules(kernel_rules() | {rule.id: rule for rule in extra_rules}, rules)
    if not trace.has("profiles"):
        if not trace.has("kernels"):
            return no_counters(COMMAND)
        return NotApplicable(
            COMMAND,
            "the capture is a timeline: it has no hardware counters",
            "for where the time goes: gpusight summary FILE; for why its kernels are slow, profile "
            "them: ncu --set full -o report PROGRAM",
        )
    if not trace.has("counters"):
        return no_counters(COMMAND)
    scope = LaunchSelection(trace, selection, kernel=kernel, launches=launches)
    numbers = set(scope.launches().to_list())
    profiler_rules = _profiler_rules(trace)
    limiters = dict(roofline_points(trace).select("launch", "bound").iter_rows())
    labels = unique_short_names(names_of(trace.table("profiles", ["name"])["name"]))
    framework = framework_of(trace)
    kernels = [
        _diagnose_launch(
            launch,
            labels,
            selected,
            framework,
            limiters[launch.values["launch"]],
            profiler_rules[launch.values["launch"]],
        )
        for launch in measured_launches(trace)
        if launch.values["launch"] in numbers
    ]
    if lines:
        kernels = _with_source_lines(trace, kernels, selected)
    gpus = [name for name in device_names(trace).values() if name]
    meta = {
        "path": trace.meta.path,
        "tool": trace.meta.tool,
        "tool_version": trace.meta.tool_version,
        "gpus": list(dict.fromkeys(gpus)),
    }
    return KernelReportDiagnosis(_grouped(kernels), meta, _notes(kernels, selected))


def _diagnose_launch(
    launch: ProfiledLaunch,
    labels: Mapping[str, str],
    rules: Mapping[str, KernelRule],
    framework: Framework,
    limiter: str | None,
    profiler_rules: Sequence[ProfilerRule],
) -> LaunchDiagnosis:
    results = run_kernel_rules(launch, rules)
    return LaunchDiagnosis(
        name=launch.name,
        label=labels[launch.name],
        launch=launch.values["launch"],
        duration_ns=launch.duration_ns,
        device=launch.values["device"],
        grid=tuple(launch.values[f"grid_{axis}"] for axis in "xyz"),
        block=tuple(launch.values[f"block_{axis}"] for axis in "xyz"),
        limiter=limiter,
        findings=tuple(
            _without_foreign_code(advise_on_library(f, framework), framework)
            if f.rule in KERNEL_RULES
            else f
            for f in results.findings
        ),
        clean=results.clean,
        not_applicable=results.not_applicable,
        profiler_rules=tuple(profiler_rules),
    )


def _without_foreign_code(finding: KernelFinding, framework: Framework) -> KernelFinding:
    """Leave out CUDA C++ for kernels that are written in Python or Julia."""
    written_elsewhere = framework in {Framework.NUMBA, Framework.JULIA}
    return replace(finding, code="") if written_elsewhere else finding


def _with_source_lines(
    trace: Trace, kernels: Sequence[LaunchDiagnosis], rules: Mapping[str, KernelRule]
) -> list[LaunchDiagnosis]:
    places = hot_lines(trace, {k.launch: [rules[f.rule] for f in k.findings] for k in kernels})
    return [
        replace(
            kernel,
            findings=tuple(
                replace(f, places=tuple(places.get((kernel.launch, f.rule), ())))
                for f in kernel.findings
            ),
        )
        for kernel in kernels
    ]


def _profiler_rules(trace: Trace) -> Mapping[int, list[ProfilerRule]]:
    """Return the results of the profiler's own rules, by launch."""
    by_launch: defaultdict[int, list[ProfilerRule]] = defaultdict(list)
    if trace.has("rule_results"):
        rows = trace.table("rule_results", _PROFILER_RULE).with_columns(
            pl.col("rule", "title", "section", "kind", "speedup_kind").cast(pl.String)
        )
        for launch, *columns in rows.iter_rows():
            by_launch[launch].append(ProfilerRule(*columns))
    return by_launch


def _grouped(kernels: Sequence[LaunchDiagnosis]) -> tuple[KernelGroup, ...]:
    """Group launches of one kernel with the same grid and block, and rank the groups."""
    by_shape: defaultdict[tuple[object, ...], list[LaunchDiagnosis]] = defaultdict(list)
    for kernel in kernels:
        by_shape[kernel.name, kernel.device, kernel.grid, kernel.block].append(kernel)
    of_name: defaultdict[str, list[LaunchDiagnosis]] = defaultdict(list)
    for same in by_shape.values():
        of_name[same[0].name].append(same[0])
    groups = [
        KernelGroup(
            same[0].name,
            _label(same[0], of_name[same[0].name]),
            tuple(same),
            _summed_findings(same),
        )
        for same in by_shape.values()
    ]
    return tuple(sorted(groups, key=lambda g: (-g.saved_ns, -g.duration_ns)))


def _label(launch: LaunchDiagnosis, namesakes: Sequence[LaunchDiagnosis]) -> str:
    """Add to the short name what sets its launches apart: grid, block or GPU."""
    label = launch.label
    if len({other.grid for other in namesakes}) > 1:
        label += f" grid {_size(launch.grid)}"
    if len({other.block for other in namesakes}) > 1:
        label += f" block {_size(launch.block)}"
    return f"{label} GPU {launch.device}" if len({o.device for o in namesakes}) > 1 else label


def _size(sizes: Sequence[int | None]) -> str:
    """Write `128x4`; trailing ones are left out."""
    texts = ["?" if size is None else str(size) for size in sizes]
    while len(texts) > 1 and texts[-1] == "1":
        texts.pop()
    return "x".join(texts)


def _summed_findings(kernels: Sequence[LaunchDiagnosis]) -> tuple[KernelFinding, ...]:
    """Sum the findings of each rule over launches; texts are those of the longest launch.

    Times and speedups are of all launches of the group, those without the finding included.
    """
    by_rule: defaultdict[str, list[KernelFinding]] = defaultdict(list)
    for kernel in kernels:
        for finding in kernel.findings:
            by_rule[finding.rule].append(replace(finding, launch=kernel.launch))
    times_ns = [kernel.duration_ns for kernel in kernels]
    known_ns = [ns for ns in times_ns if ns is not None]
    total_ns = sum(known_ns) if len(known_ns) == len(times_ns) else None
    sums = [_sum(findings, total_ns) for findings in by_rule.values()]
    return tuple(sorted(sums, key=lambda f: -(f.saved_ns or (f.speedup or 1.0) - 1.0)))


def _sum(findings: Sequence[KernelFinding], time_ns: float | None) -> KernelFinding:
    longest = max(findings, key=lambda f: f.time_ns or 0.0)
    longest = replace(longest, launches=len(findings))
    if time_ns is None or any(f.time_ns is None or f.speedup is None for f in findings):
        return longest
    saved_ns = sum(f.saved_ns or 0.0 for f in findings)
    speedup = time_ns / (time_ns - saved_ns) if time_ns else 1.0
    return replace(longest, time_ns=time_ns, speedup=speedup)


_MAX_SECTIONS = 2
"""Sections of Nsight Compute that a command lists; where more are missing, it collects all."""


def _notes(kernels: Sequence[LaunchDiagnosis], rules: Mapping[str, object]) -> tuple[str, ...]:
    """Name the rules that most launches have no data for, and what to collect for them."""
    absent = [r for k in kernels for r in k.not_applicable]
    missing = [rule for rule in rules if absent.count(rule) * 2 > len(kernels)]
    if not missing:
        return ()
    verdicts = (k.not_applicable.get(rule) for rule in missing for k in kernels)
    sections = sorted({s for verdict in verdicts if verdict is not None for s in verdict.sections})
    collect = " ".join(f"--section {s}" for s in sections)
    if len(sections) > _MAX_SECTIONS or not sections:
        collect = "--set full" + (f"; or only {collect}" if sections else "")
    count = f"{len(missing)} of {len(rules)} rules lack{'s' if len(missing) == 1 else ''} counters"
    if len(missing) == 1:
        return (f"{count} ({missing[0]}); collect with ncu {collect}",)
    return (f"{count}; collect with ncu {collect}; rules: {', '.join(missing)}",)


# Joined with a timeline ---------------------------------------------------------------------------


def join_diagnoses(
    timeline: TimelineDiagnosis,
    report: KernelReportDiagnosis,
    traces: tuple[Trace, Trace],
    selection: Selection = EVERYTHING,
) -> JoinedDiagnosis:
    """Weight the kernels of a report by their time in the window of a timeline; `traces` in order.

    A kernel of the timeline matches the measured launch of its name, grid and block. Only the GPU
    that was diagnosed counts.
    """
    focus = timeline.focus
    inside = _with_measured_launch(*traces, selection).filter(
        pl.col("start_ns").is_between(focus.start_ns, focus.end_ns, "left"),
        # The window is of one GPU; those of several would sum to more than it.
        pl.col("device").is_null() | (pl.col("device") == timeline.meta.get("device")),
    )
    kernels = _timed_kernels(report.groups, inside)
    notes = (*report.notes, *_join_notes(report, kernels, inside))
    of_report = (f"the report: {note}" for note in notes)
    all_notes = (*_doubts(kernels, inside), *timeline.notes, *of_report)
    return JoinedDiagnosis(replace(timeline, notes=all_notes), report, kernels)


def _with_measured_launch(timeline: Trace, report: Trace, selection: Selection) -> pl.DataFrame:
    """Return the kernels of a timeline with the number of the measured launch of each."""
    columns = list(dict.fromkeys((*NEEDS, *ORDER, "start_ns", "end_ns", "device")))
    kernels = in_launch_order(ResolvedSelection(timeline, selection).gpu("kernels", columns))
    measured = report.table("profiles", ["launch", "kind", *NEEDS])
    measured = measured.filter(pl.col("kind").cast(pl.String) == "kernel")
    row = cover(kernels.select(NEEDS), measured.select(NEEDS)).right
    launches = measured.select("launch").with_row_index("row").cast(pl.Int64)
    return kernels.select(
        "start_ns",
        "device",
        (pl.col("end_ns") - pl.col("start_ns")).alias("time_ns"),
        pl.Series("row", row),
    ).join(launches, on="row", how="left", maintain_order="left")


def _timed_kernels(groups: Sequence[KernelGroup], kernels: pl.DataFrame) -> tuple[TimedKernel, ...]:
    """Sum the time of the kernels that match a launch of each group."""
    by_launch = kernels.group_by("launch").agg(pl.col("time_ns").sum(), pl.len().alias("calls"))
    sums = {launch: (time, calls) for launch, time, calls in by_launch.iter_rows()}
    timed = []
    for group in groups:
        matches = [sums.get(kernel.launch, (0, 0)) for kernel in group.kernels]
        time_ns, calls = sum(ns for ns, _ in matches), sum(count for _, count in matches)
        if calls:
            timed.append(TimedKernel(group, calls, float(time_ns)))
    return tuple(sorted(timed, key=lambda k: (-k.saved_ns, -k.time_ns)))


_MIN_COVERED_SHARE = 0.1
"""Share of the kernel time below which a report is probably one of another program."""


def _covered_share(inside: pl.DataFrame) -> float | None:
    """Return the share of the kernel time in the window that the report covers."""
    measured_ns, total_ns = (
        float(frame["time_ns"].sum()) for frame in (inside.drop_nulls("launch"), inside)
    )
    return measured_ns / total_ns if total_ns else None


def _doubts(kernels: Sequence[TimedKernel], inside: pl.DataFrame) -> list[str]:
    """Return why the report may be of another program: these notes come before all others."""
    if not kernels:
        return ["the report has no kernel of the window: is it of the same program?"]
    covered = _covered_share(inside)
    if covered is None or covered >= _MIN_COVERED_SHARE:
        return []
    share = format_share(covered)
    covers = f"the report covers only {share} of the kernel time in the window"
    return [f"{covers}: is it of the same program?"]


def _join_notes(
    report: KernelReportDiagnosis, kernels: Sequence[TimedKernel], inside: pl.DataFrame
) -> list[str]:
    if not kernels:
        return []
    notes = []
    covered = _covered_share(inside)
    if covered is not None and _MIN_COVERED_SHARE <= covered < 1:
        notes.append(f"it covers {format_share(covered)} of the kernel time in the window")
    unused = len(report.groups) - len(kernels)
    if unused:
        notes.append(f"{unused:,} of its kernels do not run in the window: not shown")
    return notes
