"""The phases of a program: its start, and those of a step that GPU activities belong to."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from gpusight.analysis.aggregates import names_of
from gpusight.analysis.attribution.nested_intervals import NONE, NestedIntervals
from gpusight.analysis.attribution.work_causes import main_threads
from gpusight.analysis.launch_index import by_row, launched
from gpusight.analysis.selection import GPU_WORK
from gpusight.analysis.steps.step_list import PHASES, closed_ranges, phase_of
from gpusight.naming.host_names import is_compiling
from gpusight.naming.kernel_names import classify
from gpusight.results import NotApplicable
from gpusight.trace.intervals import Intervals, coverage, union

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from gpusight.analysis.gpu_schedule import GpuSchedule
    from gpusight.trace.intervals import Ints
    from gpusight.trace.trace import Trace

    Codes = NDArray[np.int8]


PHASE = pl.Enum(PHASES)
UNKNOWN = "unknown"
NO_PHASES = NotApplicable(
    "phases",
    "no evidence of the phase of GPU work",
    "put forward, backward and optimizer in ranges of these names",
)
_CODES = {phase: code for code, phase in enumerate(PHASES)}
_FORWARD, _BACKWARD, _OPTIMIZER, _DATA, _, _OTHER = range(len(PHASES))
_COPIES = GPU_WORK.index("copies")
_PHASE_OPS = re.compile(r"autograd::engine::|Optimizer\.|enumerate\(DataLoader\)|\w+Backward\d*$")
_ANY_NAME = re.compile("")
_ZEROES = r"(?i)zero[ _]?grad"
_NUMBERED = r", (?:seq|op_id) = \d.*$|[\s_#:-]+\d+$"
_PLACE = {column: pl.Int64() for column in ("start_ns", "end_ns", "thread", "process")}
_SPAN = {**_PLACE, "turn": pl.Boolean()}


def phases(trace: Trace, schedule: GpuSchedule) -> pl.Series:
    """Return the phase of each GPU activity of a schedule; null where it is not known."""
    phase = np.full(len(schedule.ops), NONE, np.int64)
    for table, codes in enumerate(phases_of(trace)):
        at = np.flatnonzero(schedule.ops.kind == table)
        phase[at] = codes[schedule.ops.row[at]]
    return as_phases(phase)


def as_phases(codes: Codes | Ints) -> pl.Series:
    """Return positions in `PHASES` as a column, null where they are below 0."""
    column = pl.Series("phase", codes, pl.Int64)
    return pl.Series("phase", PHASES, PHASE).gather(column.set(column < 0, None))


def phases_of(trace: Trace) -> tuple[Codes, ...]:
    """Return the phase of every row of the tables of GPU work, as positions in `PHASES`."""
    frame = trace.derive("phases-7", lambda: _phases_of(trace))
    codes, table = frame["phase"].to_numpy(), frame["table"].to_numpy()
    return tuple(codes[table == number] for number in range(len(GPU_WORK)))


def phases_of_work(trace: Trace, work: pl.DataFrame) -> pl.Series:
    """Return the phase of rows of `launched`, `unknown` where it is not known."""
    phase = np.empty(work.height, np.int64)
    table, row = work["table"].to_numpy(), work["row"].to_numpy()
    for number, codes in enumerate(phases_of(trace)):
        phase[table == number] = codes[row[table == number]]
    return as_phases(phase).cast(pl.String).fill_null(UNKNOWN)


def _phases_of(trace: Trace) -> pl.DataFrame:
    """Find the phase of all work, one table after the other in their order."""
    work = by_row(launched(trace))
    named = _named(trace)
    own = named.at(work, work["thread"], "thread")
    beside = _main_thread_phase(trace, named, work)
    ways = [_by_kernel(trace, work, "communication"), own, beside]
    ways.append(_by_kernel(trace, work, "optimizer"))
    if trace.has("cpu_ops") and (named.codes == _BACKWARD).any():
        ways.append(_numbered(trace).at(work, work["thread"], "thread"))
        ways.append(_before_backward(named, work))
    phase = np.full(work.height, NONE, np.int8)
    for way in ways:
        phase = np.where(phase >= 0, phase, way)
    if ((own >= 0) | (beside >= 0)).any():
        phase[phase < 0] = _OTHER
    frame = work.select("table", "thread").with_columns(pl.Series("phase", phase, pl.Int8))
    return frame.select("table", _of_autograd(pl.col("phase")).alias("phase"))


def _of_autograd(phase: pl.Expr) -> pl.Expr:
    """Count as backward whatever autograd's threads launch, such as a recomputed forward pass.

    They launch more backward than forward work, and less forward work than some other thread.
    """
    forward, backward = ((phase == part).sum().over("thread") for part in (_FORWARD, _BACKWARD))
    autograd = (backward > forward) & (forward < forward.max())
    return pl.when(autograd & (phase == _FORWARD)).then(pl.lit(_BACKWARD, pl.Int8)).otherwise(phase)


def _by_kernel(trace: Trace, work: pl.DataFrame, phase: str) -> Codes:
    """Return this phase for kernels of the category of the same name."""
    codes = np.full(work.height, NONE, np.int8)
    if trace.has("kernels"):
        names = trace.table("kernels", ["name"])["name"]
        fits = np.array([classify(name).category == phase for name in names_of(names)], np.bool_)
        at = np.flatnonzero(work["table"].to_numpy() == 0)
        codes[at[fits[names.to_physical().to_numpy()]]] = _CODES[phase]
    return codes


# Ranges that mean phases -----------------------------------------------------------------------


@dataclass(frozen=True)
class _Spans:
    """Spans of time on threads, each of one phase."""

    frame: pl.DataFrame
    """`start_ns`, `end_ns`, `thread`, `process`; `turn` where what follows is another phase."""
    codes: Codes

    def keep(self, mask: NDArray[np.bool_]) -> _Spans:
        return _Spans(self.frame.filter(pl.Series(mask)), self.codes[mask])

    def at(self, work: pl.DataFrame, keys: pl.Series, by: str) -> Codes:
        """Return the phase of the innermost one open at each launch, by thread or process."""
        if not len(self.codes):
            return np.full(work.height, NONE, np.int8)
        start, end = (self.frame[c].to_numpy() for c in ("start_ns", "end_ns"))
        nested = NestedIntervals.of(start, end, self.frame[by])
        row = nested.rows_at(nested.innermost(work["launch_ns"].to_numpy(), keys))
        return np.where(row >= 0, self.codes[row], np.int8(NONE))


def _named(trace: Trace) -> _Spans:
    """Collect the ranges, and the operators, whose names mean a phase."""
    parts = [_Spans(pl.DataFrame(schema=_SPAN), np.empty(0, np.int8))]
    if trace.has("ranges"):
        parts.append(_spans_of(closed_ranges(trace), _ANY_NAME))
    if trace.has("cpu_ops"):
        parts.append(_spans_of(trace.table("cpu_ops", [*_PLACE, "name"]), _PHASE_OPS))
    return _Spans(pl.concat([p.frame for p in parts]), np.concatenate([p.codes for p in parts]))


def _spans_of(frame: pl.DataFrame, candidates: re.Pattern[str]) -> _Spans:
    names = pl.Series(names_of(frame["name"]), dtype=pl.String)
    # Numbers at the end distinguish ranges, but not their phases: of a million names few remain.
    plain = names.str.replace(_NUMBERED, "")
    phases = {name: phase_of(name) for name in plain.unique() if candidates.match(name)}
    known = {name: NONE if phase is None else _CODES[phase] for name, phase in phases.items()}
    by_name = plain.replace_strict(known, default=NONE, return_dtype=pl.Int8).to_numpy()
    codes = by_name[frame["name"].to_physical().to_numpy()]
    kept = frame.filter(pl.Series(codes >= 0))
    turn = ~names.str.contains(_ZEROES).gather(kept["name"].to_physical())
    return _Spans(kept.select(*_PLACE).with_columns(turn.alias("turn")), codes[codes >= 0])


def _numbered(trace: Trace) -> _Spans:
    """Collect the operators that autograd numbered for a backward to come."""
    if not trace.has("cpu_ops", "sequence"):
        return _Spans(pl.DataFrame(schema=_PLACE), np.empty(0, np.int8))
    ops = trace.table("cpu_ops", [*_PLACE, "sequence", "forward_thread"])
    ahead = ops.filter(pl.col("sequence") >= 0, pl.col("forward_thread").fill_null(0) <= 0)
    return _Spans(ahead.select(*_PLACE), np.full(ahead.height, _FORWARD, np.int8))


def _before_backward(named: _Spans, work: pl.DataFrame) -> Codes:
    """Return the forward phase for launches that a backward follows, before any optimizer."""
    codes = np.full(work.height, NONE, np.int8)
    turns = named.keep(
        np.isin(named.codes, (_BACKWARD, _OPTIMIZER)) & named.frame["turn"].to_numpy()
    )
    called = ((work["table"] != _COPIES) & work["thread"].is_not_null()).to_numpy()
    for process in turns.frame["process"].unique():
        own = turns.keep(turns.frame["process"].eq_missing(process).to_numpy())
        starts = own.frame["start_ns"].to_numpy()
        order = np.argsort(starts, kind="stable")
        at = np.flatnonzero(called & work["process"].eq_missing(process).to_numpy())
        following = np.searchsorted(starts[order], work["launch_ns"].to_numpy()[at], "right")
        next_phase = np.append(own.codes[order], np.int8(NONE))[following]
        codes[at[next_phase == _BACKWARD]] = _FORWARD
    return codes


def _main_thread_phase(trace: Trace, named: _Spans, work: pl.DataFrame) -> Codes:
    """Return the phase open on the main thread, or elsewhere where the main thread has none."""
    threads = main_threads(trace)
    main = work["process"].replace_strict(threads, default=None, return_dtype=pl.Int64)
    on_main = named.at(work, main, "thread")
    with_main = named.frame.filter(pl.col("thread").is_in(list(threads.values())))["process"]
    by_main = named.frame["process"].is_in(with_main.unique().implode()).fill_null(value=False)
    # A loader's thread has its range open all the time, whatever the others do.
    elsewhere = named.keep(~by_main.to_numpy() & (named.codes != _DATA))
    anywhere = elsewhere.at(work, work["process"], "process")
    beside = np.where(on_main >= 0, on_main, anywhere)
    return np.where(work["thread"].is_not_null().to_numpy(), beside, np.int8(NONE))


MIN_START_SHARE = 0.1
"""Share of the window before the first kernel."""
MIN_CERTAIN_SHARE = 0.5
"""The same for a start with any host activity; also the share of a start before any GPU activity or
in compilation, so that autotuning counts as part of it."""
MIN_LOADING_SHARE = 0.1
"""Share of a start in module loading, context creation and allocation."""
MIN_START_NS = 1e6
"""A shorter one is the first launch, not a program start."""
PREPARES = (
    r"^(?:cu|cuda|hip)(?:Module|Library|Link)|^cuCtxCreate|^cuDevicePrimaryCtx|^cuInit|^nvrtc"
    r"|^(?:cu|cuda|hip)(?:Malloc|MemAlloc|HostAlloc|MallocHost|Free)$"
)
_COMPILES = ("ranges", "cpu_ops", "python_calls")


@dataclass(frozen=True)
class ProgramStart:
    """Time before a program computes."""

    start_ns: int
    end_ns: int
    """First GPU activity, or the end of compilation."""
    launch_ns: int
    """First launch after it."""
    loads: pl.DataFrame
    """Calls that load code, create contexts or allocate memory: `name` and `duration_ns`."""
    compiling_ns: int

    @property
    def length_ns(self) -> int:
        """Its length."""
        return self.end_ns - self.start_ns

    @property
    def preparing_ns(self) -> int:
        """Time in which the host loads or compiles."""
        return int(self.loads["duration_ns"].sum()) + self.compiling_ns


def find_start(trace: Trace, start_ns: int, end_ns: int) -> ProgramStart | None:
    """Find the start of a program in a window without steps."""
    work = launched(trace).filter(pl.col("end_ns") > start_ns, pl.col("start_ns") < end_ns)
    if work.is_empty():
        return None
    first = max(start_ns, int(work["start_ns"].min()))  # type: ignore[arg-type]
    compiles = _compiling(trace, start_ns, end_ns)
    ready_ns = _last_compile(compiles, work["launch_ns"].to_numpy(), start_ns, first)
    after = work.filter(pl.col("launch_ns") >= ready_ns) if ready_ns > first else work
    start = ProgramStart(
        start_ns,
        ready_ns,
        max(start_ns, int(after["launch_ns"].min())),  # type: ignore[arg-type]
        _loads(trace, start_ns, ready_ns),
        int(coverage(compiles, np.array([start_ns]), np.array([ready_ns]))[0]),
    )
    if start.length_ns < max(MIN_START_NS, MIN_START_SHARE * (end_ns - start_ns)):
        return None
    loads = start.preparing_ns >= MIN_LOADING_SHARE * start.length_ns
    certain = start.length_ns >= MIN_CERTAIN_SHARE * (end_ns - start_ns)
    return start if certain or loads else None


def _compiling(trace: Trace, start_ns: int, end_ns: int) -> Intervals:
    spans = Intervals.empty()
    for table in _COMPILES:
        if not trace.has(table):
            continue
        events = trace.table(table, ["start_ns", "end_ns", "name"])
        codes = [code for code, name in enumerate(names_of(events["name"])) if is_compiling(name)]
        own = events.filter(
            pl.col("name").to_physical().is_in(codes),
            pl.col("end_ns") > start_ns,
            pl.col("start_ns") < end_ns,
        )
        own_spans = Intervals.from_arrays(own["start_ns"].to_numpy(), own["end_ns"].to_numpy())
        spans = union(spans, own_spans)
    return spans


def _last_compile(compiles: Intervals, launches: Ints, start_ns: int, first_ns: int) -> int:
    """Return the end of the last compilation of a start, else the first GPU activity."""
    ends = compiles.ends[(compiles.ends > first_ns) & (compiles.ends <= launches.max())]
    if not len(ends):
        return first_ns
    idle = Intervals.from_arrays(np.array([start_ns]), np.array([first_ns]))
    since = np.full(len(ends), start_ns)
    prepared_ns = coverage(union(compiles, idle), since, ends)
    in_start = prepared_ns >= MIN_CERTAIN_SHARE * (ends - since)
    return int(ends[in_start].max(initial=first_ns))


def _loads(trace: Trace, start_ns: int, end_ns: int) -> pl.DataFrame:
    calls = trace.table("api_calls", ["start_ns", "end_ns", "name"]).filter(
        pl.col("start_ns") >= start_ns, pl.col("start_ns") < end_ns
    )
    prepares = calls["name"].cast(pl.String).str.contains(PREPARES)
    return calls.filter(prepares).select(
        pl.col("name").cast(pl.String), (pl.col("end_ns") - pl.col("start_ns")).alias("duration_ns")
    )
