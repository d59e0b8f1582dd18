"""The five questions asked of every capture in a folder."""

from __future__ import annotations

import re
from dataclasses import replace
from itertools import count
from typing import TYPE_CHECKING

from gpusight.cli import options
from gpusight.cli.output import (
    EXIT_NOT_APPLICABLE,
    chosen_format,
    present,
    write_error,
    write_file,
)
from gpusight.cli.progress import progress
from gpusight.cli.reports import answers, find_captures
from gpusight.cli.running import open_capture
from gpusight.errors import (
    CaptureError,
    GpusightError,
    MissingDataError,
    NotACaptureError,
    UsageError,
)
from gpusight.evidence import encodable, refuse_capture
from gpusight.output_files import cannot_write
from gpusight.render.cells import safe_text
from gpusight.result import NotApplicable

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterable
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


_MOST_BYTES = 160
"""What names of files keep of a capture's name; file systems take 255 with the report's name."""
_LONGEST_REASON = 200


def ask_folder(folder: Path, out: Path, args: argparse.Namespace) -> int:
    """Ask of every capture; write reports, answers side by side, and say what was skipped.

    A capture that fails does not keep the others from being asked; the exit code is then 2.
    """
    from gpusight.analyses.questions.attention_flops import Sizes
    from gpusight.analyses.questions.summary import side_by_side
    from gpusight.render.json import to_json
    from gpusight.render.markdown import to_markdown

    _refuse(folder, out)
    model = None if args.model is None else Sizes.of(args.model)
    captures = _captures(folder, out)
    names = _file_names(captures)
    pages: dict[str, Composite | NotApplicable] = {}
    skipped: dict[str, str] = {}
    failed: dict[str, str] = {}
    for label, path in captures.items():
        found = _asked(label, path, out / names[label], model, args)
        if isinstance(found, BaseException):
            kept, said = (skipped, "skipped") if _is_other(found) else (failed, "failed")
            name = encodable(str(path.relative_to(folder)))
            kept[name] = why = _reason(found, path)
            write_error(f"gpusight: {said} {safe_text(name)}: {safe_text(why)}")
        else:
            pages[encodable(label)] = found
    if not pages and not failed:
        raise UsageError(f"no capture is in {folder}", hint="give a folder of captures")
    _make(out)
    summary = side_by_side(pages, skipped, failed)
    write_file(out / "summary.md", [to_markdown(summary)])
    write_file(out / "summary.json", [to_json(summary)])
    write_error(f"gpusight: wrote summary.md, summary.json and reports to {safe_text(str(out))}")
    args.output = None
    if chosen_format(args) == "table":  # sentences do not fit a terminal; summary.md has them
        kept_parts = (part for part in summary.sections if part.command != "answers")
        summary = replace(summary, sections=tuple(kept_parts))
    present(summary, args)
    if failed:
        return GpusightError.exit_code
    nothing = all(isinstance(page, NotApplicable) for page in pages.values())
    return EXIT_NOT_APPLICABLE if nothing else 0


def _refuse(folder: Path, out: Path) -> None:
    """Keep captures and what is made of them apart."""
    if not folder.is_dir():
        raise UsageError(f"{folder} is not a folder", hint="give a folder of captures to --batch")
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
    seen = [p for p in inside if not p.name.startswith(".") and p.resolve() not in around]
    if not seen:
        raise UsageError(f"no capture is in {folder}", why="it is empty")
    once = {path.resolve(): path for path in reversed(find_captures(seen).values())}
    for path in once.values():
        refuse_capture(out / "report", str(path))
    return find_captures(sorted(once.values()))


def _file_names(labels: Iterable[str]) -> dict[str, str]:
    """Give each capture a name that every file system and terminal takes, and no two the same."""
    names: dict[str, str] = {}
    taken: set[str] = set()
    for label in labels:
        plain = re.sub(r"[^\w.=+@ -]", "_", label).encode()[:_MOST_BYTES].decode(errors="ignore")
        tries = (plain if n == 1 else f"{plain}_{n}" for n in count(1))
        names[label] = next(name for name in tries if name.casefold() not in taken)
        taken.add(names[label].casefold())
    return names


def _asked(
    label: str, path: Path, target: Path, model: Sizes | None, args: argparse.Namespace
) -> Composite | NotApplicable | BaseException:
    """Ask of one capture and write its reports; or give what went wrong with it.

    Damaged files may trip over anything. What was not foreseen is told with its type, so that it is
    not taken for the file's fault, and the other captures are still asked.
    """
    from polars.exceptions import PanicException

    try:
        trace = open_capture(str(path), args)
        assert trace.meta, "every capture says what it is"
        page = _ask(trace, label, model, args)
        _make(target.parent)
        _write_reports(label, path, target, args)
    except BrokenPipeError:
        raise
    except (Exception, PanicException) as error:  # noqa: BLE001 - told, and the exit code is 2
        return error
    return page


def _is_other(error: BaseException) -> bool:
    """Tell whether a file is something else than a capture, which is no failure."""
    return isinstance(error, NotACaptureError)


def _reason(error: BaseException, path: Path) -> str:
    """Say in a line what went wrong; what was not foreseen with its type."""
    if isinstance(error, GpusightError):
        return encodable(str(error).removeprefix(f"{path} "))
    first = encodable(str(error)).partition("\n")[0][:_LONGEST_REASON]
    return f"unexpected {type(error).__name__}: {first}"


def _ask(
    trace: Trace, label: str, model: Sizes | None, args: argparse.Namespace
) -> Composite | NotApplicable:
    """Ask of one capture; what is asked for may be missing in this one, but not in the others."""
    from gpusight.analyses.questions import questions

    chosen = options.selection(args)
    try:
        with progress(f"asking of {label}", quiet=args.quiet):
            return questions(trace, chosen, model=model, **options.focus(args))
    except (UsageError, MissingDataError) as error:
        return NotApplicable("questions", str(error))


def _make(out: Path) -> None:
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise cannot_write(out, error) from error


def _write_reports(label: str, path: Path, target: Path, args: argparse.Namespace) -> None:
    """Write the reports as text; a report without data is a text that says so."""
    from gpusight.render import stats

    for answer in answers({label: path}, REPORTS, args):
        report = answer.made
        text = f"{answer.report}: {safe_text(answer.reason or '')}\n"
        if report is not None:
            text = f"{stats.heading(report)}\n\n{stats.to_column(report)}"
        write_file(target.with_name(f"{target.name}.{answer.report}.txt"), [text])
