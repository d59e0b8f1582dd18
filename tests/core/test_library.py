"""Which implementation runs: the compiled core, or NumPy and why."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from tools import build_core

from gpusight.core import library
from gpusight.core.library import CoreStatus, core_status, open_library, source_checksum
from gpusight.errors import UsageError
from tests.core.conftest import SANITIZED
from tests.shared import REPOSITORY

COMPILERS = build_core.compilers()
DIFFERENT = {Path(compiler.command[0]).resolve(): compiler for compiler in COMPILERS}
"""Each one once: `cc` is usually another name of gcc or clang."""
needs_compiler = pytest.mark.skipif(not COMPILERS, reason="no C compiler is here")
sanitized_already = pytest.mark.skipif(
    SANITIZED in os.environ, reason="this run is the one that another test started"
)


def _status(monkeypatch: pytest.MonkeyPatch, value: str) -> CoreStatus:
    monkeypatch.setenv(library.VARIABLE, value)
    return core_status.__wrapped__()


def test_a_variable_forces_numpy(monkeypatch: pytest.MonkeyPatch) -> None:
    assert _status(monkeypatch, "numpy") == CoreStatus(None, "GPUSIGHT_CORE=numpy")


def test_a_variable_of_no_meaning_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError, match="GPUSIGHT_CORE=c"):
        _status(monkeypatch, "c")


def test_no_library_is_a_reason_for_numpy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    missing = open_library(tmp_path / "none.so")
    assert missing.library is None
    assert "not built" in missing.reason
    monkeypatch.setattr(library, "LIBRARY", tmp_path / "none.so")
    monkeypatch.setattr(library, "open_library", lambda: missing)
    with pytest.raises(UsageError, match="not built"):
        _status(monkeypatch, "compiled")


@sanitized_already
def test_a_file_that_is_no_library_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "gpusight_core.so"
    path.write_bytes(b"\x7fELF" + bytes(100))
    status = open_library(path)
    assert status.library is None
    assert "cannot be loaded" in status.reason


def test_the_checksum_follows_every_source(tmp_path: Path) -> None:
    for path in library.FOLDER.glob("*.[ch]"):
        shutil.copy(path, tmp_path)
    assert source_checksum.__wrapped__(tmp_path) == source_checksum()
    with (tmp_path / "nesting.c").open("a") as file:
        file.write("\n")
    assert source_checksum.__wrapped__(tmp_path) != source_checksum()


@needs_compiler
@sanitized_already
@pytest.mark.parametrize("compiler", DIFFERENT.values(), ids=lambda compiler: compiler.name)
def test_each_compiler_builds_it_without_warnings(
    tmp_path: Path, compiler: build_core.Compiler
) -> None:
    path = tmp_path / library.LIBRARY.name
    assert build_core.compile_core(compiler, path, "-Werror") == ""
    assert list(tmp_path.iterdir()) == [path]
    status = open_library(path)
    assert status.reason == ""
    assert status.compiler.startswith(compiler.name)
    # Of other sources than those that lie there, it is refused.
    (tmp_path / "nesting.c").write_text("")
    stale = open_library(path, tmp_path)
    assert stale.library is None
    assert "built from other sources" in stale.reason


@needs_compiler
@sanitized_already
def test_sources_that_change_are_compiled_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    copy = tmp_path / "core"
    ignored = shutil.ignore_patterns("__pycache__", library.LIBRARY.name)
    shutil.copytree(library.FOLDER, copy, ignore=ignored)
    monkeypatch.setattr(build_core, "CORE", copy)
    quick = [flag for flag in build_core.FLAGS if flag != "-O3"]
    monkeypatch.setattr(build_core, "FLAGS", quick)
    assert build_core.compile_core(COMPILERS[0], copy / library.LIBRARY.name) == ""
    with (copy / "nesting.c").open("a") as file:
        file.write("\n")
    build_core.main([])
    assert capsys.readouterr().out == f"compiled core: built by {COMPILERS[0].name}\n"


@needs_compiler
@sanitized_already
def test_a_compiler_that_fails_is_named(tmp_path: Path) -> None:
    broken = build_core.Compiler((sys.executable, "-c", "raise SystemExit(3)"), "none", "any")
    assert build_core.compile_core(broken, tmp_path / "core.so") == "exit code 3"
    missing = build_core.Compiler((str(tmp_path / "cc"),), "none", "any")
    assert "No such file" in build_core.compile_core(missing, tmp_path / "core.so")


@sanitized_already
@pytest.mark.parametrize("compiled", [True, False])
def test_a_wheel_has_the_library_where_one_can_be_built(tmp_path: Path, compiled: bool) -> None:
    if compiled and not COMPILERS:
        pytest.skip("no C compiler is here")
    copy = tmp_path / "checkout"
    for name in ("src", "tools", "pyproject.toml", "README.md", ".gitignore", "LICENSE"):
        source = REPOSITORY / name
        if source.is_dir():
            ignored = shutil.ignore_patterns("__pycache__", "gpusight_core.so")
            shutil.copytree(source, copy / name, ignore=ignored)
        else:
            shutil.copy(source, copy / name)
    hook = copy / "tools" / "build_core.py"
    hook.write_text(hook.read_text().replace('"-O3"', '"-O0"'))  # takes a fifth of the time
    build = (
        "import hatchling.build as h; from tools import build_core;"
        f"print(h.build_wheel({str(tmp_path)!r}))"
    )
    environment = {**os.environ, "PYTHONPATH": ""}
    if not compiled:  # no compiler on the PATH, and no ziglang where Python looks
        environment |= {"PATH": str(tmp_path), "CC": str(tmp_path / "no-cc")}
    done = subprocess.run(
        [sys.executable, "-c", build],
        cwd=copy,
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        core = {name for name in archive.namelist() if name.startswith("gpusight/core/")}
        other = [name for name in archive.namelist() if name.endswith((".so", ".c", ".h"))]
    assert {"gpusight/core/nesting.c", "gpusight/core/gpusight_core.h"} <= core
    assert set(other) <= core, done.stdout
    has_library = any(name.endswith(library.LIBRARY.name) for name in core)
    assert has_library is compiled
    tag = wheel.stem.partition("-py3-none-")[2]
    assert (tag == "any") is not compiled


@sanitized_already
def test_info_says_which_one_runs() -> None:
    command = [sys.executable, "-m", "gpusight", "info", "--build", "--format", "json"]
    environment = {**os.environ, library.VARIABLE: "numpy"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    meta = json.loads(done.stdout)["meta"]
    assert (meta["core"], meta["reason"]) == ("NumPy", "GPUSIGHT_CORE=numpy")


@needs_compiler
@sanitized_already
@pytest.mark.skipif(sys.platform != "linux", reason="loads the sanitizer into Python as Linux does")
def test_the_core_touches_nothing_outside_its_buffers(tmp_path: Path) -> None:
    """Every test of the core once more, on a library that ends the process on such an access."""
    compiler = COMPILERS[0]
    path = tmp_path / library.LIBRARY.name
    asan = subprocess.run(
        [*compiler.command, "-print-file-name=libasan.so"], capture_output=True, text=True
    ).stdout.strip()
    if not Path(asan).is_absolute() or build_core.compile_core(
        compiler, path, *build_core.SANITIZE
    ):
        pytest.skip(f"{compiler.name} has no sanitizers here")
    environment = {
        **os.environ,
        SANITIZED: str(path),
        library.VARIABLE: "compiled",
        "LD_PRELOAD": asan,
        # Nobody asks where each small object was allocated.
        "ASAN_OPTIONS": "detect_leaks=0:malloc_context_size=0",
        "PYTHONMALLOC": "malloc",  # so that it sees the ends of small objects
    }
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-v", "-p", "no:cacheprovider", "-n0", "tests/core"],
        cwd=REPOSITORY,
        env=environment,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert " passed" in done.stdout
