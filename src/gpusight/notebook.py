"""`%load_ext gpusight`: `%gpusight FILE` diagnoses a capture, `%%gpusight` records a cell first.

Nothing here imports IPython, which is not a dependency: it calls us.
"""

from __future__ import annotations

import argparse
import re
import shlex
import sys
import tempfile
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from gpusight import api
from gpusight.cli import options
from gpusight.errors import GpusightError, MissingDataError, RecordError, UsageError
from gpusight.recording.inside import environment
from gpusight.recording.inside.environment import RecorderPlan
from gpusight.recording.request import RecordedSteps
from gpusight.units import format_bytes

if TYPE_CHECKING:
    from collections.abc import Callable

    from gpusight.recording.inside.cell_recording import CellRecording
    from gpusight.render.result_view import DiagnosisView

MAGIC = "gpusight"
_IMPORTS_TORCH = re.compile(r"^\s*(?:import|from)\s+torch\b", re.MULTILINE)
_TOOLS = (environment.TORCH, environment.CUPTI)
_SUFFIXES = (".trace.json.gz", ".sqlite")


class MagicError(GpusightError):
    """A magic failed; a notebook shows one line, without the frames of IPython."""

    def _render_traceback_(self) -> list[str]:
        return [f"gpusight: {self}"]


class _Parser(argparse.ArgumentParser):
    """Raises where argparse would end the process."""

    def error(self, message: str) -> NoReturn:
        raise UsageError(message, hint=f"{self.prog} --help lists the options")

    def exit(self, *_: object) -> NoReturn:
        raise _HelpShown


class _HelpShown(Exception):  # noqa: N818 - no error
    """The help was printed."""


def register(shell: Any) -> None:
    """Add the magics to an IPython shell."""

    def magic(line: str, cell: str | None = None) -> DiagnosisView | None:
        return run_magic(shell, line, cell)

    magic.__doc__ = run_magic.__doc__  # what `%gpusight?` shows
    shell.register_magic_function(magic, magic_kind="line_cell", magic_name=MAGIC)


def run_magic(shell: Any, line: str, cell: str | None = None) -> DiagnosisView | None:
    """Diagnose a capture, or record a cell and diagnose that.

    %gpusight FILE [options]       diagnoses a capture; %gpusight --help lists the options
    %%gpusight [options]           records the cell below; %%gpusight --help lists them
    """
    try:
        if cell is None:
            return _diagnose(shell, line)
        return _record_cell(shell, line, cell)
    except _HelpShown:
        return None
    except MagicError:
        raise
    except GpusightError as error:
        raise MagicError(error.what, why=error.why, hint=error.hint) from error


def _words(line: str) -> list[str]:
    try:
        return shlex.split(line)
    except ValueError as error:
        raise UsageError(f"{line!r} cannot be split into words", why=str(error)) from error


def _kept(shell: Any, name: str | None, result: DiagnosisView) -> DiagnosisView:
    """Assign the result to a variable of the notebook, if one was named."""
    if name is not None:
        shell.push({name: result})
    return result


def _identifier(text: str) -> str:
    if not text.isidentifier():
        raise argparse.ArgumentTypeError(f"{text!r} is not a name of a variable")
    return text


def _add_name(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--as", dest="name", type=_identifier, metavar="NAME", help="assign the result to NAME"
    )


# %gpusight FILE -----------------------------------------------------------------------------------


def _diagnose(shell: Any, line: str) -> DiagnosisView:
    parser = _Parser(prog=f"%{MAGIC}", description="Diagnose a capture.")
    options.add_capture(parser, nargs="+")
    options.add_selection(parser)
    options.add_focus(parser)
    _add_name(parser)
    args = parser.parse_args(_words(line))
    result = api.diagnose(
        [api.open_captures(file) for file in args.file],
        **options.selection(args),
        **options.focus(args),
    )
    return _kept(shell, args.name, result)


# %%gpusight ---------------------------------------------------------------------------------------


def _cell_parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog=f"%%{MAGIC}",
        description="Record this cell and diagnose it. The first run of a cell includes start-up: "
        "put that in a cell above, or choose steps.",
    )
    parser.add_argument(
        "--with",
        dest="tool",
        choices=("auto", *_TOOLS),
        default="auto",
        help="the profiler: torch (torch.profiler) or cupti; auto, the default, uses torch if the "
        "notebook does, else cupti",
    )
    when = parser.add_mutually_exclusive_group()
    when.add_argument(
        "--steps",
        type=RecordedSteps.read,
        metavar="A-B",
        help="only these steps, counted from 0 by gs.step(), or else by the first torch optimizer; "
        "steps before them are timed without the profiler",
    )
    when.add_argument("--whole", action="store_true", help="the whole cell (default)")
    parser.add_argument("--memory", action="store_true", help="GPU memory usage")
    parser.add_argument(
        "--python-stacks", action="store_true", help="Python call stacks (torch): lines of code"
    )
    parser.add_argument("-o", "--output", metavar="OUT", help="name of the capture")
    _add_name(parser)
    return parser


def _record_cell(shell: Any, line: str, cell: str) -> DiagnosisView | None:
    """Run the cell in any case: what cannot be recorded is reported, and the cell has run."""
    args = _cell_parser().parse_args(_words(line))
    recording, why_not = _recording(args, cell)
    succeeded = _run_recorded(recording, partial(shell.run_cell, cell))
    if recording is not None and recording.path is not None:
        size = format_bytes(recording.path.stat().st_size)
        _tell(f"recorded {recording.path} ({size})")
    if not succeeded:
        raise MagicError("the cell failed, so it is not diagnosed")
    if recording is None or recording.path is None:
        failure = why_not if recording is None else recording.failure
        _tell(f"the cell ran, but {failure}")
        return None
    try:
        return _kept(shell, args.name, api.diagnose(recording.path))
    except MissingDataError as error:
        _tell(f"the cell ran, but there is nothing to diagnose: {_why_nothing(error)}")
        return None


def _why_nothing(error: MissingDataError) -> str:
    """Say it of the cell: advice on how to record does not help here."""
    torch: Any = sys.modules.get("torch")
    if torch is not None and not torch.cuda.is_available():
        return "PyTorch finds no GPU here (gpusight doctor shows what this machine has)"
    return error.what


def _recording(
    args: argparse.Namespace, cell: str
) -> tuple[CellRecording | None, RecordError | None]:
    from gpusight.recording.inside.cell_recording import CellRecording

    tool = args.tool
    uses_torch = "torch" in sys.modules or _IMPORTS_TORCH.search(cell) is not None
    if tool == "auto":
        tool = environment.TORCH if uses_torch else environment.CUPTI
    plan = RecorderPlan(
        recorder=tool,
        output=str(_output(args.output)),
        first_step=None if args.steps is None else args.steps.first,
        last_step=None if args.steps is None else args.steps.last,
        memory=args.memory,
        python_stacks=args.python_stacks,
    )
    try:
        if tool == environment.TORCH:
            _import_torch(imported_by_cell=uses_torch)
        return CellRecording(plan), None
    except RecordError as error:
        what = f"it was not recorded: {error.what}"
        return None, RecordError(what, why=error.why, hint=error.hint)


def _import_torch(*, imported_by_cell: bool) -> None:
    """Import PyTorch before the cell does: its profiler must know it."""
    if not imported_by_cell:
        raise RecordError("the notebook has not imported torch", hint="use --with cupti")
    try:
        import torch  # noqa: F401
    except ImportError as error:
        raise RecordError("torch cannot be imported", why=str(error)) from error


def _output(name: str | None) -> Path:
    """Give where the capture goes, without its suffix; a temporary folder where none was named."""
    if name is None:
        return Path(tempfile.mkdtemp(prefix="gpusight-")) / "cell"
    target = Path(name).absolute()
    if not target.parent.is_dir():
        raise UsageError(f"{target.parent} is not a folder", hint="create it, or choose another -o")
    existing = [str(target) + suffix for suffix in _SUFFIXES if Path(str(target) + suffix).exists()]
    if existing:
        raise UsageError(f"{existing[0]} exists", hint="remove it, or choose another -o")
    return target


def _run_recorded(recording: CellRecording | None, run: Callable[[], Any]) -> bool:
    """Run the cell, and end the recording however that ends; returns whether it succeeded."""
    if recording is None:
        return bool(run().success)
    recording.start()
    try:
        return bool(run().success)
    finally:
        recording.stop()


def _tell(text: str) -> None:
    sys.stderr.write(f"gpusight: {text}\n")
