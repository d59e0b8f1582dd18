"""`gpusight diagnose`: what holds a program or its kernels back, and what a fix would give back."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpusight.cli import options

if TYPE_CHECKING:
    import argparse

    from gpusight.results import NotApplicable
    from gpusight.rules.diagnosis import DiagnoseOptions
    from gpusight.rules.diagnosis_results import AnyDiagnosis

SUMMARY = "what holds the program or its kernels back, and what a fix would give back"
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
    from gpusight.cli.output import emit, is_colored
    from gpusight.results import NotApplicable

    _keep_rules(args)
    if args.list_rules:
        return _list_rules(args)
    found = _found(args)
    form = _format(args)
    if isinstance(found, NotApplicable):
        return _refused(found, form, args)
    if form == "table" and not args.output and is_colored(args):
        _draw(found, args)
    else:
        emit([_text(found, form, args)], args)
    return _gate(found, args)


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


def _found(args: argparse.Namespace) -> AnyDiagnosis | NotApplicable:
    from pathlib import Path

    from gpusight.cli.capture_input import open_capture, progress, warnings_of
    from gpusight.errors import UsageError
    from gpusight.rules.diagnosis import diagnose_captures
    from gpusight.sniff import refuse_capture

    if not args.file:
        raise UsageError("no capture was given", hint="gpusight diagnose FILE, or --list-rules")
    question = _question(args)
    files, args.file = args.file, args.file[0]
    if args.output and args.output != "-":
        for file in files:
            refuse_capture(Path(args.output), file)
    with progress(f"reading {Path(files[0]).name}", quiet=args.quiet):
        traces = [open_capture(file, args) for file in files]
        found = diagnose_captures(traces, question)
        warnings_of(args, *traces)
        return found


def _question(args: argparse.Namespace) -> DiagnoseOptions:
    from gpusight.rules.diagnosis import DiagnoseOptions as Question
    from gpusight.rules.user_rules import user_rules

    return Question(
        selection=options.selection(args),
        rules=args.rule,
        kernel=args.kernel,
        launches=args.launch,
        lines=args.lines,
        extra_rules=user_rules(args.rules),
        **options.focus(args),
    )


def _list_rules(args: argparse.Namespace) -> int:
    from gpusight.cli.output import chosen_format, emit, look_of, present
    from gpusight.render.rule_reference import rule_list, rule_text
    from gpusight.rules.user_rules import user_rules

    args.file = None
    rules = rule_list(user_rules(args.rules))
    if chosen_format(args) != "table":
        return present(rules, args)
    emit([rule_text(rules, look_of(args).width)], args)
    return 0


def _format(args: argparse.Namespace) -> str:
    """Give the format asked for, or the one that the output file's name implies."""
    from pathlib import Path

    from gpusight.cli.output import chosen_format

    if not args.format and args.output and Path(args.output).suffix.lower() in {".html", ".htm"}:
        return "html"
    return chosen_format(args)


def _refused(absent: NotApplicable, form: str, args: argparse.Namespace) -> int:
    from gpusight.cli.output import present
    from gpusight.cli.picture_output import to_screen

    if form != "json":
        to_screen(args)
    return present(absent, args)


def _draw(found: AnyDiagnosis, args: argparse.Namespace) -> None:
    import sys

    from gpusight.cli.output import look_of
    from gpusight.render.diagnosis_view import print_diagnosis as print_text

    print_text(found, look_of(args, bars=True), sys.stdout, details=_details(args))


def _details(args: argparse.Namespace, default: int = DETAILS) -> int:
    return default if args.details is None else int(args.details)


def _text(found: AnyDiagnosis, form: str, args: argparse.Namespace) -> str:
    from gpusight.render import diagnosis_view

    if form == "json":
        from gpusight.render.csv_json import encode_json as encode

        return encode(diagnosis_view.diagnosis_document(found, limit=args.top))
    if form == "csv":
        from gpusight.render.csv_json import to_csv

        return to_csv(diagnosis_view.diagnosis_table(found), limit=args.top)
    if form == "markdown":
        return diagnosis_view.diagnosis_to_markdown(found, limit=_top(args), details=_details(args))
    if form == "html":
        return diagnosis_view.diagnosis_to_page(
            found, limit=args.top or 0, details=_details(args, 0)
        )
    from gpusight.cli.output import look_of

    return diagnosis_view.diagnosis_to_text(found, look_of(args), details=_details(args))


def _top(args: argparse.Namespace) -> int:
    return options.DEFAULT_TOP if args.top is None else int(args.top)


def _gate(found: AnyDiagnosis, args: argparse.Namespace) -> int:
    """Say which findings are above what is allowed; gives the exit code."""
    if args.fail_over is None:
        return 0
    from gpusight.cli.output import write_error
    from gpusight.rules.diagnosis_results import shares, unknowns
    from gpusight.units import format_share

    over = [(what, share) for what, share in shares(found) if share > args.fail_over]
    for what, share in over:
        told = f"{what} gives back {format_share(share)}, over {format_share(args.fail_over)}"
        write_error(f"gpusight: diagnose: {told}")
    unknown = unknowns(found, args.rule)
    for why in unknown:
        write_error(f"gpusight: diagnose: inconclusive: {why}")
    return EXIT_GATE if over or unknown else 0
