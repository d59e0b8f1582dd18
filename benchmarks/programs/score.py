"""Diagnoses the captures that `collect` made, and compares with what is known of the programs.

    python -m benchmarks.programs.score FOLDER [--predictions] [--json FILE] [--only NAME]

FOLDER holds what the archives of `collect` contain: `NAME.VARIANT.TOOL.EXTENSION`. Programs that
are held out count apart: rules were designed on the others. `--predictions` compares the step time
that a capture of a program as found predicts with that of the repaired program, by the same tool.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import gpusight as gs
from benchmarks.programs.registry import FOUND, PROGRAMS, REPAIRED
from gpusight.errors import GpusightError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from gpusight.rules.diagnosis import TimelineDiagnosis

TRACED_STEPS = 4
"""Steps in a trace of torch.profiler; other captures have all, with those that warm up."""


def score(path: Path) -> dict[str, Any]:
    """Diagnose one capture of a known program."""
    name, variant, tool, *_ = path.name.split(".")
    program = PROGRAMS[name]
    row: dict[str, Any] = {
        "program": name,
        "variant": variant,
        "tool": tool,
        "held_out": program.held_out,
        "true_steps": TRACED_STEPS if tool == "torch" else program.steps + program.warmup,
        "expected": list(program.expected) if variant == FOUND and tool in program.tools else [],
    }
    try:
        diagnosis = gs.diagnose(path).timeline
    except GpusightError as error:
        return row | {"error": str(error), "steps": 0, "findings": [], "right": False}
    assert diagnosis is not None
    findings = [finding.rule for finding in diagnosis.plan]
    # Warm-up and cut-off steps are left out of the window.
    fewest = row["true_steps"] - program.warmup - 1
    # An inner loop that was taken for the step: a step of the program is several of its passes.
    passes = max(1, round(diagnosis.steps / row["true_steps"]))
    return row | {
        "steps": diagnosis.steps,
        "steps_right": fewest <= diagnosis.steps <= row["true_steps"],
        "step_ms": passes * diagnosis.step_ns / 1e6,
        "predicted_ms": passes * diagnosis.predicted_step_ns / 1e6,
        "findings": findings,
        "right": findings[0] in row["expected"] if findings and row["expected"] else None,
        "top_ms": passes * _after_top_ms(diagnosis),
        "planted_ms": _times(passes, _after_planted_ms(path, diagnosis, row["expected"])),
    }


def _times(count: int, ms: float | None) -> float | None:
    return None if ms is None else count * ms


def _after_top_ms(diagnosis: TimelineDiagnosis) -> float:
    """Predict the step time after the first fix."""
    return next((ns for ns in diagnosis.plan_step_ns if ns is not None), diagnosis.step_ns) / 1e6


def _after_planted_ms(
    path: Path, diagnosis: TimelineDiagnosis, expected: Sequence[str]
) -> float | None:
    """Predict the step time after the fixes of all findings that the planted defect has."""
    found = [f for f in diagnosis.findings if f.rule in expected and f.step_ns is not None]
    if not found:
        return None
    saved_ns = max(finding.step_ns or 0.0 for finding in found)
    if len(found) > 1:
        try:
            after = gs.whatif(path, apply=[finding.rule for finding in found]).answer
        except GpusightError:  # a finding whose gain is estimated without a replay
            pass
        else:
            saved_ns = max(saved_ns, (after.share or 0.0) * diagnosis.step_ns)
    return (diagnosis.step_ns - saved_ns) / 1e6


def print_predictions(rows: Iterable[dict[str, Any]]) -> None:
    """Compare predicted step times with those of the repaired programs, by the same tool."""
    measured = {(r["program"], r["variant"], r["tool"]): r.get("step_ms") for r in rows}
    print(
        f"\n{'ms/step':37} {'found':>8} {'repaired':>9} {'top fix':>8} {'planted':>8} {'error':>7}"
    )
    errors: dict[bool, list[float]] = {False: [], True: []}
    for row in rows:
        repaired_ms = measured.get((row["program"], REPAIRED, row["tool"]))
        if row["variant"] != FOUND or repaired_ms is None or not row.get("step_ms"):
            continue
        planted_ms = row["planted_ms"]
        # Without a finding of the planted defect, the step is predicted to stay as it is.
        error = (row["step_ms"] if planted_ms is None else planted_ms) / repaired_ms - 1
        if row["expected"]:
            errors[row["held_out"]].append(abs(error))
        print(
            f"{row['program'] + '.' + row['tool']:37} {row['step_ms']:8.3f} {repaired_ms:9.3f}"
            f" {row['top_ms']:8.3f} {'-' if planted_ms is None else f'{planted_ms:.3f}':>8}"
            f" {error:+7.0%}{' held out' if row['held_out'] else ''}"
        )
    for held_out, which in ((False, "design"), (True, "held out")):
        if values := sorted(errors[held_out]):
            ninth = values[max(0, round(0.9 * len(values)) - 1)]
            print(
                f"{which}: error of the predicted step: median {statistics.median(values):.0%}, "
                f"for nine of ten at most {ninth:.0%}, of {len(values)} pairs"
            )


def main() -> None:
    """Print a line per capture, then the shares of right steps and first findings."""
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the rows here too")
    parser.add_argument("--only", default="", metavar="TEXT", help="captures with this in the name")
    parser.add_argument(
        "--predictions", action="store_true", help="compare predicted step times with repaired ones"
    )
    args = parser.parse_args()
    paths = [path for path in sorted(args.folder.iterdir()) if path.name.split(".")[0] in PROGRAMS]
    rows = [score(path) for path in paths if args.only in path.name]
    for row in rows:
        wrong = "" if row.get("steps_right") else f" (of {row['true_steps']})"
        mark = {True: "right", False: "WRONG", None: "-"}[row["right"]]
        listed = ", ".join(row["findings"][:4]) or row.get("error", "nothing")
        label = f"{row['program']}.{row['variant']}.{row['tool']}"
        print(f"{label:42} {row['steps']:4} steps{wrong:9} {mark:5}  {listed}")
    for held_out, which in ((False, "design"), (True, "held out")):
        half = [row for row in rows if row["held_out"] == held_out]
        steps = Counter(bool(row.get("steps_right")) for row in half)
        first = Counter(row["right"] for row in half if row["right"] is not None)
        print(f"{which}: steps right in {steps[True]} of {len(half)} captures, ", end="")
        print(f"first finding right in {first[True]} of {first.total()}")
    if args.predictions:
        print_predictions(rows)
    if args.json:
        args.json.write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
