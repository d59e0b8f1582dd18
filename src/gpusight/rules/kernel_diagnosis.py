"""What slows down the kernels of an ncu report: findings ranked by time, with source lines."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import polars as pl

from gpusight.analysis.capture_gpus import device_names
from gpusight.analysis.counters.counter_selection import LaunchSelection, no_counters
from gpusight.analysis.counters.source_lines import (
    SAMPLES,
    first_of,
    instructions,
    line_text,
    metrics_of_instructions,
    source_texts,
    with_lines,
)
from gpusight.analysis.selection import EVERYTHING
from gpusight.naming.kernel_names import classify
from gpusight.results import NotApplicable
from gpusight.rules.diagnosis_results import (
    COMMAND,
    KernelGroup,
    KernelReportDiagnosis,
    LaunchDiagnosis,
    ProfilerRule,
)
from gpusight.rules.engine import run_kernel_rules
from gpusight.rules.finding import SourceLocation
from gpusight.rules.kernel_launch import launches as measured_launches
from gpusight.rules.patterns.kernel_speedup import limiter
from gpusight.rules.registry import kernel_rules, select_rules
from gpusight.rules.rule import InstructionCounters

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from gpusight.analysis.selection import Selection
    from gpusight.rules.engine import RuleResults
    from gpusight.rules.finding import KernelFinding
    from gpusight.rules.kernel_launch import ProfiledLaunch
    from gpusight.rules.rule import KernelRule
    from gpusight.trace.trace import Trace


BY_SAMPLES = InstructionCounters(SAMPLES)
"""Where warps were seen most often."""
MAX_LINES_SHOWN = 3
"""Lines that are named for each finding."""
MIN_LINE_SHARE = 0.05
"""Least part of the whole that a line must have to be named."""


def hot_lines(
    trace: Trace, rules: Mapping[int, Iterable[KernelRule]]
) -> dict[tuple[int, str], list[SourceLocation]]:
    """Name the source lines behind the findings of these rules, by launch and rule.

    Nothing is named where the report has no counters of single instructions (SourceCounters), or
    the program no line numbers (compile with -lineinfo).
    """
    if not trace.has("counter_instances") or not trace.has("code_lines"):
        return {}
    wanted = {rule.located_by or BY_SAMPLES for asked in rules.values() for rule in asked}
    if not wanted:
        return {}
    parts = _parts(trace, list(rules), wanted)
    sources = source_texts(trace)
    lines: dict[tuple[int, str], list[SourceLocation]] = {}
    for launch, asked in rules.items():
        for rule in asked:
            amounts = parts.get(rule.located_by or BY_SAMPLES)
            if own := _source_locations(amounts, launch, sources):
                lines[launch, rule.id] = own
    return lines


def _parts(
    trace: Trace, launches: list[int], wanted: Iterable[InstructionCounters]
) -> dict[InstructionCounters, pl.DataFrame]:
    """Give for each way of locating the amounts by launch and source line."""
    known = metrics_of_instructions(trace)
    signs = {located: _signs(located, known) for located in wanted}
    metrics = {metric for weights in signs.values() for metric in weights}
    scope = LaunchSelection(trace, launches=launches)
    lined = with_lines(trace, instructions(scope, sorted(metrics)))
    return {located: _amounts(lined, weights) for located, weights in signs.items()}


def _signs(located: InstructionCounters, known: Sequence[str]) -> dict[str, float]:
    """Say by metric how often its parts count; empty where the capture lacks one."""
    added, taken = first_of(located.metrics, known), first_of(located.less, known)
    if not added or (located.less and not taken):
        return {}
    return {added[0]: float(located.scale), **dict.fromkeys(taken, -1.0)}


def _amounts(lined: pl.DataFrame, signs: Mapping[str, float]) -> pl.DataFrame:
    """Add up by launch and source line."""
    sign = pl.col("metric").cast(pl.String).replace_strict(signs, default=0.0)
    amount = (pl.col("value") * sign).sum().alias("amount")
    return lined.group_by("launch", "path", "line").agg(amount).filter(pl.col("amount") > 0)


def _source_locations(
    amounts: pl.DataFrame | None, launch: int, sources: dict[str, list[str]]
) -> list[SourceLocation]:
    if amounts is None:
        return []
    own = amounts.filter(pl.col("launch") == launch)
    whole = float(own["amount"].sum())
    top = (
        own.drop_nulls("line").sort("amount", "path", "line", descending=True).head(MAX_LINES_SHOWN)
    )
    return [
        SourceLocation(path, line, amount / whole, line_text(sources, path, line) or "")
        for path, line, amount in top.select("path", "line", "amount").iter_rows()
        if amount >= MIN_LINE_SHARE * whole
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
    """Ask every rule, or only `rules`, about every profiled launch.

    `lines` names the source lines too, for which the counters of all instructions are read.
    """
    asked = select_rules(kernel_rules() | {rule.id: rule for rule in extra_rules}, rules)
    if not trace.has("profiles"):
        return _not_measured(trace)
    if not trace.has("counters"):
        return no_counters(COMMAND)
    scope = LaunchSelection(trace, selection, kernel=kernel, launches=launches)
    chosen = set(scope.launches().to_list())
    profiler_rules = _profiler_rules(trace)
    kernels = [
        _diagnosis(
            launch,
            run_kernel_rules(launch, asked),
            profiler_rules.get(launch.values["launch"], ()),
        )
        for launch in measured_launches(trace)
        if launch.values["launch"] in chosen
    ]
    if lines:
        kernels = _with_source_lines(trace, kernels, asked)
    return KernelReportDiagnosis(_grouped(kernels), _meta(trace), _notes(kernels, asked))


def _not_measured(trace: Trace) -> NotApplicable:
    if not trace.has("kernels"):
        return no_counters(COMMAND)
    return NotApplicable(
        COMMAND,
        "the capture is a timeline: it says when kernels ran, not what held them up",
        "for where its time went: gpusight summary FILE; for why its kernels are slow, measure "
        "them with: ncu --set full -o report PROGRAM",
    )


def _diagnosis(
    launch: ProfiledLaunch,
    results: RuleResults[KernelFinding],
    profiler_rules: Sequence[ProfilerRule],
) -> LaunchDiagnosis:
    return LaunchDiagnosis(
        name=launch.name,
        launch=launch.values["launch"],
        duration_ns=launch.duration_ns,
        device=launch.values["device"],
        grid=tuple(launch.values[f"grid_{axis}"] for axis in "xyz"),
        block=tuple(launch.values[f"block_{axis}"] for axis in "xyz"),
        held_by=limiter(launch),
        findings=results.findings,
        clean=results.clean,
        not_applicable=results.not_applicable,
        profiler_rules=tuple(profiler_rules),
    )


def _with_source_lines(
    trace: Trace, kernels: Sequence[LaunchDiagnosis], rules: Mapping[str, KernelRule]
) -> list[LaunchDiagnosis]:
    """Name the source lines behind the findings of each launch."""
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


def _profiler_rules(trace: Trace) -> dict[int, tuple[ProfilerRule, ...]]:
    """Give what the profiler's own rules said, by launch."""
    by_launch: defaultdict[int, list[ProfilerRule]] = defaultdict(list)
    if trace.has("rule_results"):
        rows = trace.table("rule_results", _PROFILER_RULE).with_columns(
            pl.col("rule", "title", "section", "kind", "speedup_kind").cast(pl.String)
        )
        for launch, *columns in rows.iter_rows():
            by_launch[launch].append(ProfilerRule(*columns))
    return {launch: tuple(rules) for launch, rules in by_launch.items()}


def _grouped(kernels: Sequence[LaunchDiagnosis]) -> tuple[KernelGroup, ...]:
    """Put launches of one kernel in one shape together, and rank the groups."""
    together: defaultdict[tuple[object, ...], list[LaunchDiagnosis]] = defaultdict(list)
    for kernel in kernels:
        together[kernel.name, kernel.device, kernel.grid, kernel.block].append(kernel)
    groups = [
        KernelGroup(same[0].name, classify(same[0].name).short, tuple(same), _added(same))
        for same in together.values()
    ]
    return tuple(sorted(groups, key=lambda g: (-g.saved_ns, -g.duration_ns)))


def _added(kernels: Sequence[LaunchDiagnosis]) -> tuple[KernelFinding, ...]:
    """Add up the findings of a rule over launches; the longest launch speaks for them."""
    by_rule: defaultdict[str, list[KernelFinding]] = defaultdict(list)
    for kernel in kernels:
        for finding in kernel.findings:
            by_rule[finding.rule].append(finding)
    added = [_sum(findings) for findings in by_rule.values()]
    return tuple(sorted(added, key=lambda f: -(f.saved_ns or (f.speedup or 1.0) - 1.0)))


def _sum(findings: Sequence[KernelFinding]) -> KernelFinding:
    longest = max(findings, key=lambda f: f.time_ns or 0.0)
    if any(f.time_ns is None or f.speedup is None for f in findings):
        return longest
    time = sum(f.time_ns or 0.0 for f in findings)
    saved = sum(f.saved_ns or 0.0 for f in findings)
    return replace(longest, time_ns=time, speedup=time / (time - saved) if time else 1.0)


def _meta(trace: Trace) -> dict[str, Any]:
    names = [name for name in device_names(trace).values() if name]
    return {
        "tool": trace.meta.tool,
        "tool_version": trace.meta.tool_version,
        "gpus": list(dict.fromkeys(names)),
    }


def _notes(kernels: Sequence[LaunchDiagnosis], rules: Iterable[str]) -> tuple[str, ...]:
    """Say which rules could not be judged for most launches, and what to collect for them."""
    absent = [r for k in kernels for r in k.not_applicable]
    missing = [rule for rule in rules if absent.count(rule) * 2 > len(kernels)]
    if not missing:
        return ()
    verdicts = (k.not_applicable.get(rule) for rule in missing for k in kernels)
    sections = sorted({s for verdict in verdicts if verdict is not None for s in verdict.sections})
    collect = " ".join(f"--section {s}" for s in sections) or "--set full"
    return (f"not measured, so not judged: {', '.join(missing)}; collect with: ncu {collect}",)
