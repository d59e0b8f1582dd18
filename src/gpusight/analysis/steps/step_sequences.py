"""Steps by repetition: of GPU work and waits in order of their calls, of operators or calls."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from gpusight.analysis.aggregates import names_of
from gpusight.analysis.gpu_schedule import CallKind, kind_of
from gpusight.analysis.launch_index import of_process, tables_with_rows
from gpusight.analysis.selection import GPU_WORK
from gpusight.analysis.steps.step_choice import choose_period, most_repeated
from gpusight.analysis.steps.step_list import UNNAMED, InnerLoop, StepEvidence, TraceSteps
from gpusight.analysis.steps.step_periods import Activities
from gpusight.naming.kernel_names import classify
from gpusight.trace.intervals import Intervals, coverage, union
from gpusight.units import format_count

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from gpusight.analysis.steps.step_periods import Period
    from gpusight.trace.intervals import Ints
    from gpusight.trace.trace import Trace

    Mask = NDArray[np.bool_]


_SHAPE = ["grid_x", "grid_y", "grid_z", "block_x", "block_y", "block_z"]
_CODINGS = ("exact", "name", "family", "category")
"""What makes two activities the same, the strictest first. Shapes change from batch to batch, and
compiled kernels get other numbers, tiles or names."""
_KERNELS, _GRAPHS = GPU_WORK.index("kernels"), GPU_WORK.index("graph_launches")
_WAITS = len(GPU_WORK)
_BACKWARD = re.compile(r"(?i)backward|_bwd|bwd_|[dw]grad|_grad")
_LOADS = re.compile(r"(?:cu|cuda|hip)(?:Module|Library)Load|cuLink|(?:nv|hip)rtcCompile")
_VAGUE = ["custom", "generated", "loop", "other", "stencil", ""]
_HEAVY = {"matmul", "convolution", "attention"}
_MIN_KINDS = 3
"""Kinds of kernels that a step must have where names without numbers or categories count."""
_MIN_REPETITIONS = 3
"""Repetitions of a loop seen by names from which on no vaguer coding is tried."""
_MIN_ACTIVITIES = 3
_MIN_SHORT_NS = 100_000
"""Activities of a step; how long one with fewer must take on the host or the GPU."""
_MIN_ITERATIONS = 100
"""Iterations of a loop that is a whole program, of a kernel and a wait for it."""
_MIN_OVERLAP = 0.5
"""Part of a period that runs at the same time as the next one; part of the periods that do."""
_MIN_COVERAGE = 0.8
"""Coverage that the steps of one thread must have, and of that by names a vaguer coding."""
_MAJORITY = 0.5
"""Part of steps in an inner loop whose number of repetitions explains how steps differ."""
_FULL_COVERAGE = 0.95
"""Coverage at which nothing is left to explain, and no vaguer coding is tried."""
_GAIN = 0.2
"""Coverage that a vaguer coding must gain."""
_SAME_NAMES = 0.95
"""Part of the activities of a period whose names the one before has as well."""
_BATCH_BYTES = 1024
"""Copies below this are scalars and flags rather than a batch."""
_MAX_PAUSE = 0.1
"""Part of the last step after which a wait is no longer part of it."""
_MAX_NAMES = 20_000
"""Names of kernels that are classified; a program with more makes up new ones as it runs."""
_RESETS = re.compile(
    r"(?i)fill(?!_?tensormap)|zero_|memset|arange|iota|(?<![a-z])init(?:ial|_|<|\()"
)
"""Names of kernels that set data up; those of random numbers have a category."""
_REGION = r"_F\d*L\d+_\d+$|_l?\d+_gpu(?:__red)?$|\$ck_L\d+_\d+$|^__omp_offloading_.*_l\d+"
"""Names of OpenACC and OpenMP kernels: their numbers are lines, which distinguish loops."""
_KERNEL_FLAGS = ("updates", "backward", "heavy", "attends", "resets")
_FLAGS = (*_KERNEL_FLAGS, "feeds", "reads", "with_host")
_SCHEMA = {
    "launch_ns": pl.Int64(),
    "start_ns": pl.Int64(),
    "end_ns": pl.Int64(),
    "stream": pl.Int64(),
    "took_ns": pl.Int64(),
    "thread": pl.Int64(),
    "table": pl.Int8(),
    **dict.fromkeys(_CODINGS, pl.UInt64()),
    **dict.fromkeys(_FLAGS, pl.Boolean()),
}


def periodic_steps(
    trace: Trace, work: pl.DataFrame, *, any_loop: bool = False
) -> TraceSteps | None:
    """Find steps by the order in which a process launches work and waits for it.

    `work` is what `launched` gives of that process and, where it uses several, one GPU. With
    `any_loop` what repeats most is returned, even if it is a part of a step.
    """
    if work.height < 2:
        return None
    launches = _launches(trace, work)
    if launches.height < 2:
        return None
    loads = _loads(trace, launches, work["process"][0])
    pauses = _pauses(trace, launches)
    strict = [_activities(launches, coding, pauses, loads) for coding in _CODINGS[:2]]
    if any_loop:
        loop = most_repeated(strict[1])
        return None if loop is None else _steps(launches, loop, work["process"][0])
    if int(strict[0].codes.max()) == int(strict[1].codes.max()):
        strict = strict[1:]  # both distinguish the same kernels
    step = choose_period(strict, strict[-1])
    for coding in _CODINGS[2:]:
        if step is not None and _is_certain(step):
            break
        sequence = _activities(launches, coding, pauses, loads)
        vague = choose_period([sequence], strict[-1], min_kinds=_MIN_KINDS)
        if vague is not None and (step is None or _is_better(vague, step, strict[-1])):
            step = vague
    step = step or _of_one_thread(launches, pauses, loads)
    if step is None or _is_too_small(launches, step) or _is_concurrent(launches, step):
        return None
    return _steps(launches, step, work["process"][0])


def _of_one_thread(launches: pl.DataFrame, pauses: Ints, loads: Ints) -> Period | None:
    """Find steps of several threads that launch at the same time, by what one of them launches.

    Chance decides the order of their launches, but not that of each thread.
    """
    works = launches["table"].to_numpy() != _WAITS
    thread = launches["thread"].fill_null(-1).to_numpy()
    threads, count = np.unique(thread[works], return_counts=True)
    if len(threads) < 2:
        return None
    rows = np.flatnonzero(thread == threads[int(np.argmax(count))])
    period = choose_period([_activities(launches[rows], _CODINGS[1], pauses[rows], loads[rows])])
    if period is None or period.coverage < _MIN_COVERAGE:
        return None
    starts = rows[period.starts]
    # What other threads launch after the wait of a step belongs to the next one.
    waits = np.flatnonzero(~works)
    before = np.append(-1, waits)[np.searchsorted(waits, starts)] + 1
    starts = np.where(np.append(0, starts[:-1]) < before, before, starts)
    usual = int(np.median(np.diff(starts)))
    last = max(int(rows[period.ends[-1] - 1]) + 1, min(int(starts[-1]) + usual, launches.height))
    return replace(
        period, starts=starts, ends=np.append(starts[1:], last), next_start=last, inner=None
    )


def _is_certain(step: Period) -> bool:
    """Return whether no vaguer coding need be tried, by which more of the program are steps."""
    enough = len(step.starts) >= _MIN_REPETITIONS and step.coverage >= _FULL_COVERAGE
    return step.same_counts and enough


def _is_too_small(launches: pl.DataFrame, step: Period) -> bool:
    """Return whether a loop of one or two short kernels is all there is: no step to look into.

    One that waits for them in each iteration is a step, if nearly all of the program is this loop.
    """
    table = launches["table"].to_numpy()
    waits = np.add.reduceat(table == _WAITS, step.starts) > 0
    if len(waits) >= _MIN_ITERATIONS and min(waits.mean(), step.coverage) >= _FULL_COVERAGE:
        return False
    # A graph is many activities.
    works = np.where(table == _GRAPHS, _MIN_ACTIVITIES, table != _WAITS)
    each = np.median(np.add.reduceat(works, step.starts))
    first, after = int(step.starts[0]), int(step.ends[-1])
    done = int(launches["end_ns"][first:after].max())  # type: ignore[arg-type]
    length_ns = (done - int(launches["launch_ns"][first])) / len(step.starts)
    return bool(each < _MIN_ACTIVITIES and length_ns < _MIN_SHORT_NS)


def _is_concurrent(launches: pl.DataFrame, step: Period) -> bool:
    """Return whether periods are work that runs at the same time, each on streams of its own.

    Steps come one after the other, or take turns on streams.
    """
    number = np.searchsorted(step.starts, np.arange(launches.height), side="right") - 1
    own = launches.with_columns(pl.Series("period", number)).filter(
        pl.col("period") >= 0, pl.col("table") != _WAITS
    )
    streams = own.drop_nulls("stream").unique(["stream", "period"])
    if streams.is_empty() or streams["stream"].n_unique() < streams.height:
        return False
    spans = own.group_by("period").agg(pl.col("start_ns").min(), pl.col("end_ns").max())
    start, end = (spans.sort("period")[c].to_numpy() for c in ("start_ns", "end_ns"))
    both = np.minimum(end[1:], end[:-1]) - np.maximum(start[1:], start[:-1])
    shorter = np.minimum(*((end - start)[part] for part in (np.s_[1:], np.s_[:-1])))
    return bool(np.mean(both >= _MIN_OVERLAP * shorter) >= _MIN_OVERLAP)


def _is_better(vague: Period, step: Period, by_name: Activities) -> bool:
    """Return whether a loop seen by a vaguer coding explains more than one seen by names.

    Names differ from step to step where kernels depend on the size of a batch.
    """
    if not vague.same_counts:
        return False
    count = len(vague.starts)
    if len(step.starts) < _MIN_REPETITIONS and step.same_counts:
        # Sizes that come in turn: both repetitions hold the same steps, each under other names.
        return count > len(step.starts) and vague.coverage >= _MIN_COVERAGE * step.coverage
    same_length = step.length <= 2 * vague.length <= 3 * step.length
    if vague.coverage >= step.coverage + _GAIN and same_length:
        return True
    if vague.coverage >= _FULL_COVERAGE > step.coverage and vague.length == step.length:
        return count > len(step.starts)
    around = vague.length >= _MIN_REPETITIONS * step.length and count >= _MIN_REPETITIONS
    if around and min(vague.coverage, _FULL_COVERAGE) > step.coverage:
        # An inner loop may have the same names in all steps, whatever their other kernels are.
        return not _same_names(vague, by_name)
    # A number of inner loops that varies is a reason for steps that differ.
    explained = step.inner is not None and step.inner.coverage >= _MAJORITY * step.coverage
    return not step.same_counts and not explained and vague.coverage >= step.coverage


def _same_names(period: Period, by_name: Activities) -> bool:
    """Return whether most periods hold the kernels of the one before: names show this loop too."""
    recur = [
        float(np.isin(by_name.codes[b:c], by_name.codes[a:b]).mean())
        for a, b, c in zip(period.starts, period.starts[1:], period.ends[1:], strict=False)
    ]
    return float(np.median(recur)) >= _SAME_NAMES


def _launches(trace: Trace, work: pl.DataFrame) -> pl.DataFrame:
    """List launches and waits in order, with what each is under every coding."""
    parts = [pl.DataFrame(schema=_SCHEMA), _waits(trace, work)]
    for number, table in enumerate(GPU_WORK):
        if table in tables_with_rows(trace, GPU_WORK):
            own = work.filter(pl.col("table") == number)
            own = own.with_columns(
                (pl.col("end_ns") - pl.col("start_ns")).alias("took_ns"),
                trace.table(table, ["stream"])["stream"][own["row"]],
            )
            what = _what(trace, table, own["row"])
            parts.append(pl.concat([own, what], how="horizontal").filter("counts").select(*_SCHEMA))
    return _as_graphs(pl.concat(parts).sort("launch_ns", maintain_order=True))


def _as_graphs(launches: pl.DataFrame) -> pl.DataFrame:
    """Make one launch of the work that one call launches: the nodes of a graph."""
    times, thread = (launches[c].fill_null(-1).to_numpy() for c in ("launch_ns", "thread"))
    works = (launches["table"].to_numpy() != _WAITS) & (thread >= 0)
    new = np.append(True, (np.diff(times) != 0) | (np.diff(thread) != 0) | ~works[1:])
    if new.all():
        return launches
    call = pl.Series("call", np.cumsum(new))
    first = [c for c in launches.columns if c not in {"end_ns", "took_ns", "table", *_CODINGS}]
    return (
        launches.with_columns(call)
        .group_by("call", maintain_order=True)
        .agg(
            pl.col(first).first(),
            pl.col("end_ns").max(),
            pl.col("took_ns").sum(),
            pl.when(pl.len() > 1)
            .then(pl.lit(_GRAPHS))
            .otherwise(pl.col("table").first())
            .alias("table"),
            pl.col(_CODINGS).sum(),
        )
        .with_columns(pl.col("table").cast(pl.Int8))
        .select(*_SCHEMA)
    )


def _what(trace: Trace, table: str, rows: pl.Series) -> pl.DataFrame:
    """Return the keys and flags of rows of a table of GPU work."""
    number = GPU_WORK.index(table)
    no = pl.lit(value=False)
    flags = {**dict.fromkeys(_FLAGS, no), "counts": pl.lit(value=True)}
    if table == "kernels":
        frame = trace.table(table, ["name", *_SHAPE])[rows].with_columns(
            pl.col("name").to_physical().alias("code")
        )
        names = _names(trace.table(table, ["name"])["name"])
        frame = frame.select("code", *_SHAPE).join(
            names, on="code", how="left", maintain_order="left"
        )
        keys = [["code", *_SHAPE], ["code"], ["family"], ["category"]]
        flags |= {flag: pl.col(flag) for flag in _KERNEL_FLAGS}
    elif table == "copies":
        frame = trace.table(table, ["kind", "bytes"])[rows]
        kind = pl.col("kind").cast(pl.String)
        keys = [["kind", "bytes"], ["kind"], ["kind"], ["kind"]]
        flags["resets"] = kind == "Host-to-Device"
        flags["feeds"] = flags["resets"] & (pl.col("bytes") >= _BATCH_BYTES)
        flags["reads"] = (kind == "Device-to-Host").fill_null(value=False)
        flags["with_host"] = kind.str.contains("Host").fill_null(value=False)
        # The driver moves pages when they are touched: that is not a loop of the program.
        flags["counts"] = ~kind.str.starts_with("Unified").fill_null(value=False)
    else:
        column = "graph" if table == "graph_launches" else "device"
        frame = trace.table(table, [column])[rows]
        keys = [[column], [column], [column], []]
        flags["resets"] = pl.lit(value=table == "memsets")
    hashes = [
        pl.struct(columns).hash(seed=number).alias(coding)
        if columns
        else pl.lit(number, pl.UInt64).alias(coding)
        for coding, columns in zip(_CODINGS, keys, strict=True)
    ]
    return frame.select(*hashes, *(expression.alias(name) for name, expression in flags.items()))


def _names(names: pl.Series) -> pl.DataFrame:
    """Classify the names of kernels, by their code."""
    distinct = names_of(names)
    used = names.to_physical().unique().sort()
    known = [distinct[code] for code in used]
    kinds = [classify(name).category if n < _MAX_NAMES else "" for n, name in enumerate(known)]
    kind = pl.Series("kind", kinds, pl.String)
    name = pl.Series("family", known, pl.String)
    family = name.str.replace_all(r"\d+", "#").zip_with(~name.str.contains(_REGION), name)
    return pl.DataFrame(
        {
            "code": used,
            "family": family,
            # A category that is vague is no reason to take two kernels for the same.
            "category": pl.select(
                pl.when(kind.is_in(_VAGUE)).then(family).otherwise(kind)
            ).to_series(),
            "updates": pl.Series([kind == "optimizer" for kind in kinds], dtype=pl.Boolean),
            "heavy": pl.Series([kind in _HEAVY for kind in kinds], dtype=pl.Boolean),
            "attends": pl.Series([kind == "attention" for kind in kinds], dtype=pl.Boolean),
            "backward": pl.Series(
                [bool(_BACKWARD.search(name)) for name in known], dtype=pl.Boolean
            ),
            "resets": pl.Series(
                [
                    kind == "random" or bool(_RESETS.search(name))
                    for kind, name in zip(kinds, known, strict=True)
                ],
                dtype=pl.Boolean,
            ),
        }
    )


def _waits(trace: Trace, work: pl.DataFrame) -> pl.DataFrame:
    """List the calls that wait for the GPU, of threads that also launch work.

    Others poll: such as the watchdog of a communication library.
    """
    calls = trace.table("api_calls", ["start_ns", "end_ns", "thread", "process", "name"])
    waits = [n for n, name in enumerate(names_of(calls["name"])) if kind_of(name) is CallKind.SYNC]
    own = calls.filter(
        pl.col("name").to_physical().is_in(waits),
        pl.col("process").is_in(work["process"].unique().implode()),
        pl.col("thread").is_in(work["thread"].unique().implode()),
    )
    key = pl.col("name").to_physical().cast(pl.UInt64)
    return own.select(
        pl.col("start_ns").alias("launch_ns"),
        "start_ns",
        "end_ns",
        pl.lit(None, pl.Int64).alias("stream"),
        pl.lit(0, pl.Int64).alias("took_ns"),
        "thread",
        pl.lit(_WAITS, pl.Int8).alias("table"),
        *(key.alias(coding) for coding in _CODINGS),
        *(pl.lit(flag == "reads").alias(flag) for flag in _FLAGS),
    )


def _loads(trace: Trace, launches: pl.DataFrame, process: int | None) -> Ints:
    """Count the calls that load or link code, from each launch or wait to the next."""
    calls = trace.table("api_calls", ["start_ns", "name", "process"])
    codes = [n for n, name in enumerate(names_of(calls["name"])) if _LOADS.match(name)]
    own = of_process(calls.filter(pl.col("name").to_physical().is_in(codes)), process)
    before = np.searchsorted(own["start_ns"].sort().to_numpy(), launches["launch_ns"].to_numpy())
    return np.diff(before, prepend=0).astype(np.int64)


def _pauses(trace: Trace, launches: pl.DataFrame) -> Ints:
    """Return the time before each launch that the launching threads spend in no call or operator.

    The length of a call is no pause of the program: it waits where the GPU's queue is full.
    """
    times = launches["launch_ns"].to_numpy()
    before = np.append(times[:1], times[:-1])
    threads = launches["thread"].unique().implode()
    inside = Intervals.empty()
    for table in ("api_calls", "cpu_ops"):
        calls = trace.table(table, ["start_ns", "end_ns", "thread"])
        own = calls.filter(pl.col("thread").is_in(threads))
        spans = Intervals.from_arrays(own["start_ns"].to_numpy(), own["end_ns"].to_numpy())
        inside = union(inside, spans)
    pauses: Ints = times - before - coverage(inside, before, times)
    return pauses


def _activities(launches: pl.DataFrame, coding: str, pauses: Ints, loads: Ints) -> Activities:
    times = launches["launch_ns"].to_numpy()
    table = launches["table"].to_numpy()
    flags = {flag: launches[flag].to_numpy() for flag in _FLAGS}
    with_host = flags.pop("with_host")
    return Activities(
        codes=_numbered(launches[coding]),
        pauses=pauses,
        opens=table != _WAITS,
        computes=(table == _KERNELS) | (table == _GRAPHS),
        marks=(table == _WAITS) | (table == _GRAPHS) | with_host | flags["updates"],
        took=launches["took_ns"].to_numpy(),
        times=times,
        threads=_numbered(launches["thread"].fill_null(-1)),
        loads=loads,
        **flags,
    )


def _numbered(keys: pl.Series) -> Ints:
    """Number distinct keys, from 0."""
    return keys.rank("dense").to_numpy().astype(np.int64) - 1


def _steps(launches: pl.DataFrame, period: Period, process: int | None) -> TraceSteps:
    starts = period.starts
    frame = launches[starts].select(
        pl.lit(UNNAMED).alias("name"),
        pl.int_range(pl.len()).alias("number"),
        pl.col("launch_ns").alias("start_ns"),
        pl.Series("end_ns", _ends(launches, period)),
        pl.lit(process, pl.Int64).alias("process"),
        "thread",
    )
    before = np.append(0, np.cumsum(launches["table"].to_numpy() != _WAITS))
    inner_loop = _inner_loop(launches, period, before)
    table = launches["table"].to_numpy()[int(starts[0]) : int(period.ends[-1])]
    if np.isin(table, (_GRAPHS, _WAITS)).all():
        how = "launches of CUDA graphs, which repeat"
        return replace(TraceSteps.of(frame, how, StepEvidence.GRAPHS), inner_loop=inner_loop)
    each = before[period.ends] - before[starts]
    usual = round(float(np.median(each)))
    what = "one kernel" if usual == 1 else f"the same {format_count(usual)} GPU activities"
    if not period.same_counts:
        low, high = (format_count(int(v)) for v in (each.min(), each.max()))
        what = f"the same kinds of GPU activities ({low} to {high} of them)"
    steps = TraceSteps.of(frame, f"{what}, launched repeatedly", StepEvidence.PERIODIC)
    return replace(steps, inner_loop=inner_loop)


def _inner_loop(launches: pl.DataFrame, period: Period, before: Ints) -> InnerLoop | None:
    """Measure the loop inside each step; `before` counts the GPU activities before each launch."""
    inner = period.inner
    if inner is None:
        return None
    first, after = (np.searchsorted(inner.starts, bound) for bound in (period.starts, period.ends))
    count = round(float(np.median(after - first)))
    if count < 2:
        return None
    used = np.append(0, np.cumsum(launches["took_ns"].to_numpy()))
    return InnerLoop(
        count,
        gpu_ops=round(float(np.median(before[inner.ends] - before[inner.starts]))),
        gpu_ns=float(np.median(used[inner.ends] - used[inner.starts])),
    )


def _ends(launches: pl.DataFrame, period: Period) -> Ints:
    """Return when periods end: where the next or a tail starts, the last with what it launched."""
    times = launches["launch_ns"].to_numpy()
    first, after = int(period.starts[-1]), int(period.ends[-1])
    works = launches["table"] != _WAITS
    done = int(launches["end_ns"][first:after].filter(works[first:after]).max())  # type: ignore[arg-type]
    # A wait long after the last result is what the program does next.
    latest = done + _MAX_PAUSE * (done - int(times[first]))
    own = [i for i in range(first, after) if works[i] or times[i] <= latest]
    done = int(launches["end_ns"][own].max())  # type: ignore[arg-type]
    if after < len(times):
        done = min(done, int(times[after]))
    last = max(done, int(times[own[-1]]) + 1)
    return np.append(times[period.ends[:-1]], last)


# Without GPU work ---------------------------------------------------------------------------------

_OPTIMIZER = re.compile(r"Optimizer\.|(?i:adam|sgd)")
_LINEAR = re.compile(r"(?i)linear|mm\b|matmul|conv|attention")


def operator_steps(trace: Trace) -> TraceSteps | None:
    """Find steps by the order of operators, or of API calls, of the thread that runs most of them.

    For captures without GPU work: of a CPU, or of a driver that recorded none.
    """
    for table in ("cpu_ops", "api_calls"):
        if trace.has(table):
            steps = _host_steps(trace, table)
            if steps is not None:
                return steps
    return None


def _host_steps(trace: Trace, table: str) -> TraceSteps | None:
    calls = trace.table(table, ["start_ns", "end_ns", "name", "process", "thread"])
    by = ["process", "thread"]
    threads = (
        calls.group_by(by, maintain_order=True)
        .len()
        .sort("len", descending=True, maintain_order=True)
    )
    calls = calls.join(threads.head(1), on=by, how="semi", nulls_equal=True, maintain_order="left")
    # Of operators inside others, the outer ones.
    open_until = pl.col("end_ns").cum_max().shift(1).fill_null(-1)
    calls = calls.sort("start_ns", maintain_order=True).filter(pl.col("end_ns") > open_until)
    if calls.height < 2:
        return None
    names = names_of(calls["name"])
    code = calls["name"].to_physical().to_numpy()
    before = np.append(calls["start_ns"][0], calls["end_ns"].to_numpy()[:-1])
    no = np.zeros(calls.height, np.bool_)

    def fits(pattern: re.Pattern[str]) -> Mask:
        matching = np.array([bool(pattern.search(name)) for name in names], np.bool_)
        of_calls: Mask = matching[code]
        return of_calls

    sequence = Activities(
        codes=_numbered(calls["name"].to_physical()),
        pauses=np.maximum(calls["start_ns"].to_numpy() - before, 0),
        opens=~no, computes=~no, marks=no, feeds=no, reads=no, resets=no, attends=no,
        updates=fits(_OPTIMIZER), backward=fits(_BACKWARD), heavy=fits(_LINEAR),
        took=(calls["end_ns"] - calls["start_ns"]).to_numpy(),
        times=calls["start_ns"].to_numpy(),
        threads=np.zeros(calls.height, np.int64),
        loads=np.zeros(calls.height, np.int64),
    )  # fmt: skip
    if table == "api_calls":
        kinds = np.array([kind_of(name) for name in names])[code]
        launches = np.isin(kinds, (CallKind.LAUNCH, CallKind.GRAPH))
        waits = np.isin(kinds, (CallKind.SYNC, CallKind.COPY))
        sequence = replace(sequence, computes=launches, marks=waits)
    period = choose_period([sequence])
    if period is None:
        return None
    ends = calls["end_ns"].to_numpy()[period.ends - 1]
    frame = calls[period.starts].select(
        pl.lit(UNNAMED).alias("name"),
        pl.int_range(pl.len()).alias("number"),
        "start_ns",
        pl.Series("end_ns", ends),
        "process",
        "thread",
    )
    what = "operators" if table == "cpu_ops" else "API calls"
    how = f"the same {format_count(period.length)} {what}, called repeatedly"
    return TraceSteps.of(frame, how, StepEvidence.PERIODIC)
