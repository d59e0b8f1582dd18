"""Findings with their lines of code, for editors and code scanning: SARIF and LSP."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from gpusight.errors import DOCS_URL
from gpusight.naming.source_files import is_library_file
from gpusight.render.cell_text import safe_text
from gpusight.render.diagnosis_summary import timeline_gain
from gpusight.render.explanation import gain_phrase
from gpusight.rules.diagnosis import JoinedDiagnosis, KernelReportDiagnosis, timeline_of
from gpusight.rules.finding import Confidence
from gpusight.rules.registry import (
    KERNEL_RULES,
    TIMELINE_RULES,
    kernel_rules,
    timeline_rules,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from gpusight.rules.diagnosis import AnyDiagnosis, KernelGroup, TimelineDiagnosis
    from gpusight.rules.finding import KernelFinding, TimelineFinding
    from gpusight.rules.rule import Rule
    from gpusight.trace.trace import PathLike

ERROR_SHARE = 0.2
"""A fix that saves this share of the time makes its finding an `error`."""
WARNING_SHARE = 0.05
"""The same for a `warning`; with less it is a `note`."""
LEVELS = ("error", "warning", "note")
MAX_LINES = 5
MIN_FIRST_SHARE, MIN_LINE_SHARE = 0.01, 0.05
"""Least share of a finding's time that the first line needs, and a line after it."""
_MAX_LINE_NUMBER = 2**31 - 1
_SITE = re.compile(r"(?:.* in )?(?P<file>[^()\s][^()]*)\((?P<line>\d{1,9})\): (?P<function>.+)")
"""A line as torch.profiler writes it; behind ` in ` is that of the program itself."""
_PARTS = re.compile(r"[\\/]+")
_DRIVE = re.compile(r"[A-Za-z]:[\\/]")


@dataclass(frozen=True, slots=True)
class CodeLine:
    """A line of the program that a finding is about."""

    uri: str
    """Relative to the source root, or absolute where the file is not below it."""
    line: int
    function: str
    share: float | None
    """Share of the finding's time that it has."""
    ran: bool
    """The line itself was sampled; else it is where its function begins."""

    @property
    def text(self) -> str:
        """Say what the line costs: `61% of it in this line of collate`."""
        place = f"{'this line of' if self.ran else 'function'} {self.function or '?'}"
        return place if self.share is None else f"{self.share:.0%} of it in {place}"


@dataclass(frozen=True, slots=True)
class CodeFinding:
    """A finding as editors list it."""

    rule: str
    """Identifier; `kernel/…` for a rule of measured kernels, for some are called alike."""
    level: str
    """One of `LEVELS`."""
    title: str
    message: str
    """Title, what the fix saves, and what it is."""
    lines: tuple[CodeLine, ...]
    """The most expensive first; none where the capture has no lines."""
    where: tuple[tuple[str, str], ...]
    """Kinds and names of what it is about: ranges, kernels, operators, calls."""
    fingerprint: str
    """The same for the same problem in the next capture of the program."""
    short: str
    """What the rule is about, in one sentence."""
    help_text: str
    code: str
    help_uri: str
    properties: dict[str, Any] = field(default_factory=dict)


class SourceRoot:
    """Finds recorded source files below a folder, so that paths are those of a checkout."""

    def __init__(self, root: PathLike | None) -> None:
        self.path = Path(root or ".").resolve()
        self.missing: set[str] = set()
        """Recorded files that are not below it."""

    def uri(self, recorded: str) -> str:
        """Give the path below the root: of what is there, the longest end of the recorded one."""
        parts = _parts(recorded)
        end = self._end_of(parts)
        if end is not None:
            return _escaped(end)
        self.missing.add(recorded)
        path = "/".join(parts) or "unknown"
        if recorded.startswith("/") or _DRIVE.match(recorded):
            return f"file:///{quote(path, safe='/:', errors='replace')}"
        return _escaped(path)

    def has(self, recorded: str) -> bool:
        """Return whether a recorded file is below the root."""
        return self._end_of(_parts(recorded)) is not None

    def _end_of(self, parts: Sequence[str]) -> str | None:
        ends = ("/".join(parts[first:]) for first in range(len(parts)))
        return next(filter(self._is_there, ends), None)

    def _is_there(self, path: str) -> bool:
        try:
            return (self.path / path).is_file()
        except (OSError, ValueError):  # a name that no file system takes
            return False

    def of_file(self, path: Path) -> str:
        """Give the path of a file of this machine below the root, or its name."""
        inside = path.is_relative_to(self.path)
        return _escaped(path.relative_to(self.path).as_posix() if inside else path.name)

    def absolute(self, uri: str) -> str:
        """Give the address of a file for an editor."""
        return uri if uri.startswith("file:") else f"{self.path.as_uri()}/{uri}"


def _parts(recorded: str) -> list[str]:
    parts = [part for part in _PARTS.split(recorded) if part not in ("", ".")]
    while ".." in parts:
        del parts[: parts.index("..") + 1]
    return parts


def _escaped(path: str) -> str:
    return quote(path, errors="replace")


def code_findings(diagnosis: AnyDiagnosis, root: SourceRoot) -> list[CodeFinding]:
    """List the findings of a diagnosis in its order; those of measured kernels come last."""
    if isinstance(diagnosis, KernelReportDiagnosis):
        whole_ns = diagnosis.duration_ns
        return [
            _of_kernel(group, finding, (finding.saved_ns or 0.0) / (whole_ns or 1.0), root)
            for group in diagnosis.groups
            for finding in group.findings
        ]
    timeline = timeline_of(diagnosis)
    findings = [_of_timeline(timeline, finding, root) for finding in timeline.findings]
    if isinstance(diagnosis, JoinedDiagnosis):
        window_ns = timeline.focus.length_ns or 1
        for kernel in diagnosis.kernels_with_findings:
            for finding in kernel.group.findings:
                speedup = finding.speedup or 1.0
                share = kernel.time_ns * (1 - 1 / speedup) / window_ns
                findings.append(_of_kernel(kernel.group, finding, share, root))
    return findings


def level_of(share: float | None, confidence: Confidence) -> str:
    """Rate a finding by what its fix saves; an upper bound counts one level less."""
    if share is None or share < WARNING_SHARE:
        return "note"
    number = 0 if share >= ERROR_SHARE else 1
    return LEVELS[number + (confidence is Confidence.LOW)]


def capture_path(diagnosis: AnyDiagnosis) -> str:
    """Give where the capture lies."""
    return str(diagnosis.meta.get("path") or "capture")


def notices(diagnosis: AnyDiagnosis, root: SourceRoot) -> list[str]:
    """Say what a reader of the findings must know; `root` has looked for their files."""
    texts = list(diagnosis.notes)
    if not isinstance(diagnosis, KernelReportDiagnosis):
        texts += [section.summary() for section in timeline_of(diagnosis).sections]
    if root.missing:
        count = len(root.missing)
        files = "1 source file is" if count == 1 else f"{count} source files are"
        texts.append(f"{files} not below the source root; name the checkout with --source-root")
    return [safe_text(text) for text in texts]


def _of_timeline(
    diagnosis: TimelineDiagnosis, finding: TimelineFinding, root: SourceRoot
) -> CodeFinding:
    rule = diagnosis.rules.get(finding.rule) or timeline_rules()[finding.rule]
    steps, window_ns = max(1, diagnosis.steps), diagnosis.focus.length_ns or 1
    saves_ns = finding.saved_ns if finding.in_plan else None
    share = None if saves_ns is None else saves_ns / window_ns
    gain = f" {_sentence(timeline_gain(diagnosis, finding))}" if finding.is_fix else ""
    similar = finding.similar_fixes
    return CodeFinding(
        rule=finding.rule,
        level=level_of(share, finding.confidence),
        title=_sentence(safe_text(finding.title)),
        message=safe_text(f"{_sentence(finding.title)}{gain} {_sentence(finding.fix)}"),
        lines=_lines_of(finding, root),
        where=tuple(dict.fromkeys((place.kind, safe_text(place.name)) for place in finding.where)),
        fingerprint=_digest(finding.rule),
        short=_first_sentence(rule.detects),
        help_text=_help(rule),
        code=rule.code,
        help_uri=_page(finding.rule, "timeline-rules.md", TIMELINE_RULES),
        properties={
            "saves_ns_per_step": None if saves_ns is None else saves_ns / steps,
            "saves_alone_ns_per_step": finding.step_ns,
            "step_ns": diagnosis.step_ns,
            "steps": diagnosis.steps,
            "share": share,
            "in_plan": finding.in_plan,
            "upper_bound": finding.is_upper_bound,
            "confidence": finding.confidence.value,
            "effort": finding.effort,
            "similar_fixes": None if similar is None else similar.document(),
            "explain": f"gpusight explain FILE {finding.rule}",
        },
    )


def _lines_of(finding: TimelineFinding, root: SourceRoot) -> tuple[CodeLine, ...]:
    """Give the lines of recorded stacks; where a finding has none, the lines that it names."""
    stacks = [
        _code_line(root, line.file, line.line, line.function, line.share, ran=line.ran)
        for line in finding.lines
        if line.file and line.line and _is_file(line.file) and line.share >= MIN_FIRST_SHARE
    ]
    if stacks:
        return _foremost(stacks)
    found = (_SITE.fullmatch(place.name) for place in finding.where if place.kind == "site")
    sites = [site for site in found if site and _is_file(site["file"])]
    own = [site for site in sites if root.has(site["file"]) or not is_library_file(site["file"])]
    return _foremost(
        _distinct(
            _code_line(root, site["file"], int(site["line"]), site["function"], None, ran=False)
            for site in own or sites
        )
    )


def _is_file(recorded: str) -> bool:
    """Return whether code is in a file: that of `exec` has names such as `<string>`."""
    return not recorded.startswith("<")


def _code_line(
    root: SourceRoot,
    file: str,
    line: int | None,
    function: str | None,
    share: float | None,
    *,
    ran: bool,
) -> CodeLine:
    number = min(max(1, line or 1), _MAX_LINE_NUMBER)
    return CodeLine(root.uri(file), number, safe_text(function or ""), share, ran)


def _distinct(lines: Iterable[CodeLine]) -> list[CodeLine]:
    return list({(line.uri, line.line): line for line in lines}.values())


def _foremost(lines: Sequence[CodeLine]) -> tuple[CodeLine, ...]:
    kept = [line for line in lines[1:] if line.share is None or line.share >= MIN_LINE_SHARE]
    return (*lines[:1], *kept[: MAX_LINES - 1])


def _of_kernel(
    group: KernelGroup, finding: KernelFinding, share: float, root: SourceRoot
) -> CodeFinding:
    rule = kernel_rules().get(finding.rule, finding)  # one of your own is known by its finding
    gain = _sentence(gain_phrase(finding))
    title = f"{safe_text(group.label)}: {_sentence(safe_text(finding.title))}"
    launch = next((k for k in group.kernels if k.launch == finding.launch), group.longest)
    places = next((f.places for f in launch.findings if f.rule == finding.rule), finding.places)
    return CodeFinding(
        rule=f"kernel/{finding.rule}",
        level=level_of(share, finding.confidence),
        title=title,
        message=safe_text(f"{title} {gain} {_sentence(finding.fix)}"),
        lines=_foremost(
            [
                _code_line(root, place.path, place.line, group.label, place.share, ran=True)
                for place in places
            ]
        ),
        where=(("kernel", safe_text(group.name)),),
        fingerprint=_digest(f"kernel/{finding.rule}", group.label),
        short=_first_sentence(rule.why),
        help_text=_help(rule),
        code=rule.code,
        help_uri=_page(finding.rule, "kernel-rules.md", KERNEL_RULES),
        properties={
            "saves_ns": finding.saved_ns,
            "kernel_ns": finding.time_ns,
            "speedup": finding.speedup,
            "launches": finding.launches,
            "share": share,
            "confidence": finding.confidence.value,
            "effort": finding.effort,
        },
    )


def _help(rule: Rule | KernelFinding) -> str:
    """Explain a rule, without the numbers of this capture."""
    parts = {"Why": rule.why, "Fix": rule.fix, "Estimate": rule.estimate, "Caveats": rule.caveats}
    return "\n\n".join(
        f"{title}: {_sentence(safe_text(text))}" for title, text in parts.items() if text
    )


def _sentence(text: str) -> str:
    line = " ".join(text.split())
    return f"{line[:1].upper()}{line[1:].rstrip('.')}." if line else ""


def _page(rule: str, page: str, documented: Mapping[str, str]) -> str:
    return f"{DOCS_URL}/{page}#{rule}" if rule in documented else f"{DOCS_URL}/writing-rules.md"


def _first_sentence(text: str) -> str:
    return _sentence(re.split(r"(?<=[a-z)])\. ", text, maxsplit=1)[0])


def _digest(*parts: str) -> str:
    return hashlib.sha256("\0".join(parts).encode("utf-8", "replace")).hexdigest()[:32]


def distinct_rules(findings: Iterable[CodeFinding]) -> list[CodeFinding]:
    """Give the first finding of each rule, which describes it."""
    first: dict[str, CodeFinding] = {}
    for finding in findings:
        first.setdefault(finding.rule, finding)
    return list(first.values())
