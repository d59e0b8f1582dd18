"""What a baseline holds, as tables: `gpusight baseline`."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl

from gpusight.comparison.named_metrics import LIST, quantity
from gpusight.results import Composite, Fact, Field, Fmt, TableResult

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from gpusight.comparison.compared_quantities import ComparedQuantity
    from gpusight.comparison.digest import Digest


COMMAND = "baseline"
CAPTURE_FIELDS = (
    Field("steps", "Steps", Fmt.COUNT, "Steps that stand for it; 0: the window stands for one"),
    Field("step_ns", "Step", Fmt.TIME, "Mean time of a step"),
    Field(
        "spread_ns",
        "Spread",
        Fmt.TIME,
        "Standard deviation of steps, or of blocks of them where they are many; null for one",
    ),
    Field("min_ns", "Shortest", Fmt.TIME, "Shortest step"),
    Field("max_ns", "Longest", Fmt.TIME, "Longest step"),
    Field("kernel_ns", "Kernels", Fmt.TIME, "Durations of kernels a step, summed over GPUs", False),
    Field("blocks", "Blocks", Fmt.COUNT, "Blocks that the steps were joined to", False),
    Field("findings", "Findings", Fmt.COUNT, "What `diagnose` finds; null if not known", False),
    Field("gpus", "GPUs", Fmt.TEXT, "GPUs that worked", False),
    Field("tool", "Made by", Fmt.TEXT, "Who made the capture", False),
    Field("label", "Capture", Fmt.NAME, "Name of the file"),
)
METRIC_FIELDS = {
    fmt: (
        Field("mean", "Mean", fmt, "Mean over captures"),
        Field("low", "Lowest", fmt, "Of one capture"),
        Field("high", "Highest", fmt, "Of one capture"),
        Field("captures", "Captures", Fmt.COUNT, "Captures that know it"),
        Field("metric", "Metric", Fmt.TEXT, "What `gate --max` calls it"),
    )
    for fmt in (Fmt.TIME, Fmt.COUNT, Fmt.BYTES)
}
TIME_FIELDS = METRIC_FIELDS[Fmt.TIME]
COUNT_FIELDS = METRIC_FIELDS[Fmt.COUNT]
BYTE_FIELDS = METRIC_FIELDS[Fmt.BYTES]
_SECTIONS = {
    Fmt.TIME: ("times", "Times a step"),
    Fmt.COUNT: ("counts", "Counts"),
    Fmt.BYTES: ("bytes", "Bytes"),
}
FACTS = (
    Field("file", "File", Fmt.TEXT, "Where it lies; null where it was not written"),
    Field("bytes", "Size", Fmt.BYTES, "Size of the file; null where it was not written"),
    Field("captures", "Captures", Fmt.COUNT, "Captures that it sums up"),
    Field("step_ns", "Step", Fmt.TIME, "Mean time of a step, over captures"),
    Field(
        "spread_ns",
        "Spread",
        Fmt.TIME,
        "Standard deviation between captures; null for one: then nobody knows how runs differ",
    ),
)


@dataclass(frozen=True)
class Baseline:
    """Captures summed up, and the file that they were written to or read from."""

    digests: tuple[Digest, ...]
    file: str | None = None
    size: int | None = None
    """Bytes of the file."""


def baseline_page(baseline: Baseline, *, metrics: bool = True) -> Composite:
    """Show captures that were summed up, and every metric that they know."""
    digests = baseline.digests
    means = quantity(digests, "step_time").means
    values = {
        "file": baseline.file,
        "bytes": baseline.size,
        "captures": len(digests),
        "step_ns": float(np.mean(means)),
        "spread_ns": _spread(means),
    }
    facts = (Fact(f.key, f.label, values[f.key], f.fmt, f.meaning) for f in FACTS)
    return Composite(
        COMMAND,
        "Baseline",
        tuple(fact for fact in facts if fact.value is not None or fact.key == "spread_ns"),
        (_captures(digests), *(_metrics(digests) if metrics else ())),
        notes=tuple(_notes(digests)),
    )


def _captures(digests: Iterable[Digest]) -> TableResult:
    frame = pl.DataFrame(
        [_row(digest) for digest in digests],
        schema={f.key: _TYPES[f.fmt] for f in CAPTURE_FIELDS},
    )
    return TableResult("captures", "Captures", CAPTURE_FIELDS, frame)


_TYPES = {
    Fmt.COUNT: pl.Int64(),
    Fmt.TIME: pl.Float64(),
    Fmt.TEXT: pl.String(),
    Fmt.NAME: pl.String(),
}


def _row(digest: Digest) -> dict[str, Any]:
    gpus = (f"{n} x {name}" if n > 1 else name for name, n in Counter(digest.gpus).items())
    return {
        "steps": digest.steps,
        "step_ns": np.average(digest.step_ns, weights=digest.blocks),
        "spread_ns": _spread(digest.step_ns),
        "min_ns": digest.min_ns,
        "max_ns": digest.max_ns,
        "kernel_ns": np.average(digest.kernel_ns, weights=digest.blocks),
        "blocks": len(digest.blocks),
        "findings": None if "findings" in digest.missing else len(digest.findings),
        "gpus": ", ".join(gpus),
        "tool": digest.tool,
        "label": digest.label,
    }


def _spread(values: Sequence[float]) -> float | None:
    return float(np.std(values, ddof=1)) if len(values) > 1 else None


def _metrics(digests: Sequence[Digest]) -> list[TableResult]:
    """List what is known, those of the ledger by what they cost; one table a unit."""
    entries = dict.fromkeys(entry for digest in digests for entry, _ in digest.entries())
    spent = [quantity(digests, entry) for entry in entries]
    ledger = sorted(spent, key=lambda one: -(one.mean or 0.0))
    every = [*(quantity(digests, key) for key in LIST), *ledger]
    tables = []
    for fmt, (key, title) in _SECTIONS.items():
        rows = [_metric(one) for one in every if one.fmt is fmt and one.known]
        if rows:
            columns = {
                f.key: pl.String() if f.key == "metric" else pl.Float64() for f in TIME_FIELDS
            }
            frame = pl.DataFrame(rows, schema=columns).with_columns(
                pl.col("captures").cast(pl.Int64)
            )
            tables.append(TableResult(key, title, METRIC_FIELDS[fmt], frame))
    return tables


_METRIC_SCHEMA = {
    **dict.fromkeys(("mean", "low", "high"), pl.Float64()),
    "captures": pl.Int64(),
    "metric": pl.String(),
}


def _metric(one: ComparedQuantity) -> dict[str, Any]:
    return {
        "mean": one.mean,
        "low": min(one.means),
        "high": max(one.means),
        "captures": len(one.known),
        "metric": one.key,
    }


def _notes(digests: Sequence[Digest]) -> Iterable[str]:
    """Give what is to be known of the captures; what holds for all of them once."""
    told = [(*digest.notes, *_unknown(digest)) for digest in digests]
    counts = Counter(note for notes in told for note in set(notes))
    for digest, notes in zip(digests, told, strict=True):
        for note in notes:
            if counts[note] == len(digests):
                counts[note] = 0
                yield note
            elif counts[note]:
                yield f"{digest.label}: {note}"
    if len(digests) == 1:
        yield (
            "one capture: how much runs differ is not known; save three or more for a gate that "
            "does not trip on noise"
        )


def _unknown(digest: Digest) -> list[str]:
    """Say what is missing; notes have already said why steps are."""
    return [f"no {part}: {why}" for part, why in digest.missing.items() if part != "steps"]
