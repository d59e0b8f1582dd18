"""How busy each GPU was over time: bin by bin what it did, and what it sampled of itself.

The groups are those of the ledger, and so is the order in which they count where several things
run: computing, moving data, communicating. What is left is idle.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl

from gpusight.analyses.advice import advice_for
from gpusight.analyses.devices import device_names
from gpusight.analyses.kernels import graph_notes
from gpusight.analyses.ledger.causes import IDLE
from gpusight.analyses.select import EVERYTHING, GPU_WORK, Selection
from gpusight.analyses.steps.focus import focus
from gpusight.analyses.utilisation.fields import (
    BIN_FIELDS,
    FACTS,
    GPU_FIELDS,
    SHARES,
    STEP_FIELDS,
)
from gpusight.analyses.utilisation.metrics import sampled
from gpusight.analyses.utilisation.work import work_of
from gpusight.errors import UsageError
from gpusight.model.intervals import coverage, gaps
from gpusight.result import Composite, Fact, Field, Fmt, NotApplicable, TableResult
from gpusight.units import format_share

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from numpy.typing import NDArray

    from gpusight.analyses.steps.focus import Focus
    from gpusight.analyses.utilisation.work import Work
    from gpusight.model.trace import Trace

    Ints = NDArray[np.int64]

COMMAND = "utilisation"
BINS = 400
"""As many as a picture can show."""
MOST_BINS = 10_000


def utilisation(
    trace: Trace,
    selection: Selection = EVERYTHING,
    *,
    steps: str | None = None,
    window: tuple[int | None, int | None] | None = None,
    warmup: bool = False,
    bins: int = BINS,
) -> Composite | NotApplicable:
    """Say how busy each GPU was in each of `bins` equal parts of the time that `focus` chooses."""
    if not 1 <= bins <= MOST_BINS:
        raise UsageError(f"{bins:,} bins", hint=f"take 1 to {MOST_BINS:,}")
    if not any(trace.has(table) for table in GPU_WORK):
        return NotApplicable(COMMAND, "the capture shows no GPU work", advice_for(trace.meta).gpu)
    chosen = focus(trace, selection, steps=steps, window=window, warmup=warmup)
    if isinstance(chosen, NotApplicable):
        return replace(chosen, command=COMMAND)
    work = work_of(trace, selection, chosen)
    if not work:
        return NotApplicable(COMMAND, "no GPU work in what was selected")
    return _report(trace, chosen, work, _edges(chosen, bins))


# Over time ----------------------------------------------------------------------------------------


def _edges(chosen: Focus, bins: int) -> Ints:
    """Give where the bins begin, and where the last one ends; none is shorter than 1 ns."""
    count = max(1, min(bins, chosen.length_ns))
    edges = [chosen.start_ns + n * chosen.length_ns // count for n in range(count + 1)]
    return np.array(edges, np.int64)


def _report(trace: Trace, chosen: Focus, work: Mapping[int, Work], edges: Ints) -> Composite:
    names = device_names(trace)
    gpus = pl.DataFrame(
        [_gpu_row(device, names.get(device), own, chosen) for device, own in work.items()],
        schema=_schema(GPU_FIELDS),
    )
    over_time = pl.concat([_bin_rows(device, own, edges) for device, own in work.items()])
    sections: list[TableResult | NotApplicable] = [
        TableResult("gpus", "By GPU", _shown(GPU_FIELDS, gpus), gpus),
        TableResult("bins", "Over time", _shown(BIN_FIELDS, over_time), over_time),
        *sampled(trace, list(work), edges),
    ]
    if chosen.steps:
        steps = pl.DataFrame(list(_step_rows(chosen, work)), schema=_schema(STEP_FIELDS))
        sections.append(TableResult("steps", "By step", STEP_FIELDS, steps))
    return Composite(
        COMMAND,
        "GPU utilisation",
        tuple(_facts(chosen, gpus, edges)),
        tuple(sections),
        meta={"path": trace.meta.path, "start_ns": chosen.start_ns, "end_ns": chosen.end_ns},
        notes=(*chosen.notes, *graph_notes(trace)),
    )


def _gpu_row(device: int, name: str | None, work: Work, chosen: Focus) -> dict[str, Any]:
    start, end = (np.array([t], np.int64) for t in (chosen.start_ns, chosen.end_ns))
    parts = {group: int(ns[0]) for group, ns in work.parts(start, end).items()}
    idle = gaps(work.running, chosen.start_ns, chosen.end_ns)
    longest = int((idle.ends - idle.starts).argmax()) if len(idle) else None
    return {
        "device": device,
        "name": name,
        **_shares(parts, chosen.length_ns),
        "kernels": int(work.kernels(start, end)[0]),
        "longest_idle_ns": 0 if longest is None else int((idle.ends - idle.starts)[longest]),
        "longest_idle_at_ns": None if longest is None else int(idle.starts[longest]),
    }


def _shares(parts: Mapping[str, Any], whole: Any) -> dict[str, Any]:
    shares = {f"{group}_share": ns / whole for group, ns in parts.items()}
    return {"busy_share": (whole - parts[IDLE]) / whole, **shares}


def _bin_rows(device: int, work: Work, edges: Ints) -> pl.DataFrame:
    starts, ends = edges[:-1], edges[1:]
    parts = work.parts(starts, ends)
    columns = {
        "device": np.full(len(starts), device),
        "start_ns": starts,
        "duration_ns": ends - starts,
        **_shares(parts, ends - starts),
        "kernels": work.kernels(starts, ends),
        **{f"{group}_ns": ns for group, ns in parts.items()},
    }
    return pl.DataFrame(columns, schema=_schema(BIN_FIELDS)).select(f.key for f in BIN_FIELDS)


def _step_rows(chosen: Focus, work: Mapping[int, Work]) -> Iterator[dict[str, Any]]:
    starts = np.array([step.start_ns for step in chosen.steps], np.int64)
    ends = np.array([step.end_ns for step in chosen.steps], np.int64)
    ran = np.mean([coverage(own.running, starts, ends) for own in work.values()], axis=0)
    for step, ns in zip(chosen.steps, ran, strict=True):
        length = step.end_ns - step.start_ns
        yield {
            "number": step.number,
            "start_ns": step.start_ns,
            "duration_ns": length,
            "busy_share": float(ns) / length if length else None,
            "name": step.name,
        }


# Facts --------------------------------------------------------------------------------------------


def _facts(chosen: Focus, gpus: pl.DataFrame, edges: Ints) -> Iterator[Fact]:
    """Give the facts that are known, in the order of `FACTS`."""
    several = gpus.height > 1
    ordered = gpus.sort("busy_share", descending=True, maintain_order=True)
    most, least = ordered.row(0, named=True), ordered.row(-1, named=True)
    idle = gpus.sort("longest_idle_ns", descending=True, maintain_order=True).row(0, named=True)
    values: dict[str, Any] = {
        "window_ns": chosen.length_ns,
        "steps": len(chosen.steps) or None,
        "gpus": ", ".join(dict.fromkeys(gpus["name"].drop_nulls().to_list())) or None,
        **{f.key: gpus[f.key].mean() for f in SHARES},
        "busiest": _called(most) if several else None,
        "least_busy": _called(least) if several else None,
        "longest_idle_ns": idle["longest_idle_ns"],
        "longest_idle_at_ns": idle["longest_idle_at_ns"],
        "longest_idle_device": idle["device"] if several else None,
        "bin_ns": chosen.length_ns / (len(edges) - 1),
    }
    for field in FACTS:
        if values[field.key] is not None and (values[field.key] or field.key not in _IF_ANY):
            yield Fact(field.key, field.label, values[field.key], field.fmt, field.meaning)


_IF_ANY = frozenset({"copy_share", "communication_share"})


def _called(gpu: Mapping[str, Any]) -> str:
    return f"GPU {gpu['device']} ({format_share(gpu['busy_share'])})"


def _shown(fields: tuple[Field, ...], frame: pl.DataFrame) -> tuple[Field, ...]:
    """Leave out of the table what is zero throughout, and the GPU where there is one."""
    quiet = {key for key in _IF_ANY if not (frame[key] > 0).any()}
    quiet |= {"device"} if frame["device"].n_unique() < 2 else set()
    return tuple(replace(f, shown=f.shown and f.key not in quiet) for f in fields)


def _schema(fields: tuple[Field, ...]) -> dict[str, pl.DataType]:
    kinds: dict[Fmt, pl.DataType] = {Fmt.NAME: pl.String(), Fmt.SHARE: pl.Float64()}
    return {f.key: kinds.get(f.fmt, pl.Int64()) for f in fields}
