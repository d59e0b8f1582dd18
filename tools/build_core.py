"""Compiles the core (src/gpusight/core/*.c) into the package folder.

    python tools/build_core.py  # what scripts/setup runs; does nothing where it is up to date

It is also the build hook of hatchling (pyproject.toml): a wheel with the library is tagged for its
platform, one without for any. The compiler is `$CC`, else cc, gcc or clang on the PATH, else
`zig cc` of the PyPI package ziglang. Without any of them nothing is compiled, and gpusight
computes with NumPy.
"""

from __future__ import annotations

import importlib.util
import os
import platform
import shlex
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parents[1]
CORE = ROOT / "src" / "gpusight" / "core"
FLAGS = ("-std=c11", "-O3", "-fPIC", "-shared", "-fvisibility=hidden", "-Wall", "-Wextra")
EXACT = ("-ffp-contract=off", "-fno-fast-math")
"""Floats round as NumPy's do."""
SANITIZE = ("-g", "-O1", "-fsanitize=address,undefined", "-fno-sanitize-recover=all")
"""For tests: a library that ends the process on a wrong access or undefined arithmetic."""
_OLDEST_GLIBC = "2.17"
"""What zig compiles for, so that a wheel runs on any Linux of the last ten years."""


class Compiler(NamedTuple):
    """How to call a compiler, and the platform of the wheel that it makes."""

    command: tuple[str, ...]
    name: str
    wheel_platform: str


def compilers() -> list[Compiler]:
    """List what can compile C here, the preferred first."""
    own = _own_platform()
    compilers = []
    if chosen := shlex.split(os.environ.get("CC", "")):
        compilers.append(Compiler(tuple(chosen), Path(chosen[0]).name, own))
    paths = {name: shutil.which(name) for name in ("cc", "gcc", "clang")}
    compilers += [Compiler((path,), name, own) for name, path in paths.items() if path]
    if importlib.util.find_spec("ziglang"):
        zig = (sys.executable, "-m", "ziglang", "cc")
        machine = platform.machine()
        if "manylinux" in own and machine in ("x86_64", "aarch64"):
            target = ("-target", f"{machine}-linux-gnu.{_OLDEST_GLIBC}")
            wheel = f"manylinux_{_OLDEST_GLIBC.replace('.', '_')}_{machine}"
            compilers.append(Compiler((*zig, *target), "zig cc", wheel))
        else:
            compilers.append(Compiler(zig, "zig cc", own))
    return compilers


def _own_platform() -> str:
    """Name this platform as wheels do."""
    from packaging.tags import platform_tags

    return next(iter(platform_tags()))


def library_module() -> ModuleType:
    """Load the module that opens the library, alone: the package may lack its dependencies."""
    spec = importlib.util.spec_from_file_location("core_library", CORE / "library.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


def compile_core(compiler: Compiler, target: Path, *extra: str) -> str:
    """Compile all sources into a library; returns the compiler's complaint, empty if it worked."""
    checksum = library_module().source_checksum()
    sources = sorted(str(path) for path in CORE.glob("*.c"))
    defines = (f"-DGPUSIGHT_SOURCES={checksum}u", f'-DGPUSIGHT_COMPILER="{compiler.name}"')
    flags = [*FLAGS, *EXACT, *extra, *defines]
    if sys.platform == "win32":
        flags.remove("-fPIC")
    # Written elsewhere and renamed: a running gpusight keeps the one that it has open.
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=".build-") as folder:
        built = Path(folder) / target.name
        command = [*compiler.command, *flags, *sources, "-o", str(built)]
        try:
            done = subprocess.run(command, capture_output=True, text=True, check=False)
        except OSError as error:
            return str(error)
        if done.returncode or not built.exists():
            return done.stderr.strip() or f"exit code {done.returncode}"
        built.replace(target)
    return ""


def build() -> tuple[Compiler | None, str]:
    """Compile into the package folder with the first compiler that can; say what was done."""
    core = library_module()
    core.LIBRARY.unlink(missing_ok=True)
    complaints = []
    for compiler in compilers():
        complaint = compile_core(compiler, core.LIBRARY)
        # In a process of its own: this one may have the library that was there before still open.
        reason = complaint or _reason_in_another_process()
        if not reason:
            return compiler, f"compiled core: built by {compiler.name}"
        core.LIBRARY.unlink(missing_ok=True)
        complaints.append(f"{compiler.name}: {reason.splitlines()[0]}")
    why = "; ".join(complaints) or "no C compiler is here, and no PyPI package ziglang"
    return None, f"compiled core: not built, gpusight computes with NumPy ({why})"


def _reason_in_another_process() -> str:
    code = f"import sys; sys.path.insert(0, {str(ROOT)!r}); from tools import build_core as b;"
    command = [sys.executable, "-c", f"{code} print(b.library_module().open_library().reason)"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.stdout.strip() if done.returncode == 0 else f"exit code {done.returncode}"


def main(arguments: list[str]) -> int:
    """Build where that is needed."""
    if arguments:
        sys.exit(__doc__)
    if library_module().open_library().library is None:
        print(build()[1])
    return 0


def get_build_hook() -> type[Any]:
    """Make hatchling's build hook; hatchling is there only while a wheel is built."""
    from hatchling.builders.hooks.plugin.interface import BuildHookInterface

    class CoreHook(BuildHookInterface[Any]):
        """Puts the library into the wheel, and the platform into its tag."""

        def initialize(self, version: str, build_data: dict[str, Any]) -> None:  # noqa: ARG002
            """Compile before the files of the wheel are listed."""
            compiler, message = build()
            self.app.display_info(message)
            if compiler is not None:
                library = library_module().LIBRARY.relative_to(ROOT)
                build_data["artifacts"].append(library.as_posix())
                build_data["pure_python"] = False
                build_data["tag"] = f"py3-none-{compiler.wheel_platform}"

    return CoreHook


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
