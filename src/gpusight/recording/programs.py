"""What a program is, from its command line: Python, a launcher of ranks, or something else."""

from __future__ import annotations

import ast
import enum
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import TYPE_CHECKING, Any

from gpusight.errors import RecordError
from gpusight.recording.inside.stack_sampler import LAUNCHING
from gpusight.recording.request import Tool

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from gpusight.recording.request import RecordRequest


OLDEST_PYTHON = (3, 10)
"""What runs inside the program needs it."""
_ASK_TIMEOUT_S = 30.0
_ASK = (
    "import importlib.util as u, json, sys;"
    "print(json.dumps([list(sys.version_info[:2]),"
    "[m for m in ('torch',) if u.find_spec(m)]]))"
)
_PROBES = Path(__file__).parent / "doctor" / "probes.py"
_INTERPRETER = re.compile(r"(python\d?(\.\d+)?[a-z]?|pythonw|py)(\.exe)?", re.IGNORECASE)
_SHEBANG = re.compile(
    r"^(?:#!\s*|'''exec'\s+['\"]?)(?P<path>[^\s'\"]+)(?:[ \t]+(?P<next>\S+))?", re.M
)
_RUN_BY = {".py": "python", ".sh": "sh"}
_PROGRAMS = (b"#!", b"\x7fELF", b"MZ", b"\xcf\xfa\xed\xfe", b"\xca\xfe\xba\xbe")
"""How scripts begin, and machine code of Linux, Windows and macOS."""
_VALUE_FLAGS = "WX"
"""Short options of the interpreter that take a value, which may be the next word."""
_ISOLATING_FLAGS = "IES"
"""With these the interpreter reads neither PYTHONPATH nor sitecustomize."""
PYTHON_LAUNCHERS = frozenset({"torchrun", "accelerate", "deepspeed"})
_LAUNCHER_MODULES = frozenset(
    {"torch.distributed.run", "torch.distributed.launch", "accelerate.commands.launch"}
)
LAUNCHERS = frozenset(
    {"mpirun", "mpiexec", "mpiexec.hydra", "orterun", "prterun", "srun", "aprun", "jsrun", "flux"}
)
CONTAINERS = frozenset({"docker", "podman", "nerdctl"})
_STARTERS = frozenset(
    (
        *(*LAUNCHERS, *CONTAINERS),
        *("sh", "bash", "zsh", "dash", "ksh", "fish"),
        *("env", "nice", "numactl", "taskset", "stdbuf", "time", "timeout", "nohup"),
        *("uv", "uvx", "pixi", "poetry", "hatch", "pdm", "pipenv", "conda", "mamba"),
        *("apptainer", "singularity", "enroot", "micromamba", "make", "sudo", "setsid"),
    )
)
"""Launchers, containers, shells, wrappers and runners, which may start Python."""


class ProgramKind(enum.Enum):
    """How sure it is that Python runs."""

    PYTHON = "python"
    """The program itself is Python code."""
    PERHAPS = "perhaps"
    """A shell, a launcher or a wrapper, which may start Python."""
    BINARY = "binary"
    """Machine code, which does not."""


@dataclass(frozen=True)
class ProgramInfo:
    """A command line, and what is known about it."""

    argv: tuple[str, ...]
    path: str
    """Where the executable lies."""
    kind: ProgramKind
    interpreter: str | None
    """The Python that runs it, or that it is seen to start."""
    deaf_flag: str | None = None
    """An option of the interpreter that keeps our recorder from being loaded."""

    @property
    def word(self) -> str:
        """The executable's name alone."""
        return base_name(self.argv[0])

    @property
    def is_launcher(self) -> bool:
        """Return whether it starts several processes of one program."""
        return self.word in LAUNCHERS or launches_torch(self.argv) is not None


@dataclass(frozen=True)
class InterpreterInfo:
    """What a program's Python reports about itself."""

    version: tuple[int, int]
    packages: frozenset[str]


def inspect_program(argv: Sequence[str], environ: Mapping[str, str]) -> ProgramInfo:
    """Find out what a program is; raises where there is none of that name."""
    words = tuple(argv)
    path = shutil.which(words[0], path=environ.get("PATH"))
    if path is None:
        raise _absent(words[0])
    interpreter = path if is_interpreter(words[0]) else _shebang_interpreter(Path(path), environ)
    if interpreter is not None:
        flags = read_python(words).flags if is_interpreter(words[0]) else ""
        isolating = next((f"-{flag}" for flag in flags if flag in _ISOLATING_FLAGS), None)
        return ProgramInfo(words, path, ProgramKind.PYTHON, interpreter, isolating)
    below = _python_below(words[1:], environ)
    may_start_python = (
        below is not None
        or base_name(words[0]) in _STARTERS
        or any(word.endswith(".py") for word in words[1:])
        or _head(Path(path)).startswith(b"#!")
    )
    kind = ProgramKind.PERHAPS if may_start_python else ProgramKind.BINARY
    return ProgramInfo(words, path, kind, below)


def query_interpreter(interpreter: str, environ: Mapping[str, str]) -> InterpreterInfo | None:
    """Query what a Python has; None where it does not answer."""
    answer = _ask([interpreter, "-c", _ASK], environ)
    if not isinstance(answer, list):
        return None
    version, packages = answer
    return InterpreterInfo((int(version[0]), int(version[1])), frozenset(packages))


def find_cupti(interpreter: str, environ: Mapping[str, str]) -> str | None:
    """Return the libcupti that a recorder in this Python would load; None for none."""
    answer = _ask([interpreter, str(_PROBES), "probe_cupti"], environ)
    return answer["library"] if isinstance(answer, dict) else None


def _ask(argv: list[str], environ: Mapping[str, str]) -> Any:
    """Return the last line that a program prints, read as JSON; None where it does not answer."""
    try:
        done = subprocess.run(  # noqa: S603 - the interpreter that the user is about to run
            argv,
            env=dict(environ),
            capture_output=True,
            stdin=subprocess.DEVNULL,
            timeout=_ASK_TIMEOUT_S,
            check=False,
        )
        return json.loads(done.stdout.splitlines()[-1])
    except (OSError, subprocess.TimeoutExpired, ValueError, IndexError):
        return None  # what it has is then not known, which callers say


def is_interpreter(word: str) -> bool:
    """Return whether a word is the name of a Python interpreter."""
    return _INTERPRETER.fullmatch(base_name(word)) is not None


def base_name(word: str) -> str:
    """Return the last part of a path, also of one written for Windows."""
    return (PureWindowsPath(word) if "\\" in word else PurePosixPath(word)).name


@dataclass(frozen=True)
class PythonLine:
    """An interpreter's command line, split into its parts."""

    flags: str
    """Its short options that take no value, without dashes."""
    runs: str | None
    """The script or module; None for `-c`, standard input or nothing."""
    position: int
    """The index of that word."""


def read_python(argv: Sequence[str]) -> PythonLine:
    """Split an interpreter's command line into its parts."""
    flags, index = "", 1
    while index < len(argv):
        word = argv[index]
        if not word.startswith("-") or word == "-":
            return PythonLine(flags, None if word == "-" else word, index)
        for end, flag in enumerate("" if word.startswith("--") else word[1:], start=2):
            attached = word[end:]
            if flag == "c":
                return PythonLine(flags, None, index)
            if flag == "m":
                index += 0 if attached else 1
                module = attached or (argv[index] if index < len(argv) else None)
                return PythonLine(flags, module, index)
            if flag in _VALUE_FLAGS:
                index += 0 if attached else 1
                break
            flags += flag
        index += 1
    return PythonLine(flags, None, index)


_MAX_SOURCES, _MAX_SOURCE_BYTES = 500, 1 << 20
"""Of a program's own modules, that are searched for imports."""


def imported_packages(argv: Sequence[str]) -> frozenset[str]:
    """Return the packages that a program's script and its own modules import, by their names.

    What those packages import in turn is not known, nor what the program imports by other means.
    """
    at = next((at for at, word in enumerate(argv) if is_interpreter(word)), None)
    runs = argv[0] if at is None else read_python(argv[at:]).runs
    if runs is None:
        return frozenset()
    script = Path(runs)
    folder = script.parent if script.is_file() else Path()
    waiting = [script] if script.is_file() else _sources_of(folder, f"{runs}.__main__")
    packages: set[str] = set()
    seen: set[Path] = set()
    while waiting and len(seen) < _MAX_SOURCES:
        source = waiting.pop()
        if source in seen:
            continue
        seen.add(source)
        for name in _imports_in(source, folder):
            own = _sources_of(folder, name)
            waiting += own
            if not own:
                packages.add(name.partition(".")[0])
    return frozenset(packages)


def _sources_of(folder: Path, module: str) -> list[Path]:
    """Return the files in a folder that importing a module there would run."""
    parts = [part for part in module.split(".") if part]
    stems = [folder.joinpath(*parts[: end + 1]) for end in range(len(parts))]
    files = [file for stem in stems for file in (stem.with_suffix(".py"), stem / "__init__.py")]
    return [file for file in files if file.is_file()]


def _imports_in(source: Path, folder: Path) -> Iterator[str]:
    """List the modules that a file imports, anywhere in it; none where it cannot be parsed."""
    try:
        if source.stat().st_size > _MAX_SOURCE_BYTES:
            return
        tree = ast.parse(source.read_bytes())
        package = source.parent.relative_to(folder).parts
    except (OSError, SyntaxError, ValueError, RecursionError, MemoryError):
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) + 1 - node.level] if node.level else ()
            module = ".".join([*above, *filter(None, [node.module])])
            yield from (f"{module}.{alias.name}".lstrip(".") for alias in node.names)


def launches_torch(argv: Sequence[str]) -> int | None:
    """Return the index after the words `torchrun` or `python -m torch.distributed.run`, if so."""
    word = base_name(argv[0]).removesuffix(".exe")
    if word in PYTHON_LAUNCHERS:
        return 1
    line = read_python(argv) if is_interpreter(argv[0]) else None
    return line.position + 1 if line is not None and line.runs in _LAUNCHER_MODULES else None


def _absent(word: str) -> RecordError:
    path = Path(word)
    if not word:
        return RecordError("the program has no name", hint="gpusight record -- python train.py")
    if path.is_dir():
        return RecordError(f"{word} is a folder, not a program", hint="add the program to record")
    if not path.is_file():
        return RecordError(
            f"program {word} not found", hint="use its full path, or activate its environment"
        )
    if path.suffix in _RUN_BY:
        command = f"{_RUN_BY[path.suffix]} {shlex.quote(word)}"
        return RecordError(f"{word} is not executable", hint=f"gpusight record -- {command}")
    if not _head(path).startswith(_PROGRAMS):
        return RecordError(
            f"{word} is not a program",
            why="it has no #! line and is no executable format",
            hint="add the program to record",
        )
    is_owner = not hasattr(os, "geteuid") or path.stat().st_uid == os.geteuid()
    hint = f"chmod +x {shlex.quote(word)}" if is_owner else "its owner must make it executable"
    return RecordError(f"{word} is not executable", hint=hint)


def _shebang_interpreter(path: Path, environ: Mapping[str, str]) -> str | None:
    """Return the Python that a script's first lines name; also where a shell starts it for them."""
    head = _head(path)
    if not head.startswith(b"#!"):
        return None
    lines = head.decode("utf-8", "replace").splitlines()[:2]
    for shebang in _SHEBANG.finditer("\n".join(lines)):
        word = shebang["path"]
        if base_name(word) == "env" and shebang["next"]:
            word = shebang["next"]
        if is_interpreter(word):
            return shutil.which(word, path=environ.get("PATH"))
    return None


def _python_below(words: Sequence[str], environ: Mapping[str, str]) -> str | None:
    """Return the Python that the arguments name, or that a launcher among them is a script of."""
    for word in words:
        candidate = is_interpreter(word) or base_name(word) in PYTHON_LAUNCHERS
        path = shutil.which(word, path=environ.get("PATH")) if candidate else None
        if path is not None:
            return path if is_interpreter(word) else _shebang_interpreter(Path(path), environ)
    return None


def _head(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            return file.read(512)
    except PermissionError:
        return b""  # may be run but not read: no script is like that


_TORCHRUN = ("torchrun", "torch.distributed.run")
_FLAGS = frozenset({"--standalone", "--no-python", "--module", "--virtual-local-rank", "-m"})
"""Options of torchrun that take no value."""


def options_of(request: RecordRequest) -> list[str]:
    """Write a request as options of `gpusight record`, without its tool, output and program."""
    steps = None if request.steps is None else str(request.steps)
    level = request.level.value if request.tool is Tool.NCU else None
    valued = {
        "--range": request.range_name,
        "--steps": steps,
        "--delay": request.delay_s,
        "--duration": request.duration_s,
        "--warmup": request.warmup,
        "--timed": request.timed,
        "--recorded": request.recorded,
        "--kernel": None if request.kernel is None else f"regex:{request.kernel}",
        "--launch-skip": request.launch_skip,
        "--launch-count": request.launch_count,
        "--level": level,
        "--rank": str(request.ranks),
        "--stacks": f"{request.stacks_hz:g}" if request.stacks_hz else None,
        "--stacks-threads": request.stacks_threads if request.stacks_threads != LAUNCHING else None,
    }
    recorded = ("memory", "gpu_metrics", "shapes", "python_stacks", "graph_nodes")
    flags = ("whole", "pace", *recorded, "stop", "overwrite")
    options = [f"{name}={value}" for name, value in valued.items() if value is not None]
    options += [f"--{name.replace('_', '-')}" for name in flags if getattr(request, name)]
    options += ["--no-stacks"] if request.stacks_hz == 0 else []
    return options + [f"--tool-option={option}" for option in request.extra]


def per_rank(
    request: RecordRequest, program: ProgramInfo, tool: Tool, output: Path
) -> tuple[str, ...]:
    """Return the launcher's command line with `gpusight record` in it; raises where not sure.

    Only torchrun's options are known well enough to put something into its command line.
    """
    parts = _torchrun_parts(program)
    if parts is None:
        raise RecordError(
            f"{tool.value} records every process that {program.word} starts, not ranks "
            f"{request.ranks} alone",
            hint=f"start gpusight from it: {_hint(request, program, tool)}",
        )
    before, script = parts
    recorder = [sys.executable, "-m", "gpusight", "record", "--quiet", f"--with={tool.value}"]
    name = str(output).replace("%", "%%")
    recorder += [f"--output={name}", *options_of(request), "--"]
    return (*before, "--no-python", *recorder, *script)


def _torchrun_parts(program: ProgramInfo) -> tuple[list[str], list[str]] | None:
    """Split torchrun's command line into what comes before the script, and what each rank runs."""
    words = list(program.argv)
    index = launches_torch(words)
    if index is None or not words[index - 1].endswith(_TORCHRUN):
        return None
    start, flags = index, set()
    while index < len(words) and words[index].startswith("-") and words[index] != "--":
        name = words[index].replace("_", "-")
        if name == "--run-path":
            return None
        flags.add(name)
        index += 1 if name in _FLAGS or "=" in name else 2
    options = [w for w in words[start:index] if w.replace("_", "-") not in _REPLACED]
    module = ["-m"] if flags & {"-m", "--module"} else []
    python = [] if "--no-python" in flags else [str(program.interpreter), "-u", *module]
    script = words[index + 1 :] if words[index : index + 1] == ["--"] else words[index:]
    return [*words[:start], *options], [*python, *script]


_REPLACED = frozenset({"--no-python", "--module", "-m"})
"""How torchrun starts the script: replaced, as it starts us."""


def _hint(request: RecordRequest, program: ProgramInfo, tool: Tool) -> str:
    recorder = f"gpusight record --with {tool.value} --rank {request.ranks}"
    words = program.argv
    for index, word in enumerate(words[1:], start=1):
        if word.startswith("-"):
            continue
        # The launcher's options surely end at a Python or a path.
        if is_interpreter(word) or word.startswith(("./", "../")) or base_name(word) in _TORCHRUN:
            return f"{shlex.join(words[:index])} {recorder} -- {shlex.join(words[index:])}"
    return f"{program.word} … {recorder} -- PROGRAM"
