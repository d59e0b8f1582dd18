"""Names that are kept in a copy, and look as if they told more than what the program does.

A range may be called after the file, the user or the request that it works on. Nothing says so but
its look, so names are only counted here: whoever shares the copy has to decide.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from gpusight.sharing.report import Category

if TYPE_CHECKING:
    from collections.abc import Iterator

_LONGEST = 20_000
_FOLDERS = (
    r"home|[Uu]sers?|root|tmp|var|opt|usr|etc|srv|mnt|media|data|datasets?|scratch|work|workspace|nfs"
    r"|lustre|gpfs|efs|fsx|content|shared?|projects?|private|proc|Volumes|afs|dbfs|s3|gcs|bucket"
)
"""First folders of paths: operators of exported models have names such as /layer1/conv/Conv."""
_FILES = r"py|so|dll|exe|json|ya?ml|toml|txt|csv|pt|pth|bin|ckpt|safetensors|parquet|tar|gz|npy|cu"
_BYTE = r"(?:25[0-5]|2[0-4]\d|1?\d?\d)"
_HEX_PAIR = re.compile(r"[0-9A-Fa-f]:[0-9A-Fa-f]")
_KEYS = (
    "akia", "asia", "sk-", "pk-", "rk-", "gh", "glpat", "hf_", "xox", "aiza", "eyj", "bearer",
    "begin", "pass", "secret", "token", "key", "sig",
)  # fmt: skip
_LOOKS = (
    (
        Category.CREDENTIALS,
        "like a password or key",
        re.compile(
            r"\b(?:AKIA|ASIA)[0-9A-Z]{16}\b|\b(?:sk|pk|rk)-[\w-]{16,}|\bgh[opsur]_\w{20,}"
            r"|\bgithub_pat_\w{20,}|\bglpat-[\w-]{16,}|\bhf_\w{20,}|\bxox[abeprs]-[\w-]{10,}"
            r"|\bAIza[\w-]{30,}|\beyJ[\w-]{10,}\.[\w-]{4,}|\b[Bb]earer\s+[\w.~+/=-]{8,}"
            r"|-----BEGIN |(?i:pass(?:word|wd)?|secret|token|api[_-]?key|sig(?:nature)?)\s*[=:]\s*"
            r"(?=[^\s,;)]{0,200}[A-Za-z])(?=[^\s,;)]{0,200}\d)[^\s,;)]{8,}"
        ),
    ),
    (
        Category.USER_NAMES,
        "like an e-mail address",
        re.compile(r"\b[\w.+-]{1,64}@[\w-]{1,63}(?:\.[\w-]{1,63}){0,8}\.[A-Za-z]{2,10}\b"),
    ),
    (
        Category.NETWORK,
        "like a URL or network address",
        re.compile(
            rf"\b[A-Za-z][A-Za-z0-9+.-]{{1,15}}://[^\s/]|(?<![\d.])(?:{_BYTE}\.){{3}}{_BYTE}(?![\d.])"
            r"|(?<![\w:])(?:[0-9A-Fa-f]{2}:){5}[0-9A-Fa-f]{2}(?![\w:])"
            r"|(?<![\w:])(?:[0-9A-Fa-f]{1,4}:){4,7}:?[0-9A-Fa-f]{1,4}(?![\w:])"
        ),
    ),
    (
        Category.FILE_PATHS,
        "like a file path",
        re.compile(
            rf"(?<![\w.:/])~?/(?:{_FOLDERS})/[\w.@+-]|(?<![\w:/])(?:~|\.{{1,2}})?/[^\s:*?\"<>|]{{1,500}}"
            rf"\.(?:{_FILES})\b|\b[A-Za-z]:\\[\w.]|\\\\[\w.-]+\\\w"
        ),
    ),
    (
        Category.HARDWARE_IDS,
        "like a UUID",
        re.compile(r"\b[0-9A-Fa-f]{8}-(?:[0-9A-Fa-f]{4}-){3}[0-9A-Fa-f]{12}\b"),
    ),
)


def looks_of(name: str) -> Iterator[tuple[Category, str]]:
    """Say what a name looks like beside a name, and what that would tell."""
    text = name[:_LONGEST]
    possible = _possible(text)
    for category, like, pattern in _LOOKS:
        if category in possible and pattern.search(text):
            yield category, like


def _possible(text: str) -> set[Category]:
    """Leave out what a name cannot be for want of a mark: nearly all names are ruled out so."""
    lower = text.lower()
    found = {Category.CREDENTIALS} if any(key in lower for key in _KEYS) else set()
    if "@" in text:
        found.add(Category.USER_NAMES)
    if "://" in text or text.count(".") > 2 or _HEX_PAIR.search(text):
        found.add(Category.NETWORK)
    if "/" in text or "\\" in text:
        found.add(Category.FILE_PATHS)
    if text.count("-") > 3:
        found.add(Category.HARDWARE_IDS)
    return found
