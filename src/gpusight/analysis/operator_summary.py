"""What each framework operator, module or call site costs on host and GPU: `ops`."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl

from gpusight.analysis.aggregates import DURATION, names_of, share_of
from gpusight.analysis.attribution.call_sites import is_module, is_own_code, stack_sites
from gpusight.analysis.attribution.nested_intervals import NONE, NestedIntervals, optional
from gpusight.analysis.attribution.work_causes import (
    WAYS,
    FrameworkOperators,
    WorkSelection,
    names_of_causes,
    selected_work,
    short_labels,
)
from gpusight.analysis.kernel_summary import printed_totals
from gpusight.analysis.operator_tree import HostCallTree, OperatorSums
from gpusight.analysis.recording_advice import advice_for
from gpusight.analysis.selection import EVERYTHING, GPU_WORK, Selection
from gpusight.errors import UsageError
from gpusight.results import Field, Fmt, NotApplicable, TableResult
from gpusight.units import format_time

if TYPE_CHECKING:
    from gpusight.analysis.attribution.work_causes import SelectedWork
    from gpusight.analysis.kernel_summary import PrintedTotals
    from gpusight.trace.intervals import Ints
    from gpusight.trace.trace import Trace


FIELDS = (
    Field("share", "Share", Fmt.SHARE, "Its own GPU work as part of all GPU work selected"),
    Field("self_gpu_ns", "Self GPU", Fmt.TIME, "GPU time of the work it launched itself"),
    Field("gpu_ns", "GPU total", Fmt.TIME, "GPU time with what it called"),
    Field("gpu_mean_ns", "GPU mean", Fmt.TIME, "GPU time with what it called, a call", shown=False),
    Field("calls", "Calls", Fmt.COUNT, "How often it was called"),
    Field("cpu_share", "CPU share", Fmt.SHARE, "Its own host time as part of all", shown=False),
    Field("self_cpu_ns", "Self CPU", Fmt.TIME, "Host time in itself"),
    Field("cpu_ns", "CPU total", Fmt.TIME, "Host time with what it called"),
    Field("cpu_mean_ns", "CPU mean", Fmt.TIME, "Host time with what it called, a call", False),
    Field("work", "GPU ops", Fmt.COUNT, "Pieces of GPU work that it launched itself", shown=False),
    Field("self_gpu_bytes", "Self memory", Fmt.BYTES, "GPU memory taken in itself, net", False),
    Field("gpu_bytes", "Memory", Fmt.BYTES, "GPU memory taken with what it called, net", False),
    Field("flops", "FLOPs", Fmt.COUNT, "Floating-point operations the profiler counted", False),
    Field("flops_per_s", "FLOP/s", Fmt.REAL, "Those by the GPU time of its own work", shown=False),
    Field("kernel", "Top kernel", Fmt.NAME, "What its own GPU time mostly went into", shown=False),
    Field("kernel_share", "Of its time", Fmt.SHARE, "Part that this took of it", shown=False),
    Field("shapes", "Input shapes", Fmt.NAME, "Sizes of the inputs, the most common", shown=False),
    Field("kind", "Kind", Fmt.TEXT, "`operator`, `annotation`, `module` or `call site`", False),
    Field("name", "Operator", Fmt.NAME, "Operator, annotation, module or call site"),
)
_TYPES: dict[Fmt, pl.DataType] = {
    Fmt.NAME: pl.String(),
    Fmt.TEXT: pl.String(),
    Fmt.SHARE: pl.Float64(),
    Fmt.REAL: pl.Float64(),
}
_GPU = ("self_gpu_ns", "gpu_ns", "work")
_HEADINGS = {"module": "Module", "call-site": "Call site"}


def fields_for(by: str, *, gpu: bool) -> tuple[Field, ...]:
    """Choose what the default table shows; without GPU work, what the host did."""
    hidden = set() if gpu else {"share", "self_gpu_ns", "gpu_ns"}
    extra = {"shapes"} if by == "shapes" else set()
    extra |= set() if gpu else {"cpu_share", "cpu_mean_ns"}
    fields = [replace(f, shown=(f.shown or f.key in extra) and f.key not in hidden) for f in FIELDS]
    fields[-1] = replace(fields[-1], label=_HEADINGS.get(by, fields[-1].label))
    return tuple(fields)


def title_for(by: str, *, gpu: bool) -> str:
    """Say what rows are and how they are sorted."""
    rows = {"module": "Modules", "call-site": "Call sites"}.get(by, "Operators")
    return f"{rows} by {'GPU' if gpu else 'CPU'} time"


def how_to_record(trace: Trace, table: str, column: str | None = None) -> str:
    """Say what makes the tool of this capture record something; empty where it never does."""
    wanted = advice_for(trace.meta).wanted
    options = [w.how for w in wanted if (w.table, w.column) == (table, column)]
    return f"record it with {options[0]}" if options else ""


def has_gpu_work(trace: Trace) -> bool:
    """Tell whether the capture shows what GPUs did."""
    return any(trace.has(table) for table in GPU_WORK)


def finished(
    summed: pl.DataFrame, work: SelectedWork, groups: pl.Series, *, gpu: bool
) -> pl.DataFrame:
    """Complete sums by `group` into rows: shares, means and what most of the time went into."""
    if not gpu:
        summed = summed.with_columns(pl.lit(None, pl.Int64).alias(key) for key in _GPU)
    rows = summed.join(_top_work(work, groups), on="group", how="left")
    rows = rows.with_columns(
        share_of(pl.col("top_ns"), pl.col("self_gpu_ns")).alias("kernel_share")
    )
    return completed(rows, int(work.frame.select(DURATION).to_series().sum()))


def completed(sums: pl.DataFrame, everything_ns: int) -> pl.DataFrame:
    """Make sums into sorted rows with every field; what is not known is null.

    `everything_ns` is the GPU time that shares refer to.
    """
    missing = [f for f in FIELDS if f.key not in sums.columns]
    nulls = [pl.lit(None, _TYPES.get(f.fmt, pl.Int64())).alias(f.key) for f in missing]
    by = ["self_gpu_ns", "gpu_ns", "self_cpu_ns", "cpu_ns", "name", "shapes"]
    by += ["place"] if "place" in sums.columns else []  # of the first, among equals
    return (
        sums.with_columns(nulls)
        .with_columns(*_ratios(everything_ns))
        .sort(by, descending=[key.endswith("_ns") for key in by], nulls_last=True)
        .select([f.key for f in FIELDS])
    )


def _ratios(everything_ns: int) -> list[pl.Expr]:
    self_gpu, calls = pl.col("self_gpu_ns"), pl.col("calls")
    return [
        share_of(self_gpu, everything_ns).alias("share"),
        share_of(pl.col("self_cpu_ns"), pl.col("self_cpu_ns").sum()).alias("cpu_share"),
        share_of(pl.col("gpu_ns"), calls).alias("gpu_mean_ns"),
        share_of(pl.col("cpu_ns"), calls).alias("cpu_mean_ns"),
        share_of(pl.col("flops") * 1e9, self_gpu).alias("flops_per_s"),
    ]


def _top_work(work: SelectedWork, groups: pl.Series) -> pl.DataFrame:
    """Find, for each group, what most of its own GPU time went into."""
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


def work_meta(work: SelectedWork, groups: pl.Series) -> dict[str, Any]:
    """Give the totals of the work: all of it, what is in no row, how operators were found."""
    spent = work.frame.select(DURATION).to_series()
    found = work.found()
    return {
        "work": len(spent),
        "gpu_ns": int(spent.sum()),
        "outside": groups.null_count(),
        "outside_ns": int(spent.filter(groups.is_null()).sum()),
        "found": {way: found.get(way, 0) for way in WAYS},
    }


def work_notes(meta: dict[str, Any], places: str) -> tuple[str, ...]:
    """Say what is in no row, and which work was matched by time."""
    notes = []
    if meta["found"]["time"]:
        notes.append(
            f"{meta['found']['time']:,} of {meta['work']:,} pieces of GPU work name no operator:"
            " they belong to the one that was open when they were launched"
        )
    if meta["outside"]:
        spent = format_time(meta["outside_ns"])
        notes.append(
            f"{meta['outside']:,} pieces of GPU work ({spent}) were launched outside of all"
            f" {places}: they are in no row"
        )
    return tuple(notes)


_AMOUNTS = (
    *("calls", "self_cpu_ns", "cpu_ns", "self_gpu_ns", "gpu_ns"),
    *("self_gpu_bytes", "gpu_bytes", "flops"),
)


def operator_totals(trace: Trace, selection: Selection, by: str) -> TableResult | NotApplicable:
    """Show the operators of a printed table; kernels in it are not among them."""
    refused = _refusal(trace, selection, by)
    if refused is not None:
        return refused
    table = trace.table("op_totals")
    operators = table.filter((pl.col("side") == "host").fill_null(value=True))
    rows = _summed(operators, by)
    gpu = trace.has("op_totals", "self_gpu_ns")
    whole = printed_totals(trace)
    everything = whole.gpu_ns or int(operators["self_gpu_ns"].sum())
    of_all_cpu = share_of(pl.col("self_cpu_ns"), whole.cpu_ns or pl.col("self_cpu_ns").sum())
    return TableResult(
        "ops",
        title_for(by, gpu=gpu),
        fields_for(by, gpu=gpu),
        completed(rows, everything).with_columns(of_all_cpu.alias("cpu_share")),
        meta={"operators": int(rows["calls"].sum()), "gpu_ns": everything if gpu else None},
        notes=_notes(trace, whole, table.height - operators.height, gpu=gpu),
    )


def _summed(operators: pl.DataFrame, by: str) -> pl.DataFrame:
    """Sum up rows that the table keeps apart though they are not asked for so: shapes, stacks."""
    shapes = pl.col("shapes").sort_by("calls", descending=True).first()
    return (
        operators.with_columns(pl.col("name", "shapes").cast(pl.String))
        .group_by(["name", "shapes"] if by == "shapes" else ["name"])
        .agg(
            *(pl.when(pl.col(a).count() > 0).then(pl.col(a).sum()) for a in _AMOUNTS),
            *([] if by == "shapes" else [shapes]),
        )
    )


def _refusal(trace: Trace, selection: Selection, by: str) -> NotApplicable | None:
    advice = advice_for(trace.meta)
    if selection:
        reason = "totals cannot be divided by range, GPU or process"
        return NotApplicable("ops", reason, advice.select)
    if by == "shapes" and not trace.has("op_totals", "shapes"):
        reason = "the totals in the capture are not grouped by the shapes of inputs"
        return NotApplicable("ops", reason, how_to_record(trace, "op_totals", "shapes"))
    if by in ("module", "call-site"):
        reason = f"the capture holds totals by operator, not by {by.replace('-', ' ')}"
        return NotApplicable("ops", reason, advice.ranges)
    return None


def _notes(trace: Trace, whole: PrintedTotals, others: int, *, gpu: bool) -> tuple[str, ...]:
    notes = [_basis(whole, gpu=gpu)]
    if others:
        notes.append(
            f"{others:,} rows of kernels, copies, waits and GPU annotations are left out; see the"
            " kernels with: gpusight kernels FILE"
        )
    return (*notes, *trace.meta.notes)


def _basis(whole: PrintedTotals, *, gpu: bool) -> str:
    """Say what shares are of: the totals below the table, or the rows where there are none."""
    told = [("CPU", whole.cpu_ns)] + ([("GPU", whole.gpu_ns)] if gpu else [])
    printed = [f"{format_time(ns)} of {side} time" for side, ns in told if ns is not None]
    rows = [f"the {side} time of its rows" for side, ns in told if ns is None]
    below = [f"what is printed below the table ({', '.join(printed)})"] if printed else []
    return f"shares are of {' and of '.join(below + rows)}"


_COLUMNS = {"module": "module", "call-site": "call_site"}
_WORDS = {"module": "module", "call-site": "call site"}
_STACKS = "Python calls are recorded by torch.profiler, with with_stack=True"
_NO_TOTALS = (
    "the capture has no Python calls, only the stack of each operator: host times are those of the"
    " operators called from there, totals are not known"
)


def by_place(scope: WorkSelection, work: SelectedWork, by: str) -> TableResult | NotApplicable:
    """Sum GPU work up by the module or call site that caused it."""
    trace = scope.trace
    notes: tuple[str, ...] = ()
    hint = how_to_record(trace, "python_calls") or _STACKS
    if trace.has("python_calls"):
        sums, groups = _by_calls(scope, work, by)
    elif by == "call-site" and trace.has("cpu_ops", "stack"):
        sums, groups = _by_stacks(scope, work)
        notes = (_NO_TOTALS,)
    else:
        return NotApplicable("ops", f"the capture tells no {_WORDS[by]}s", hint)
    if sums.is_empty() and not scope.selection:
        return NotApplicable("ops", f"no Python call in the capture is of a {_WORDS[by]}")
    gpu = has_gpu_work(trace)
    sums = sums.with_columns(pl.lit(_WORDS[by]).alias("kind"))
    meta = work_meta(work, groups)
    return TableResult(
        "ops",
        title_for(by, gpu=gpu),
        fields_for(by, gpu=gpu),
        finished(sums, work, groups, gpu=gpu),
        meta=meta,
        notes=(*scope.notes, *notes, *work.notes, *work_notes(meta, f"{_WORDS[by]}s")),
    )


def _by_calls(scope: WorkSelection, work: SelectedWork, by: str) -> tuple[pl.DataFrame, pl.Series]:
    """Sum up the Python calls that are modules or call sites, with the work inside them.

    A call counts when it began in the selection; work also when its call began before.
    """
    chosen = work.frame[_COLUMNS[by]]
    calls = _calls(scope, by, chosen)
    nested = NestedIntervals.of(
        calls["start_ns"].to_numpy(), calls["end_ns"].to_numpy(), calls["thread"]
    )
    place = _places(calls["row"].to_numpy(), nested, chosen)
    known = place >= 0
    gpu, count = (np.zeros(calls.height, dtype=np.int64) for _ in range(2))
    np.add.at(gpu, place[known], work.frame.select(DURATION).to_series().to_numpy()[known])
    np.add.at(count, place[known], 1)
    spent = nested.ends - nested.starts
    counted = calls["selected"].to_numpy()[nested.rows].astype(np.int64)
    codes = calls["name"].to_physical().cast(pl.Int64).gather(nested.rows)
    rows = pl.DataFrame(
        {
            "group": codes,
            "calls": counted,
            "self_cpu_ns": counted * (spent - nested.inside(spent)),
            "cpu_ns": counted * spent,
            "self_gpu_ns": gpu,
            "gpu_ns": nested.totals(gpu),
            "work": count,
        }
    )
    sums = rows.group_by("group").sum()
    names = pl.Series(names_of(calls["name"]), dtype=pl.String).gather(sums["group"])
    return sums.with_columns(names.alias("name")), codes.gather(optional(place))


def _calls(scope: WorkSelection, by: str, chosen: pl.Series) -> pl.DataFrame:
    """Give the Python calls that count, and those that selected work was launched from."""
    mine = scope.host("python_calls", ["start_ns"], row_index="row")["row"]
    columns = ["start_ns", "end_ns", "thread", "name"]
    calls = scope.trace.table("python_calls", columns).with_row_index("row")
    named = pl.col("name").to_physical().is_in(_codes(calls["name"], by))
    used = pl.col("row").is_in(chosen.drop_nulls().unique().implode())
    inside = pl.col("row").is_in(mine.implode())
    return calls.with_columns(inside.alias("selected")).filter((named & inside) | used)


def _codes(names: pl.Series, by: str) -> list[int]:
    test = is_module if by == "module" else is_own_code
    return [code for code, name in enumerate(names_of(names)) if test(name)]


def _places(rows: Ints, nested: NestedIntervals, chosen: pl.Series) -> Ints:
    """Find the place of each chosen row of `python_calls`, -1 where it is not among `rows`."""
    wanted = chosen.fill_null(NONE).to_numpy()
    if not len(rows):
        return np.full(len(wanted), NONE, dtype=np.int64)
    at = np.minimum(np.searchsorted(rows, wanted), len(rows) - 1)
    return np.where(rows[at] == wanted, nested.places()[at], NONE)


def _by_stacks(scope: WorkSelection, work: SelectedWork) -> tuple[pl.DataFrame, pl.Series]:
    """Sum up operators by the call site in their stacks (older traces)."""
    launched = names_of_causes(scope.trace, work.frame)["call_site"]
    gpu = work.frame.select(launched.alias("name"), DURATION).drop_nulls("name")
    gpu = gpu.group_by("name").agg(
        pl.col("duration_ns").sum().alias("self_gpu_ns"), pl.len().cast(pl.Int64).alias("work")
    )
    sums = _operators_by_site(scope).join(gpu, on="name", how="full", coalesce=True)
    sums = sums.with_columns(
        pl.col("calls", "self_cpu_ns", "self_gpu_ns", "work").fill_null(0),
        pl.int_range(pl.len(), dtype=pl.Int64).alias("group"),
    )
    groups = launched.to_frame("name").join(
        sums.select("name", "group"), on="name", how="left", maintain_order="left"
    )
    return sums, groups["group"]


def _operators_by_site(scope: WorkSelection) -> pl.DataFrame:
    """Count the selected operators of each call site, and their own host time."""
    operators = FrameworkOperators(scope.trace)
    nested = operators.nested
    spent = nested.ends - nested.starts
    own = np.empty(len(spent), dtype=np.int64)
    own[nested.rows] = spent - nested.inside(spent)
    mine = scope.host("cpu_ops", ["start_ns"], row_index="row")["row"].to_numpy()
    sites = _site_column(scope, operators.with_stack(mine.astype(np.int64)))
    rows = pl.DataFrame({"name": sites, "self_cpu_ns": own[mine]}).drop_nulls("name")
    return rows.group_by("name").agg(
        pl.len().cast(pl.Int64).alias("calls"), pl.col("self_cpu_ns").sum()
    )


def _site_column(scope: WorkSelection, stack_ops: Ints) -> pl.Series:
    stacks = scope.trace.table("cpu_ops", ["stack"])["stack"]
    return stack_sites(stacks.gather(optional(stack_ops)))


BY = ("name", "shapes", "module", "call-site")
"""What rows can be grouped by."""
_OPERATORS = "operators are recorded by torch.profiler, with ProfilerActivity.CPU"


def ops(
    trace: Trace, selection: Selection = EVERYTHING, *, by: str = "name"
) -> TableResult | NotApplicable:
    """Sum up operators, those whose own GPU work took longest first.

    `by` also tells apart the `shapes` of their inputs, or groups GPU work by the `module` or the
    `call-site` in Python that caused it.
    """
    if by not in BY:
        raise UsageError(f"cannot group operators by {by!r}", hint=f"choose from: {', '.join(BY)}")
    if trace.has("op_totals") and not trace.has("cpu_ops"):
        return operator_totals(trace, selection, by)
    refused = _why_not_applicable(trace, by)
    if refused is not None:
        return refused
    scope = WorkSelection(trace, selection)
    work = selected_work(scope)
    if by in ("module", "call-site"):
        return by_place(scope, work, by)
    gpu = has_gpu_work(trace)
    sums = OperatorSums(scope, HostCallTree.of(trace), work, shapes=by == "shapes")
    groups = sums.groups_of_work
    meta = work_meta(work, groups)
    return TableResult(
        "ops",
        title_for(by, gpu=gpu),
        fields_for(by, gpu=gpu),
        finished(sums.table(), work, groups, gpu=gpu),
        meta={**sums.meta, **meta},
        notes=(*scope.notes, *work.notes, *work_notes(meta, "operators and annotations")),
    )


def _why_not_applicable(trace: Trace, by: str) -> NotApplicable | None:
    """Explain why a capture cannot say what was asked for; None where it can."""
    if not trace.has("cpu_ops"):
        hint = how_to_record(trace, "cpu_ops") or _OPERATORS
        if trace.has("ranges"):
            hint = f"see what its ranges cost: gpusight ranges FILE; {hint}"
        return NotApplicable("ops", "the capture holds no operators of a framework", hint)
    if by == "shapes" and not trace.has("cpu_ops", "shapes"):
        reason = "the capture does not tell the shapes of operators' inputs"
        return NotApplicable("ops", reason, how_to_record(trace, "cpu_ops", "shapes"))
    return None
