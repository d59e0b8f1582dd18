"""The reports of a gate for CI: Markdown for a comment, JUnit XML for a list of tests."""

from __future__ import annotations

from dataclasses import astuple
from typing import TYPE_CHECKING
from xml.etree import ElementTree as ET

from gpusight.comparison.gate_check import CheckStatus
from gpusight.render.cell_text import safe_text
from gpusight.render.markdown_tables import (
    escape_markdown,
    markdown_code,
    markdown_prose,
    markdown_table,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpusight.comparison.gate_check import Gate, GateCheck
    from gpusight.render.gate_view import GateRow


from gpusight.render.gate_view import (
    accepted,
    gate_row,
    gate_rows,
    headings,
    hints,
    notes,
    reason,
    reasons,
    sides,
    verdict,
)

_MARKDOWN_LEFT_ALIGNED = (True, False, False, False, False, False, True)
_BOLD_STATUSES = {*CheckStatus} - {CheckStatus.PASSED}


def to_markdown(gate: Gate) -> str:
    """Write a gate as Markdown, with all checks; ends with a newline."""
    return "\n".join(_markdown_lines(gate)) + "\n"


def error_markdown(reason: str) -> str:
    """Write that the gate could not be evaluated."""
    return f"## Gate error\n\n{escape_markdown(reason)}\n"


def _markdown_lines(gate: Gate) -> Iterator[str]:
    yield f"## {escape_markdown(verdict(gate))}"
    cells = zip(gate.checks, gate_rows(gate.checks), strict=True)
    rows = [_markdown_row(check, row) for check, row in cells]
    titles = astuple(headings(gate.checks))
    yield from (
        "",
        markdown_table(titles, [not left for left in _MARKDOWN_LEFT_ALIGNED], rows),
        "",
    )
    for metrics, status, why in reasons(gate):
        word = f"**{status.value.upper()}**"
        yield f"- {markdown_code(metrics, cell=False)} {word}: {escape_markdown(why)}"
    changes = list(_markdown_explanation(gate))
    if changes and not gate.passed:
        yield from ("", "What changed:", "", *changes)
    yield from ("", "<details><summary>Details</summary>", "")
    yield from (changes if gate.passed else ())
    for label, names in sides(gate):
        yield f"- {label}: {escape_markdown(names)}"
    for text in (*accepted(gate), *notes(gate), *hints(gate)):
        yield f"- {markdown_prose(text, cell=False)}"
    yield from ("", "</details>")


def _markdown_explanation(gate: Gate) -> Iterator[str]:
    if gate.comparison is not None:
        for sentence in gate.comparison.explanation:
            yield f"- {markdown_prose(sentence, cell=False)}"


def _markdown_row(check: GateCheck, cells: GateRow) -> tuple[str, ...]:
    others = [escape_markdown(cell) for cell in astuple(cells)[1:-1]]
    status = f"**{cells.status}**" if check.status in _BOLD_STATUSES else cells.status
    return markdown_code(cells.metric), *others, status


_SUITE = "gpusight gate"
_CLASS = "gpusight.gate"
_NO_TIME = "0.000"
"""A check takes no time; readers expect the attribute."""


def to_junit(gate: Gate) -> str:
    """Write a gate as one suite with a test case for each check; ends with a newline."""
    failing = sum(gate.fails(check) for check in gate.checks)
    passed = sum(check.status is CheckStatus.PASSED for check in gate.checks)
    counts = {
        "tests": str(len(gate.checks)),
        "failures": str(failing),
        "errors": "0",
        "skipped": str(len(gate.checks) - failing - passed),
        "time": _NO_TIME,
    }
    root = ET.Element("testsuites", counts)
    suite = ET.SubElement(root, "testsuite", {"name": _SUITE, **counts})
    for check in gate.checks:
        name = safe_text(str(check.limit))
        attributes = {"classname": _CLASS, "name": name, "time": _NO_TIME}
        case = ET.SubElement(suite, "testcase", attributes)
        if check.status is not CheckStatus.PASSED:
            message = safe_text(
                f"{check.limit.metric} {check.status.value.upper()}: {reason(check)}"
            )
            if gate.fails(check):
                attributes = {"message": message, "type": check.status.value}
                ET.SubElement(case, "failure", attributes).text = _numbers(check)
            else:
                ET.SubElement(case, "skipped", {"message": message})
        lines = (_numbers(check), safe_text(check.reason))
        ET.SubElement(case, "system-out").text = "\n".join(filter(None, lines))
    if gate.comparison is not None:
        why = "\n".join(map(safe_text, gate.comparison.explanation))
        ET.SubElement(suite, "system-out").text = why
    return _xml_text(root)


def error_junit(reason: str) -> str:
    """Write that the gate could not be evaluated, as one test case with an error."""
    counts = {"tests": "1", "failures": "0", "errors": "1", "skipped": "0", "time": _NO_TIME}
    root = ET.Element("testsuites", counts)
    suite = ET.SubElement(root, "testsuite", {"name": _SUITE, **counts})
    case = ET.SubElement(suite, "testcase", {"classname": _CLASS, "name": "gate", "time": _NO_TIME})
    ET.SubElement(case, "error", {"message": safe_text(reason), "type": "error"})
    return _xml_text(root)


def _xml_text(root: ET.Element) -> str:
    ET.indent(root)
    text = ET.tostring(root, encoding="unicode")
    return f'<?xml version="1.0" encoding="utf-8"?>\n{text}\n'


def _numbers(check: GateCheck) -> str:
    cells = gate_row(check)
    text = (
        f"baseline {cells.baseline}, now {cells.now}, change {cells.change}, "
        f"limit {cells.limit}, interval {cells.interval}"
    )
    return safe_text(text)
