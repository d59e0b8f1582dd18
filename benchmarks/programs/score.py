"""Diagnoses the captures that `collect` made, and compares with what is known of the programs.

    python -m benchmarks.programs.score FOLDER [--json FILE] [--only TEXT]

FOLDER holds what the archives of `collect` contain, unpacked: `NAME.VARIANT.TOOL.EXTENSION` and
logs. A row is a capture: its step time as recorded, as corrected for the profiler, and without one
(`step_times_h200.json`); the plan; whether its first finding is right; and the step time predicted
for the fixes that the repair makes, with that of the repaired program. Step times of the collection
itself (`results.json` in FOLDER) come first, as those of another day differ; a row with such a time
has `same_run`. Rows in FILE are replaced by name; the others stay but for what the registry and,
where they have no time of their own run, the step times say of them, so that folders can be scored
one after the other. `accuracy` sums them up.
"""

from __future__ import annotations

import argparse
import json
import math
import re
import statistics
from pathlib import Path
from typing import TYPE_CHECKING, Any

import gpusight as gs
from benchmarks.programs.collect import MEASURED, ROWS, measured_ms, window_steps
from benchmarks.programs.registry import FOUND, PROGRAMS, REPAIRED, Program
from gpusight.analysis.steps.step_list import known_pace
from gpusight.errors import GpusightError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from gpusight.pace import Pace
    from gpusight.rules.diagnosis import TimelineDiagnosis

SUFFIXES = (".nsys-rep", ".sqlite", ".json.gz")
_NOT_RECORDED = re.compile(r"^gpusight record: (nothing was recorded: [^;\n]+)", re.MULTILINE)
_STEPS_PRINTED = re.compile(r"^step time: [\d.]+ ms \(mean of (\d+) steps\)", re.MULTILINE)


def captures(folder: Path) -> Iterator[Path]:
    """Find the captures of known programs, and the logs of those that were not recorded.

    Of several ranks, the first.
    """
    measured = set()
    # Logs come after the captures.
    for path in sorted(folder.iterdir(), key=lambda path: (path.suffix == ".log", path.name)):
        name = capture_name(path)
        if name[0] not in PROGRAMS or name in measured:
            continue
        if path.name.endswith(SUFFIXES) or _not_recorded(path):
            measured.add(name)
            yield path


def _not_recorded(path: Path) -> str | None:
    """Return what the log of a recording says, if that left no capture."""
    reason = (
        _NOT_RECORDED.search(path.read_text(errors="replace")) if path.suffix == ".log" else None
    )
    return reason and reason[1]


def capture_name(path: Path) -> tuple[str, ...]:
    """Return program, variant and tool."""
    return tuple(path.name.split(".")[:3])


def score(path: Path, plain_ms: Mapping[tuple[str, str], float]) -> dict[str, Any]:
    """Diagnose one capture of a known program; times are of a step of the program.

    `alone` has the prediction of each finding, so that a row answers further questions.
    """
    name, variant, tool = capture_name(path)
    program = PROGRAMS[name]
    expected = list(program.expected) if variant == FOUND and tool in program.tools else []
    row: dict[str, Any] = {"program": name, "variant": variant, "tool": tool, "expected": expected}
    row |= known_of(row, plain_ms)
    if failed := _not_recorded(path):
        return row | {"error": failed}
    try:
        trace = gs.open(path)
        pace = known_pace(trace)
        diagnosis = gs.diagnose(trace).timeline
        assert diagnosis is not None
        repairs = program.repairs if expected else ()
        planted = _after_fixes_ms(trace, diagnosis, repairs)
    except GpusightError as error:
        # The messages name the file, with the folder it was in.
        return row | {"error": str(error).replace(str(path), path.name)}
    unit = _unit(path, program, variant, diagnosis, pace, row["plain_ms"])
    rules = [finding.rule for finding in diagnosis.plan]
    return row | {
        "steps": diagnosis.steps,
        "unit": unit,
        "recorded_ms": _times(unit, (diagnosis.focus.recorded_step_ns or diagnosis.step_ns) / 1e6),
        "pace_ms": None if pace is None else _times(unit, pace.mean_ns / 1e6),
        "step_ms": _times(unit, diagnosis.step_ns / 1e6),
        "plan": [
            [finding.rule, _digits(_claimed(diagnosis, finding.saved_ns)), finding.confidence.value]
            for finding in diagnosis.plan
        ],
        "right": (bool(rules) and rules[0] in expected) if expected else None,
        "applied": planted[0],
        "predicted_ms": _times(unit, planted[1]) if repairs else None,
        "alone": {rule: _times(unit, ms) for rule, ms in _alone_ms(diagnosis).items()},
        "ledger": _ledger(diagnosis),
    }


def own_times(folder: Path) -> dict[tuple[str, str], float]:
    """Return the step times without a profiler that were taken when the captures were."""
    results = folder / "results.json"
    if not results.exists():
        return {}
    return {
        (name, variant): statistics.median(run["mean_ms"] for run in measured["plain"])
        for name, program in json.loads(results.read_text(encoding="utf-8"))["programs"].items()
        for variant, measured in program["variants"].items()
        if measured["plain"]
    }


_SAME, _TIMES = "same_run", ("plain_ms", "repaired_ms")


def known_of(row: Mapping[str, Any], plain_ms: Mapping[tuple[str, str], float]) -> dict[str, Any]:
    """Return what is known of the program of a row: it does not depend on the capture."""
    program = PROGRAMS[row["program"]]
    repaired_ms = plain_ms.get((program.name, REPAIRED)) if row["expected"] else None
    return {
        "held_out": program.held_out,
        "defect": program.defect,
        "library": program.library,
        "plain_ms": _digits(plain_ms.get((program.name, row["variant"]))),
        "repaired_ms": _digits(repaired_ms),
    }


def _claimed(diagnosis: TimelineDiagnosis, saved_ns: float | None) -> float | None:
    """Return the share of the step that a finding of the plan claims."""
    return None if saved_ns is None else saved_ns / max(1, diagnosis.focus.length_ns)


def _unit(
    path: Path,
    program: Program,
    variant: str,
    diagnosis: TimelineDiagnosis,
    pace: Pace | None,
    plain_ms: float | None,
) -> int | None:
    """Return how many diagnosed steps a step of the program is; None where that is not known.

    A window is of the steps that `record` counts: steps of an optimizer, or calls of a model, whose
    number is known. So is the number of steps of a whole run.
    """
    if not diagnosis.steps:
        return None
    calls = program.calls if variant == FOUND else program.repaired_calls
    if calls == 1 and pace is None:
        return max(1, round(diagnosis.steps / _true_steps(path, program)))
    if calls is None or plain_ms is None:
        return calls
    step_ms = max(diagnosis.step_ns / 1e6, 1e-6)
    return min((1, calls), key=lambda unit: abs(math.log(unit * step_ms / plain_ms)))


def _true_steps(path: Path, program: Program) -> int:
    """Return how many steps a whole run had, with those that warm up."""
    log = path.with_name(".".join(capture_name(path)) + ".log")
    printed = _STEPS_PRINTED.search(log.read_text(errors="replace")) if log.exists() else None
    steps = int(printed[1]) if printed else window_steps(program)
    return steps + program.warmup


def _digits(number: float | None) -> float | None:
    """Keep the digits that mean something: rows are committed."""
    return None if number is None else float(f"{number:.5g}")


def _times(unit: int | None, ms: float | None) -> float | None:
    return None if ms is None or unit is None else _digits(unit * ms)


def _alone_ms(diagnosis: TimelineDiagnosis) -> dict[str, float]:
    """Predict the step time after the fix of each finding alone."""
    predictions = {f.rule: f.step_ns for f in diagnosis.findings if f.step_ns is not None}
    return {rule: (diagnosis.step_ns - saved_ns) / 1e6 for rule, saved_ns in predictions.items()}


def _after_fixes_ms(
    trace: gs.Trace, diagnosis: TimelineDiagnosis, repairs: Sequence[str]
) -> tuple[list[str], float]:
    """Predict the step time after those fixes that the repaired program has.

    Without a finding of one, the step is predicted to stay as it is.
    """
    expected_fixes = [f for f in diagnosis.findings if f.rule in repairs and f.step_ns is not None]
    saved_ns = max((finding.step_ns or 0.0 for finding in expected_fixes), default=0.0)
    if len(expected_fixes) > 1:
        try:
            after = gs.whatif(trace, apply=[finding.rule for finding in expected_fixes]).answer
        except GpusightError:  # a gain that is estimated without a replay, or only after another
            planned_ns = sum(finding.saved_ns or 0.0 for finding in expected_fixes)
            saved_ns = max(
                saved_ns, planned_ns / diagnosis.steps if diagnosis.steps else planned_ns
            )
        else:
            saved_ns = max(saved_ns, (after.share or 0.0) * diagnosis.step_ns)
    return [finding.rule for finding in expected_fixes], (diagnosis.step_ns - saved_ns) / 1e6


def _ledger(diagnosis: TimelineDiagnosis) -> dict[str, float]:
    """Return the share of the time of its first GPU that each entry of the ledger has."""
    entries = [entry for device in diagnosis.ledger.devices[:1] for entry in device.entries]
    shares = {entry.entry: round(entry.share or 0.0, 4) for entry in entries}
    return {name: share for name, share in shares.items() if share}


def read_rows(file: Path = ROWS) -> list[dict[str, Any]]:
    """Return the rows of a file; none where there is no file."""
    return json.loads(file.read_text(encoding="utf-8"))["rows"] if file.exists() else []


def write_rows(file: Path, rows: Sequence[dict[str, Any]]) -> None:
    """Write rows, one per line, in the order of their names."""
    ordered = sorted(rows, key=lambda row: (row["program"], row["variant"], row["tool"]))
    lines = ",\n".join(json.dumps(row, separators=(",", ":")) for row in ordered)
    file.write_text(f'{{"rows": [\n{lines}\n]}}\n', encoding="utf-8")


def _line(row: dict[str, Any]) -> str:
    """Write a row for people."""
    label = f"{row['program']}.{row['variant']}.{row['tool']}"
    if "error" in row:
        return f"{label:42} {row['error']}"
    mark = {True: "right", False: "WRONG", None: "-"}[row["right"]]
    times = [row["recorded_ms"], row["step_ms"], row["plain_ms"]]
    if row["expected"]:
        times += [row["predicted_ms"], row["repaired_ms"]]
    shown = " ".join("?" if ms is None else f"{ms:.3g}" for ms in times)
    plan = ", ".join(
        rule if share is None else f"{rule} {share:.0%}" for rule, share, _ in row["plan"][:4]
    )
    return f"{label:42} {row['steps']:3} steps {mark:5} {shown:32} {plan or 'nothing'}"


def main() -> None:
    """Print a line per capture, and keep the rows."""
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the rows here too")
    parser.add_argument("--only", default="", metavar="TEXT", help="captures with this in the name")
    parser.add_argument("--new", action="store_true", help="only those without a row in FILE")
    parser.add_argument("--times", type=Path, default=MEASURED, help="step times without profiler")
    args = parser.parse_args()
    plain_ms = measured_ms(args.times)
    rows = {_name(row): row for row in (read_rows(args.json) if args.json else ())}
    for row in rows.values():
        known = known_of(row, plain_ms)
        # Rows of collections before `same_run` was kept have times of their own.
        is_timed = row.get(_SAME, bool(row["plain_ms"]))
        row.update({key: known[key] for key in known if key not in _TIMES or not is_timed})
    own_ms = own_times(args.folder)
    scored = []
    for path in captures(args.folder):
        if args.only not in path.name or (args.new and capture_name(path) in rows):
            continue
        row = score(path, plain_ms | own_ms)
        row[_SAME] = capture_name(path)[:2] in own_ms
        print(_line(row), flush=True)
        scored.append(row)
        rows[_name(row)] = row
        if args.json:
            write_rows(args.json, list(rows.values()))
    if args.json:
        write_rows(args.json, list(rows.values()))
    for held_out, which in ((False, "design"), (True, "held out")):
        firsts = [
            row.get("right") for row in scored if row["held_out"] == held_out and row["expected"]
        ]
        if firsts:
            print(f"{which}: first finding right in {sum(map(bool, firsts))} of {len(firsts)}")


def _name(row: dict[str, Any]) -> tuple[str, ...]:
    return row["program"], row["variant"], row["tool"]


if __name__ == "__main__":
    main()
