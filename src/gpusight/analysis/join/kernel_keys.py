"""Kernel identity across captures: one spelling of the name, and the same grid and block."""

from __future__ import annotations

import re
from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING

import polars as pl

from gpusight.analysis.aggregates import names_of
from gpusight.analysis.kernel_summary import SHAPE
from gpusight.naming.demangle import demangle

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


_LONGEST = 20_000
_DEEPEST = 40
"""Brackets inside brackets; what lies deeper is left as it is."""

_ENDINGS = re.compile(r" \[clone [^\]]{0,40}\]|\.kd$")
_INSTANCE = re.compile(r"\s?\(instance (\d+)\)")
_BRACED = re.compile(r"[\[{]lambda[^\[\]{}]*?#?(\d{0,9})[\]}]")
_PARENTHESES = re.compile(r"\([^()]*\)")
_UNNAMED = re.compile(r"(?:<?unnamed>|_GLOBAL__N_\w*)(?=::)")
_QUALIFIERS = re.compile(r"\b(?:const|volatile|struct|class|enum)\b")
_RETURNS = re.compile(r"\bvoid (?=[\w:])")
_TYPED = re.compile(r"(?<=[<,])[\w: ]*=(?=-?\d)")
"""`<int=32>`, as profilers wrote it until 2019."""
_LITERAL = re.compile(r"(?<![\w.])(-?\d+)(?:ull|ul|ll|u|l)\b", re.IGNORECASE)
_TRUTH = {"true": "1", "false": "0"}
_EMPTY_SCOPE = re.compile(r"(?<![\w>#])::|(?<=::)::")
_SCOPE = re.compile(r"\b[A-Za-z_]\w*::(?=(?!lambda#|operator_call)[A-Za-z_])")
_SPACE = re.compile(r"\s+(?!\w)|(?<!\w)\s+")


def normal_name(name: str) -> str:
    """Give the spelling that names of one kernel share; two kernels' names stay different."""
    text = _ENDINGS.sub("", demangle(name.strip())[:_LONGEST])
    text = _without_parameters(_INSTANCE.sub(r"#\1", text))
    text = _UNNAMED.sub("", text)
    text = _RETURNS.sub("", _QUALIFIERS.sub("", text))
    text = re.sub(r"\b(?:true|false)\b", lambda found: _TRUTH[found[0]], text)
    text = _SPACE.sub("", _LITERAL.sub(r"\1", _TYPED.sub("", text)))
    return _EMPTY_SCOPE.sub("", text) or name.strip()


def without_scopes(normal: str) -> str:
    """Drop the namespaces from a normal name, as printed pages of ncu do with some of them.

    What a lambda was written in is no namespace, and stays.
    """
    return _SCOPE.sub("", normal)


def base_name(normal: str) -> str:
    """Give the function of a normal name, without namespace and template arguments."""
    return normal.split("<", 1)[0].rsplit("::", 1)[-1]


def is_bare(normal: str) -> bool:
    """Tell whether a normal name may have lost its template arguments and its namespace."""
    return "<" not in normal and "::" not in normal


def _without_parameters(text: str) -> str:
    """Drop whatever stands in round brackets: parameters, casts, the unnamed namespace.

    A lambda keeps its number, and an operator its name.
    """
    text = text.replace("operator ()", "operator()").replace("operator()", "operator_call")
    for _ in range(_DEEPEST):
        text, changed = _PARENTHESES.subn("", text)
        if not changed:
            break
    return _BRACED.sub(r"lambda#\1", text)


NEEDS = ("name", "mangled_name", *SHAPE)
"""Columns of a frame of launches; `kernels` and `profiles` have them all."""


@dataclass(frozen=True, slots=True)
class KernelKeys:
    """Numbers for the launches of two captures: equal where the kernels are."""

    left: pl.Series
    """Of name, grid and block, for each launch."""
    right: pl.Series
    left_name: pl.Series
    """Of the name alone."""
    right_name: pl.Series
    by_function: int
    """Names that only agree without their template arguments, which the tools spell differently."""
    shapes: bool
    """Whether grids and blocks were compared: not so where a capture does not tell them."""


def launch_keys(left: pl.DataFrame, right: pl.DataFrame) -> KernelKeys:
    """Number the launches of two captures by kernel; frames have the columns `NEEDS`."""
    names, by_function = _common_names(left, right)
    shape = [c for c in SHAPE if _has_values(left, c) and _has_values(right, c)]
    both = pl.concat(
        side.select(name.alias("name"), *(pl.col(c).cast(pl.Int64) for c in shape))
        for side, name in zip((left, right), names, strict=True)
    )
    key = both.select(pl.struct("name", *shape).rank("dense").cast(pl.Int64)).to_series()
    return KernelKeys(
        key[: left.height],
        key[left.height :],
        *names,
        by_function=by_function,
        shapes=bool(shape),
    )


def _has_values(frame: pl.DataFrame, column: str) -> bool:
    return frame.get_column(column).null_count() < frame.height


def _common_names(
    left: pl.DataFrame, right: pl.DataFrame
) -> tuple[tuple[pl.Series, pl.Series], int]:
    """Number the kernels of both captures by name; each distinct name is looked at once."""
    sides = [_Names.of(frame) for frame in (left, right)]
    spelling = _shared_spellings(sides[0], sides[1])
    names = [side.spelled(spelling) for side in sides]
    names = _replaced(names, _shared_unscoped([set(side) for side in names]))
    by_function = _shared_functions([set(side) for side in names])
    names = _replaced(names, by_function)
    numbers: dict[str, int] = {}
    coded = []
    for side, chosen in zip(sides, names, strict=True):
        codes = [numbers.setdefault(name, len(numbers)) for name in chosen]
        coded.append(pl.Series("name", codes, pl.Int64).gather(side.row_name))
    return (coded[0], coded[1]), len(by_function)


def _replaced(sides: list[list[str]], by: dict[str, str]) -> list[list[str]]:
    return [[by.get(name, name) for name in names] for names in sides]


@dataclass(frozen=True, slots=True)
class _Names:
    """The distinct kernels of one capture: each by what its name and its mangled name read."""

    row_name: pl.Series
    """For each launch, which of the names it has."""
    written: Sequence[str]
    demangled: Sequence[str]

    @classmethod
    def of(cls, frame: pl.DataFrame) -> _Names:
        pairs = frame.select(pl.col("name", "mangled_name").to_physical())
        distinct = pairs.unique(maintain_order=True).with_row_index("row_name")
        rows = pairs.join(
            distinct,
            on=["name", "mangled_name"],
            how="left",
            nulls_equal=True,
            maintain_order="left",
        ).get_column("row_name")
        names, mangled = (names_of(frame[c]) for c in ("name", "mangled_name"))
        written = [normal_name(names[code]) for code in distinct["name"]]
        read = [None if c is None else normal_name(mangled[c]) for c in distinct["mangled_name"]]
        return cls(rows, written, [r or w for r, w in zip(read, written, strict=True)])

    def spelled(self, spelling: dict[str, str]) -> list[str]:
        """Give one spelling for each name: the one that the other capture knows."""
        pairs = zip(self.written, self.demangled, strict=True)
        return [spelling.get(w) or spelling.get(d) or w for w, d in pairs]


def _shared_spellings(left: _Names, right: _Names) -> dict[str, str]:
    """Choose one spelling for a kernel that has two: as demangled by its tool, and by us."""
    known = {*left.written, *left.demangled} & {*right.written, *right.demangled}
    spelling: dict[str, str] = {}
    for side in (left, right):
        for written, demangled in zip(side.written, side.demangled, strict=True):
            found = next((n for n in (written, demangled) if n in known), None)
            if found is not None:
                spelling.setdefault(written, spelling.get(found, found))
                spelling.setdefault(demangled, spelling[written])
    return spelling


def _shared_unscoped(sides: list[set[str]]) -> dict[str, str]:
    """Find names that only agree without their namespaces, and what they then are."""
    alone = [
        {name: without_scopes(name) for name in side - other}
        for side, other in (sides, reversed(sides))
    ]
    common = set(alone[0].values()) & set(alone[1].values())
    return {n: short for side in alone for n, short in side.items() if short in common}


def _shared_functions(sides: list[set[str]]) -> dict[str, str]:
    """Find names to compare by their function alone, and that function.

    So it is where one side writes no template arguments; and for all where no template argument
    at all is found on both sides: then they are spelled in ways that are not understood here.
    """
    groups = [_by_base(side) for side in sides]
    understood = any("<" in name for name in sides[0] & sides[1])
    chosen: dict[str, str] = {}
    for base in groups[0].keys() & groups[1].keys():
        left, right = groups[0][base], groups[1][base]
        if any(map(is_bare, left ^ right)) or not (understood or left & right):
            chosen |= dict.fromkeys(left | right, base)
    return chosen


def _by_base(names: Iterable[str]) -> dict[str, set[str]]:
    groups: defaultdict[str, set[str]] = defaultdict(set)
    for name in names:
        groups[base_name(name)].add(name)
    return dict(groups)
