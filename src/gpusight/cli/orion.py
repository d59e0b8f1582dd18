"""What `gpusight orion` does: open the captures, ask, write files, show the answer."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from gpusight.cli import pictures
from gpusight.cli.options import FORMATS
from gpusight.cli.output import chosen_format, present, write_error, write_out
from gpusight.cli.progress import progress
from gpusight.cli.running import open_capture, warnings_of
from gpusight.render.cells import safe_text
from gpusight.result import Composite, NotApplicable, with_warnings

if TYPE_CHECKING:
    import argparse

    from gpusight.analyses.orion.blocks import Limits
    from gpusight.analyses.orion.build import Built, Options, Refused
    from gpusight.analyses.select import Selection
    from gpusight.model.trace import Trace
    from gpusight.result import Result

EXIT_BROKEN = 1
EXIT_REFUSED = 2
_FOR_PROGRAMS = frozenset({"rows", "launches", "series"})
"""Sections with a line for every row: JSON and CSV have them, tables do not."""


def build_file(args: argparse.Namespace) -> int:
    """Make a kernel-info file, and say what is in it."""
    from gpusight.analyses.orion.build import Refused, build

    _protect(args)
    chosen = _build_options(args)
    with progress(f"reading {Path(args.ncu).name}", quiet=args.quiet):
        ncu = open_capture(args.ncu, args)
        raw = open_capture(args.ncu_raw, args) if args.ncu_raw else None
        nsys = open_capture(args.nsys, args) if args.nsys else None
        result = build(ncu, chosen, raw=raw, nsys=nsys)
    output, args.output = args.output, None
    if isinstance(result, NotApplicable):
        return present(result, args)
    if isinstance(result, Refused):
        return _refuse(result, args)
    return _write(result, output, [t for t in (ncu, raw, nsys) if t is not None], args)


def check_file(args: argparse.Namespace) -> int:
    """Check a kernel-info file; exit code 1 where the scheduler could not use it."""
    from gpusight.analyses.orion.check import check, problems
    from gpusight.readers.kernel_info import read_kernel_info

    path = Path(args.file)
    result = check(read_kernel_info(path), path.name, args.num_kernels)
    if args.top is None:
        args.top = 0  # every broken row is named
    present(result, args)
    return EXIT_BROKEN if problems(result) else 0


def plot(args: argparse.Namespace) -> int:
    """Draw utilisation over time, or give its series."""
    from gpusight.analyses.orion.build import Refused
    from gpusight.analyses.orion.timeline import utilisation

    _protect(args)
    form = pictures.picture_format(args)
    with progress(f"reading {Path(args.nsys).name}", quiet=args.quiet):
        ncu, nsys = open_capture(args.ncu, args), open_capture(args.nsys, args)
        raw = open_capture(args.ncu_raw, args) if args.ncu_raw else None
        result = utilisation(ncu, nsys, _plot_options(args), raw=raw)
    if isinstance(result, Refused):
        return _refuse(result, args)
    warned = _warned(result, [t for t in (ncu, raw, nsys) if t is not None], args)

    def draw(answer: Composite, form: str) -> bytes:
        return _draw(answer, form, args.metric)

    code = pictures.present(warned, args, draw, _for_people)
    if form is None or args.output in {None, "-"}:
        return code
    # The picture is in its file; the screen has its averages.
    pictures.to_screen(args)
    return present(_for_people(warned, args), args)


def _captures(args: argparse.Namespace) -> list[str]:
    return [path for path in (args.ncu, args.ncu_raw, args.nsys) if path]


def _protect(args: argparse.Namespace) -> None:
    """Refuse to write over what is read, before anything is done."""
    from gpusight.render.orion import protect

    if args.output and args.output != "-":
        protect(Path(args.output), _captures(args))


def _build_options(args: argparse.Namespace) -> Options:
    from gpusight.analyses.orion.build import Options

    return Options(
        model_type=args.model_type,
        columns=args.columns,
        compat=args.compat,
        threshold=args.threshold,
        limits=_limits(args),
        durations=args.durations,
        helpers=args.helpers,
        selection=_selection(args),
    )


def _plot_options(args: argparse.Namespace) -> Options:
    from gpusight.analyses.orion.build import Options

    return Options(limits=_limits(args), selection=_selection(args))


def _limits(args: argparse.Namespace) -> Limits:
    from gpusight.analyses.orion.blocks import Limits

    return Limits(
        args.gpu, args.max_threads_sm, args.max_blocks_sm, args.max_shmem_sm, args.max_regs_sm
    )


def _selection(args: argparse.Namespace) -> Selection:
    from gpusight.analyses.select import Selection

    return Selection(within=args.within, device=args.device)


def _write(built: Built, output: str, traces: list[Trace], args: argparse.Namespace) -> int:
    from gpusight.render.orion import save

    to_stdout = output == "-"
    folder = Path(args.intermediate) if args.intermediate else None
    save(built, None if to_stdout else Path(output), folder, captures=_captures(args))
    if to_stdout:
        write_out(built.text)
        return 0
    code = present(_for_people(_warned(built.summary, traces, args), args), args)
    if chosen_format(args) == "table":
        _say_next(output, built.text.count("\n") - 1)
    return code


def _say_next(output: str, rows: int) -> None:
    name = safe_text(output)
    write_out(
        f'\nWritten to {name}; in the job\'s configuration: "num_kernels": {rows}\n'
        f"Next: gpusight orion check {name} --num-kernels {rows}\n"
    )


def _refuse(refused: Refused, args: argparse.Namespace) -> int:
    """Show how captures differ that ought to be of one run."""
    args.output = None
    if args.format not in FORMATS:
        args.format = "table"
    present(refused.table, args)
    write_error(f"gpusight: orion: {safe_text(refused.why)}; nothing was written")
    return EXIT_REFUSED


def _warned(result: Result, traces: list[Trace], args: argparse.Namespace) -> Result:
    return with_warnings(result, warnings_of(args, *traces))


def _for_people(result: Result, args: argparse.Namespace) -> Result:
    """Leave out of tables what has a line for every launch."""
    if isinstance(result, Composite) and chosen_format(args) in {"table", "markdown"}:
        return _short(result)
    return result


def _short(result: Composite) -> Composite:
    kept = tuple(s for s in result.sections if s.command not in _FOR_PROGRAMS)
    return replace(result, sections=kept)


def _draw(result: Composite, form: str, metric: str | None) -> bytes:
    from gpusight.render.pictures import draw
    from gpusight.render.pictures.orion import orion_figure

    only = None if metric is None else f"{metric}_share"
    return draw(orion_figure(result, only=only), form, result=_short(result))
