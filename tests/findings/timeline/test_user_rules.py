"""Rules that users write: loaded, asked, and their mistakes told in one line."""

from __future__ import annotations

import inspect
import re
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import gpusight as gs
from gpusight.errors import RuleError
from gpusight.findings.timeline.user_rules import user_rules
from tests.findings.timeline.traces import Capture
from tests.traces import build_trace

if TYPE_CHECKING:
    from gpusight.findings.timeline.rule import Verdict
    from gpusight.findings.timeline.timeline import Timeline

DOCS = Path(__file__).parents[3] / "docs"
TEXTS = """\
    detects = "Looks for nothing."
    why = "It costs."
    fix = "Do it."
    misleads = "Never."
    estimate = "By hand."
"""
HEAD = f"import gpusight as gs\n\nclass Mine(gs.Rule):\n    id = 'mine'\n{TEXTS}"


def written(folder: Path, text: str, name: str = "mine.py") -> Path:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


def checking(body: str) -> str:
    return f"{HEAD}    def check(self, timeline):\n        {body}\n"


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


def example() -> str:
    """Give the rule that the documentation shows."""
    text = (DOCS / "writing-rules.md").read_text(encoding="utf-8")
    blocks: list[str] = re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL)
    (rule,) = [block for block in blocks if "class" in block]
    return rule


def test_the_documented_rule_finds_what_it_says(tmp_path: Path) -> None:
    path = written(tmp_path, example())
    view = gs.diagnose(trace(), extra_rules=[path], rules=["tiny-copies"])
    (finding,) = view.findings
    assert finding.rule == "tiny-copies"
    assert finding.title == "12 copies of less than 4 kB in each step"
    document = view.timeline.document()["findings"][0] if view.timeline else {}
    # Without 12 calls of 5 µs a step is some 60 µs shorter, of 100.
    assert 55_000 < document["recoverable_ns_per_step"] < 65_000
    assert document["where"][0]["name"] == "lengths"
    assert document["evidence"][1] == {
        "metric": "bytes",
        "value": 64.0,
        "unit": "byte",
        "meaning": "One of them moves, on average",
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
    "only the base": ("from gpusight import Rule\n", r"no rule in .*mine\.py"),
    "no texts": (
        "import gpusight as gs\nclass A(gs.Rule):\n    id = 'a'\n    why = 'w'\n",
        r"rule A of .*mine\.py is incomplete: no detects, fix, misleads, estimate",
    ),
    "odd id": (HEAD.replace("'mine'", "'My Rule'"), r"id 'My Rule' is not lower case words"),
    "taken id": (HEAD.replace("'mine'", "'launch-bound'"), r"'launch-bound'.*gpusight has one"),
    "cannot be made": (
        f"{HEAD}    def __init__(self, x):\n        pass\n",
        r"rule Mine.*failed.*TypeError",
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
    "raises": ("timeline.nothing_there", r"rule 'mine' failed at .*mine\.py:11: AttributeError"),
    "deep inside": ("timeline.ops.select('nope')", r"failed at .*mine\.py:11: ColumnNotFoundError"),
    "no answer": ("pass", r"rule 'mine' of .*mine\.py: check gave NoneType, not Found"),
    "the class": ("return gs.Clean", r"check gave type, not Found, Clean or Absent"),
    "in its change": (
        "return gs.Found('t', (), gs.Confidence.LOW, 'r', change=(lambda p: p.nope,))",
        r"rule 'mine' failed at .*mine\.py:11: AttributeError",
    ),
}


@pytest.mark.parametrize("mistake", WRONG)
def test_a_rule_that_fails_is_told_with_its_line(mistake: str, tmp_path: Path) -> None:
    body, message = WRONG[mistake]
    path = written(tmp_path, checking(body))
    with pytest.raises(RuleError, match=message) as caught:
        gs.diagnose(trace(), extra_rules=[path])
    assert "\n" not in str(caught.value)


def test_errors_on_purpose_stay_what_they_are(tmp_path: Path) -> None:
    path = written(tmp_path, checking("raise gs.GpusightError('enough')"))
    with pytest.raises(gs.GpusightError, match=r"^enough$"):
        gs.diagnose(trace(), extra_rules=[path])


def test_a_base_class_without_id_is_no_rule_of_its_own(tmp_path: Path) -> None:
    shared = HEAD.replace("class Mine(gs.Rule):\n    id = 'mine'", "class Base(gs.Rule):")
    first = "class A(Base):\n    id = 'a'\n"
    path = written(tmp_path, f"{shared}{first}class B(Base):\n    id = 'b'\n")
    assert [rule.id for rule in user_rules([path])] == ["a", "b"]


def test_nothing_is_written_beside_the_file_and_a_change_counts_at_once(tmp_path: Path) -> None:
    path = written(tmp_path, HEAD)
    assert [rule.id for rule in user_rules([path])] == ["mine"]
    written(tmp_path, HEAD.replace("'mine'", "'also'"))
    assert [rule.id for rule in user_rules([path])] == ["also"]
    assert [p.name for p in tmp_path.iterdir()] == ["mine.py"]


def test_dataclasses_work_in_such_a_file(tmp_path: Path) -> None:
    text = f"from __future__ import annotations\nfrom dataclasses import dataclass\n{HEAD}"
    path = written(tmp_path, f"{text}\n@dataclass\nclass Part:\n    n: int\n")
    assert [rule.id for rule in user_rules([path])] == ["mine"]


class Own(gs.Rule):
    id = "own"
    detects = why = fix = misleads = estimate = "text"

    def check(self, timeline: Timeline) -> Verdict:
        return gs.Absent(f"{timeline.steps} steps seen")


@pytest.mark.parametrize("given", [Own, Own()])
def test_classes_and_rules_are_taken_too(given: Any) -> None:
    view = gs.diagnose(trace(), extra_rules=[given], rules=["own"])
    assert view.timeline is not None
    assert view.timeline.not_applicable == {"own": "3 steps seen"}


def test_the_same_rule_twice_is_refused(tmp_path: Path) -> None:
    path = written(tmp_path, HEAD)
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
