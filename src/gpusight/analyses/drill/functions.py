"""Kernel names as Nsight Compute matches them.

Its filter looks at the function alone: no namespaces, template arguments or parameters. Every
launch of such a function counts, whichever template instance it is.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from gpusight.analyses.statistics import names_of
from gpusight.capture.asked import literal
from gpusight.model.demangle import demangle
from gpusight.model.kernel_parts import clean, split

if TYPE_CHECKING:
    from collections.abc import Iterable

    from gpusight.model.trace import Trace

FUNCTION, MANGLED = "function", "mangled"
"""What names are compared by; the latter tells template instances apart."""
CUT = "..."
"""How names end that a printed table cut short."""


def function_of(name: str) -> str:
    """Give the function of a kernel's name, which may be mangled."""
    head, _, _ = split(clean(demangle(name)))
    return head.rsplit("::", 1)[-1]


def functions(trace: Trace) -> pl.Series:
    """Give the function of each kernel of a timeline, as categories of their own.

    The capture's own word counts where it has one: a demangler of another make may differ.
    """
    kernels = trace.table("kernels", ["name", "base_name"])
    names, bases = (names_of(kernels[column]) for column in ("name", "base_name"))
    pairs = kernels.select(pl.all().to_physical())
    distinct = pairs.unique(maintain_order=True)
    texts = [
        function_of(names[name]) if base is None else bases[base]
        for name, base in distinct.iter_rows()
    ]
    told = distinct.with_columns(pl.Series("function", texts, pl.String))
    joined = pairs.join(
        told, on=["name", "base_name"], how="left", nulls_equal=True, maintain_order="left"
    )
    return joined["function"].cast(pl.Enum(sorted(set(texts))))


def pattern_of(texts: Iterable[str]) -> str:
    """Write a regular expression that matches these names and no others.

    A name that was cut short matches whatever begins like it.
    """
    return "|".join(sorted(set(map(_part, texts))))


def _part(text: str) -> str:
    # Of a name that is nothing but the mark, no beginning is known that could be looked for.
    begins = text.removesuffix(CUT)
    return f"^{literal(begins)}" if begins and begins != text else f"^{literal(text)}$"
