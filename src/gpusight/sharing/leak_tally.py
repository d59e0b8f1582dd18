"""Counts what a walk through a capture finds, and keeps the values to look for in the copy."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from gpusight.sharing.known_words import kept_words, made_of, vendor_words
from gpusight.sharing.leak_report import Category, Leak, LeakScan, Treatment, suspicions

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable, Iterator
    from typing import TypeAlias

    _Counts: TypeAlias = dict[tuple[Category, str, Treatment], set[int]]


_HOMES = re.compile(
    r"(?:(?:/[\w.-]+){0,6}/(?:home|[Uu]sers)/|[A-Za-z]:\\+Users\\+)"
    r"(?P<user>[^/\\\s'\":;,)]+)|/root(?![\w-])"
)
_VARIABLE = re.compile(r"\s*(?P<name>[A-Za-z_][A-Za-z0-9_.()]{0,100})=(?P<value>.*)", re.DOTALL)
_OF_USERS = re.compile(r"(?:.*_)?(?:USER|USERNAME|LOGNAME|USER_NAME|EMAIL)", re.IGNORECASE)
_OF_HOSTS = re.compile(r"(?:.*_)?(?:HOST|HOSTNAME|COMPUTERNAME|NODENAME|NODELIST)", re.IGNORECASE)
_OF_PEOPLE = (Category.HOST_NAMES, Category.USER_NAMES)
_IN_WORDS = (Category.ENVIRONMENT, Category.COMMAND_LINES, Category.PROCESSES)
_MIN_NAME_CHARS, _MIN_VALUE_CHARS = 4, 6
"""Letters of a text that could not stand in a name by chance."""
_NOBODY = "root"
_PLAIN_WORD = re.compile(r"[A-Z]?[a-z]+")
"""What stands in a longer text by its grammar: `return`, `Systems`."""
_MAX_WORDS = 1000
_MAX_VALUES = 20_000
"""Values that are looked for; more would only slow it down."""


def without_homes(name: str) -> str:
    """Cut the home folder out of a name: the rest of a path is kept with it."""
    return _HOMES.sub("~", name) if "/" in name or "\\" in name else name


def values_of(category: Category, text: str) -> Iterator[tuple[Category, str]]:
    """Take a left-out text apart: values of variables, words of command lines, users, hosts."""
    plain = text.strip()
    for home in _HOMES.finditer(plain):
        if home["user"]:
            yield Category.USER_NAMES, home["user"]
    variable = _VARIABLE.fullmatch(plain)
    if variable is not None:
        name, plain = variable["name"], variable["value"].strip().strip("\"'")
        category = _category_of(name, category)
    yield category, plain
    if category in _IN_WORDS:
        words_of = (word.rpartition("=")[2].strip("\"'") for word in plain.split()[:_MAX_WORDS])
        yield from ((category, word) for word in words_of if not _PLAIN_WORD.fullmatch(word))
    if category is Category.HOST_NAMES:
        yield category, plain.partition(".")[0]


def _category_of(variable: str, otherwise: Category) -> Category:
    if _OF_USERS.fullmatch(variable):
        return Category.USER_NAMES
    return Category.HOST_NAMES if _OF_HOSTS.fullmatch(variable) else otherwise


def identifying_values(hidden: Iterable[tuple[Category, str]]) -> dict[str, Category]:
    """Give the values that, found again in a copy, would give something away."""
    values = (value for entry in hidden for value in values_of(*entry))
    found: dict[str, Category] = {}
    for category, value in values:
        if len(found) >= _MAX_VALUES:
            break
        if is_identifying(value, category):
            # Who it was tells more than where it stood.
            found[value] = category if category in _OF_PEOPLE else found.get(value, category)
    return found


def is_identifying(text: str, category: Category) -> bool:
    """Tell whether a text says more than words that everybody uses."""
    plain = text.strip()
    least = _MIN_NAME_CHARS if category in _OF_PEOPLE else _MIN_VALUE_CHARS
    if len(plain) < least or plain == _NOBODY or not re.search(r"[^\W\d_]", plain):
        return False
    return not made_of(plain, kept_words() | vendor_words())


_MAX_DISTINCT = 1 << 20
"""Values told apart in one place: from there on a count is the least that there are."""
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

    def add(self, category: Category, where: str, fate: Treatment, value: Hashable) -> None:
        """Count a value unless the same was counted there before."""
        self.add_all(category, where, fate, (value,))

    def add_all(
        self, category: Category, where: str, fate: Treatment, values: Iterable[Hashable]
    ) -> None:
        """Count some values."""
        seen = self._seen.setdefault((category, where, fate), set())
        if len(seen) < _MAX_DISTINCT:
            seen.update(map(hash, values))

    def hide(self, category: Category, text: str) -> None:
        """Note what must not be found in the copy: a text, or the users whom it names."""
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
        """Count a name that stays as it is, where it looks as if it told more than it should."""
        for category, like in suspicions(name):
            key = (category, _KEPT_NAMES + like, Treatment.KEPT)
            self._suspects.setdefault(key, set()).add(hash(name))

    def found(self, notes: Iterable[str] = ()) -> LeakScan:
        """Give the counts, in the order of the categories."""
        return LeakScan(
            _leaks(self._seen), _leaks(self._suspects), tuple(self._hidden), tuple(notes)
        )


def _leaks(counts: _Counts) -> tuple[Leak, ...]:
    order = list(Category)
    found = [Leak(c, where, len(seen), fate) for (c, where, fate), seen in counts.items()]
    return tuple(
        sorted(
            (leak for leak in found if leak.count),
            key=lambda leak: (order.index(leak.category), leak.where, leak.fate.value),
        )
    )
