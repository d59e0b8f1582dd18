"""docs/accuracy.md: how right diagnoses of programs with known defects are."""

from __future__ import annotations

import json
import statistics
from collections import defaultdict
from typing import TYPE_CHECKING, Any

from benchmarks.guilty_lines import RESULTS as GUILTY_LINES
from benchmarks.programs import accuracy
from benchmarks.programs.accuracy import Errors, Prediction
from benchmarks.programs.collect import MEASURED
from benchmarks.programs.registry import FOUND, PROGRAMS, REPAIRED
from benchmarks.programs.score import read_rows
from gpusight.render.markdown_tables import markdown_table

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    Row = dict[str, Any]

TOOLS = ("nsys", "cupti", "torch")
HALVES = {False: "design", True: "held out"}
MAX_ERROR = 0.20
"""The goal for nine of ten predictions; what is further off is explained."""
CAUSES: dict[str, str] = {
    "triton_fused": (
        "The window ends with torch.profiler's own last wait, and what the profiler does before it "
        "counts as time between steps: 7%, in the trace of torch.profiler only. Time after the "
        "last GPU work no longer counts; not scored again."
    ),
    "large_gemms": (
        "`between-steps` claims 6% in the trace of torch.profiler. Likely its last wait for the "
        "GPU, 12.7 ms after the program's, counted to the last step, as in a trace of "
        "graph_messages (held out). Time after the last GPU work no longer counts; not scored "
        "again."
    ),
    "anomaly_training": (
        "The time of forward tracebacks is estimated from the launches of the backward pass: 24 "
        "ms with nsys, 64 ms with CUPTI, for the same 442 checks. The nsys run was slower "
        "before the recording (104 ms) than in it, so nothing was corrected there."
    ),
    "anomaly_detection": (
        "As anomaly_training: nsys and torch.profiler show the same 548 checks per step, but "
        "the estimate finds 25 ms with nsys and 64 ms with torch.profiler. Which part of the "
        "estimate differs was not traced."
    ),
    "augmented_images": (
        "Timed without a profiler on another day than recorded: 267 ms then, 143 to 148 ms before "
        "each recording. The fix is predicted for 8 workers; the repaired program has 12."
    ),
    "audio_spectrograms": (
        "`record` timed 30, 47 and 75 ms per step before the three recordings, so the CPU's "
        "time for spectrograms varies between runs. Likely also: the fix of `input-starved` "
        "leaves the launches of the model at their recorded, slower time."
    ),
    "blocked_launches": (
        "All launches block in the nsys capture (`--pace off` says so first). The correction "
        "shortens the calls, which then end before their kernels, and the rule passes. "
        "torch.profiler makes a step 5 times as long, more than is corrected."
    ),
    "cpu_environment": (
        "`record` timed 36 to 50 ms per step before the recordings, 28 ms without a profiler; "
        "why was not traced. In the CUPTI capture, the clocks of host and GPU are 94 ms apart, "
        "which makes idle causes unreliable."
    ),
    "cupy_conjugate_gradient": (
        "No pace is known of CuPy programs: times are the estimate for nsys, whose costs were "
        "fitted on PyTorch programs."
    ),
    "cuda_synced_stencil": (
        "One kernel, launched over and over, has no pattern from which steps could be counted, and "
        "a program in CUDA C++ has no other marks."
    ),
    "cupy_saved_fields": (
        "The repaired program was over before `record` started the profiler. Such programs are now "
        "recorded from their start; not recorded again."
    ),
    "elementwise_formulas": (
        "The prediction made one kernel of a chain of 11 and kept the reductions and the kernels "
        "next to them, 28% of the kernel time. LayerNorm and GELU as operators replace these too. "
        "Chains now go on across reductions over rows; not scored again."
    ),
    "host_ranking": (
        "NumPy on the host: the run with torch.profiler was as slow before the recording as in it."
    ),
    "jax_changing_shapes": (
        "Compilation is 99% of the step. The prediction leaves 14 ms of 2,380, what the GPU and "
        "the calls take; 0.78 ms were measured."
    ),
    "jax_numpy_batches": (
        "The repaired step takes 0.64 to 0.96 ms in three repeats without a profiler, and no "
        "pace is known of JAX programs, so times stay those under nsys."
    ),
    "jax_without_jit": (
        "The prediction launches the same kernels as a graph; `jit` compiles them into a few. No "
        "pace is known of JAX programs, so that times stay those under nsys. The repaired program "
        "was over before `record` started the profiler, as that of `cupy_saved_fields`."
    ),
    "lbfgs_fit": (
        "torch.profiler made a step 2.5 times as long, and the correction takes off 88% of the "
        "host time. Nearly all idle time is then of launched work that starts late, which "
        "`launch-bound` does not look for. `host-sync`, also right, comes second."
    ),
    "logged_activations": (
        "The repair saves 8% of a step, less than repeats differ. The program is launch-bound "
        "before and after the repair, and that finding comes first in both."
    ),
    "masked_losses": (
        "The prediction keeps the kernels of all 16 tasks, 570 per step, and removes the waits "
        "between them; the repaired program launches 50. `record` timed faster steps than the "
        "plain runs."
    ),
    "nan_checks": (
        "The repair saves 10% of a step, less than repeats differ. The program is launch-bound "
        "before and after the repair, and that finding comes first in both."
    ),
    "ode_solver": (
        "A step is a call of the field with few launches, and the prediction launched a graph for "
        "each. Now calls of so little GPU work share one; not scored again. `record` timed 123 to "
        "216 µs per call, 85 µs without a profiler: likely its first calls. Of the repaired "
        "program it recorded the calls before the CUDA graph was made."
    ),
    "prompts_one_by_one": (
        "`record` timed 40 to 81 ms per token, the recorded ones take 9 to 15 ms, so nothing is "
        "corrected. Likely the timed calls are in the first `generate()`, where each length is "
        "new."
    ),
    "single_images": (
        "The steps before the recording with nsys took 1.7 times as long as without it, under "
        "CUPTI and torch.profiler as long as without."
    ),
    "tokenized_on_main_thread": (
        "Timed without a profiler on another day than recorded: 59 ms then, 29 to 34 ms before "
        "each recording."
    ),
    "token_loop": (
        "Of torch.profiler's 5.4 ms per token, 3.6 ms are taken off, and the simulation of the "
        "rest is 24% off. With nsys and CUPTI, likely: the prediction keeps the sync after each "
        "token, which the repair removes."
    ),
    "written_out_attention": (
        "A fused kernel in half precision is assumed to take half of the GEMMs in it. From nsys "
        "and torch.profiler 21.8 ms are predicted, from CUPTI 24.4: likely as nothing is taken off "
        "its host time where the GPU sets the pace."
    ),
}
"""Why a program of the design half is among the worst cases.

From its captures, its source and its times; `likely` where none of them shows it.
"""
_GUILTY = """\
Programs that one line of Python holds up (`benchmarks/guilty_lines`: loader, tokenizer, logging,
metric, garbage collection, lock, recompilation, checkpoint, database, hook, event loop, …).
A comment in the source marks the line. The first row of `gpusight hotspots` of a recording is right
if it is a marked line. Halves are set by a hash of the name. `python -m
benchmarks.guilty_lines.score -o benchmarks/guilty_lines/guilty_lines.json` runs it.

These were recorded at a load of 9 to 14 on two processors. In 2 of 4 such recordings of
`loader_getitem` the line below the guilty one came first: likely it gives the GIL away, which the
sampler, to keep its cost down, then asks for less often. In an earlier recording, on a machine less
busy, it was right. The last six programs were written before any of them was recorded;
`collate_padding` was recorded again, as its mark was one line below the work."""
_NOT_READ = "Held out: its captures were not examined."


def accuracy_parts(rows: Sequence[Row] | None = None) -> list[str]:
    """Return the paragraphs and tables of the page."""
    rows = read_rows() if rows is None else rows
    return [
        "# Accuracy",
        *_introduction(rows),
        "## Goals and results",
        _goals(rows),
        _DEFINITIONS,
        "## By tool",
        _by_tool(rows),
        "## By defect",
        _BY_DEFECT,
        _by_defect(rows),
        "## First findings that are wrong",
        _WRONG,
        _wrong_firsts(rows),
        "## Step time without the profiler",
        _STEPS,
        _step_table(rows),
        "## Step time after the fix",
        _FIXES,
        _fix_table(rows),
        "## Healthy and repaired programs",
        _HEALTHY,
        _healthy_table(rows),
        _REPAIRED,
        _repaired_table(rows),
        "## Two tools, one program",
        _AGREE,
        _agreement_table(rows),
        "## Guilty lines",
        _GUILTY,
        _guilty_table(json.loads(GUILTY_LINES.read_text())),
        "## Worst cases",
        _WORST,
        _worst_table(rows),
        "## Run it again",
        _AGAIN,
    ]


def unexplained(rows: Sequence[Row]) -> list[str]:
    """Return the programs of the design half that are among the worst cases without a cause."""
    return [
        name for name in worst_cases(rows) if not PROGRAMS[name].held_out and name not in CAUSES
    ]


# Words --------------------------------------------------------------------------------------------

_DEFINITIONS = (
    "- **First finding right**: the first finding of the plan is one of those that are listed for "
    "the defect in `registry.py`. What gpusight cannot record or diagnose counts as wrong.\n"
    "- **Planted defect found**: one of these findings is anywhere in the plan.\n"
    "- **Accused**: a program without a known defect whose plan has a finding that claims more "
    f"than {accuracy.MAX_CLAIM:.0%} of the step.\n"
    "- **Step time**: the step time that `diagnose` shows, corrected for the profiler where the "
    "capture has a pace, against the median of three repeats without a profiler.\n"
    "- **Step time after the fix**: the step time predicted for the fixes that the repair makes, "
    "against the median of three repeats of the repaired program. Where no finding "
    "names one of them, no change is predicted.\n"
    "- **Share that the fix saves**: of the step, predicted against measured. An error of the step "
    "time as found does not count twice here, and short repaired steps weigh no more than long "
    "ones.\n"
    "- **Fixes that the repair does not make**: these captures were scored with the fixes of all "
    "findings that are right for the defect, such as CUDA graphs where the repair only removes "
    "waits. `registry.py` now says which fixes a repair makes (`fixed`, from the source of the "
    "programs, written when the errors were known), and the next scoring "
    "predicts those. Until then such predictions count in no error on this page but that *with "
    "other fixes too*, and are marked *other fix* below.\n"
    "- **Design, held out**: rules were written and tuned with captures of the design half. "
    "Captures of the other half are only scored. A hash of the name decides. One held-out capture "
    "was looked at: graph_messages by torch.profiler, for the end of its last step.\n"
    "- **On the same day**: without captures of collections that did not time the program too. "
    "Host-bound programs took up to twice as long on one day as on another, on machines of one "
    "kind."
)
_BY_DEFECT = (
    "By the rule that should come first; all tools, both halves. Errors are those of the predicted "
    "step time after the fix."
)
_WRONG = (
    "Where the repair saved little, another finding may rightly come first: its fix was not tried."
)
_STEPS = (
    "Milliseconds per step. For each tool: recorded, then shown by `diagnose`, with its error. "
    "Programs that `record` cannot count steps of (JAX, CuPy, CUDA C++, replayed CUDA graphs) are "
    "recorded as a whole and have no pace: nothing is corrected there."
)
_FIXES = (
    "Milliseconds per step without a profiler, as found and repaired, and the step time predicted "
    "from a capture by each tool of the program as found. `-`: no finding of what was repaired."
)
_HEALTHY = "Programs without a known defect: findings that claim more than 5% of the step."
_REPAIRED = (
    "Repaired programs, as recorded by nsys. *Found again* are findings of the defect that was "
    "repaired. The others are no known errors: a repaired program may have further problems."
)
_AGREE = (
    "Tools of one program as found, two by two: the same first finding (of those that claim more "
    f"than {accuracy.MAX_CLAIM:.0%}), and step times within {accuracy.SAME_STEP:.0%}. Listed are "
    "those that disagree."
)
_WORST = (
    "Programs with a wrong first finding, with a step time or a prediction more than "
    f"{MAX_ERROR:.0%} off, accused while healthy, without steps, or that could not be diagnosed. "
    "*Likely* marks causes that neither the captures nor the times show."
)
_AGAIN = """On a machine with a GPU, PyTorch, nsys and this repository:

```sh
python -m benchmarks.programs.collect --list    # what it runs, and how long that takes
python -m benchmarks.programs.collect --out collected --minutes 60
# or, in parts of ten minutes: what is missing on this page first (the module's docstring says how)
python -m benchmarks.programs.collect --out collected --minutes 8.5 --missing
for tar in collected/*.tar; do tar -xf "$tar" -C collected; done
unxz collected/*.xz
```

Anywhere, with the folder of captures:

```sh
python -m benchmarks.programs.accuracy times collected/results.json
python -m benchmarks.programs.score collected --json benchmarks/programs/accuracy_h200.json
python -m benchmarks.programs.accuracy table    # what `explain` shows of it
python -m tools.generate_docs                   # this page
```

`step_times_h200.json` has the repeats without a profiler and the mean step time of each recorded
run; `accuracy_h200.json` has a row per capture: step times, the plan with the share of the step
that each finding claims, GPU time by ledger entry, and the prediction. The captures themselves are
not in the repository."""


def _introduction(rows: Sequence[Row]) -> Iterator[str]:
    programs = {row["program"] for row in rows}
    kinds = {PROGRAMS[name].expected[0] for name in programs if PROGRAMS[name].expected}
    healthy = {row["program"] for row in rows if row["defect"] is None}
    failed = [row for row in rows if "error" in row]
    machine = json.loads(MEASURED.read_text(encoding="utf-8"))["machine"]
    spreads = accuracy.spreads()
    yield (
        f"{len(programs)} programs of our own ([benchmarks/programs](../benchmarks/programs)) on "
        "PyTorch, public libraries, JAX, CuPy, Triton and CUDA C++: "
        f"{len(programs - healthy)} with a planted defect of {len(kinds)} kinds, each as found and "
        f"repaired, and {len(healthy)} healthy ones. {len(rows)} captures by `gpusight record` "
        f"with nsys, CUPTI and torch.profiler, {len(failed)} of which could not be recorded or "
        "diagnosed."
    )
    missing = [name for name in PROGRAMS if name not in programs]
    if missing:
        yield f"Not recorded in this collection: {', '.join(missing)}."
    yield (
        f"Machine: {machine['gpu']}, {machine['cores']} cores, torch {machine['torch']}. The truth "
        "is noisy too: three repeats of a program in one process differ by "
        f"{statistics.median(spreads):.0%} in the median and by more than "
        f"{Errors(tuple(spreads)).ninth:.0%} for one program of ten."
    )


# Tables -------------------------------------------------------------------------------------------


def _table(headings: Sequence[str], rows: Iterable[Sequence[str]], left: int = 1) -> str:
    """Write a table; columns after the first `left` ones hold numbers."""
    aligned = tuple(number >= left for number in range(len(headings)))
    return markdown_table(tuple(headings), aligned, [tuple(row) for row in rows])


def _goals(rows: Sequence[Row]) -> str:
    halves = [_results([r for r in rows if r["held_out"] == held_out]) for held_out in HALVES]
    goals = {
        "first finding right": "95%",
        "planted defect found": "-",
        "healthy programs accused": "0",
        "step time, median error": "10%",
        "step time, nine of ten within": "20%",
        "step time, timed on the same day, median error": "-",
        "step time as recorded, median error": "-",
        "step time timed by `record`, median error": "-",
        "step after the fix, median error": "8%",
        "step after the fix, nine of ten within": "20%",
        "share that the fix saves, median difference": "-",
        "step after the fix, with other fixes too, median error": "-",
        "predictions of fixes that the repair does not make": "0",
        "two tools agree": "all",
    }
    lines = [(name, goal, *(half[name] for half in halves)) for name, goal in goals.items()]
    return _table(("", "goal", *HALVES.values()), lines)


def _results(rows: Sequence[Row]) -> dict[str, str]:
    known = accuracy.scored(rows)
    firsts = accuracy.first_findings(rows)
    healthy = {r["program"] for r in known if r["defect"] is None}
    accused = {r["program"] for r in known if r["defect"] is None and accuracy.accusations(r)}
    pairs = accuracy.agreements(known)
    steps, recorded, pace = (
        _errors(error for _, error in accuracy.step_errors(known, which))
        for which in ("step_ms", "recorded_ms", "pace_ms")
    )
    timed = [row for row in known if row.get("same_run", True)]
    same_day = _errors(error for _, error in accuracy.step_errors(timed))
    predicted = accuracy.predictions(known)
    repaired = [pair for pair in predicted if pair.is_of_the_repair]
    fixes = _errors(pair.error for pair in repaired)
    shares = [abs(shown - true) for shown, true in (pair.saved for pair in repaired)]
    return {
        "first finding right": _count(sum(bool(r.get("right")) for r in firsts), len(firsts)),
        "planted defect found": _count(sum(map(accuracy.is_found, firsts)), len(firsts)),
        "healthy programs accused": f"{len(accused)} of {len(healthy)}",
        "step time, median error": _median(steps),
        "step time, nine of ten within": _ninth(steps),
        "step time, timed on the same day, median error": _median(same_day),
        "step time as recorded, median error": _median(recorded),
        "step time timed by `record`, median error": _median(pace),
        "step after the fix, median error": _median(fixes),
        "step after the fix, nine of ten within": _ninth(fixes),
        "share that the fix saves, median difference": (
            f"{100 * statistics.median(shares):.0f} points" if shares else "-"
        ),
        "step after the fix, with other fixes too, median error": _median(
            _errors(pair.error for pair in predicted)
        ),
        "predictions of fixes that the repair does not make": (
            _count(len(predicted) - len(repaired), len(predicted))
        ),
        "two tools agree": _count(sum(pair.agree for pair in pairs), len(pairs)),
    }


def _errors(values: Iterable[float]) -> Errors:
    return Errors(tuple(values))


def _median(errors: Errors) -> str:
    return f"{errors.median:.0%} of {len(errors)}" if len(errors) else "-"


def _ninth(errors: Errors) -> str:
    return f"{errors.ninth:.0%}" if len(errors) else "-"


def _count(right: int, of: int) -> str:
    return f"{right} of {of} ({right / of:.0%})" if of else "-"


def _by_tool(rows: Sequence[Row]) -> str:
    lines = []
    for tool in TOOLS:
        for held_out, half in HALVES.items():
            chosen = [r for r in rows if r["tool"] == tool and r["held_out"] == held_out]
            results = _results(chosen)
            lines.append(
                (
                    tool,
                    half,
                    results["first finding right"],
                    results["step time, median error"],
                    results["step time, nine of ten within"],
                    results["step after the fix, median error"],
                    results["step after the fix, nine of ten within"],
                )
            )
    headings = ("tool", "half", "first finding right", "step time: median", "nine of ten")
    return _table((*headings, "after the fix: median", "nine of ten"), lines, left=2)


def _by_defect(rows: Sequence[Row]) -> str:
    by_rule: dict[str, list[Row]] = defaultdict(list)
    for row in accuracy.first_findings(rows):
        by_rule[row["expected"][0]].append(row)
    lines = []
    for rule, chosen in sorted(by_rule.items()):
        pairs = accuracy.predictions(accuracy.scored(chosen))
        errors = _errors(pair.error for pair in pairs if pair.is_of_the_repair)
        lines.append(
            (
                f"`{rule}`",
                ", ".join(sorted({row["program"] for row in chosen})),
                _count(sum(bool(row.get("right")) for row in chosen), len(chosen)),
                _median(errors),
                f"{errors.worst:.0%}" if len(errors) else "-",
            )
        )
    headings = ("rule", "programs", "first finding right", "median error", "worst")
    return _table(headings, lines, left=2)


def _wrong_firsts(rows: Sequence[Row]) -> str:
    lines = [
        (
            row["program"],
            HALVES[row["held_out"]],
            row["tool"],
            ", ".join(f"`{rule}`" for rule in row["expected"]),
            _repair_saves(row),
            row.get("error") or _plan(row),
        )
        for row in accuracy.first_findings(rows)
        if not row.get("right")
    ]
    headings = ("program", "half", "tool", "right would be", "repair saved", "plan")
    return _table(headings, lines, left=6)


def _repair_saves(row: Row) -> str:
    """Return what the repair saved, measured without a profiler."""
    if not (row["plain_ms"] and row.get("repaired_ms")):
        return "-"
    return f"{1 - row['repaired_ms'] / row['plain_ms']:.0%}"


def _plan(row: Row, most: int = 3) -> str:
    """List the first findings of the plan with what they claim."""
    shown = [
        f"`{rule}`" if share is None else f"`{rule}` {share:.0%}"
        for rule, share, _ in row["plan"][:most]
    ]
    return ", ".join(shown) or "nothing"


def _by_name(rows: Iterable[Row]) -> dict[tuple[str, str], dict[str, Row]]:
    """Return the rows of each program and variant by tool."""
    names: dict[tuple[str, str], dict[str, Row]] = defaultdict(dict)
    for row in rows:
        names[row["program"], row["variant"]][row["tool"]] = row
    return names


def _step_table(rows: Sequence[Row]) -> str:
    lines = []
    for (program, variant), tools in _by_name(accuracy.scored(rows)).items():
        plain_ms = next(iter(tools.values()))["plain_ms"]
        cells = [_step_cell(tools.get(tool)) for tool in TOOLS]
        half = HALVES[PROGRAMS[program].held_out]
        lines.append((program, variant, half, _ms(plain_ms), *cells))
    headings = ("program", "variant", "half", "no profiler", *TOOLS)
    return _table(headings, lines, left=3)


def _step_cell(row: Row | None) -> str:
    if row is None or not row.get("step_ms"):
        return "-"
    error = f" ({row['step_ms'] / row['plain_ms'] - 1:+.0%})" if row["plain_ms"] else ""
    recorded = f"{_ms(row['recorded_ms'])} → " if row["pace_ms"] else ""
    return f"{recorded}{_ms(row['step_ms'])}{error}"


def _ms(ms: float | None) -> str:
    return "-" if ms is None else f"{ms:.3g}" if ms < 100 else f"{ms:,.0f}"


def _fix_table(rows: Sequence[Row]) -> str:
    pairs: dict[str, dict[str, Prediction]] = defaultdict(dict)
    for pair in accuracy.predictions(accuracy.scored(rows)):
        pairs[pair.row["program"]][pair.row["tool"]] = pair
    lines = []
    for program, tools in pairs.items():
        row = next(iter(tools.values())).row
        cells = [_fix_cell(tools.get(tool)) for tool in TOOLS]
        half, defect = HALVES[row["held_out"]], row["defect"]
        lines.append((program, half, defect, _ms(row["plain_ms"]), _ms(row["repaired_ms"]), *cells))
    headings = ("program", "half", "defect", "as found", "repaired", *TOOLS)
    return _table(headings, lines, left=3)


def _fix_cell(pair: Prediction | None) -> str:
    if pair is None:
        return ""
    missed = "" if pair.row["applied"] else "- "
    other = "" if pair.is_of_the_repair else ", other fix"
    return f"{missed}{_ms(pair.row['predicted_ms'])} ({pair.error:+.0%}{other})"


def _claims(claims: Iterable[tuple[str, float]]) -> str:
    return ", ".join(f"`{rule}` {share:.0%}" for rule, share in claims) or "none"


def _healthy_table(rows: Sequence[Row]) -> str:
    healthy = [r for r in accuracy.scored(rows) if r["defect"] is None]
    lines = []
    for (program, _), tools in _by_name(healthy).items():
        cells = [
            _claims(accuracy.accusations(tools[tool])) if tool in tools else "-" for tool in TOOLS
        ]
        lines.append((program, HALVES[PROGRAMS[program].held_out], *cells))
    return _table(("program", "half", *TOOLS), lines, left=5)


def _repaired_table(rows: Sequence[Row]) -> str:
    repaired = [r for r in accuracy.scored(rows) if r["variant"] == REPAIRED]
    lines = []
    for row in repaired:
        again = accuracy.found_again(row)
        others = [claim for claim in accuracy.accusations(row) if claim not in again]
        if again or others:
            half = HALVES[row["held_out"]]
            lines.append((row["program"], half, row["tool"], _claims(again), _claims(others)))
    found = _count(sum(bool(accuracy.found_again(row)) for row in repaired), len(repaired))
    headings = ("program", "half", "tool", "found again", "other findings over 5%")
    return f"Found again: {found}.\n\n" + _table(headings, lines, left=5)


def _agreement_table(rows: Sequence[Row]) -> str:
    pairs = accuracy.agreements(accuracy.scored(rows))
    lines = [
        (
            pair.program,
            HALVES[pair.held_out],
            " / ".join(pair.tools),
            " / ".join(f"`{rule}`" for rule in dict.fromkeys(pair.firsts)),
            " / ".join(map(_ms, pair.steps_ms)),
            f"{pair.apart:.0%}",
        )
        for pair in pairs
        if not pair.agree
    ]
    same = _count(sum(pair.same_first for pair in pairs), len(pairs))
    near = _count(sum(pair.apart <= accuracy.SAME_STEP for pair in pairs), len(pairs))
    both = _count(sum(pair.agree for pair in pairs), len(pairs))
    headings = ("program", "half", "tools", "first finding", "ms/step", "apart")
    summary = f"Same first finding: {same}. Step within 10%: {near}. Both: {both}."
    return f"{summary}\n\n" + _table(headings, lines, left=4)


def worst_cases(rows: Sequence[Row]) -> dict[str, list[str]]:
    """Return what went wrong, by program."""
    cases: dict[str, list[str]] = defaultdict(list)
    for row in rows:
        cases[row["program"]] += [f"{what} ({_label(row)})" for what in _wrong(row)]
    return {name: wrong for name, wrong in sorted(cases.items()) if wrong}


def _wrong(row: Row) -> Iterator[str]:
    """Say what is wrong with the diagnosis of one capture."""
    if row["expected"] and not row.get("right"):
        yield "first finding wrong"
    if "error" in row:
        yield row["error"].partition(";")[0]
        return
    if not row["steps"]:
        yield "no steps found"
    for _, error in accuracy.step_errors([row]):
        if abs(error) > MAX_ERROR:
            yield f"step {error:+.0%}"
    for pair in accuracy.predictions([row]):
        if abs(pair.error) > MAX_ERROR and pair.is_of_the_repair:
            yield f"after the fix {pair.error:+.0%}"
    if row["defect"] is None and accuracy.accusations(row):
        yield "accused"


def _label(row: Row) -> str:
    return row["tool"] if row["variant"] == FOUND else f"repaired, {row['tool']}"


def _guilty_table(results: dict[str, Any]) -> str:
    """Tell which programs have the guilty line in the first row, by half."""
    rows: list[Row] = results["rows"]
    cells = [
        (
            row["name"],
            row["half"],
            f"`{row['first'].partition(' ')[0]}`",
            "yes" if row["right"] else f"no: row {row['rank'] or '-'}",
            f"{row['share']:.0%}",
        )
        for row in rows
    ]
    where = {"cpu": "on a CPU only: rows are ordered by host time"}.get(results["device"], "GPU")
    counts = []
    for half in HALVES.values():
        own = [row["right"] for row in rows if row["half"] == half]
        counts.append(f"{half}: {_count(sum(own), len(own))}")
    headings = ("Program", "Half", "First row", "Right", "Its share of host time")
    how = f"Recorded with {results['tool']}, {where}. {'; '.join(counts)}."
    return f"{how}\n\n" + _table(headings, cells, 4)


def _worst_table(rows: Sequence[Row]) -> str:
    lines = [
        (
            name,
            "; ".join(cases),
            _NOT_READ if PROGRAMS[name].held_out else CAUSES.get(name, "not explained"),
        )
        for name, cases in worst_cases(rows).items()
    ]
    return _table(("program", "what", "why"), lines, left=3)
