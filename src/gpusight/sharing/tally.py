"""Counts what a walk through a capture finds: what it is, where it lies, what becomes of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpusight.sharing.hidden import values_of
from gpusight.sharing.report import Category, Fate, Found, Leak
from gpusight.sharing.suspects import looks_of

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable
    from typing import TypeAlias

    _Counts: TypeAlias = dict[tuple[Category, str, Fate], set[int]]

_MOST = 1 << 20
"""Values told apart in one place: from there on a count is the least that there are."""
_MOST_HIDDEN = 10_000
_TELLING = frozenset(
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


class Tally:
    """Values that differ, counted without keeping them."""

    def __init__(self) -> None:
        self._seen: _Counts = {}
        self._suspects: _Counts = {}
        self._hidden: list[tuple[Category, str]] = []

    def add(self, category: Category, where: str, fate: Fate, value: Hashable) -> None:
        """Count a value unless the same was counted there before."""
        self.add_all(category, where, fate, (value,))

    def add_all(
        self, category: Category, where: str, fate: Fate, values: Iterable[Hashable]
    ) -> None:
        """Count some values."""
        seen = self._seen.setdefault((category, where, fate), set())
        if len(seen) < _MOST:
            seen.update(map(hash, values))

    def hide(self, category: Category, text: str) -> None:
        """Note what must not be found in the copy: a text, or the users whom it names."""
        if len(self._hidden) > _MOST_HIDDEN or not " ".join(text.split()).isprintable():
            return
        if category in _TELLING:
            self._hidden.append((category, text))
        else:
            users = {
                value for value in values_of(category, text) if value[0] is Category.USER_NAMES
            }
            self._hidden += sorted(users, key=lambda user: user[1])

    def keep(self, name: str) -> None:
        """Count a name that stays as it is, where it looks as if it told more than it should."""
        for category, like in looks_of(name):
            key = (category, _KEPT_NAMES + like, Fate.KEPT)
            self._suspects.setdefault(key, set()).add(hash(name))

    def found(self, notes: Iterable[str] = ()) -> Found:
        """Give the counts, in the order of the categories."""
        return Found(_leaks(self._seen), _leaks(self._suspects), tuple(self._hidden), tuple(notes))


def _leaks(counts: _Counts) -> tuple[Leak, ...]:
    order = list(Category)
    found = [Leak(c, where, len(seen), fate) for (c, where, fate), seen in counts.items()]
    return tuple(
        sorted(
            (leak for leak in found if leak.count),
            key=lambda leak: (order.index(leak.category), leak.where, leak.fate.value),
        )
    )
