"""Every text that people read uses the words of the field, and American spelling.

Checked: string literals, docstrings, comments and names of the package, templates, the front end,
the pages of `docs/`, the help of every command, and what the commands print about the bundled
captures.
"""

from __future__ import annotations

import argparse
import ast
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path

import pytest

from gpusight.cli.main import build_parser, main
from gpusight.recording.doctor import checkup
from tests.recording.doctor.machines import bare
from tests.shared import REPOSITORY

SOURCE = REPOSITORY / "src" / "gpusight"
DATA = SOURCE / "data"

_COUNTS = (
    r"blocks|bytes|calls|copies|cycles|elements|events|flops?|instructions|kb|kernels|launches|mb|"
    r"gb|memory|memsets?|ms|µs|ns|registers|requests|sectors|syncs?|threads|values|warps|\d+%?"
)
_OF_STEPS = rf"{_COUNTS}|allocations?|(?<!that )mean|often|once|saves|time|times|twice"
_UNITS = r"block|call|capture|cycle|instruction|million|pass|request|second|sm|thread|value|warp"
_SOURCES = r"capture|column|command|csv|file|format|label|line|note|option|report|result|rule|trace"
WORDS = {
    rf"\b(?:{_OF_STEPS}) an? (?:step|iteration)\b": "per step, or ms/step",
    rf"\b(?:{_COUNTS}) an? (?:{_UNITS})\b(?! (?:adds|can|has|holds))": "per thread, or B/s",
    r"\b(?:give|gives|gave|given|giving)\b(?: \S+){0,2} back\b": "saves, frees",
    r"\bafter above\b": "incremental",
    r"\bh(?:old|olds|eld|olding) (?:\S+ ){0,4}back\b": "bottleneck",
    r"(?<!dot )(?<!dot-)(?<!outer )\bproducts\b(?! of (?:its|the|two))": "GEMMs, matmuls",
    r"\b(?:matrix|matrix-matrix|fp32|tf32|fp16|bf16|batched|precision) product\b": "GEMM, matmul",
    r"\bpieces? of (?:gpu |host )?work\b": "GPU activities; kernels and copies",
    r"\b(?:memory|gpu) fills?\b|\bfills of memory\b|\bmemory filled\b": "memset",
    r"\b(?:fp32|fp64|gpu|cuda|arithmetic) lanes\b|\blanes of (?:the|a) (?:gpu|sm)\b": "CUDA cores",
    r"\bfound nothing\b": "passed",
    r"\bjudg(?:e|ed|es|ing|ement)\b": "evaluate",
    r"\bmiss(?:es|ed)? the (?:measured|real)\b": "simulation error",
    r"\bwritten out\b": "unfused",
    r"\b(?:taken?|took) (?:or|and) given\b": "cudaMalloc/cudaFree",
    r"\bwaits? for (?:a launch|launches)\b": "idle waiting for kernel launches",
    r"\blaunched one by one\b": "kernel launches per step",
    r"\bhost waits for the gpu (?:\d|once|twice|n times)": "blocking syncs per step",
    r"\bkeeps? the gpu waiting\b": "stalls the GPU",
    r"\ba matter of time\b": "no time estimate",
    r"\ba step (?:now|then)\b": "step time, predicted",
    r"\b(?:alone|now) of all\b": "% of step",
    r"\bto next\b(?<!gap to next)|\bgpu lag\b": "gap to next, GPU behind host",
    r"\b(?:ranges?|steps?|names?) that counts?\b|\bwhose names? counts?\b": "numbered ranges",
    r"\bcan be claimed\b": "no significant change",
    r"\bfindings gone\b": "findings resolved",
    r"\bone value each\b|\bnothing tells\b": "one sample per side; variance unknown",
    r"\bamong its like\b": "compared with same-name events",
    r"\bhow near\b": "achieved vs. peak",
    r"\broofs?\b(?!-?line)": "roofline",
    r"\bknees?\b": "ridge point",
    r"\bplaces (?:for|of) warps\b|\bwarp places\b": "warp slots",
    r"\bwhere (?:one|\d+|about \d+) would do\b": "ideal 1",
    r"\buntold\b|\btold\b|\btells\b": "(rewrite)",
    r"\bthe profiler said\b|\btake the mark back\b": "profiler warning; clear selection",
    r"\b(?:pipe|reader) went away\b": "broken pipe",
    r"(?<!round )(?<!round-)\btrip(?:s|ped)?\b(?! over)": "check failed",
    r"\bevery nanosecond\b": "each nanosecond counted exactly once",
    r"\bg(?:ive|ives|iven|iving) away\b": "sanitized copy for sharing",
    r"\bwhat people look at\b|\bbeside\b|\bas it is\b(?! \w+(?:ed|en)\b)": "(rewrite)",
    r"\bwhat was seen\b": "evidence",
    rf"\b(?:{_SOURCES})s? (?:also |always )?(?:gives?|gave)\b": "has, shows",
    r"\bto give to\b|\b(?:so|that) (?:nobody|no one) can\b": "for; cannot",
    r"\bgive (?:-|a (?:file|folder|number|path|timeline)\b|one of|the program\b)": "pass, add",
    r"\b0\.\d000 times\b|\b\d+\.\d{3} (?:kernels|calls|launches|copies|syncs)\b": "3 digits",
}
"""What is not written, and what is written instead."""
SPEECH = {
    r"\b(?:asks?|asked|asking)\b": "request, query, need",
    r"\b(?:tell|tells|telling)\b": "show, distinguish, return whether",
    r"\b(?:says|said|saying)\b": "has, shows, reports",
}
"""Captures, options and programs do not speak. For the package; documentation may quote people."""
SPEECH_IN = {"sharing/nsys_survey.py": {"asked"}}
"""Lists of words that captures contain, by module."""
NAMES = re.compile(
    r"(?i:(?:^|_)(?:lanes?|told|untold|telling|asks|asked|asking|said|wish(?:es)?)(?:_|$))"
    r"|^FILL$|EntryRank"
)
"""Words that no function, class, argument or variable is named with."""
LABELS = {
    *("Ask", "Took", "Began", "To next", "Times faster", "A step", "In all", "Not told"),
    *("Mostly", "Contributor", "Holder", "Taken", "Most unused", "Variation", "A row is"),
    *("GPU completion lag", "One row is", "How to have it", "What to capture next time"),
}
"""Headings that are not written; as words within a sentence some of them are fine."""
_BRITISH_STEMS = re.compile(
    r"(?:utilis|normalis|synchronis|optimis|initialis|serialis|recognis|organis|summaris|"
    r"parallelis(?!m)|vectoris|tokenis|quantis|visualis|specialis|generalis|minimis|maximis|customis|"
    r"parameteris|materialis|sanitis|anonymis|categoris|memois|colour|behaviour|neighbour|favour|"
    r"labell|modell|grey|centre|licence|analyse)",
    re.IGNORECASE,
)
BRITISH = re.compile(rf"[a-z]*{_BRITISH_STEMS.pattern}[a-z]*", re.IGNORECASE)
BRITISH_ALLOWED = {
    "analyses": "the plural of analysis",
    "labelledby": "an attribute of HTML",
    "licences": "names of files: docs/licences.md, tests/test_licences.py",
}
"""Words that look British, and why they stay."""
BRITISH_IN = {
    # Names that programs give to their ranges, in any spelling.
    "naming/host_names.py": {"tokenise", "tokeniser", "tokenisation"},
    "analysis/questions/forward_passes.py": {"optimiser"},
    "sharing/known_words.py": {
        *("optimiser", "synchronise", "tokenise", "tokeniser", "tokenisation"),
    },
    # A color that programs may ask for, and a command that may be typed so.
    "recording/inside/nvtx_backend.py": {"grey"},
    "cli/main.py": {"utilisation"},
}
"""Words of users, by module."""

_CODE_SPAN = re.compile(r"``.+?``|`[^`\n]+`")
_PATTERN = re.compile(r"\(\?[:!<=i]|\\[bswd]|\[\^|\{\{|^\^")
"""What is in regular expressions and templates, but not in prose."""


def hits(text: str, words: Mapping[str, str] = WORDS, allowed: Collection[str] = ()) -> list[str]:
    """Return the phrases of a text that are not written, each with what is written instead."""
    plain = _plain(text)
    result = [
        f"{match.group()!r} -> {instead}: …{plain[max(0, match.start() - 30) : match.end() + 30]}…"
        for pattern, instead in words.items()
        for match in re.finditer(pattern, plain, re.IGNORECASE)
        if match.group() not in allowed
    ]
    return result + [f"heading {text!r}" for label in LABELS if text == label]


def _plain(text: str) -> str:
    return _CODE_SPAN.sub("`", " ".join(text.split()))


def all_hits(texts: Iterable[str], words: Mapping[str, str] = WORDS) -> list[str]:
    """Return the hits of many texts and their British words."""
    texts = list(texts)
    result = (
        [] if _are_clean(texts, words) else [hit for text in texts for hit in hits(text, words)]
    )
    return result + [hit for text in texts for hit in british(text)]


def _are_clean(texts: Collection[str], words: Mapping[str, str]) -> bool:
    """Return whether no text has a hit: one look at all of them, as no phrase goes over a line."""
    lines = "\n".join(map(_plain, texts))
    matches = (re.search(pattern, lines, re.IGNORECASE) for pattern in words)
    return LABELS.isdisjoint(texts) and not any(matches)


def british(text: str, allowed: Collection[str] = ()) -> list[str]:
    """Return the words of a text that are spelled as the British do."""
    if not _BRITISH_STEMS.search(text):
        return []
    words = (match.group() for match in BRITISH.finditer(text))
    known = {*BRITISH_ALLOWED, *allowed}
    return [f"British: {word!r}" for word in words if word.lower() not in known]


def _literals(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Give the texts of a module with their lines; those of an f-string without its values."""
    inside = {
        id(part)
        for node in ast.walk(tree)
        if isinstance(node, ast.JoinedStr)
        for part in ast.walk(node)
        if isinstance(part, ast.Constant)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            parts = (v.value if isinstance(v, ast.Constant) else "0" for v in node.values)
            yield node.lineno, "".join(map(str, parts))
        elif (
            isinstance(node, ast.Constant)
            and isinstance(node.value, str)
            and id(node) not in inside
        ):
            yield node.lineno, node.value


def _is_prose(text: str) -> bool:
    """Return whether a text is for people: not a key, a pattern or a format."""
    return (" " in text.strip() or text in LABELS) and not _PATTERN.search(text)


_COMMENT = re.compile(r"(?:^|\s)# (.+)$", re.MULTILINE)


def _comments(source: str) -> Iterator[tuple[int, str]]:
    """Give the comments of a module with their lines."""
    for match in _COMMENT.finditer(source):
        yield source.count("\n", 0, match.start(1)) + 1, match.group(1)


def _names(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Give the names that a module defines with their lines."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.lineno, node.name
        elif isinstance(node, ast.arg):
            yield node.lineno, node.arg
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.lineno, node.id
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.lineno, node.attr


MODULES = sorted(SOURCE.rglob("*.py"))


@pytest.mark.parametrize("path", MODULES, ids=lambda p: str(p.relative_to(SOURCE)))
def test_modules(path: Path) -> None:
    source, name = path.read_text("utf-8"), path.relative_to(SOURCE).as_posix()
    tree = ast.parse(source)
    texts = list(_literals(tree))
    prose = [*((line, text) for line, text in texts if _is_prose(text)), *_comments(source)]
    words, known = {**WORDS, **SPEECH}, SPEECH_IN.get(name, ())
    result = []
    if not _are_clean([text for _, text in prose], words):
        result += [
            f"line {line}: {hit}" for line, text in prose for hit in hits(text, words, known)
        ]
    allowed = BRITISH_IN.get(name, ())
    result += [f"line {line}: {hit}" for line, text in texts for hit in british(text, allowed)]
    result += [
        f"line {line}: name {identifier!r}"
        for line, identifier in _names(tree)
        if NAMES.search(identifier)
    ]
    assert result == []


_JINJA = re.compile(r"\{[{%#].*?[}%#]\}", re.DOTALL)
_ATTRIBUTE = re.compile(r'\b(?:aria-label|title|alt|placeholder)="([^"]*)"')
_TAG = re.compile(r"<(?:style|script)\b.*?</(?:style|script)>|<[^>]*>", re.DOTALL)
TEMPLATES = sorted(SOURCE.rglob("*.html"))


@pytest.mark.parametrize("path", TEMPLATES, ids=lambda p: p.name)
def test_templates(path: Path) -> None:
    text = _JINJA.sub("0", path.read_text("utf-8"))
    lines = [*_TAG.sub("\n", text).splitlines(), *_ATTRIBUTE.findall(text)]
    assert all_hits(line.strip() for line in lines) == []


_SCRIPT_TEXT = re.compile(
    r"""//[^\n]*|/\*.*?\*/|"(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)*'|`(?:[^`\\]|\\.)*`""", re.DOTALL
)
SCRIPTS = sorted((REPOSITORY / "frontend" / "src").rglob("*.ts"))


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda p: p.name)
def test_front_end(path: Path) -> None:
    texts = (match.group() for match in _SCRIPT_TEXT.finditer(path.read_text("utf-8")))
    plain = [re.sub(r"\$\{[^}]*\}", "0", text).strip("\"'`/* ") for text in texts]
    result = [hit for text in plain if _is_prose(text) for hit in hits(text)]
    assert result + [hit for text in plain for hit in british(text)] == []


PAGES = sorted(
    [*(REPOSITORY / "docs").glob("*.md"), *REPOSITORY.glob("*.md")],
    key=lambda path: str(path.relative_to(REPOSITORY)),
)


@pytest.mark.parametrize("path", PAGES, ids=lambda p: str(p.relative_to(REPOSITORY)))
def test_pages(path: Path) -> None:
    text = path.read_text("utf-8")
    paragraphs = re.split(r"\n\s*\n|\n(?=[-|#])", text)
    assert all_hits(paragraphs) == []


def _parsers(
    parser: argparse.ArgumentParser, name: str
) -> Iterator[tuple[str, argparse.ArgumentParser]]:
    yield name, parser
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for verb, inner in action.choices.items():
                yield from _parsers(inner, f"{name} {verb}")


PARSERS = dict(_parsers(build_parser(), "gpusight"))


@pytest.mark.parametrize("name", PARSERS)
def test_help(name: str) -> None:
    text = PARSERS[name].format_help()
    paragraphs = re.split(r"\n\s*\n", text)
    assert all_hits(paragraphs, {**WORDS, **SPEECH}) == []


NSYS, TORCH, NCU = "demo.sqlite", "demo.json.gz", "demo.ncu-repz"
OUTPUTS = (
    *(f"diagnose {capture}" for capture in (NSYS, TORCH, NCU)),
    *(f"diagnose {capture} --details" for capture in (NSYS, TORCH, NCU)),
    *(f"explain {capture} 1" for capture in (NSYS, TORCH, NCU)),
    *(f"{command} {NSYS}" for command in ("summary", "kernels", "launches", "ranges", "api")),
    *(f"{command} {NSYS}" for command in ("copies", "steps", "ledger", "utilization", "info")),
    *(f"{command} {TORCH}" for command in ("ops", "flops", "memory", "ledger", "info")),
    *(f"{command} {NCU}" for command in ("kernels", "counters", "roofline", "occupancy", "info")),
    f"whatif {NSYS} --speedup matmul=4x --graph",
    f"join {NSYS} {NCU}",
    f"compare {NSYS} {NSYS}",
    f"gate {NSYS} --max step_time=+3% --baseline {NSYS}",
    f"share {NSYS} --check",
    f"drill {NSYS}",
    f"questions {NSYS} --model 4,12,512,64",
    "diagnose --list-rules",
    "demo",
    "doctor",
)


@pytest.mark.parametrize("command", OUTPUTS)
def test_output(
    command: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(DATA)
    monkeypatch.setattr(checkup, "Machine", bare)  # this one starts several programs
    cached = command not in {"demo", "doctor"}
    main([*command.split(), *(["--no-cache"] if cached else [])])
    out, err = capsys.readouterr()
    assert out + err
    cells = [cell for line in (out + err).splitlines() for cell in re.split(r"\s{2,}", line)]
    assert all_hits(cells, {**WORDS, **SPEECH}) == []


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("saves 26.4 ms/step (31%)", 0),
        ("gives back 26.4 ms a step", 2),
        ("What holds the program back", 1),
        ("FP32 products without tensor cores", 1),
        ("a dot product of two vectors", 0),
        ("one step of the program", 0),
        ("kernels per step; a step of 10 ms", 0),
        ("96 times a step", 1),
        ("the roofline, at the ridge point", 0),
        ("time over the roof", 1),
        ("`judged` is a key", 0),
        ("a round trip", 0),
        ("Took", 1),
        ("Gap to next", 0),
        ("a note gives the share", 1),
        ("the CSV always gives it", 1),
        ("fuse kernels, or give each block more work", 0),
        ("Name to give to -r", 1),
        ("give a folder of captures; or give -o", 2),
    ],
)
def test_phrases(text: str, count: int) -> None:
    assert len(hits(text)) == count


def test_speech_and_names() -> None:
    assert len(hits("the capture says what the profiler asked for", SPEECH)) == 2
    assert hits("a list of words: asked", SPEECH, {"asked"}) == []
    names = ("host_lanes", "FILL", "told", "plane", "fill_null")
    assert [name for name in names if NAMES.search(name)] == ["host_lanes", "FILL", "told"]
    assert list(_comments("x = 1  # the GPU waits\n# all of it\n")) == [
        (1, "the GPU waits"),
        (2, "all of it"),
    ]


def test_spelling() -> None:
    assert british("utilization, color, gray, license, docs/licences.md") == []
    assert len(british("Utilisation of a colour, idle/synchronising")) == 3
