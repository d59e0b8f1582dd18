"""The rows of a digest.

Kernels, ranges, API calls, copies, phases and memory, under names that all captures share.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from gpusight.analysis.aggregates import names_of
from gpusight.analysis.attribution.work_causes import attribute
from gpusight.analysis.kernel_behavior import kinds_of
from gpusight.analysis.ledger.idle_contributors import RECORD
from gpusight.analysis.memory.device_memory import DeviceMemories
from gpusight.analysis.memory.memory_usage import no_memory
from gpusight.analysis.range_summary import project_ranges
from gpusight.analysis.recording_advice import advice_for
from gpusight.analysis.selection import GPU_WORK
from gpusight.analysis.steps.program_phases import NO_PHASES, UNKNOWN, phases_of_work
from gpusight.analysis.steps.step_list import closed
from gpusight.comparison.digest import (
    CallDigest,
    CopyDigest,
    KernelDigest,
    ranked,
    rounded,
    rounded_parts,
)
from gpusight.errors import DamagedCaptureError
from gpusight.results import NotApplicable
from gpusight.trace.intervals import number

if TYPE_CHECKING:
    from collections.abc import Iterable

    from gpusight.analysis.selection import Selection
    from gpusight.comparison.digest import Series, StepBlocks
    from gpusight.trace.intervals import Ints
    from gpusight.trace.trace import Trace


MAX_NAME_CHARS = 2_000
"""Letters of a name that are kept; the names of templates can be longer."""
NO_NAME = "(no name)"
"""Stands for an empty name: rows without a name are the rest."""
_FOLDERS = re.compile(r"(?<![\w.)\]>#*-])(?:[A-Za-z]:)?(?:[\\/][^\\/\s:;,'\"<>|()*]+)+[\\/]")
"""The folders of a path from the root on. Names such as `encoder/layer/attention` are no paths."""
_ADDRESS = r"\b0x[0-9a-fA-F]+\b"
_HASH = (
    r"\b(?:[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}|[0-9a-fA-F]{16,}|f[a-z2-7]{51})\b"
)
"""Identifiers, digests, and what torch.compile calls a graph: every build has its own."""
_AFTER_NO_LETTER = r"(^|[^A-Za-z0-9])\d+"
_BEFORE_NO_LETTER = r"\d+($|[^A-Za-z0-9])"


def plain(text: str) -> str:
    """Remove the folders of paths from a text, and cut it to `MAX_NAME_CHARS`."""
    return cut(_FOLDERS.sub("", text) if "/" in text or "\\" in text else text)


def cut(text: str) -> str:
    """Cut a text to `MAX_NAME_CHARS`, ending in a hash: texts that differ stay different."""
    if len(text) <= MAX_NAME_CHARS:
        return text
    digest = hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:8]
    return f"{text[: MAX_NAME_CHARS - 9]}…{digest}"


def plain_texts(texts: Iterable[str]) -> tuple[str, ...]:
    """Apply `plain` to texts; each result once."""
    return tuple(dict.fromkeys(plain(text) for text in texts))


def family(names: pl.Series) -> pl.Series:
    """Take off numbers that count, and hashes: `step_#`; those inside a word stay: `conv2d`.

    It depends on nothing but the name: the same range is the same family in every capture.
    """
    return (
        names.str.replace(RECORD, "")
        .str.replace_all(_ADDRESS, "#")
        .str.replace_all(_HASH, "#")
        .str.replace_all(_AFTER_NO_LETTER, "${1}#")
        .str.replace_all(_BEFORE_NO_LETTER, "#${1}")
        .str.replace_all("##+", "#")
    )


MAX_KERNELS = 400
MAX_LAUNCHES = 20_000
"""Launches of a step whose order is kept."""
_KERNELS = GPU_WORK.index("kernels")
_NO_RANGE = 0
"""Number of the family of kernels that were launched outside all ranges."""


@dataclass(frozen=True)
class DigestedKernels:
    """Kernels, and the order in which one step launches them."""

    rows: tuple[KernelDigest, ...]
    order: tuple[int, ...]
    kernel_ns: Series


def kernel_rows(trace: Trace, blocks: StepBlocks, work: pl.DataFrame) -> DigestedKernels:
    """Sum kernels up by range and name, the most expensive first."""
    kernels = work.filter(pl.col("table") == _KERNELS)
    ns, step = (kernels[c].to_numpy() for c in ("ns", "step"))
    if kernels.is_empty():
        return DigestedKernels((), (), (0.0,) * len(blocks.sizes))
    names = trace.table("kernels", ["name"])["name"]
    family_of, families = _families(trace, kernels["row"])
    texts = names_of(names)
    name_of = names.to_physical().cast(pl.Int64).gather(kernels["row"]).to_numpy()
    groups = ranked(family_of * len(texts) + name_of, ns, MAX_KERNELS)
    sums = blocks.sums(kernels, groups.code, "ns", groups.count)
    kernel_ns = rounded(sums.sum(axis=0))
    times = rounded_parts(sums, kernel_ns)
    counts = blocks.sums(kernels, groups.code, None, groups.count)
    named = [divmod(group, len(texts)) for group in groups.groups.tolist()]
    series = [(times[at], rounded(counts[at], 3)) for at in range(groups.count)]
    # The rest has no name: there is one more series than there are names.
    rows = []
    kinds = kinds_of(trace, [texts[of_name] for _, of_name in named])
    for (of_range, _), kind, (own_ns, calls) in zip(named, kinds, series, strict=False):
        within = families[of_range]
        rows.append(
            KernelDigest(
                name=plain(kind.raw) or NO_NAME,
                short=plain(kind.short),
                category=str(kind.category),
                range=None if within is None else plain(within) or NO_NAME,
                ns=own_ns,
                calls=calls,
            )
        )
    rows += [
        KernelDigest(name="", short="", category="other", range=None, ns=ns, calls=calls)
        for ns, calls in series[len(named) :]
    ]
    launches = groups.code[(step == blocks.median_step) & ~kernels["after"].to_numpy()]
    order = () if len(launches) > MAX_LAUNCHES else tuple(launches.tolist())
    return DigestedKernels(tuple(rows), order, kernel_ns)


def _families(trace: Trace, rows: pl.Series) -> tuple[Ints, list[str | None]]:
    """Number the family of the innermost range around each launch, and name the families."""
    causes = attribute(trace).frames["kernels"]["range"].gather(rows)
    names = trace.table("ranges", ["name"])["name"]
    texts = family(pl.Series(names_of(names), dtype=pl.String))
    families = texts.unique().sort()
    of_name = families.search_sorted(texts).cast(pl.Int64) + 1
    code = of_name.gather(names.to_physical().gather(causes)).fill_null(_NO_RANGE)
    return code.to_numpy(), [None, *families]


MAX_NAMES = 200
"""Names of ranges, and of calls, that stand alone."""
_WHEN = ["start_ns", "end_ns", "name", "process"]
_WRAPS = 0.9
"""Share of a step from which on a range in it is the step itself."""
_MIN_STEP_SHARE = 0.9


def range_rows(
    trace: Trace, blocks: StepBlocks, process: int | None, *, launched_by: pl.Series
) -> tuple[CallDigest, ...] | NotApplicable:
    """Sum ranges up by family, those with most host time first.

    A range that starts between steps and contains the next one, like an epoch, is left out: it is
    no part of a step. `launched_by` are the threads that launched GPU work: where none is known, it
    is not known in which ranges that was.
    """
    if not trace.has("ranges"):
        called = advice_for(trace.meta).ranges_name
        return NotApplicable("ranges", f"the capture has no {called}")
    frame = trace.table("ranges", [*_WHEN, "thread", "kind", "open"])
    projected = project_ranges(trace)
    if isinstance(projected, NotApplicable) or launched_by.is_null().all():
        frame = frame.with_columns(pl.lit(None, pl.Int64).alias("work_ns"))
    else:
        frame = frame.with_columns(projected.frame["work_ns"])
    inside = blocks.begun_in(_of(process, closed(frame)))
    if later := [step.end_ns for step in blocks.steps[1:]]:
        ends = np.array([*later, np.iinfo(np.int64).max], np.int64)
        holds = pl.col("end_ns") >= pl.Series(ends[inside["step"].to_numpy()])
        inside = inside.filter(~(pl.col("after") & holds & _on_thread(blocks)))
    inside = inside.with_columns(_outer(inside, blocks))
    return _sum_by_name(inside, family(pl.Series(names_of(frame["name"]), dtype=pl.String)), blocks)


def _on_thread(blocks: StepBlocks) -> pl.Expr:
    """Select what is on the thread of the steps; everything where that is not known."""
    thread = blocks.steps[0].thread
    return pl.lit(True) if thread is None else pl.col("thread").eq_missing(thread)


def _outer(ranges: pl.DataFrame, blocks: StepBlocks) -> pl.Series:
    """Return the time of ranges in no other range, on the thread of the steps; else 0."""
    took = np.array([step.end_ns - step.start_ns for step in blocks.steps], np.int64)
    wraps = ~pl.col("after") & (pl.col("ns") >= _WRAPS * pl.Series(took[ranges["step"].to_numpy()]))
    # In order of start, and of those that start together the longest first.
    before = pl.col("end_ns").cum_max().shift(1).over("step", "thread")
    outer = (
        ranges.with_row_index("at")
        .filter(_on_thread(blocks) & ~wraps)
        .sort("start_ns", "end_ns", descending=[False, True], maintain_order=True)
        .filter(before.is_null() | (pl.col("start_ns") >= before))
    )
    outer_ns = np.zeros(ranges.height, np.int64)
    outer_ns[outer["at"].to_numpy()] = outer["ns"].to_numpy()
    return pl.Series("outer_ns", outer_ns)


def api_rows(
    trace: Trace, blocks: StepBlocks, process: int | None
) -> tuple[CallDigest, ...] | NotApplicable:
    """Sum API calls up by name, those with most time first."""
    if not trace.has("api_calls"):
        called = advice_for(trace.meta).calls_name
        return NotApplicable("api", f"the capture has no {called}")
    frame = trace.table("api_calls", _WHEN)
    texts = pl.Series(names_of(frame["name"]), dtype=pl.String)
    return _sum_by_name(blocks.begun_in(_of(process, frame)), texts, blocks)


def _of(process: int | None, frame: pl.DataFrame) -> pl.DataFrame:
    """Keep the events of a process; those that name none may be anyone's."""
    if process is None:
        return frame
    return frame.filter((pl.col("process") == process) | pl.col("process").is_null())


def _sum_by_name(
    events: pl.DataFrame, texts: pl.Series, blocks: StepBlocks
) -> tuple[CallDigest, ...]:
    """Add events up by what `texts` call their names; the rest is a row without a name."""
    if events.is_empty():
        return ()
    names_sorted = texts.unique().sort()
    of_name = names_sorted.search_sorted(texts).cast(pl.Int64)
    code = of_name.gather(events["name"].to_physical()).to_numpy()
    groups = ranked(code, events["ns"].to_numpy(), MAX_NAMES)
    host = blocks.sums(events, groups.code, "ns", groups.count)
    calls = blocks.sums(events, groups.code, None, groups.count)
    gpu = None
    if "work_ns" in events.columns and not events["work_ns"].null_count():
        gpu = blocks.sums(events, groups.code, "work_ns", groups.count)
    outer = np.zeros(groups.count, np.bool_)
    if "outer_ns" in events.columns:
        outer_ns, total_ns = (
            np.bincount(groups.code, events[c].to_numpy(), groups.count) for c in ("outer_ns", "ns")
        )
        outer = (outer_ns >= _MIN_STEP_SHARE * total_ns) & (outer_ns > 0)
    names = [plain(name) or NO_NAME for name in names_sorted.gather(groups.groups)] + [""]
    return tuple(
        CallDigest(
            name=names[at],
            calls=rounded(calls[at], 3),
            host_ns=rounded(host[at]),
            gpu_ns=None if gpu is None else rounded(gpu[at]),
            outer=bool(outer[at]) and at < len(groups.groups),
        )
        for at in range(groups.count)
    )


MAX_COPIES = 100
_NO_TEXT = pl.lit(None, pl.String)
_KINDS = {
    "copies": (pl.col("kind"), pl.col("src_kind"), pl.col("dst_kind")),
    "memsets": (pl.lit("Memset"), _NO_TEXT, pl.col("memory_kind")),
}
"""Operation, and kinds of memory read and written, of each table of copies and memsets."""
_KEYS = ("operation", "src_kind", "dst_kind")


def copy_rows(trace: Trace, blocks: StepBlocks, work: pl.DataFrame) -> tuple[CopyDigest, ...]:
    """Sum copies and memsets up by direction and kinds of memory, the most expensive first."""
    rows = pl.concat([_copies(trace, work, table) for table in _KINDS])
    if rows.is_empty():
        return ()
    kinds = rows.select(_KEYS).unique().sort(_KEYS).with_row_index("code")
    rows = rows.join(kinds, on=_KEYS, how="left", nulls_equal=True, maintain_order="left")
    code = rows["code"].cast(pl.Int64).to_numpy()
    groups = ranked(code, rows["ns"].to_numpy(), MAX_COPIES)
    times, sizes, calls = (
        blocks.sums(rows, groups.code, column, groups.count) for column in ("ns", "bytes", None)
    )
    keys = [*kinds.select(_KEYS)[groups.groups].iter_rows(), ("", None, None)]
    return tuple(
        CopyDigest(
            operation=plain(keys[at][0] or ""),
            src_kind=keys[at][1],
            dst_kind=keys[at][2],
            calls=rounded(calls[at], 3),
            ns=rounded(times[at]),
            bytes=rounded(sizes[at]),
        )
        for at in range(groups.count)
    )


def _copies(trace: Trace, work: pl.DataFrame, table: str) -> pl.DataFrame:
    copies = work.filter(pl.col("table") == GPU_WORK.index(table))
    kinds = ["kind", "src_kind", "dst_kind"] if table == "copies" else ["memory_kind"]
    rows = trace.table(table, ["bytes", *kinds])[copies["row"]]
    keys = [e.cast(pl.String).alias(key) for key, e in zip(_KEYS, _KINDS[table], strict=True)]
    size = pl.col("bytes").fill_null(0)
    return rows.select(*keys, size).hstack(copies.select("ns", "block", "after"))


def phase_series(
    trace: Trace, blocks: StepBlocks, work: pl.DataFrame
) -> dict[str, Series] | NotApplicable:
    """Sum GPU work up by phase, the most expensive first."""
    phases = phases_of_work(trace, work)
    names = phases.unique().sort()
    if names.to_list() == [UNKNOWN]:
        return NO_PHASES
    sums = blocks.sums(work, number(phases), "ns", len(names))
    order = np.argsort(-sums.sum(axis=1), kind="stable")
    return {names[int(at)]: rounded(sums[at]) for at in order}


def memory_peak(trace: Trace, selection: Selection) -> dict[str, int] | NotApplicable:
    """Find the largest number of bytes in use at once on each GPU, in all of the capture."""
    if not trace.has("memory_events"):
        return no_memory(trace)
    try:
        memories = DeviceMemories(trace, replace(selection, device=None))
    except DamagedCaptureError as error:
        return NotApplicable("memory", str(error))
    if memories.spans is not None and not len(memories.spans):
        return NotApplicable("memory", "the selected ranges take no time")
    gpus = [gpu for gpu in memories.gpus if selection.device in (None, gpu)]
    if not gpus:
        return NotApplicable("memory", "no memory of the GPUs was recorded")
    return {str(gpu): memories.view(gpu).peak_bytes for gpu in gpus}
