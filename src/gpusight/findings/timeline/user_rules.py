"""Rules that users write: from files that they name, and from packages that they installed.

A file is Python: loading it runs it, with all that the user may do. So only files named on the
command line (`--rules FILE`) or given to `gs.diagnose(extra_rules=…)` are loaded, and packages that
registered themselves under the entry point group `gpusight.rules`. Nothing is searched for.

What is wrong with such a rule is an error with its file and line. It is not left out in silence:
who asked for a rule must not take its absence for a clean bill.
"""

from __future__ import annotations

import inspect
import re
import sys
import textwrap
import traceback
from contextlib import contextmanager
from dataclasses import replace
from importlib import metadata
from pathlib import Path
from types import FunctionType, ModuleType
from typing import TYPE_CHECKING

from gpusight.errors import GpusightError, RuleError
from gpusight.findings.timeline.checked import (
    UnfitError,
    checked_program,
    checked_rule,
    checked_verdict,
)
from gpusight.findings.timeline.rule import Found, Rule
from gpusight.findings.timeline.rules import RULES

if TYPE_CHECKING:
    import os
    from collections.abc import Iterable, Iterator
    from contextlib import AbstractContextManager

    from gpusight.analyses.replay.changes import Change
    from gpusight.analyses.replay.program import Program
    from gpusight.findings.timeline.rule import Verdict
    from gpusight.findings.timeline.timeline import Timeline

GROUP = "gpusight.rules"
"""The entry point under which packages register rules."""
_ID = re.compile(r"[a-z][a-z0-9]*(?:-[a-z0-9]+)*")
_HINT = "docs/writing-rules.md has an example"
_LONGEST = 300
"""Characters that are shown of what a rule raised."""


class UserRule(Rule):
    """A user's rule, with its mistakes told as errors that name it."""

    def __init__(self, rule: Rule, source: str) -> None:
        self._rule = rule
        self.source = source
        """File or package that it comes from."""
        self.id = rule.id  # type: ignore[misc]
        for name, value in checked_rule(rule).items():
            setattr(self, name, value)
        self._place = _place_of(rule, source)

    def check(self, timeline: Timeline) -> Verdict:
        """Ask the rule; what it raises, and an answer that cannot be used, is an error."""
        with self._told():
            verdict = checked_verdict(self._rule.check(timeline))
        if not isinstance(verdict, Found) or not verdict.change:
            return verdict
        change = tuple(map(self._guarded, verdict.change))
        with self._told():
            # What cannot be replayed alone fails here, where it is known whose it is.
            timeline.replay.run(*change)
        return replace(verdict, change=change)

    def _guarded(self, change: Change) -> Change:
        def guarded(program: Program) -> Program:
            with self._told():
                return checked_program(program, change(program))

        return guarded

    def _told(self) -> AbstractContextManager[None]:
        return _told(f"rule {self.id!r}", self.source, self._place)


@contextmanager
def _told(what: str, source: str, place: str = "") -> Iterator[None]:
    """Tell what a user's code raises as an error of its rule; an interrupt stays one.

    What would end the program is an error too: its exit code could be taken for that of a gate.
    """
    try:
        yield
    except (GpusightError, KeyboardInterrupt):
        raise
    except UnfitError as error:
        why = " ".join(str(error).split())
        raise RuleError(f"{what} of {place or source} cannot be used", why=why, hint=_HINT) from (
            error
        )
    except BaseException as error:
        raise _failed(what, source, error, place) from error


def user_rules(sources: Iterable[str | os.PathLike[str] | Rule | type[Rule]]) -> tuple[Rule, ...]:
    """Give the rules of these files, or these rules themselves, and those of installed packages."""
    found = [rule for source in sources for rule in _from(source)]
    found += installed_rules()
    taken = {rule.id: "gpusight" for rule in RULES.values()}
    for rule in found:
        if rule.id in taken:
            why = f"{taken[rule.id]} has one of that name"
            raise RuleError(f"rule {rule.id!r} of {rule.source} cannot be added", why=why)
        taken[rule.id] = rule.source
    return tuple(found)


def _from(source: str | os.PathLike[str] | Rule | type[Rule]) -> Iterator[UserRule]:
    if isinstance(source, (Rule, type)):
        yield _made(source, f"module {source.__module__}")
    else:
        yield from rules_of_file(Path(source))


def rules_of_file(path: Path) -> Iterator[UserRule]:
    """Run a file and give the rules that it defines."""
    module = _run(path)
    with _told("rules", str(path)):
        defined = vars(module).values()
        own = [c for c in defined if _is_rule(c) and c.__module__ == module.__name__]
    if not own:
        why = "it defines no class that derives from gpusight.Rule and has an id"
        raise RuleError(f"no rule in {path}", why=why, hint=_HINT)
    return (_made(one, str(path)) for one in own)


def installed_rules() -> Iterator[UserRule]:
    """Give the rules that installed packages registered."""
    for point in metadata.entry_points(group=GROUP):
        package = f"package {point.dist.name}" if point.dist else f"entry point {point.name}"
        with _told(f"rule {point.name!r}", package):
            loaded = point.load()
            usable = _is_rule(loaded)
        if not usable:
            why = f"{point.value} is no class that derives from gpusight.Rule and has an id"
            raise RuleError(f"no rule in {package}", why=why, hint=_HINT)
        yield _made(loaded, package)


def _is_rule(thing: object) -> bool:
    return inspect.isclass(thing) and issubclass(thing, Rule) and hasattr(thing, "id")


def _made(rule: Rule | type[Rule], source: str) -> UserRule:
    """Make a rule, and check that it says all that is shown of it."""
    kind = rule if isinstance(rule, type) else type(rule)
    with _told(f"rule {kind.__name__}", source):
        made = rule() if isinstance(rule, type) else rule
        if not isinstance(made, Rule):
            raise UnfitError("it does not derive from gpusight.Rule")
        name = getattr(made, "id", None)
        if not isinstance(name, str) or not _ID.fullmatch(name):
            raise UnfitError(f"the id {name!r} is not lower case words with hyphens")
        return UserRule(made, source)


def _run(path: Path) -> ModuleType:
    """Run a file as a module of its own; nothing is written beside it."""
    name = f"gpusight_rules_{path.stem}"
    module = ModuleType(name)
    module.__file__ = str(path)
    try:
        text = path.read_bytes()
    except OSError as error:
        why = error.strerror or str(error)
        raise RuleError(f"cannot read rules from {path}", why=why) from error
    with _told("rules", str(path)):
        code = compile(text, str(path), "exec")
        sys.modules[name] = module  # dataclasses look their module up
        exec(code, vars(module))  # noqa: S102 - the user named this file to be run
    return module


def _place_of(rule: Rule, source: str) -> str:
    """Name the line where a rule's check begins; its source where that is not known."""
    check = type(rule).check
    if not isinstance(check, FunctionType):
        return source
    return f"{check.__code__.co_filename}:{check.__code__.co_firstlineno}"


def _failed(what: str, source: str, error: BaseException, place: str = "") -> RuleError:
    """Give the error for a rule that failed: what it raised, and on which line of which file."""
    if isinstance(error, SyntaxError) and error.filename:
        place = f"{error.filename}:{error.lineno}" if error.lineno else source
    else:
        place = _last_place(error, place.rpartition(":")[0] or source) or place or source
    return RuleError(f"{what} failed at {place}", why=_said(error))


def _said(error: BaseException) -> str:
    """Give what an exception says, on one line."""
    try:
        text = error.msg if isinstance(error, SyntaxError) else str(error)
    except Exception:  # noqa: BLE001 - its text is the user's code too
        text = ""
    said = f"{type(error).__name__}: {text}" if text else type(error).__name__
    return textwrap.shorten(said, _LONGEST, placeholder=" …")


def _last_place(error: BaseException, file: str) -> str:
    """Name the last line that ran in the rule's own file; empty where none did."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [f"{frame.filename}:{frame.lineno}" for frame in frames if frame.filename == file]
    return own[-1] if own else ""
