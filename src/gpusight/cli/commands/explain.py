"""`gpusight explain`: one finding of a diagnosis, or one rule, in full."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import gpusight as gs
from gpusight.cli import options
from gpusight.cli.capture_input import analyze
from gpusight.cli.commands import diagnose
from gpusight.cli.output import emit, present, table_options
from gpusight.errors import UsageError
from gpusight.render.result_view import View

if TYPE_CHECKING:
    import argparse

    from gpusight.render.result_view import DiagnosisView, Result

SUMMARY = "one finding in full: evidence, locations, code, caveats"
_LEDGER = "ledger:"
DESCRIPTION = (
    "Show one finding of `gpusight diagnose` in full: what the fix saves alone and in the plan, "
    "how that is estimated, the evidence, the locations, the code to change, how to verify the "
    "fix, and the caveats. Select the finding by its number or its rule. An entry of the ledger "
    "(ledger:idle/framework) or an event by table and row (kernels:17) is explained too; for the "
    "captures of all ranks of a job, a rank (rank:2). Without a capture: what a rule detects."
)
EXAMPLES: tuple[str, ...] = (
    "gpusight explain run.nsys-rep 1",
    "gpusight explain run.nsys-rep launch-bound",
    "gpusight explain report.ncu-rep 2",
    "gpusight explain run.nsys-rep ledger:idle/framework",
    "gpusight explain traces/ rank:2",
    "gpusight explain launch-bound",
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument(
        "words",
        metavar="FILE|N|RULE|ID",
        nargs="+",
        help="the captures, as for diagnose, then the number or rule of a finding (default: 1), "
        "or the id of a ledger entry or an event",
    )
    options.add_selection(parser)
    options.add_focus(parser)
    options.add_pace(parser)
    options.add_output(parser)


def run(args: argparse.Namespace) -> int:
    """Run the command; returns the exit code."""
    files, selector = _split(args.words)
    if not files:
        return _explain_rule(selector, args)

    from gpusight.open_job import is_job

    if selector.startswith("rank:") or is_job(files):
        args.file = files[0]
        return present(gs.explain(files, selector, **options.focus(args)), args)
    if ":" in selector and "::" not in selector:  # else a C++ name
        args.file = files[0]
        explained = analyze(gs.explain, args, verb="reading", which=selector, **options.part(args))
        return present(explained, args)
    arguments = options.arguments_of(diagnose, files, args)
    result = diagnose.run_diagnosis(arguments, with_lines=True)
    args.file = files[0]
    return present(_chosen(result, selector), args)


def _split(words: list[str]) -> tuple[list[str], str]:
    """Return the captures, and the number or rule of a finding, in either order."""
    files = [word for word in words if _is_capture(word)]
    selectors = [word for word in words if word not in files]
    if len(words) > 1 and not files:
        files = [selectors.pop(0)]  # which is not there, as the error reports
    if len(selectors) > 1:
        what = f"explain takes one finding, not {len(selectors)}"
        raise UsageError(what, hint=f"try: gpusight explain {files[0]} {selectors[0]}")
    return files, selectors[0] if selectors else "1"


def _is_capture(word: str) -> bool:
    if word.startswith(_LEDGER):
        return False
    return Path(word).exists() or "/" in word or Path(word).suffix != ""


def _chosen(result: DiagnosisView, selector: str) -> Result:
    is_number = selector.removeprefix("-").isdigit()
    return result.explain(int(selector) if is_number else selector)


def _explain_rule(rule: str, args: argparse.Namespace) -> int:
    from gpusight.render.explanation import rule_description, rule_list
    from gpusight.rules.registry import rules_named

    args.file = None
    known = rules_named(rule)
    if args.format not in {None, "table"}:
        return present(View(rule_list(only=known[0].id)), args)
    width = table_options(args).width
    emit(["\n".join(rule_description(each, width) for each in known)], args)
    return 0
