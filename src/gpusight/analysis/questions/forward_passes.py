"""The forward passes of a capture: by range names, by phases of steps, or whole steps."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

import polars as pl

from gpusight.analysis.aggregates import DURATION, names_of
from gpusight.analysis.selection import GPU_WORK, ResolvedSelection, Selection
from gpusight.analysis.steps.step_list import WARM_UP, closed_ranges, frame_of
from gpusight.naming.kernel_names import classify
from gpusight.results import NotApplicable

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import TypeVar

    from gpusight.analysis.steps.window_headline import StepWindow
    from gpusight.trace.trace import Trace

    _Read = TypeVar("_Read", str, int)


_NOBODY = -1
"""Stands for a process or thread that the capture does not name."""


def named_ranges(trace: Trace, read: Callable[[str], _Read | None]) -> pl.DataFrame:
    """Return the ranges for whose names `read` is not None: it, `name`, times, who opened it."""
    ranges = closed_ranges(trace)
    codes, names = ranges["name"].to_physical(), names_of(ranges["name"])
    parsed = {code: read(names[code]) for code in codes.unique().drop_nulls()}
    known = {code: value for code, value in parsed.items() if value is not None}
    values = pl.DataFrame(
        {"code": pl.Series(list(known), dtype=pl.Int64), "read": list(known.values())}
    )
    return (
        ranges.with_columns(codes.cast(pl.Int64).alias("code"))
        .join(values, on="code", maintain_order="left")
        .with_columns(pl.col("name").cast(pl.String))
        .select("read", "name", "start_ns", "end_ns", "process", "thread")
    )


def outermost(spans: pl.DataFrame) -> pl.DataFrame:
    """Leave out spans that lie inside another one of their thread; order of start."""
    ordered = spans.sort("start_ns", -pl.col("end_ns"), maintain_order=True)
    reached = pl.col("end_ns").cum_max().shift(1).over("process", "thread")
    return ordered.filter((pl.col("start_ns") >= reached).fill_null(value=True))


def hold(spans: pl.DataFrame, times: pl.DataFrame, when: str) -> pl.Series:
    """Return the position of the span that each time lies in; null for none.

    A time belongs to the span open in its process, whichever thread opened it; where spans of a
    process overlap, to the one of its own thread.
    """
    reached = pl.col("end_ns").cum_max().shift(1).over("process")
    overlap = spans.sort("start_ns").select((pl.col("start_ns") < reached).any()).item()
    by = "thread" if overlap else "process"
    placed = spans.with_row_index("held").select(
        pl.col("held").cast(pl.Int64),
        pl.col("start_ns").alias("when"),
        pl.col("end_ns").alias("until"),
        pl.col(by).fill_null(_NOBODY),
    )
    moments = times.select(pl.col(when).alias("when"), pl.col(by).fill_null(_NOBODY))
    if by == "process" and moments[by].n_unique() == 1 and (moments[by] == _NOBODY).all():
        placed = placed.with_columns(pl.lit(_NOBODY, pl.Int64).alias(by))
    around = (
        moments.with_row_index("at")
        .sort("when")
        .join_asof(
            placed.sort("when"), on="when", by=by, strategy="backward", check_sortedness=False
        )
        .sort("at")
    )
    held = pl.when(pl.col("when") < pl.col("until")).then("held")
    return around.select(held.alias("held"))["held"]


_CAMEL = re.compile(r"(?<=[a-z])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")
_WORD = re.compile(r"[a-z]+")
_MAX_NAME_CHARS = 200
_OPERATOR = re.compile(r"::|\bop_id\b|\bseq = ")
"""Marks of operators that frameworks emit as ranges by themselves."""

_FORWARD = frozenset({"forward", "fwd"})
_BACKWARD = frozenset({"backward", "backwards", "bwd", "backprop", "grad", "grads", "gradient"})
_OPTIMIZER = frozenset({"optimizer", "optimiser", "optim", "opt", "adam", "adamw", "sgd"})
_INFERENCE = frozenset({"inference", "infer", "predict", "prediction", "generate", "prefill"})
_OF_THE_WHOLE = frozenset((
    "the", "a", "of", "in", "pass", "passes", "step", "steps", "iter", "iteration", "iterations",
    "batch", "model", "net", "network", "nn", "module", "full", "whole", "run", "total", "time",
    "phase", "train", "training", "eval", "evaluation", "validation", "measure", "measured",
    "benchmark", "bench", "timed", "distributed", "data", "parallel", "ddp", "fsdp", "gpt", "llm",
    "transformer", "start",
))  # fmt: skip
"""Words next to `forward` that do not make it the forward pass of a layer."""

_SCORES = frozenset({"scores", "score", "logits", "qk", "qkt", "similarity"})
_ABOUT_ATTENTION = frozenset({"attention", "attn", "att", "qk", "qkt", "query", "key", "dot"})
_PRODUCT = frozenset({"matmul", "mm", "bmm", "gemm", "product", "multiply", "multiplication"})
_LAST = frozenset({"final", "value", "values", "v"})
_PROJECTION = frozenset({"proj", "projection", "linear", "qkv"})
"""Words for GEMMs around attention that are not its own."""
_WEIGHTS = frozenset({"attention", "attn", "scores", "probs", "weights", "weighted"})
_VALUES = frozenset({"v", "value", "values"})
_WEIGHING = ({"weighted", "sum"}, {"apply", "attention"}, {"apply", "attn"}, {"av"}, {"pv"})

SCORES, SOFTMAX, FINAL = "scores", "softmax", "final"
PARTS = (SCORES, SOFTMAX, FINAL)
"""The parts of attention, in the order in which they run."""


def words(name: str) -> list[str]:
    """Split a name into lower-case words; numbers and marks only separate them."""
    return _WORD.findall(_CAMEL.sub(" ", name[:_MAX_NAME_CHARS]).lower())


def forward_rank(name: str) -> int | None:
    """Rank a range's name as a forward pass: 0 the surest; None for something else."""
    named = frozenset(words(name))
    if _OPERATOR.search(name) or named & (_BACKWARD | _OPTIMIZER):
        return None
    if named & _FORWARD:
        return 0 if named <= _FORWARD | _OF_THE_WHOLE else 1
    return 2 if named & _INFERENCE else None


def family(name: str) -> str:
    """Return what ranges share that differ only in numbers and in words of no meaning."""
    kept = [word for word in words(name) if word not in _OF_THE_WHOLE]
    return " ".join("forward" if word in _FORWARD else word for word in kept)


def attention_part(name: str) -> str | None:
    """Return which part of attention a range is; None for something else.

    The surest comes first: `attention scores v matmul` is the last GEMM, not the scores.
    """
    named = frozenset(words(name))
    if _OPERATOR.search(name) or named & (_BACKWARD | _PROJECTION):
        return None
    if "softmax" in named and "log" not in named:
        return SOFTMAX
    weighs = named & _WEIGHTS and named & _VALUES
    if weighs or any(pair <= named for pair in _WEIGHING) or (named & _PRODUCT and named & _LAST):
        return FINAL
    query_key = {"query", "key"} <= named or {"q", "k"} <= named
    if named & _SCORES and named & _ABOUT_ATTENTION:
        return SCORES
    return SCORES if query_key and not named & {"v", "value"} else None


_LINES = {
    "nsys": 'with torch.cuda.nvtx.range("{}"): …',
    "torch": 'with torch.profiler.record_function("{}"): …',
    "jax": 'with jax.profiler.TraceAnnotation("{}"): …',
}
"""The line of code that marks a part of the program, by the first word of the capture's form."""
_NETWORK = frozenset({"matmul", "convolution", "attention", "softmax", "normalization"})
"""Categories of which a neural network has kernels."""
_BACKWARD_KERNEL = re.compile(r"bwd|backward|dgrad|wgrad|grad_?input|_grad", re.IGNORECASE)
_WHOLE_STEPS = (
    "no range is named forward; no backward pass and no optimizer was seen: each step is taken to "
    "be one forward pass"
)
_LAUNCHES = "no range is named forward: a pass on the host is from its first launch to its last"
_MIN_RUN = 0.25
"""Share of the longest run of forward work below which another run is not a pass of its own."""
_MIN_INSIDE = 0.5
_TRAINING = ("backward", "optimizer")


@dataclass(frozen=True)
class ForwardPasses:
    """Forward passes, in order, and the kernels of each."""

    frame: pl.DataFrame
    """`name`, `start_ns` and `end_ns` on the host."""
    members: pl.Series
    """The pass of each kernel, null for none."""
    how: str
    """How they were found."""
    notes: tuple[str, ...] = ()

    @property
    def count(self) -> int:
        """How many there are."""
        return self.frame.height


def described(trace: Trace, work: pl.DataFrame) -> pl.DataFrame:
    """Return the kernels among GPU work, with `code` of the name, `category` and `queue`."""
    kernels = work.filter(pl.col("table") == GPU_WORK.index("kernels"))
    table = trace.table("kernels", ["name", "context", "stream"])
    at, names = kernels["row"], table["name"]
    known = pl.Series([classify(name).category for name in names_of(names)], dtype=pl.String)
    code = names.to_physical().cast(pl.Int64).gather(at).alias("code")
    return kernels.with_columns(
        code,
        known.gather(code).alias("category"),
        table["context"].gather(at),
        table["stream"].gather(at),
    ).with_columns(pl.struct("process", "device", "context", "stream").hash().alias("stream_id"))


def line_for(trace: Trace, name: str) -> str:
    """Return the line of code that would mark this part of the program."""
    form = trace.meta.source.partition("-")[0]
    return "add " + _LINES.get(form, _LINES["nsys"]).format(name)


def inside_passes(trace: Trace, looked: StepWindow) -> bool:
    """Return whether the detected steps are parts of forward passes, such as layers."""
    if not looked.steps or not trace.has("ranges"):
        return False
    named = outermost(named_ranges(trace, forward_rank))
    steps = frame_of(looked.steps)
    if named.is_empty():
        return False
    around = hold(named, steps, "start_ns")
    after = steps["start_ns"] > named["start_ns"].gather(around)
    shorter = after & (steps["end_ns"] <= named["end_ns"].gather(around))
    return 2 * int(shorter.sum()) > steps.height


def passes_of(
    trace: Trace,
    selection: Selection,
    looked: StepWindow,
    work: pl.DataFrame,
    process: int | None,
    *,
    warmup: bool,
) -> ForwardPasses | NotApplicable:
    """Find the forward passes of a process in the window; `warmup` includes those of warm-up."""
    if trace.has("ranges"):
        named = named_ranges(trace, forward_rank)
        by = pl.col("process")
        if process is not None and (named["process"] == process).any():
            named = named.filter(by == process)
        else:
            chosen = ResolvedSelection(trace, selection).host("ranges", ["process"])["process"]
            named = named.filter(by.is_in(chosen.unique().implode()) | by.is_null())
        if named.height:
            return _by_ranges(trace, looked, work, named, warmup=warmup)
    if work.filter(pl.col("phase") == "forward", "inside").height:
        return _by_phases(work)
    return _by_steps(trace, selection, looked, work)


# By ranges ----------------------------------------------------------------------------------------


def _by_ranges(
    trace: Trace, looked: StepWindow, work: pl.DataFrame, named: pl.DataFrame, *, warmup: bool
) -> ForwardPasses | NotApplicable:
    chosen, other_notes = _one_family(named)
    kept = chosen.filter(in_window(trace, looked, chosen, "start_ns", warmup=warmup))
    if kept.is_empty():
        reason = f"all {chosen.height:,} forward passes are warm-up or outside the window"
        return NotApplicable("passes", reason, "include all: --steps all --warmup")
    name = kept["name"][0]
    notes = [*other_notes]
    if kept.height < chosen.height:
        counts = f"{chosen.height - kept.height:,} of {chosen.height:,}"
        notes.append(f"{counts} forward passes excluded: warm-up, or outside the window")
    notes += ResolvedSelection(trace, Selection(within=name)).notes
    return ForwardPasses(
        kept.select("name", "start_ns", "end_ns"),
        hold(kept, work, "launch_ns"),
        f"ranges named {name!r}",
        tuple(notes),
    )


def _one_family(named: pl.DataFrame) -> tuple[pl.DataFrame, tuple[str, ...]]:
    """Keep the surest name, of several the one with most time; note what is left out."""
    surest = named.filter(pl.col("read") == pl.col("read").min())
    families = {name: family(name) for name in surest["name"].unique()}
    outer = outermost(surest).with_columns(pl.col("name").replace_strict(families).alias("family"))
    most = (
        outer.with_columns(DURATION)
        .group_by("family", maintain_order=True)
        .agg(pl.col("duration_ns").sum(), pl.col("name").first())
        .sort("duration_ns", descending=True, maintain_order=True)
    )
    others = ", ".join(repr(name) for name in most["name"][1:4])
    notes = (f"other ranges may be forward passes too and are not counted: {others}",)
    return outer.filter(pl.col("family") == most["family"][0]), notes if others else ()


def in_window(
    trace: Trace, looked: StepWindow, rows: pl.DataFrame, when: str, *, warmup: bool
) -> pl.Series:
    """Return which rows lie in the window, outside steps left out and, unless `warmup`, warm-up."""
    inside = rows[when].is_between(looked.start_ns, looked.end_ns, closed="left")
    spans = [frame_of(looked.left_out)]
    if not warmup and trace.has("ranges"):
        spans.append(named_ranges(trace, lambda name: name if re.search(WARM_UP, name) else None))
    for excluded in spans:
        if excluded.height:
            inside &= hold(outermost(excluded), rows, when).is_null()
    return inside


# Without ranges -----------------------------------------------------------------------------------


def _by_phases(work: pl.DataFrame) -> ForwardPasses:
    """Take what phases call forward: a pass is what runs from one backward pass to the next.

    Steps that were detected by repeating kernels may begin in the middle of a pass.
    """
    forward = pl.col("phase") == "forward"
    turns = pl.when(pl.col("phase").is_in(["forward", *_TRAINING])).then(forward).forward_fill()
    begins = turns & ~turns.shift(1).fill_null(value=False)
    runs = work.select(pl.when(forward).then(begins.cum_sum()).alias("run"), "inside")
    # A pass is a run that is mostly in the window; short runs belong to the one before.
    sizes = (
        runs.filter(pl.col("run").is_not_null())
        .group_by("run")
        .agg(pl.len().alias("size"), pl.col("inside").mean())
        .sort("run")
        .with_columns((pl.col("size") >= _MIN_RUN * pl.col("size").max()).alias("whole"))
        .with_columns(pl.col("whole").cum_sum().alias("pass"))
    )
    passes = sizes.filter(((pl.col("inside") > _MIN_INSIDE) & pl.col("whole")).any().over("pass"))
    numbers = passes.select("run", pl.col("pass").rank("dense").cast(pl.Int64) - 1)
    members = runs["run"].replace_strict(
        dict(numbers.iter_rows()), default=None, return_dtype=pl.Int64
    )
    launches = (
        work.select("launch_ns", members.alias("pass"))
        .filter(pl.col("pass").is_not_null())
        .group_by("pass")
        .agg(pl.col("launch_ns").min().alias("start_ns"), pl.col("launch_ns").max().alias("end_ns"))
        .sort("pass")
        .select(pl.lit("forward").alias("name"), "start_ns", "end_ns")
    )
    return ForwardPasses(launches, members, "forward by autograd and ranges", (_LAUNCHES,))


def _by_steps(
    trace: Trace, selection: Selection, looked: StepWindow, work: pl.DataFrame
) -> ForwardPasses | NotApplicable:
    """Take whole steps, or each range of the selection, if they have only a forward pass."""
    by_range = selection.within is not None and not looked.steps
    kernels = described(trace, work.filter("inside"))
    reason = _no_passes(trace, kernels, bounded=by_range or bool(looked.steps))
    if reason is not None:
        hint = f"{line_for(trace, 'forward')}; or name the range that is one: --in RANGE"
        return NotApplicable("passes", reason, hint)
    if by_range:
        spans = ResolvedSelection(trace, selection).spans
        name = str(selection.within)
        return ForwardPasses(
            spans.select(pl.lit(name).alias("name"), "start_ns", "end_ns"),
            hold(spans.with_columns(pl.lit(None, pl.Int64).alias("thread")), work, "launch_ns"),
            f"ranges named {name!r}, as selected",
            ("each selected range counts as one forward pass",),
        )
    steps = frame_of(looked.steps)
    return ForwardPasses(
        steps.select("name", "start_ns", "end_ns"),
        work["step"],
        f"whole steps (steps are {looked.how})",
        (_WHOLE_STEPS,),
    )


def _no_passes(trace: Trace, kernels: pl.DataFrame, *, bounded: bool) -> str | None:
    """Return why steps are not forward passes; None where they are."""
    unnamed = "no range is named like a forward pass"
    if kernels.is_empty():
        return unnamed
    if not set(kernels["category"].unique()) & _NETWORK:
        return f"{unnamed}, and no kernel is typical of a neural network"
    names = names_of(trace.table("kernels", ["name"])["name"])
    if (
        kernels["phase"].is_in(_TRAINING).any()
        or (kernels["category"] == "optimizer").any()
        or any(_BACKWARD_KERNEL.search(names[code]) for code in kernels["code"].unique())
    ):
        return f"{unnamed}, and the capture trains: its forward part cannot be separated"
    if not bounded:
        return f"{unnamed}, and the start and end of a pass are unknown"
    return None
