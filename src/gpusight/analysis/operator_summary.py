"""CPU and GPU time by framework operator, module, Python function or line: `ops`."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl

from gpusight.analysis.aggregates import DURATION, names_of, schema_of, share_of
from gpusight.analysis.attribution.nested_intervals import (
    NONE,
    NestedIntervals,
    is_module,
    is_own_code,
    optional,
    stack_sites,
)
from gpusight.analysis.attribution.work_causes import (
    WAYS,
    FrameworkOperators,
    WorkSelection,
    selected_work,
    short_labels,
)
from gpusight.analysis.capture_info import DEF_LINES
from gpusight.analysis.kernel_summary import printed_totals
from gpusight.analysis.operator_tree import HostCallTree, ModuleTree, OperatorSums
from gpusight.analysis.recording_advice import advice_for
from gpusight.analysis.selection import EVERYTHING, GPU_WORK, Selection
from gpusight.analysis.steps.step_window import steps_inside
from gpusight.errors import UsageError
from gpusight.results import Field, Fmt, NotApplicable, TableResult
from gpusight.units import format_time

if TYPE_CHECKING:
    from gpusight.analysis.attribution.work_causes import SelectedWork
    from gpusight.analysis.kernel_summary import PrintedTotals
    from gpusight.trace.trace import Trace


FIELDS = (
    Field("share", "Share", Fmt.SHARE, "Self GPU time as share of the selected GPU time"),
    Field("self_gpu_ns", "Self GPU", Fmt.TIME, "GPU time of the activities it launched itself"),
    Field("gpu_step_ns", "Per step", Fmt.TIME, "Self GPU time per step; null without steps", False),
    Field("gpu_ns", "GPU total", Fmt.TIME, "Self GPU time plus that of its callees"),
    Field("gpu_mean_ns", "GPU mean", Fmt.TIME, "Total GPU time per call", shown=False),
    Field("calls", "Calls", Fmt.COUNT, "Number of calls"),
    Field("cpu_share", "CPU share", Fmt.SHARE, "Self CPU time as share of all", shown=False),
    Field("self_cpu_ns", "Self CPU", Fmt.TIME, "CPU time without callees"),
    Field("cpu_ns", "CPU total", Fmt.TIME, "CPU time with callees"),
    Field("cpu_mean_ns", "CPU mean", Fmt.TIME, "Total CPU time per call", False),
    Field("work", "GPU ops", Fmt.COUNT, "GPU activities that it launched itself", shown=False),
    Field("self_gpu_bytes", "Self memory", Fmt.BYTES, "GPU memory allocated, net", False),
    Field("gpu_bytes", "Memory", Fmt.BYTES, "GPU memory allocated with callees, net", False),
    Field("flops", "FLOPs", Fmt.COUNT, "Floating-point operations the profiler counted", False),
    Field("flops_per_s", "FLOP/s", Fmt.REAL, "FLOPs per second of self GPU time", shown=False),
    Field("kernel", "Top kernel", Fmt.NAME, "Kernel with the most self GPU time", shown=False),
    Field("kernel_share", "Of self GPU", Fmt.SHARE, "Its share of self GPU time", shown=False),
    Field("shapes", "Input shapes", Fmt.NAME, "Most common shapes of the inputs", shown=False),
    Field("kind", "Kind", Fmt.TEXT, "operator, annotation, module, function or line", False),
    Field("name", "Operator", Fmt.NAME, "Operator, annotation, module, function or line"),
)
MODULE_FIELDS = (
    *FIELDS[:-1],
    Field("modules", "Modules", Fmt.COUNT, "Module instances in this row"),
    Field("depth", "Depth", Fmt.COUNT, "Modules around it", shown=False),
    Field("path", "Path", Fmt.NAME, "Classes from the outermost module to this one", shown=False),
    Field("name", "Module", Fmt.NAME, "Class, indented below its parent", indented_by="depth"),
)
_HEADINGS = {"module": "Module", "function": "Function", "line": "Line"}


def _table(
    by: str, rows: pl.DataFrame, *, gpu: bool, meta: dict[str, Any], notes: tuple[str, ...]
) -> TableResult:
    """Choose what the default table shows; without GPU work, CPU times."""
    hidden = set() if gpu else {"share", "self_gpu_ns", "gpu_ns"}
    extra = {"shapes"} if by == "shapes" else set()
    extra |= set() if gpu else {"cpu_share", "cpu_mean_ns"}
    declared = MODULE_FIELDS if by == "module" and "path" in rows.columns else FIELDS
    fields = [
        replace(f, shown=(f.shown or f.key in extra) and f.key not in hidden) for f in declared
    ]
    heading = _HEADINGS.get(by, "Operator")
    fields[-1] = replace(fields[-1], label=heading)
    title = f"{heading}s by {'GPU' if gpu else 'CPU'} time"
    return TableResult("ops", title, tuple(fields), rows, meta=meta, notes=notes)


def _how_to_record(trace: Trace, table: str, column: str | None = None) -> str:
    """Return what makes the tool of this capture record something; empty where it never does."""
    wanted = advice_for(trace.meta).wanted
    options = [w.how for w in wanted if (w.table, w.column) == (table, column)]
    return f"record it with {options[0]}" if options else ""


def has_gpu_work(trace: Trace) -> bool:
    """Return whether the capture has GPU activities."""
    return any(trace.has(table) for table in GPU_WORK)


def _with_top_kernel(
    sums: pl.DataFrame, work: SelectedWork, groups: pl.Series, *, gpu: bool
) -> pl.DataFrame:
    """Complete sums by `group` into rows, with the kernel that took most of the time."""
    if not gpu:
        unknown = ("self_gpu_ns", "gpu_ns", "work")
        sums = sums.with_columns(pl.lit(None, pl.Int64).alias(key) for key in unknown)
    top_share = share_of(pl.col("top_ns"), pl.col("self_gpu_ns"))
    rows = sums.join(_top_work(work, groups), on="group", how="left")
    rows = rows.with_columns(top_share.alias("kernel_share"))
    return _completed(rows, int(work.frame.select(DURATION).to_series().sum()))


def _completed(sums: pl.DataFrame, total_gpu_ns: int) -> pl.DataFrame:
    """Make sums into sorted rows with every field; what is not known is null.

    `total_gpu_ns` is the GPU time that shares refer to. Rows of a tree have their `order`.
    """
    is_tree = "order" in sums.columns
    fields = MODULE_FIELDS if is_tree else FIELDS
    missing = schema_of(f for f in fields if f.key not in sums.columns)
    self_gpu, self_cpu, calls = pl.col("self_gpu_ns"), pl.col("self_cpu_ns"), pl.col("calls")
    by = ["self_gpu_ns", "gpu_ns", "self_cpu_ns", "cpu_ns", "name", "shapes"]
    by += ["place"] if "place" in sums.columns else []  # of the first, among equals
    by = ["order"] if is_tree else by
    return (
        sums.with_columns(pl.lit(None, dtype).alias(key) for key, dtype in missing.items())
        .with_columns(
            share_of(self_gpu, total_gpu_ns).alias("share"),
            share_of(self_cpu, self_cpu.sum()).alias("cpu_share"),
            share_of(pl.col("gpu_ns"), calls).alias("gpu_mean_ns"),
            share_of(pl.col("cpu_ns"), calls).alias("cpu_mean_ns"),
            share_of(pl.col("flops") * 1e9, self_gpu).alias("flops_per_s"),
        )
        .sort(by, descending=[key.endswith("_ns") for key in by], nulls_last=True)
        .select([f.key for f in fields])
    )


def _top_work(work: SelectedWork, groups: pl.Series) -> pl.DataFrame:
    """Find the kernel with the most self GPU time of each group."""
    top = (
        work.frame.select("label", DURATION, groups.alias("group"))
        .filter(pl.col("group").is_not_null())
        .group_by("group", "label")
        .agg(pl.col("duration_ns").sum().alias("top_ns"))
        .sort(["top_ns", "label"], descending=[True, False])
        .group_by("group", maintain_order=True)
        .first()
    )
    return top.select("group", "top_ns", short_labels(work.labels, top["label"]).alias("kernel"))


def _work_meta(work: SelectedWork, groups: pl.Series) -> dict[str, Any]:
    """Return totals of GPU activities, of those in no row, and how operators were matched."""
    durations = work.frame.select(DURATION).to_series()
    found_by = work.found()
    return {
        "work": len(durations),
        "gpu_ns": int(durations.sum()),
        "outside": groups.null_count(),
        "outside_ns": int(durations.filter(groups.is_null()).sum()),
        "found": {way: found_by.get(way, 0) for way in WAYS},
    }


def _work_notes(meta: dict[str, Any], places: str) -> tuple[str, ...]:
    """Note which GPU activities are in no row, and which were matched by time."""
    notes = []
    if meta["found"]["time"]:
        notes.append(
            f"GPU activities without operator id: {meta['found']['time']:,} of {meta['work']:,};"
            " each counts for the operator that was running at its launch"
        )
    if meta["outside"]:
        outside = format_time(meta["outside_ns"])
        notes.append(
            f"GPU activities launched outside of all {places}: {meta['outside']:,} ({outside}); "
            "not in the table"
        )
    return tuple(notes)


_AMOUNTS = (
    *("calls", "self_cpu_ns", "cpu_ns", "self_gpu_ns", "gpu_ns"),
    *("self_gpu_bytes", "gpu_bytes", "flops"),
)


def _operator_totals(trace: Trace, selection: Selection, by: str) -> TableResult | NotApplicable:
    """Return the operators of a printed table, without the kernels in it."""
    advice = advice_for(trace.meta)
    if selection:
        reason = "totals cannot be split by range, GPU or process"
        return NotApplicable("ops", reason, advice.select)
    if by == "shapes" and not trace.has("op_totals", "shapes"):
        reason = "the totals in the capture are not grouped by input shapes"
        return NotApplicable("ops", reason, _how_to_record(trace, "op_totals", "shapes"))
    if by in _PYTHON:
        reason = f"the capture has totals by operator, not by {by}"
        return NotApplicable("ops", reason, advice.ranges)
    table = trace.table("op_totals")
    operators = table.filter((pl.col("side") == "host").fill_null(value=True))
    # Rows that differ only in what `by` does not group by: shapes, stacks.
    shapes = pl.col("shapes").sort_by("calls", descending=True).first()
    rows = (
        operators.with_columns(pl.col("name", "shapes").cast(pl.String))
        .group_by(["name", "shapes"] if by == "shapes" else ["name"])
        .agg(
            *(pl.when(pl.col(a).count() > 0).then(pl.col(a).sum()) for a in _AMOUNTS),
            *([] if by == "shapes" else [shapes]),
        )
    )
    gpu = trace.has("op_totals", "self_gpu_ns")
    printed = printed_totals(trace)
    gpu_ns = printed.gpu_ns or int(operators["self_gpu_ns"].sum())
    cpu_share = share_of(pl.col("self_cpu_ns"), printed.cpu_ns or pl.col("self_cpu_ns").sum())
    notes = [_basis(printed, gpu=gpu)]
    others = table.height - operators.height
    if others:
        notes.append(
            f"{others:,} rows of kernels, copies, waits and GPU annotations are not operators; for"
            " kernels: gpusight kernels FILE"
        )
    return _table(
        by,
        _completed(rows, gpu_ns).with_columns(cpu_share.alias("cpu_share")),
        gpu=gpu,
        meta={"operators": int(rows["calls"].sum()), "gpu_ns": gpu_ns if gpu else None},
        notes=(*notes, *trace.meta.notes),
    )


def _basis(totals: PrintedTotals, *, gpu: bool) -> str:
    """Describe the basis of shares: the totals printed below the table, else the sum of rows."""
    sides = [("CPU", totals.cpu_ns)] + ([("GPU", totals.gpu_ns)] if gpu else [])
    printed = [f"{format_time(ns)} of {side} time" for side, ns in sides if ns is not None]
    rows = [f"the {side} time of its rows" for side, ns in sides if ns is None]
    below = [f"the totals printed below the table ({', '.join(printed)})"] if printed else []
    return f"shares are relative to {' and '.join(below + rows)}"


_PYTHON = ("module", "function", "line")
_STACKS = "record Python calls with torch.profiler: with_stack=True"
_NO_TOTALS = (
    "the capture has the Python stack of each operator, but no Python calls: CPU times are those of"
    " the operators called there, without totals"
)
_LINE = r"\(\d+\): "


def _by_place(scope: WorkSelection, work: SelectedWork, by: str) -> TableResult | NotApplicable:
    """Sum GPU work up by the module, function or line that caused it."""
    trace = scope.trace
    notes: tuple[str, ...] = ()
    has_calls, has_stacks = trace.has("python_calls"), trace.has("cpu_ops", "stack")
    if has_stacks and (by == "line" or (by == "function" and not has_calls)):
        sums, groups = _by_stacks(scope, work, by)
        notes = (_NO_TOTALS,)
    elif has_calls:
        if by == "line":
            by, notes = "function", (DEF_LINES,)
        sums, groups = _by_calls(scope, work, by)
    else:
        hint = _how_to_record(trace, "python_calls") or _STACKS
        return NotApplicable("ops", f"the capture has no Python {by}s", hint)
    if sums.is_empty() and not scope.selection:
        return NotApplicable("ops", f"no Python call in the capture is a {by}")
    gpu = has_gpu_work(trace)
    sums = sums.with_columns(pl.lit(by).alias("kind"))
    meta = _work_meta(work, groups)
    notes = (*notes, *_backward_note(trace, work, groups, f"{by}s"))
    return _table(
        by,
        _with_top_kernel(sums, work, groups, gpu=gpu),
        gpu=gpu,
        meta=meta,
        notes=(*scope.notes, *notes, *work.notes, *_work_notes(meta, f"{by}s")),
    )


def _backward_note(
    trace: Trace, work: SelectedWork, groups: pl.Series, places: str
) -> tuple[str, ...]:
    """Note whether GPU time includes the backward pass."""
    backward = work.frame["forward_op"].is_not_null() & groups.is_not_null()
    backward_ns = int(work.frame.select(DURATION).to_series().filter(backward).sum())
    if backward_ns:
        text = f"GPU time includes the backward pass ({format_time(backward_ns)}), counted for the "
        return (f"{text}{places} of its forward operators; CPU time does not",)
    if any("Backward" in name for name in names_of(trace.table("cpu_ops", ["name"])["name"])):
        return ("GPU time of the backward pass is not included: the capture does not link it",)
    return ()


def _by_calls(scope: WorkSelection, work: SelectedWork, by: str) -> tuple[pl.DataFrame, pl.Series]:
    """Sum up the Python calls of modules or functions, with the GPU activities inside them.

    A call counts when it started in the selection; GPU activities also when their call started
    earlier.
    """
    callers = work.frame["module" if by == "module" else "call_site"]
    calls = _calls(scope, by, callers)
    nested = NestedIntervals.of(
        calls["start_ns"].to_numpy(), calls["end_ns"].to_numpy(), calls["thread"]
    )
    # The place of each caller, a row of `python_calls`; -1 where it is not among these calls.
    rows, caller_rows = calls["row"].to_numpy(), callers.fill_null(NONE).to_numpy()
    places = np.full(len(caller_rows), NONE, dtype=np.int64)
    if len(rows):
        at = np.minimum(np.searchsorted(rows, caller_rows), len(rows) - 1)
        places = np.where(rows[at] == caller_rows, nested.places()[at], NONE)
    known = places >= 0
    gpu, count = (np.zeros(calls.height, dtype=np.int64) for _ in range(2))
    np.add.at(gpu, places[known], work.frame.select(DURATION).to_series().to_numpy()[known])
    np.add.at(count, places[known], 1)
    duration_ns = nested.ends - nested.starts
    counted = calls["selected"].to_numpy()[nested.rows].astype(np.int64)
    codes = calls["name"].to_physical().cast(pl.Int64).gather(nested.rows)
    names = names_of(calls["name"])
    tree = ModuleTree.of(nested, codes.to_numpy(), names) if by == "module" else None
    if tree is not None:
        codes = pl.Series(tree.nodes, dtype=pl.Int64)
    by_place = pl.DataFrame(
        {
            "group": codes,
            "calls": counted,
            "self_cpu_ns": counted * (duration_ns - nested.inside(duration_ns)),
            "cpu_ns": counted * duration_ns,
            "self_gpu_ns": gpu,
            "gpu_ns": nested.totals(gpu),
            "work": count,
        }
    )
    groups = codes.gather(optional(places))
    sums = by_place.group_by("group").sum()
    if tree is None:
        of_group = pl.Series(names, dtype=pl.String).gather(sums["group"])
        return sums.with_columns(of_group.alias("name")), groups
    weights = np.zeros(len(tree.names), dtype=np.int64)
    weight = sums["gpu_ns" if has_gpu_work(scope.trace) else "cpu_ns"]
    weights[sums["group"].to_numpy()] = weight.to_numpy()
    used = (pl.col("calls") > 0) | (pl.col("gpu_ns") > 0)
    return sums.filter(used).join(tree.frame(weights), on="group"), groups


def _calls(scope: WorkSelection, by: str, callers: pl.Series) -> pl.DataFrame:
    """Return the Python calls that count, and those that selected work was launched from.

    Of modules all, so that each is found at its place in the hierarchy.
    """
    selected = scope.host("python_calls", ["start_ns"], row_index="row")["row"]
    columns = ["start_ns", "end_ns", "thread", "name"]
    calls = scope.trace.table("python_calls", columns).with_row_index("row")
    matches = is_module if by == "module" else is_own_code
    codes = [code for code, name in enumerate(names_of(calls["name"])) if matches(name)]
    named = pl.col("name").to_physical().is_in(codes)
    used = pl.col("row").is_in(callers.drop_nulls().unique().implode())
    inside = pl.col("row").is_in(selected.implode())
    counted = named if by == "module" else named & inside
    return calls.with_columns(inside.alias("selected")).filter(counted | used)


def _by_stacks(scope: WorkSelection, work: SelectedWork, by: str) -> tuple[pl.DataFrame, pl.Series]:
    """Sum up operators by the line of the user's code in their stacks, or by its function."""
    operators = _operators_by_site(scope)
    stacks = scope.trace.table("cpu_ops", ["stack"])["stack"]
    launched = stack_sites(stacks.gather(work.frame["stack_op"]))
    if by == "function":
        launched = launched.str.replace(_LINE, ": ")
        operators = operators.with_columns(pl.col("name").str.replace(_LINE, ": "))
        operators = operators.group_by("name").sum()
    gpu = work.frame.select(launched.alias("name"), DURATION).drop_nulls("name")
    gpu = gpu.group_by("name").agg(
        pl.col("duration_ns").sum().alias("self_gpu_ns"), pl.len().cast(pl.Int64).alias("work")
    )
    sums = operators.join(gpu, on="name", how="full", coalesce=True)
    sums = sums.with_columns(
        pl.col("calls", "self_cpu_ns", "self_gpu_ns", "work").fill_null(0),
        pl.int_range(pl.len(), dtype=pl.Int64).alias("group"),
    )
    groups = launched.to_frame("name").join(
        sums.select("name", "group"), on="name", how="left", maintain_order="left"
    )
    return sums, groups["group"]


def _operators_by_site(scope: WorkSelection) -> pl.DataFrame:
    """Count the selected operators of each line, and their self CPU time."""
    operators = FrameworkOperators(scope.trace)
    nested = operators.nested
    duration_ns = nested.ends - nested.starts
    self_ns = np.empty(len(duration_ns), dtype=np.int64)
    self_ns[nested.rows] = duration_ns - nested.inside(duration_ns)
    selected = scope.host("cpu_ops", ["start_ns"], row_index="row")["row"].to_numpy()
    stacks = scope.trace.table("cpu_ops", ["stack"])["stack"]
    with_stack = optional(operators.with_stack(selected.astype(np.int64)))
    sites = stack_sites(stacks.gather(with_stack))
    rows = pl.DataFrame({"name": sites, "self_cpu_ns": self_ns[selected]}).drop_nulls("name")
    return rows.group_by("name").agg(
        pl.len().cast(pl.Int64).alias("calls"), pl.col("self_cpu_ns").sum()
    )


BY = ("name", "shapes", *_PYTHON)
"""Values of `by`."""
_OPERATORS = "operators are recorded by torch.profiler, with ProfilerActivity.CPU"


def ops(
    trace: Trace, selection: Selection = EVERYTHING, *, by: str = "name"
) -> TableResult | NotApplicable:
    """Sum up operators, those with the most self GPU time first.

    `by` also separates them by the `shapes` of their inputs, or groups GPU work by the `module`,
    `function` or `line` in Python that caused it. Modules are a tree by class and path.
    """
    if by not in BY:
        raise UsageError(f"cannot group operators by {by!r}", hint=f"choose from: {', '.join(BY)}")
    table = _ops(trace, selection, by)
    steps = steps_inside(trace, selection)
    if isinstance(table, NotApplicable) or not steps or not has_gpu_work(trace):
        return table
    per_step = (pl.col("self_gpu_ns") / steps).alias("gpu_step_ns")
    fields = tuple(replace(f, shown=f.shown or f.key == "gpu_step_ns") for f in table.fields)
    frame, title = table.frame.with_columns(per_step), f"{table.title}, totals"
    return replace(table, title=title, frame=frame, fields=fields)


def _ops(trace: Trace, selection: Selection, by: str) -> TableResult | NotApplicable:
    if trace.has("op_totals") and not trace.has("cpu_ops"):
        return _operator_totals(trace, selection, by)
    if not trace.has("cpu_ops"):
        hint = _how_to_record(trace, "cpu_ops") or _OPERATORS
        if trace.has("ranges"):
            hint = f"for time by range: gpusight ranges FILE; {hint}"
        return NotApplicable("ops", "the capture has no framework operators", hint)
    if by == "shapes" and not trace.has("cpu_ops", "shapes"):
        reason = "the capture has no input shapes of operators"
        return NotApplicable("ops", reason, _how_to_record(trace, "cpu_ops", "shapes"))
    scope = WorkSelection(trace, selection)
    work = selected_work(scope)
    if by in _PYTHON:
        return _by_place(scope, work, by)
    gpu = has_gpu_work(trace)
    sums = OperatorSums(scope, HostCallTree.of(trace), work, shapes=by == "shapes")
    groups = sums.groups_of_work
    meta = _work_meta(work, groups)
    return _table(
        by,
        _with_top_kernel(sums.table(), work, groups, gpu=gpu),
        gpu=gpu,
        meta={**sums.meta, **meta},
        notes=(*scope.notes, *work.notes, *_work_notes(meta, "operators and annotations")),
    )
