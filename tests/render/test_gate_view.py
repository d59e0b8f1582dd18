"""A gate as text, Markdown, JUnit XML and JSON, also with hostile names."""

from __future__ import annotations

import io
import json
import re
from dataclasses import replace
from itertools import product
from typing import Any
from xml.etree import ElementTree as ET

import pytest

from gpusight.comparison.comparability import Difference
from gpusight.comparison.gate_check import CheckStatus, Doubt, Gate, GateCheck
from gpusight.comparison.gate_limits import limit_of
from gpusight.comparison.significance import Basis, ChangeVerdict, MeasuredChange
from gpusight.render.cell_text import display_width
from gpusight.render.gate_reports import error_junit, to_junit, to_markdown
from gpusight.render.gate_view import COMMAND_LINE
from gpusight.render.result_view import GateView
from gpusight.render.table_layout import TableOptions
from gpusight.results import Fmt
from tests.render.hostile import HOSTILE
from tests.render.test_comparison_text import comparison

MS = 1e6


def to_text(result: Gate, width: int | None, **options: Any) -> str:
    """Write a verdict as plain text, as the command line does."""
    return GateView(result).to_text(TableOptions(width), **{"words": COMMAND_LINE, **options})


def check(
    status: CheckStatus, amount: str = "+3%", metric: str = "step_time", **changed: Any
) -> GateCheck:
    """Give a check of a step that grew from 10 to 11 ms, by 0.5 to 1.5 ms."""
    change = MeasuredChange(
        10 * MS, 11 * MS, 0.5 * MS, 1.5 * MS, ChangeVerdict.HIGHER, Basis.REPEATS
    )
    limit = limit_of(metric, amount)
    most = limit.most(10 * MS)
    made = GateCheck(limit, metric, Fmt.TIME, change, most, change.low, change.high, status, "")
    return replace(made, **changed)


def gate(*checks: GateCheck, **changed: Any) -> Gate:
    return replace(Gate(checks, ("old.sqlite",), ("new.sqlite",), 0.95), **changed)


EVERY = gate(
    check(CheckStatus.PASSED, "+20%"),
    check(CheckStatus.FAILED),
    check(CheckStatus.INCONCLUSIVE, "+0.5ms", "idle/input", doubt=Doubt.NOISE, repeats=6),
    check(
        CheckStatus.INCONCLUSIVE,
        "+5%",
        "memory_peak",
        change=MeasuredChange(None, None, None, None, ChangeVerdict.UNCLEAR, Basis.NONE),
        most=None,
        low=None,
        high=None,
        reason="new.sqlite: no memory was recorded",
        doubt=Doubt.NOT_RECORDED,
    ),
    notes=("few steps",),
)


def test_the_verdict_comes_first_and_everything_fits_the_screen() -> None:
    text = to_text(EVERY, 80, details=True)
    lines = text.splitlines()
    assert " ".join(lines[:2]) == (
        "Gate FAIL (exit code 1): step_time +10.0% ± 5.0% against +3% (1 over the limit, 2 "
        "inconclusive, 1 within the limit)"
    )
    assert max(map(display_width, lines)) <= 80
    rows = {line.split()[0]: line.split() for line in lines if line.endswith((*STATUSES,))}
    assert rows["step_time"][1:5] == ["10.0", "ms", "11.0", "ms"]
    assert rows["step_time"][5:] == ["+10.0%", "+3%", "+5.0%", "to", "+15.0%", "FAIL"]
    assert rows["idle/input"][5:] == [
        "+1.00",
        "ms",
        "+0.5ms",
        "+0.50",
        "to",
        "+1.50",
        "ms",
        "INCONCLUSIVE",
    ]
    assert rows["memory_peak"][1:] == ["-", "-", "-", "+5%", "-", "INCONCLUSIVE"]
    reasons = " ".join(text.split())
    sentence = "step_time FAIL: 700 µs over the limit of 10.3 ms (+3%); interval from repeats"
    assert sentence in reasons
    assert "; interval from repeats; about 6 captures per side would settle it" in reasons
    assert "memory_peak INCONCLUSIVE: new.sqlite: no memory was recorded" in text
    assert "note: few steps" in text
    assert "--allow-missing" in text


def test_the_first_hint_is_on_the_first_screen_however_long_the_rest_is() -> None:
    other = Difference("kernels", "kernels per step 9 -> 7; " + "no kernel is lost " * 30)
    result = gate(
        check(CheckStatus.INCONCLUSIVE, reason=other.text, doubt=Doubt.NOT_COMPARABLE),
        differences=(other,),
        notes=("one capture per side: record 3 or more per side",),
    )
    command = "gpusight compare " + " ".join(f"/a/long/path/to/run_{n}.sqlite" for n in range(12))
    text = " ".join(to_text(result, 80, next_command=command).split())
    assert "If intended: --allow-changed kernels" in text or "If intended: allow_changed=" in text
    # More captures of something else settle nothing.
    assert "record 3 or more" not in text


def test_the_first_screen_has_at_most_15_lines_and_each_reason_once() -> None:
    many = [
        *(check(CheckStatus.PASSED, metric=f"range:{n}") for n in range(9)),
        *(check(CheckStatus.FAILED, metric=f"kernel:{n}" + "x" * 90) for n in range(9)),
        check(CheckStatus.INCONCLUSIVE, doubt=Doubt.NOISE, repeats=6),
    ]
    command = "gpusight compare old.sqlite --vs new.sqlite"
    for result in (gate(*many, notes=("a note",) * 9), gate(check(CheckStatus.FAILED)), EVERY):
        lines = to_text(result, 100, next_command=command).splitlines()
        # Each check that does not pass has a reason, also where these add to the lines.
        reasons = sum(" FAIL: " in line or " INCONCLUSIVE: " in line for line in lines)
        assert len(lines) <= 15 + max(0, reasons - 1)
        assert lines[-1] == f"next: {command}"
        heading = next(n for n, line in enumerate(lines) if line.startswith("Metric"))
        assert "FAIL" in lines[heading + 1]  # what failed is first
        rows = [line for line in lines if line]
        assert len(set(rows)) == len(rows)
    text = to_text(replace(gate(check(CheckStatus.FAILED)), comparison=comparison()), 100)
    assert "Significant changes per step: compute/matmul -28.2 ms, idle/framework +20.7 ms" in text
    other = Difference("kernels", "kernels per step 9 -> 7")
    result = gate(
        check(CheckStatus.INCONCLUSIVE, reason=other.text, doubt=Doubt.NOT_COMPARABLE),
        differences=(other,),
        notes=(f"different on the two sides: {other.text}", "few steps"),
    )
    for details in (False, True):
        assert to_text(result, None, details=details).count(other.text) == 1
    assert to_markdown(result).count("few steps") == 1
    assert "note: few steps" in to_text(result, None, details=True)


@pytest.mark.parametrize("width", [60, 80, 100])
def test_every_check_that_does_not_pass_has_a_whole_reason(width: int) -> None:
    checks = [
        check(CheckStatus.FAILED),
        check(CheckStatus.FAILED, "+2%", "idle/framework", reason="no steps: of the whole capture"),
        check(CheckStatus.INCONCLUSIVE, "+0.5ms", "idle", doubt=Doubt.NOISE, repeats=6),
    ]
    command = "gpusight compare base.json --vs r1.sqlite r2.sqlite r3.sqlite " + "x" * width
    result = gate(*checks, comparison=comparison(), notes=("a note " * 20,))
    shown = " ".join(to_text(result, width, next_command=command).split())
    for named in ("step_time FAIL: ", "idle/framework FAIL: ", "idle INCONCLUSIVE: "):
        text = shown[shown.index(named) + len(named) :]
        assert re.match(r"[\d.]+ [µm]s over the limit of [\d.]+ ms \(\+[\d.]+(%|ms)\)", text)
    # Where a clause begins, it ends.
    assert shown.count("interval from") == shown.count("interval from repeats")
    assert "Noise: record more captures" in shown


@pytest.mark.parametrize("width", [60, 70, 80, 100])
def test_a_hint_is_shown_whole_or_not_at_all(width: int) -> None:
    other = Difference("kernels", "kernels per step 1,621 -> 887 (-45%)")
    checks = [
        check(CheckStatus.INCONCLUSIVE, metric=f"metric_{n}", reason=other.text,
              doubt=Doubt.NOT_COMPARABLE)
        for n in range(4)
    ]  # fmt: skip
    result = gate(*checks, differences=(other,))
    command = "gpusight compare old.sqlite --vs new.sqlite"
    shown = " ".join(to_text(result, width, next_command=command).split())
    for first, last in (
        ("If intended:", "same GPUs, steps and input."),
        ("--inconclusive pass", "exit code 0 or 1."),
    ):
        assert (first in shown) == (last in shown)


GROWN = "step_time +10.0% ± 5.0% against +3%"
STATUSES = [status.value.upper() for status in CheckStatus]


@pytest.mark.parametrize("width", [40, 60, 80, 120])
def test_narrow_screens_lose_columns_not_the_status(width: int) -> None:
    long = gate(
        check(CheckStatus.FAILED, metric="kernel:" + "x" * 200), check(CheckStatus.INCONCLUSIVE)
    )
    lines = to_text(long, width).splitlines()
    assert max(map(display_width, lines)) <= width
    assert any(line.endswith("FAIL") for line in lines)


@pytest.mark.parametrize(
    ("checks", "options", "expected"),
    [
        (
            (CheckStatus.PASSED,),
            {},
            (
                "Gate PASS (exit code 0): 1 within the limit; not certain: step_time +10.0% ± 5.0% "
                "against +3%"
            ),
        ),
        (
            (CheckStatus.PASSED,),
            {"corrected": True},
            (
                "Gate PASS (exit code 0), times without the profiler: 1 within the limit; not "
                "certain: step_time +10.0% ± 5.0% against +3%"
            ),
        ),
        (
            (CheckStatus.INCONCLUSIVE,),
            {},
            "Gate INCONCLUSIVE (exit code 3): step_time +10.0% ± 5.0% against +3%",
        ),
        (
            (CheckStatus.INCONCLUSIVE,),
            {"inconclusive": "fail"},
            f"Gate INCONCLUSIVE (exit code 1, counts as failure): {GROWN}",
        ),
        (
            (CheckStatus.INCONCLUSIVE,),
            {"inconclusive": "pass"},
            "Gate INCONCLUSIVE (exit code 0, accepted): step_time +10.0% ± 5.0% against +3%",
        ),
        ((CheckStatus.SKIPPED,), {}, "Gate INCONCLUSIVE (exit code 3): 1 skipped"),
        (
            (CheckStatus.SKIPPED, CheckStatus.PASSED),
            {"allow_missing": True},
            (
                "Gate PASS (exit code 0): 1 skipped, 1 within the limit; not certain: step_time "
                "+10.0% ± 5.0% against +3%"
            ),
        ),
    ],
)
def test_the_first_line(
    checks: tuple[CheckStatus, ...], options: dict[str, Any], expected: str
) -> None:
    result = gate(*map(check, checks), **options)
    assert to_text(result, 200).splitlines()[0] == expected
    escaped = expected.replace("step_time", "step\\_time")
    assert to_markdown(result).startswith(f"## {escaped}\n")


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"doubt": Doubt.NOISE, "repeats": 12}, "+3%; about 12 captures per side would settle it"),
        ({"doubt": Doubt.NOISE}, "+3%; more than 100 captures per side would settle it"),
        ({"doubt": Doubt.NOT_COMPARABLE}, "+3%, but the captures are not comparable"),
        ({"doubt": Doubt.NOT_RECORDED, "most": None}, "step_time is missing"),
        (
            {"doubt": Doubt.NOISE, "repeats": 3, "low": None, "high": None},
            "step_time +10.0% against +3%; record 3 or more captures per side",
        ),
    ],
)
def test_the_first_line_says_what_would_settle_it(options: dict[str, Any], expected: str) -> None:
    line = to_text(gate(check(CheckStatus.INCONCLUSIVE, **options)), None).splitlines()[0]
    assert line.startswith("Gate INCONCLUSIVE (exit code 3): step_time ")
    assert line.endswith(expected)
    value = check(CheckStatus.FAILED, "10.5ms", low=10.6 * MS, high=11.4 * MS)
    assert "step_time 11.0 ms ± 400 µs against 10.5ms" in to_text(gate(value), None)


def test_the_first_lines_of_a_failure_say_that_the_sides_differ() -> None:
    text = "kernels per step 412 -> 520 (+26%); no kernels are lost: the program launches more"
    result = gate(check(CheckStatus.FAILED), differences=(Difference("kernels", text, data=True),))
    line = to_text(result, None).splitlines()[0]
    assert line.endswith("step_time +10.0% ± 5.0% against +3%; kernels per step 412 -> 520 (+26%)")
    assert "412 -> 520" not in to_text(gate(check(CheckStatus.PASSED)), None)


def test_a_ceiling_shows_the_interval_of_the_value() -> None:
    text = to_text(gate(check(CheckStatus.FAILED, "10.5ms", low=10.6 * MS, high=11.4 * MS)), 80)
    assert "+1.00 ms  10.5ms  10.6 ms to 11.4 ms  FAIL" in text
    assert "500 µs over the limit of 10.5ms; interval from repeats" in text


def test_without_a_baseline_there_are_no_empty_columns() -> None:
    change = MeasuredChange(None, 11 * MS, None, None, ChangeVerdict.UNCLEAR, Basis.STEPS)
    passed = check(CheckStatus.PASSED, "12ms", change=change, low=10.6 * MS, high=11.4 * MS)
    lines = to_text(gate(passed, baseline=()), 80).splitlines()
    assert lines[3].split() == ["Metric", "Now", "Limit", "Value", "interval", "Status"]
    assert lines[4].split()[:4] == ["step_time", "11.0", "ms", "12ms"]


def test_an_improvement_that_may_be_chance() -> None:
    change = MeasuredChange(10 * MS, 9 * MS, -3 * MS, 1 * MS, ChangeVerdict.UNCLEAR, Basis.STEPS)
    lucky = check(
        CheckStatus.INCONCLUSIVE,
        "-5%",
        change=change,
        low=-3 * MS,
        high=1 * MS,
        doubt=Doubt.NOISE,
    )
    text = to_text(gate(lucky), None)
    assert "low enough, but the change is not significant; interval from the steps of one" in text
    assert "; more than 100 captures per side would settle it" in text


def test_one_sample_per_side_has_no_interval() -> None:
    single = check(CheckStatus.INCONCLUSIVE, low=None, high=None, doubt=Doubt.NOISE, repeats=3)
    text = to_text(gate(single), None)
    sentence = (
        "over the limit of 10.3 ms (+3%); one sample per side: noise unknown; record 3 or more"
    )
    assert sentence in text
    assert "within noise" not in text
    assert "--inconclusive pass or fail makes the exit code 0 or 1." in text


def test_colors_do_not_change_the_words() -> None:
    stream = io.StringIO()
    GateView(EVERY).print_to(stream, TableOptions(80))
    assert "\x1b[" in stream.getvalue()
    assert "step_time" in stream.getvalue()


def test_markdown_for_a_pull_request() -> None:
    text = to_markdown(EVERY)
    assert "| `step_time` | 10.0 ms | 11.0 ms | +10.0% | +3% | +5.0% to +15.0% | **FAIL** |" in (
        text
    )
    assert "- `memory_peak` **INCONCLUSIVE**: new.sqlite: no memory was recorded" in text
    assert text.count("<details>") == text.count("</details>") == 1
    assert text.index("**FAIL**") < text.index("<details>")


@pytest.mark.parametrize("status", [CheckStatus.FAILED, CheckStatus.PASSED])
def test_why_is_in_sight_only_where_it_failed(status: CheckStatus) -> None:
    result = replace(gate(check(status, "+3%")), comparison=comparison())
    why = "GPU work fell by 31.5 ms per step"
    text = to_markdown(result)
    assert (text.index(why) < text.index("<details>")) is (status is CheckStatus.FAILED)
    output = suite_of(result).find("system-out")
    assert output is not None
    assert why in (output.text or "")


def suite_of(result: Gate) -> ET.Element:
    root = ET.fromstring(to_junit(result))
    assert root.tag == "testsuites"
    (suite,) = root
    assert suite.tag == "testsuite"
    return suite


def test_junit_as_readers_of_ci_services_expect_it() -> None:
    suite = suite_of(EVERY)
    counts = {key: suite.get(key) for key in ("tests", "failures", "errors", "skipped")}
    assert counts == {"tests": "4", "failures": "3", "errors": "0", "skipped": "0"}
    assert len(suite.findall("testcase")) == 4
    assert len(suite.findall("testcase/failure")) == 3
    for case in suite:
        assert case.get("classname") == "gpusight.gate"
        assert float(case.get("time", "")) == 0
    kinds = [failure.get("type") for failure in suite.findall("testcase/failure")]
    assert kinds == ["fail", "inconclusive", "inconclusive"]
    # Missing data never passes; noise is skipped where it is accepted.
    accepted = suite_of(replace(EVERY, inconclusive="pass"))
    kinds = [failure.get("type") for failure in accepted.findall("testcase/failure")]
    assert kinds == ["fail", "inconclusive"]
    assert len(accepted.findall("testcase/skipped")) == 1
    assert accepted.get("skipped") == "1"


NAMES = (*HOSTILE, "\x00\x01\x0b\ud800\ufffe", "]]><!--&quot;", "'\"><script>")


@pytest.mark.parametrize("name", NAMES)
def test_names_that_attack(name: str) -> None:
    result = gate(
        check(CheckStatus.FAILED, metric=f"kernel:{name}"),
        check(CheckStatus.INCONCLUSIVE, metric="memory_peak", reason=f"{name}: nothing"),
        baseline=(name,) * 5,
        captures=(name,),
        notes=(f"a note on {name}",),
    )
    cases = suite_of(result).findall("testcase")
    assert len(cases) == 2
    text, markdown = to_text(result, 80), to_markdown(result)
    fragment = GateView(result)._repr_html_()
    assert all(char == "\n" or char.isprintable() for char in fragment)
    assert not re.search(r"<(?!/?(?:p|b|i|table|thead|tbody|tr|t[hd]|ul|li|code)\b)", fragment)
    assert fragment.count("<b>") == 1
    for shown in (text, markdown):
        assert all(char == "\n" or char.isprintable() for char in shown)
    assert "<script>" not in markdown.replace("`kernel:'\"><script>`", "")
    assert "<b>" not in markdown.replace("`kernel:</script><b>bold</b>`", "")
    assert markdown.count("\n| ") == 4


def test_captures_that_cannot_be_compared() -> None:
    other = Difference("gpu-model", "GPU model: different (A100 vs. H200)")
    checks = [
        check(
            CheckStatus.INCONCLUSIVE, "+20%", metric, reason=other.text, doubt=Doubt.NOT_COMPARABLE
        )
        for metric in ("step_time", "busy")
    ]
    result = gate(*checks, differences=(other,))
    text = to_text(result, 100)
    assert f"step_time, busy INCONCLUSIVE: {other.text}" in text
    assert "--allow-changed gpu-model" in text
    assert "Noise: record more captures" not in text
    assert "Noise: record more captures" in to_text(EVERY, 100, details=True)
    accepted = gate(check(CheckStatus.PASSED), differences=(other,), allow_changed=("gpu-model",))
    for shown in (to_text(accepted, 100), to_markdown(accepted)):
        assert f"accepted by --allow-changed gpu-model: {other.text}" in shown
    assert "accepted by allow_changed=" in GateView(accepted)._repr_html_()


def test_python_reads_arguments_of_python() -> None:
    other = Difference("steps", "steps: number of steps 3 -> 10")
    open_check = check(CheckStatus.INCONCLUSIVE, doubt=Doubt.NOT_COMPARABLE, reason=other.text)
    views = [
        GateView(gate(open_check, differences=(other,))),
        GateView(EVERY),
        GateView(gate(*[check(CheckStatus.FAILED, metric=f"api:{n}") for n in range(30)])),
    ]
    for view in views:
        assert "--" not in repr(view)
        assert "--" not in view._repr_html_()
    assert "allow_changed=['steps']" in repr(views[0])
    assert "allow_missing=True" in views[1].to_text(details=True)


def test_lost_data_has_one_hint() -> None:
    lost = Difference("incomplete", "new.sqlite: 9% of the kernels are lost", data=True)
    unknown = MeasuredChange(None, None, None, None, ChangeVerdict.UNCLEAR, Basis.NONE)
    missing = check(
        CheckStatus.INCONCLUSIVE, doubt=Doubt.LOST_DATA, change=unknown, most=None, reason="lost"
    )
    text = to_text(gate(missing, differences=(lost,)), 100)
    assert "Lost data: record the capture again; no option accepts it." in text
    assert "--" not in text
    # A loss that the profiler reports leaves a value, which an option accepts.
    known = check(CheckStatus.INCONCLUSIVE, doubt=Doubt.LOST_DATA, reason="lost")
    text = to_text(gate(known, differences=(lost,)), 100)
    assert "or accept the loss: --allow-changed incomplete." in text
    assert "--inconclusive pass does not accept missing data." in text
    assert "no option accepts it" not in text


def test_one_capture_per_side_is_on_the_first_screen() -> None:
    noisy = check(
        CheckStatus.INCONCLUSIVE, doubt=Doubt.NOISE, repeats=3, run_noise=2 * MS, reason=""
    )
    note = "one capture per side: run-to-run variation is not measured; record 3 or more per side"
    text = " ".join(to_text(gate(noisy, notes=(note,)), 100).split())
    sentence = (
        "one capture per side: run-to-run variation is not measured and may be 2.00 ms; record 3"
    )
    assert sentence in text
    assert note not in text
    assert note in to_text(gate(check(CheckStatus.PASSED, "+20%"), notes=(note,)), 100)


def test_intervals_of_different_things_are_labeled() -> None:
    ceiling = check(CheckStatus.PASSED, "12ms", low=10.6 * MS, high=11.4 * MS)
    text = to_text(gate(check(CheckStatus.FAILED), ceiling), 120)
    assert "change +5.0% to +15.0%" in text
    assert "value 10.6 ms to 11.4 ms" in text
    assert "Change interval" in to_text(gate(check(CheckStatus.FAILED)), 120)


def test_a_pass_whose_interval_reaches_the_limit_says_so() -> None:
    near = check(CheckStatus.PASSED, "+12%")
    assert "step_time PASS: not certain: noise alone could exceed the limit of 11.2 ms" in to_text(
        gate(near), 100
    )
    assert near.document()["reaches_limit"] is True
    far = check(CheckStatus.PASSED, "+20%")
    assert "reaches" not in to_text(gate(far), 100)


def test_a_count_has_no_variance() -> None:
    change = MeasuredChange(1.0, 4.0, None, None, ChangeVerdict.HIGHER, Basis.NONE)
    count = check(
        CheckStatus.FAILED,
        "0",
        "findings",
        fmt=Fmt.COUNT,
        change=change,
        most=0.0,
        low=None,
        high=None,
        reason="launch-bound",
    )
    assert "findings FAIL: 4 over the limit of 0; launch-bound\n" in to_text(gate(count), 100)


def test_every_form_agrees_with_the_exit_code() -> None:
    statuses: list[tuple[CheckStatus, Doubt | None]] = [
        (CheckStatus.PASSED, None),
        (CheckStatus.FAILED, None),
        (CheckStatus.SKIPPED, Doubt.NOT_RECORDED),
        *((CheckStatus.INCONCLUSIVE, doubt) for doubt in Doubt),
    ]
    for first, second, policy in product(statuses, statuses, (None, "pass", "fail")):
        checks = [check(status, doubt=doubt) for status, doubt in (first, second)]
        result = gate(*checks, inconclusive=policy)
        suite = suite_of(result)
        blocking = len(suite.findall("testcase/failure")) + len(suite.findall("testcase/error"))
        assert int(suite.get("failures", "")) + int(suite.get("errors", "")) == blocking
        nothing_measured = {first[0], second[0]} == {CheckStatus.SKIPPED}
        assert (blocking == 0 and not nothing_measured) is result.passed
        document = result.document()
        assert document["passed"] is result.passed is (document["exit_code"] == 0)
        accepted = ", accepted" if result.passed and document["outcome"] == "inconclusive" else ""
        word = f"Gate {document['outcome'].upper()} (exit code {document['exit_code']}"
        assert to_markdown(result).startswith(f"## {word}{accepted}")
        assert to_text(result, 80).startswith(f"{word}{accepted}")
        assert GateView(result)._repr_html_().startswith(f"<p><b>{word}{accepted}")
        assert (document["outcome"] == "fail") is (CheckStatus.FAILED in (first[0], second[0]))
        # Missing data never passes, whatever the policy.
        for status, doubt in (first, second):
            without_data = doubt in (Doubt.NOT_RECORDED, Doubt.LOST_DATA)
            assert not (status is CheckStatus.INCONCLUSIVE and without_data and result.passed)
        codes = {"pass": 0, "fail": 1, "inconclusive": {None: 3, "fail": 1, "pass": 3}[policy]}
        assert result.exit_code == (0 if accepted else codes[document["outcome"]])


def test_what_could_not_be_evaluated_is_an_error() -> None:
    root = ET.fromstring(error_junit("no <steps> in \x00 a"))
    assert (root.get("errors"), root.get("failures"), root.get("tests")) == ("1", "0", "1")
    assert len(root.findall("testsuite/testcase/error")) == 1


def test_what_is_to_be_known_of_a_check_that_passed_is_in_every_form() -> None:
    text = "50% of the time is between steps"
    result = gate(check(CheckStatus.PASSED, "+20%", reason=text))
    assert f"step_time PASS: {text}" in " ".join(to_text(result, 80).split())
    assert f"**PASS**: {text}" in to_markdown(result)
    assert text in (suite_of(result).findtext("testcase/system-out") or "")
    assert f"step_time PASS: {text}" in GateView(result)._repr_html_()


def test_the_view_shows_itself() -> None:
    view = GateView(EVERY)
    fragment = view._repr_html_()
    assert fragment.startswith("<p><b>Gate FAIL")
    assert fragment.count("<tr>") == 5
    assert (view.passed, len(view.checks), view.comparison) == (False, 4, None)
    assert repr(view).startswith("Gate FAIL")
    document = json.loads(view.to_json())
    assert [(check["status"], check["cause"]) for check in document["checks"]] == [
        ("pass", None),
        ("fail", None),
        ("inconclusive", "noise"),
        ("inconclusive", "not-recorded"),
    ]
    assert (view.outcome, view.exit_code) == ("fail", 1)
    assert document["meta"]["notes"] == ["few steps"]
    assert view.to_markdown() == to_markdown(EVERY)
    assert view.to_junit() == to_junit(EVERY)


def test_a_pass_says_what_it_could_not_have_seen() -> None:
    known = check(CheckStatus.PASSED, "+20%", "kernel_time", low=0.9 * MS, high=1.1 * MS)
    coarse = check(CheckStatus.PASSED, "+60%", low=-2.7 * MS, high=4.7 * MS)
    assert to_text(gate(known), 100).splitlines()[0].endswith(": 1 within the limit")
    head = to_text(gate(known, coarse), 100).splitlines()[0]
    assert head.endswith(": 2 within the limit; step_time is known to ± 37.0% only")
