"""A diagnosis as SARIF 2.1.0, for code scanning, and as diagnostics of an LSP server."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpusight._version import __version__
from gpusight.errors import DOCS_URL, UsageError
from gpusight.render.code_findings import (
    LEVELS,
    SourceRoot,
    capture_path,
    code_findings,
    distinct_rules,
    notices,
)
from gpusight.render.csv_json import encode_json

if TYPE_CHECKING:
    from gpusight.render.code_findings import CodeFinding, CodeLine
    from gpusight.rules.diagnosis import AnyDiagnosis
    from gpusight.trace.trace import PathLike

SARIF_SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"
SOURCE_ROOT_ID = "%SRCROOT%"
FINGERPRINT = "gpusightFinding/v1"
_SEVERITIES = {"error": "error", "warning": "warning", "note": "recommendation"}
_MAX_TEXT = 1000
"""GitHub takes 1,024 characters of a description."""


def draw_editor_format(
    diagnosis: AnyDiagnosis, form: str, *, source_root: PathLike | None = None
) -> bytes:
    """Write a diagnosis as `sarif` or `lsp`."""
    if form == "sarif":
        return encode_json(sarif_log(diagnosis, source_root)).encode()
    if form == "lsp":
        return encode_json(lsp_diagnostics(diagnosis, source_root)).encode()
    raise UsageError(
        f"{diagnosis.title} cannot be written as {form or 'a file without an ending'}",
        hint="write .json, .csv, .md, .txt, .html or .sarif",
    )


# SARIF --------------------------------------------------------------------------------------------


def sarif_log(diagnosis: AnyDiagnosis, source_root: PathLike | None = None) -> dict[str, Any]:
    """Give the SARIF log: one run, a result for each finding."""
    root = SourceRoot(source_root)
    findings = code_findings(diagnosis, root)
    rules = distinct_rules(findings)
    number = {finding.rule: index for index, finding in enumerate(rules)}
    capture = _capture_location(diagnosis, root)
    driver = {
        "name": "gpusight",
        "version": __version__,
        "semanticVersion": __version__,
        "informationUri": DOCS_URL.partition("/blob/")[0],
        "rules": [_sarif_rule(finding) for finding in rules],
    }
    results = [_sarif_result(finding, number[finding.rule], capture) for finding in findings]
    notes = [{"level": "note", "message": _message(text)} for text in notices(diagnosis, root)]
    run = {
        "tool": {"driver": driver},
        "invocations": [{"executionSuccessful": True, "toolExecutionNotifications": notes}],
        "originalUriBaseIds": {SOURCE_ROOT_ID: {"description": _message("the source root")}},
        "columnKind": "unicodeCodePoints",
        "results": results,
    }
    return {"$schema": SARIF_SCHEMA, "version": "2.1.0", "runs": [run]}


def _sarif_rule(finding: CodeFinding) -> dict[str, Any]:
    code = finding.code.rstrip().replace("```", "'''")
    example = f"\n\n```\n{code}\n```" if code else ""
    cause = finding.help_text.partition(": ")[2].partition("\n")[0]
    full = cause if cause.startswith(finding.short) else f"{finding.short} {cause}"
    return {
        "id": finding.rule,
        "name": "".join(word.capitalize() for word in finding.rule.replace("/", "-").split("-")),
        "shortDescription": {"text": finding.short[:_MAX_TEXT]},
        "fullDescription": {"text": full[:_MAX_TEXT]},
        "help": {
            "text": finding.help_text + (f"\n\n{finding.code}" if code else ""),
            "markdown": f"{finding.help_text}{example}\n\n[Documentation]({finding.help_uri})",
        },
        "helpUri": finding.help_uri,
        "defaultConfiguration": {"level": finding.level},
        "properties": {
            "tags": ["performance", "gpu"],
            # What code scanning sorts and filters alerts by.
            "precision": finding.properties["confidence"],
            "problem.severity": _SEVERITIES[finding.level],
        },
    }


def _sarif_result(finding: CodeFinding, rule_index: int, capture: dict[str, Any]) -> dict[str, Any]:
    lines = [_sarif_line(line) for line in finding.lines]
    first = lines[0] if lines else dict(capture)
    if finding.where:
        first["logicalLocations"] = [
            {"name": name, "kind": "function" if kind == "kernel" else kind}
            for kind, name in finding.where
        ]
    share = finding.properties["share"]
    return {
        "ruleId": finding.rule,
        "ruleIndex": rule_index,
        "level": finding.level,
        "message": _message(finding.message),
        "locations": [first],
        "relatedLocations": [
            {"id": number, **line, "message": _message(of.text)}
            for number, (line, of) in enumerate(zip(lines, finding.lines, strict=True))
        ],
        "partialFingerprints": {
            # GitHub matches alerts by this key; it would hash the line, which moves between runs.
            "primaryLocationLineHash": f"{finding.fingerprint[:16]}:1",
            FINGERPRINT: finding.fingerprint,
        },
        "rank": 0.0 if share is None else round(100 * min(1.0, max(0.0, share)), 3),
        "properties": finding.properties,
    }


def _sarif_line(line: CodeLine) -> dict[str, Any]:
    is_elsewhere = line.uri.startswith("file:")  # logs are uploaded: no folders of the machine
    uri = line.uri.rpartition("/")[2] if is_elsewhere else line.uri
    artifact = {"uri": uri, "uriBaseId": SOURCE_ROOT_ID}
    physical = {"artifactLocation": artifact, "region": {"startLine": line.line}}
    return {"physicalLocation": physical}


def _capture_location(diagnosis: AnyDiagnosis, root: SourceRoot) -> dict[str, Any]:
    """Stand for findings without lines: code scanning wants a file and a line of each result."""
    uri = root.of_file(Path(capture_path(diagnosis)).resolve())
    artifact = {"uri": uri, "uriBaseId": SOURCE_ROOT_ID}
    return {"physicalLocation": {"artifactLocation": artifact, "region": {"startLine": 1}}}


def _message(text: str) -> dict[str, str]:
    """Write plain text: in a message of SARIF braces are placeholders, and `[a](b)` is a link."""
    return {"text": text.replace("{", "{{").replace("}", "}}").replace("](", "] (")}


# LSP ----------------------------------------------------------------------------------------------


def lsp_diagnostics(
    diagnosis: AnyDiagnosis, source_root: PathLike | None = None
) -> list[dict[str, Any]]:
    """Give the parameters of `textDocument/publishDiagnostics`, one for each file.

    Every line of a finding has a diagnostic. Findings without lines are at the capture's own file,
    which is always listed: an empty list clears what an editor shows of an older diagnosis.
    """
    root = SourceRoot(source_root)
    capture = Path(capture_path(diagnosis)).resolve().as_uri()
    by_file: dict[str, list[dict[str, Any]]] = {capture: []}
    for finding in code_findings(diagnosis, root):
        if not finding.lines:
            whole: dict[str, Any] = {"uri": capture, "range": _line_range(1)}
            by_file[capture].append(_lsp(finding, finding.message, whole, []))
            continue
        places = [_lsp_place(root, line) for line in finding.lines]
        for line, place in zip(finding.lines, places, strict=True):
            others = [
                {"location": other, "message": of.text}
                for of, other in zip(finding.lines, places, strict=True)
                if other is not place
            ]
            lead = finding.message if line is finding.lines[0] else finding.title
            text = f"{lead} {line.text[:1].upper()}{line.text[1:]}."
            by_file.setdefault(place["uri"], []).append(_lsp(finding, text, place, others))
    return [{"uri": uri, "diagnostics": items} for uri, items in by_file.items()]


def _lsp_place(root: SourceRoot, line: CodeLine) -> dict[str, Any]:
    return {"uri": root.absolute(line.uri), "range": _line_range(line.line)}


def _lsp(
    finding: CodeFinding, text: str, place: dict[str, Any], related: list[dict[str, Any]]
) -> dict[str, Any]:
    return {
        "range": place["range"],
        "severity": 1 + LEVELS.index(finding.level),
        "code": finding.rule,
        "codeDescription": {"href": finding.help_uri},
        "source": "gpusight",
        "message": text,
        "relatedInformation": related,
        "data": finding.properties,
    }


def _line_range(line: int) -> dict[str, dict[str, int]]:
    """Cover a whole line; LSP counts from 0."""
    start, end = ({"line": number, "character": 0} for number in (line - 1, line))
    return {"start": start, "end": end}
