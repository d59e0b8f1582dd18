"""The five questions asked of every capture in a folder."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from gpusight.cli import options
from gpusight.cli.output import (
    EXIT_NOT_APPLICABLE,
    cannot_write,
    chosen_format,
    present,
    write_error,
    write_file,
)
from gpusight.cli.progress import progress
from gpusight.cli.reports import answers, find_captures
from gpusight.cli.running import open_capture
from gpusight.errors import CaptureError, GpusightError, UsageError
from gpusight.render.cells import safe_text
from gpusight.result import NotApplicable

if TYPE_CHECKING:
    import argparse
    from collections.abc import Mapping
    from pathlib import Path

    from gpusight.analyses.questions.attention_flops import Sizes
    from gpusight.model.trace import Trace
    from gpusight.result import Composite

REPORTS = (
    "nvtx_sum",
    "cuda_api_sum",
    "cuda_gpu_kern_sum",
    "cuda_gpu_mem_time_sum",
    "cuda_gpu_mem_size_sum",
)
"""Reports of `nsys stats` that are written of each capture."""


def ask_folder(folder: Path, out: Path, args: argparse.Namespace) -> int:
    """Ask of every capture; write reports, answers side by side, and say what was skipped."""
    from gpusight.analyses.questions.attention_flops import Sizes
    from gpusight.analyses.questions.summary import side_by_side
    from gpusight.render.json import to_json
    from gpusight.render.markdown import to_markdown

    _refuse(folder, out)
    model = None if args.model is None else Sizes.of(args.model)
    captures = _captures(folder, out)
    traces, skipped = _opened(captures, args)
    for name, why in skipped.items():
        write_error(f"gpusight: skipped {safe_text(name)}: {safe_text(why)}")
    if not traces:
        raise UsageError(f"no capture is in {folder}", hint="give a folder of captures")
    _make(out)
    pages = {label: _ask(trace, label, model, args) for label, trace in traces.items()}
    _write_reports({label: captures[label] for label in traces}, out, args)
    summary = side_by_side(pages, skipped)
    write_file(out / "summary.md", [to_markdown(summary)])
    write_file(out / "summary.json", [to_json(summary)])
    write_error(f"gpusight: wrote summary.md, summary.json and reports to {safe_text(str(out))}")
    args.output = None
    if chosen_format(args) == "table":  # sentences do not fit a terminal; summary.md has them
        kept = (part for part in summary.sections if part.command != "answers")
        summary = replace(summary, sections=tuple(kept))
    present(summary, args)
    nothing = all(isinstance(page, NotApplicable) for page in pages.values())
    return EXIT_NOT_APPLICABLE if nothing else 0


def _refuse(folder: Path, out: Path) -> None:
    """Keep captures and what is made of them apart."""
    if not folder.is_dir():
        raise UsageError(f"{folder} is not a folder", hint="give a folder of captures to --batch")
    if out.resolve() == folder.resolve():
        raise UsageError(
            f"{out} holds the captures", hint="choose another folder for -o: captures stay alone"
        )
    if out.exists() and not out.is_dir():
        raise UsageError(f"{out} is not a folder", hint="choose a folder for -o")


def _captures(folder: Path, out: Path) -> dict[str, Path]:
    """Label what lies in the folder; hidden files and our own folder are not looked at."""
    try:
        inside = sorted(folder.iterdir())
    except OSError as error:
        raise CaptureError(f"{folder} cannot be read", why=error.strerror or str(error)) from error
    own = out.resolve()
    seen = [p for p in inside if not p.name.startswith(".") and p.resolve() != own]
    if not seen:
        raise UsageError(f"no capture is in {folder}", why="it is empty")
    return find_captures(seen)


def _opened(
    captures: Mapping[str, Path], args: argparse.Namespace
) -> tuple[dict[str, Trace], dict[str, str]]:
    """Open what is a capture; note of the rest why it is not."""
    traces, skipped = {}, {}
    for label, path in captures.items():
        found = _open(path, args)
        if isinstance(found, GpusightError):
            skipped[path.name] = str(found).removeprefix(f"{path} ")
        else:
            traces[label] = found
    return traces, skipped


def _open(path: Path, args: argparse.Namespace) -> Trace | GpusightError:
    """Open a file; reading what it is about finds out whether it is damaged."""
    try:
        trace = open_capture(str(path), args)
        assert trace.meta, "every capture says what it is"
    except GpusightError as error:
        return error
    return trace


def _ask(
    trace: Trace, label: str, model: Sizes | None, args: argparse.Namespace
) -> Composite | NotApplicable:
    """Ask of one capture; what is asked for may be missing in this one, but not in the others."""
    from gpusight.analyses.questions import questions

    chosen = options.selection(args)
    try:
        with progress(f"asking of {label}", quiet=args.quiet):
            return questions(trace, chosen, model=model, **options.focus(args))
    except GpusightError as error:
        return NotApplicable("questions", str(error))


def _make(out: Path) -> None:
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise cannot_write(out, error) from error


def _write_reports(captures: Mapping[str, Path], out: Path, args: argparse.Namespace) -> None:
    """Write the reports as text; a report without data is a text that says so."""
    from gpusight.render import stats

    for answer in answers(captures, REPORTS, args):
        report = answer.made
        text = f"{answer.report}: {safe_text(answer.reason or '')}\n"
        if report is not None:
            text = f"{stats.heading(report)}\n\n{stats.to_column(report)}"
        write_file(out / f"{answer.capture}.{answer.report}.txt", [text])
