"""Which findings need what an option of a profiler records.

    python -m benchmarks.option_findings CAPTURE...

Each capture is diagnosed as it is, and again without each table or column that an option adds
(`OPTIONS`), at its recorded times. Prints how many captures have it, and which findings appear,
disappear, change their place or their title without it. What a recording costs is measured by
`record_options`; both tables are in docs/profiler-overhead.md.
"""

from __future__ import annotations

import argparse
from collections import Counter, defaultdict
from pathlib import Path
from typing import TYPE_CHECKING

import gpusight as gs
from gpusight.errors import GpusightError
from gpusight.trace.trace import MovedSource, Trace

if TYPE_CHECKING:
    from collections.abc import Sequence

    import polars as pl

OPTIONS: dict[str, tuple[tuple[str, str | None], ...]] = {
    "OS runtime (osrt)": (("os_calls", None),),
    "NVTX ranges, annotations": (("ranges", None),),
    "CUPTI synchronization": (("syncs", None),),
    "CUPTI overhead": (("overheads", None),),
    "memory": (("memory_events", None),),
    "torch operators": (("cpu_ops", None),),
    "torch shapes": (("cpu_ops", "shapes"),),
    "Python stacks": (("python_calls", None), ("cpu_ops", "stack"), ("callchains", None)),
}
"""What each option adds: tables, or columns of a table."""


class _Without(MovedSource):
    """The tables of a trace but for some."""

    def __init__(self, trace: Trace, dropped: Sequence[tuple[str, str | None]]) -> None:
        super().__init__(trace, lambda table, columns: None)  # noqa: ARG005
        self._dropped = set(dropped)

    def has(self, table: str) -> bool:
        return (table, None) not in self._dropped and super().has(table)

    def has_column(self, table: str, column: str) -> bool:
        is_kept = (table, column) not in self._dropped
        return self.has(table) and is_kept and super().has_column(table, column)

    def row_count(self, table: str) -> int:
        return super().row_count(table) if self.has(table) else 0

    def load(self, table: str, columns: Sequence[str]) -> pl.DataFrame:
        if not self.has(table):
            return super().load(table, columns).clear()
        frame = super().load(table, columns)
        gone = [c for c in columns if (table, c) in self._dropped]
        return frame.with_columns(frame[c].clear(frame.height) for c in gone)


def plan_of(trace: Trace) -> list[tuple[str, str]]:
    """Return the rules of the plan with their titles, in order."""
    trace.pace = "off"
    diagnosis = gs.diagnose(trace).timeline
    assert diagnosis is not None
    return [(finding.rule, finding.title) for finding in diagnosis.plan]


def difference(before: list[tuple[str, str]], after: list[tuple[str, str]]) -> list[str]:
    """Name the findings that are not the same without an option."""
    old, new = (dict(plan) for plan in (before, after))
    gone = [f"{rule} lost" for rule in old if rule not in new]
    added = [f"{rule} instead" for rule in new if rule not in old]
    kept = [rule for rule in old if rule in new]
    moved = ["another order"] if kept != [rule for rule in new if rule in old] else []
    named = [f"{rule}: another title" for rule in kept if old[rule] != new[rule]]
    return gone + added + moved + named


def main() -> None:
    """Diagnose captures with and without what each option adds; print a table."""
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("captures", type=Path, nargs="+")
    args = parser.parse_args()
    seen, changed = Counter[str](), Counter[str]()
    what: dict[str, Counter[str]] = defaultdict(Counter)
    for path in args.captures:
        try:
            trace = gs.open(path)
            before = plan_of(trace)
        except (GpusightError, AssertionError) as error:
            print(f"{path.name}: {error}")
            continue
        for option, dropped in OPTIONS.items():
            if not any(trace.has(table, column) for table, column in dropped):
                continue
            seen[option] += 1
            try:
                differs = difference(before, plan_of(Trace(_Without(trace, dropped))))
            except GpusightError as error:
                differs = [str(error).partition(":")[0]]
            changed[option] += bool(differs)
            what[option].update(differs)
            if differs:
                print(f"{path.name}, without {option}: {', '.join(differs)}", flush=True)
    print("\n| option | captures | plan differs | findings |\n|---|---:|---:|---|")
    for option in OPTIONS:
        names = ", ".join(f"{name} ({count})" for name, count in what[option].most_common(8))
        print(f"| {option} | {seen[option]} | {changed[option]} | {names or '-'} |")


if __name__ == "__main__":
    main()
