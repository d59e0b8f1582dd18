"""A verdict as JUnit XML, which every CI service shows as test results."""

from __future__ import annotations

from typing import TYPE_CHECKING
from xml.etree import ElementTree as ET

from gpusight.comparison.gate import Status
from gpusight.render.cells import safe_text
from gpusight.render.gate import parts

if TYPE_CHECKING:
    from gpusight.comparison.gate import Check, Gate

_SUITE = "gpusight gate"
_CLASS = "gpusight.gate"
_NO_TIME = "0.000"
"""A check takes none; readers expect the attribute."""


def to_junit(gate: Gate) -> str:
    """Write a verdict as one suite with a test case for each check; ends with a newline."""
    failing = sum(gate.fails(check) for check in gate.checks)
    told = sum(check.status is Status.PASSED for check in gate.checks)
    counts = {
        "tests": str(len(gate.checks)),
        "failures": str(failing),
        "errors": "0",
        "skipped": str(len(gate.checks) - failing - told),
        "time": _NO_TIME,
    }
    root = ET.Element("testsuites", counts)
    suite = ET.SubElement(root, "testsuite", {"name": _SUITE, **counts})
    for check in gate.checks:
        _case(suite, gate, check)
    if gate.comparison is not None:
        why = "\n".join(map(safe_text, gate.comparison.explanation))
        ET.SubElement(suite, "system-out").text = why
    return _document(root)


def error_junit(reason: str) -> str:
    """Write that the gate could not be evaluated, as one test case with an error."""
    counts = {"tests": "1", "failures": "0", "errors": "1", "skipped": "0", "time": _NO_TIME}
    root = ET.Element("testsuites", counts)
    suite = ET.SubElement(root, "testsuite", {"name": _SUITE, **counts})
    case = ET.SubElement(suite, "testcase", {"classname": _CLASS, "name": "gate", "time": _NO_TIME})
    ET.SubElement(case, "error", {"message": safe_text(reason), "type": "error"})
    return _document(root)


def _document(root: ET.Element) -> str:
    ET.indent(root)
    text = ET.tostring(root, encoding="unicode")
    return f'<?xml version="1.0" encoding="utf-8"?>\n{text}\n'


def _case(suite: ET.Element, gate: Gate, check: Check) -> None:
    """Add a check; what cannot be told and is let through counts as skipped."""
    name = safe_text(str(check.limit))
    attributes = {"classname": _CLASS, "name": name, "time": _NO_TIME}
    case = ET.SubElement(suite, "testcase", attributes)
    if check.status is not Status.PASSED:
        message = safe_text(f"{check.limit.metric} {check.status.value}: {parts.reason(check)}")
        if gate.fails(check):
            told = {"message": message, "type": check.status.value}
            ET.SubElement(case, "failure", told).text = _numbers(check)
        else:
            ET.SubElement(case, "skipped", {"message": message})
    lines = (_numbers(check), safe_text(check.reason))
    ET.SubElement(case, "system-out").text = "\n".join(filter(None, lines))


def _numbers(check: Check) -> str:
    cells = parts.row(check)
    text = (
        f"baseline {cells.baseline}, now {cells.now}, change {cells.change}, "
        f"limit {cells.limit}, interval {cells.interval}"
    )
    return safe_text(text)
