"""The list of rules: complete, and imported only where it is asked for."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import get_args

import pytest

from gpusight.analysis.scenario import TARGETS, ScenarioAction
from gpusight.rules import registry
from gpusight.rules.registry import KERNEL_RULES, TIMELINE_RULES, kernel_rules, timeline_rules
from gpusight.rules.rule import Effort, TimelineRule

RULES = Path(registry.__file__).parent


def test_every_rule_is_listed_under_its_own_id() -> None:
    for rules in (timeline_rules(), kernel_rules()):
        assert {id_: rule.id for id_, rule in rules.items()} == {id_: id_ for id_ in rules}


@pytest.mark.parametrize(
    ("folder", "rules"), [("timeline", TIMELINE_RULES), ("kernel", KERNEL_RULES)]
)
def test_every_file_of_a_rule_is_listed(folder: str, rules: dict[str, str]) -> None:
    files = {path.stem for path in (RULES / folder).glob("*.py")} - {"__init__"}
    assert {path.partition(":")[0].partition(".")[2] for path in rules.values()} == files


def test_what_can_be_fused_is_the_fix_of_a_rule() -> None:
    scenarios = {rule.scenario for rule in timeline_rules().values()}
    wanted = {f"fuse {target}" for target in TARGETS[ScenarioAction.FUSE]}
    assert scenarios == {"", "remove overhead"} | wanted


@pytest.mark.parametrize("rule", timeline_rules().values(), ids=lambda rule: rule.id)
def test_texts_of_timeline_rules_are_short_sentences(rule: TimelineRule) -> None:
    texts = (rule.detects, rule.why, rule.fix, rule.verify, rule.caveats, rule.estimate)
    sentences = [s for text in texts for s in re.split(r"(?<=[.!?])\s+", text)]
    assert [s for s in sentences if len(s.split()) > 25] == []
    assert rule.effort in get_args(Effort)


@pytest.mark.parametrize(
    ("capture", "foreign"),
    [
        ("dataload.sqlite", ("rules.kernel.", "rules.kernel_", "readers.ncu", "source_lines")),
        ("thrice.ncu-rep.xz", ("rules.timeline.", "rules.patterns.host", "readers.nsys.native")),
    ],
)
def test_a_capture_imports_only_its_own_rules(capture: str, foreign: tuple[str, ...]) -> None:
    code = (
        "import sys, gpusight as gs\n"
        f"gs.diagnose({str(RULES.parents[2] / 'tests' / 'data' / capture)!r}).to_text()\n"
        f"print([name for name in sys.modules if any(part in name for part in {foreign!r})])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True
    )
    assert done.stdout == "[]\n"
