"""`gpusight diagnose`: what to fix, ranked by the time that each fix saves."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import gpusight as gs
from gpusight.cli import options
from gpusight.cli.capture_input import keep_warnings, open_capture, progress, typed_part
from gpusight.cli.output import (
    chosen_format,
    emit,
    keep_inputs,
    present,
    table_options,
    write_error,
)
from gpusight.errors import DOCS_URL, UsageError
from gpusight.render.result_view import View
from gpusight.sniff import same_file
from gpusight.units import format_share

if TYPE_CHECKING:
    import argparse

    from gpusight.render.result_view import DiagnosisView
    from gpusight.rules.diagnosis import AnyDiagnosis

SUMMARY = "what to fix, ranked by the time that each fix saves"
DESCRIPTION = (
    "Find the bottlenecks of a program, and list the fixes as a plan: the one that saves most "
    "first, then the one that saves most after it; what a fix needs comes before it. Savings are "
    "simulated on the captured steps. "
    "`gpusight explain FILE N` shows evidence, code and caveats of a finding. For an Nsight "
    "Compute report: the bottleneck of each kernel. For a timeline and a report of the same "
    "program: both. "
    f"`--list-rules` lists the rules; your own: {DOCS_URL}/writing-rules.md"
)
EXAMPLES: tuple[str, ...] = (
    "gpusight diagnose run.nsys-rep",
    "gpusight diagnose trace.json.gz --steps 3-7 --details",
    "gpusight diagnose run.nsys-rep --fail-over 5%",
    "gpusight diagnose run.nsys-rep --rules my_rule.py",
    "gpusight diagnose run.nsys-rep report.ncu-rep -o diagnosis.html",
    "gpusight diagnose report.ncu-rep --kernel '*gemm*' --lines",
    "gpusight diagnose run.nsys-rep --source-root . -o gpusight.sarif",
    "gpusight diagnose --list-rules",
)
EDITOR_FORMATS = ("sarif", "lsp")
FORMATS = (*options.TABLE_FORMATS, "html", *EDITOR_FORMATS)
EXIT_GATE = 1


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    options.add_capture(parser, nargs="*")
    options.add_selection(parser)
    options.add_focus(parser)
    options.add_pace(parser)
    group = parser.add_argument_group("which kernels of a report")
    options.add_kernel(group)
    options.add_launch(group)
    group.add_argument(
        "--lines",
        action="store_true",
        help="show the details with the source lines of each finding; needs SourceCounters in the "
        "report and a program compiled with -lineinfo",
    )
    _add_rules(parser)
    options.add_output(parser, formats=FORMATS)
    parser.add_argument(
        "--details",
        action="store_true",
        help="add evidence, locations, code, caveats and rules that passed (always in HTML)",
    )
    parser.add_argument(
        "--source-root",
        metavar="DIR",
        help="in sarif and lsp, paths of source files are those below this folder (default: the "
        "current one)",
    )


def _add_rules(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("which rules")
    group.add_argument(
        "--rule",
        type=options.names,
        action="extend",
        default=[],
        metavar="RULE[,RULE]",
        help="only these rules, such as launch-bound",
    )
    group.add_argument(
        "--rules",
        action="append",
        default=[],
        metavar="FILE.py",
        help="also the rule in this Python file, which is executed; repeatable",
    )
    group.add_argument("--list-rules", action="store_true", help="list the rules and exit")
    group.add_argument(
        "--fail-over",
        type=options.percent,
        metavar="P%",
        help="exit with code 1 when one fix saves more than this share of the time, such as 5%%, "
        "or when the capture is incomplete",
    )


def run(args: argparse.Namespace) -> int:
    """Run the command; returns the exit code."""
    _keep_rules(args)
    if args.list_rules:
        return _list_rules(args)
    form = chosen_format(args)
    _check_source_root(args, form)
    result = run_diagnosis(args)
    text_options: dict[str, Any] = {}
    if form in {"table", "markdown"}:
        text_options["details"] = args.details or args.lines  # the lines are among the details
    if form == "table":
        text_options["typed"] = typed_part(args)
    if form in EDITOR_FORMATS:
        text_options["source_root"] = args.source_root
    present(result, args, **text_options)
    if args.lines and not _has_lines(result.answer):
        write_error(
            "gpusight diagnose: --lines: no source lines are known; they need an Nsight Compute "
            "report with SourceCounters of a program compiled with -lineinfo"
        )
    return _gate(result.answer, args)


def _has_lines(diagnosis: AnyDiagnosis) -> bool:
    """Whether a finding of a profiled kernel has its source lines."""
    from gpusight.rules.diagnosis import JoinedDiagnosis, KernelReportDiagnosis

    report = diagnosis.report if isinstance(diagnosis, JoinedDiagnosis) else diagnosis
    if not isinstance(report, KernelReportDiagnosis):
        return False
    return any(finding.places for kernel in report.kernels for finding in kernel.findings)


def _keep_rules(args: argparse.Namespace) -> None:
    """Refuse to overwrite a file of `--rules`."""
    if not args.output or args.output == "-":
        return
    target = Path(args.output)
    for rule in map(Path, args.rules):
        if same_file(target, rule):
            raise UsageError(f"{target} is a file of --rules", hint="choose another name for -o")


def _check_source_root(args: argparse.Namespace, form: str) -> None:
    """Refuse a folder that is none, or that nothing would be looked up in."""
    if args.source_root is not None and form not in EDITOR_FORMATS:
        raise UsageError("--source-root needs --format sarif or lsp")
    if args.source_root is not None and not Path(args.source_root).is_dir():
        raise UsageError(f"{args.source_root} is not a folder", hint="name the root of the sources")


def run_diagnosis(args: argparse.Namespace, *, with_lines: bool = False) -> DiagnosisView:
    """Diagnose the captures of `args.file`; `with_lines` adds source lines where there are any."""
    if not args.file:
        raise UsageError("no capture given", hint="usage: gpusight diagnose FILE, or --list-rules")
    files, args.file = args.file, args.file[0]
    keep_inputs(args, files)
    with progress(f"reading {Path(files[0]).name}", quiet=args.quiet):
        traces = [open_capture(file, args) for file in files]
        shows_lines = with_lines or chosen_format(args) in EDITOR_FORMATS
        result = gs.diagnose(
            traces,
            rules=args.rule,
            extra_rules=args.rules,
            kernel=args.kernel,
            launches=args.launch,
            lines=args.lines or (shows_lines and any(t.has("profiles") for t in traces)),
            **options.part(args),
        )
        keep_warnings(args, *traces)
    return result


def _list_rules(args: argparse.Namespace) -> int:
    from gpusight.render.explanation import rule_list, rule_text
    from gpusight.rules.user_rules import user_rules

    args.file = None
    rules = rule_list(user_rules(args.rules))
    if chosen_format(args) != "table":
        return present(View(rules), args)
    emit([rule_text(rules, table_options(args).width)], args)
    return 0


def _gate(diagnosis: AnyDiagnosis, args: argparse.Namespace) -> int:
    """Print the findings above the limit; returns the exit code."""
    if args.fail_over is None:
        return 0
    from gpusight.rules.diagnosis import shares, unknowns

    over = [(what, share) for what, share in shares(diagnosis) if share > args.fail_over]
    for what, share in over:
        text = f"fixing {what} saves {format_share(share)}, limit {format_share(args.fail_over)}"
        write_error(f"gpusight diagnose: {text}")
    unknown = unknowns(diagnosis, args.rule)
    for why in unknown:
        write_error(f"gpusight diagnose: inconclusive: {why}")
    return EXIT_GATE if over or unknown else 0
