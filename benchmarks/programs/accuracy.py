"""How right diagnoses are: sums up the rows of `score`.

    python -m benchmarks.programs.accuracy times RESULTS...   # results.json of `collect`
    python -m benchmarks.programs.accuracy table              # what gpusight ships of it

`times` keeps the step times of collections in `step_times_h200.json`; programs that they do not
have keep theirs. `table` writes how far predictions were off, by rule, which `diagnose` shows.
`python -m tools.generate_docs` writes `docs/accuracy.md` (`accuracy_page.py`).
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections import defaultdict
from dataclasses import asdict, dataclass
from itertools import combinations
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.programs.collect import MEASURED, ROWS
from benchmarks.programs.registry import FOUND, PROGRAMS, REPAIRED
from benchmarks.programs.score import read_rows
from gpusight.rules.finding import TABLE, PastPredictions
from gpusight.rules.registry import TIMELINE_RULES

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

MAX_CLAIM = 0.05
"""A finding that claims a larger share of the step of a healthy program accuses it."""
SAME_STEP = 0.10
"""Two tools agree on a step time within this."""
MIN_PAIRS = 3
"""With fewer pairs of a rule, those of all rules of its kind stand for it."""
_HOST = (
    "input-starved launch-bound recompilation host-sync alloc-churn graph-candidate between-steps "
    "host-bound gil-contention anomaly-mode blocking-launches startup-bound unfused-optimizer"
)
_COPIES = "exposed-copy small-transfers pageable-copy page-faults"
_GPU = (
    "fp32-no-tensor-cores unfused-attention recomputation layout-transpose conv-algorithm "
    "elementwise-chain small-grid fp64-math dependency-stall"
)
_SEVERAL = "gpu-shared exposed-communication"
KINDS = {
    "host time": tuple(_HOST.split()),
    "copies": tuple(_COPIES.split()),
    "GPU time": tuple(_GPU.split()),
    "several processes": tuple(_SEVERAL.split()),
}
"""Rules whose fixes change the same; those that are not listed have no fix that saves time."""
ALL_RULES = "all rules"


@dataclass(frozen=True)
class Errors:
    """Relative errors of some predictions."""

    values: tuple[float, ...]

    @property
    def median(self) -> float:
        """Half of them are at most this far off."""
        return statistics.median(map(abs, self.values))

    @property
    def ninth(self) -> float:
        """Nine of ten are at most this far off."""
        ordered = sorted(map(abs, self.values))
        return ordered[max(0, -(-9 * len(ordered) // 10) - 1)]

    @property
    def worst(self) -> float:
        """All are at most this far off."""
        return max(map(abs, self.values))

    def __len__(self) -> int:
        return len(self.values)


@dataclass(frozen=True)
class Prediction:
    """The step time predicted for the fix of the planted defect, and the measured one."""

    row: dict[str, Any]

    @property
    def error(self) -> float:
        """Relative to the step time of the repaired program."""
        return float(self.row["predicted_ms"] / self.row["repaired_ms"] - 1)

    @property
    def is_of_the_repair(self) -> bool:
        """Whether the repair makes all fixes that were predicted.

        Rows of collections that were scored by the defect alone may have more.
        """
        repairs = PROGRAMS[self.row["program"]].repairs
        return bool(repairs) and set(self.row["applied"]) <= set(repairs)

    @property
    def saved(self) -> tuple[float, float]:
        """Share of the step that the fixes save: predicted, and measured."""
        shown = 1 - self.row["predicted_ms"] / self.row["step_ms"]
        return shown, 1 - self.row["repaired_ms"] / self.row["plain_ms"]


def scored(rows: Iterable[dict[str, Any]], *, held_out: bool | None = None) -> list[dict[str, Any]]:
    """Choose the rows of captures that could be diagnosed, of one half or of both."""
    return [r for r in rows if "error" not in r and held_out in (None, r["held_out"])]


def first_findings(rows: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Choose the rows of programs with a defect that a rule looks for."""
    return [row for row in rows if row["expected"]]


def predictions(rows: Iterable[dict[str, Any]]) -> list[Prediction]:
    """Choose the predictions whose truth was measured."""
    known = ("predicted_ms", "repaired_ms", "plain_ms")
    return [Prediction(row) for row in rows if all(row.get(key) for key in known)]


def step_errors(
    rows: Iterable[dict[str, Any]], which: str = "step_ms"
) -> list[tuple[dict[str, Any], float]]:
    """Compare the step times that a diagnosis shows with those without a profiler.

    Or those that were recorded (`recorded_ms`) or that `record` timed before (`pace_ms`).
    """
    known = (row for row in rows if row.get(which) and row["plain_ms"])
    return [(row, row[which] / row["plain_ms"] - 1) for row in known]


def accusations(row: dict[str, Any]) -> list[tuple[str, float]]:
    """Return the findings that claim more of the step than a healthy program may lose."""
    return [(rule, share) for rule, share, _ in row["plan"] if share and share > MAX_CLAIM]


def is_found(row: dict[str, Any]) -> bool:
    """Return whether the plan names the planted defect at any place."""
    return any(rule in row["expected"] for rule, _, _ in row.get("plan", ()))


def found_again(row: dict[str, Any]) -> list[tuple[str, float]]:
    """Return the findings of a repaired program that name the defect that was repaired."""
    expected = PROGRAMS[row["program"]].expected
    return [(rule, share) for rule, share in accusations(row) if rule in expected]


@dataclass(frozen=True)
class Agreement:
    """What two tools say of one program as found."""

    program: str
    held_out: bool
    tools: tuple[str, str]
    firsts: tuple[str, str]
    steps_ms: tuple[float, float]

    @property
    def same_first(self) -> bool:
        """The first finding is the same."""
        return self.firsts[0] == self.firsts[1]

    @property
    def apart(self) -> float:
        """How far the step times are apart, relative to the shorter one."""
        return max(self.steps_ms) / min(self.steps_ms) - 1

    @property
    def agree(self) -> bool:
        """Same first finding, and the same step time but for noise."""
        return self.same_first and self.apart <= SAME_STEP


def agreements(rows: Iterable[dict[str, Any]]) -> list[Agreement]:
    """Compare the tools of each program as found, two by two."""
    by_program: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for row in rows:
        can_show = row["defect"] is None or row["tool"] in PROGRAMS[row["program"]].tools
        if row["variant"] == FOUND and row.get("step_ms") and can_show:
            by_program[row["program"]].append(row)
    return [
        Agreement(
            name,
            first["held_out"],
            (first["tool"], other["tool"]),
            (_first(first), _first(other)),
            (first["step_ms"], other["step_ms"]),
        )
        for name, of_program in by_program.items()
        for first, other in combinations(of_program, 2)
    ]


def _first(row: dict[str, Any]) -> str:
    """Name the first finding that claims enough to matter."""
    return next((rule for rule, _ in accusations(row)), "nothing")


def past_predictions(rows: Sequence[dict[str, Any]]) -> dict[str, PastPredictions]:
    """Say for each rule how far the predictions of its fix, or of similar ones, were off."""
    pairs = [
        pair for pair in predictions(scored(rows)) if pair.row["applied"] and pair.is_of_the_repair
    ]
    table = {}
    for kind, rules in KINDS.items():
        for rule in rules:
            for group, of in (({rule}, rule), (set(rules), kind), (set(TIMELINE_RULES), ALL_RULES)):
                chosen = [pair for pair in pairs if group & set(pair.row["applied"])]
                if len(chosen) >= MIN_PAIRS:
                    table[rule] = _summary(chosen, of)
                    break
    return {rule: table[rule] for rule in TIMELINE_RULES if rule in table}


def _summary(pairs: Sequence[Prediction], of: str) -> PastPredictions:
    errors = Errors(tuple(pair.error for pair in pairs))
    programs = len({pair.row["program"] for pair in pairs})
    return PastPredictions(
        of, len(pairs), programs, round(errors.median, 3), round(errors.worst, 3)
    )


def table_text(rows: Sequence[dict[str, Any]]) -> str:
    """Write the table that gpusight ships."""
    table = {rule: asdict(past) for rule, past in past_predictions(rows).items()}
    lines = (f" {json.dumps(rule)}: {json.dumps(past)}" for rule, past in table.items())
    return "{\n" + ",\n".join(lines) + "\n}\n"


def merge_times(files: Iterable[Path], into: Path = MEASURED) -> dict[str, Any]:
    """Add the step times of collections: those of a program replace what was known of it."""
    merged: dict[str, Any] = json.loads(into.read_text(encoding="utf-8"))
    for file in files:
        results = json.loads(file.read_text(encoding="utf-8"))
        merged["machine"] = results["machine"]
        for name, program in results["programs"].items():
            for variant, measured in program["variants"].items():
                row = merged["programs"].setdefault(name, {}).setdefault(variant, {})
                if measured["plain"]:
                    row["plain_ms"] = [round(run["mean_ms"], 4) for run in measured["plain"]]
                    row |= {"date": date} if (date := results["machine"].get("date")) else {}
                runs = {
                    tool: round(run["mean_ms"], 4)
                    for tool, run in measured["recorded"].items()
                    if run["mean_ms"]
                }
                if runs:
                    row["run_ms"] = row.get("run_ms", {}) | runs
    merged["programs"] = {
        name: {v: variants[v] for v in (FOUND, REPAIRED) if v in variants}
        for name, variants in sorted(merged["programs"].items())
    }
    return merged


def spreads(file: Path = MEASURED) -> list[float]:
    """Return how far the repeats of each program without a profiler lie apart."""
    programs = json.loads(file.read_text(encoding="utf-8"))["programs"]
    repeats = [v["plain_ms"] for p in programs.values() for v in p.values() if "plain_ms" in v]
    return [(max(ms) - min(ms)) / statistics.median(ms) for ms in repeats if len(ms) > 1]


def main() -> None:
    """Write step times or the shipped table."""
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    commands = parser.add_subparsers(dest="command", required=True)
    times = commands.add_parser("times", help="add the step times of collections")
    times.add_argument("results", type=Path, nargs="+")
    commands.add_parser("table", help="write what gpusight ships")
    args = parser.parse_args()
    if args.command == "times":
        MEASURED.write_text(
            json.dumps(merge_times(args.results), indent=1) + "\n", encoding="utf-8"
        )
    else:
        TABLE.write_text(table_text(read_rows(ROWS)), encoding="utf-8")


if __name__ == "__main__":
    main()
