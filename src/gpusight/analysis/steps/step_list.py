"""Steps of a capture, range names that mean a step or a phase of one, steps as users type them."""

from __future__ import annotations

import enum
import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import starmap
from typing import TYPE_CHECKING, Any, overload

import numpy as np
import polars as pl

from gpusight.analysis.aggregates import DURATION, is_named, kept, names_of
from gpusight.errors import UsageError
from gpusight.pace import BEFORE, MESSAGE, Pace
from gpusight.results import NotApplicable
from gpusight.units import AMOUNT, TIME_UNITS, Amount, parse_step_range

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpusight.trace.intervals import Ints
    from gpusight.trace.trace import Trace

UNNAMED = "step"
"""What a step is called that is not one range of the program."""
_NO_PROCESS = -1
_MAX_SHOWN_NAME = 40
SCHEMA = {
    "name": pl.String(),
    "number": pl.Int64(),
    "start_ns": pl.Int64(),
    "end_ns": pl.Int64(),
    "process": pl.Int64(),
    "thread": pl.Int64(),
}


class StepEvidence(enum.Enum):
    """Evidence that something is a step, the strongest first."""

    COUNTED = "counted"
    """Numbered ranges."""
    NAMED = "named"
    """Ranges that repeat one name of a step."""
    CHOSEN = "chosen"
    """Ranges that the user selected."""
    REPEATED = "repeated"
    """Ranges that repeat, whatever they are called."""
    PERIODIC = "periodic"
    """The kernels repeat themselves."""
    GRAPHS = "graphs"
    """Launches of one CUDA graph."""


@dataclass(frozen=True, slots=True)
class TraceStep:
    """One step, as the host saw it; GPU work that it launched may end later."""

    name: str
    number: int
    start_ns: int
    end_ns: int
    process: int | None = None
    thread: int | None = None


@dataclass(frozen=True, slots=True)
class InnerLoop:
    """A loop inside each step: tokens of a text, denoising steps of an image, layers."""

    count: int
    """Repetitions per step; the median where steps differ."""
    gpu_ops: int
    """Kernels, memcpys, memsets and graphs of each repetition."""
    gpu_ns: float
    """GPU time of each repetition."""


class StepList(Sequence[TraceStep]):
    """Steps as columns: there may be hundreds of thousands, and few of them become objects."""

    __slots__ = ("frame",)

    def __init__(self, frame: pl.DataFrame) -> None:
        is_plain = frame.schema == SCHEMA
        self.frame = frame if is_plain else frame.select(*SCHEMA).cast(SCHEMA)  # type: ignore[arg-type]
        """The steps as a table: name, number, start_ns, end_ns, process, thread."""

    @classmethod
    def of(cls, *parts: Sequence[TraceStep]) -> StepList:
        """Make one list of several."""
        frames = [frame_of(part) for part in parts if part]
        return cls(pl.concat(frames) if frames else pl.DataFrame(schema=SCHEMA))

    def __len__(self) -> int:
        """Count the steps."""
        return self.frame.height

    @overload
    def __getitem__(self, at: int) -> TraceStep: ...

    @overload
    def __getitem__(self, at: slice) -> StepList: ...

    def __getitem__(self, at: int | slice) -> TraceStep | StepList:
        """Return one step, or some of them."""
        if isinstance(at, slice):
            return StepList(self.frame[at])
        try:
            return TraceStep(*self.frame.row(at))
        except pl.exceptions.OutOfBoundsError:
            raise IndexError(at) from None

    def __iter__(self) -> Iterator[TraceStep]:
        """Yield every step."""
        return starmap(TraceStep, self.frame.iter_rows())

    def __eq__(self, other: object) -> bool:
        """Return whether the others are the same steps."""
        if isinstance(other, StepList):
            return self.frame.equals(other.frame)
        return isinstance(other, tuple) and tuple(self) == other

    def __hash__(self) -> int:
        """Return the number of a set or dictionary for these steps."""
        return hash(tuple(self))

    def __repr__(self) -> str:
        """Return the steps as Python has them."""
        return repr(tuple(self))


def starts_of(steps: Sequence[TraceStep]) -> Ints:
    """Return when steps start."""
    return _column(steps, "start_ns")


def ends_of(steps: Sequence[TraceStep]) -> Ints:
    """Return when steps end."""
    return _column(steps, "end_ns")


def _column(steps: Sequence[TraceStep], name: str) -> Ints:
    if isinstance(steps, StepList):
        return steps.frame[name].to_numpy()
    return np.array([getattr(step, name) for step in steps], np.int64)


@dataclass(frozen=True, slots=True)
class TraceSteps:
    """The steps of a capture, in order of their start."""

    steps: Sequence[TraceStep]
    how: str = ""
    """How they were found, in words."""
    evidence: StepEvidence = StepEvidence.COUNTED
    inner_loop: InnerLoop | None = None
    """Of steps found by repetition; None where no loop inside them was found."""

    @classmethod
    def of(cls, frame: pl.DataFrame, how: str, evidence: StepEvidence) -> TraceSteps:
        """Make steps of a frame with the columns of `SCHEMA`, in order of start."""
        return cls(StepList(frame), how, evidence)

    @property
    def frame(self) -> pl.DataFrame:
        """The steps as a table: name, number, start_ns, end_ns, process, thread."""
        return frame_of(self.steps)

    def holding(self, times: pl.Series, processes: pl.Series) -> pl.Series:
        """Return the position of the step that each moment of a process lies in; null for none."""
        moments = pl.DataFrame({"time": times, "process": processes.fill_null(_NO_PROCESS)})
        steps = self.frame.with_row_index("step").select(
            pl.col("step").cast(pl.Int64),
            pl.col("start_ns").alias("time"),
            "end_ns",
            pl.col("process").fill_null(_NO_PROCESS),
        )
        inside = pl.when(pl.col("time") < pl.col("end_ns")).then("step")
        return (
            moments.with_row_index("row")
            .sort("time")
            .join_asof(steps, on="time", by="process", strategy="backward", check_sortedness=False)
            .sort("row")
            .select(inside.alias("step"))["step"]
        )


def frame_of(steps: Sequence[TraceStep]) -> pl.DataFrame:
    """Return steps as a table with the columns of `SCHEMA`."""
    if isinstance(steps, StepList):
        return steps.frame
    rows = [(s.name, s.number, s.start_ns, s.end_ns, s.process, s.thread) for s in steps]
    return pl.DataFrame(rows, schema=SCHEMA, orient="row")


def called(step: TraceStep) -> str:
    """Return the name of a step, with its number where the name does not hold it."""
    name = shortened(step.name)
    return name if str(step.number) in name else f"{name} {step.number}"


def shortened(name: str) -> str:
    """Return a name that fits into a sentence."""
    return name if len(name) <= _MAX_SHOWN_NAME else f"{name[: _MAX_SHOWN_NAME - 1]}…"


# Steps as users type them -------------------------------------------------------------------------

ALL = "all"
_WINDOW = re.compile(rf"\s*(?:{AMOUNT})?\s*([-:])\s*(?:{AMOUNT})?\s*")
_STEPS_HINT = "write 5, 3-7, 2: or all"
_WINDOW_HINT = "write 1.2s-1.5s, 300ms-, 0-2s (ns, us, ms, s) or all"


def parse_steps(text: str) -> tuple[int | None, int | None] | None:
    """Parse step numbers: first and last, None for an open end; None for all."""
    return None if text.strip().lower() == ALL else parse_step_range(text, hint=_STEPS_HINT)


def parse_window(text: str) -> tuple[int | None, int | None]:
    """Parse a window as nanoseconds from the capture's origin, None for an open end.

    A unit at the end holds for both: `1.2-1.5s`. `all` is the whole capture.
    """
    if text.strip().lower() == ALL:
        return None, None
    shown = repr(shortened(text))
    match = _WINDOW.fullmatch(text)
    if match is None or match[1] or match[5] or not (match[2] or match[6]):
        raise UsageError(f"--window {shown} is not a span of time", hint=_WINDOW_HINT)
    first, unit, last, last_unit = match.group(2, 3, 6, 7)
    begin = _ns(first, unit or last_unit, shown)
    end = _ns(last, last_unit, shown)
    if begin is not None and end is not None and end <= begin:
        raise UsageError(f"--window {shown} ends before it begins", hint=_WINDOW_HINT)
    return begin, end


def _ns(number: str | None, unit: str | None, shown: str) -> int | None:
    if number is None:
        return None
    if (unit or "").lower() not in TIME_UNITS:
        what = f"has no unit {shortened(unit)!r}" if unit else "has no unit"
        raise UsageError(f"--window {shown} {what}", hint=_WINDOW_HINT)
    value = Amount("", number, unit or "").scaled(TIME_UNITS)
    if value is None or value >= 2**63:
        raise UsageError(f"--window {shown} is beyond any capture", hint=_WINDOW_HINT)
    return round(value)


# Range names that mean a step ---------------------------------------------------------------------

_WORDS = r"(?:steps?|iter(?:ation)?s?|(?:mini|micro)?batch(?:es)?|(?:train|time)steps?)"
_ALSO = (
    r"(?:train(?:ing)?|eval(?:uation)?|valid(?:ation)?|infer(?:ence)?|generat(?:e|ion)|"
    r"decod(?:e|ing)|prefill|predict(?:ion)?|forward[ _]?pass|frame|cycle|token)"
)
"""Words that name steps only where a number follows them."""
_SERVES = r"execute[ _](?:[\d#]+[ _])?context|execute[ _]?model"
"""Names of a step in servers of language models."""
_STEP = re.compile(rf"(?:^|[^a-z])(?:{_WORDS}(?:[^a-z]|$)|{_ALSO}[^a-z0-9]{{0,3}}\d|{_SERVES})")
_MAYBE = (
    "(?i)step|iter|batch|train|eval|valid|infer|generat|decod|prefill|predict|pass|frame|cycle|"
    "token|execute"
)
"""One of these is in any name of a step."""
_COUNTED = re.compile(rf"(?:^|[^a-z]){_WORDS}[^a-z0-9]{{0,3}}(\d{{1,18}})(?!\d)")
_LAST_NUMBER = re.compile(r"(\d{1,18})\D*$")
_NOT_STEPS = re.compile(
    r"optim|sched|scaler|zero_?grad|\bopt\b|"
    r"(?:^|[^a-z])(?:load|fetch|prefetch|get|next|wait|prepar|collat|read|copy)\w*[^a-z].*batch"
)
PROFILER_STEP = "ProfilerStep#"
"""Name of a step of the PyTorch profiler, before its number."""
_PROFILER = "profiler step#"
_WARM_UP = r"(?:^|[^a-z])(?:warm(?:ing)?[\s_-]*up|burn[\s_-]*in)"
WARM_UP = f"(?i){_WARM_UP}"
"""Names of warm-up."""
_CAMEL = re.compile(r"(?<=[a-z])(?=[A-Z])")
_MAX_NAME = 200
_ROUNDING_NS, _ROUNDING_SHARE = 1_000, 0.01
"""What steps may overlap where tools round times to microseconds, and of short ones which part."""
_HINTS = {
    "nsys": "put each step in a numbered NVTX range: torch.cuda.nvtx.range(f'step_{i}') in "
    'PyTorch, nvtxRangePush("step_0") in C++',
    "torch": "call the profiler's step() once per step, or put each step in a numbered range, "
    "such as torch.profiler.record_function(f'step_{i}')",
    "jax": "put each step in jax.profiler.StepTraceAnnotation('train', step_num=i)",
}
"""By the first word of the capture's form."""


def find_steps(trace: Trace) -> TraceSteps | NotApplicable:
    """Find the steps of a capture by the names of its ranges."""
    if not trace.has("ranges"):
        return absent(trace, "the capture has no ranges")
    steps = next(named_steps(trace), None)
    return steps or absent(trace, "no numbered ranges such as 'step_0', 'step_1'")


def named_steps(trace: Trace) -> Iterator[TraceSteps]:
    """Return the steps of each family of ranges that is named like steps, the best first."""
    if trace.has("ranges"):
        members = _members(trace)
        for family in _families(members).iter_rows(named=True):
            yield _family_steps(members, family)


def absent(trace: Trace, reason: str) -> NotApplicable:
    """Return why there are no steps, and how the next capture gets them."""
    return NotApplicable("steps", reason, _HINTS.get(trace.meta.source.partition("-")[0], ""))


def _family_steps(members: pl.DataFrame, family: dict[str, Any]) -> TraceSteps:
    """Return the members of a family as steps."""
    rows = members.filter(pl.col("family") == family["family"])
    counts = bool(family["numbered"]) or rows.height == 1
    if not counts:
        rows = rows.with_columns(pl.int_range(pl.len()).over("process", "thread").alias("number"))
    # By the rounding of times, a step may end after the next one starts.
    following = pl.col("start_ns").shift(-1).over("process", "thread").fill_null(pl.col("end_ns"))
    rows = rows.with_columns(pl.min_horizontal("end_ns", following).alias("end_ns"))
    first = shortened(rows["name"][0])
    how = f"numbered ranges, such as {first!r}" if counts else f"ranges named {first!r}"
    return TraceSteps.of(rows, how, StepEvidence.COUNTED if counts else StepEvidence.NAMED)


def closed(ranges: pl.DataFrame) -> pl.DataFrame:
    """Keep the ranges that have a length and were closed."""
    is_open = ranges["open"].fill_null(value=False)
    return kept(ranges, ~is_named(ranges["kind"], "mark".__eq__) & ~is_open)


def closed_ranges(trace: Trace) -> pl.DataFrame:
    """Return the ranges that have a length and were closed, with the code of their names.

    Calls of MPI, OpenMP and the like are no steps of a program, however often they repeat.
    """
    columns = ["start_ns", "end_ns", "name", "kind", "open", "process", "thread"]
    ranges = trace.table("ranges", [*columns, "source"])
    return closed(kept(ranges, ranges["source"].is_null())).select(columns)


def named_like(ranges: pl.DataFrame, pattern: str, *, keep: bool = True) -> pl.DataFrame:
    """Keep the rows whose name matches a pattern, or those whose name does not.

    Looks at every name once, and without Python: there may be a million of them.
    """
    names = pl.Series(names_of(ranges["name"]), dtype=pl.String)
    matching = names.str.contains(pattern)
    codes = ranges["name"].to_physical()
    return ranges.filter(matching.gather(codes) == keep) if len(names) else ranges


def _members(trace: Trace) -> pl.DataFrame:
    """Return the ranges that are named like steps, with the family and number of each."""
    ranges = named_like(closed_ranges(trace), _MAYBE)
    code = ranges["name"].to_physical()
    names = pl.Series(names_of(ranges["name"]), dtype=pl.String)
    known = read_names(names.gather(code.unique()))
    members = ranges.with_columns(names.gather(code).alias("name"))
    return members.join(known, on="name", maintain_order="left")


_NUMBERS = r"[0-9]+"
_PLAIN_NAME = rf"^[\x00-\x7F]{{0,{_MAX_NAME}}}$"
_LONG_NUMBER = r"[0-9]{19}"


def read_names(names: pl.Series) -> pl.DataFrame:
    """Parse names as `read_name` does: name, family and number of those that name steps.

    Names that differ in their numbers alone are read once: there may be one for each step.
    """
    is_plain = names.str.contains(f"(?s){_PLAIN_NAME}") & ~names.str.contains(_LONG_NUMBER)
    form = names.str.replace_all(_NUMBERS, "0").zip_with(is_plain, names)
    frame = pl.DataFrame({"name": names, "form": form, "is_plain": is_plain})
    read = []
    for text, shares in frame.select("form", "is_plain").unique().iter_rows():
        parsed = _parsed(text)
        if parsed is not None:
            family, number = parsed
            place = (
                None
                if number is None
                else len(re.findall(_NUMBERS, number.string[: number.start(1)]))
            )
            own = None if number is None or shares else int(number[1])
            read.append((text, family, place if shares else None, own))
    schema = {"form": pl.String, "family": pl.String, "place": pl.Int64, "own": pl.Int64}
    counted = pl.col("name").str.extract_all(_NUMBERS).list.get("place", null_on_oob=True)
    return frame.join(
        pl.DataFrame(read, schema, orient="row"), on="form", maintain_order="left"
    ).select("name", "family", pl.coalesce("own", counted.cast(pl.Int64)).alias("number"))


def read_name(name: str) -> tuple[str, int | None] | None:
    """Parse a range's name: its family, and its number where it has one; None for no step."""
    parsed = _parsed(name)
    if parsed is None:
        return None
    family, number = parsed
    return family, None if number is None else int(number[1])


def _parsed(name: str) -> tuple[str, re.Match[str] | None] | None:
    text = _CAMEL.sub(" ", name[:_MAX_NAME]).lower()
    if not _STEP.search(text) or _NOT_STEPS.search(text):
        return None
    return re.sub(r"\d+", "#", text), _COUNTED.search(text) or _LAST_NUMBER.search(text)


def _families(members: pl.DataFrame) -> pl.DataFrame:
    """List the families that are steps, the best first."""
    own = ["family", "process", "thread"]
    before = pl.col("end_ns").cum_max().shift(1).over(own)
    duration = pl.col("end_ns") - pl.col("start_ns")
    rounding = pl.min_horizontal(pl.lit(_ROUNDING_NS), duration * _ROUNDING_SHARE)
    overlaps = (pl.col("start_ns") < before - rounding) | (pl.col("end_ns") <= before)
    return (
        members.with_columns(DURATION, overlaps.fill_null(value=False).alias("overlaps"))
        .group_by("family", maintain_order=True)
        .agg(
            pl.len().alias("members"),
            pl.col("duration_ns").sum(),
            pl.col("overlaps").any(),
            # A number that never changes, such as a batch size, does not count anything.
            (pl.col("number").n_unique() > 1).alias("numbered"),
        )
        .with_columns(
            pl.col("family").str.contains(f"^{_PROFILER}|{_SERVES}").alias("profiler"),
            pl.col("family").str.contains(WARM_UP).alias("warms_up"),
        )
        .filter((pl.col("members") >= 2) | pl.col("profiler"), ~pl.col("overlaps"))
        .sort(
            ["warms_up", pl.col("members") >= 2, "profiler", "numbered", "duration_ns"],
            descending=[False, True, True, True, True],
            maintain_order=True,
        )
    )


# Range names that mean a phase --------------------------------------------------------------------

PHASES = ("forward", "backward", "optimizer", "data", "communication", "other")
"""Phases of a step, in the order of the codes; `other` is work in none of them."""

_PHASE_CAMEL = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
_BREAK = re.compile(r"[\W_]+")
# Words are matched in names of lower case with one space between words.
_COMMUNICATION = re.compile(
    r"all ?reduce|all ?gather|reduce ?scatter|all ?(?:to|2) ?all|\ba2 ?a\d*\b|"
    r"broadcast(?! to| tensors)|"
    r"\b[nr]ccl|\bgloo\b|\bmpi\b|\bcomms?\b|communicat|"
    r"(?:sync|reduce|exchange)(?:hroni[sz]e)? (?:model )?grad|"
    r"grad(?:ient)?s? (?:sync|reduc|exchange)|"
    r"halo|\b(?:send|recv|receive)\b|\bp2p\b|\b(?:ddp|fsdp) (?:sync|reduc|comm)"
)
_BACKWARD = re.compile(
    r"backwards?\d*\b|\bbwd|\bbw\b|back ?prop|\bautograd engine\b|\bgradients? comput|"
    r"\bcomput\w* grad"
)
_FORWARD = re.compile(
    r"\bforward|\bfwd|\bfw\b|\binfer(?:ence)?\b|\bpredict|\bprefill|\bdecod(?:e|ing)\b|"
    r"\bgenerat(?:e|ion)\b|\bexecute model\b|\brun model\b|\bmodel run\b|\bloss\b"
)
_OPTIMIZER = re.compile(
    r"\boptimi[sz]er|\boptim\b|\bopt\b|\bzero grads?\b|\bclip\w* grad|\bgrad\w* clip|"
    r"\b(?:lr )?schedulers?\b|\b(?:grad )?scaler\b|\b(?:weight|param(?:eter)?)s? updates?\b|"
    r"\bupdate (?:weight|param)|\bapply grad|\b(?:adam\w?|sgd|lamb|adagrad|adafactor|rmsprop)\b|"
    r"\bema update\b"
)
_DATA = re.compile(
    r"\bdata(?! ?(?:parallel|type))|\bload\w* (?:the )?(?:data|batch|input)|"
    r"\b(?:next|get|fetch|wait)\w*\b.*\bbatch\b|\bbatch generator\b|\bpre ?fetch|\bcollate|"
    r"^inputs?$|\binput (?:pipeline|wait|fetch|copy)|\bto device\b|"
    r"\bh ?(?:to|2) ?d\b|\bhost to device\b|"
    r"\b(?:pre ?process|augment|tokeni[sz])"
)
_PIPELINE = re.compile(r"\(([FBW])\)$")
"""In pipeline schedules: forward, backward of inputs, backward of weights."""
_LIGHTNING = re.compile(r"^\[.*\b(training|validation|test|predict)_step$")
"""Its `training_step` is the forward pass, called by an optimizer's step with a closure."""
_ALL = re.compile(r"with closure")
_OPERATOR = re.compile(r"(?!autograd::engine|FSDP)\w+::")


def phase_of(name: str) -> str | None:
    """Return the phase that a range's name means; None for none, or for more than one."""
    text = name[:_MAX_NAME]
    if _OPERATOR.match(text):
        return None
    if pipeline := _PIPELINE.search(text):
        return "forward" if pipeline.group(1) == "F" else "backward"
    if _LIGHTNING.search(text):
        return "forward"
    plain = _BREAK.sub(" ", _PHASE_CAMEL.sub(" ", text)).lower().strip()
    if _ALL.search(plain):
        return None
    if _COMMUNICATION.search(plain):
        return "communication"
    forward = _FORWARD.search(plain)
    if _BACKWARD.search(plain):
        return None if forward and "loss" not in forward.group() else "backward"
    for phase, pattern in (("optimizer", _OPTIMIZER), ("data", _DATA)):
        if pattern.search(plain):
            return phase
    return "forward" if forward else None


# Steps of the recorder ----------------------------------------------------------------------------

_OF_RECORDER = re.compile(r"(?:step |ProfilerStep#)\d+")
"""How `gpusight record` names the steps that it counts."""


def known_pace(trace: Trace, process: int | None = None) -> Pace | None:
    """Return the step time without a profiler that the recorder stored with the capture.

    Each process marks its own: with `process`, the one of that process.
    """
    known = trace.stored_pace or trace.meta.pace
    if known is not None or not trace.has("ranges"):
        return known
    names = pl.Series(names_of(trace.table("ranges", ["name"])["name"]), dtype=pl.String)
    codes = names.str.starts_with(MESSAGE).arg_true().to_list()
    if not codes:
        return None
    is_mark = pl.col("name").to_physical().is_in(codes)
    if process is not None:
        is_mark &= pl.col("process").is_null() | (pl.col("process") == process)
    marks = trace.table("ranges", ["name", "process"]).filter(is_mark)["name"]
    try:
        return None if marks.is_empty() else Pace.from_text(marks[0].removeprefix(MESSAGE))
    except (ValueError, RecursionError):
        # Damaged, or of another version: then times are those of the capture.
        return None


def counts_on(steps: Sequence[TraceStep], pace: Pace) -> bool:
    """Return whether the recorder counted these steps on from those that it timed: the same unit.

    The program had warmed up before both.
    """
    if pace.how != BEFORE or not steps:
        return False
    names = all(_OF_RECORDER.fullmatch(step.name) for step in steps)
    return names and steps[0].number > pace.steps
