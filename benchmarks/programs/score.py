"""Diagnoses the captures that `collect` made, and compares with what is known of the programs.

    python -m benchmarks.programs.score FOLDER [--json FILE] [--only NAME]

FOLDER holds what the archives of `collect` contain: `NAME.VARIANT.TOOL.EXTENSION`. Programs that
are held out count apart: rules were designed on the others.
"""

from __future__ import annotations

import argparse
import json
from collections import Counter
from pathlib import Path
from typing import Any

import gpusight as gs
from benchmarks.programs.registry import FOUND, PROGRAMS
from gpusight.errors import GpusightError

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
    return row | {
        "steps": diagnosis.steps,
        "steps_right": fewest <= diagnosis.steps <= row["true_steps"],
        "step_ms": diagnosis.step_ns / 1e6,
        "predicted_ms": diagnosis.predicted_step_ns / 1e6,
        "findings": findings,
        "right": findings[0] in row["expected"] if findings and row["expected"] else None,
    }


def main() -> None:
    """Print a line per capture, then the shares of right steps and first findings."""
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the rows here too")
    parser.add_argument("--only", default="", metavar="TEXT", help="captures with this in the name")
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
    if args.json:
        args.json.write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
