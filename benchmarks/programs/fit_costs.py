"""Fits what a profiler costs per recorded event: the table `COSTS` of `profiler_costs`.

    python -m benchmarks.programs.fit_costs FOLDER [FOLDER …]

A folder holds what `collect` brought back: captures (`NAME.VARIANT.TOOL.EXTENSION`) and
`results*.json` with the times of the same programs without a profiler; without these, times of the
repository count. Costs are fitted on the
programs that are not held out, for the least mean square error of the logarithm of the step time.
Errors are printed of both halves, before (the recorded step taken as it is) and after, and how many
times lie in the range.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import statistics
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import gpusight as gs
from benchmarks.programs.collect import MEASURED
from benchmarks.programs.registry import PROGRAMS
from gpusight.analysis.profiler_correction import MAX_ESTIMATED_OPS, obstacle, sample_schedule
from gpusight.analysis.profiler_costs import (
    COSTS,
    EVENT_TABLES,
    MAX_UNIT,
    Overhead,
    capture_unit_ns,
    recorded_events,
    recording_tool,
)
from gpusight.analysis.replay.simulation import run_program
from gpusight.analysis.replay.window_replay import calibrate
from gpusight.analysis.steps.step_list import known_pace
from gpusight.analysis.steps.step_window import step_window
from gpusight.analysis.steps.window_headline import StepWindow
from gpusight.errors import GpusightError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from gpusight.analysis.replay.simulation import ReplayProgram
    from gpusight.trace.intervals import Reals

UNITS = (0.5, 0.7, 1.0, 1.2, 1.4, 1.7, 2.0, 2.4, 2.8, 4.0, 5.6)
OPERATORS = (1.0, 2.0, 4.0)
"""Costs of an operator that are tried, in events."""
SAME_STEP = (0.7, 4.0)
"""Recorded against plain time of what can be the same step: else the pace in the capture counts."""
MAX_UNITS = 40.0


@dataclass
class Sample:
    """Steps of one capture, and how long one takes without a profiler."""

    name: str
    tool: str
    held_out: bool
    recorded_ms: float
    plain_ms: float
    by_pace: bool
    """The time is the pace in the capture: its steps are not those of the program's own timing."""
    program: ReplayProgram
    length_ns: int
    unit_ns: float
    events: Mapping[str, Reals]

    def step_ms(self, units: float, weights: Mapping[str, float]) -> float:
        """Predict the step without a profiler."""
        zero = next(iter(self.events.values())) * 0.0
        counts = sum((weights.get(t, 1.0) * n for t, n in self.events.items()), start=zero)
        overhead = Overhead(units * self.unit_ns)
        timing = run_program(overhead.removed_from(self.program, counts))
        return self.recorded_ms * (timing.end_ns - timing.start_ns) / self.length_ns

    def solved(self, weights: Mapping[str, float]) -> float | None:
        """Find the cost that explains the step; None where no cost or any would."""
        if self.plain_ms > self.recorded_ms or self.step_ms(MAX_UNITS, weights) > self.plain_ms:
            return None
        low, high = 0.0, MAX_UNITS
        for _ in range(10):
            middle = (low + high) / 2
            slow = self.step_ms(middle, weights) > self.plain_ms
            low, high = (middle, high) if slow else (low, middle)
        return low


def read_samples(folder: Path) -> Iterable[Sample]:
    """Open the captures of a folder whose programs were timed."""
    plain = _plain_ms(folder)
    for path in sorted(folder.iterdir()):
        name, variant, *_ = path.name.split(".")
        if name not in PROGRAMS or path.suffix in {".log", ".json"}:
            continue
        try:
            sample = _sample(path, plain.get((name, variant)))
        except GpusightError as error:
            print(f"{path.name}: {error}")
            continue
        if sample is None:
            print(f"left out: {path.name}")
        else:
            yield sample


def _plain_ms(folder: Path) -> dict[tuple[str, str], float]:
    times: dict[tuple[str, str], list[float]] = defaultdict(list)
    if not any(folder.glob("results*.json")):
        for name, variants in json.loads(MEASURED.read_text())["programs"].items():
            for variant, row in variants.items():
                for key in ("plain_ms", "plain_repeats_ms"):
                    times[name, variant] += row.get(key, [])
    for results in folder.glob("results*.json"):
        programs: dict[str, Any] = json.loads(results.read_text())["programs"]
        for name, row in programs.items():
            for variant, measured in row["variants"].items():
                times[name, variant] += [run["mean_ms"] for run in measured["plain"]]
    return {key: statistics.median(values) for key, values in times.items() if values}


def _sample(path: Path, plain_ms: float | None) -> Sample | None:
    trace = gs.open(path)
    focus = step_window(trace)
    tool = recording_tool(trace)
    if not isinstance(focus, StepWindow) or not focus.steps or tool is None:
        return None
    if obstacle(trace, focus):
        return None
    pace = known_pace(trace, focus.steps[0].process)
    recorded_ms = focus.step_ns / 1e6
    known = [plain_ms, None if pace is None else pace.mean_ns / 1e6]
    fitting = [ms for ms in known if ms and SAME_STEP[0] < recorded_ms / ms < SAME_STEP[1]]
    if not fitting:
        return None
    schedule, _ = sample_schedule(trace, focus, MAX_ESTIMATED_OPS)
    program = calibrate(schedule).program
    timing = run_program(program)
    none = dict.fromkeys(EVENT_TABLES, 0.0)
    return Sample(
        name=path.name,
        tool=tool,
        held_out=PROGRAMS[path.name.split(".")[0]].held_out,
        recorded_ms=recorded_ms,
        plain_ms=fitting[0],
        by_pace=fitting[0] != plain_ms,
        program=program,
        length_ns=timing.end_ns - timing.start_ns,
        unit_ns=min(
            capture_unit_ns(schedule, tool) or COSTS[tool].unit_ns,
            MAX_UNIT * COSTS[tool].unit_ns,
        ),
        events={t: recorded_events(schedule, none | {t: 1.0}) for t in EVENT_TABLES},
    )


def fit(samples: Sequence[Sample]) -> tuple[float, dict[str, float]]:
    """Return the units per event, and the weights, with the least mean square error."""
    with_operators = any(sample.events["cpu_ops"].any() for sample in samples)
    tried = itertools.product(UNITS, OPERATORS if with_operators else (1.0,))
    return min(
        ((units, {"cpu_ops": weight}) for units, weight in tried),
        key=lambda cost: statistics.mean(
            math.log(s.step_ms(*cost) / s.plain_ms) ** 2 for s in samples
        ),
    )


def errors(samples: Sequence[Sample], units: float, weights: Mapping[str, float]) -> list[float]:
    """Return how far predicted steps are off, as shares of the plain ones."""
    return [abs(s.step_ms(units, weights) / s.plain_ms - 1) for s in samples]


def _quantile(values: Sequence[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, math.ceil(share * len(ordered)) - 1)]


def main() -> None:
    """Print the costs that fit best, and the errors with those in the code."""
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("folder", type=Path, nargs="+")
    parser.add_argument("--details", action="store_true", help="print a line per capture")
    args = parser.parse_args()
    samples = [sample for folder in args.folder for sample in read_samples(folder)]
    by_pace = sum(sample.by_pace for sample in samples)
    print(f"{len(samples)} captures, {by_pace} of them against the pace that they hold")
    for tool, cost in COSTS.items():
        own = [sample for sample in samples if sample.tool == tool]
        design = [sample for sample in own if not sample.held_out]
        if not design:
            continue
        units, weights = fit(design)
        solved = [x for s in design if (x := s.solved(weights)) is not None]
        low, high = (_quantile(solved, share) / units for share in (0.2, 0.8))
        unit_ns = statistics.median(sample.unit_ns for sample in design)
        print(
            f"{tool}: units {units:g}, low {low:.2f}, high {high:.2f}, weights {weights}, "
            f"unit {unit_ns:.0f} ns; {len(solved)} of {len(design)} captures can be solved"
        )
        for half, part in (("design", design), ("held out", [s for s in own if s.held_out])):
            before = [abs(s.recorded_ms / s.plain_ms - 1) for s in part]
            after = errors(part, cost.units, cost.weights)
            inside = [_covered(s) for s in part]
            for label, values in (("recorded", before), ("estimate", after)):
                if values:
                    print(
                        f"  {half}, {label}: median {statistics.median(values):.0%}, 90th "
                        f"percentile {_quantile(values, 0.9):.0%}, {len(values)} captures"
                    )
            print(f"  {half}: {sum(inside)} of {len(inside)} plain times are in the range")
        for s in sorted(own, key=lambda s: s.name) if args.details else ():
            middle = s.step_ms(cost.units, cost.weights)
            print(
                f"  {s.name:44} recorded {s.recorded_ms:8.3f} estimate {middle:8.3f} plain "
                f"{s.plain_ms:8.3f} ms, unit {s.unit_ns:.0f}{', held out' if s.held_out else ''}"
            )


def _covered(sample: Sample) -> bool:
    """Return whether the plain time is in the range, give or take 5% for its own noise."""
    cost = COSTS[sample.tool]
    slow, fast = (sample.step_ms(cost.units * x, cost.weights) for x in (cost.low, cost.high))
    return 0.95 * fast <= sample.plain_ms <= 1.05 * slow


if __name__ == "__main__":
    main()
