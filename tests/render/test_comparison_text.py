"""A comparison in every form: what is said, that it fits, that sums hold, that names are shown."""

from __future__ import annotations

import csv
import io
from dataclasses import replace
from html.parser import HTMLParser
from typing import Any

import pytest

from gpusight.comparison import phrases
from gpusight.comparison.comparison_result import (
    CallChange,
    ComparedSide,
    Comparison,
    CopyChange,
    EntryChange,
    FindingChange,
    FindingStatus,
    KernelChange,
    KernelMatch,
    MetricChange,
)
from gpusight.comparison.significance import Basis, ChangeVerdict, MeasuredChange
from gpusight.render import comparison_tables, comparison_text
from gpusight.render.cell_text import display_width
from gpusight.render.comparison_tables import comparison_sections
from gpusight.render.comparison_view import COMPARISON_FIELDS, as_table
from gpusight.render.csv_json import to_csv
from gpusight.render.html.comparison_page import comparison_fragment, comparison_to_page
from gpusight.render.table_layout import TableOptions
from gpusight.render.terminal_text import draw_lines, plain_lines
from gpusight.results import Fmt
from tests.render.hostile import HOSTILE

MS = 1e6


def change(
    before: float | None, after: float | None, verdict: str = "", scale: float = MS
) -> MeasuredChange:
    """Give a change of so many ms; claimed in its direction unless said otherwise."""
    known = None not in (before, after)
    delta = (after or 0.0) - (before or 0.0)
    result = verdict or ("lower" if delta < 0 else "higher")
    spread = 0.2 * abs(delta) if result in {"lower", "higher"} else 2 * abs(delta)
    return MeasuredChange(
        None if before is None else before * scale,
        None if after is None else after * scale,
        (delta - spread) * scale if known else None,
        (delta + spread) * scale if known else None,
        ChangeVerdict(result),
        Basis.STEPS,
    )


STEP = change(46.59, 42.42)
LEDGER = {
    "compute/matmul": change(30.0, 1.8),
    "idle/framework": change(3.0, 23.7),
    "idle/launching": change(1.0, 7.6),
    "compute/optimizer": change(6.0, 2.0),
    "compute/elementwise": change(6.0, 7.0, "unclear"),
    "copy/h2d": change(0.4, 0.32, "unclear"),
    "communication": change(0.19, 0, "vanished"),
}


def comparison(**changed: Any) -> Comparison:
    """Give a comparison of two captures, with one of everything."""
    gpus = ("NVIDIA H200",)
    made = Comparison(
        before=ComparedSide(("old.sqlite",), ("Nsight",), gpus, (3,), (46.59 * MS,), "gpu", 0.849),
        after=ComparedSide(("new.sqlite",), ("Nsight",), gpus, (3,), (42.42 * MS,), "host", 0.251),
        metrics=(
            MetricChange("step_time", "Step time", Fmt.TIME, STEP),
            MetricChange("busy", "GPU busy", Fmt.TIME, change(42.59, 11.12)),
            MetricChange("launches", "Kernels", Fmt.COUNT, change(1434, 1210, scale=1)),
            MetricChange(
                "memory_peak", "Memory peak", Fmt.BYTES, change(4.2, None, "same", 1e9), "no"
            ),
        ),
        ledger=tuple(
            EntryChange(name, entry, (entry.delta or 0) / (STEP.delta or 1))
            for name, entry in LEDGER.items()
        ),
        phases=(("backward", change(28, 4)), ("optimizer", change(6, 2))),
        kernels=(
            KernelChange(
                ("sgemm_128x64_nn",), ("nvjet_hsh_128x256_64x4_tn",),
                "sgemm_128x64_nn -> nvjet_hsh_128x256_64x4_tn", "matmul", ("forward",),
                KernelMatch.ROLE,
                change(30, 1.8), 48, 48,
            ),
            KernelChange(
                ("gelu<float>",), ("gelu<float>",), "gelu", "elementwise", (), KernelMatch.NAME,
                change(2, 2.1, "unclear"), 12, 12.333,
            ),
            KernelChange(
                (), ("cast",), "cast", "elementwise", (), KernelMatch.APPEARED,
                change(0, 0.5, "appeared"), 0, 96,
            ),
            KernelChange(
                ("tiny",), ("tiny",), "tiny", "other", (), KernelMatch.NAME,
                change(0.001, 0.0011, "unclear"), 1, 1,
            ),
        ),
        ranges=(CallChange("forward", change(9, 8), change(12, 3), 1, 1),),
        api=(CallChange("cudaLaunchKernel", change(5, 4.9, "same"), None, 1434, 1210),),
        copies=(
            CopyChange("h2d", "pageable", "device", change(0.4, 0.32, "unclear"), 4e6, 4e6, 2, 2),
        ),
        findings=(
            FindingChange(
                "launch-bound", "The host is slower", FindingStatus.NEW, None, 12 * MS, 0, 1
            ),
            FindingChange(
                "fp32-no-tensor-cores", "FP32 `mm`", FindingStatus.FIXED, 25 * MS, None, 1, 0
            ),
        ),
        explanation=(
            "Step time 46.6 -> 42.4 ms (-4.17 ms, -9.0%): lower.",
            "GPU work fell by 31.5 ms per step, most of it in `compute/matmul` (-28.2 ms).",
        ),
        confidence=0.95,
        least=0.02,
        notes=("One capture per side: runs may differ more than their steps do.",),
    )  # fmt: skip
    return replace(made, **changed)


def hostile(names: tuple[str, ...] = HOSTILE) -> Comparison:
    """Give a comparison in which every text that a capture can hold is hostile."""
    name = "".join(names)
    made = comparison()
    side = replace(made.before, labels=(name,), gpus=(name,), tools=(name,))
    return replace(
        made,
        before=side,
        after=replace(side, labels=(name, name), steps=(3, 4), step_ns=(1e6, 2e6)),
        ledger=(EntryChange(name, STEP, 1.0),),
        phases=((name, STEP),),
        kernels=tuple(
            replace(
                kernel, before=(name,), after=(name,), short=f"{name} -> {name}", ranges=(name,)
            )
            for kernel in made.kernels
        ),
        ranges=tuple(replace(row, name=name) for row in made.ranges),
        api=tuple(replace(row, name=name) for row in made.api),
        copies=tuple(replace(copy, operation=name, src_kind=name) for copy in made.copies),
        findings=tuple(replace(finding, rule=name, title=name) for finding in made.findings),
        explanation=(name, name),
        notes=(name,),
    )


def shown(result: Comparison, width: int | None = 80, **look: Any) -> str:
    """Write everything, as `--details` does."""
    lines = comparison_text.comparison_lines(result, TableOptions(width, **look), details=True)
    return plain_lines(lines)


# Values -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("delta", "fmt", "expected"),
    [
        (1.234e6, Fmt.TIME, "+1.23 ms"),
        (-28.2e6, Fmt.TIME, "-28.2 ms"),
        (0.0, Fmt.TIME, "0 ns"),
        (-0.0, Fmt.BYTES, "0 B"),
        (None, Fmt.TIME, "-"),
        (float("nan"), Fmt.TIME, "-"),
        (-734.0000001, Fmt.COUNT, "-734"),
        (1.5, Fmt.COUNT, "+1.5"),
    ],
)
def test_differences_have_signs(delta: float | None, fmt: Fmt, expected: str) -> None:
    assert phrases.signed(delta, fmt) == expected


@pytest.mark.parametrize(
    ("ratio", "expected"),
    [(-0.0895, "-8.9%"), (0.0004, "0.0%"), (12.5, "+1,250%"), (None, "-"), (float("inf"), "-")],
)
def test_parts_of_what_was_before(ratio: float | None, expected: str) -> None:
    assert phrases.signed_share(ratio) == expected


@pytest.mark.parametrize(
    ("low", "high", "fmt", "expected"),
    [
        (-4.9e6, -3.412e6, Fmt.TIME, "-4.90 to -3.41 ms"),
        (-300.0, 1.2e6, Fmt.TIME, "-0.00 to +1.20 ms"),
        (0.0, 0.0, Fmt.TIME, "+0 to +0 ns"),
        (-9.0, -9.0, Fmt.COUNT, "-9 to -9"),
        (None, None, Fmt.TIME, "-"),
        (float("-inf"), float("inf"), Fmt.TIME, "-"),
    ],
)
def test_an_interval_has_one_unit(
    low: float | None, high: float | None, fmt: Fmt, expected: str
) -> None:
    assert phrases.spread(low, high, fmt) == expected


@pytest.mark.parametrize(
    ("step", "expected"),
    [
        (change(46.59, 42.42), "Step time -9.0%: 46.6 -> 42.4 ms"),
        (
            change(17.01, 19.86, "unclear"),
            "Step time 17.0 -> 19.9 ms (+16.8%): not significant",
        ),
        (change(10, 10.01, "same"), "Step time unchanged (10.0 -> 10.0 ms, +0.1%)"),
    ],
)
def test_the_headline_claims_only_what_can_be(step: MeasuredChange, expected: str) -> None:
    metrics = (MetricChange("step_time", "Step time", Fmt.TIME, step),)
    assert comparison_tables.comparison_headline(comparison(metrics=metrics)) == expected


# A terminal ---------------------------------------------------------------------------------------


def first_screen(result: Comparison, width: int = 100, **options: Any) -> list[str]:
    lines = comparison_text.comparison_lines(result, TableOptions(width), **options)
    return plain_lines(lines).splitlines()


def test_findings_without_room_are_left_out_whole() -> None:
    compared = comparison()
    new = replace(compared.findings[0], status=FindingStatus.NEW, after_ns=12.5e6)
    many = tuple(replace(new, rule=f"a-rule-with-a-long-name-{n}") for n in range(4))
    (line,) = (
        line
        for line in first_screen(replace(compared, findings=many), 80)
        if line.startswith("Findings new")
    )
    assert line.endswith("a-rule-with-a-long-name-0 12.5 ms/step, …")


def test_the_first_screen_is_the_answer() -> None:
    assert first_screen(comparison(), hints=("gpusight compare old.sqlite new.sqlite",)) == [
        "before  old.sqlite: 3 steps of 46.6 ms, NVIDIA H200, GPU busy 84.9%",
        "after   new.sqlite: 3 steps of 42.4 ms, NVIDIA H200, GPU busy 25.1%",
        "",
        "Step time 46.6 -> 42.4 ms (-4.17 ms, -9.0%): lower.",
        "The bottleneck moved from GPU work to the host (GPU busy 84.9% -> 25.1%).",
        "",
        "Where the time goes per step   Before    After     Change",
        "compute/matmul                30.0 ms  1.80 ms   -28.2 ms  ----------------",
        "idle/framework                3.00 ms  23.7 ms   +20.7 ms  ++++++++++++",
        "idle/launching                1.00 ms  7.60 ms   +6.60 ms  ++++",
        "compute/optimizer             6.00 ms  2.00 ms   -4.00 ms  --",
        "compute/elementwise           6.00 ms  7.00 ms  ~+1.00 ms  +",
        "copy/h2d                       400 µs   320 µs  ~-80.0 µs",
        "total: step                   46.6 ms  42.4 ms   -4.17 ms",
        "",
        "  Change   Before    After       Calls  Kernels per step",
        "-28.2 ms  30.0 ms  1.80 ms          48  sgemm_128x64_nn -> nvjet_hsh_128x256_64x4_tn",
        "~+100 µs  2.00 ms  2.10 ms  12 -> 12.3  gelu",
        " +500 µs        -   500 µs     0 -> 96  cast",
        "",
        "Findings resolved, predicted saving alone: fp32-no-tensor-cores 25.0 ms/step",
        "Findings new, predicted saving alone: launch-bound 12.0 ms/step",
        "note: One capture per side: runs may differ more than their steps do.",
        "note: ~ not significant",
        "next: gpusight compare old.sqlite new.sqlite",
    ]


def test_the_first_screen_never_has_more_than_25_lines() -> None:
    made = comparison()
    many = replace(
        hostile(),
        ledger=tuple(EntryChange(f"idle/{n}", change(9, n), 0.1) for n in range(20, 60)),
        findings=tuple(
            FindingChange(f"rule-{n}", "", status, MS, MS, 1, 1)
            for n in range(9)
            for status in FindingStatus
        ),
        explanation=("Step time is higher: 46.6 -> 84.4 ms; " + "interval of the change " * 6,),
        notes=("a note " * 30,) * 9,
    )
    for result in (many, made, replace(made, kernels=(), findings=(), notes=())):
        lines = first_screen(result, hints=("gpusight compare a b --details",))
        assert len(lines) <= 25
        assert max(map(display_width, lines)) <= 100


@pytest.mark.parametrize("width", [76, 82, 100])
def test_cut_names_of_the_sides_keep_what_differs(width: int) -> None:
    made, start = comparison(), "a_model_with_many_words.of_one_run"
    sides = {
        key: replace(getattr(made, key), labels=(f"{start}.{word}.nsys.nsys-rep",))
        for key, word in (("before", "unfused"), ("after", "compiled"))
    }
    before, after = first_screen(replace(made, **sides), width)[:2]
    assert "unfused" in before.partition(":")[0]
    assert "compiled" in after.partition(":")[0]
    assert max(len(before), len(after)) <= width


@pytest.mark.parametrize("width", [60, 80, 100])
def test_the_sides_keep_both_step_times(width: int) -> None:
    made = comparison()
    side = replace(
        made.before,
        labels=("a_model_with_many_words.nsys-rep",),
        recorded_step_ns=(50.1 * MS,),
        is_estimate=True,
    )
    text = " ".join(line.strip() for line in first_screen(replace(made, before=side), width)[:2])
    assert ": 3 steps of about 46.6 ms (50.1 ms with the profiler), GPU busy 84.9%" in text
    assert "H200" not in text.partition("after")[0]


def test_a_note_is_wrapped_and_not_cut() -> None:
    words = [f"word{number}" for number in range(30)]
    lines = first_screen(comparison(notes=(" ".join(words), "more")))
    start = next(at for at, line in enumerate(lines) if line.startswith("note: word0"))
    assert " ".join(lines[start : start + 3]).split()[1:31] == words
    assert lines[-1] == "note: ~ not significant; 1 more with --details"


def test_findings_of_rules_that_were_not_evaluated_are_not_resolved() -> None:
    reason = "the peak FLOP/s are unknown"
    change = FindingChange(
        "slow-rule", "Slow", FindingStatus.NOT_EVALUATED_AFTER, 2 * MS, None, 1, 0,
        not_evaluated=reason,
    )  # fmt: skip
    lines = first_screen(comparison(findings=(change,)))
    assert (
        "Findings not evaluated in after, predicted saving alone: slow-rule 2.00 ms/step" in lines
    )
    assert not any("resolved" in line for line in lines)
    assert f"not evaluated in after: {reason}" in shown(comparison(findings=(change,)), 100)


def test_details_have_all_of_it() -> None:
    assert shown(comparison()).splitlines()[:26] == [
        "before  old.sqlite: 3 steps of 46.6 ms, NVIDIA H200, GPU busy 84.9%, bottleneck:",
        "        GPU work",
        "after   new.sqlite: 3 steps of 42.4 ms, NVIDIA H200, GPU busy 25.1%, bottleneck:",
        "        the host",
        "",
        "Step time 46.6 -> 42.4 ms (-4.17 ms, -9.0%): lower.",
        "- GPU work fell by 31.5 ms per step, most of it in `compute/matmul` (-28.2 ms).",
        "note: One capture per side: runs may differ more than their steps do.",
        "",
        "Metrics per step",
        "Metric        Before    After    Change       %       95% interval  Verdict",
        "Step time    46.6 ms  42.4 ms  -4.17 ms   -9.0%  -5.00 to -3.34 ms  lower",
        "GPU busy     42.6 ms  11.1 ms  -31.5 ms  -73.9%  -37.8 to -25.2 ms  lower",
        "Kernels        1,434    1,210      -224  -15.6%       -269 to -179  lower",
        "Memory peak  4.20 GB        -         -       -                  -  missing",
        "",
        "Where the time goes per step",
        "Entry                 Before    After     Change",
        "compute/matmul       30.0 ms  1.80 ms   -28.2 ms  ----------------",
        "idle/framework       3.00 ms  23.7 ms   +20.7 ms  ++++++++++++",
        "idle/launching       1.00 ms  7.60 ms   +6.60 ms  ++++",
        "compute/optimizer    6.00 ms  2.00 ms   -4.00 ms  --",
        "compute/elementwise  6.00 ms  7.00 ms  ~+1.00 ms  +",
        "copy/h2d              400 µs   320 µs  ~-80.0 µs",
        "communication         190 µs        -    -190 µs",
        "total: step          46.6 ms  42.4 ms   -4.17 ms",
    ]


def test_lists_show_what_changed_and_what_took_its_place() -> None:
    lines = shown(comparison()).splitlines()
    start = lines.index("Kernels per step")
    assert lines[start + 1 : start + 7] == [
        "  Change   Before    After       Calls  Kernel",
        "-28.2 ms  30.0 ms  1.80 ms          48  sgemm_128x64_nn",
        "                                        -> nvjet_hsh_128x256_64x4_tn",
        "~+100 µs  2.00 ms  2.10 ms  12 -> 12.3  gelu",
        " +500 µs        -   500 µs     0 -> 96  cast",
        "… and 1 more with smaller changes (use --top 0 for all)",
    ]
    assert "h2d, pageable" in lines[lines.index("Copies per step") + 2]
    line = lines.index("Findings, with the predicted saving of each fix alone")
    assert lines[line + 2].split() == ["resolved", "25.0", "ms", "-", "fp32-no-tensor-cores"]
    assert lines[line + 3] == "        FP32 `mm`"


@pytest.mark.parametrize(
    ("width", "expected"),
    [
        (90, ["sgemm_128x64_nn -> nvjet_hsh_128x256_64x4_tn"]),
        (80, ["sgemm_128x64_nn", "-> nvjet_hsh_128x256_64x4_tn"]),
        (60, ["sgemm_128x64_nn", "-> nvjet_hsh_128x25…"]),
    ],
)
def test_names_that_do_not_fit_beside_each_other_take_two_lines(
    width: int, expected: list[str]
) -> None:
    lines = shown(comparison(), width).splitlines()
    start = lines.index("Kernels per step") + 1
    left = lines[start].index("Kernel")
    assert [line[left:] for line in lines[start + 1 : start + 1 + len(expected)]] == expected
    assert all(not line[:left].strip() for line in lines[start + 2 : start + 1 + len(expected)])
    assert "gelu" in lines[start + 1 + len(expected)]


def test_findings_of_several_captures_say_which_show_them() -> None:
    made = comparison()
    change = FindingChange(
        "host-sync",
        "It waits 6 times",
        FindingStatus.STAYED,
        None,
        2 * MS,
        1,
        2,
        "r2.sqlite",
        (3, 3),
    )
    several = replace(made, before=replace(made.before, labels=("a", "b", "c")), findings=(change,))
    text = shown(several)
    assert "1 of 3 -> 2 of 3" in text
    assert "It waits 6 times (r2.sqlite)" in text
    single = shown(replace(made, findings=(change,)))
    assert "of 3" not in single
    assert "r2.sqlite" not in single


def test_what_cannot_be_claimed_is_marked_and_the_mark_explained() -> None:
    mark = "~ not significant: the 95% interval (99% for kernels, API calls, copies"
    assert mark in shown(comparison())
    sure = comparison(
        metrics=(MetricChange("step_time", "Step time", Fmt.TIME, STEP),),
        ledger=(EntryChange("compute", STEP, 1.0),), kernels=(), api=(), copies=(),
    )  # fmt: skip
    assert "~" not in shown(sure)


def test_sections_without_anything_are_left_out() -> None:
    bare = comparison(phases=(), kernels=(), ranges=(), api=(), copies=(), findings=())
    assert [comparison_section.key for comparison_section in comparison_sections(bare)] == [
        "metrics",
        "ledger",
    ]
    assert "Kernels per step" not in shown(bare)


def test_a_table_of_small_changes_is_one_line() -> None:
    quiet = comparison(kernels=comparison().kernels[3:])
    text = "Kernels per step: none of 1 changed by 0.1% of the total (use --top 0 for all)"
    assert text in shown(quiet).splitlines()
    assert "none of 1 changed by 0.1% of the total" in comparison_to_page(quiet)
    assert "Kernels per step" not in comparison_text.comparison_to_markdown(quiet)


def test_metrics_that_are_zero_on_both_sides_are_left_out() -> None:
    copied = MetricChange("h2d_bytes", "Copied to GPU", Fmt.BYTES, change(0, 0, "same"))
    compared = comparison(metrics=(*comparison().metrics, copied))
    assert "Copied to GPU" not in shown(compared)
    assert "h2d_bytes" in to_csv(as_table(compared))


def test_a_count_that_changed_within_the_limit_is_not_called_the_same() -> None:
    launches = MetricChange("launches", "Launches", Fmt.COUNT, change(602, 593, "same"))
    memory = MetricChange("memory", "Memory", Fmt.BYTES, change(8e8, 8e8, "same"))
    lines = shown(comparison(metrics=(*comparison().metrics, launches, memory))).splitlines()
    (launches_line,) = (line for line in lines if line.startswith("Launches"))
    (memory_line,) = (line for line in lines if line.startswith("Memory  "))
    assert launches_line.endswith("within 2%")
    assert memory_line.endswith("same")


def test_without_steps_nothing_is_said_of_a_step() -> None:
    made = comparison()
    whole = [replace(side, steps=(0,)) for side in (made.before, made.after)]
    lines = shown(replace(made, before=whole[0], after=whole[1])).splitlines()
    assert "Where the time goes" in lines
    assert any(line.startswith("total: window ") for line in lines)
    assert not any(line.startswith("Step time  ") for line in lines)
    assert lines[0].startswith("before  old.sqlite: 46.6 ms, no steps found, NVIDIA H200")
    ours = [line for line in lines if not line.startswith(("- ", "Step time 46.6", "note: "))]
    assert not [line for line in ours if "step" in line.lower() and "no steps" not in line]


def test_repeats_are_counted_and_their_steps_told() -> None:
    side = replace(
        comparison().before,
        labels=("a", "b", "c", "d"), steps=(3, 3, 3, 3), step_ns=(1e6, 2e6, 3e6, 4e6),
        gpus=("H200", "H200"),
    )  # fmt: skip
    assert comparison_tables.side_line(side).startswith(
        "4 captures (a, b, c and 1 more): 3 steps each of 1.00 to 4.00 ms, 2 x H200"
    )


@pytest.mark.parametrize("width", [40, 57, 80, 100, 200])
@pytest.mark.parametrize("every", [False, True])
def test_lines_fit_the_screen(width: int, every: bool) -> None:
    narrow_letters = tuple(name for name in HOSTILE if len(name) == display_width(name))
    for result in (comparison(), hostile(narrow_letters)):
        lines = shown(result, width, every_field=every).splitlines()
        assert max(map(display_width, lines)) <= width


def test_wide_shows_whole_names_and_every_field() -> None:
    text = shown(comparison(), None, every_field=True)
    assert "sgemm_128x64_nn -> nvjet_hsh_128x256_64x4_tn" in text
    assert "Matched by" in text
    assert "role" in text
    assert "-33.8 to -22.6 ms" in text


def test_top_chooses_the_rows() -> None:
    assert "tiny" in shown(comparison(), limit=0)
    lines = shown(comparison(), limit=1).splitlines()
    assert "… and 3 more (use --top 0 for all)" in lines
    assert any(line.startswith("total: step ") for line in lines)
    assert any(line.startswith("Memory peak ") for line in lines)


def test_colors_tell_what_is_welcome() -> None:
    lines = list(
        comparison_text.comparison_lines(comparison(), TableOptions(80, bars=True), details=True)
    )
    matmul = next(line for line in lines if line.text.startswith("compute/matmul"))
    idle = next(line for line in lines if line.text.startswith("idle/framework"))
    unsure = next(line for line in lines if line.text.startswith("copy/h2d"))
    assert ("█" * 16, "green") in matmul.parts
    assert {style for _, style in idle.parts} == {"", "red"}
    assert {style for _, style in unsure.parts} == {"", "dim"}
    stream = io.StringIO()
    draw_lines(
        comparison_text.comparison_lines(comparison(), TableOptions(80, bars=True), details=True),
        stream,
    )
    assert "\x1b[" in stream.getvalue()


def test_names_cannot_drive_a_terminal() -> None:
    text = shown(hostile(), limit=0)
    assert all(c.isprintable() or c == "\n" for c in text)
    stream = io.StringIO()
    look = TableOptions(80, bars=True)
    for details in (False, True):
        draw_lines(comparison_text.comparison_lines(hostile(), look, details=details), stream)
    assert "\x1b[5m" not in stream.getvalue()
    assert "\x9b" not in stream.getvalue()


# Markdown, HTML, CSV ------------------------------------------------------------------------------


def test_markdown_says_it_first_and_folds_the_rest() -> None:
    markdown = comparison_text.comparison_to_markdown(comparison())
    assert markdown.startswith("## Step time -9.0%: 46.6 -\\> 42.4 ms\n")
    assert (
        "| Step time | 46.6 ms | 42.4 ms | -4.17 ms | -9.0% | -5.00 to -3.34 ms | lower |"
        in markdown
    )
    assert "<details><summary>Kernels per step (3 of 4)</summary>" in markdown
    assert markdown.count("<details>") == markdown.count("</details>") == 5
    assert "| `sgemm_128x64_nn`<br>-\\> `nvjet_hsh_128x256_64x4_tn` |" in markdown


@pytest.mark.parametrize("limit", [None, 0, 1000])
def test_a_comment_holds_the_markdown(limit: int | None) -> None:
    kernel = replace(comparison().kernels[0], short="k" * 500)
    many = comparison(
        kernels=tuple(replace(kernel, short=f"{n}{kernel.short}") for n in range(5_000)),
        notes=("`" + "x" * 100_000,),
        explanation=("y" * 70_000, "z" * 70_000),
    )
    markdown = comparison_text.comparison_to_markdown(many, limit=limit)
    assert len(markdown) < 65_536
    assert markdown.count("<details>") == markdown.count("</details>")


def test_names_stay_in_their_cells_of_markdown() -> None:
    markdown = comparison_text.comparison_to_markdown(hostile(), limit=0)
    tables = [line for line in markdown.splitlines() if line.startswith("|")]
    assert len(tables) > 20
    assert "<b>bold" not in "".join(part for part in markdown.split("`")[::2])
    assert not any(c for c in markdown if not c.isprintable() and c != "\n")


class _Tags(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.tags: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        assert not any(name.startswith("on") for name, _ in attrs)


def test_the_page_needs_nothing_and_shows_names_as_text() -> None:
    page = comparison_to_page(hostile(), limit=0)
    reader = _Tags()
    reader.feed(page)
    assert not reader.tags & {"script", "link", "img", "iframe", "b>bold"}
    assert "default-src 'none'" in page
    assert "http" not in page.replace("http-equiv", "").replace("http://www.w3.org/2000/svg", "")
    assert "</script><b>" not in page
    assert all(c.isprintable() or c == "\n" for c in page)


def test_the_page_has_the_picture_in_two_sizes_then_everything() -> None:
    page = comparison_to_page(comparison())
    assert page.index('<svg class="pic wide"') < page.index('<svg class="pic narrow"')
    assert page.index("<svg") < page.index('class="verdict"') < page.index("Metrics per step")
    assert "<code>compute/matmul</code>" in page
    assert '<td class="good" style="text-align:right">-28.2 ms</td>' in page
    assert "category matmul, matched by role, range forward" in page


def test_a_notebook_gets_the_picture_as_an_image() -> None:
    page = comparison_fragment(comparison(), limit=None)
    assert 'src="data:image/svg+xml;base64,' in page
    assert "<style" not in page


def test_csv_has_a_line_for_each_thing() -> None:
    rows = list(csv.DictReader(io.StringIO(to_csv(as_table(comparison())))))
    assert list(rows[0]) == [field.key for field in COMPARISON_FIELDS]
    step = rows[0]
    assert (step["section"], step["name"], step["unit"]) == ("metrics", "step_time", "ns")
    assert float(step["change"]) == pytest.approx(-4.17e6)
    ledger = [float(row["change"]) for row in rows if row["section"] == "ledger"]
    assert sum(ledger) == pytest.approx(-4.17e6)
    peak = next(row for row in rows if row["name"] == "memory_peak")
    assert (peak["unit"], peak["after"], peak["change"]) == ("bytes", "", "")
    assert {row["verdict"] for row in rows if row["section"] == "findings"} == {"new", "fixed"}
    assert [row["section"] for row in rows if row["name"] == "forward"] == ["ranges", "ranges_gpu"]
