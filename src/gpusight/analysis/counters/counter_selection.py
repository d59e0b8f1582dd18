"""Which launches and metrics of an ncu report are selected."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import polars as pl

from gpusight.analysis.aggregates import names_of
from gpusight.analysis.name_patterns import (
    MAX_NAME_CHARS,
    is_regex,
    kernel_codes,
    matcher,
    matching,
    near_matches,
)
from gpusight.analysis.selection import (
    EVERYTHING,
    ResolvedSelection,
    Selection,
)
from gpusight.errors import MissingDataError, UsageError
from gpusight.naming.kernel_names import unique_short_names
from gpusight.naming.metric_label_table import LABELS
from gpusight.naming.metric_labels import metric_for
from gpusight.naming.metric_names import canonical
from gpusight.results import NotApplicable
from gpusight.trace.schema_gpu import BETWEEN_STACKS

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from gpusight.trace.trace import Trace


_MAX_RANGE_DEPTH = 64
"""Max. depth of nested ranges: a hostile name could consist of slashes only."""


def no_counters(command: str) -> NotApplicable:
    """Explain that a capture holds no hardware counters."""
    return NotApplicable(
        command,
        "the capture has no hardware counters of kernels",
        "profile the kernels with: ncu --set full -o report PROGRAM",
    )


class LaunchSelection(ResolvedSelection):
    """A selection of profiled launches; ranges are those open when they were launched."""

    def __init__(
        self,
        trace: Trace,
        selection: Selection = EVERYTHING,
        *,
        kernel: str | None = None,
        launches: Sequence[int] = (),
    ) -> None:
        super().__init__(trace, selection)
        self._kernel = kernel
        self._launches = launches

    @property
    def everything(self) -> bool:
        """Whether nothing is left out."""
        return not self.selection and self._kernel is None and not self._launches

    def profiles(self, columns: Sequence[str]) -> pl.DataFrame:
        """Return these columns of the selected launches, in order."""
        frame = self._load("profiles", columns, ["launch", "device", "name", "ranges"])
        if self.selection.device is not None:
            frame = frame.filter(pl.col("device") == self.selection.device)
        if self._launches:
            _check_launches(frame, self._launches)
            frame = frame.filter(pl.col("launch").is_in(list(self._launches)))
        if self._kernel is not None:
            frame = frame.filter(of_kernel(frame["name"], self._kernel))
        if self.selection.within is not None:
            frame = _inside(frame, self.selection.within)
        return frame.select(columns)

    def launches(self) -> pl.Series:
        """Return the keys of the selected launches, in order."""
        return self.profiles(["launch"])["launch"]


def of_kernel(names: pl.Series, pattern: str) -> pl.Series:
    """Mark the rows of a column of names whose kernel a pattern matches."""
    known = names_of(names)
    codes = names.to_physical().unique().sort().to_list()
    short = unique_short_names(known)
    labels = {code: (known[code], short[known[code]]) for code in codes}
    return names.to_physical().is_in(kernel_codes(labels, pattern))


def chosen_metrics(known: Iterable[str], patterns: Sequence[str]) -> list[str]:
    """Find the metrics that any of the patterns matches, in the order of `known`."""
    names = list(known)
    chosen: set[str] = set()
    for pattern in _single_patterns(patterns, set(names)):
        # By name, by its name in older versions, or by its label on the profiler's pages.
        label = metric_for("", pattern) or ""
        hits = (
            matching(pattern, names)
            or matching(canonical(pattern), names)
            or [name for name in names if name == label]
        )
        if not hits:
            near = _nearest_metrics(pattern, names)
            why = f"the nearest are {near}" if near else f"the capture has {len(names):,} others"
            raise UsageError(
                f"no metric matches {pattern!r}",
                why=why if names else "the capture has no metrics",
                hint="see: gpusight counters FILE --list",
            )
        chosen.update(hits)
    return [name for name in names if name in chosen]


_MAX_NEAREST = 3
_MIN_WORD_LIKENESS = 0.75
"""How alike two words must be to count as one, as `difflib` measures it."""
_MIN_NAME_LIKENESS = 0.5
"""Share of the words of a pattern that a suggested metric must have."""
_UNITS = {"l1": "l1tex", "tex": "l1tex", "l2": "lts", "l3": "lts"}
"""What people call the units that metrics are named after."""


def _nearest_metrics(pattern: str, names: Sequence[str]) -> str:
    """List the metrics that have most words of a pattern, in their names or labels of ncu."""
    import difflib

    wanted = _words(pattern)
    labels: dict[str, str] = {}
    for label, metric in (pair for section in LABELS.values() for pair in section.items()):
        labels[metric] = f"{labels.get(metric, '')} {label}"
    words_of = {name: _words(f"{name[:MAX_NAME_CHARS]} {labels.get(name, '')}") for name in names}
    known_words = sorted({word for words in words_of.values() for word in words})
    likeness = {
        word: {
            near: difflib.SequenceMatcher(None, word, near).ratio()
            for near in difflib.get_close_matches(word, known_words, 50, _MIN_WORD_LIKENESS)
        }
        for word in wanted
    }

    def score(name: str) -> float:
        parts = (max(likeness[w].get(n, 0.0) for n in words_of[name] or ("",)) for w in wanted)
        return sum(parts) / max(1, len(wanted))

    # Lists of other metrics, which have a colon in their names, are hardly ever meant.
    ranked = sorted(names, key=lambda name: (-round(score(name), 3), ":" in name, len(name)))
    near = [name for name in ranked[:_MAX_NEAREST] if score(name) >= _MIN_NAME_LIKENESS]
    return ", ".join(map(repr, near))


def _words(text: str) -> list[str]:
    return [_UNITS.get(word, word) for word in re.findall(r"[a-z0-9]+", text.lower())]


def _single_patterns(patterns: Sequence[str], known: set[str]) -> Iterator[str]:
    """Split patterns at commas, which separate metrics as in ncu's own option."""
    for pattern in patterns:
        is_single = pattern in known or is_regex(pattern)
        parts = [] if is_single else [part.strip() for part in pattern.split(",")]
        yield from [part for part in parts if part] or [pattern]


def _check_launches(frame: pl.DataFrame, wanted: Sequence[int]) -> None:
    known = set(frame["launch"].to_list())
    missing = [n for n in wanted if n not in known]
    if missing:
        first, last = min(known, default=0), max(known, default=0)
        raise UsageError(
            f"no launch {missing[0]} in the capture",
            hint=f"launches are numbered {first} to {last}; see: gpusight launches FILE",
        )


def _inside(frame: pl.DataFrame, within: str) -> pl.DataFrame:
    """Keep the launches inside ranges that a pattern matches."""
    texts = frame["ranges"].drop_nulls().unique().to_list()
    if not texts:
        raise MissingDataError(
            f"no range matches {within!r}",
            why="the report has no NVTX ranges",
            hint="measure with: ncu --nvtx …",
        )
    names = {text: set(range_names(text)) for text in texts}
    every_name = sorted(set().union(*names.values()))
    matches = matcher(within)
    exact = within in every_name
    chosen = {n for n in every_name if (n == within if exact else matches(n[:MAX_NAME_CHARS]))}
    if not chosen:
        raise UsageError(
            f"no range matches {within!r}",
            why="ranges are named like " + near_matches(within, every_name),
            hint="see the ranges of each launch: gpusight launches FILE --wide",
        )
    return frame.filter(pl.col("ranges").is_in([t for t in texts if names[t] & chosen]))


def range_names(text: str) -> Iterator[str]:
    """Yield the names that ranges can be selected by: each range, and each path of nested ones.

    The text is `domain:outer/inner; other`; a name may itself hold a slash or a colon.
    """
    for stack in text.split(BETWEEN_STACKS):
        for path in {stack, stack.partition(":")[2]} - {""}:
            parts = path.split("/", _MAX_RANGE_DEPTH)
            for start in range(len(parts)):
                for end in range(start + 1, len(parts) + 1):
                    yield "/".join(parts[start:end])
