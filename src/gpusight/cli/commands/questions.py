"""`gpusight questions`: five questions about a training step, of one capture or of a folder."""

from __future__ import annotations

import re
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING

import gpusight as gs
from gpusight.cli import options
from gpusight.cli.capture_input import keep_warnings, open_capture, progress
from gpusight.cli.output import (
    EXIT_NOT_APPLICABLE,
    chosen_format,
    keep_inputs,
    present,
    write_error,
    write_file,
)
from gpusight.cli.stats_answers import find_captures, stats_answers
from gpusight.errors import (
    CaptureError,
    GpusightError,
    MissingDataError,
    NotACaptureError,
    UsageError,
)
from gpusight.output_files import cannot_write
from gpusight.render.cell_text import safe_text
from gpusight.render.result_view import Page
from gpusight.results import NotApplicable
from gpusight.sniff import encodable_text, refuse_capture, same_file

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterable

    from gpusight.results import Composite
    from gpusight.trace.trace import Trace


SUMMARY = "five questions about a training step, with numbers"
DESCRIPTION = (
    "How long a forward pass takes, against wall-clock timings; which kernel takes most GPU time "
    "in it, and how often it is launched; GPU time of kernels other than GEMMs; how training "
    "differs from inference; and how softmax compares with the GEMMs of attention in time and in "
    "FLOPs. Per pass, without warm-up, from ranges such as `forward`, "
    "else from the framework's operators. For what cannot be answered: the reason, and what to add."
)
EXAMPLES: tuple[str, ...] = (
    "gpusight questions train.nsys-rep --timings timings.csv --model 4,12,512,64",
    "gpusight questions forward.sqlite --compare train.sqlite",
    "gpusight questions --batch captures/ -o answers/",
)
DEFAULT_FOLDER = "gpusight-questions"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    options.add_capture(parser, nargs="?")
    group = parser.add_argument_group("inputs")
    group.add_argument(
        "--compare",
        metavar="FILE2",
        help="a second capture; of the two, the one that trains is training, the other inference",
    )
    group.add_argument(
        "--timings",
        metavar="CSV",
        help="wall-clock times of a forward pass: a column such as forward_ms or time_s",
    )
    group.add_argument(
        "--model",
        metavar="B,H,S,D",
        help="batch, heads, sequence and head dimension, if the capture has no shapes",
    )
    group.add_argument(
        "--batch",
        metavar="DIR",
        help="answer for every capture in a folder; reports and a summary go to the folder of -o "
        f"(default: {DEFAULT_FOLDER})",
    )
    options.add_selection(parser)
    options.add_focus(parser)
    options.add_output(parser)


def run(args: argparse.Namespace) -> int:
    """Run the command; returns the exit code."""
    if args.batch is not None:
        if args.file is not None or args.compare or args.timings:
            raise UsageError(
                "--batch treats all captures alike",
                hint="leave out FILE, --compare and --timings, or --batch",
            )
        return answer_folder(Path(args.batch), Path(args.output or DEFAULT_FOLDER), args)
    if args.file is None:
        raise UsageError("questions needs a capture", hint="type gpusight questions FILE")
    return _answer_one(args)


def _answer_one(args: argparse.Namespace) -> int:
    if args.output and args.output != "-":
        keep_inputs(args, [args.compare] if args.compare else [])
        if args.timings is not None and same_file(Path(args.output), Path(args.timings)):
            what = f"{args.output} is the timings themselves"
            raise UsageError(what, hint="choose another name for -o")
    with progress(f"reading {Path(args.file).name}", quiet=args.quiet):
        trace = open_capture(args.file, args)
        other = None if args.compare is None else open_capture(args.compare, args)
        result = gs.questions(
            trace,
            compare=other,
            timings=args.timings,
            model=args.model,
            **options.part(args),
        )
        keep_warnings(args, trace, *(() if other is None else (other,)))
    return present(result, args)


BATCH_REPORTS = (
    "nvtx_sum",
    "cuda_api_sum",
    "cuda_gpu_kern_sum",
    "cuda_gpu_mem_time_sum",
    "cuda_gpu_mem_size_sum",
)
"""Reports of `nsys stats` that are written of each capture."""


_MAX_NAME_BYTES = 160
"""What names of files keep of a capture's name; file systems take 255 with the report's name."""
_MAX_REASON_CHARS = 200


def answer_folder(folder: Path, out: Path, args: argparse.Namespace) -> int:
    """Answer for every capture; write reports, answers side by side, and say what was skipped.

    A capture that fails does not stop the others; the exit code is then 2.
    """
    from gpusight.analysis.questions.attention_question import AttentionSizes
    from gpusight.analysis.questions.question_answers import side_by_side
    from gpusight.render.csv_json import to_json
    from gpusight.render.markdown_tables import to_markdown

    _check_folders(folder, out)
    if args.model is not None:
        AttentionSizes.of(args.model)  # before the captures are read
    captures = _captures(folder, out)
    names = _file_names(captures)
    pages: dict[str, Composite | NotApplicable] = {}
    skipped: dict[str, str] = {}
    failed: dict[str, str] = {}
    for label, path in captures.items():
        outcome = _answer_or_reason(label, path, out / names[label], args)
        if isinstance(outcome, BaseException):
            is_other = isinstance(outcome, NotACaptureError)  # which is no failure
            kept, status = (skipped, "skipped") if is_other else (failed, "failed")
            name = encodable_text(str(path.relative_to(folder)))
            kept[name] = why = _reason(outcome, path)
            write_error(f"gpusight questions: {status} {safe_text(name)}: {safe_text(why)}")
        else:
            pages[encodable_text(label)] = outcome
    if not pages and not failed:
        raise UsageError(f"no capture is in {folder}", hint="pass a folder of captures")
    _make_folder(out)
    summary = side_by_side(pages, skipped, failed)
    write_file(out / "summary.md", [to_markdown(summary)])
    write_file(out / "summary.json", [to_json(summary)])
    write_error(
        f"gpusight questions: wrote summary.md, summary.json and reports to {safe_text(str(out))}"
    )
    args.output = None
    if chosen_format(args) == "table":  # sentences do not fit a terminal; summary.md has them
        kept_parts = (part for part in summary.sections if part.command != "answers")
        summary = replace(summary, sections=tuple(kept_parts))
    present(Page(summary), args)
    if failed:
        return GpusightError.exit_code
    nothing = all(isinstance(page, NotApplicable) for page in pages.values())
    return EXIT_NOT_APPLICABLE if nothing else 0


def _check_folders(folder: Path, out: Path) -> None:
    """Keep captures and what is made of them apart."""
    if not folder.is_dir():
        raise UsageError(f"{folder} is not a folder", hint="pass a folder of captures to --batch")
    target, source = out.resolve(), folder.resolve()
    if target == source or source in target.parents:
        where = "holds the captures" if target == source else "lies in the folder of the captures"
        raise UsageError(f"{out} {where}", hint="choose a folder elsewhere for -o")
    if out.exists() and not out.is_dir():
        raise UsageError(f"{out} is not a folder", hint="choose a folder for -o")


def _captures(folder: Path, out: Path) -> dict[str, Path]:
    """Label what lies in the folder, each once; hidden files and links back are not looked at."""
    try:
        inside = sorted(folder.iterdir())
    except OSError as error:
        raise CaptureError(f"{folder} cannot be read", why=error.strerror or str(error)) from error
    around = {folder.resolve(), *folder.resolve().parents}
    paths = [p for p in inside if not p.name.startswith(".") and p.resolve() not in around]
    if not paths:
        raise UsageError(f"no capture is in {folder}", why="it is empty")
    once = {path.resolve(): path for path in reversed(find_captures(paths).values())}
    for path in once.values():
        refuse_capture(out / "report", str(path))
    return find_captures(sorted(once.values()))


def _file_names(labels: Iterable[str]) -> dict[str, str]:
    """Give each capture a name that every file system and terminal takes, and no two the same."""
    names: dict[str, str] = {}
    taken: set[str] = set()
    for label in labels:
        plain = (
            re.sub(r"[^\w.=+@ -]", "_", label).encode()[:_MAX_NAME_BYTES].decode(errors="ignore")
        )
        tries = (plain if n == 1 else f"{plain}_{n}" for n in count(1))
        names[label] = next(name for name in tries if name.casefold() not in taken)
        taken.add(names[label].casefold())
    return names


def _answer_or_reason(
    label: str, path: Path, target: Path, args: argparse.Namespace
) -> Composite | NotApplicable | BaseException:
    """Answer for one capture and write its reports; or give what went wrong with it.

    Damaged files may raise any exception. An unexpected one is reported with its type, so that it
    is not blamed on the file, and the other captures are still analyzed.
    """
    from polars.exceptions import PanicException

    try:
        trace = open_capture(str(path), args)
        assert trace.meta, "every capture has metadata"
        page = _answer_capture(trace, label, args)
        _make_folder(target.parent)
        _write_reports(label, path, target, args)
    except BrokenPipeError:
        raise
    except (Exception, PanicException) as error:  # noqa: BLE001 - reported, and the exit code is 2
        return error
    return page


def _reason(error: BaseException, path: Path) -> str:
    """Say in a line what went wrong; what was not foreseen with its type."""
    if isinstance(error, GpusightError):
        return encodable_text(str(error).removeprefix(f"{path} "))
    first = encodable_text(str(error)).partition("\n")[0][:_MAX_REASON_CHARS]
    return f"unexpected {type(error).__name__}: {first}"


def _answer_capture(
    trace: Trace, label: str, args: argparse.Namespace
) -> Composite | NotApplicable:
    """Answer for one capture; requested data may be missing in this one but not in others."""
    chosen = options.part(args)
    try:
        with progress(f"analyzing {label}", quiet=args.quiet):
            result = gs.questions(trace, model=args.model, **chosen)
            return result.answer
    except (UsageError, MissingDataError) as error:
        return NotApplicable("questions", str(error))


def _make_folder(out: Path) -> None:
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise cannot_write(out, error) from error


def _write_reports(label: str, path: Path, target: Path, args: argparse.Namespace) -> None:
    """Write the reports as text; a report without data is a text with the reason."""
    from gpusight.render import stats_tables

    for answer in stats_answers({label: path}, BATCH_REPORTS, args):
        report = answer.made
        text = f"{answer.report}: {safe_text(answer.reason or '')}\n"
        if report is not None:
            text = f"{stats_tables.stats_heading(report)}\n\n{stats_tables.stats_to_column(report)}"
        write_file(target.with_name(f"{target.name}.{answer.report}.txt"), [text])
