"""What was left out of a copy, taken apart into the values to look for in it afterwards."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from gpusight.sharing.profiler_words import made_of, own_words
from gpusight.sharing.report import Category
from gpusight.sharing.vocabulary import words

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

_HOMES = re.compile(
    r"(?:(?:/[\w.-]+){0,6}/(?:home|[Uu]sers)/|[A-Za-z]:\\+Users\\+)"
    r"(?P<user>[^/\\\s'\":;,)]+)|/root(?![\w-])"
)
_VARIABLE = re.compile(r"\s*(?P<name>[A-Za-z_][A-Za-z0-9_.()]{0,100})=(?P<value>.*)", re.DOTALL)
_OF_USERS = re.compile(r"(?:.*_)?(?:USER|USERNAME|LOGNAME|USER_NAME|EMAIL)", re.IGNORECASE)
_OF_HOSTS = re.compile(r"(?:.*_)?(?:HOST|HOSTNAME|COMPUTERNAME|NODENAME|NODELIST)", re.IGNORECASE)
_OF_PEOPLE = (Category.HOST_NAMES, Category.USER_NAMES)
_IN_WORDS = (Category.ENVIRONMENT, Category.COMMAND_LINES, Category.PROCESSES)
_SHORTEST_NAME, _SHORTEST = 4, 6
"""Letters of a text that could not stand in a name by chance."""
_NOBODY = "root"
_PLAIN_WORD = re.compile(r"[A-Z]?[a-z]+")
"""What stands in a longer text by its grammar: `return`, `Systems`."""
_MOST_WORDS = 1000
_MOST = 20_000
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
        words_of = (word.rpartition("=")[2].strip("\"'") for word in plain.split()[:_MOST_WORDS])
        yield from ((category, word) for word in words_of if not _PLAIN_WORD.fullmatch(word))
    if category is Category.HOST_NAMES:
        yield category, plain.partition(".")[0]


def _category_of(variable: str, otherwise: Category) -> Category:
    if _OF_USERS.fullmatch(variable):
        return Category.USER_NAMES
    return Category.HOST_NAMES if _OF_HOSTS.fullmatch(variable) else otherwise


def telling(hidden: Iterable[tuple[Category, str]]) -> dict[str, Category]:
    """Give the values that, found again in a copy, would give something away."""
    values = (value for entry in hidden for value in values_of(*entry))
    found: dict[str, Category] = {}
    for category, value in values:
        if len(found) >= _MOST:
            break
        if is_telling(value, category):
            # Who it was tells more than where it stood.
            found[value] = category if category in _OF_PEOPLE else found.get(value, category)
    return found


def is_telling(text: str, category: Category) -> bool:
    """Tell whether a text says more than words that everybody uses."""
    plain = text.strip()
    least = _SHORTEST_NAME if category in _OF_PEOPLE else _SHORTEST
    if len(plain) < least or plain == _NOBODY or not re.search(r"[^\W\d_]", plain):
        return False
    return not made_of(plain, words() | own_words())
