"""Which phase of a step each GPU activity belongs to."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from gpusight.analysis.aggregates import names_of
from gpusight.analysis.attribution.nested_intervals import NONE, NestedIntervals
from gpusight.analysis.attribution.work_causes import main_threads
from gpusight.analysis.selection import GPU_WORK
from gpusight.analysis.steps.step_launches import launched
from gpusight.analysis.steps.step_names import PHASES, closed_ranges, phase_of
from gpusight.naming.kernel_names import classify
from gpusight.results import NotApplicable

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
    "nothing tells which phase GPU work belongs to",
    "put forward, backward and optimizer in ranges of these names",
)
_CODES = {phase: code for code, phase in enumerate(PHASES)}
_FORWARD, _BACKWARD, _OPTIMIZER, _DATA, _, _OTHER = range(len(PHASES))
_COPIES = GPU_WORK.index("copies")
_TELLING_OPS = re.compile(r"autograd::engine::|Optimizer\.|enumerate\(DataLoader\)|\w+Backward\d*$")
_ANY_NAME = re.compile("")
_ZEROES = r"(?i)zero[ _]?grad"
_NUMBERED = r", (?:seq|op_id) = \d.*$|[\s_#:-]+\d+$"
_PLACE = {column: pl.Int64() for column in ("start_ns", "end_ns", "thread", "process")}
_SPAN = {**_PLACE, "turn": pl.Boolean()}


def phases(trace: Trace, schedule: GpuSchedule) -> pl.Series:
    """Give the phase of each piece of work of a schedule; null where the capture cannot tell."""
    known = phases_of(trace)
    at = np.full(len(schedule.ops), NONE, np.int64)
    for table, codes in enumerate(known):
        mine = np.flatnonzero(schedule.ops.kind == table)
        at[mine] = codes[schedule.ops.row[mine]]
    return as_phases(at)


def as_phases(codes: Codes | Ints) -> pl.Series:
    """Give positions in `PHASES` as a column, null where they are below 0."""
    column = pl.Series("phase", codes, pl.Int64)
    return pl.Series("phase", PHASES, PHASE).gather(column.set(column < 0, None))


def phases_of(trace: Trace) -> tuple[Codes, ...]:
    """Give the phase of every row of the tables of GPU work, as positions in `PHASES`."""
    frame = trace.derive("phases-5", lambda: _phases_of(trace))
    codes, table = frame["phase"].to_numpy(), frame["table"].to_numpy()
    return tuple(codes[table == number] for number in range(len(GPU_WORK)))


def phases_of_work(trace: Trace, work: pl.DataFrame) -> pl.Series:
    """Name the phase of some rows of `launched`, `unknown` where nothing tells."""
    known = phases_of(trace)
    codes = np.empty(work.height, np.int64)
    table, row = work["table"].to_numpy(), work["row"].to_numpy()
    for number in range(len(GPU_WORK)):
        codes[table == number] = known[number][row[table == number]]
    return as_phases(codes).cast(pl.String).fill_null(UNKNOWN)


def _phases_of(trace: Trace) -> pl.DataFrame:
    """Find the phase of all work, one table after the other in their order."""
    work = launched(trace).sort("table", "row")
    named = _named(trace)
    own = named.at(work, work["thread"], "thread")
    beside = _main_thread_phase(trace, named, work)
    ways = [_by_kernel(trace, work, "communication"), own, beside]
    ways.append(_by_kernel(trace, work, "optimizer"))
    if trace.has("cpu_ops") and (named.codes == _BACKWARD).any():
        ways.append(_numbered(trace).at(work, work["thread"], "thread"))
        ways.append(_before_backward(named, work))
    found = np.full(work.height, NONE, np.int8)
    for way in ways:
        found = np.where(found >= 0, found, way)
    if ((own >= 0) | (beside >= 0)).any():
        found[found < 0] = _OTHER
    frame = work.select("table", "thread").with_columns(pl.Series("phase", found, pl.Int8))
    return frame.select("table", _of_autograd(pl.col("phase")).alias("phase"))


def _of_autograd(phase: pl.Expr) -> pl.Expr:
    """Call backward whatever autograd's threads launch, such as a forward pass done once more.

    They launch more backward than forward work, and less forward work than some other thread.
    """
    forward, backward = ((phase == part).sum().over("thread") for part in (_FORWARD, _BACKWARD))
    theirs = (backward > forward) & (forward < forward.max())
    return pl.when(theirs & (phase == _FORWARD)).then(pl.lit(_BACKWARD, pl.Int8)).otherwise(phase)


def _by_kernel(trace: Trace, work: pl.DataFrame, phase: str) -> Codes:
    """Give this phase to kernels of the category of the same name."""
    codes = np.full(work.height, NONE, np.int8)
    if trace.has("kernels"):
        names = trace.table("kernels", ["name"])["name"]
        tells = np.array([classify(name).category == phase for name in names_of(names)], np.bool_)
        at = np.flatnonzero(work["table"].to_numpy() == 0)
        codes[at[tells[names.to_physical().to_numpy()]]] = _CODES[phase]
    return codes


# Ranges that speak of phases ------------------------------------------------------------------


@dataclass(frozen=True)
class _Spans:
    """Stretches of time on threads, each of one phase."""

    frame: pl.DataFrame
    """`start_ns`, `end_ns`, `thread`, `process`; `turn` where what follows is another phase."""
    codes: Codes

    def keep(self, mask: NDArray[np.bool_]) -> _Spans:
        return _Spans(self.frame.filter(pl.Series(mask)), self.codes[mask])

    def at(self, work: pl.DataFrame, keys: pl.Series, by: str) -> Codes:
        """Give the phase of the innermost one open at each launch, by thread or process."""
        if not len(self.codes):
            return np.full(work.height, NONE, np.int8)
        start, end = (self.frame[c].to_numpy() for c in ("start_ns", "end_ns"))
        nested = NestedIntervals.of(start, end, self.frame[by])
        row = nested.rows_at(nested.innermost(work["launch_ns"].to_numpy(), keys))
        return np.where(row >= 0, self.codes[row], np.int8(NONE))


def _named(trace: Trace) -> _Spans:
    """Collect the ranges, and the operators, whose names speak of a phase."""
    parts, codes = [pl.DataFrame(schema=_SPAN)], [np.empty(0, np.int8)]
    if trace.has("ranges"):
        frame, phase = _telling(closed_ranges(trace), _ANY_NAME)
        parts.append(frame)
        codes.append(phase)
    if trace.has("cpu_ops"):
        ops = trace.table("cpu_ops", [*_PLACE, "name"])
        frame, phase = _telling(ops, _TELLING_OPS)
        parts.append(frame)
        codes.append(phase)
    return _Spans(pl.concat(parts), np.concatenate(codes))


def _telling(frame: pl.DataFrame, looked_at: re.Pattern[str]) -> tuple[pl.DataFrame, Codes]:
    names = pl.Series(names_of(frame["name"]), dtype=pl.String)
    # Numbers at the end tell ranges apart, but not their phases: of a million names few remain.
    plain = names.str.replace(_NUMBERED, "")
    read = {name: phase_of(name) for name in plain.unique() if looked_at.match(name)}
    known = {name: NONE if phase is None else _CODES[phase] for name, phase in read.items()}
    phase = plain.replace_strict(known, default=NONE, return_dtype=pl.Int8).to_numpy()
    codes = phase[frame["name"].to_physical().to_numpy()]
    tells = codes >= 0
    kept = frame.filter(pl.Series(tells))
    turn = ~names.str.contains(_ZEROES).gather(kept["name"].to_physical())
    return kept.select(*_PLACE).with_columns(turn.alias("turn")), codes[tells]


def _numbered(trace: Trace) -> _Spans:
    """Collect the operators that autograd numbered for a backward to come."""
    if not trace.has("cpu_ops", "sequence"):
        return _Spans(pl.DataFrame(schema=_PLACE), np.empty(0, np.int8))
    ops = trace.table("cpu_ops", [*_PLACE, "sequence", "forward_thread"])
    ahead = ops.filter(pl.col("sequence") >= 0, pl.col("forward_thread").fill_null(0) <= 0)
    return _Spans(ahead.select(*_PLACE), np.full(ahead.height, _FORWARD, np.int8))


def _before_backward(named: _Spans, work: pl.DataFrame) -> Codes:
    """Give the forward phase to launches that a backward follows, before any optimizer."""
    codes = np.full(work.height, NONE, np.int8)
    turns = named.keep(
        np.isin(named.codes, (_BACKWARD, _OPTIMIZER)) & named.frame["turn"].to_numpy()
    )
    called = ((work["table"] != _COPIES) & work["thread"].is_not_null()).to_numpy()
    for process in turns.frame["process"].unique():
        mine = turns.keep(turns.frame["process"].eq_missing(process).to_numpy())
        order = np.argsort(mine.frame["start_ns"].to_numpy(), kind="stable")
        starts, after = mine.frame["start_ns"].to_numpy()[order], mine.codes[order]
        at = np.flatnonzero(called & work["process"].eq_missing(process).to_numpy())
        follows = np.searchsorted(starts, work["launch_ns"].to_numpy()[at], "right")
        known = np.append(after, np.int8(NONE))[follows]
        codes[at[known == _BACKWARD]] = _FORWARD
    return codes


def _main_thread_phase(trace: Trace, named: _Spans, work: pl.DataFrame) -> Codes:
    """Give the phase open on the main thread, or elsewhere in a process whose main has none."""
    threads = main_threads(trace)
    launched_by = work["thread"].is_not_null()
    main = work["process"].replace_strict(threads, default=None, return_dtype=pl.Int64)
    on_main = named.at(work, main, "thread")
    speaking = named.frame.filter(pl.col("thread").is_in(list(threads.values())))["process"]
    # A loader's thread has its range open all the time, whatever the others do.
    elsewhere = named.keep(
        ~named.frame["process"].is_in(speaking.unique().implode()).fill_null(value=False).to_numpy()
        & (named.codes != _DATA)
    )
    anywhere = elsewhere.at(work, work["process"], "process")
    beside = np.where(on_main >= 0, on_main, anywhere)
    return np.where(launched_by.to_numpy(), beside, np.int8(NONE))
