"""Names of captures, and which are taken, also by recordings under way."""

from __future__ import annotations

import contextlib
import os
import re
import socket
import sys
import tempfile
from itertools import chain, count
from pathlib import Path
from typing import IO, TYPE_CHECKING

from gpusight.errors import RecordError, UsageError
from gpusight.recording.programs import (
    CONTAINERS,
    LAUNCHERS,
    base_name,
    is_interpreter,
    launches_torch,
    read_python,
)
from gpusight.recording.request import Tool

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence


@contextlib.contextmanager
def name_lock(capture: Path) -> Iterator[None]:
    """Keep a name while the block runs; raises where another recording has it.

    The file is locked, so that one which a killed process left behind counts for nothing.
    """
    lock_file = _lock_file(capture)
    try:
        file = lock_file.open("a")
    except OSError as error:
        why = error.strerror or str(error)
        raise RecordError(f"cannot write {capture}", why=why, hint="choose another -o") from error
    with file:
        if not _lock(file):
            raise RecordError(
                f"another gpusight record is already writing {capture}",
                hint="choose another name for -o",
            )
        try:
            yield
        finally:
            with contextlib.suppress(OSError):  # without the lock it blocks nobody
                lock_file.unlink()


def is_locked(capture: Path) -> bool:
    """Return whether a recording that runs now has this name."""
    try:
        with _lock_file(capture).open("r") as file:
            return not _lock(file)
    except OSError:
        return False


def _lock_file(capture: Path) -> Path:
    return capture.with_name(f".{capture.name}.recording")


def _lock(file: IO[str]) -> bool:
    """Lock an open file until it is closed; False where another process has it locked.

    True where files cannot be locked (Windows, some shared file systems).
    """
    if sys.platform == "win32":
        return True
    import fcntl

    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return True
    return True


_SCRIPTS = (".py", ".pyc", ".pyz", ".sh", ".bash", ".exe", ".ipynb")
_UNUSUAL = re.compile(r"[^\w.+-]+")
_MAX_NAME_BYTES = 100
_ENDINGS = {
    Tool.NSYS: (Tool.NSYS.suffix, ".qdrep"),
    Tool.NCU: (Tool.NCU.suffix,),
    Tool.TORCH: (Tool.TORCH.suffix, ".json.gz", ".json"),
    Tool.CUPTI: (Tool.CUPTI.suffix,),
}
"""What people give as the end of the name of a tool's capture."""
_PLACEHOLDER = re.compile(r"%(%|q\{(\w+)\}|.?)")


def default_name(program: Sequence[str]) -> str:
    """Make a name from a program: its script's or module's, else its own."""
    name = base_name(_main_word(list(program)))
    ending = next((s for s in _SCRIPTS if name.lower().endswith(s) and len(name) > len(s)), "")
    plain = _UNUSUAL.sub("_", name[: len(name) - len(ending)]).strip("._-")
    return plain.encode("utf-8", "replace")[:_MAX_NAME_BYTES].decode("utf-8", "ignore") or "capture"


def _main_word(words: list[str]) -> str:
    """Find the word that names what runs: launchers and interpreters name only how."""
    after = launches_torch(words)
    if after is not None:
        return _launched_word(words[after:]) or words[0]
    if is_interpreter(words[0]):
        return read_python(words).runs or words[0]
    for index, word in enumerate(words[1:], start=1):
        if is_interpreter(word) or launches_torch([word]) is not None:
            return _main_word(words[index:])
    arguments = [word for word in words[1:] if not word.startswith("-")]
    script = next((word for word in arguments if word.endswith(_SCRIPTS)), None)
    if script is not None or base_name(words[0]) not in LAUNCHERS | CONTAINERS:
        return script or words[0]
    # `mpirun -n 4 ./solver`
    return next((word for word in arguments if "/" in word), words[0])


def _launched_word(words: Sequence[str]) -> str | None:
    """Find the script or module among a launcher's options and those of the script."""
    for index, word in enumerate(words):
        if word in ("-m", "--module") and index + 1 < len(words):
            rest = [w for w in words[index + 1 :] if not w.startswith("-")]
            return next((w for w in rest if not w.isdigit()), None)
        if word.endswith(_SCRIPTS):
            return word
    return None


def expand(text: str, environ: Mapping[str, str]) -> str:
    """Fill in `%h` (the machine) and `%q{VARIABLE}`, which people know from nsys and ncu."""

    def value(placeholder: re.Match[str]) -> str:
        kind, variable = placeholder.groups()
        if kind == "%":
            return "%"
        if kind == "h":
            return socket.gethostname()
        if variable and variable in environ:
            return environ[variable]
        if variable:
            raise UsageError(f"-o {text} uses {variable}, which is not set")
        raise UsageError(
            f"-o {text} has the unknown placeholder {placeholder[0]}",
            hint="%h is the host name, %q{VARIABLE} an environment variable, %% a percent sign",
        )

    return _PLACEHOLDER.sub(value, text)


def base_of(output: Path, tool: Tool) -> Path:
    """Remove the tool's suffix from a name; refuses one that belongs to another tool."""
    lower = output.name.lower()
    for other in (tool, *(t for t in Tool if t is not tool)):
        ending = next((e for e in _ENDINGS[other] if lower.endswith(e)), None)
        if ending is None:
            continue
        if other is not tool:
            raise UsageError(
                f"{output} is named like a capture of {other.value}",
                hint=f"{tool.value} writes {tool.suffix}; or add --with {other.value}",
            )
        if len(output.name) == len(ending):
            raise UsageError(f"-o {output} has an extension but no name")
        return output.with_name(output.name[: len(output.name) - len(ending)])
    return output


def with_rank(base: Path, rank: int | None) -> Path:
    """Add the rank to a name: captures of one run lie side by side."""
    return base if rank is None else base.with_name(f"{base.name}.rank{rank}")


def family(base: Path, suffix: str) -> list[Path]:
    """List the captures of a name: its own, and those of its ranks and processes."""
    if not base.parent.is_dir():
        return []
    own_name = re.compile(
        re.escape(base.name) + r"(\.rank(?P<rank>\d+))?(\.pid\d+)?(\.\d+)?" + re.escape(suffix)
    )
    matches = [(own_name.fullmatch(path.name), path) for path in base.parent.iterdir()]
    ranked = [(int(match["rank"] or 0), path) for match, path in matches if match is not None]
    return [path for _, path in sorted(ranked)]


def free_base(base: Path, suffix: str, rank: int | None = None) -> Path:
    """Return the name itself, or with the first number that no capture (of the rank) has."""
    numbered = (base.with_name(f"{base.name}-{number}") for number in count(2))
    for candidate in chain([base], numbered):
        own = with_rank(candidate, rank)
        if not family(own, suffix) and not is_locked(own.with_name(own.name + suffix)):
            return candidate
    raise AssertionError("numbers do not end")


def refuse_taken(base: Path, suffix: str, *, overwrite: bool) -> None:
    """Raise where a capture of that name exists and may not be replaced."""
    taken = family(base, suffix)
    own = base.with_name(base.name + suffix)
    if own in taken and own.is_dir():
        raise RecordError(f"{own} is a folder", hint="choose another name for -o")
    if taken and not overwrite:
        raise RecordError(
            f"{taken[0]} exists", hint="choose another name for -o, or add --overwrite"
        )


def absolute(path: Path) -> Path:
    """Return the absolute path; raises where the current folder is gone."""
    try:
        return path.absolute()
    except OSError as error:
        raise RecordError(
            "the current folder cannot be used",
            why=error.strerror or str(error),
            hint="change to another one",
        ) from error


def prepare_folder(folder: Path) -> None:
    """Make the folder; raises where nothing can be written there: now, not after an hour."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise RecordError(
            f"cannot write to {folder}", why=error.strerror or str(error), hint="choose another -o"
        ) from error


def output_path(text: str, program: Sequence[str]) -> Path:
    """Read the value of `-o`; a slash at its end means a folder, also one that does not exist."""
    path = Path(text)
    try:
        is_folder = path.is_dir()
    except OSError as error:  # such as a name that is too long
        why = error.strerror or str(error)
        raise UsageError(f"-o {text} cannot be written", why=why) from error
    is_new_folder = text.endswith(("/", os.sep)) and not is_folder
    return path / default_name(program) if is_new_folder else path
