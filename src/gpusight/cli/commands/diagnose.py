"""`gpusight diagnose`: what holds a program or its kernels back, and what a fix would give back."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpusight.cli import options

if TYPE_CHECKING:
    import argparse

    from gpusight.render.result_view import DiagnosisView
    from gpusight.rules.diagnosis import AnyDiagnosis

SUMMARY = "what to fix, in order, with the time each fix saves"
DESCRIPTION = (
    "Of a timeline (nsys, torch.profiler, JAX): what holds the program back, ranked by the time "
    "that fixes give back, each with its evidence, what to change and what to check. Times come "
    "from a replay of the captured steps: alone, and after the fixes above. "
    "docs/timeline-rules.md explains the rules. Of an Nsight Compute report: what holds each "
    "kernel up, as docs/kernel-rules.md explains. Of a timeline and a report of the same program: "
    "both, the kernels weighed by their time in the timeline. Your own rules: "
    "docs/writing-rules.md."
)
EXAMPLES: tuple[str, ...] = (
    "gpusight diagnose run.nsys-rep",
    "gpusight diagnose trace.json.gz --steps 3-7 --details 0",
    "gpusight diagnose run.nsys-rep --fail-over 5%",
    "gpusight diagnose run.nsys-rep --rules my_rule.py",
    "gpusight diagnose run.nsys-rep report.ncu-rep -o diagnosis.html",
    "gpusight diagnose report.ncu-rep --kernel '*gemm*' --lines",
    "gpusight diagnose --list-rules",
)
FORMATS = (*options.TABLE_FORMATS, "html")
DETAILS = 3
EXIT_GATE = 1


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    options.add_capture(parser, nargs="*")
    options.add_selection(parser)
    options.add_focus(parser)
    group = parser.add_argument_group("which kernels of a report")
    options.add_kernel(group)
    options.add_launch(group)
    group.add_argument(
        "--lines",
        action="store_true",
        help="name the source lines of each finding; needs SourceCounters in the report and a "
        "program compiled with -lineinfo",
    )
    _add_rules(parser)
    options.add_output(parser, formats=FORMATS)


def _add_rules(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("which rules")
    group.add_argument(
        "--rule",
        type=options.names,
        action="extend",
        default=[],
        metavar="RULE[,RULE]",
        help="ask only these rules, such as launch-bound",
    )
    group.add_argument(
        "--rules",
        action="append",
        default=[],
        metavar="FILE.py",
        help="ask the rule in this Python file too, which is run for that; may be given repeatedly",
    )
    group.add_argument("--list-rules", action="store_true", help="list the rules, and do no more")
    group.add_argument(
        "--details",
        type=options.number,
        metavar="N",
        help=f"findings or kernels that are explained; 0 for all (default: {DETAILS}, in HTML all)",
    )
    group.add_argument(
        "--fail-over",
        type=options.percent,
        metavar="P%",
        help="exit with code 1 when a finding gives back more than this part of the time: 5%%, or "
        "when the capture is incomplete",
    )


def run(args: argparse.Namespace) -> int:
    """Do it; gives the exit code."""
    from gpusight.cli.output import chosen_format, present

    _keep_rules(args)
    if args.list_rules:
        return _list_rules(args)
    result = _diagnosis(args)
    details = args.details
    if details is None:
        details = 0 if chosen_format(args) == "html" else DETAILS
    present(result, args, details=details)
    return _gate(result.answer, args)


def _keep_rules(args: argparse.Namespace) -> None:
    """Refuse to write over a rule that is asked."""
    from pathlib import Path

    from gpusight.errors import UsageError
    from gpusight.sniff import same_file

    if not args.output or args.output == "-":
        return
    target = Path(args.output)
    for rule in map(Path, args.rules):
        if same_file(target, rule):
            raise UsageError(f"{target} is the file of a rule", hint="choose another name for -o")


def _diagnosis(args: argparse.Namespace) -> DiagnosisView:
    from pathlib import Path

    from gpusight import api
    from gpusight.cli.capture_input import keep_warnings, open_capture, progress
    from gpusight.errors import UsageError
    from gpusight.sniff import refuse_capture

    if not args.file:
        raise UsageError("no capture was given", hint="gpusight diagnose FILE, or --list-rules")
    files, args.file = args.file, args.file[0]
    if args.output and args.output != "-":
        for file in files:
            refuse_capture(Path(args.output), file)
    with progress(f"reading {Path(files[0]).name}", quiet=args.quiet):
        traces = [open_capture(file, args) for file in files]
        result = api.diagnose(
            traces,
            rules=args.rule,
            extra_rules=args.rules,
            kernel=args.kernel,
            launches=args.launch,
            lines=args.lines,
            **options.selection(args),
            **options.focus(args),
        )
        keep_warnings(args, *traces)
    return result


def _list_rules(args: argparse.Namespace) -> int:
    from gpusight.cli.output import chosen_format, emit, look_of, present
    from gpusight.render.explanation import rule_list, rule_text
    from gpusight.render.result_view import View
    from gpusight.rules.user_rules import user_rules

    args.file = None
    rules = rule_list(user_rules(args.rules))
    if chosen_format(args) != "table":
        return present(View(rules), args)
    emit([rule_text(rules, look_of(args).width)], args)
    return 0


def _gate(diagnosis: AnyDiagnosis, args: argparse.Namespace) -> int:
    """Say which findings are above what is allowed; gives the exit code."""
    if args.fail_over is None:
        return 0
    from gpusight.cli.output import write_error
    from gpusight.rules.diagnosis import shares, unknowns
    from gpusight.units import format_share

    over = [(what, share) for what, share in shares(diagnosis) if share > args.fail_over]
    for what, share in over:
        text = f"{what} gives back {format_share(share)}, over {format_share(args.fail_over)}"
        write_error(f"gpusight: diagnose: {text}")
    unknown = unknowns(diagnosis, args.rule)
    for why in unknown:
        write_error(f"gpusight: diagnose: inconclusive: {why}")
    return EXIT_GATE if over or unknown else 0
