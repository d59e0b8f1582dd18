"""Range names that mean a step (`ProfilerStep#5`) or a phase of one (`forward`)."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import polars as pl

from gpusight.analysis.aggregates import DURATION, names_of
from gpusight.analysis.steps.step_list import StepEvidence, TraceSteps, shortened
from gpusight.results import NotApplicable

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpusight.trace.trace import Trace


_WORDS = r"(?:steps?|iter(?:ation)?s?|(?:mini|micro)?batch(?:es)?|(?:train|time)steps?)"
_ALSO = (
    r"(?:train(?:ing)?|eval(?:uation)?|valid(?:ation)?|infer(?:ence)?|generat(?:e|ion)|"
    r"decod(?:e|ing)|prefill|predict(?:ion)?|forward[ _]?pass|frame|cycle|token)"
)
"""Words that name steps only where a number follows them."""
_SERVES = r"execute[ _](?:[\d#]+[ _])?context|execute[ _]?model"
"""What servers of language models call a step."""
_STEP = re.compile(rf"(?:^|[^a-z])(?:{_WORDS}(?:[^a-z]|$)|{_ALSO}[^a-z0-9]{{0,3}}\d|{_SERVES})")
_MAYBE = (
    "(?i)step|iter|batch|train|eval|valid|infer|generat|decod|prefill|predict|pass|frame|cycle|"
    "token|execute"
)
"""What any name of a step holds."""
_COUNTED = re.compile(rf"(?:^|[^a-z]){_WORDS}[^a-z0-9]{{0,3}}(\d{{1,18}})(?!\d)")
_LAST_NUMBER = re.compile(r"(\d{1,18})\D*$")
_NOT_STEPS = re.compile(
    r"optim|sched|scaler|zero_?grad|\bopt\b|"
    r"(?:^|[^a-z])(?:load|fetch|prefetch|get|next|wait|prepar|collat|read|copy)\w*[^a-z].*batch"
)
PROFILER_STEP = "ProfilerStep#"
"""What the profiler of PyTorch calls its own steps, before their number."""
_PROFILER = "profiler step#"
_WARM_UP = r"(?:^|[^a-z])(?:warm(?:ing)?[\s_-]*up|burn[\s_-]*in)"
WARM_UP = f"(?i){_WARM_UP}"
"""What programs call warm-up."""
_CAMEL = re.compile(r"(?<=[a-z])(?=[A-Z])")
_LONGEST_NAME = 200
_HINTS = {
    "nsys": "put each step in a range that counts, such as torch.cuda.nvtx.range(f'step_{i}')",
    "torch": "call the profiler's step() once a step, or put each step in a range that counts, "
    "such as torch.profiler.record_function(f'step_{i}')",
    "jax": "put each step in jax.profiler.StepTraceAnnotation('train', step_num=i)",
}
"""By the first word of the capture's form."""


def find_steps(trace: Trace) -> TraceSteps | NotApplicable:
    """Find the steps of a capture by the names of its ranges."""
    if not trace.has("ranges"):
        return absent(trace, "the capture has no ranges that could be steps")
    found = next(named_steps(trace), None)
    return found or absent(trace, "no ranges are named like steps that count")


def named_steps(trace: Trace) -> Iterator[TraceSteps]:
    """Give the steps of each family of ranges that is named like steps, the best first."""
    if trace.has("ranges"):
        members = _members(trace)
        for family in _families(members).iter_rows(named=True):
            yield _chosen(members, family)


def absent(trace: Trace, reason: str) -> NotApplicable:
    """Say that there are no steps, and how the next capture gets them."""
    return NotApplicable("steps", reason, _HINTS.get(trace.meta.source.partition("-")[0], ""))


def _chosen(members: pl.DataFrame, family: dict[str, Any]) -> TraceSteps:
    """Give the members of a family as steps."""
    rows = members.filter(pl.col("family") == family["family"])
    counts = bool(family["numbered"]) or rows.height == 1
    if not counts:
        rows = rows.with_columns(pl.int_range(pl.len()).over("process", "thread").alias("number"))
    first = shortened(rows["name"][0])
    how = f"ranges that count, such as {first!r}" if counts else f"ranges named {first!r}"
    return TraceSteps.of(rows, how, StepEvidence.COUNTED if counts else StepEvidence.NAMED)


CLOSED = (pl.col("kind").cast(pl.String) != "mark") & ~pl.col("open").fill_null(value=False)
"""Tells ranges that have a length and were closed."""


def closed_ranges(trace: Trace) -> pl.DataFrame:
    """Give the ranges that have a length and were closed, with the code of their names."""
    columns = ["start_ns", "end_ns", "name", "kind", "open", "process", "thread"]
    return trace.table("ranges", columns).filter(CLOSED)


def named_like(ranges: pl.DataFrame, pattern: str, *, keep: bool = True) -> pl.DataFrame:
    """Keep the rows whose name matches a pattern, or those whose name does not.

    Looks at every name once, and without Python: there may be a million of them.
    """
    names = pl.Series(names_of(ranges["name"]), dtype=pl.String)
    matching = names.str.contains(pattern)
    codes = ranges["name"].to_physical()
    return ranges.filter(matching.gather(codes) == keep) if len(names) else ranges


def _members(trace: Trace) -> pl.DataFrame:
    """Give the ranges that are named like steps, with the family and number of each."""
    ranges = closed_ranges(trace)
    ranges = named_like(ranges, _MAYBE)
    code = ranges["name"].to_physical()
    names = names_of(ranges["name"])
    read = [(c, names[c], *found) for c in code.unique() if (found := read_name(names[c]))]
    known = pl.DataFrame(
        read,
        schema={"code": code.dtype, "name": pl.String, "family": pl.String, "number": pl.Int64},
        orient="row",
    )
    members = ranges.drop("name").with_columns(code.alias("code"))
    return members.join(known, on="code", maintain_order="left")


def read_name(name: str) -> tuple[str, int | None] | None:
    """Read a range's name: its family, and its number where it has one; None for no step."""
    text = _CAMEL.sub(" ", name[:_LONGEST_NAME]).lower()
    if not _STEP.search(text) or _NOT_STEPS.search(text):
        return None
    found = _COUNTED.search(text) or _LAST_NUMBER.search(text)
    number = int(found.group(1)) if found else None
    return re.sub(r"\d+", "#", text), number


def _families(members: pl.DataFrame) -> pl.DataFrame:
    """List the families that are steps, the best first."""
    own = ["family", "process", "thread"]
    overlaps = pl.col("start_ns") < pl.col("end_ns").cum_max().shift(1).over(own)
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


PHASES = ("forward", "backward", "optimizer", "data", "communication", "other")
"""Phases of a step, in the order of the codes; `other` is what a capture says is none of them."""

_MAX_PHASE_NAME = 200
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
"""How schedules of pipelines write it: forward, backward of inputs, backward of weights."""
_LIGHTNING = re.compile(r"^\[.*\b(training|validation|test|predict)_step$")
"""Its `training_step` is the forward pass, called by an optimizer's step with a closure."""
_ALL = re.compile(r"with closure")
_OPERATOR = re.compile(r"(?!autograd::engine|FSDP)\w+::")


def phase_of(name: str) -> str | None:
    """Read the phase that a range's name speaks of; None for none, or for more than one."""
    text = name[:_MAX_PHASE_NAME]
    if _OPERATOR.match(text):
        return None
    piped = _PIPELINE.search(text)
    if piped:
        return "forward" if piped.group(1) == "F" else "backward"
    if _LIGHTNING.search(text):
        return "forward"
    plain = _BREAK.sub(" ", _PHASE_CAMEL.sub(" ", text)).lower().strip()
    if _ALL.search(plain):
        return None
    if _COMMUNICATION.search(plain):
        return "communication"
    back, ahead = _BACKWARD.search(plain), _FORWARD.search(plain)
    if back:
        return None if ahead and "loss" not in ahead.group() else "backward"
    for phase, pattern in (("optimizer", _OPTIMIZER), ("data", _DATA)):
        if pattern.search(plain):
            return phase
    return "forward" if ahead else None
