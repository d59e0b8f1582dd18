"""`gpusight gate`: PASS (exit code 0), FAIL (1) or INCONCLUSIVE (3) for CI."""

from __future__ import annotations

import shlex
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import gpusight as gs
from gpusight.cli import options
from gpusight.cli.capture_input import read_digests, side_paces, typed_part
from gpusight.cli.output import chosen_format, error_json, present, write_error, write_file
from gpusight.errors import (
    DOCS_URL,
    GpusightError,
    NotApplicableError,
    UsageError,
    internal_error,
    reason_of,
)
from gpusight.sniff import refuse_capture, same_file

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

    from gpusight.comparison.gate_limits import GateConfig
    from gpusight.comparison.inputs import SideInputs
    from gpusight.render.result_view import GateView

SUMMARY = "fail CI when a capture is slower than its baseline"
DESCRIPTION = (
    "Checks captures against limits: growth over a baseline (`gpusight baseline save`, or "
    "captures), or ceilings. Exit code 0: PASS, every limit holds; 1: FAIL, a limit is exceeded by "
    "more than noise; 3: INCONCLUSIVE; 2: error. INCONCLUSIVE means: over the limit but within "
    "noise, data is missing, or a limit holds but the captures are not comparable (another GPU or "
    "number of kernels). It prints the reason and, for noise, about how many captures per side "
    "would settle it. Limits, baseline and options can be in gpusight.toml. "
    f"Metrics: {DOCS_URL}/gate.md. Workflows for GitHub and GitLab: {DOCS_URL}/ci.md"
)
EXAMPLES: tuple[str, ...] = (
    "gpusight gate --baseline old.json --max step_time=+3% r1.sqlite r2.sqlite",
    "gpusight gate --baseline old.sqlite --max idle/input=+1ms new.sqlite",
    "gpusight gate --max step_time=50ms --max findings=0 run.nsys-rep",
    "gpusight gate --junit gate.xml --markdown gate.md 'runs/*.nsys-rep'",
)
FORMATS = ("table", "json", "markdown")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument(
        "file",
        metavar="CAPTURE",
        nargs="*",
        help="a capture or several repeats (nsys, torch.profiler, JAX), a folder or a quoted glob "
        "of them, or a file of `gpusight baseline save`",
    )
    _add_limits(parser)
    options.add_selection(parser)
    options.add_focus(parser)
    options.add_pace(parser, sides="BASELINE,NEW")
    _add_output(parser)


def _add_limits(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("limits")
    group.add_argument(
        "--baseline",
        nargs="+",
        action="extend",
        default=[],
        metavar="FILE",
        help="baselines or captures to compare with; the list ends at the next option, at --, or "
        "where captures follow baselines",
    )
    group.add_argument(
        "--max",
        action="append",
        default=[],
        metavar="METRIC=LIMIT",
        help="growth over the baseline (+3%%, +1ms, +5MB, +10; -5%% requires an improvement) or a "
        "ceiling (50ms, 70GB, 500); repeatable (default: step_time=+5%%)",
    )
    group.add_argument(
        "--inconclusive",
        choices=("pass", "fail"),
        help="exit code of an inconclusive gate: 0 or 1 (default: 3); missing data never passes",
    )
    group.add_argument(
        "--allow-missing",
        action="store_true",
        help="skip limits on metrics that were not recorded, if others are known; lost data stays "
        "inconclusive",
    )
    group.add_argument(
        "--allow-changed",
        type=options.names,
        action="extend",
        default=[],
        metavar="KIND[,KIND]",
        help="accept differences between the sides: kernels, steps, gpu-model, gpus, processes, "
        "profiler, incomplete",
    )
    group.add_argument(
        "--confidence",
        type=options.percent,
        metavar="P%",
        help="confidence of the intervals (default: 95%%)",
    )
    group = parser.add_argument_group("settings and reports")
    group.add_argument(
        "--config",
        metavar="FILE",
        help="settings (default: gpusight.toml in this folder or above, up to the repository root)",
    )
    group.add_argument("--gate", metavar="NAME", help="the gate [gate.NAME] of the settings")
    group.add_argument("--junit", metavar="FILE", help="write JUnit XML to this file too")
    group.add_argument("--markdown", metavar="FILE", help="write Markdown to this file too")


def _add_output(parser: argparse.ArgumentParser) -> None:
    """Declare the output options; a check is never left out, so there is no --top."""
    group = parser.add_argument_group("output")
    group.add_argument(
        "--format",
        choices=FORMATS,
        help="output format (default: table, or from the extension of -o)",
    )
    group.add_argument(
        "--details",
        action="store_true",
        help="show every check, the explanation and all notes (always in other formats)",
    )
    options.add_widths(group)
    group.add_argument("-o", "--output", metavar="FILE", help="write to this file; replaces it")
    parser.set_defaults(top=None)


def run(args: argparse.Namespace) -> int:
    """Run the gate; return the exit code."""
    from gpusight.comparison.inputs import side_inputs

    # Where errors go is known before anything can fail; settings of a file may add to it.
    reports = [Path(text) if text else None for text in (args.junit, args.markdown)]
    try:
        _split_inputs(args)
        settings = _settings(args)
        reports = [settings.junit, settings.markdown]
        old, new = side_inputs(settings.baseline), side_inputs(args.file)
        paces = side_paces(args, old, new)
        next_command = _next_command(args, settings.baseline, new.paths[0], paces[1])
        args.file = str(new.paths[0])
        inputs = [*old.paths, *new.paths, *([settings.path] if settings.path else [])]
        _check_outputs(inputs, args, settings)
        result = _result((old, new), paces, args, settings)
    except NotApplicableError as error:
        _write_error(str(error), *reports)
        raise
    except BaseException as error:
        reason = str(error) if isinstance(error, GpusightError) else reason_of(error)
        _write_error(reason, *reports)
        known = error if isinstance(error, GpusightError) else internal_error(error)
        _write_error_answer(reason, known, args)
        raise
    next_command = "" if result.passed else _data_command(result, new.paths[0]) or next_command
    _write(result, args, settings, next_command)
    return result.exit_code


_LISTS = {"kernel": "kernels", "range": "ranges", "range_gpu": "ranges", "api": "api"}
"""Commands that list the names which patterns of metrics match."""


def _data_command(result: GateView, capture: Path) -> str:
    """Give the command that shows or records missing data; empty where other checks are open."""
    from gpusight.comparison.baseline_file import is_baseline
    from gpusight.comparison.gate_check import NO_DATA

    missing = [check for check in result.checks if result.answer.fails(check)]
    if not missing or any(check.doubt not in NO_DATA for check in missing):
        return ""
    metric = missing[0].limit.metric
    if metric == "memory_peak":
        return "gpusight record --memory -- COMMAND"
    if is_baseline(capture):
        return ""
    return f"gpusight {_LISTS.get(metric.partition(':')[0], 'info')} {shlex.quote(str(capture))}"


def _next_command(
    args: argparse.Namespace, baseline: Sequence[str], capture: Path, pace: str | None
) -> str:
    """Give the command that shows why a gate does not pass; empty where there is none."""
    from gpusight.comparison.baseline_file import is_baseline
    from gpusight.comparison.inputs import side_inputs
    from gpusight.open_job import jobs_among

    if baseline:
        part = typed_part(args)
        return f"gpusight compare {shlex.join([*baseline, *part, '--vs', *args.file])}"
    part = typed_part(args, pace)
    if any(len(captures) > 1 for captures in jobs_among(side_inputs(args.file).paths)):
        return f"gpusight ranks {shlex.join(args.file)}"
    return "" if is_baseline(capture) else f"gpusight diagnose {shlex.join([str(capture), *part])}"


def _write_error(reason: str, junit: Path | None, markdown: Path | None) -> None:
    """Replace the reports of an earlier run: no stale PASS may remain after an error."""
    from gpusight.render.gate_reports import error_junit, error_markdown

    if junit is not None and _is_replaceable(junit, b"<?xml"):
        write_file(junit, [error_junit(reason)])
    if markdown is not None and _is_replaceable(markdown, b"## Gate"):
        write_file(markdown, [error_markdown(reason)])


def _write_error_answer(reason: str, error: GpusightError, args: argparse.Namespace) -> None:
    """Replace the answer of an earlier run in the file of `-o`."""
    from gpusight.render.gate_reports import error_markdown

    if not args.output or args.output == "-":
        return
    try:
        form = chosen_format(args)
    except UsageError:  # the name is of a picture, which no gate wrote
        return
    answers = {
        "table": (b"Gate ", f"Gate error\n{reason}\n"),
        "json": (b'{\n  "meta": {\n    "command": "gate"', error_json(error, "gate")),
        "markdown": (b"## Gate", error_markdown(reason)),
    }
    heading, text = answers.get(form, (b"", ""))
    if heading and _is_replaceable(Path(args.output), heading):
        write_file(Path(args.output), [text])


def _is_replaceable(path: Path, heading: bytes) -> bool:
    """Whether an error may be written here: nothing is there, or the report of a gate.

    The path may be a mistake on the command line, and the error be about that.
    """
    if not path.exists():
        return path.parent.is_dir()
    if not path.is_file():
        return False
    with path.open("rb") as file:
        return file.read(len(heading)) in (heading, b"")


def _settings(args: argparse.Namespace) -> GateConfig:
    """Merge the settings file and the command line, which wins."""
    from gpusight.api import DEFAULT_GATE_LIMIT
    from gpusight.comparison.comparability import check_kinds
    from gpusight.comparison.gate_limits import (
        CONFIG_FILE_NAME,
        GateConfig,
        find_config,
        join_limits,
        load_config,
        read_limit,
    )

    path = Path(args.config) if args.config else find_config(Path.cwd())
    if path is None and args.gate:
        raise UsageError(
            f"--gate {args.gate} needs settings", hint=f"add --config {CONFIG_FILE_NAME}"
        )
    config = GateConfig() if path is None else load_config(path, args.gate)
    limits = join_limits(config.limits, map(read_limit, args.max))
    if not any((args.steps, args.window, args.warmup)):
        args.steps = config.steps
    args.within = args.within or config.within
    if args.output and Path(args.output).suffix.lower() == ".xml" and not args.format:
        raise UsageError("-o does not write JUnit XML", hint=f"use --junit {args.output}")
    args.formats = FORMATS
    chosen_format(args)
    return replace(
        config,
        baseline=tuple(args.baseline) or config.baseline,
        limits=limits or (read_limit(DEFAULT_GATE_LIMIT),),
        confidence=args.confidence if args.confidence is not None else config.confidence,
        inconclusive=args.inconclusive or config.inconclusive,
        allow_missing=args.allow_missing or config.allow_missing,
        allow_changed=check_kinds((*config.allow_changed, *args.allow_changed)),
        junit=Path(args.junit) if args.junit else config.junit,
        markdown=Path(args.markdown) if args.markdown else config.markdown,
    )


def _result(
    sides: tuple[SideInputs, SideInputs],
    paces: tuple[str | None, str | None],
    args: argparse.Namespace,
    settings: GateConfig,
) -> GateView:
    from gpusight.comparison.significance import CONFIDENCE, MIN_EFFECT

    baseline, captures = (
        read_digests(side, args, pace) for side, pace in zip(sides, paces, strict=True)
    )
    return gs.gate(
        captures,
        baseline=baseline,
        limits=[str(limit) for limit in settings.limits],
        confidence=CONFIDENCE if settings.confidence is None else settings.confidence,
        least=MIN_EFFECT if settings.least_effect is None else settings.least_effect,
        inconclusive=settings.inconclusive,
        allow_missing=settings.allow_missing,
        allow_changed=settings.allow_changed,
    )


def _split_inputs(args: argparse.Namespace) -> None:
    """Split the files of --baseline, which takes several, into baselines and captures.

    Only where it is unambiguous: files of `baseline save` first, then captures.
    """
    from gpusight.comparison.baseline_file import is_baseline
    from gpusight.comparison.inputs import is_comparable, not_comparable, side_inputs

    if args.file:
        return
    given: list[str] = args.baseline
    if len(given) < 2:
        raise UsageError("no capture was given", hint="gpusight gate --baseline FILE -- CAPTURE")
    kinds = [{is_baseline(path) for path in side_inputs([text]).paths} for text in given]
    count = next((n for n, kind in enumerate(kinds) if kind != {True}), len(kinds))
    for path in (path for text in given for path in side_inputs([text]).paths):
        if path.is_file() and not is_comparable(path):
            raise not_comparable(path)
    if not 0 < count < len(given) or any(kind != {False} for kind in kinds[count:]):
        *first, last = given
        raise UsageError(
            "no capture was given: --baseline took all files",
            hint=f"write: gpusight gate --baseline {shlex.join(first)} -- {shlex.quote(last)}",
        )
    args.baseline, args.file = given[:count], given[count:]


def _check_outputs(inputs: Sequence[Path], args: argparse.Namespace, settings: GateConfig) -> None:
    """Refuse, before anything is read, to overwrite an input or to write one file twice."""
    outputs = [settings.junit, settings.markdown]
    outputs += [Path(args.output)] if args.output and args.output != "-" else []
    targets = [path for path in outputs if path is not None]
    for number, path in enumerate(targets):
        if any(same_file(path, other) for other in inputs):
            raise UsageError(f"{path} is read by this gate", hint="choose another name")
        if any(same_file(path, other) for other in targets[:number]):
            raise UsageError(f"{path} would be written twice", hint="choose another name")
        for capture in inputs:
            refuse_capture(path, str(capture))
        if not path.parent.is_dir():
            raise UsageError(
                f"cannot write {path}",
                why=f"there is no folder {path.parent}",
                hint=f"make it first: mkdir -p {shlex.quote(str(path.parent))}",
            )


def _write(
    result: GateView, args: argparse.Namespace, settings: GateConfig, next_command: str
) -> None:
    """Write the result, and the reports of --junit and --markdown."""
    from gpusight.render.gate_view import COMMAND_LINE, verdict

    if settings.junit is not None:
        write_file(settings.junit, [result.to_junit()])
    if settings.markdown is not None:
        write_file(settings.markdown, [result.to_markdown()])
    shown = {}
    if chosen_format(args) == "table":
        details = args.details or args.wide
        shown = {"details": details, "next_command": next_command, "words": COMMAND_LINE}
    present(result, args, **shown)
    if args.output and args.output != "-" and not args.quiet:
        write_error(f"gpusight gate: {verdict(result.answer)}")  # the log of CI is not empty
