"""What a capture would leak, and what a copy does with it; counts, but never the values."""

from __future__ import annotations

import enum
import re
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Protocol

from gpusight.sharing.known_words import kept_words, made_of, vendor_words

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable, Iterator, Mapping
    from pathlib import Path
    from typing import TypeAlias

    _Counts: TypeAlias = "dict[tuple[Category, str, Treatment], set[int]]"


TAKES = "share takes nsys captures, traces of torch.profiler and .ncu-rep reports"


class Category(enum.Enum):
    """What a part of a capture reveals about people and machines."""

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
    PROFILER = "profiler strings"
    """Names of counters, labels of sections, what the profiler itself was busy with."""
    UNKNOWN = "unknown"
    """Parts of the file that we do not know, and so do not copy."""


class Treatment(enum.Enum):
    """What a copy does with it."""

    REMOVED = "removed"
    HASHED = "hashed"
    SHORTENED = "shortened"
    """Only harmless parts are kept: the last part of a path, a vocabulary word."""
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
    treatment: Treatment


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
    numbers: Mapping[int, int] | None = field(default=None, repr=False)
    """What processes and threads are called in the copy; None where they keep their numbers."""


def joined(scan: LeakScan, other: LeakScan) -> LeakScan:
    """Add what was found in a file next to the capture."""
    order = list(Category)
    leaks = sorted((*scan.leaks, *other.leaks), key=lambda leak: order.index(leak.category))
    return replace(
        scan,
        leaks=tuple(leaks),
        suspects=(*scan.suspects, *other.suspects),
        hidden=(*scan.hidden, *other.hidden),
        notes=(*scan.notes, *other.notes),
    )


class Cleaner(Protocol):
    """Knows one format: what is in a file of it, and how to write a copy without that."""

    @property
    def suffixes(self) -> tuple[str, ...]:
        """What copies may be called; the first is the default."""
        ...

    def scan(self, options: ShareOptions) -> LeakScan:
        """Count what the capture holds, and how a copy would treat it."""
        ...

    def write(self, output: Path, options: ShareOptions, *, name: str = "") -> LeakScan:
        """Write the copy to a path where nothing lies yet; count how everything was treated.

        `name` is what the copy will be called, where that is not the name of `output`.
        The caller removes what a failure leaves there.
        """
        ...


# Names that look like secrets ---------------------------------------------------------------------

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
    """List what else a name looks like, and what that would reveal."""
    text = name[:_MAX_SUSPECT_CHARS]
    possible = _possible(text)
    for category, like, pattern in _SUSPICIOUS:
        if category in possible and pattern.search(text):
            yield category, like


def _possible(text: str) -> set[Category]:
    """Rule out most patterns by the characters that they need: regular expressions are slow."""
    lower = text.lower()
    possible = {Category.CREDENTIALS} if any(key in lower for key in _KEYS) else set()
    if "@" in text:
        possible.add(Category.USER_NAMES)
    if "://" in text or text.count(".") > 2 or _HEX_PAIR.search(text):
        possible.add(Category.NETWORK)
    if "/" in text or "\\" in text:
        possible.add(Category.FILE_PATHS)
    if text.count("-") > 3:
        possible.add(Category.HARDWARE_IDS)
    return possible


# Removed values -----------------------------------------------------------------------------------

_HOMES = re.compile(
    r"(?:(?:/[\w.-]+){0,6}/(?:home|[Uu]sers)/|[A-Za-z]:\\+Users\\+)"
    r"(?P<user>[^/\\\s'\":;,)]+)|/root(?![\w-])"
)
_VARIABLE = re.compile(r"\s*(?P<name>[A-Za-z_][A-Za-z0-9_.()]{0,100})=(?P<value>.*)", re.DOTALL)
_OF_USERS = re.compile(r"(?:.*_)?(?:USER|USERNAME|LOGNAME|USER_NAME|EMAIL)", re.IGNORECASE)
_OF_HOSTS = re.compile(r"(?:.*_)?(?:HOST|HOSTNAME|COMPUTERNAME|NODENAME|NODELIST)", re.IGNORECASE)
OF_PEOPLE = (Category.HOST_NAMES, Category.USER_NAMES)
_IN_WORDS = (Category.ENVIRONMENT, Category.COMMAND_LINES, Category.PROCESSES)
_MIN_NAME_CHARS, _MIN_VALUE_CHARS = 4, 6
"""Letters of a text that could not stand in a name by chance."""
_SUPERUSER = "root"
_PLAIN_WORD = re.compile(r"[A-Z]?[a-z]+")
"""What stands in a longer text by its grammar: `return`, `Systems`."""
_MAX_WORDS = 1000
_MAX_VALUES = 20_000
"""Values that are looked for; more would only slow it down."""


def without_homes(name: str) -> str:
    """Cut the home folder out of a name: the rest of a path is kept with it."""
    return _HOMES.sub("~", name) if "/" in name or "\\" in name else name


def values_of(category: Category, text: str) -> Iterator[tuple[Category, str]]:
    """Split a removed text into values of variables, words of command lines, users and hosts."""
    plain = text.strip()
    for home in _HOMES.finditer(plain):
        if home["user"]:
            yield Category.USER_NAMES, home["user"]
    variable = _VARIABLE.fullmatch(plain)
    if variable is not None:
        name, plain = variable["name"], variable["value"].strip().strip("\"'")
        if _OF_USERS.fullmatch(name):
            category = Category.USER_NAMES
        elif _OF_HOSTS.fullmatch(name):
            category = Category.HOST_NAMES
    yield category, plain
    if category in _IN_WORDS:
        words_of = (word.rpartition("=")[2].strip("\"'") for word in plain.split()[:_MAX_WORDS])
        yield from ((category, word) for word in words_of if not _PLAIN_WORD.fullmatch(word))
    if category is Category.HOST_NAMES:
        yield category, plain.partition(".")[0]


def identifying_values(hidden: Iterable[tuple[Category, str]]) -> dict[str, Category]:
    """Return the removed values that must not be in a copy, with what they reveal."""
    values: dict[str, Category] = {}
    for category, value in (value for entry in hidden for value in values_of(*entry)):
        if len(values) >= _MAX_VALUES:
            break
        if is_identifying(value, category):
            # A user or host name counts as such wherever it stood.
            values[value] = category if category in OF_PEOPLE else values.get(value, category)
    return values


def is_identifying(text: str, category: Category) -> bool:
    """Return whether a text is more than common words."""
    plain = text.strip()
    least = _MIN_NAME_CHARS if category in OF_PEOPLE else _MIN_VALUE_CHARS
    if len(plain) < least or plain == _SUPERUSER or not re.search(r"[^\W\d_]", plain):
        return False
    return not made_of(plain, kept_words() | vendor_words())


# Counting -----------------------------------------------------------------------------------------

_MAX_DISTINCT = 1 << 20
"""Distinct values counted in one place; beyond that a count is a lower bound."""
_MAX_HIDDEN = 10_000
_IDENTIFYING = frozenset(
    {
        Category.ENVIRONMENT,
        Category.COMMAND_LINES,
        Category.HOST_NAMES,
        Category.USER_NAMES,
        Category.PROCESSES,
        Category.FILE_PATHS,
        Category.NETWORK,
    }
)
"""What a copy must not hold in any place."""
_KEPT_NAMES = "kept names that look "


class LeakTally:
    """Values that differ, counted without keeping them."""

    def __init__(self) -> None:
        self._seen: _Counts = {}
        self._suspects: _Counts = {}
        self._hidden: list[tuple[Category, str]] = []

    def add(self, category: Category, where: str, treatment: Treatment, value: Hashable) -> None:
        """Count a value unless the same was counted there before."""
        self.add_all(category, where, treatment, (value,))

    def add_all(
        self, category: Category, where: str, treatment: Treatment, values: Iterable[Hashable]
    ) -> None:
        """Count values, each once."""
        hashes = self._seen.setdefault((category, where, treatment), set())
        if len(hashes) < _MAX_DISTINCT:
            hashes.update(map(hash, values))

    def hide(self, category: Category, text: str) -> None:
        """Note what must not be in the copy: a text, or the users that it names."""
        if len(self._hidden) > _MAX_HIDDEN or not " ".join(text.split()).isprintable():
            return
        if category in _IDENTIFYING:
            self._hidden.append((category, text))
        else:
            users = {
                value for value in values_of(category, text) if value[0] is Category.USER_NAMES
            }
            self._hidden += sorted(users, key=lambda user: user[1])

    def keep(self, name: str) -> None:
        """Count a kept name that looks like a path, an address or a key."""
        for category, like in suspicions(name):
            key = (category, _KEPT_NAMES + like, Treatment.KEPT)
            self._suspects.setdefault(key, set()).add(hash(name))

    def scan(self, notes: Iterable[str] = ()) -> LeakScan:
        """Return the counts, in the order of the categories."""
        return LeakScan(
            _leaks(self._seen), _leaks(self._suspects), tuple(self._hidden), tuple(notes)
        )


def _leaks(counts: _Counts) -> tuple[Leak, ...]:
    order = list(Category)
    leaks = [
        Leak(c, where, len(values), treatment)
        for (c, where, treatment), values in counts.items()
        if values
    ]
    leaks.sort(key=lambda leak: (order.index(leak.category), leak.where, leak.treatment.value))
    return tuple(leaks)
