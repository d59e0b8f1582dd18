"""Baselines: digests as JSON for a repository, validated when read, and shown."""

from __future__ import annotations

import math
import re
import shlex
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec
import numpy as np
import polars as pl

from gpusight._version import __version__
from gpusight.analysis.aggregates import schema_of
from gpusight.analysis.capture_completeness import KERNELS
from gpusight.comparison.comparability import mixed_times, other_programs
from gpusight.comparison.digest import FORMAT, MAX_BLOCKS, Digest
from gpusight.comparison.digest_rows import (
    MAX_COPIES,
    MAX_KERNELS,
    MAX_LAUNCHES,
    MAX_NAME_CHARS,
    MAX_NAMES,
)
from gpusight.comparison.named_metrics import JOB_LIST, LIST, fixes, quantity
from gpusight.errors import BaselineError, UsageError
from gpusight.output_files import write_file
from gpusight.results import Composite, Fact, Field, Fmt, TableResult
from gpusight.sniff import BASELINE, is_capture_name, refuse_capture

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from pathlib import Path

    from gpusight.comparison.digest import Series


MAX_DIGESTS = 1_000
MAX_BYTES = 64 << 20
MAX_VALUES = 4_000_000
"""Values in a file, by its commas: each takes far more memory than the two bytes it may have."""


# Checks of what was read --------------------------------------------------------------------------

_MAX_NUMBER = 1e18
"""Nanoseconds or bytes: sums of it stay far from where numbers end."""
_MAX_ROUNDING = 1e-6
_MAX_ROWS = {
    "gpus": 10_000,
    "ledger": 1_000,
    "phases": 1_000,
    "kernels": MAX_KERNELS + 1,
    "order": MAX_LAUNCHES,
    "ranges": MAX_NAMES + 1,
    "api": MAX_NAMES + 1,
    "copies": MAX_COPIES + 1,
    "memory_peak": 10_000,
    "findings": 1_000,
    "missing": 1_000,
    "lost": 10,
    "not_evaluated": 1_000,
    "reported_losses": 1_000,
    "notes": 1_000,
}


def fault(digest: Digest) -> str:
    """Return what is wrong with a digest that was read; empty where nothing is."""
    for check in (_check_values, _check_steps):
        if problem := check(digest):
            return f"{digest.label[:80] or 'a capture without a name'}: {problem}"
    return ""


def _check_values(digest: Digest) -> str:
    """Check the number of rows, and every number and every text, however deep."""
    for key, most in _MAX_ROWS.items():
        if len(getattr(digest, key)) > most:
            return f"it has too many rows of {key}"
    for key, field in digest.document().items():
        for value in _flat(field):
            if isinstance(value, str) and len(value) > MAX_NAME_CHARS:
                return f"a text of {key} is too long"
            if isinstance(value, (int, float)) and not 0 <= value <= _MAX_NUMBER:
                return f"a number of {key} is negative or too large"
    return ""


def _flat(value: Any) -> Iterator[Any]:
    if isinstance(value, dict):
        for key, item in value.items():
            yield key
            yield from _flat(item)
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _flat(item)
    else:
        yield value


def _check_steps(digest: Digest) -> str:
    """Check that steps, blocks, series and sums agree."""
    if not 0 < len(digest.blocks) <= MAX_BLOCKS or min(digest.blocks) < 1:
        return f"steps are in 1 to {MAX_BLOCKS} blocks of at least one"
    if sum(digest.blocks) != max(1, digest.steps):
        return f"its blocks have {sum(digest.blocks):,} steps instead of {digest.steps:,}"
    if not digest.min_ns <= digest.median_ns <= digest.max_ns:
        return "the median of its steps is not between the shortest and the longest"
    if digest.order and max(digest.order) >= len(digest.kernels):
        return "the order of launches names kernels that it does not have"
    if sum(digest.step_ns) <= 0:
        return "its steps take no time"
    for key, series in _series(digest):
        if len(series) != len(digest.blocks):
            return f"{key} does not have a value for each block"
    if not _sum_to(digest.ledger.values(), digest.step_ns):
        return "the ledger does not sum to the steps"
    if not _sum_to((kernel.ns for kernel in digest.kernels), digest.kernel_ns):
        return "the kernels do not sum to the kernel time"
    return ""


def _series(digest: Digest) -> Iterator[tuple[str, Series]]:
    for key in ("step_ns", "between_ns", "kernel_ns"):
        yield key, getattr(digest, key)
    if digest.job is not None:
        known = (digest.job.step_ns, digest.job.communication_ns, digest.job.wait_ns)
        yield from (("job", series) for series in known if series is not None)
    for key in ("ledger", "phases"):
        yield from ((key, series) for series in getattr(digest, key).values())
    for kernel in digest.kernels:
        yield from (("kernels", series) for series in (kernel.ns, kernel.calls))
    for key in ("ranges", "api"):
        for row in getattr(digest, key):
            known = (row.calls, row.host_ns, row.gpu_ns)
            yield from ((key, series) for series in known if series is not None)
    for copy in digest.copies:
        yield from (("copies", series) for series in (copy.calls, copy.ns, copy.bytes))


def _sum_to(parts: Iterable[Series], totals: Series) -> bool:
    rows = list(parts)
    return all(
        math.isclose(
            math.fsum(row[block] for row in rows), total, rel_tol=_MAX_ROUNDING, abs_tol=1.0
        )
        for block, total in enumerate(totals)
    )


# Reading ------------------------------------------------------------------------------------------

_File = TypeVar("_File", bound=msgspec.Struct)
_MARK_AT_END = re.compile(rb'"gpusight_baseline"\s*:\s*\d+\s*\}\s*\Z')
"""Tools that sort keys put ours last."""
_MARK_BYTES = 256
_BOM = b"\xef\xbb\xbf"
_MAX_REASON_CHARS = 200


class _Marked(msgspec.Struct, frozen=True):
    """The key with the format of a file."""

    gpusight_baseline: int
    """`FORMAT`; written first, so that the beginning of a file identifies it."""


class _Baseline(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A whole file."""

    gpusight_baseline: int
    gpusight: str
    """Version that wrote it."""
    digests: tuple[Digest, ...]


def is_baseline(path: Path) -> bool:
    """Check by how a file begins or ends; False for what cannot be read."""
    try:
        if not path.is_file():
            return False
        with path.open("rb") as file:
            if BASELINE.match(file.read(_MARK_BYTES)):
                return True
            file.seek(max(0, path.stat().st_size - _MARK_BYTES))
            return _MARK_AT_END.search(file.read(_MARK_BYTES)) is not None
    except (OSError, ValueError):  # a name with a NUL is no name
        return False


def load_baseline(path: Path) -> tuple[Digest, ...]:
    """Read a baseline; raise `BaselineError` where it is none that can be used."""
    try:
        with path.open("rb") as file:
            data = file.read(MAX_BYTES + 1)
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or str(error)
        raise BaselineError(f"cannot read {path}", why=why, hint="check the path") from error
    if len(data) > MAX_BYTES or data.count(b",") > MAX_VALUES:
        raise _unusable(path, "it is too large for a baseline")
    if not is_baseline(path):
        hint = "create one: gpusight baseline save CAPTURE… -o baseline.json"
        raise BaselineError(f"{path} is not a baseline", hint=hint)
    data = data.removeprefix(_BOM)
    file_format = _decoded(path, data, _Marked).gpusight_baseline
    if file_format != FORMAT:
        why = f"format {file_format}, and this gpusight reads {FORMAT}"
        again = _save_again(path)
        hint = f"use a newer gpusight, or {again}" if file_format > FORMAT else again
        raise BaselineError(f"{path} is a baseline of another version", why=why, hint=hint)
    digests = _decoded(path, data, _Baseline).digests
    if not digests or len(digests) > MAX_DIGESTS:
        why = f"it has {len(digests):,} captures; allowed are 1 to {MAX_DIGESTS:,}"
        raise _unusable(path, why)
    for digest in digests:
        if why := fault(digest):
            raise _unusable(path, why)
    return digests


def _decoded(path: Path, data: bytes, file_type: type[_File]) -> _File:
    try:
        return msgspec.json.decode(data, type=file_type)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise _unusable(path, str(error)[:_MAX_REASON_CHARS]) from error


def _unusable(path: Path, why: str) -> BaselineError:
    return BaselineError(f"{path} is not a valid baseline", why=why, hint=_save_again(path))


def _save_again(path: Path) -> str:
    return f"save it again: gpusight baseline save CAPTURE… -o {shlex.quote(str(path))}"


# Writing ------------------------------------------------------------------------------------------

_NUMBERS_PER_LINE = 40
"""Of the order of launches."""


def save_baseline(digests: Sequence[Digest], path: Path) -> int:
    """Write a baseline, replacing nothing but a baseline; return its size in bytes."""
    check_baseline_output(path)
    if not 0 < len(digests) <= MAX_DIGESTS:
        what = f"cannot save a baseline of {len(digests):,} captures"
        raise UsageError(what, hint=f"give 1 to {MAX_DIGESTS:,}")
    for digest in digests:
        if KERNELS in digest.lost:
            raise UsageError(
                f"{digest.label} cannot be a baseline",
                why=digest.lost[KERNELS],
                hint="record it again: a gate against it could only report missing data",
            )
    if mixed := mixed_times(digests):
        raise UsageError(
            "these captures cannot be one baseline",
            why=mixed,
            hint="record all with gpusight record, or add --pace off for times under the profiler",
        )
    others = other_programs(digests)
    if others:
        raise UsageError(
            "these captures are not repeats of one program",
            why=others,
            hint="save a baseline for each program",
        )
    data = _document(digests).encode()
    if len(data) > MAX_BYTES or data.count(b",") > MAX_VALUES:
        raise UsageError("the baseline would be too large", hint="save fewer captures")
    return write_file(path, data)


def check_baseline_output(path: Path) -> None:
    """Refuse to write a baseline over anything but a baseline."""
    refuse_capture(path, None)
    if is_capture_name(path):
        raise UsageError(f"{path} is named like a capture", hint="choose another name for -o")
    if not path.parent.is_dir():
        hint = "create it first, or choose another name for -o"
        raise UsageError(f"the folder of {path} does not exist", hint=hint)
    if path.exists() and not is_baseline(path):
        why = "it exists and is not a baseline"
        raise UsageError(f"{path} is not replaced", why=why, hint="choose another name for -o")


def _document(digests: Iterable[Digest]) -> str:
    """Write a field per line and a row per line, so that a change is a small diff."""
    documents = []
    for digest in digests:
        fields = (f" {_text(key)}: {_field(value)}" for key, value in digest.document().items())
        documents.append("{\n" + ",\n".join(fields) + "\n}")
    head = f'{{\n"gpusight_baseline": {FORMAT},\n"gpusight": {_text(__version__)},\n"digests": [\n'
    return head + ",\n".join(documents) + "\n]\n}\n"


def _field(value: Any) -> str:
    if isinstance(value, dict) and value:
        lines = (f"  {_text(key)}: {_text(item)}" for key, item in value.items())
        return "{\n" + ",\n".join(lines) + "\n }"
    if isinstance(value, (list, tuple)) and value and isinstance(value[0], (dict, str)):
        return "[\n" + ",\n".join(f"  {_text(item)}" for item in value) + "\n ]"
    if isinstance(value, (list, tuple)) and len(value) > _NUMBERS_PER_LINE:
        starts = range(0, len(value), _NUMBERS_PER_LINE)
        lines = (f"  {_text(value[at : at + _NUMBERS_PER_LINE])[1:-1]}" for at in starts)
        return "[\n" + ",\n".join(lines) + "\n ]"
    return _text(value)


def _text(value: Any) -> str:
    return msgspec.json.encode(_short(value)).decode()


def _short(value: Any) -> Any:
    """Turn whole floats to integers, which halves the size of a baseline."""
    if isinstance(value, dict):
        return {key: _short(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_short(item) for item in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value


# Tables -------------------------------------------------------------------------------------------

COMMAND = "baseline"
CAPTURE_FIELDS = (
    Field(
        "steps",
        "Steps",
        Fmt.COUNT,
        "Steps in the window; 0: no steps found, the window counts as one",
    ),
    Field("step_ns", "Step time", Fmt.TIME, "The window divided by its steps"),
    Field("stddev_ns", "Std. dev.", Fmt.TIME, "Of the durations of steps; null for one step"),
    Field("min_ns", "Shortest", Fmt.TIME, "Shortest duration of a step"),
    Field("max_ns", "Longest", Fmt.TIME, "Longest duration of a step"),
    Field("kernel_ns", "Kernels", Fmt.TIME, "Kernel time per step, summed over GPUs", False),
    Field("blocks", "Blocks", Fmt.COUNT, "Blocks of steps", False),
    Field(
        "findings",
        "Findings",
        Fmt.COUNT,
        "Findings in the plan of `diagnose`; null if unknown",
        False,
    ),
    Field("gpus", "GPUs", Fmt.TEXT, "GPUs in use", False),
    Field("tool", "Profiler", Fmt.TEXT, "Profiler that made the capture", False),
    Field("label", "Capture", Fmt.NAME, "Name of the file"),
)
METRIC_FIELDS = {
    fmt: (
        Field("mean", "Mean", fmt, "Mean over captures"),
        Field("low", "Lowest", fmt, "Of one capture"),
        Field("high", "Highest", fmt, "Of one capture"),
        Field("captures", "Captures", Fmt.COUNT, "Captures that have the metric"),
        Field("metric", "Metric", Fmt.TEXT, "Name for `gate --max`"),
    )
    for fmt in (Fmt.TIME, Fmt.COUNT, Fmt.BYTES)
}
TIME_FIELDS = METRIC_FIELDS[Fmt.TIME]
COUNT_FIELDS = METRIC_FIELDS[Fmt.COUNT]
BYTE_FIELDS = METRIC_FIELDS[Fmt.BYTES]
_SECTIONS = {
    Fmt.TIME: ("times", "Times per step"),
    Fmt.COUNT: ("counts", "Counts"),
    Fmt.BYTES: ("bytes", "Bytes"),
}
FACTS = (
    Field("file", "File", Fmt.TEXT, "Path; null where it was not written"),
    Field("bytes", "Size", Fmt.BYTES, "Size of the file; null where it was not written"),
    Field("captures", "Captures", Fmt.COUNT, "Captures in the baseline"),
    Field("step_ns", "Step time", Fmt.TIME, "Mean step time over captures"),
    Field(
        "spread_ns",
        "Run-to-run std. dev.",
        Fmt.TIME,
        "Standard deviation of the step times of captures; null for one capture",
    ),
)


_METRIC_SCHEMA = {
    **dict.fromkeys(("mean", "low", "high"), pl.Float64()),
    "captures": pl.Int64(),
    "metric": pl.String(),
}


@dataclass(frozen=True)
class Baseline:
    """Summarized captures, and the file that they were written to or read from."""

    digests: tuple[Digest, ...]
    file: str | None = None
    size: int | None = None
    """Bytes of the file."""


def baseline_page(baseline: Baseline, *, metrics: bool = True) -> Composite:
    """Show the captures of a baseline and their metrics."""
    digests = baseline.digests
    means = quantity(digests, "step_time").means
    values = {
        "file": baseline.file,
        "bytes": baseline.size,
        "captures": len(digests),
        "step_ns": float(np.mean(means)),
        "spread_ns": float(np.std(means, ddof=1)) if len(means) > 1 else None,
    }
    captures = pl.DataFrame(
        [_row(digest) for digest in digests],
        schema=schema_of(CAPTURE_FIELDS, pl.Float64(), counts=pl.Int64()),
    )
    facts = (Fact(f.key, f.label, values[f.key], f.fmt, f.meaning) for f in FACTS)
    return Composite(
        COMMAND,
        "Baseline",
        tuple(fact for fact in facts if fact.value is not None or fact.key == "spread_ns"),
        (
            TableResult("captures", "Captures", CAPTURE_FIELDS, captures),
            *(_metrics(digests) if metrics else ()),
        ),
        notes=tuple(_notes(digests)),
    )


def _row(digest: Digest) -> dict[str, Any]:
    gpus = (f"{n} x {name}" if n > 1 else name for name, n in Counter(digest.gpus).items())
    return {
        "steps": digest.steps,
        "step_ns": np.average(digest.step_ns, weights=digest.blocks),
        "stddev_ns": digest.stddev_ns,
        "min_ns": digest.min_ns,
        "max_ns": digest.max_ns,
        "kernel_ns": np.average(digest.kernel_ns, weights=digest.blocks),
        "blocks": len(digest.blocks),
        "findings": None if "findings" in digest.missing else len(fixes(digest)),
        "gpus": ", ".join(gpus),
        "tool": digest.tool,
        "label": digest.label,
    }


def _metrics(digests: Sequence[Digest]) -> list[TableResult]:
    """List the metrics, those of the ledger by time; one table per unit."""
    entries = dict.fromkeys(entry for digest in digests for entry in digest.ledger)
    ledger = [quantity(digests, entry) for entry in entries]
    ledger.sort(key=lambda metric: -(metric.mean or 0.0))
    jobs = any(digest.job is not None for digest in digests)
    keys = (*LIST, *(JOB_LIST if jobs else ()))
    metrics = [*(quantity(digests, key) for key in keys), *ledger]
    tables = []
    for fmt, (key, title) in _SECTIONS.items():
        rows = [
            (metric.mean, min(metric.means), max(metric.means), len(metric.known), metric.key)
            for metric in metrics
            if metric.fmt is fmt and metric.known
        ]
        if rows:
            frame = pl.DataFrame(rows, schema=_METRIC_SCHEMA, orient="row")
            tables.append(TableResult(key, title, METRIC_FIELDS[fmt], frame))
    return tables


def _notes(digests: Sequence[Digest]) -> Iterator[str]:
    """List the notes of the captures and their missing parts; those of all captures once."""
    notes = [
        # Notes already explain why steps are missing.
        (*d.notes, *(f"no {part}: {why}" for part, why in d.missing.items() if part != "steps"))
        for d in digests
    ]
    counts = Counter(note for of_capture in notes for note in set(of_capture))
    for digest, of_capture in zip(digests, notes, strict=True):
        for note in of_capture:
            if counts[note] == len(digests):
                counts[note] = 0
                yield note
            elif counts[note]:
                yield f"{digest.label}: {note}"
    if len(digests) == 1:
        yield (
            "one capture: run-to-run variance unknown; save three or more, so that noise does not "
            "fail the gate"
        )
