"""What modules and call sites in Python cost: `ops --by module` and `ops --by call-site`.

GPU work belongs to the innermost module or line of the user's code open at its launch; work of a
backward pass to those of the forward operator it serves. Host times are those of the Python calls.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from gpusight.analyses.attribution.attribute import names_of_causes
from gpusight.analyses.attribution.call_sites import is_module, is_own_code, stack_sites
from gpusight.analyses.attribution.nested import NONE, Nested, optional
from gpusight.analyses.attribution.operators import Operators
from gpusight.analyses.ops.fields import (
    fields_for,
    finished,
    has_gpu_work,
    how_to_record,
    title_for,
    work_meta,
    work_notes,
)
from gpusight.analyses.statistics import DURATION, names_of
from gpusight.result import NotApplicable, TableResult

if TYPE_CHECKING:
    from gpusight.analyses.attribution.nested import Ints
    from gpusight.analyses.attribution.work import Work, WorkScope

_COLUMNS = {"module": "module", "call-site": "call_site"}
_WORDS = {"module": "module", "call-site": "call site"}
_STACKS = "Python calls are recorded by torch.profiler, with with_stack=True"
_NO_TOTALS = (
    "the capture has no Python calls, only the stack of each operator: host times are those of the"
    " operators called from there, totals are not known"
)


def by_place(scope: WorkScope, work: Work, by: str) -> TableResult | NotApplicable:
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


def _by_calls(scope: WorkScope, work: Work, by: str) -> tuple[pl.DataFrame, pl.Series]:
    """Sum up the Python calls that are modules or call sites, with the work inside them.

    A call counts when it began in the selection; work also when its call began before.
    """
    chosen = work.frame[_COLUMNS[by]]
    calls = _calls(scope, by, chosen)
    nested = Nested.of(calls["start_ns"].to_numpy(), calls["end_ns"].to_numpy(), calls["thread"])
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


def _calls(scope: WorkScope, by: str, chosen: pl.Series) -> pl.DataFrame:
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


def _places(rows: Ints, nested: Nested, chosen: pl.Series) -> Ints:
    """Find the place of each chosen row of `python_calls`, -1 where it is not among `rows`."""
    wanted = chosen.fill_null(NONE).to_numpy()
    if not len(rows):
        return np.full(len(wanted), NONE, dtype=np.int64)
    at = np.minimum(np.searchsorted(rows, wanted), len(rows) - 1)
    return np.where(rows[at] == wanted, nested.places()[at], NONE)


def _by_stacks(scope: WorkScope, work: Work) -> tuple[pl.DataFrame, pl.Series]:
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


def _operators_by_site(scope: WorkScope) -> pl.DataFrame:
    """Count the selected operators of each call site, and their own host time."""
    operators = Operators(scope.trace)
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


def _site_column(scope: WorkScope, stack_ops: Ints) -> pl.Series:
    stacks = scope.trace.table("cpu_ops", ["stack"])["stack"]
    return stack_sites(stacks.gather(optional(stack_ops)))
