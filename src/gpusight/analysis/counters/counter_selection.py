"""Which launches and metrics of an ncu report are selected."""

from __future__ import annotations

import fnmatch
import re
from typing import TYPE_CHECKING

import polars as pl

from gpusight.analysis.aggregates import names_of
from gpusight.analysis.selection import (
    EVERYTHING,
    ResolvedSelection,
    Selection,
    matcher,
    near_matches,
)
from gpusight.errors import MissingDataError, UsageError
from gpusight.naming.kernel_names import classify
from gpusight.naming.metric_labels import metric_for
from gpusight.naming.metric_names import canonical
from gpusight.results import NotApplicable
from gpusight.trace.schema_gpu import BETWEEN_STACKS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from gpusight.trace.trace import Trace


_WILD = frozenset("*?[")
_LONGEST = 2_000
"""What a pattern looks at: a hostile name of a megabyte could keep it busy for hours."""
_SHOWN = 5
_DEEPEST = 64
"""Ranges inside ranges that can be told apart; a hostile name has a slash in every letter."""
NO_COUNTERS_HINT = "measure the kernels with: ncu --set full -o report PROGRAM"


def no_counters(command: str) -> NotApplicable:
    """Explain that a capture holds no hardware counters."""
    return NotApplicable(
        command, "the capture has no hardware counters of kernels", NO_COUNTERS_HINT
    )


class LaunchSelection(ResolvedSelection):
    """A selection of measured launches; ranges are those open when they were launched."""

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
        """Tell whether nothing is left out."""
        return not self.selection and self._kernel is None and not self._launches

    def profiles(self, columns: Sequence[str]) -> pl.DataFrame:
        """Give these columns of the selected launches, in order."""
        extra = ["launch", "device", "name", "ranges"]
        frame = self._load("profiles", columns, extra)
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
        """Give the keys of the selected launches, in order."""
        return self.profiles(["launch"])["launch"]


def matching(pattern: str, names: Iterable[str]) -> list[str]:
    """Find the names that a pattern means.

    That is the name itself, else what a glob or regular expression matches; a plain text means the
    names that start with it, else those that hold it.
    """
    known = list(names)
    if pattern in known:
        return [pattern]
    if _WILD.intersection(pattern) or _is_regex(pattern):
        matches = matcher(pattern)
        return [name for name in known if matches(name[:_LONGEST])]
    wanted = pattern.lower()
    begun = [name for name in known if name.lower().startswith(wanted)]
    return begun or [name for name in known if wanted in name[:_LONGEST].lower()]


def kernel_codes(
    names: Mapping[int, tuple[str, str]], pattern: str, what: str = "kernel"
) -> list[int]:
    """Find the kernels that a pattern means; `names` are the full name and the readable label.

    That is those of the very name, else what a glob, a regular expression or a part of the name
    matches. Raises UsageError where none is meant; `what` is what the message calls them.
    """
    found = [code for code, texts in names.items() if pattern in texts]
    if not found:
        matches = _kernel_matcher(pattern)
        found = [c for c, texts in names.items() if any(matches(t[:_LONGEST]) for t in texts)]
    if not found:
        labels = list(dict.fromkeys(label for _, label in names.values()))
        shown = ", ".join(repr(label) for label in labels[:_SHOWN])
        raise UsageError(
            f"no {what} matches {pattern!r}",
            why=f"there is {shown}" if shown else "nothing else is selected",
            hint="see: gpusight kernels FILE",
        )
    return found


def _kernel_matcher(pattern: str) -> Callable[[str], object]:
    """Turn a pattern into a test; only regular expressions tell capitals apart."""
    if _is_regex(pattern):
        return matcher(pattern)
    glob = pattern if _WILD.intersection(pattern) else f"*{pattern}*"
    return re.compile(fnmatch.translate(glob), re.IGNORECASE).match


def of_kernel(names: pl.Series, pattern: str) -> pl.Series:
    """Tell which rows of a column of names are of the kernels that a pattern means."""
    known = names_of(names)
    codes = names.to_physical().unique().sort().to_list()
    labels = {code: (known[code], classify(known[code]).short) for code in codes}
    return names.to_physical().is_in(kernel_codes(labels, pattern))


def chosen_metrics(known: Iterable[str], patterns: Sequence[str]) -> list[str]:
    """Find the metrics that any of the patterns means, in the order of `known`."""
    names = list(known)
    found: set[str] = set()
    for pattern in _each(patterns, set(names)):
        hits = _metrics(pattern, names)
        if not hits:
            # Lists of other metrics, which have a colon in their names, are hardly ever meant.
            near = near_matches(pattern, sorted(names, key=lambda name: ":" in name))
            raise UsageError(
                f"no metric matches {pattern!r}",
                why=f"the capture has {near}" if names else "the capture has no metrics",
                hint="see: gpusight counters FILE --list",
            )
        found.update(hits)
    return [name for name in names if name in found]


def _each(patterns: Sequence[str], known: set[str]) -> Iterator[str]:
    """Give pattern after pattern; several may stand in one, between commas, as ncu has them."""
    for pattern in patterns:
        is_one = pattern in known or _is_regex(pattern)
        parts = [] if is_one else [part.strip() for part in pattern.split(",")]
        yield from [part for part in parts if part] or [pattern]


def _metrics(pattern: str, names: list[str]) -> list[str]:
    """Find metrics by name, by a name of former years, or by what the profiler's pages call it."""
    labelled = metric_for("", pattern) or ""
    return (
        matching(pattern, names)
        or matching(canonical(pattern), names)
        or [name for name in names if name == labelled]
    )


def _is_regex(pattern: str) -> bool:
    enclosed = len(pattern) > 2 and pattern.startswith("/") and pattern.endswith("/")
    return pattern.startswith("regex:") or enclosed


def _check_launches(frame: pl.DataFrame, wanted: Sequence[int]) -> None:
    known = set(frame["launch"].to_list())
    missing = [n for n in wanted if n not in known]
    if missing:
        last = max(known, default=0)
        raise UsageError(
            f"no launch {missing[0]} in the capture",
            hint=f"launches are numbered {min(known, default=0)} to {last}; "
            "see: gpusight launches FILE",
        )


def _inside(frame: pl.DataFrame, within: str) -> pl.DataFrame:
    """Keep the launches inside ranges that a pattern names."""
    texts = frame["ranges"].drop_nulls().unique().to_list()
    if not texts:
        raise MissingDataError(
            f"no range matches {within!r}",
            why="the report does not say which NVTX ranges were open",
            hint="measure with: ncu --nvtx …",
        )
    names = {text: set(range_names(text)) for text in texts}
    everything = sorted({name for found in names.values() for name in found})
    matches = matcher(within)
    exact = within in everything
    found = {n for n in everything if (n == within if exact else matches(n[:_LONGEST]))}
    if not found:
        raise UsageError(
            f"no range matches {within!r}",
            why="ranges are named like " + near_matches(within, everything),
            hint="see the ranges of each launch: gpusight launches FILE --wide",
        )
    return frame.filter(pl.col("ranges").is_in([t for t in texts if names[t] & found]))


def range_names(text: str) -> Iterator[str]:
    """Give what ranges may be called: each range alone, and each stretch of nested ones.

    The text is `domain:outer/inner; other`; a name may itself hold a slash or a colon.
    """
    for stack in text.split(BETWEEN_STACKS):
        for path in {stack, stack.partition(":")[2]} - {""}:
            parts = path.split("/", _DEEPEST)
            for start in range(len(parts)):
                for end in range(start + 1, len(parts) + 1):
                    yield "/".join(parts[start:end])
