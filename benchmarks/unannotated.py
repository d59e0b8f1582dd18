"""Compares steps found by repetition with the ranges that name them, capture by capture.

    python -m benchmarks.unannotated FOLDER [--only TEXT]

Each timeline below FOLDER whose ranges name steps is looked at as if it had none. Steps by
repetition are right if, from the first named step to the last, each has one of its own.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np

from gpusight.analysis.launch_index import launched
from gpusight.analysis.steps.step_detection import detect_steps, repetition
from gpusight.analysis.steps.step_list import StepEvidence, TraceSteps
from gpusight.errors import GpusightError
from gpusight.readers.open import open_trace

_NAMED = {StepEvidence.COUNTED, StepEvidence.NAMED}
_MAX_OFF = 1
"""Steps that may be missing or too many: at either end a step may be cut off."""


def compare(path: Path) -> tuple[bool, str] | None:
    """Return whether repetition gives the named steps, in words too; None without named steps."""
    trace = open_trace(path)
    named = detect_steps(trace).steps
    if not isinstance(named, TraceSteps) or named.evidence not in _NAMED or len(named.steps) < 2:
        return None
    first, *_, last = named.steps
    detected = repetition(trace, launched(trace), ranges=False)
    if detected is None or not isinstance(detected.steps, TraceSteps):
        return False, f"none of {len(named.steps)}"
    starts = np.array([step.start_ns for step in detected.steps.steps])
    half = (last.start_ns - first.start_ns) / (len(named.steps) - 1) / 2
    inside = int(((starts >= first.start_ns - half) & (starts < last.end_ns - half)).sum())
    right = abs(inside - len(named.steps)) <= _MAX_OFF and inside > 1
    return right, f"{inside} of {len(named.steps)}: {detected.steps.how}"


def main() -> None:
    """Print a line per capture with named steps, then how many are right."""
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--only", default="", metavar="TEXT", help="captures with this in the path")
    args = parser.parse_args()
    outcomes = []
    for path in sorted(args.folder.rglob("*")):
        if not path.is_file() or args.only not in str(path):
            continue
        try:
            outcome = compare(path)
        except GpusightError:
            continue  # no timeline
        if outcome is not None:
            outcomes.append(outcome[0])
            label = str(path.relative_to(args.folder))
            print(f"{'right' if outcome[0] else 'WRONG'} {label:60} {outcome[1]}", flush=True)
    print(f"right in {sum(outcomes)} of {len(outcomes)} captures")


if __name__ == "__main__":
    main()
