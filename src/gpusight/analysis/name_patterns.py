"""Which names a pattern matches: a name, a glob, a regular expression or a part of a name."""

from __future__ import annotations

import fnmatch
import re
from typing import TYPE_CHECKING

from gpusight.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping


_WILDCARDS = frozenset("*?[")
MAX_NAME_CHARS = 2_000
"""A pattern looks at no more: a hostile name of a megabyte could keep it busy for hours."""


def is_regex(pattern: str) -> bool:
    """Return whether a pattern is written as a regular expression: `/…/` or `regex:…`."""
    enclosed = len(pattern) > 2 and pattern.startswith("/") and pattern.endswith("/")
    return pattern.startswith("regex:") or enclosed


def matcher(pattern: str) -> Callable[[str], object]:
    """Compile the user's pattern; regular expressions match anywhere in the name."""
    if not is_regex(pattern):
        return re.compile(fnmatch.translate(pattern)).match
    prefix = "regex:"
    regex = pattern.removeprefix(prefix) if pattern.startswith(prefix) else pattern[1:-1]
    try:
        return re.compile(regex).search
    except re.error as error:
        raise UsageError(f"{regex!r} is not a regular expression", why=str(error)) from error


def matching(pattern: str, names: Iterable[str]) -> list[str]:
    """Find the names that a pattern matches.

    That is the name itself, else what a glob or regular expression matches; plain text matches the
    names that start with it, else those that contain it.
    """
    known = list(names)
    if pattern in known:
        return [pattern]
    if _WILDCARDS.intersection(pattern) or is_regex(pattern):
        matches = matcher(pattern)
        return [name for name in known if matches(name[:MAX_NAME_CHARS])]
    wanted = pattern.lower()
    prefixed = [name for name in known if name.lower().startswith(wanted)]
    return prefixed or [name for name in known if wanted in name[:MAX_NAME_CHARS].lower()]


def kernel_codes(
    names: Mapping[int, tuple[str, str]], pattern: str, what: str = "kernel"
) -> list[int]:
    """Find the kernels that a pattern matches; `names` are the full name and the readable label.

    That is those of exactly that name, else what a glob, a regular expression or a part of the name
    matches. Raises UsageError where none matches; `what` is what the message calls them.
    """
    exact = [code for code, texts in names.items() if pattern in texts]
    if exact:
        return exact
    matches: Callable[[str], object]
    if is_regex(pattern):
        matches = matcher(pattern)
    else:  # unlike a regular expression, case-insensitive
        glob = pattern if _WILDCARDS.intersection(pattern) else f"*{pattern}*"
        matches = re.compile(fnmatch.translate(glob), re.IGNORECASE).match
    codes = [c for c, texts in names.items() if any(matches(t[:MAX_NAME_CHARS]) for t in texts)]
    if not codes:
        labels = list(dict.fromkeys(label for _, label in names.values()))
        raise UsageError(
            f"no {what} matches {pattern!r}",
            why=f"the capture has {near_matches(pattern, labels)}"
            if labels
            else "no kernel is selected",
            hint="see: gpusight kernels FILE",
        )
    return codes


def near_matches(pattern: str, names: list[str]) -> str:
    """List names that look like the pattern, ignoring case and punctuation; else the first ones."""
    shown = similar_names(pattern, names) or names[:5]
    return ", ".join(repr(name) for name in shown)


def similar_names(pattern: str, names: list[str]) -> list[str]:
    """Return up to five names that look like the pattern; empty where none does."""
    import difflib

    plain = {_plain(name): name for name in reversed(names)}
    wanted = _plain(pattern)
    near = [plain[key] for key in plain if wanted and wanted in key]
    near += [plain[key] for key in difflib.get_close_matches(wanted, list(plain)[:5000], 3, 0.6)]
    return list(dict.fromkeys(near))[:5]


def _plain(name: str) -> str:
    return re.sub(r"[\W_]+", "", name).lower()
