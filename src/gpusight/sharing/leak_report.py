"""What a capture would leak, and what became of it in a copy; values are never part of it."""

from __future__ import annotations

import enum
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


TAKES = "share takes nsys captures, traces of torch.profiler and .ncu-rep reports"


class Category(enum.Enum):
    """What a piece of a capture tells about people and machines."""

    ENVIRONMENT = "environment"
    COMMAND_LINES = "command lines"
    HOST_NAMES = "host names"
    USER_NAMES = "user names"
    PROCESSES = "process list"
    PROCESS_NUMBERS = "process and thread numbers"
    FILE_CONTENTS = "file contents"
    FILE_PATHS = "file paths"
    NETWORK = "network"
    """Addresses and names of network devices."""
    HARDWARE_IDS = "hardware identifiers"
    """Serial numbers, UUIDs, bus addresses."""
    CREDENTIALS = "passwords and keys"
    CAPTURE_TIME = "time of the capture"
    PROGRAM_OUTPUT = "program output"
    """What the program or the profiler printed: logs, diagnostics."""
    CODE = "code"
    """Machine code, sources and symbols of the program, and the stacks of its operators."""
    PROGRAM_TEXTS = "range names and other texts"
    """Names of ranges and marks, and what programs attach to them."""
    KERNEL_NAMES = "kernel names"
    PYTHON_FUNCTIONS = "names of Python functions"
    """With the name of the file and the line; also those of modules (`nn.Module: Linear_3`)."""
    THREAD_NAMES = "thread names"
    VALUES = "values"
    """Arguments of operators and payloads: data that the program computed with."""
    CALLS = "names of CUDA and OS calls"
    MACHINE = "models and versions"
    """What makers call their hardware and system software."""
    PROFILER = "words of the profiler"
    """Names of counters, labels of sections, what the profiler itself was busy with."""
    UNKNOWN = "unknown"
    """Parts of the file that we do not know, and so do not copy."""


class Treatment(enum.Enum):
    """What becomes of it in a copy."""

    REMOVED = "removed"
    HASHED = "hashed"
    SHORTENED = "shortened"
    """Only what says nothing is kept: the last part of a path, a vocabulary word."""
    RENUMBERED = "renumbered"
    """Counted from 1, in the order of the old numbers."""
    KEPT = "kept"
    """Not changed; `hash_names` or nothing would change it."""


@dataclass(frozen=True, slots=True)
class Leak:
    """One kind of thing in one place of a capture."""

    category: Category
    where: str
    """The place, in the words of the format: a table and column, a field, a key."""
    count: int
    """Values that differ from each other; entries where only these can be counted."""
    fate: Treatment


@dataclass(frozen=True, slots=True)
class ShareOptions:
    """What to do with names."""

    hash_names: bool = False
    """Hash the names of kernels, ranges and threads, and every other text that would be kept."""
    salt: bytes = b""
    """Equal names get equal hashes in copies made with equal salt; random where none is given."""


@dataclass(frozen=True, slots=True)
class LeakScan:
    """What one walk through a capture found."""

    leaks: tuple[Leak, ...]
    suspects: tuple[Leak, ...] = ()
    """Names that are kept although they look like a path, an address or a key."""
    hidden: tuple[tuple[Category, str], ...] = field(default=(), repr=False)
    """Values that were left out, to be looked for in the copy; never shown."""
    notes: tuple[str, ...] = ()


class Cleaner(Protocol):
    """Knows one format: what is in a file of it, and how to write a copy without that."""

    @property
    def suffixes(self) -> tuple[str, ...]:
        """What copies may be called; the first is the default."""
        ...

    def look(self, options: ShareOptions) -> LeakScan:
        """Say what the capture holds, and what would become of it."""
        ...

    def write(self, output: Path, options: ShareOptions, *, name: str = "") -> LeakScan:
        """Write the copy to a path where nothing lies yet; says what became of everything.

        `name` is what the copy will be called, where that is not the name of `output`.
        Who calls it removes what a failure leaves there.
        """
        ...


_MAX_SUSPECT_CHARS = 20_000
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
_SUSPICIOUS = (
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


def suspicions(name: str) -> Iterator[tuple[Category, str]]:
    """Say what a name looks like beside a name, and what that would tell."""
    text = name[:_MAX_SUSPECT_CHARS]
    possible = _possible(text)
    for category, like, pattern in _SUSPICIOUS:
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
