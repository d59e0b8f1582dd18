"""One spelling of a kernel's name, whichever tool wrote it.

Tools demangle differently: `(int)4`, `4`, `4u` or `int=4`; `<unnamed>::` or
`(anonymous namespace)::`; `[lambda(float) (instance 1)]` or `{lambda(float)#1}`; parameters as
`T2`, as their types, or not at all. What all of them agree on is left: the function, its template
arguments and the numbers in it.
"""

from __future__ import annotations

import re

from gpusight.model.demangle import demangle

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
