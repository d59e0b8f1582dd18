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
import traceback
from dataclasses import replace
from importlib import metadata
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, TypeVar

from gpusight.errors import GpusightError, RuleError
from gpusight.findings.timeline.rule import Absent, Clean, Found, Rule
from gpusight.findings.timeline.rules import RULES

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Iterable, Iterator

    from gpusight.analyses.replay.changes import Change
    from gpusight.analyses.replay.program import Program
    from gpusight.findings.timeline.rule import Verdict
    from gpusight.findings.timeline.timeline import Timeline

GROUP = "gpusight.rules"
"""The entry point under which packages register rules."""
_ID = re.compile(r"[a-z][a-z0-9]*(?:-[a-z0-9]+)*")
_TEXTS = ("detects", "why", "fix", "misleads", "estimate")
_HINT = "docs/writing-rules.md has an example"
_Made = TypeVar("_Made")


class UserRule(Rule):
    """A user's rule, with its mistakes told as errors that name it."""

    def __init__(self, rule: Rule, source: str) -> None:
        self._rule = rule
        self._source = source
        """File or package that it comes from."""
        for name in ("id", *_TEXTS, "code", "afterwards", "limits", "least_share"):
            setattr(self, name, getattr(rule, name))

    def check(self, timeline: Timeline) -> Verdict:
        """Ask the rule; what it raises, and an answer that is none, is an error."""
        verdict: object = self._asked(lambda: self._rule.check(timeline))
        if not isinstance(verdict, (Found, Clean, Absent)):
            what = f"check gave {type(verdict).__name__}, not Found, Clean or Absent"
            raise RuleError(f"rule {self.id!r} of {self._source}", why=what, hint=_HINT)
        if isinstance(verdict, Found):
            return replace(verdict, change=tuple(map(self._guarded, verdict.change)))
        return verdict

    def _guarded(self, change: Change) -> Change:
        def guarded(program: Program) -> Program:
            return self._asked(lambda: change(program))

        return guarded

    def _asked(self, ask: Callable[[], _Made]) -> _Made:
        try:
            return ask()
        except GpusightError:
            raise
        except Exception as error:
            raise _failed(f"rule {self.id!r}", self._source, error) from error


def user_rules(sources: Iterable[str | os.PathLike[str] | Rule | type[Rule]]) -> tuple[Rule, ...]:
    """Give the rules of these files, or these rules themselves, and those of installed packages."""
    found = [rule for source in sources for rule in _from(source)]
    found += installed_rules()
    taken = {rule.id: "gpusight" for rule in RULES.values()}
    for rule in found:
        if rule.id in taken:
            why = f"{taken[rule.id]} has one of that name"
            raise RuleError(f"rule {rule.id!r} of {rule._source} cannot be added", why=why)
        taken[rule.id] = rule._source
    return tuple(found)


def _from(source: str | os.PathLike[str] | Rule | type[Rule]) -> Iterator[UserRule]:
    if isinstance(source, (Rule, type)):
        yield _made(source, f"module {source.__module__}")
    else:
        yield from rules_of_file(Path(source))


def rules_of_file(path: Path) -> Iterator[UserRule]:
    """Run a file and give the rules that it defines."""
    module = _run(path)
    own = [c for c in vars(module).values() if _is_rule(c) and c.__module__ == module.__name__]
    if not own:
        why = "it defines no class that derives from gpusight.Rule and has an id"
        raise RuleError(f"no rule in {path}", why=why, hint=_HINT)
    return (_made(one, str(path)) for one in own)


def installed_rules() -> Iterator[UserRule]:
    """Give the rules that installed packages registered."""
    for point in metadata.entry_points(group=GROUP):
        package = f"package {point.dist.name}" if point.dist else f"entry point {point.name}"
        try:
            loaded = point.load()
        except Exception as error:
            raise _failed(f"rule {point.name!r}", package, error) from error
        if not _is_rule(loaded):
            why = f"{point.value} is no class that derives from gpusight.Rule and has an id"
            raise RuleError(f"no rule in {package}", why=why, hint=_HINT)
        yield _made(loaded, package)


def _is_rule(thing: object) -> bool:
    return inspect.isclass(thing) and issubclass(thing, Rule) and hasattr(thing, "id")


def _made(rule: Rule | type[Rule], source: str) -> UserRule:
    """Check that a rule says all that is shown of it, and make it."""
    made = rule if isinstance(rule, type) else type(rule)
    name = f"rule {made.__name__} of {source}"
    missing = [text for text in ("id", *_TEXTS) if not isinstance(getattr(rule, text, None), str)]
    if missing:
        raise RuleError(f"{name} is incomplete", why=f"no {', '.join(missing)}", hint=_HINT)
    if not _ID.fullmatch(rule.id):
        why = f"the id {rule.id!r} is not lower case words with hyphens"
        raise RuleError(f"{name} cannot be used", why=why, hint=_HINT)
    try:
        return UserRule(rule() if isinstance(rule, type) else rule, source)
    except Exception as error:
        raise _failed(name, source, error) from error


def _run(path: Path) -> ModuleType:
    """Run a file as a module of its own; nothing is written beside it."""
    name = f"gpusight_rules_{path.stem}"
    module = ModuleType(name)
    module.__file__ = str(path)
    try:
        code = compile(path.read_bytes(), str(path), "exec")
    except OSError as error:
        why = error.strerror or str(error)
        raise RuleError(f"cannot read rules from {path}", why=why) from error
    except (SyntaxError, ValueError) as error:
        raise _failed("rules", str(path), error) from error
    sys.modules[name] = module  # dataclasses look their module up
    try:
        exec(code, vars(module))  # noqa: S102 - the user named this file to be run
    except (Exception, SystemExit) as error:
        raise _failed("rules", str(path), error) from error
    return module


def _failed(what: str, source: str, error: BaseException) -> RuleError:
    """Give the error for a rule that failed: what it raised, and on which line of which file."""
    said = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    if isinstance(error, SyntaxError):
        place = f"{error.filename}:{error.lineno}" if error.lineno else source
        said = f"{type(error).__name__}: {error.msg}"
    else:
        place = _last_place(error, source) or source
    return RuleError(f"{what} failed at {place}", why=" ".join(said.split()))


def _last_place(error: BaseException, source: str) -> str:
    """Name the last line that ran in the rule's own file; else the last one at all."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [f for f in frames if f.filename == source]
    last = (own or list(frames[1:]))[-1:]
    return "".join(f"{frame.filename}:{frame.lineno}" for frame in last)
