"""Rules that users write: loaded, asked, and their mistakes told in one line."""

from __future__ import annotations

import inspect
import json
import re
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import gpusight as gs
from gpusight.errors import RuleError
from gpusight.rules.diagnosis import TimelineDiagnosis
from gpusight.rules.timeline_diagnosis import FindingLocator, TimelineLocation, diagnose_timeline
from gpusight.rules.user_rules import user_rules
from tests.rules.launches import ELAPSED, IDLE, trace_of
from tests.rules.timeline.rule_captures import Capture
from tests.shared import REPOSITORY
from tests.traces import build_trace

if TYPE_CHECKING:
    from gpusight.rules.context import RuleContext
    from gpusight.rules.rule import RuleVerdict

DOCS = REPOSITORY / "docs"
TEXTS = """\
    detects = "Looks for nothing."
    why = "It costs."
    fix = "Do it."
    caveats = "Never."
    estimate = "By hand."
"""
HEAD = f"import gpusight as gs\n\nclass Mine(gs.TimelineRule):\n    id = 'mine'\n{TEXTS}"


def written(folder: Path, text: str, name: str = "mine.py") -> Path:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


def checking(body: str) -> str:
    return f"{HEAD}    def check(self, context):\n        {body}\n"


COMPLETE = checking("return gs.Clean()")


def match_text(**given: str) -> str:
    """Write a check that finds something, with some fields as given."""
    fields = {
        "title": "'t'",
        "evidence": "()",
        "confidence": "gs.Confidence.LOW",
        "confidence_reason": "'r'",
    } | given
    return f"return gs.RuleMatch({', '.join(f'{name}={text}' for name, text in fields.items())})"


def small_copies() -> Capture:
    """Three steps of 100 µs: each launches a kernel of 10 µs after 12 copies, 5 µs of host each."""
    capture = Capture()
    for step in range(3):
        at = step * 100.0
        capture.range(f"step_{step}", at, at + 95)
        for copy in range(12):
            start = at + 1 + 6 * copy
            capture.copy(
                (start, start + 5),
                (start + 6, start + 7),
                size=64,
                kind="Host-to-Device",
                src_kind="Pinned",
                dst_kind="Device",
            )
        capture.range("lengths", at + 1, at + 74)
        capture.launch((at + 75, at + 80), (at + 81, at + 91))
    return capture


def trace() -> gs.Trace:
    return build_trace(None, devices=[{"device": 0}], **small_copies().tables)


def example(name: str = "TinyCopies") -> str:
    """Give a rule that the documentation shows."""
    text = (DOCS / "writing-rules.md").read_text(encoding="utf-8")
    blocks: list[str] = re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL)
    (rule,) = [block for block in blocks if f"class {name}" in block]
    return rule


def test_the_documented_rule_finds_what_it_says(tmp_path: Path) -> None:
    path = written(tmp_path, example())
    view = gs.diagnose(trace(), extra_rules=[path], rules=["tiny-copies"])
    (finding,) = view.findings
    assert finding.rule == "tiny-copies"
    assert finding.title == "12 H2D copies under 4 kB per step"
    document = view.timeline.document()["findings"][0] if view.timeline else {}
    # Without 12 calls of 5 µs a step is some 60 µs shorter, of 100.
    assert 55_000 < document["recoverable_ns_per_step"] < 65_000
    assert document["where"][0]["name"] == "lengths"
    assert document["evidence"][1] == {
        "metric": "bytes",
        "value": 64.0,
        "unit": "byte",
        "meaning": "Size of a copy, mean",
    }


def test_the_documented_rule_is_clean_and_absent_where_it_should_be(tmp_path: Path) -> None:
    path = written(tmp_path, example())
    few = Capture()
    few.range("step_0", 0, 50)
    few.launch((1, 5), (6, 16))
    clean = gs.diagnose(build_trace(None, **few.tables), extra_rules=[path], rules=["tiny-copies"])
    assert clean.timeline is not None
    assert clean.timeline.clean == ("tiny-copies",)
    tables = {name: rows for name, rows in small_copies().tables.items() if name != "api_calls"}
    absent = gs.diagnose(build_trace(None, **tables), extra_rules=[path], rules=["tiny-copies"])
    assert absent.timeline is not None
    assert "no API calls" in absent.timeline.not_applicable["tiny-copies"]


def test_the_documented_kernel_rule_finds_what_it_says(tmp_path: Path) -> None:
    path = written(tmp_path, example("BusyL2"))
    busy = {f"lts__throughput{ELAPSED}": 95, f"gpu__dram_throughput{ELAPSED}": 30}
    report = trace_of({"name": "busy", "counters": busy}, {"name": "idle", "counters": IDLE})
    view = gs.diagnose(report, extra_rules=[path], rules=["busy-l2"])
    assert [finding.title for finding in view.findings] == ["L2 utilization 95%"]
    assert [kernel.clean for kernel in view.kernels] == [(), ("busy-l2",)]
    (first, *_) = gs.diagnose(report, extra_rules=[path]).kernels[0].findings
    assert (first.rule, first.speedup, first.also) == ("busy-l2", 2.0, ("memory-bound",))


WRONG_OF_KERNELS = {
    "raises": ("launch.nothing_there", r"rule 'mine' failed at .*mine\.py:\d+: AttributeError"),
    "of a timeline": (match_text(), r"check returned a RuleMatch, not a KernelRuleMatch"),
    "its time": (
        match_text(time_share="2.0").replace("RuleMatch", "KernelRuleMatch"),
        r"time_share is 2.0, not a share from 0 to 1",
    ),
    "no time": (
        match_text(time_share="0").replace("RuleMatch", "KernelRuleMatch"),
        r"time_share is 0: a launch always takes some time",
    ),
}


@pytest.mark.parametrize("mistake", WRONG_OF_KERNELS)
def test_a_kernel_rule_that_fails_is_told_with_its_line(mistake: str, tmp_path: Path) -> None:
    body, message = WRONG_OF_KERNELS[mistake]
    text = checking(body).replace("gs.TimelineRule", "gs.KernelRule").replace("context", "launch")
    with pytest.raises(RuleError, match=message):
        gs.diagnose(trace_of({"counters": IDLE}), extra_rules=[written(tmp_path, text)])


def located(body: str, folder: Path) -> tuple[TimelineLocation, ...]:
    """Say where a finding of a rule with this method is."""
    where = "(gs.FindingLocation('range', 'lengths'),)"
    text = checking(match_text(where=where, recoverable_ns="9e4"))
    text += f"    def locate(self, context, finding):\n        {body}\n"
    rules = [r for r in user_rules([written(folder, text)]) if isinstance(r, gs.TimelineRule)]
    capture = trace()
    diagnosis = diagnose_timeline(capture, rules=["mine"], extra_rules=rules)
    assert isinstance(diagnosis, TimelineDiagnosis)
    return FindingLocator(capture, diagnosis).of(diagnosis.findings[0])


def test_a_rule_says_where_its_findings_happen(tmp_path: Path) -> None:
    columns = "'start_ns': [7], 'end_ns': [9], 'weight_ns': [2], 'name': ['here']"
    frame = f"polars.DataFrame({{{columns}, 'table': [None], 'row': [None]}})"
    (place,) = located(f"import polars; return {frame}", tmp_path)
    assert (place.start_ns, place.end_ns, place.label) == (7, 9, "step_0: here 2 ns")
    # Nothing found: the events that the finding names.
    places = located(f"import polars; return {frame}.clear()", tmp_path)
    assert [place.table for place in places] == ["ranges"] * 3
    with pytest.raises(RuleError, match=r"locate returned NoneType, not a polars\.DataFrame"):
        located("pass", tmp_path)
    with pytest.raises(RuleError, match=r"locate returned no column end_ns, weight_ns"):
        located("import polars; return polars.DataFrame({'start_ns': [1]})", tmp_path)


def test_the_docs_name_every_column_and_change() -> None:
    text = (DOCS / "writing-rules.md").read_text(encoding="utf-8")
    timeline = small_copies().timeline()
    for column in (*timeline.ops.columns, *timeline.calls.columns):
        assert f"`{column}`" in text, column
    named = set(re.findall(r"\| `(\w+)\(", text))
    functions = inspect.getmembers(gs.changes, inspect.isfunction)
    assert named == {
        name
        for name, function in functions
        if function.__module__ == gs.changes.__name__ and not name.startswith("_")
    }


def test_it_is_asked_beside_the_others(tmp_path: Path) -> None:
    path = written(tmp_path, checking("return gs.Clean()"))
    view = gs.diagnose(trace(), extra_rules=[path])
    assert view.timeline is not None
    assert "mine" in view.timeline.clean
    assert len(view.timeline.clean) + len(view.timeline.not_applicable) > 10


BROKEN = {
    "no file": (None, r"cannot read rules from .*mine\.py: No such file"),
    "syntax": ("import gpusight\nclass Mine(:\n", r"mine\.py:2: SyntaxError"),
    "not text": (b"\0\xff", r"rules failed at .*mine\.py: (SyntaxError|ValueError)"),
    "raises": ("x = 1\ny = x / 0\n", r"mine\.py:2: ZeroDivisionError: division by zero"),
    "exits": ("import sys\nsys.exit(3)\n", r"mine\.py:2: SystemExit: 3"),
    "no import": ("import not_there_at_all\n", r"mine\.py:1: ModuleNotFoundError"),
    "no rule": ("import gpusight as gs\nclass A: ...\n", r"no rule in .*mine\.py"),
    "only the base": ("from gpusight import TimelineRule\n", r"no rule in .*mine\.py"),
    "no texts": (
        "import gpusight as gs\nclass A(gs.TimelineRule):\n    id = 'a'\n    why = 'w'\n",
        r"rule A of .*mine\.py cannot be used: no detects, fix, caveats, estimate",
    ),
    "odd id": (HEAD.replace("'mine'", "'My Rule'"), r"id 'My Rule' is not lower case words"),
    "taken id": (COMPLETE.replace("'mine'", "'launch-bound'"), r"'launch-bound'.*gpusight has one"),
    "cannot be made": (
        f"{HEAD}    def __init__(self, x):\n        pass\n",
        r"rule Mine.*failed.*TypeError",
    ),
    "ends it": ("class E(BaseException): ...\nraise E('x')\n", r"mine\.py:2: E: x$"),
    "ends a generator": ("raise GeneratorExit\n", r"mine\.py:1: GeneratorExit$"),
    "too deep": (f"x = {'-' * 100_000}1\n", r"rules failed at .*mine\.py: \w+Error"),
    "odd metaclass": (
        (
            "from gpusight import TimelineRule\nclass M(type):\n"
            "    def __getattr__(c, n): raise OSError('m')\n"
            "class A(TimelineRule, metaclass=M): ...\n"
        ),
        r"mine\.py:3: OSError: m",
    ),
    "no check": (HEAD, r"rule Mine of .*mine\.py cannot be used: it has no method check"),
    "check of nothing": (
        f"{HEAD}    def check(self):\n        pass\n",
        r"mine\.py cannot be used: check takes \(\), not only the context",
    ),
    "code": (f"{HEAD}    code = 5\n", r"mine\.py cannot be used: code is 5, not text"),
    "verify": (f"{HEAD}    verify = None\n", r"verify is None, not text"),
    "empty text": (HEAD.replace("It costs.", " "), r"why is empty"),
    "thresholds": (f"{HEAD}    thresholds = 5\n", r"thresholds is 5, not a mapping"),
    "a threshold": (
        f"{HEAD}    thresholds = {{'n': 5}}\n",
        r"thresholds\['n'\] is 5, not a gpusight.Threshold",
    ),
    "its number": (
        f"{HEAD}    thresholds = {{'n': gs.Threshold('x', 'y')}}\n",
        r"thresholds\['n'\].value is 'x', not a number",
    ),
    "least share": (f"{HEAD}    min_share = 5\n", r"min_share is 5, not a share from 0 to 1"),
    "is it a fix": (f"{HEAD}    is_fix = 1\n", r"is_fix is 1, not True or False"),
    "effort": (
        f"{HEAD}    effort = 'a day'\n",
        r"effort is 'a day', not one of one line, config, rewrite",
    ),
}


@pytest.mark.parametrize("mistake", BROKEN)
def test_a_file_that_cannot_be_used_is_told_in_one_line(mistake: str, tmp_path: Path) -> None:
    text, message = BROKEN[mistake]
    path = tmp_path / "mine.py"
    if isinstance(text, str):
        path.write_text(text, encoding="utf-8")
    elif text is not None:
        path.write_bytes(text)
    with pytest.raises(RuleError, match=message) as caught:
        user_rules([path])
    assert "\n" not in str(caught.value)
    assert caught.value.exit_code == 2


WRONG = {
    "raises": ("context.nothing_there", r"rule 'mine' failed at .*mine\.py:11: AttributeError"),
    "deep inside": ("context.ops.select('nope')", r"failed at .*mine\.py:11: ColumnNotFoundError"),
    "no answer": (
        "pass",
        r"rule 'mine' of .*mine\.py:10 cannot be used: check returned NoneType, not RuleMatch",
    ),
    "the class": (
        "return gs.Clean",
        r"check returned type, not RuleMatch, Clean or RuleNotApplicable",
    ),
    "in its change": (
        "return gs.RuleMatch('t', (), gs.Confidence.LOW, 'r', change=(lambda p: p.nope,))",
        r"rule 'mine' failed at .*mine\.py:11: AttributeError",
    ),
    "exits": ("raise SystemExit(1)", r"rule 'mine' failed at .*mine\.py:11: SystemExit: 1"),
    "ends a generator": ("raise GeneratorExit", r"mine\.py:11: GeneratorExit$"),
    "nothing to say": (
        "raise type('E', (Exception,), {'__str__': lambda e: 1 / 0})",
        r"mine\.py:11: E$",
    ),
    "much to say": ("raise ValueError('x ' * 9999)", r"mine\.py:11: ValueError: [x ]{,300} …$"),
    "exits in its change": (
        match_text(change="(lambda p: exit(1),)"),
        r"failed at .*mine\.py:11: SystemExit: 1",
    ),
    "a change of gpusight": (
        match_text(change="(gs.changes.remove([10**9]),)"),
        r"rule 'mine' failed at .*mine\.py:10: IndexError",
    ),
    "a reason": (
        "return gs.RuleNotApplicable(5)",
        r"mine\.py:10 cannot be used: reason is 5, not text",
    ),
    "title": (match_text(title="None"), r"title is None, not text"),
    "empty title": (match_text(title="''"), r"title is empty"),
    "confidence": (
        match_text(confidence="'high'"),
        r"confidence is 'high', not a gpusight.Confidence",
    ),
    "no evidence": (match_text(evidence="5"), r"evidence is 5, not a tuple"),
    "evidence": (match_text(evidence="('x',)"), r"evidence\[0\] is 'x', not a gpusight.Evidence"),
    "its value": (
        match_text(evidence="(gs.Evidence('m', float('nan'), '', 'w'),)"),
        r"evidence\[0\].value is nan, not a finite number",
    ),
    "its unit": (
        match_text(evidence="(gs.Evidence('m', 1, 'ms', 'w'),)"),
        r"evidence\[0\].unit is 'ms', not one of share, byte",
    ),
    "where": (
        match_text(where="(gs.FindingLocation('range', 5),)"),
        r"where\[0\].name is 5, not text",
    ),
    "its time": (
        match_text(where="[gs.FindingLocation('range', 'a', -1)]"),
        r"where\[0\].ns is -1, not 0 or more",
    ),
    "recoverable": (match_text(recoverable_ns="-1.0"), r"recoverable_ns is -1.0, not 0 or more"),
    "text for time": (match_text(recoverable_ns="'1'"), r"recoverable_ns is '1', not a number"),
    "too much": (
        match_text(recoverable_ns="10**5000"),
        r"recoverable_ns is int, not a finite number",
    ),
    "also": (match_text(also="'launch-bound'"), r"also is 'launch-bound', not a tuple"),
    "no change": (match_text(change="(5,)"), r"change\[0\] is 5, not a change"),
    "one change": (
        match_text(change="gs.changes.as_graphs()"),
        r"change is GraphLaunches, not a tuple",
    ),
    "no program": (
        match_text(change="(lambda p: None,)"),
        r"a change returned NoneType, not the changed program",
    ),
    "fewer calls": (
        match_text(change="(lambda p: p.changed(gap_ns=p.gap_ns[:1]),)"),
        r"a change returned 1 values of gap_ns, not \d+",
    ),
    "no number": (
        match_text(change="(lambda p: p.changed(gap_ns=p.gap_ns * float('nan')),)"),
        r"a value of gap_ns that is not finite",
    ),
    "no flags": (
        match_text(change="(lambda p: p.changed(removed=p.gap_ns),)"),
        r"a change returned \d+ values of removed",
    ),
    "back in time": (
        match_text(change="(lambda p: p.changed(own_ns=p.own_ns - 10**6),)"),
        r"a value of own_ns below 0",
    ),
    "for ever": (
        match_text(change="(lambda p: p.changed(gap_ns=p.gap_ns + 10**17),)"),
        r"gap_ns with a sum that is too large",
    ),
}


@pytest.mark.parametrize("mistake", WRONG)
def test_a_rule_that_fails_is_told_with_its_line(mistake: str, tmp_path: Path) -> None:
    body, message = WRONG[mistake]
    path = written(tmp_path, checking(body))
    with pytest.raises(RuleError, match=message) as caught:
        gs.diagnose(trace(), extra_rules=[path])
    assert "\n" not in str(caught.value)


def test_an_interrupt_stays_one(tmp_path: Path) -> None:
    path = written(tmp_path, checking("raise KeyboardInterrupt"))
    with pytest.raises(KeyboardInterrupt):
        gs.diagnose(trace(), extra_rules=[path])
    with pytest.raises(KeyboardInterrupt):
        user_rules([written(tmp_path, "raise KeyboardInterrupt\n")])


def test_lists_and_numbers_of_numpy_are_taken(tmp_path: Path) -> None:
    body = match_text(
        evidence="[gs.Evidence('n', numpy.int64(3), '', 'w')]",
        where="[gs.FindingLocation('range', 'a', numpy.float32(2), numpy.int32(1))]",
        change="[lambda p: p.changed(own_ns=p.own_ns * 0.5)]",
    )
    path = written(tmp_path, checking(body).replace("import", "import numpy\nimport", 1))
    view = gs.diagnose(trace(), extra_rules=[path], rules=["mine"])
    document = json.loads(view.to_json())["findings"][0]
    assert document["evidence"][0]["value"] == 3
    assert document["where"][0] == {"kind": "range", "name": "a", "ns": 2.0, "count": 1}
    assert document["recoverable_ns"] > 0


def test_more_than_there_is_is_cut(tmp_path: Path) -> None:
    path = written(tmp_path, checking(match_text(recoverable_ns="1e18")))
    view = gs.diagnose(trace(), extra_rules=[path], rules=["mine"])
    assert view.timeline is not None
    assert view.timeline.findings[0].share == pytest.approx(1, rel=0.01)


def test_a_cause_that_another_rule_names_is_covered_by_it(tmp_path: Path) -> None:
    path = written(tmp_path, checking(match_text(recoverable_ns="9e4", also="('other',)")))
    text = checking(match_text(recoverable_ns="9e4")).replace("'mine'", "'other'")
    other = written(tmp_path, text, "other.py")
    view = gs.diagnose(trace(), extra_rules=[path, other], rules=["mine", "other"])
    assert view.timeline is not None
    assert [f.rule for f in view.timeline.findings] == ["mine"]
    assert view.timeline.covered == {"other": "mine"}
    assert "same cause as mine" in view.timeline.not_applicable["other"]


def test_errors_on_purpose_stay_what_they_are(tmp_path: Path) -> None:
    path = written(tmp_path, checking("raise gs.GpusightError('enough')"))
    with pytest.raises(gs.GpusightError, match=r"^enough$"):
        gs.diagnose(trace(), extra_rules=[path])


def test_a_base_class_without_id_is_no_rule_of_its_own(tmp_path: Path) -> None:
    shared = COMPLETE.replace("Mine", "Base").replace("    id = 'mine'\n", "")
    first = "class A(Base):\n    id = 'a'\n"
    path = written(tmp_path, f"{shared}{first}class B(Base):\n    id = 'b'\n")
    assert [rule.id for rule in user_rules([path])] == ["a", "b"]


def test_nothing_is_written_beside_the_file_and_a_change_counts_at_once(tmp_path: Path) -> None:
    path = written(tmp_path, COMPLETE)
    assert [rule.id for rule in user_rules([path])] == ["mine"]
    written(tmp_path, COMPLETE.replace("'mine'", "'also'"))
    assert [rule.id for rule in user_rules([path])] == ["also"]
    assert [p.name for p in tmp_path.iterdir()] == ["mine.py"]


def test_dataclasses_work_in_such_a_file(tmp_path: Path) -> None:
    text = f"from __future__ import annotations\nfrom dataclasses import dataclass\n{COMPLETE}"
    path = written(tmp_path, f"{text}\n@dataclass\nclass Part:\n    n: int\n")
    assert [rule.id for rule in user_rules([path])] == ["mine"]


class Own(gs.TimelineRule):
    id = "own"
    detects = why = fix = caveats = estimate = "text"

    def check(self, context: RuleContext) -> RuleVerdict:
        return gs.RuleNotApplicable(f"{context.steps} steps seen")


@pytest.mark.parametrize("given", [Own, Own()])
def test_classes_and_rules_are_taken_too(given: Any) -> None:
    view = gs.diagnose(trace(), extra_rules=[given], rules=["own"])
    assert view.timeline is not None
    assert view.timeline.not_applicable == {"own": "3 steps seen"}


def test_the_same_rule_twice_is_refused(tmp_path: Path) -> None:
    path = written(tmp_path, COMPLETE)
    with pytest.raises(RuleError, match=r"'mine' .* cannot be added"):
        user_rules([path, path])


@dataclass
class Point:
    """Stands for an entry point."""

    name: str
    value: str
    loaded: object
    dist: None = None

    def load(self) -> object:
        if isinstance(self.loaded, Exception):
            raise self.loaded
        return self.loaded


def test_installed_packages_register_rules(monkeypatch: pytest.MonkeyPatch) -> None:
    def entry_points(*, group: str) -> list[Point]:
        assert group == "gpusight.rules"
        return [Point("own", "package:Own", Own)]

    monkeypatch.setattr(metadata, "entry_points", entry_points)
    assert [rule.id for rule in user_rules([])] == ["own"]


@pytest.mark.parametrize(
    ("loaded", "message"),
    [
        (ImportError("no such module"), r"rule 'own' failed at .*ImportError: no such module"),
        (print, "no rule in entry point own: package:Own is no class"),
    ],
)
def test_a_broken_package_is_named(
    loaded: object, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    point = Point("own", "package:Own", loaded)
    monkeypatch.setattr(metadata, "entry_points", lambda **_: [point])
    with pytest.raises(RuleError, match=message):
        user_rules([])
