"""What the texts in a printed table call a metric, and which metric, scale and unit that is."""

from __future__ import annotations

import re
from collections import Counter
from typing import NamedTuple

import polars as pl

from gpusight.model.metrics.labels import is_recent, metric_for
from gpusight.model.metrics.names import canonical
from gpusight.model.metrics.units import scale_of, unit_of
from gpusight.readers.names import encode
from gpusight.readers.ncu.printed.headings import is_metric_name, with_unit
from gpusight.readers.ncu.printed.launches import capability

_LABEL_AND_NAME = re.compile(r"(?P<label>.*\S)\s+\((?P<name>[^\s()]*_[^\s()]*)\)")
_MAX_LABEL_CHARS = 500
_OTHER_NAME = re.compile(r"[A-Za-z]\w*[_.]\w[\w.]*")
"""Names without a unit before two underscores, such as `inst_executed`."""
_SUMMARY_PAGE = {
    "compute throughput": "sm__throughput.avg.pct_of_peak_sustained_elapsed",
    "cycles": "gpc__cycles_elapsed.max",
    "duration": "gpu__time_duration.sum",
    "memory throughput": "gpu__compute_memory_throughput.avg.pct_of_peak_sustained_elapsed",
    "# registers": "launch__registers_per_thread",
}
"""Headings of the summary page of Nsight Compute's window."""


class Said(NamedTuple):
    """How a table names a metric."""

    section: str
    body: str
    """Chart or table inside the section."""
    text: str
    unit: str
    cc: str = ""
    """Compute capability of the GPU, on which a few labels depend."""
    nth: int = 0
    """Earlier rows of the same launch and name: average, then largest, smallest, sum."""


class Named(NamedTuple):
    """What that means."""

    metric: str
    label: str | None
    """What the file said, where that is something else."""
    scale: float
    unit: str
    is_known: bool


class Names:
    """Everything that a file calls metrics by, numbered in order of appearance."""

    def __init__(self) -> None:
        self._numbers: dict[Said, int] = {}

    def number(self, said: Said) -> int:
        """Give the number of a name."""
        return self._numbers.setdefault(said, len(self._numbers))

    def numbers(self, frame: pl.DataFrame) -> pl.Series:
        """Give the numbers of a frame's rows, from the columns of `Said`."""
        columns = list(Said._fields)
        found = frame.select(columns).unique(maintain_order=True)
        codes = [self.number(Said(*row)) for row in found.iter_rows()]
        known = found.with_columns(pl.Series("name", codes, dtype=pl.UInt32))
        rows = frame.select(columns).join(known, on=columns, how="left", maintain_order="left")
        return rows.get_column("name")

    def meanings(self) -> pl.DataFrame:
        """Give one row for each number, in their order: what it stands for."""
        places = {(said.section, said.body, said.text) for said in self._numbers}
        texts = Counter(text for *_, text in places)
        recent = is_recent(texts)
        rows = [
            meaning_of(said, is_alone=texts[said.text] == 1, recent=recent)
            for said in self._numbers
        ]
        columns = list(zip(*rows, strict=True)) or [()] * len(Named._fields)
        said = dict(zip(Named._fields, columns, strict=True))
        named = {n: pl.Series(said[n], dtype=pl.String) for n in ("metric", "label", "unit")}
        return pl.DataFrame(
            {name: encode(text.replace("", None)) for name, text in named.items()}
            | {
                "scale": pl.Series(said["scale"], dtype=pl.Float64),
                "is_known": pl.Series(said["is_known"], dtype=pl.Boolean),
            }
        )


def meaning_of(said: Said, *, is_alone: bool = True, recent: bool = False) -> Named:
    """Find the metric that a text stands for; where none is known it keeps that text as name.

    A text that is not `is_alone` stands in several places for different things, so that the place
    becomes part of the name. `recent` tells labels that changed their meaning in 2025.
    """
    metric, label = _metric(said, recent=recent)
    scale, unit = scale_of(said.unit)
    if metric is None:
        place = () if is_alone else (said.section, said.body)
        text = ": ".join(part for part in (*place, said.text) if part)
        return Named(text, None, scale, unit, is_known=False)
    name = canonical(metric)
    # Which unit a count has is known better from its name than from what versions print.
    return Named(name, label if label != name else None, scale, unit_of(name) or unit, True)


def _metric(said: Said, *, recent: bool) -> tuple[str | None, str]:
    both = _LABEL_AND_NAME.fullmatch(said.text) if len(said.text) <= _MAX_LABEL_CHARS else None
    if both:
        return both["name"], both["label"]
    if is_metric_name(said.text):
        return said.text, said.text
    major, minor = capability(said.cc)
    found = metric_for(
        said.section,
        said.text,
        said.unit,
        item=said.body,
        compute=None if major is None or minor is None else (major, minor),
        recent=recent,
        nth=said.nth,
    )
    if found is None and _OTHER_NAME.fullmatch(said.text):
        return said.text, said.text
    if found is None and not said.section:
        label = with_unit(said.text)[0]
        found = _SUMMARY_PAGE.get(label.casefold()) or metric_for("", label, said.unit)
    return found, said.text
